"""README cannot rot: its command lines are the app's, its options exist, its picture matches the folders."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer.main

from personaplex_cli.cli import app
from personaplex_cli.console import BENCH_COLUMNS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def command_lines() -> list[list[str]]:
    """Every `personaplex ...` of README's shell blocks, as words, without what the shell does with it."""
    blocks = re.findall(r"```sh\n(.*?)```", README, flags=re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    found = []
    for line in lines:
        if line.startswith("make demo"):
            line = line.partition("then: ")[2]
        words = shlex.split(line, comments=True)
        for begin, word in enumerate(words):
            if word == "personaplex":
                end = words.index("|", begin) if "|" in words[begin:] else len(words)
                found.append(words[begin + 1 : end])
    return found


def command(name: str) -> Any:
    group: Any = typer.main.get_command(app)
    return group.commands[name]


def test_readme_shows_each_command() -> None:
    assert {words[0] for words in command_lines()} == {"bench", "convert", "decode", "inspect-config"}
    assert len(command_lines()) >= 12


@pytest.mark.parametrize("words", command_lines(), ids=" ".join)
def test_every_command_line_is_understood_by_the_app(words: list[str]) -> None:
    name, *arguments = words
    parsed = command(name).make_context(name, list(arguments))
    assert parsed.args == []
    assert parsed.params


def test_every_option_that_readme_lists_exists_with_that_default() -> None:
    table = README.partition("## Options")[2].partition("## Outputs")[0]
    listed = set(re.findall(r"`(--[a-z-]+)", table))
    options = {name: option for option in command("convert").params for name in option.opts}
    assert listed <= set(options)
    shown = {name for name in options if name.startswith("--")} - {"--help"}
    assert shown == listed
    defaults = {"--temp-text": 0.7, "--temp-audio": 0.8, "--topk-text": 25, "--topk-audio": 250, "--seed": 0}
    assert {name: options[name].default for name in defaults} == defaults


def test_the_benchmarks_name_every_option_and_every_column() -> None:
    section = README.partition("## Benchmarks")[2].partition("\n## ")[0]
    options = {name for option in command("bench").params for name in option.opts if name.startswith("--")}
    assert set(re.findall(r"`(--[a-z-]+)", section)) == options - {"--help"}
    printed = section.partition("batch  prompt")[2]
    assert printed
    assert all(name in section for name in BENCH_COLUMNS)


def test_the_picture_of_the_house_names_every_room() -> None:
    picture = README.partition("## The house")[2].partition("Imports point down")[0]
    rooms = [
        path
        for path in (ROOT / "personaplex_cli").iterdir()
        if not path.name.startswith((".", "_", "py.typed"))
    ]
    for room in rooms:
        assert f"  {room.name}{'/' if room.is_dir() else ''} " in picture, room.name
        if room.is_dir() and room.name not in ("embedded", "config"):
            inside = {path.stem for path in room.glob("*.py")} - {"__init__", "names", "plain_json"}
            line = next(line for line in picture.splitlines() if line.startswith(f"  {room.name}/"))
            assert all(name in line for name in inside), (room.name, inside)


def test_every_sample_recording_has_its_line() -> None:
    samples = [path.name for path in (ROOT / "sample_audio").iterdir() if path.suffix in (".wav", ".flac")]
    assert samples
    assert all(f"| `{name}` |" in README for name in samples)
