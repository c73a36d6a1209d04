"""Command lines as people type them: pipes, lists of names, closed and full streams, two runs at once."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import soundfile

from personaplex_cli.config.tree import PersonaPlexConfig
from tests.helpers import converted, log_of, names_in, record, record_all, whole_replies

BASH = shutil.which("bash") or ""
FOLDER = Path(sys.executable).parent

pytestmark = [
    pytest.mark.skipif(not BASH, reason="bash is not installed"),
    pytest.mark.skipif(not (FOLDER / "personaplex").is_file(), reason="the console script is not installed"),
]
needs_sox = pytest.mark.skipif(not shutil.which("sox"), reason="sox is not installed")
needs_jq = pytest.mark.skipif(not shutil.which("jq"), reason="jq is not installed")
needs_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")


def typed(line: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """A line in bash, typed in a folder."""
    path = f"{FOLDER}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run([BASH, "-c", line], cwd=folder, env=env, capture_output=True, check=False)


def lines_of(output: bytes) -> list[str]:
    return output.decode(errors="surrogateescape").splitlines()


NAMES = [
    b"a b",
    b"new\nline",
    b"-dash",
    "\N{SNOWMAN}\N{PARTY POPPER}".encode(),
    b"not utf-8 \xff",
    b"'\"$(x)",
]


def test_find_hands_over_names_of_all_kinds_to_a_program_without_terminal_or_locale(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    try:
        for name in NAMES:
            record(tmp_path / "plain.wav", 0.1).rename(tmp_path / "in" / os.fsdecode(name + b".wav"))
    except OSError:
        pytest.skip("this file system does not take such names")
    # The newline in the empty file's name must not break its line of the message.
    (tmp_path / "in" / "no\n\N{SNOWMAN} sound.wav").touch()
    ended = typed(
        "cd in && find . -name '*.wav' -print0 | setsid personaplex convert - ../out --json",
        tmp_path,
        LC_ALL="C",
        PYTHONIOENCODING="ascii",
        TERM="dumb",
        NO_COLOR="1",
    )
    assert ended.returncode == 1, ended.stderr
    assert b"\x1b" not in ended.stdout + ended.stderr
    assert b"\r" not in ended.stderr
    failed = [line for line in lines_of(ended.stderr) if line.startswith("failed: ")]
    assert failed == ["failed: no\\n\\u2603 sound.wav: no audio: the file is empty"]
    outcomes = [json.loads(line) for line in lines_of(ended.stdout)]
    assert sorted(outcome["status"] for outcome in outcomes) == ["converted"] * len(NAMES) + ["failed"]
    replies = {os.fsencode(name) for name in os.listdir(tmp_path / "out") if name.endswith(".wav")}  # noqa: PTH208
    assert replies == {name + b".wav" for name in NAMES}


@needs_sox
def test_sox_on_both_sides_of_a_conversion(tmp_path: Path) -> None:
    recording = record(tmp_path / "in.wav", 0.15, sample_rate=16000)
    # sox does not know how long raw samples from a pipe will be, and promises about 2 GiB.
    line = (
        "set -o pipefail; sox in.wav -t raw - | sox -t raw -r 16000 -e signed -b 16 -c 1 - -t wav - | "
        "tee heard.wav | personaplex convert /dev/stdin - --quiet | tee reply.wav | sox - -t flac out.flac"
    )
    ended = typed(line, tmp_path)
    assert ended.returncode == 0, ended.stderr
    heard, reply = ((tmp_path / name).read_bytes() for name in ("heard.wav", "reply.wav"))
    assert int.from_bytes(heard[4:8], "little") > len(heard) - 8
    assert int.from_bytes(reply[4:8], "little") == len(reply) - 8
    n_samples = round(soundfile.info(recording).frames * 24000 / 16000)
    for name in ("reply.wav", "out.flac"):
        info = soundfile.info(tmp_path / name)
        assert (info.frames, info.samplerate, info.channels) == (n_samples, 24000, 1)


def test_audio_piped_in_where_paths_are_expected_is_told_as_such(tmp_path: Path) -> None:
    record(tmp_path / "in.wav", 0.1)
    ended = typed("cat in.wav | personaplex convert - out", tmp_path)
    assert ended.returncode == 2
    said = lines_of(ended.stderr)
    assert len(said) == 2, "not a line for every byte that looks like a line break"
    assert "audio, not paths" in said[1]
    assert "/dev/stdin" in said[1]
    assert not (tmp_path / "out").exists()


@needs_jq
def test_jq_reads_outcomes_and_the_failure_reaches_the_shell(tmp_path: Path) -> None:
    record_all(tmp_path / "in", [0.1])
    (tmp_path / "in" / "bad.wav").touch()
    line = "personaplex convert in out --json | jq -r 'select(.status == \"failed\") | .source, .reason'"
    ended = typed(f"set -o pipefail; {line}", tmp_path)
    assert ended.returncode == 1, ended.stderr
    assert lines_of(ended.stdout) == ["bad.wav", "in/bad.wav: no audio: the file is empty"]
    assert whole_replies(tmp_path / "out") == ["000"]


@needs_jq
def test_jq_reads_the_config(tmp_path: Path) -> None:
    line = "personaplex inspect-config --format json | jq .temporal_config.num_hidden_layers"
    ended = typed(f"set -o pipefail; {line}", tmp_path)
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert json.loads(ended.stdout) == PersonaPlexConfig().temporal_config.num_hidden_layers


def test_a_reader_that_leaves_stops_the_run_quietly_and_the_next_run_goes_on(tmp_path: Path) -> None:
    record_all(tmp_path / "in", [0.1] * 4)
    line = "personaplex convert in out --json --quiet --batch-size 1"
    ended = typed(f"{line} | head -n 1 >first; echo ${{PIPESTATUS[*]}}", tmp_path)
    assert lines_of(ended.stdout) == ["141 0"]
    assert b"Traceback" not in ended.stderr
    assert json.loads((tmp_path / "first").read_text())["status"] == "converted"
    done = whole_replies(tmp_path / "out")
    assert 1 <= len(done) < 4
    assert len(names_in(tmp_path / "out")) == 3 * len(done) + 1, "no file in part, and none without its reply"

    again = converted(tmp_path / "in", tmp_path / "out", "--json", "--quiet", "--batch-size", 1)
    status = [json.loads(line)["status"] for line in again.stdout.splitlines()]
    assert sorted(status) == ["converted"] * (4 - len(done)) + ["skipped"] * len(done)


def test_the_config_for_a_reader_that_left_is_no_traceback(tmp_path: Path) -> None:
    line = "(sleep 1; personaplex inspect-config --format FORMAT) | true; echo ${PIPESTATUS[*]}; "
    ended = typed("".join(line.replace("FORMAT", name) for name in ("tree", "schema")), tmp_path)
    assert (lines_of(ended.stdout), ended.stderr) == (["141 0"] * 2, b"")


def test_closed_streams_are_no_loss_of_replies(tmp_path: Path) -> None:
    record_all(tmp_path / "in", [0.1, 0.1])
    ended = typed("personaplex convert in out --json <&- >&- 2>&-", tmp_path)
    assert ended.returncode == 0
    assert sorted(whole_replies(tmp_path / "out")) == ["000", "001"]
    # The number of a closed stream must not become that of a file of ours.
    assert [outcome["status"] for outcome in log_of(tmp_path / "out")] == ["converted"] * 2


FULL = b"error: standard output cannot be written (No space left on device)"


@needs_full
def test_a_full_standard_output_stops_a_run_with_one_message(tmp_path: Path) -> None:
    record_all(tmp_path / "in", [0.1, 0.1])
    ended = typed("personaplex convert in out --json --quiet --batch-size 1 >/dev/full", tmp_path)
    assert ended.returncode == 1
    assert [line for line in ended.stderr.splitlines() if line.startswith(b"error: ")] == [
        line for line in ended.stderr.splitlines()[-1:] if line.startswith(FULL)
    ]
    assert b"Traceback" not in ended.stderr
    assert len(whole_replies(tmp_path / "out")) == 1
    assert len(names_in(tmp_path / "out")) == 4


@needs_full
@pytest.mark.parametrize("command", ["inspect-config", "inspect-config --format json", "--help", "--version"])
def test_a_full_standard_output_is_told_by_every_command(tmp_path: Path, command: str) -> None:
    ended = typed(f"personaplex {command} >/dev/full", tmp_path)
    assert ended.returncode == 1
    assert ended.stderr.startswith(FULL)
    assert ended.stderr.count(b"\n") == 1


@needs_full
def test_a_full_standard_error_hides_no_failure(tmp_path: Path) -> None:
    assert typed("personaplex inspect-config nothing-here 2>/dev/full", tmp_path).returncode != 0


def test_two_runs_at_once_share_an_output_folder(tmp_path: Path) -> None:
    record_all(tmp_path / "in", [0.1] * 6)
    line = "ls in/*.wav | xargs -n 3 -P 2 sh -c 'personaplex convert \"$@\" out --quiet' sh"
    ended = typed(f"set -o pipefail; {line}", tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert sorted(whole_replies(tmp_path / "out")) == [f"{number:03}" for number in range(6)]
    assert len(names_in(tmp_path / "out")) == 6 * 3 + 1
    outcomes = log_of(tmp_path / "out")
    assert sorted((outcome["source"], outcome["status"]) for outcome in outcomes) == [
        (f"{number:03}.wav", "converted") for number in range(6)
    ]
