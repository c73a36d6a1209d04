"""Strangers' files at the five doors: every old find again, a short fuzz of each door, and broken WAVs."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from personaplex_cli.errors import SettingsError
from tests.fuzz import CORPUS, doors, mutate
from tests.fuzz.doors import (
    DOORS,
    fuzz_audio,
    fuzz_config,
    fuzz_dump,
    fuzz_manifest,
    fuzz_voice,
    small_config,
    stored,
)
from tests.fuzz.mutate import READY, Worker, chunks, mutated, outcomes_of, table, tried
from tests.fuzz.seeds import by_hand, chunk, data, layout, riff, valid_wavs

ROOT = Path(__file__).parents[1]
SECONDS_A_DOOR = 12
FEWEST_INPUTS = 500
FEWEST_PLACES = 50
"""In our code, that libFuzzer saw reached: without instrumentation it sees none."""
AT_ONCE = 3
FOUND = 77
"""libFuzzer's exit code for an input that made the target end."""
OLD_FILES = sorted(path.relative_to(CORPUS).as_posix() for path in CORPUS.glob("*/*"))
needs_atheris = pytest.mark.skipif(
    importlib.util.find_spec("atheris") is None,
    reason="atheris is not installed: it has wheels for CPython 3.11 to 3.13 on Linux x86-64 only",
)


@pytest.mark.parametrize("name", OLD_FILES)
def test_an_old_find_is_read_or_refused(name: str, tmp_path: Path) -> None:
    DOORS[name.partition("/")[0]]((CORPUS / name).read_bytes(), tmp_path)


def test_every_door_has_old_files_and_they_are_small() -> None:
    assert {name.partition("/")[0] for name in OLD_FILES} == DOORS.keys()
    assert sum((CORPUS / name).stat().st_size for name in OLD_FILES) < 300_000


def test_the_seeds_are_made_again_as_they_are() -> None:
    assert {name: (CORPUS / name).read_bytes() for name in by_hand()} == by_hand()


@pytest.mark.parametrize("name", valid_wavs())
def test_every_wav_that_mutations_start_from_is_read(name: str, tmp_path: Path) -> None:
    assert fuzz_audio(valid_wavs()[name], tmp_path) is None


def test_a_door_tells_why_a_file_is_refused(tmp_path: Path) -> None:
    assert "the file is empty" in str(fuzz_audio(b"", tmp_path))
    assert "line 1" in str(fuzz_manifest(b"[]", tmp_path))
    assert "unknown key" in str(fuzz_config(b"x: 1", tmp_path))
    assert "not a whole token dump" in str(fuzz_dump(b"", tmp_path))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("middle_of_nothing", "needs tensors"),
        ("middle_of_two", "needs tensors"),
        ("cache_of_nothing", "needs tensors"),
        ("cache_complex", "needs tensors"),
        ("cache_of_floats", "needs tensors"),
        ("embeddings_sparse", "needs tensors"),
        ("embeddings_quantized", "needs tensors"),
        ("embeddings_on_no_device", "needs tensors"),
        ("embeddings_nan", "hold NaN or infinite numbers"),
        ("embeddings_without_end", "too long for a voice: it takes 1099511627777 frames"),
        ("cache_without_end", "its `cache` holds tokens that it does not have"),
        ("hostile_pickle", "not a voice that can be loaded safely (Weights only load failed)"),
    ],
)
def test_a_voice_that_no_model_can_use_is_refused(name: str, reason: str, tmp_path: Path) -> None:
    assert reason in str(fuzz_voice((CORPUS / "voice" / f"{name}.pt").read_bytes(), tmp_path))


@pytest.mark.parametrize(
    "name", ["whole", "whole_old_format", "more_keys_old_format", "half_precision", "parameter"]
)
def test_a_voice_of_any_format_and_precision_is_read(name: str, tmp_path: Path) -> None:
    assert fuzz_voice((CORPUS / "voice" / f"{name}.pt").read_bytes(), tmp_path) is None


def test_a_recording_far_too_long_for_a_voice_is_refused_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """3000 frames are one more than the window holds; a frame less would be read."""
    # Not at the top: the workers of this file's tests import it, and torch takes them seconds.
    import torch

    from personaplex_cli import prompt

    config, read = small_config(), []
    monkeypatch.setattr(prompt, "read_voice", lambda path, _rate: read.append(path) or np.zeros(0))
    codec: Any = SimpleNamespace(encode=lambda _: [torch.zeros(8, 5)])
    wav = riff(layout(rate=8000, bits=8), data(bytes(3000 * 640)))
    with pytest.raises(SettingsError, match="too long for a voice: it takes 3000 frames"):
        prompt.read_voice_file(stored(tmp_path / "long.wav", wav), codec, config)
    assert read == []
    wav = riff(layout(rate=8000, bits=8), data(bytes(2999 * 640)))
    fits = stored(tmp_path / "fits.wav", wav)
    assert prompt.read_voice_file(fits, codec, config).n_frames == 5
    assert read == [fits]


@pytest.mark.parametrize(
    ("yaml", "reason"),
    [
        (rb'mimi_name: "\ud800"', "1: mimi_name: has half of a surrogate pair as text"),
        (rb'"\ud800": 1', r"1: '\ud800': a key must be text"),
        (rb'mimi_name: "a\0b"', "mimi_name: must be the name of a file"),
    ],
)
def test_escapes_in_yaml_cannot_make_what_is_no_text(yaml: bytes, reason: str, tmp_path: Path) -> None:
    assert reason in str(fuzz_config(yaml, tmp_path))


def test_a_warning_at_a_door_is_a_find_even_if_it_is_swallowed() -> None:
    def swallow() -> None:
        try:
            warnings.warn("overflow", RuntimeWarning, stacklevel=1)
        except RuntimeWarning:
            pytest.fail("must be counted, not raised")

    with pytest.raises(AssertionError, match="overflow"), doors.no_warnings():
        swallow()


# ---- the fuzzer ----


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, subprocess.CompletedProcess[str]]:
    """All doors, some at a time; the slowest to start first."""
    finds = tmp_path_factory.mktemp("finds")

    def run(door: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tests.fuzz", door, "--seconds", str(SECONDS_A_DOOR)]
        surroundings = {
            **os.environ,
            "TMPDIR": str(finds),
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        return subprocess.run(
            command, capture_output=True, text=True, errors="replace", env=surroundings, cwd=ROOT
        )

    order = sorted(DOORS, key=lambda door: door not in ("voice", "audio"))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip(order, pool.map(run, order), strict=True))


@needs_atheris
@pytest.mark.parametrize("door", DOORS)
def test_a_short_fuzz_finds_nothing(door: str, fuzzed: dict[str, subprocess.CompletedProcess[str]]) -> None:
    run = fuzzed[door]
    assert run.returncode == 0, run.stderr[-3000:]
    done = re.search(r"Done (\d+) runs in (\d+) second", run.stderr)
    assert done is not None, run.stderr[-3000:]
    assert int(done[1]) >= FEWEST_INPUTS
    assert int(done[2]) >= SECONDS_A_DOOR
    assert max(int(places) for places in re.findall(r"cov: (\d+)", run.stderr)) >= FEWEST_PLACES


@needs_atheris
def test_the_fuzzer_tells_of_a_find_and_keeps_it(tmp_path: Path) -> None:
    faulty = (
        "from pathlib import Path\n"
        "from tests.fuzz import doors, guided\n"
        "def faulty(content, folder): assert not content.startswith(b'path')\n"
        "doors.DOORS['manifest'] = faulty\n"
        f"flags = ['-runs=1000', '-artifact_prefix={tmp_path}/', {str(CORPUS / 'manifest')!r}]\n"
        f"guided.fuzz('manifest', flags, Path({str(tmp_path)!r}))\n"
    )
    command = [sys.executable, "-c", faulty]
    run = subprocess.run(command, capture_output=True, text=True, errors="replace", cwd=ROOT)
    assert run.returncode == FOUND, run.stderr[-3000:]
    (find,) = tmp_path.glob("crash-*")
    assert find.read_bytes().startswith(b"path")


# ---- broken WAVs ----


def test_200_broken_wavs_are_read_or_refused_in_time_and_memory() -> None:
    kinds = [outcome.partition(":")[0] for outcome in outcomes_of(1, 200, 2).values()]
    assert len(kinds) == 200
    assert set(kinds) == {"read", "refused"}
    assert min(kinds.count("read"), kinds.count("refused")) >= 30


def test_a_broken_wav_is_the_same_each_time_and_no_other_seeds() -> None:
    wavs = [mutated(1, number) for number in range(50)]
    assert wavs == [mutated(1, number) for number in range(50)]
    assert wavs != [mutated(2, number) for number in range(50)]
    assert len(set(wavs)) > 45
    assert not {*wavs} & {*valid_wavs().values()}


def test_chunks_are_found_also_where_their_sizes_lie() -> None:
    wav = riff(layout(), chunk(b"LIST", b"odd"), data(b"\0\0", size=999))
    assert [wav[begin : begin + 4] for begin, _ in chunks(wav)] == [b"fmt ", b"LIST", b"data"]
    assert chunks(b"short") == [(0, 5)]


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (MemoryError(), "over memory: more than 1024 MiB"),
        (KeyError("x"), "crashed: KeyError: 'x'"),
        (AssertionError("not finite"), "crashed: AssertionError: not finite"),
    ],
)
def test_what_a_door_must_not_raise_is_a_find(
    error: Exception, outcome: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raising(_content: bytes, _folder: Path) -> str | None:
        raise error

    monkeypatch.setattr(mutate, "fuzz_audio", raising)
    assert tried(b"", tmp_path) == outcome


def serve_badly(pipe: Connection, _folder: Path) -> None:
    """A worker that hangs at one input and dies of another."""
    pipe.send(READY)
    while True:
        wav = pipe.recv_bytes()
        if wav == b"hang":
            time.sleep(60)
        if wav == b"die":
            os._exit(5)
        pipe.send("read")


def test_a_worker_that_hangs_or_dies_is_told_and_replaced(tmp_path: Path) -> None:
    worker = Worker(tmp_path, serve_badly, seconds=0.3)
    told = [worker.outcome(wav) for wav in (b"good", b"hang", b"good", b"die", b"good")]
    worker.stop()
    assert told == ["read", "hung: more than 0.3 s", "read", "crashed: the process ended with 5", "read"]


def test_the_table_counts_outcomes_and_reasons() -> None:
    refused = [f"refused: {mutate.reason_class(f'/a.wav: has {n} of 12.5 at 0x3F')}" for n in (1, 22)]
    assert table(["read", *refused, "hung: more than 5 s", "read"]).splitlines() == [
        "WAVs              5",
        "read              2",
        "refused           2",
        "                  2  has N of N at N",
        "crashed           0",
        "hung              1",
        "                  1  more than 5 s",
        "over memory       0",
    ]
