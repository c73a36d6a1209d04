"""Every way a run can end: interrupts, kills, full disks, memory that runs out, folders that go away."""

from __future__ import annotations

import errno
import json
import random
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from personaplex_cli import convert as corridor
from personaplex_cli.audio.codec import Codec
from personaplex_cli.engine.slots import Slots
from personaplex_cli.errors import OutputError
from personaplex_cli.model.ring import KVRing
from tests.helpers import (
    DUMP,
    begun,
    converted,
    log_of,
    names_in,
    outputs_in,
    personaplex,
    record,
    record_all,
    wait_until,
    whole_replies,
)

THREE = [".json", DUMP, ".wav"]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record_all(tmp_path_factory.mktemp("in"), [0.3, 0.5, 0.1, 0.6, 0.2, 0.4])


@pytest.fixture(scope="module")
def undisturbed(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("out")
    converted(source, out, "--batch-size", 4, "--quiet")
    return outputs_in(out)


def fails(*arguments: object, code: int) -> str:
    """What `personaplex convert` says on standard error when it ends with `code`."""
    result = personaplex("convert", *arguments)
    assert result.exit_code == code, result.output
    return result.stderr


def statuses(folder: Path) -> dict[str, str]:
    return {line["source"]: line["status"] for line in log_of(folder)}


def files_of(stems: Sequence[str]) -> list[str]:
    return sorted([*[stem + suffix for stem in stems for suffix in THREE], "run.jsonl"])


# ---- interrupts ----


@pytest.mark.parametrize("moment", ["write_wav", "write_transcript"])
def test_an_interrupt_leaves_no_reply_in_part(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(corridor, moment, interrupt)
    assert "stopped by SIGINT" in fails(source, tmp_path, "--quiet", code=130)
    assert names_in(tmp_path) == ["run.jsonl"]


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_ends_the_run_with_its_code_and_keeps_what_is_finished(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    source, out = record_all(tmp_path / "in", [0.3] * 60), tmp_path / "out"
    run = begun("convert", source, out, "--batch-size", 4)
    wait_until(lambda: out.is_dir() and len(whole_replies(out)) >= 2, run)
    run.send_signal(number)
    said = run.communicate(timeout=60)[1].decode()
    assert run.returncode == code, said
    assert said.endswith(f"stopped by {number.name}\n")
    assert "Traceback" not in said
    finished = whole_replies(out)
    assert 2 <= len(finished) < 60
    assert names_in(out) == files_of(finished)
    result = converted(source, out, "--batch-size", 4)
    assert re.search(rf"^ +{60 - len(finished)} +{len(finished)} +0 ", result.stderr, re.MULTILINE)


def test_who_has_us_ignore_a_closing_terminal_is_heeded(tmp_path: Path) -> None:
    source, out = record_all(tmp_path / "in", [0.2] * 12), tmp_path / "out"
    command = [sys.executable, "-m", "personaplex_cli", "convert", source, out, "--batch-size", "4"]
    run = subprocess.Popen(["nohup", *map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_until(lambda: out.is_dir() and len(whole_replies(out)) >= 2, run)
    run.send_signal(signal.SIGHUP)
    said = run.communicate(timeout=60)
    assert run.returncode == 0, said
    assert len(whole_replies(out)) == 12


# ---- kills ----


def test_a_run_that_is_killed_again_and_again_makes_every_reply_once_and_whole(tmp_path: Path) -> None:
    chance = random.Random(5)
    source = record_all(tmp_path / "in", [chance.uniform(0.05, 0.3) for _ in range(150)])
    command = [sys.executable, "-m", "tests.kill", source, tmp_path / "out", "--kills", 12, "--batch-size", 4]
    ended = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    figures = json.loads(ended.stdout)
    assert figures["exit_code"] == 0, figures["words"]
    assert (figures["kills"], figures["finished"]) == (12, 150)
    assert 12 <= figures["finished_by_killed_runs"] < 150
    converted(source, tmp_path / "undisturbed", "--batch-size", 4, "--quiet")
    assert names_in(tmp_path / "out") == names_in(tmp_path / "undisturbed")
    assert outputs_in(tmp_path / "out") == outputs_in(tmp_path / "undisturbed")
    made = [line["source"] for line in log_of(tmp_path / "out") if line["status"] == "converted"]
    assert len(made) == len(set(made))


# ---- full disks ----


def test_a_disk_that_stays_full_stops_the_run(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        try:
            raise OSError(errno.ENOSPC, "No space left on device")
        except OSError as error:
            raise OutputError("x.wav: cannot be written") from error

    monkeypatch.setattr(corridor, "write_dump", full)
    said = fails(source, tmp_path / "out", "--batch-size", 1, "--quiet", code=1)
    assert "stopped: the disk is full" in said
    assert [line["status"] for line in log_of(tmp_path / "out")] == ["failed", "failed"]


def test_on_a_disk_that_fills_up_what_is_finished_is_whole_and_the_rest_is_made_when_there_is_room(
    source: Path, undisturbed: dict[str, bytes], small_disk: Path
) -> None:
    taken = small_disk / "taken"
    taken.write_bytes(bytes(16 << 10))
    said = fails(source, small_disk / "out", "--batch-size", 4, "--quiet", code=1)
    assert "cannot be written (No space left on device): the disk is full; make room and run again" in said
    assert "stopped: the disk is full" in said
    finished = whole_replies(small_disk / "out")
    assert 1 <= len(finished) < 6
    assert names_in(small_disk / "out") == files_of(finished)
    assert all(undisturbed[name] == made for name, made in outputs_in(small_disk / "out").items())
    taken.unlink()
    subprocess.run(["mount", "-o", "remount,size=1m", small_disk], check=True)
    converted(source, small_disk / "out", "--batch-size", 4, "--quiet")
    assert outputs_in(small_disk / "out") == undisturbed


# ---- folders that go away ----


def test_an_output_folder_that_goes_away_stops_the_run_and_the_next_one_makes_all_anew(
    source: Path, undisturbed: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, write_dump = tmp_path / "out", corridor.write_dump
    n_written = 0

    def write_and_remove(*arguments: Any) -> None:
        nonlocal n_written
        n_written += 1
        write_dump(*arguments)
        if n_written == 3:
            shutil.rmtree(out)

    monkeypatch.setattr(corridor, "write_dump", write_and_remove)
    said = fails(source, out, "--batch-size", 4, "--quiet", code=1)
    assert f"stopped: {out} was removed or replaced while the run went on; run again" in said
    assert n_written == 3
    assert not out.exists() or names_in(out) == []
    monkeypatch.undo()
    converted(source, out, "--batch-size", 4, "--quiet")
    assert outputs_in(out) == undisturbed


def test_a_run_log_that_goes_away_is_begun_anew(
    source: Path, undisturbed: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, write_dump = tmp_path / "out", corridor.write_dump

    def remove_and_write(*arguments: Any) -> None:
        (out / "run.jsonl").unlink()
        write_dump(*arguments)

    monkeypatch.setattr(corridor, "write_dump", remove_and_write)
    converted(source, out, "--batch-size", 4, "--quiet")
    assert outputs_in(out) == undisturbed
    assert [line["status"] for line in log_of(out)] == ["converted"]


# ---- memory that runs out ----


def no_memory_on_a_cpu(*_: object) -> None:
    torch.empty(1 << 62, dtype=torch.uint8)


def no_memory_on_a_gpu(*_: object) -> None:
    raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


@pytest.mark.parametrize("complain", [no_memory_on_a_cpu, no_memory_on_a_gpu])
def test_where_the_memory_runs_out_in_mid_run_the_batch_shrinks_and_nothing_is_lost(
    source: Path,
    undisturbed: dict[str, bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    complain: Callable[..., None],
) -> None:
    run, n_runs = Slots.run, 0

    def run_short_of_memory(slots: Slots, block: Any) -> Any:
        nonlocal n_runs
        n_runs += 1
        if n_runs > 3 and len(slots.seats) > 4:
            complain()
        return run(slots, block)

    monkeypatch.setattr(Slots, "run", run_short_of_memory)
    result = converted(source, tmp_path / "out", "--batch-size", 16)
    assert "out of memory: batch size 8 from now on;" in result.stderr
    assert "out of memory: batch size 4 from now on;" in result.stderr
    assert outputs_in(tmp_path / "out") == undisturbed
    assert sorted(statuses(tmp_path / "out").values()) == ["converted"] * 6


LIMITED = """
import resource, sys
import personaplex_cli.convert, personaplex_cli.console
from personaplex_cli import cli
from personaplex_cli.engine import generate
taken = int(next(l for l in open("/proc/self/status") if l.startswith("VmSize")).split()[1]) << 10
resource.setrlimit(resource.RLIMIT_AS, (taken + (1 << 30), resource.RLIM_INFINITY))
cli.app(sys.argv[1:])
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc to set a limit")
def test_a_batch_for_which_the_system_gives_no_memory_shrinks_until_it_fits(
    source: Path, undisturbed: dict[str, bytes], tmp_path: Path
) -> None:
    # 8,192 slots of 0.19 MiB: the machine has them, the process may not.
    command = ["convert", source, tmp_path / "out", "--batch-size", 8192]
    ended = subprocess.run(
        [sys.executable, "-c", LIMITED, *map(str, command)], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert "out of memory: batch size 4096 from now on; 1 recordings" in ended.stderr
    assert "out of memory: batch size 2048 from now on" in ended.stderr
    assert sorted(outputs_in(tmp_path / "out")) == sorted(undisturbed)


def test_a_ring_that_never_fits_fails_its_file_alone(
    source: Path, undisturbed: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grow = KVRing.grow
    shutil.copytree(source, tmp_path / "in")
    record(tmp_path / "in" / "long.wav", 25.0)

    def grow_a_little(ring: KVRing, n_columns: int) -> None:
        if n_columns > 256:
            no_memory_on_a_cpu()
        grow(ring, n_columns)

    monkeypatch.setattr(KVRing, "grow", grow_a_little)
    said = fails(tmp_path / "in", tmp_path / "out", "--batch-size", 4, code=1)
    assert "out of memory: batch size 1 from now on; " in said
    assert "long.wav: not enough memory to answer it, even alone; use --dtype bfloat16" in said
    assert sorted(outputs_in(tmp_path / "out")) == sorted(undisturbed)
    assert statuses(tmp_path / "out")["long.wav"] == "failed"


@pytest.mark.parametrize("moment", ["lay_out", "OnDisk"])
def test_no_job_is_lost_wherever_the_memory_runs_out(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    work, n_calls = getattr(corridor, moment), 0

    def too_much(*arguments: Any, **options: Any) -> Any:
        nonlocal n_calls
        n_calls += 1
        if n_calls == 2:
            raise MemoryError
        return work(*arguments, **options)

    monkeypatch.setattr(corridor, moment, too_much)
    said = fails(source, tmp_path / "out", "--batch-size", 4, "--quiet", code=1)
    assert "not enough memory to " in said
    assert sorted(statuses(tmp_path / "out").values()) == ["converted"] * 5 + ["failed"]


@pytest.mark.parametrize(
    ("moment", "words"), [("encode_one", "to begin it"), ("decode_one", "to make its audio")]
)
def test_a_recording_that_is_too_much_for_the_codec_fails_alone(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str, words: str
) -> None:
    work, n_calls = getattr(Codec, moment), 0

    def too_much(codec: Codec, *what: Any) -> Any:
        nonlocal n_calls
        n_calls += 1
        if n_calls == 2:
            no_memory_on_a_cpu()
        return work(codec, *what)

    monkeypatch.setattr(Codec, moment, too_much)
    said = fails(source, tmp_path / "out", "--batch-size", 4, "--voice-prompt", "none", "--quiet", code=1)
    assert f"not enough memory {words}; use --dtype bfloat16, a shorter recording" in said
    assert sorted(statuses(tmp_path / "out").values()) == ["converted"] * 5 + ["failed"]
    assert len(outputs_in(tmp_path / "out")) == 15
