# make demo: answer the recordings in sample_audio/.   make test: the whole check.
# Each has its own virtual environment, made from pyproject.toml.

PYTHON ?= python3
DEMO := .venv/demo
TEST := .venv/test

.PHONY: demo test clean

demo: $(DEMO)/installed
	$(DEMO)/bin/personaplex convert sample_audio/ out/
	ls -l out/

test: $(TEST)/installed
	$(TEST)/bin/ruff format --check .
	$(TEST)/bin/ruff check .
	$(TEST)/bin/mypy
	$(TEST)/bin/python -m pytest

$(DEMO)/installed: pyproject.toml
	@echo "installing into $(DEMO) (torch is large: this can take minutes)"
	$(PYTHON) -m venv $(DEMO)
	$(DEMO)/bin/python -m pip install --quiet --editable .
	touch $@

$(TEST)/installed: pyproject.toml
	@echo "installing into $(TEST) (torch is large: this can take minutes)"
	$(PYTHON) -m venv $(TEST)
	$(TEST)/bin/python -m pip install --quiet --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv out
