"""The recordings of sample_audio/: callers whose voices and phrasings training never meets.

    python -m recipes.embedded.samples [--out sample_audio]

Needs espeak-ng and flite. Each recording is of another kind, as people have them.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile
import soxr

from personaplex_cli.audio.pcm import Pcm
from recipes.embedded.domain import Role
from recipes.embedded.intents import Question, reply_to
from recipes.embedded.speech import RATE, Voice, noise, spoken, telephone

ROOT = Path(__file__).resolve().parents[2]
REPLY_SECONDS = 5.0
"""After each question: time for the reply."""


@dataclass(frozen=True)
class Sample:
    """One recording, who calls whom, and how it was recorded."""

    name: str
    says: str
    rate: int
    subtype: str
    caller: Voice
    questions: tuple[Question, ...]
    voice: str
    role: Role
    role_text: str


SAMPLES = [
    Sample(
        "question.wav",
        "24 kHz mono, as the model hears it",
        24000,
        "PCM_16",
        Voice("espeak-ng", "en-us+Adam", 0.9),
        (Question("hours", "what time do you close today"), Question("thanks", "great, thanks")),
        "female",
        Role(name="Monica", business="Golden Bakery", opens="seven", closes="six thirty"),
        "You work for Golden Bakery which is a bakery and your name is Monica. "
        "Information: Open from seven to six thirty. Address: twelve Garden Street. "
        "An apple pie costs eleven dollars.",
    ),
    Sample(
        "telephone.wav",
        "a telephone: 8 kHz mono, mu-law",
        8000,
        "ULAW",
        Voice("flite", "awb"),
        (
            Question("hello", "hi, is anyone there"),
            Question("order", "I would like a large pizza"),
            Question("no", "nothing, thank you"),
        ),
        "male",
        Role(name="Peter", business="Eagle Pizza", item="a large pizza", price="fourteen"),
        "You work for Eagle Pizza which is a pizza shop and your name is Peter. "
        "Information: A large pizza costs fourteen dollars. Open from eleven to nine.",
    ),
    Sample(
        "stereo.flac",
        "44.1 kHz stereo: the caller left, a hum right",
        44100,
        "PCM_16",
        Voice("espeak-ng", "en-gb+female5", 0.85),
        (
            Question("appointment", "could I book an appointment"),
            Question("day", "could I come on Tuesday", day="Tuesday"),
        ),
        "female",
        Role(),
        "You work for Bright Dental which is a dental clinic and your name is Laura. "
        "Information: Opening hours: eight to four thirty. A cleaning: seventy nine dollars.",
    ),
    Sample(
        "noisy.wav",
        "16 kHz mono, with noise behind the caller",
        16000,
        "PCM_16",
        Voice("espeak-ng", "en-us+sandro", 0.85),
        (
            Question("name", "could you tell me who I am speaking to"),
            Question("address", "can you tell me the address"),
        ),
        "male",
        Role(name="Victor", address="thirty one Lake Road"),
        "You work for Silver Garage which is a garage and your name is Victor. "
        "Information: Address: thirty one Lake Road. An oil change costs thirty eight dollars. "
        "Open from nine to five.",
    ),
]


def recorded(sample: Sample) -> tuple[Pcm, list[tuple[float, float]]]:
    """What the recording holds, at its rate: [T], or [T, 2]; and when each question is heard, in seconds."""
    pause = np.zeros(int(REPLY_SECONDS * RATE), np.float32)
    pcm, times = pause[: RATE // 2], []
    for question in sample.questions:
        said = spoken(question.text, sample.caller)
        times.append((round(len(pcm) / RATE, 2), round((len(pcm) + len(said)) / RATE, 2)))
        pcm = np.concatenate([pcm, said, pause])
    if sample.name == "noisy.wav":
        pcm = pcm + noise(len(pcm), np.random.default_rng(1), 0.004)
    if sample.subtype == "ULAW":
        pcm = telephone(pcm)
    pcm = soxr.resample(pcm, RATE, sample.rate).astype(np.float32)
    if sample.name == "stereo.flac":
        hum = 0.01 * np.sin(2 * np.pi * 120 * np.arange(len(pcm)) / sample.rate)
        return np.stack([pcm, hum.astype(np.float32)], axis=1), times
    return pcm, times


def main() -> None:
    """Write the recordings, the manifest, and what is asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=ROOT / "sample_audio")
    out: Path = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    asked = {}
    for sample in SAMPLES:
        pcm, times = recorded(sample)
        soundfile.write(out / sample.name, pcm, sample.rate, subtype=sample.subtype)
        asked[sample.name] = [
            {"start": start, "end": end, "text": question.text, "reply": reply_to(question, sample.role)[0]}
            for (start, end), question in zip(times, sample.questions, strict=True)
        ]
    (out / "questions.json").write_text(json.dumps(asked, indent=1) + "\n")
    rows = [
        {"path": one.name, "voice_prompt": one.voice, "text_prompt": one.role_text, "seed": 1}
        for one in SAMPLES
    ]
    (out / "calls.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = ["| file | what it is | the caller says |", "|---|---|---|"]
    for one in SAMPLES:
        said = " ... ".join(f'"{question.text}"' for question in one.questions)
        lines.append(f"| `{one.name}` | {one.says} | {said} |")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
