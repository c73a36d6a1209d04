"""`python -m tests.fuzz.mutate --count 10000 --seed 1`: broken WAVs at the audio door.

Every number is one WAV, made from a valid one by one to four mutations; the same seed and number are the same
bytes. Workers are processes: what kills one, hangs it or eats its memory is a find. Finds are written to
`--finds` and make the exit code 1.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import re
import resource
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path

from tests.fuzz.doors import fuzz_audio
from tests.fuzz.seeds import valid_wavs

SECONDS = 5.0
MEMORY_BYTES = 1 << 30
INTERESTING = [0, 1, 2, 3, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]
FINDS = ("crashed", "hung", "over memory")
READY = "ready"


# ---- the mutations: each takes a WAV and changes it a little ----


def flip_bits(wav: bytearray, chance: random.Random) -> None:
    """One to eight bits, anywhere."""
    for _ in range(chance.randint(1, 8)):
        wav[chance.randrange(len(wav))] ^= 1 << chance.randrange(8)


def set_bytes(wav: bytearray, chance: random.Random) -> None:
    """A run of one to four bytes becomes noise, zeros or ones."""
    begin, n_bytes = chance.randrange(len(wav)), chance.randint(1, 4)
    wav[begin : begin + n_bytes] = chance.choice(
        [chance.randbytes(n_bytes), b"\0" * n_bytes, b"\xff" * n_bytes]
    )


def set_header_field(wav: bytearray, chance: random.Random) -> None:
    """A field of two, four or eight bytes among the first 100 becomes an interesting number."""
    width = chance.choice([2, 4, 8])
    begin = chance.randrange(0, min(len(wav), 100), 2)
    wav[begin : begin + width] = (chance.choice(INTERESTING) % 256**width).to_bytes(width, "little")


def resize_chunk(wav: bytearray, chance: random.Random) -> None:
    """A chunk says that it is longer or shorter than it is."""
    begin, end = chance.choice(chunks(wav))
    size = chance.choice([*INTERESTING, end - begin - 8 + chance.randint(-9, 9)])
    wav[begin + 4 : begin + 8] = struct.pack("<I", size & 0xFFFFFFFF)


def repeat_chunk(wav: bytearray, chance: random.Random) -> None:
    """A chunk stands there again, somewhere."""
    (begin, end), (_, place) = chance.choice(chunks(wav)), chance.choice(chunks(wav))
    wav[place:place] = wav[begin:end]


def drop_chunk(wav: bytearray, chance: random.Random) -> None:
    """A chunk is gone."""
    begin, end = chance.choice(chunks(wav))
    del wav[begin:end]


def cut(wav: bytearray, chance: random.Random) -> None:
    """The file ends too early."""
    del wav[chance.randrange(len(wav)) :]


def splice(wav: bytearray, chance: random.Random) -> None:
    """It begins as one file and ends as another."""
    other = chance.choice([*WAVS.values()])
    place = chance.randrange(len(wav))
    wav[place:] = other[chance.choice([place, chance.randrange(len(other))]) :]


WAVS = valid_wavs()
MUTATIONS: list[Callable[[bytearray, random.Random], None]] = [
    flip_bits, set_bytes, set_header_field, resize_chunk, repeat_chunk, drop_chunk, cut, splice
]  # fmt: skip


def chunks(wav: bytes | bytearray) -> list[tuple[int, int]]:
    """Begin and end of each chunk inside RIFF, as far as they can be followed; at least something."""
    found, begin = [], 12
    while begin + 8 <= len(wav):
        end = min(len(wav), begin + 8 + int.from_bytes(wav[begin + 4 : begin + 8], "little"))
        found.append((begin, end + (end - begin) % 2))
        begin = found[-1][1]
    return found or [(0, len(wav))]


def mutated(seed: int, number: int) -> bytes:
    """The WAV of that number; it is none of the valid ones."""
    chance = random.Random(f"{seed}/{number}")
    wav = bytearray(chance.choice([*WAVS.values()]))
    while wav in WAVS.values():
        for mutate in chance.choices(MUTATIONS, k=chance.randint(1, 4)):
            if wav:
                mutate(wav, chance)
    return bytes(wav)


# ---- trying them ----


class Worker:
    """A process that tries one WAV after another, and is replaced when it does not survive one."""

    def __init__(
        self, folder: Path, serve: Callable[[Connection, Path], None], seconds: float = SECONDS
    ) -> None:
        self.folder, self.serve, self.seconds = folder, serve, seconds
        self.start()

    def start(self) -> None:
        """A new process; it reports when it has imported what it needs."""
        spawning = multiprocessing.get_context("spawn")
        self.pipe, theirs = spawning.Pipe()
        self.process = spawning.Process(target=self.serve, args=(theirs, self.folder), daemon=True)
        self.process.start()
        theirs.close()
        assert self.pipe.recv() == READY

    def outcome(self, wav: bytes) -> str:
        """What became of one WAV: "read", "refused: WHY", or one of FINDS with its reason."""
        self.pipe.send_bytes(wav)
        try:
            if self.pipe.poll(self.seconds):
                return str(self.pipe.recv())
            self.stop()
            outcome = f"hung: more than {self.seconds:g} s"
        except EOFError:
            self.process.join()
            outcome = f"crashed: the process ended with {self.process.exitcode}"
        self.start()
        return outcome

    def stop(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.join()
        self.pipe.close()


def serve(pipe: Connection, folder: Path) -> None:
    """Try what comes through the pipe, for ever."""
    fuzz_audio(b"", folder)  # Imports what it needs, before the memory is counted.
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    pipe.send(READY)
    while True:
        pipe.send(tried(pipe.recv_bytes(), folder))


def tried(wav: bytes, folder: Path) -> str:
    """Put one WAV through the door."""
    try:
        refusal = fuzz_audio(wav, folder)
    except MemoryError:
        return f"over memory: more than {MEMORY_BYTES >> 20} MiB"
    except Exception as error:
        return f"crashed: {type(error).__name__}: {error}"
    return "read" if refusal is None else f"refused: {reason_class(refusal.replace(str(folder), ''))}"


def reason_class(refusal: str) -> str:
    """A refusal without its file and its numbers."""
    return re.sub(r"\b(0x[0-9A-Fa-f]+|\d+(\.\d+)?(e[+-]?\d+)?)\b", "N", refusal.partition(": ")[2])


def try_all(seed: int, numbers: Iterable[int], folder: Path) -> dict[int, str]:
    """Number -> what became of its WAV; in one worker, whose folder this is."""
    worker = Worker(folder, serve)
    try:
        return {number: worker.outcome(mutated(seed, number)) for number in numbers}
    finally:
        worker.stop()


def outcomes_of(seed: int, count: int, n_workers: int) -> dict[int, str]:
    """All of them, shared among workers."""
    # Threads of numpy's would take address space, and the cores of the other workers.
    os.environ.update({"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"})
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(n_workers) as pool:
        folders = [Path(folder, str(worker)) for worker in range(n_workers)]
        for each in folders:
            each.mkdir()
        shares = [range(first, count, n_workers) for first in range(n_workers)]
        parts = pool.map(try_all, [seed] * n_workers, shares, folders)
        return {number: outcome for part in parts for number, outcome in part.items()}


def table(outcomes: Iterable[str]) -> str:
    """How many of each kind; for each kind why, the most frequent first."""
    outcomes = list(outcomes)
    kinds = Counter(outcome.partition(":")[0] for outcome in outcomes)
    lines = [f"{'WAVs':12} {len(outcomes):6}"]
    for kind in ("read", "refused", *FINDS):
        lines.append(f"{kind:12} {kinds[kind]:6}")
        reasons = Counter(
            outcome.partition(": ")[2] for outcome in outcomes if outcome.startswith(f"{kind}:")
        )
        lines += [f"             {n:6}  {reason}" for reason, n in reasons.most_common()]
    return "\n".join(lines)


def main() -> int:
    """Try them, show the table, keep the finds."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.mutate", description=__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--finds", type=Path, default=Path("build/fuzz/mutated"))
    chosen = parser.parse_args()
    begun = time.monotonic()
    outcomes = outcomes_of(chosen.seed, chosen.count, chosen.workers)
    print(f"{table(outcomes.values())}\n{time.monotonic() - begun:.0f} s")  # noqa: T201
    found = {number: outcome for number, outcome in outcomes.items() if outcome.startswith(FINDS)}
    for number, outcome in sorted(found.items()):
        chosen.finds.mkdir(parents=True, exist_ok=True)
        path = chosen.finds / f"{chosen.seed}_{number}.wav"
        path.write_bytes(mutated(chosen.seed, number))
        print(f"{path}: {outcome}")  # noqa: T201
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
