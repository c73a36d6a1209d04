"""Whether cost stays flat: `python -m tests.flat FOLDER`.

Time and peak memory of 50, 500 and 5,000 recordings, and of one of 5 minutes and of 2 hours, each in a
process of its own, as tables with ratios to the first row. `--files` and `--minutes` name others. Of runs
over files the fastest of `--times` counts: starting alone takes longer or shorter by tenths of a second.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.helpers import record, record_all

MEASURED = """
import sys
from personaplex_cli.cli import app
try:
    app(sys.argv[1:])
finally:
    print(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


@dataclass(frozen=True)
class Cost:
    """What one run took."""

    seconds: float
    peak_kib: int


def cost_of(source: Path, out: Path, batch_size: int) -> Cost:
    """Convert, in a new process and a new folder."""
    shutil.rmtree(out, ignore_errors=True)
    command = ["convert", source, out, "--batch-size", batch_size, "--quiet"]
    began = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-c", MEASURED, *map(str, command)], capture_output=True, text=True, check=True
    )
    return Cost(time.monotonic() - began, int(ended.stdout.split()[1]))


def least_cost_of(source: Path, out: Path, batch_size: int, n_times: int) -> Cost:
    """The time of the fastest of some runs, and the memory of the greediest."""
    costs = [cost_of(source, out, batch_size) for _ in range(n_times)]
    return Cost(min(cost.seconds for cost in costs), max(cost.peak_kib for cost in costs))


def show(name: str, costs: dict[int, Cost], per: dict[int, float]) -> None:
    """A table whose ratios are to its first row."""
    first = next(iter(costs))
    sys.stdout.write(f"{name:>8} {'ms each':>9} {'ratio':>6} {'peak MiB':>9} {'ratio':>6}\n")
    for n, cost in costs.items():
        ratios = per[n] / per[first], cost.peak_kib / costs[first].peak_kib
        peak = cost.peak_kib / 1024
        sys.stdout.write(f"{n:8} {per[n] * 1000:9.1f} {ratios[0]:6.2f} {peak:9.1f} {ratios[1]:6.2f}\n")


def files(folder: Path, numbers: Sequence[int], batch_size: int, n_times: int) -> None:
    """Runs over many recordings of half a second, less a first batch, in which things are done once."""

    def cost(name: str, n: int) -> Cost:
        return least_cost_of(record_all(folder / name, [0.5] * n), folder / "out", batch_size, n_times)

    start = cost("first", batch_size).seconds
    costs = {n: cost(f"{n}", n) for n in numbers}
    show("files", costs, {n: (cost.seconds - start) / (n - batch_size) for n, cost in costs.items()})


def minutes(folder: Path, numbers: Sequence[int]) -> None:
    """Runs over one long recording."""
    costs = {n: cost_of(record(folder / f"{n}.wav", 60.0 * n), folder / "out", 1) for n in numbers}
    show("minutes", costs, {n: cost.seconds / n for n, cost in costs.items()})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--files", type=int, nargs="*", default=[50, 500, 5000])
    parser.add_argument("--minutes", type=int, nargs="*", default=[5, 120])
    parser.add_argument("--batch-size", type=int, default=10)
    parser.add_argument("--times", type=int, default=3)
    options = parser.parse_args()
    if options.files:
        files(options.folder, options.files, options.batch_size, options.times)
    if options.minutes:
        minutes(options.folder, options.minutes)


if __name__ == "__main__":
    main()
