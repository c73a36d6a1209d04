"""File names are compared, cut and shown without surprises."""

from __future__ import annotations

import os
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from personaplex_cli.files.names import mode_of, real, sameness, shown, stem_of

names = st.binary(min_size=1, max_size=40).map(os.fsdecode)


@pytest.mark.parametrize(
    ("name", "stem"),
    [("a.wav", "a"), ("a.b.wav", "a.b"), ("a", "a"), (".wav", ".wav"), ("..wav", "..wav"), ("a.", "a")],
)
def test_a_stem_is_a_name_without_its_last_suffix(name: str, stem: str) -> None:
    assert stem_of(name) == stem


@given(names)
def test_a_stem_is_never_empty(name: str) -> None:
    assert stem_of(name)
    assert name.startswith(stem_of(name))


@given(st.text(max_size=20))
def test_case_and_unicode_form_make_no_other_file(name: str) -> None:
    assert sameness(name) == sameness(unicodedata.normalize("NFD", name))
    assert sameness(name) == sameness(unicodedata.normalize("NFC", name))
    assert sameness(name) == sameness(unicodedata.normalize("NFD", name).casefold())


@given(names)
def test_a_shown_name_is_one_line_that_can_be_printed(name: str) -> None:
    assert len(shown(name).splitlines()) <= 1
    assert "\x1b" not in shown(name)
    shown(name).encode("utf-8")


def test_ordinary_names_are_shown_as_they_are() -> None:
    assert shown(Path("a b/é 🎙 👩‍🚀.wav")) == "a b/é 🎙 👩‍🚀.wav"


def test_loops_and_impossible_names_lead_nowhere(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    assert mode_of(loop) == mode_of(Path("a\0b")) == mode_of(tmp_path / ("x" * 300)) == 0
    assert real(loop / "a").name == "a"
