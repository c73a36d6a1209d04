"""The run log is whole up to its last line, whatever happened to the run before."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from personaplex_cli.errors import OutputError, SettingsError
from personaplex_cli.files.runlog import Outcome, RunLog

DONE = Outcome(source="a.wav", status="converted", outputs=("a.wav",), audio_seconds=1.5)


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line, parse_constant=pytest.fail) for line in path.read_bytes().decode().splitlines()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "out" / "run.jsonl"


def test_each_outcome_is_a_line_with_all_fields(path: Path) -> None:
    failed = Outcome(
        source="b.wav", status="failed", reason="no audio", warnings=("short",), extra={"n_clipped": 3}
    )
    with RunLog(path) as log:
        log.add(DONE)
        log.add(failed)
    assert lines(path)[0] == {
        "source": "a.wav",
        "status": "converted",
        "reason": None,
        "warnings": [],
        "outputs": ["a.wav"],
        "audio_seconds": 1.5,
        "wall_seconds": None,
    }
    assert lines(path)[1]["n_clipped"] == 3
    assert lines(path)[1]["warnings"] == ["short"]


def test_a_line_is_there_as_soon_as_it_is_added(path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from personaplex_cli.files.runlog import *\n"
        "with RunLog(Path(sys.argv[1])) as log:\n"
        "    log.add(Outcome(source='a.wav', status='skipped')); os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", code, path]).returncode == -9
    assert [line["status"] for line in lines(path)] == ["skipped"]


def test_a_later_run_appends(path: Path) -> None:
    for _ in range(2):
        with RunLog(path) as log:
            log.add(DONE)
    assert len(lines(path)) == 2


def test_half_a_line_of_a_killed_run_is_dropped(path: Path) -> None:
    with RunLog(path) as log:
        log.add(DONE)
        log.add(DONE)
    whole = path.read_bytes()
    n_first = len(whole) // 2
    for n_bytes in range(n_first, len(whole)):
        path.write_bytes(whole[:n_bytes])
        with RunLog(path) as log:
            log.add(DONE)
        # All but the line end was written: then the line is whole.
        assert len(lines(path)) == (3 if n_bytes == len(whole) - 1 else 2)


@pytest.mark.parametrize("last", ["{}", "not ours"])
def test_a_last_line_that_is_not_half_a_line_of_ours_is_kept(path: Path, last: str) -> None:
    path.parent.mkdir()
    path.write_text(last)
    with RunLog(path) as log:
        log.add(DONE)
    assert path.read_text().splitlines()[0] == last
    assert len(path.read_text().splitlines()) == 2


def test_nan_is_never_written(path: Path) -> None:
    with RunLog(path) as log:
        log.add(
            Outcome(source="a", status="failed", audio_seconds=float("nan"), extra={"peaks": [float("inf")]})
        )
    assert lines(path)[0]["audio_seconds"] is None
    assert lines(path)[0]["peaks"] == [None]


def test_further_fields_cannot_hide_the_usual_ones(path: Path) -> None:
    with RunLog(path) as log:
        log.add(Outcome(source="a", status="failed", extra={"status": "converted"}))
    assert lines(path)[0]["status"] == "failed"


@given(st.binary(min_size=1, max_size=40))
def test_names_of_any_bytes_survive(tmp_path_factory: pytest.TempPathFactory, name: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    path.unlink(missing_ok=True)
    with RunLog(path) as log:
        log.add(Outcome(source=os.fsdecode(name), status="converted", outputs=(os.fsdecode(name),)))
    (line,) = path.read_bytes().decode().split("\n")[:-1]
    assert os.fsencode(json.loads(line)["source"]) == name
    assert os.fsencode(json.loads(line)["outputs"][0]) == name


def test_a_log_that_cannot_be_opened_is_told_before_any_work(path: Path) -> None:
    path.mkdir(parents=True)
    with pytest.raises(SettingsError, match=r"run\.jsonl: cannot be written"), RunLog(path):
        pass


def test_a_line_that_cannot_be_written_spoils_no_other(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with RunLog(path) as log:
        log.add(DONE)
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            with pytest.raises(OutputError, match="the disk is full"):
                log.add(DONE)
        log.add(DONE)
    assert len(lines(path)) == 2
