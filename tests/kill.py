"""A run that is killed again and again at random moments: `python -m tests.kill SOURCE OUT --kills 50`.

Every child is a process of its own, forked from one that has loaded torch already, and gets SIGKILL. After
each kill what stands in OUT is looked at; the last run goes on to the end. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import soundfile

# Everything that a run needs is loaded before the first fork.
import personaplex_cli.console
import personaplex_cli.convert  # noqa: F401
from personaplex_cli import cli
from personaplex_cli.files.dump import read_dump
from tests.helpers import DUMP, record_all

MOST_MORE = 6
"""So many replies less one are finished at most before the next kill."""
SECONDS_MORE = 0.1
"""At most; longer than a reply takes, so that every moment of one can be hit."""
Identity = tuple[int, int]


def begin(arguments: list[str], words: Path) -> int:
    """Start a run; what it says goes to the end of a file. -> its process"""
    process = os.fork()
    if process:
        return process
    handle = os.open(words, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    sys.argv = ["personaplex", *arguments]
    try:
        cli.main()
    except SystemExit as end:
        os._exit(int(end.code or 0))
    os._exit(0)


def wait(process: int, out: Path, n_replies: int, chance: random.Random) -> None:
    """Until so many replies are there, and then a little longer."""
    while len([*out.glob("[!.]*.json")]) < n_replies:
        assert os.waitpid(process, os.WNOHANG) == (0, 0), "the run ended before it was killed; give it more"
        time.sleep(0.001)
    time.sleep(chance.uniform(0, SECONDS_MORE))


def whole_replies(out: Path) -> dict[str, tuple[Identity, ...]]:
    """The replies that are whole, by stem. Fails where something stands under its name and is not whole."""
    whole = {}
    for dump in sorted(out.glob(f"*{DUMP}")):
        stem = dump.name.removesuffix(DUMP)
        wav, transcript = out / f"{stem}.wav", out / f"{stem}.json"
        n_samples = int(read_dump(dump).metadata["n_samples"])
        assert not wav.exists() or soundfile.info(wav).frames == n_samples, wav
        assert wav.exists() or not transcript.exists(), transcript
        if transcript.exists():
            assert json.loads(transcript.read_bytes())["n_samples"] == n_samples
            found = [path.stat() for path in (dump, wav, transcript)]
            whole[stem] = tuple((each.st_ino, each.st_mtime_ns) for each in found)
    return whole


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--recordings", type=int, default=0, help="make so many in SOURCE first")
    parser.add_argument("--seed", type=int, default=0)
    options, rest = parser.parse_known_args()
    chance = random.Random(options.seed)
    record_all(options.source, [chance.uniform(0.05, 0.3) for _ in range(options.recordings)])
    arguments = ["convert", str(options.source), str(options.out), *rest]
    words = options.out.with_name(options.out.name + ".words")
    finished: dict[str, tuple[Identity, ...]] = {}
    n_killed, n_parts = 0, 0
    while n_killed < options.kills:
        process = begin(arguments, words)
        wait(process, options.out, len(finished) + chance.randrange(MOST_MORE), chance)
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        n_killed += 1
        now = whole_replies(options.out)
        assert finished.items() <= now.items(), "a finished reply was touched"
        finished = now
        n_parts += len([*options.out.glob(".partial-*")]) > 0
    n_finished_by_killed = len(finished)
    process = begin(arguments, words)
    _, status = os.waitpid(process, 0)
    code = os.waitstatus_to_exitcode(status)
    now = whole_replies(options.out)
    assert finished.items() <= now.items(), "a finished reply was touched"
    summary = {
        "kills": n_killed,
        "kills_in_mid_write": n_parts,
        "finished_by_killed_runs": n_finished_by_killed,
        "finished": len(now),
        "exit_code": code,
        "words": words.read_text(encoding="utf-8", errors="replace")[-2000:] if code else "",
    }
    sys.stdout.write(f"{json.dumps(summary)}\n")


if __name__ == "__main__":
    main()
