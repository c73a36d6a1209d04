# make demo: answer the calls in sample_audio/.   make test: the whole check.
# Each has its own virtual environment, made from pyproject.toml.

PYTHON ?= python3
DEMO := .venv/demo
TEST := .venv/test

.PHONY: demo test embedded fuzz mutate kill clean

demo: $(DEMO)/installed
	$(DEMO)/bin/personaplex convert sample_audio/calls.jsonl out/
	$(DEMO)/bin/python recipes/demo.py out/

test: $(TEST)/installed
	$(TEST)/bin/ruff format --check .
	$(TEST)/bin/ruff check .
	$(TEST)/bin/mypy
	OMP_NUM_THREADS=1 $(TEST)/bin/python -m pytest --numprocesses auto --dist worksteal

# The embedded model, from nothing: hours on two cores; goes on where it was stopped. Needs flite and espeak-ng.
embedded: $(TEST)/installed
	$(TEST)/bin/python -m recipes.embedded --work build/embedded --out personaplex_cli/embedded

# A minute of coverage-guided fuzzing at each door; what fails is kept in tests/fuzz/corpus/ and tested from then on.
fuzz: $(TEST)/installed
	found=0; for door in audio manifest config dump voice; do \
		$(TEST)/bin/python -m tests.fuzz $$door --seconds 60 --keep || found=1; \
	done; exit $$found

# 10,000 broken WAVs, each with 5 s and 1 GB, and a table of what became of them.
mutate: $(TEST)/installed
	$(TEST)/bin/python -m tests.fuzz.mutate --count 10000 --seed 1

# A run of 400 recordings that is killed 50 times, and what stands there after each.
kill: $(TEST)/installed
	rm -rf build/kill
	OMP_NUM_THREADS=1 $(TEST)/bin/python -m tests.kill build/kill/in build/kill/out --recordings 400 --kills 50 --batch-size 4

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
