"""What a run shows: a bar on a terminal and nowhere else, failures as they come, a table at the end."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from personaplex_cli import cli, console
from personaplex_cli.console import RunWindow, visible
from personaplex_cli.files.runlog import Outcome
from tests.helpers import (
    HEEDING_HANGUP,
    log_of,
    names_in,
    personaplex,
    record,
    record_all,
    whole_replies,
)

COLOUR = re.compile(r"\x1b\[[0-9;]*m")
WINDOW = """
import time
from personaplex_cli.console import RunWindow
from personaplex_cli.files.runlog import Outcome
with RunWindow(quiet={quiet}, as_json={as_json}) as window:
    window.remark("batch size 2")
    window.begin(3, 200)
    for _ in range(2):
        window.frames(50, 64)
        time.sleep(0.15)
    window.outcome(Outcome(source="a.wav", status="failed", reason="a.wav: no audio"))
    for _ in range(2):
        window.frames(50, 64)
        time.sleep(0.15)
"""


def window(*, quiet: bool = False, as_json: bool = False) -> str:
    """A program that shows a run."""
    return WINDOW.format(quiet=quiet, as_json=as_json)


def on_a_terminal(code: str, *, rows: int = 40, columns: int = 120, **environment: str) -> str:
    """What a program shows to somebody who sits before it."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    env = {"TERM": "xterm", "PATH": os.environ["PATH"], **environment}
    with subprocess.Popen([sys.executable, "-c", code], stdout=theirs, stderr=theirs, env=env) as process:
        os.close(theirs)
        shown = b""
        while block := read_some(ours):
            shown += block
    os.close(ours)
    assert process.returncode == 0, shown
    return shown.decode()


def lines_left_by(shown: str) -> list[str]:
    """What stands on a terminal in the end: without colours, and of a line that was written over the last."""
    lines = COLOUR.sub("", shown).replace("\r\n", "\n").removesuffix("\n").split("\n")
    return [line.rpartition("\r")[2] for line in lines]


def read_some(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # How Linux says that nobody is left on the other side.
        return b""


@pytest.fixture(scope="module")
def terminal() -> str:
    return on_a_terminal(window())


def test_a_terminal_shows_a_bar_that_counts_frames(terminal: str) -> None:
    assert re.search(r"3 files: 100%\|.*\| 200/200 \[.* frames/s\]", terminal)


def test_remarks_failures_and_the_table_stand_on_lines_of_their_own(terminal: str) -> None:
    shown = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", terminal).replace("\r\n", "\n")
    assert re.search(r"^batch size 2$", shown, flags=re.MULTILINE)
    assert re.search(r"(^|\r)failed: a\.wav: no audio$", shown, flags=re.MULTILINE)
    assert re.search(r"^converted  skipped  failed ", shown, flags=re.MULTILINE)


def test_a_bar_goes_on_below_a_failure_and_leaves_the_cursor_on_a_fresh_line(terminal: str) -> None:
    before, _, after = terminal.partition("failed: a.wav: no audio\r\n")
    assert "| 100/200 [" in before
    assert "| 200/200 [" in after
    assert terminal.endswith("\r\n")
    left = lines_left_by(terminal)
    assert left[:2] == ["batch size 2", "failed: a.wav: no audio"]
    assert left[2].startswith("3 files: 100%|")
    assert len(left) == 5, "the bar stands there once"


def test_a_terminal_that_tells_no_size_gets_a_bar_of_the_usual_width() -> None:
    left = lines_left_by(on_a_terminal(window(), rows=0, columns=0))
    assert re.fullmatch(r"3 files: 100%\|.+\| 200/200 \[.* frames/s\]", left[2])
    assert len(left[2]) == 80


def test_a_narrow_terminal_gets_a_short_bar_and_all_numbers() -> None:
    left = lines_left_by(on_a_terminal(window(), columns=20))
    assert left[1] == "failed: a.wav: no audio"
    assert left[2].startswith("3 files: 100%|")
    assert len(left[2]) <= 20
    assert len(re.split(r"\s{2,}", left[3])) == len(re.split(r"\s{2,}", left[4].strip())) == 8


def test_json_lines_on_the_bars_terminal_stay_whole() -> None:
    left = lines_left_by(on_a_terminal(window(as_json=True)))
    assert left[1] == "failed: a.wav: no audio"
    assert json.loads(left[2])["source"] == "a.wav"
    assert left[3].startswith("3 files: 100%|")


def test_a_terminal_without_such_letters_gets_a_bar_of_plain_ones() -> None:
    left = lines_left_by(on_a_terminal(window(), PYTHONIOENCODING="ascii"))
    assert re.match(r"3 files: 100%\|#+\| 200/200 ", left[2])


def test_colour_is_for_terminals_that_want_it(terminal: str) -> None:
    assert COLOUR.search(terminal)
    assert "\x1b[1m" not in on_a_terminal(window(), NO_COLOR="1", TERM="dumb")
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]m", on_a_terminal(window(), NO_COLOR="1"))


def test_quiet_shows_failures_only_even_on_a_terminal() -> None:
    assert on_a_terminal(window(quiet=True)) == "failed: a.wav: no audio\r\n"


def test_without_a_terminal_there_is_no_bar_and_no_colour() -> None:
    code = window()
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == ""
    lines = ended.stderr.splitlines()
    assert lines[:2] == ["batch size 2", "failed: a.wav: no audio"]
    assert len(lines) == 4
    assert "\x1b" not in ended.stderr
    assert "\r" not in ended.stderr


class Clock:
    """A monotonic clock that the test sets."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def monotonic(self) -> float:
        return self.seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(console, "time", clock)
    return clock


def outcomes() -> Iterator[Outcome]:
    yield Outcome(source="a.wav", status="converted", audio_seconds=6.0)
    yield Outcome(source="b.wav", status="converted", audio_seconds=1.5)
    yield Outcome(source="c.wav", status="skipped", audio_seconds=99.0)
    yield Outcome(source="d.wav", status="failed", reason="d.wav: no audio")


def test_the_table_counts_files_and_relates_audio_to_the_time_it_took(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    with RunWindow(quiet=False, as_json=False) as window:
        clock.seconds += 50  # Before the work begins nothing counts.
        window.begin(4, 100)
        for outcome in outcomes():
            window.outcome(outcome)
        window.frames(60, 64)
        window.frames(34, 64)
        clock.seconds += 2.5
    shown = capsys.readouterr()
    assert shown.out == ""
    failure, names, values = shown.err.splitlines()
    assert failure == "failed: d.wav: no audio"
    assert re.split(r"\s{2,}", names.strip()) == [
        *["converted", "skipped", "failed", "audio", "wall", "frames/s", "times real time"],
        "slots in use",
    ]
    assert re.split(r"\s{2,}", values.strip()) == ["2", "1", "1", "7.5 s", "2.5 s", "37.6", "3.00", "73%"]


def test_a_failure_is_one_line_whatever_the_files_name_holds(capsys: pytest.CaptureFixture[str]) -> None:
    with RunWindow(quiet=True, as_json=False) as window:
        window.outcome(Outcome(source="a\nb", status="failed", reason="a\nb: no audio"))
    assert capsys.readouterr().err == "failed: a\\nb: no audio\n"


def test_json_lines_are_utf_8_whatever_the_locale_says(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii", errors="backslashreplace"))
    with RunWindow(quiet=True, as_json=True) as window:
        window.outcome(Outcome(source="\N{PARTY POPPER}\udcff", status="converted"))
    assert json.loads(written.getvalue().decode("utf-8"))["source"] == "\N{PARTY POPPER}\udcff"


def test_json_lines_are_the_outcomes(capsys: pytest.CaptureFixture[str]) -> None:
    with RunWindow(quiet=True, as_json=True) as window:
        for outcome in outcomes():
            window.outcome(outcome)
    shown = capsys.readouterr()
    assert shown.err == "failed: d.wav: no audio\n"
    assert [json.loads(line)["source"] for line in shown.out.splitlines()] == [
        *["a.wav", "b.wav", "c.wav", "d.wav"]
    ]


def test_a_run_that_breaks_off_shows_no_table(capsys: pytest.CaptureFixture[str]) -> None:
    window = RunWindow(quiet=False, as_json=False)
    window.begin(1, 10)
    window.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert capsys.readouterr().err == ""


def test_what_could_steer_a_terminal_is_shown_as_its_escape() -> None:
    assert visible("a\x1b[2Jb\r\nc\udcff \N{SNOWMAN}") == "a\\x1b[2Jb\\r\nc\\udcff \N{SNOWMAN}"


def test_a_name_that_the_terminals_encoding_lacks_does_not_stop_a_run(tmp_path: Path) -> None:
    record(tmp_path / "in" / "a.wav").rename(tmp_path / "in" / "\N{SNOWMAN}.wav")
    (tmp_path / "in" / "bad\N{SNOWMAN}.wav").touch()
    command = [
        sys.executable,
        "-m",
        "personaplex_cli",
        "convert",
        str(tmp_path / "in"),
        str(tmp_path / "out"),
    ]
    env = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    ended = subprocess.run(command, capture_output=True, env=env, check=False)
    assert ended.returncode == 1, ended.stderr
    assert b"Traceback" not in ended.stderr
    assert b"no audio: the file is empty" in ended.stderr
    assert (tmp_path / "out" / "\N{SNOWMAN}.wav").exists()


def commands() -> list[Any]:
    group: Any = typer.main.get_command(cli.app)
    return [group, *group.commands.values()]


@pytest.mark.parametrize("command", commands(), ids=lambda command: str(command.name))
def test_every_command_and_every_option_has_its_help(command: Any) -> None:
    assert command.help
    silent = [param.name for param in command.params if not getattr(param, "help", None)]
    assert silent == []


@pytest.mark.parametrize("name", ["convert", "decode", "bench", "inspect-config"])
def test_help_lists_every_option(name: str) -> None:
    result = personaplex(name, "--help")
    assert result.exit_code == 0
    (command,) = [command for command in commands() if command.name == name]
    shown = COLOUR.sub("", result.stdout)
    for param in command.params:
        if param.param_type_name == "option":
            assert any(option in shown for option in param.opts)


def test_a_window_needs_no_terminal_that_can_tell_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with RunWindow(quiet=False, as_json=False) as window:
        window.begin(1, 10)
        window.frames(10, 16)
    assert "converted" in sys.stderr.getvalue()


TYPED_INTO = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0);" + HEEDING_HANGUP


def test_ctrl_c_on_a_terminal_ends_with_130_and_replies_that_are_whole(tmp_path: Path) -> None:
    folder = record_all(tmp_path / "in", [0.5] * 40)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", TYPED_INTO, "convert", str(folder), str(tmp_path / "out")]
    with subprocess.Popen(
        [*command, "--batch-size", "1"], stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    ) as process:
        os.close(theirs)
        shown = b""
        while block := read_some(ours):
            shown += block
            if b"frames/s" in shown and any((tmp_path / "out").glob("*.json")):
                # The terminal itself makes the signal of it.
                os.write(ours, b"\x03")
                break
        while block := read_some(ours):
            shown += block
    os.close(ours)
    assert process.returncode == 130, shown
    assert b"Traceback" not in shown
    done = whole_replies(tmp_path / "out")
    assert 1 <= len(done) < 40
    assert len(names_in(tmp_path / "out")) == 3 * len(done) + 1, "no reply in part"
    assert len(log_of(tmp_path / "out")) <= len(done)
