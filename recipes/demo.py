"""What `make demo` shows: each recording's questions, the replies' text with its times, and figures.

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


def main() -> None:
    """Print one table."""
    (out,) = map(Path, sys.argv[1:])
    asked = json.loads((SAMPLES / "questions.json").read_text(encoding="utf-8"))
    table = Table(
        "recording", "voice", "caller asks, reply says", "seconds", "speech", "level", show_lines=True
    )
    for line in (SAMPLES / "calls.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        reply = out / Path(row["path"]).with_suffix(".json")
        words = json.loads(reply.read_text(encoding="utf-8"))["words"]
        pcm, rate = soundfile.read(reply.with_suffix(".wav"), dtype="float32")
        blocks = pcm[: len(pcm) // 1920 * 1920].reshape(-1, 1920)
        speaks = np.abs(blocks).max(axis=1) > LOUD
        level = (
            20 * np.log10(max(1e-9, float(np.sqrt(np.mean(blocks[speaks] ** 2))))) if speaks.any() else -99.0
        )
        table.add_row(
            row["path"],
            row["voice_prompt"],
            dialogue(asked[row["path"]], words),
            f"{len(pcm) / rate:.1f}",
            f"{speaks.mean():.0%}",
            f"{level:.0f} dB",
        )
    Console().print(table)


def dialogue(questions: list[dict[str, object]], words: list[dict[str, object]]) -> str:
    """Questions and what is said after each of them, by time."""
    lines = sorted(
        [(question["start"], "\n> " + str(question["text"]) + "\n ") for question in questions]
        + [(word["start"], f" {word['word']}") for word in words],
        key=lambda line: line[0],  # type: ignore[arg-type, return-value]
    )
    return "".join(text for _, text in lines).strip()


if __name__ == "__main__":
    main()
