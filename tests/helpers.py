"""What the tests of the command line share: running it, recordings to run it on, and what came out."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import soundfile
from safetensors.numpy import load_file
from typer.testing import CliRunner, Result

from personaplex_cli import cli

DUMP = ".tokens.safetensors"
# A job under nohup ignores a closing terminal, and its children inherit that.
HEEDING_HANGUP = (
    "import signal; signal.signal(signal.SIGHUP, signal.SIG_DFL);from personaplex_cli.cli import main; main()"
)


def personaplex(*arguments: object, stdin: bytes = b"") -> Result:
    """The command line in this process, with torch loaded already."""
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments], input=stdin)


def converted(*arguments: object, stdin: bytes = b"") -> Result:
    """`personaplex convert`, which must do well."""
    result = personaplex("convert", *arguments, stdin=stdin)
    assert result.exit_code == 0, result.output
    return result


def program(*arguments: object, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """The command line in a process of its own."""
    command = [sys.executable, "-m", "personaplex_cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, input=stdin, check=False)


def begun(*arguments: object, stderr: int = subprocess.PIPE) -> subprocess.Popen[bytes]:
    """The command line as a process that goes on by itself."""
    command = [sys.executable, "-c", HEEDING_HANGUP, *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr)


def wait_until(true: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    """Until something has happened while a process runs."""
    deadline = time.monotonic() + 60
    while not true():
        assert process.poll() is None, "the process ended too early"
        assert time.monotonic() < deadline, "nothing happened for a minute"
        time.sleep(0.002)


def sound(seconds: float, *, seed: int = 0, sample_rate: int = 24000) -> npt.NDArray[np.float64]:
    """A tone in some noise. [T]"""
    random = np.random.default_rng(seed)
    times = np.arange(round(seconds * sample_rate)) / sample_rate
    tone = 0.3 * np.sin(2 * np.pi * random.uniform(100, 2000) * times)
    return tone + 0.02 * random.standard_normal(len(times))


def record(path: Path, seconds: float = 0.3, *, seed: int = 0, sample_rate: int = 24000) -> Path:
    """A recording as a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, sound(seconds, seed=seed, sample_rate=sample_rate), sample_rate)
    return path


def record_all(folder: Path, lengths: list[float]) -> Path:
    """A folder of recordings, no two the same."""
    for number, seconds in enumerate(lengths):
        record(folder / f"{number:03}.wav", seconds, seed=number)
    return folder


def write_manifest(path: Path, rows: list[dict[str, Any]]) -> Path:
    """A .jsonl manifest."""
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def names_in(folder: Path) -> list[str]:
    """All files in a folder and below, by their paths inside it."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def outputs_in(folder: Path) -> dict[str, bytes]:
    """All files but the run log, with what they hold."""
    return {name: (folder / name).read_bytes() for name in names_in(folder) if name != "run.jsonl"}


def log_of(folder: Path) -> list[dict[str, Any]]:
    """The run log."""
    return [json.loads(line) for line in (folder / "run.jsonl").read_text(encoding="utf-8").splitlines()]


def tokens_in(path: Path) -> dict[str, npt.NDArray[np.int64]]:
    """A dump's tensors."""
    return {name: tokens.astype(np.int64) for name, tokens in load_file(path).items()}


def whole_replies(folder: Path) -> list[str]:
    """The stems of the replies whose last file is there."""
    names = [path.name for path in folder.iterdir()]
    return [name.removesuffix(".json") for name in names if name.endswith(".json") and name[0] != "."]
