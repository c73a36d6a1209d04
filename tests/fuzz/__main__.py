"""`python -m tests.fuzz DOOR`: the coverage-guided fuzzer (atheris, libFuzzer) at one door.

It ends with 0, or stops at the first find, names the file that holds it, and ends with libFuzzer's code.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
from pathlib import Path

from tests.fuzz import CORPUS
from tests.fuzz.doors import DOORS
from tests.fuzz.guided import fuzz

REACHED = Path(__file__).parents[2] / "build" / "fuzz"
"""Where `--keep` puts what reaches new lines; git leaves `build` out."""
SHARED_MEMORY = Path("/dev/shm")
HANG_SECONDS = 5
LONGEST_INPUT = 4096
MEGABYTES = {"audio": 1024, "voice": 2048}
"""Resident memory that is too much; torch alone takes 700 of the voice's."""


def main() -> int:
    """Run libFuzzer in a process of its own: it ends that process without any cleaning up."""
    chosen = arguments()
    with tempfile.TemporaryDirectory(dir=SHARED_MEMORY if SHARED_MEMORY.is_dir() else None) as folder:
        process = multiprocessing.get_context("spawn").Process(
            target=fuzz, args=(chosen.door, libfuzzer_flags(chosen), Path(folder))
        )
        process.start()
        process.join()
    return abs(process.exitcode or 0)


def arguments() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("door", choices=DOORS)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--corpus", type=Path, default=CORPUS, help="holds a folder DOOR")
    parser.add_argument(
        "--keep", action="store_true", help="finds go into the corpus, not a temporary folder"
    )
    return parser.parse_args()


def libfuzzer_flags(chosen: argparse.Namespace) -> list[str]:
    """Folders (the first takes what reaches new lines), limits, and where finds go."""
    seeds: Path = chosen.corpus / chosen.door
    finds = seeds if chosen.keep else Path(tempfile.mkdtemp(prefix=f"{chosen.door}-finds-"))
    reached = REACHED / chosen.door if chosen.keep else finds
    reached.mkdir(parents=True, exist_ok=True)
    return [
        *(str(folder) for folder in dict.fromkeys((reached, seeds))),
        f"-max_total_time={chosen.seconds}",
        f"-timeout={HANG_SECONDS}",
        f"-rss_limit_mb={MEGABYTES.get(chosen.door, 512)}",
        f"-max_len={LONGEST_INPUT}",
        f"-artifact_prefix={finds}{os.sep}",
        "-print_final_stats=1",
    ]


if __name__ == "__main__":
    sys.exit(main())
