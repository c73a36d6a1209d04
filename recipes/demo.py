"""What `make demo` shows: what each caller asks, what the reply says, how soon, and how loud.

    python recipes/demo.py OUT

OUT is where `personaplex convert sample_audio/calls.jsonl OUT` has written.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import soundfile
from rich.console import Console
from rich.table import Table

SAMPLES = Path(__file__).resolve().parents[1] / "sample_audio"
LOUD = 0.02
WIDTH = 118


def main() -> None:
    """Print one table."""
    (out,) = map(Path, sys.argv[1:])
    asked = json.loads((SAMPLES / "questions.json").read_text(encoding="utf-8"))
    table = Table("recording", "voice", "the caller asks", "the reply says", "after", "level")
    for line in (SAMPLES / "calls.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        reply = out / Path(row["path"]).with_suffix(".json")
        words = json.loads(reply.read_text(encoding="utf-8"))["words"]
        pcm, rate = soundfile.read(reply.with_suffix(".wav"), dtype="float32")
        starts = [question["start"] for question in asked[row["path"]]]
        for question, stop in zip(asked[row["path"]], [*starts[1:], len(pcm) / rate], strict=True):
            said = " ".join(word["word"] for word in words if question["start"] <= word["start"] < stop)
            sound = pcm[int(question["end"] * rate) : int(stop * rate)]
            table.add_row(row["path"], row["voice_prompt"], question["text"], said, *figures(sound, rate))
        table.add_section()
    Console(width=WIDTH).print(table)


def figures(sound: np.ndarray, rate: int) -> tuple[str, str]:
    """After how long there is a sound, and how loud it is where there is one."""
    loud = np.flatnonzero(np.abs(sound) > LOUD)
    if not len(loud):
        return "", "silent"
    level = 20 * np.log10(np.sqrt(np.mean(sound[loud[0] : loud[-1] + 1] ** 2)))
    return f"{loud[0] / rate:.2f} s", f"{level:.0f} dB"


if __name__ == "__main__":
    main()
