"""Stage 7: how good is it? Calls of unknown users, through `personaplex convert`, WAV to WAV.

    python -m recipes.embedded.evaluate --work FOLDER --model FOLDER [--part dev|test] [--calls 64]

Each turn of each call is judged by itself: was the reply of the right kind, were its facts those of the role,
does a recogniser hear what the text says, was the agent quiet while the user spoke, was it the voice that was
asked for, and how long did the user wait. Shares come with Wilson's 95 % intervals.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from personaplex_cli.audio.pcm import Pcm
from recipes.embedded.codes import Agents, Asked, Questions, call
from recipes.embedded.corpus import WORKERS
from recipes.embedded.domain import VOICES, Part, Role, role_text, role_values, thinned
from recipes.embedded.hearing import Ears, knows, sounds, words
from recipes.embedded.intents import INTENTS, holes, question, reply_to
from recipes.embedded.speech import FRAME, RATE

QUIET = 0.005
LOUD = 0.02
N_OTHER_REPLIES = 400
"""Replies that nobody gives, among which the recogniser may choose as well."""


@dataclass
class Turn:
    """One question and what became of it."""

    unseen: bool
    intent: str
    question: str
    expected: str
    said: str
    right_kind: bool
    facts_right: bool | None
    """None: not of the right kind, or a reply without facts."""
    heard: str
    quiet: bool
    voice_right: bool | None
    """None: nothing was said."""
    latency: float | None


# ---- the calls ----


@dataclass
class Call:
    """A recording with its persona, and what is asked in it when."""

    name: str
    role: Role
    unseen: bool
    voice: str
    asked: list[Asked]
    n_frames: int


def make_calls(work: Path, part: Part, n_calls: int, folder: Path) -> list[Call]:
    """Write the recordings and a manifest; -> what is in them. The same for every model."""
    folder.mkdir(parents=True, exist_ok=True)
    questions, agents = Questions(work / "corpus", part), Agents(work / "corpus")
    calls, lines = [], []
    for index in range(n_calls):
        rng = random.Random(f"{part} {index}")
        pcm, asked = call(questions, agents, seed=10**6 + index)
        unseen = index % 2 == 1
        item = next((one.question.item for one in asked if one.question.item), None)
        role = a_role(rng, item, unseen=unseen)
        voice = list(VOICES)[index // 2 % len(VOICES)]
        name = f"call{index:03}"
        soundfile.write(folder / f"{name}.wav", pcm, RATE, subtype="PCM_16")
        persona = {"voice_prompt": voice, "text_prompt": role_text(role, rng), "seed": index}
        lines.append(json.dumps({"path": f"{name}.wav", **persona}))
        calls.append(Call(name, role, unseen, voice, asked, len(pcm) // FRAME))
    (folder / "calls.jsonl").write_text("\n".join(lines) + "\n")
    return calls


def a_role(rng: random.Random, item: str | None, *, unseen: bool) -> Role:
    """A role whose values the recogniser's dictionary has, and that sells what is asked for."""
    while True:
        role = role_values(rng, unseen=unseen)
        if (item is None or role.item == item) and all(map(knows, words(" ".join(role.facts.values())))):
            return thinned(role, rng)


# ---- judging ----


def judge(calls: list[Call], out: Path, model: Path) -> list[Turn]:
    """Every turn of every call."""
    said = {one.name: transcript(out / f"{one.name}.json") for one in calls}
    border = pitch_border(model)
    with ProcessPoolExecutor(WORKERS, initializer=open_ears, initargs=(sentences(calls, said),)) as pool:
        judged = [pool.submit(turns_of, one, said[one.name], out, border) for one in calls]
        return [turn for turns in judged for turn in turns.result()]


ears: Ears


def open_ears(sentences: list[str]) -> None:
    """Each process has its own."""
    global ears
    ears = Ears(sentences)


def transcript(path: Path) -> list[tuple[str, float]]:
    """Words and when they begin."""
    return [(word["word"], word["start"]) for word in json.loads(path.read_text())["words"]]


def windows(one: Call) -> list[tuple[int, int]]:
    """From the end of each question to the beginning of the next, in frames."""
    begins = [asked.begin for asked in one.asked[1:]] + [one.n_frames]
    return [(asked.end, begin) for asked, begin in zip(one.asked, begins, strict=True)]


EARLY = 4
"""Frames: words come before their sound, and a reply may begin in a question's last sound."""


def said_within(said: list[tuple[str, float]], begin: int, end: int) -> str:
    """The words that begin in these frames."""
    return " ".join(word for word, start in said if begin - EARLY <= round(start / 0.08) < end - EARLY)


def sentences(calls: list[Call], said: dict[str, list[tuple[str, float]]]) -> list[str]:
    """What the recogniser may hear: what was meant, what was said if it is of known words, and much else."""
    rng = random.Random("other replies")
    possible = [reply_to(asked.question, one.role)[0] for one in calls for asked in one.asked]
    possible += [said_within(said[one.name], *window) for one in calls for window in windows(one)]
    for index in range(N_OTHER_REPLIES):
        role = a_role(rng, None, unseen=index % 2 == 1)
        possible.append(reply_to(question(rng.choice(list(INTENTS)), "train", rng), role)[0])
    return [one for one in possible if words(one) and all(map(knows, words(one)))]


def turns_of(one: Call, said: list[tuple[str, float]], out: Path, border: float) -> list[Turn]:
    """One call's turns."""
    pcm, _ = soundfile.read(out / f"{one.name}.wav", dtype="float32")
    turns = []
    for asked, (begin, end) in zip(one.asked, windows(one), strict=True):
        expected, facts = reply_to(asked.question, one.role)
        text = said_within(said, begin, end)
        right_kind = bool(re.fullmatch(pattern(expected, facts, asked.question.intent), text))
        reply, during = (
            pcm[begin * FRAME : end * FRAME],
            pcm[(asked.begin + 1) * FRAME : (asked.end - 1) * FRAME],
        )
        loud = np.flatnonzero(np.abs(reply) > LOUD)
        height = pitch(reply)
        turns.append(
            Turn(
                one.unseen,
                asked.question.intent,
                asked.question.text,
                expected,
                text,
                right_kind,
                text == expected if right_kind and facts else None,
                ears.hear(reply),
                bool(len(during) == 0 or np.sqrt(np.mean(during**2)) < QUIET),
                (height > border) == (one.voice == "female") if height else None,
                float(loud[0] / RATE) if len(loud) else None,
            )
        )
    return turns


def pattern(expected: str, facts: tuple[str, ...], intent: str) -> str:
    """The expected reply with anything where its facts are."""
    if not facts:
        return re.escape(expected)
    templates = [one for one in INTENTS[intent].replies if holes(one)]
    filled = [re.sub(r"\\\{\w+\\\}", ".+", re.escape(one)) for one in templates]
    return next(one for one in filled if re.fullmatch(one, expected))


# ---- pitch ----


def pitch(pcm: Pcm) -> float:
    """The median pitch of what is voiced, in hertz, by autocorrelation; 0 if nothing is."""
    size, found = RATE // 25, []
    for begin in range(0, len(pcm) - size, size // 2):
        part = pcm[begin : begin + size]
        if np.sqrt(np.mean(part**2)) < LOUD:
            continue
        part = part - part.mean()
        spectrum = np.fft.rfft(part, 2 * size)
        likeness = np.fft.irfft(spectrum * spectrum.conj())[:size]
        lags = slice(RATE // 400, RATE // 60)
        lag = int(np.argmax(likeness[lags])) + RATE // 400
        if likeness[lag] > 0.4 * likeness[0]:
            found.append(RATE / lag)
    return float(np.median(found)) if len(found) >= 5 else 0.0


def pitch_border(model: Path) -> float:
    """Halfway, in octaves, between the packaged voices."""
    heights = [pitch(soundfile.read(model / "voices" / f"{name}.wav", dtype="float32")[0]) for name in VOICES]
    return float(np.exp(np.mean(np.log(heights))))


# ---- figures ----


@dataclass
class Share:
    """How many of how many, and between which bounds the share lies (Wilson, 95 %)."""

    measure: str
    right: int
    of: int

    @property
    def bounds(self) -> tuple[float, float]:
        """Lower and upper."""
        if not self.of:
            return 0.0, 1.0
        z, n = 1.96, self.of
        share = self.right / n
        middle = (share + z * z / (2 * n)) / (1 + z * z / n)
        reach = z * ((share * (1 - share) + z * z / (4 * n)) / n) ** 0.5 / (1 + z * z / n)
        return max(0.0, middle - reach), min(1.0, middle + reach)

    def told(self) -> dict[str, Any]:
        """For the report."""
        lower, upper = self.bounds
        return {
            **asdict(self),
            "share": round(self.right / max(1, self.of), 4),
            "from": round(lower, 4),
            "to": round(upper, 4),
        }


def shares(turns: list[Turn]) -> list[Share]:
    """All shares that are asked for."""

    def share(measure: str, told: list[bool | None]) -> Share:
        counted = [one for one in told if one is not None]
        return Share(measure, sum(counted), len(counted))

    return [
        share("reply of the right kind", [turn.right_kind for turn in turns]),
        share(
            "facts right, values seen in training", [turn.facts_right for turn in turns if not turn.unseen]
        ),
        share("facts right, values unseen in training", [turn.facts_right for turn in turns if turn.unseen]),
        share("exactly the expected reply", [turn.said == turn.expected for turn in turns]),
        share(
            "recogniser hears what the text says",
            [sounds(turn.heard) == sounds(turn.said) for turn in turns if turn.said],
        ),
        share("quiet while the user talks", [turn.quiet for turn in turns]),
        share("the prompted voice", [turn.voice_right for turn in turns]),
    ]


def evaluate(work: Path, model: Path, part: Part, n_calls: int, batch_size: int = 8) -> dict[str, Any]:
    """Make the calls, convert them, judge them; -> the report, also in `work`."""
    folder, out = work / f"calls-{part}", work / f"replies-{part}"
    calls = make_calls(work, part, n_calls, folder)
    command = [sys.executable, "-m", "personaplex_cli", "convert", str(folder / "calls.jsonl"), str(out)]
    options = ["--model", str(model), "--batch-size", str(batch_size), "--overwrite", "--quiet"]
    begin = time.monotonic()
    subprocess.run([*command, *options], check=True)
    wall = time.monotonic() - begin
    turns = judge(calls, out, model)
    latencies = [turn.latency for turn in turns if turn.latency is not None]
    seconds = sum(one.n_frames for one in calls) * FRAME / RATE
    report = {
        "part": part,
        "n_calls": len(calls),
        "n_turns": len(turns),
        "batch_size": batch_size,
        "shares": [share.told() for share in shares(turns)],
        "median_latency_seconds": float(np.median(latencies)) if latencies else None,
        "real_time_factor": wall / seconds,
        "by_intent": {
            intent: Share(
                intent, *counted([turn.right_kind for turn in turns if turn.intent == intent])
            ).told()
            for intent in INTENTS
        },
    }
    (work / f"evaluation-{part}.json").write_text(json.dumps(report, indent=1) + "\n")
    (work / f"turns-{part}.jsonl").write_text("".join(json.dumps(asdict(turn)) + "\n" for turn in turns))
    return report


def counted(told: list[bool]) -> tuple[int, int]:
    """How many of how many."""
    return sum(told), len(told)


def show(report: dict[str, Any]) -> None:
    """The report as a table."""
    print(f"{report['n_turns']} turns in {report['n_calls']} calls, users of the part '{report['part']}'")
    for share in report["shares"]:
        interval = f"{share['from']:.1%} to {share['to']:.1%}, {share['right']} of {share['of']}"
        print(f"  {share['measure']:<40} {share['share']:>6.1%}  ({interval})")
    latency = report["median_latency_seconds"]
    print(f"  {'median latency':<40} {'none' if latency is None else f'{latency:.2f} s'}")
    print(f"  {'real-time factor of the whole run':<40} {report['real_time_factor']:.2f}")


def main() -> None:
    """Evaluate a model's folder."""
    as_written = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=as_written)
    parser.add_argument("--work", type=Path, required=True, help="the recipe's folder, with its corpus")
    parser.add_argument("--model", type=Path, required=True, help="the model's folder")
    parser.add_argument("--part", choices=["dev", "test"], default="test")
    parser.add_argument("--calls", type=int, default=64)
    options = parser.parse_args()
    show(evaluate(options.work, options.model, options.part, options.calls))


if __name__ == "__main__":
    main()
