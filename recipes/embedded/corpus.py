"""Stage 1:

the speech. Agents' replies in each voice, users' questions in many, and the voices' own sentences.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recipes.embedded.domain import (
    DAYS,
    NUMBERS,
    VOICE_SENTENCES,
    VOICES,
    Part,
    Role,
    invented,
    of_part,
    role_values,
)
from recipes.embedded.intents import INTENTS, UNKNOWN, holes, question
from recipes.embedded.speech import FRAME, Pcm, Voice, onsets, users_voice, with_phones

WORKERS = 2
MADE_UP = 3
"""Roles with made-up names, for each of those with names that somebody has: too many to be known by heart."""


@dataclass(frozen=True)
class Utterance:
    """One rendering: what is said, in which voice, and what is known of it."""

    text: str
    voice: Voice
    about: dict[str, Any] = field(default_factory=dict)


class Speech:
    """Many utterances and their samples, one long array on disk. Indexing gives float samples."""

    def __init__(self, folder: Path, name: str) -> None:
        self.samples: NDArray[np.int16] = np.load(folder / f"{name}.npy", mmap_mode="r")
        lines = (folder / f"{name}.jsonl").read_text().splitlines()
        self.entries: list[dict[str, Any]] = [json.loads(line) for line in lines]
        self.ends = np.cumsum([0, *(entry["n_samples"] for entry in self.entries)])

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, index: int) -> Pcm:
        return self.samples[self.ends[index] : self.ends[index + 1]].astype(np.float32) / 32768


def render(utterance: Utterance) -> tuple[dict[str, Any], NDArray[np.int16]]:
    """An utterance's samples, and what is known of it; an agent's with the times of its words."""
    speech, phones = with_phones(utterance.text, utterance.voice)
    pcm = np.round(speech * 32767).astype(np.int16)
    entry = {**asdict(utterance), "n_samples": len(pcm)}
    if utterance.about.get("agent"):
        entry["onsets"] = onsets(utterance.text, phones)
    return entry, pcm


def render_all(utterances: Iterable[Utterance], folder: Path, name: str) -> None:
    """Render and write; what is written last marks the whole as done."""
    entries, parts = [], []
    with ProcessPoolExecutor(WORKERS) as pool:
        for entry, pcm in pool.map(render, utterances, chunksize=32):
            entries.append(json.dumps(entry))
            parts.append(pcm)
            if len(parts) % 1000 == 0:
                print(f"{name}: {len(parts):,}", flush=True)
    (folder / f"{name}.jsonl").write_text("\n".join(entries) + "\n")
    np.save(folder / f"{name}.npy", np.concatenate(parts))
    seconds = sum(len(part) for part in parts) / FRAME * 0.08
    print(f"{name}: {len(parts):,} utterances, {seconds / 3600:.2f} h", flush=True)


# ---- what is rendered ----


def agents(n_roles: int) -> Iterator[Utterance]:
    """For each voice, every reply that any of so many roles gives, and some times as many with made-up names.

    A role's replies are all there, or none is.
    """
    for voice in VOICES.values():
        rng = random.Random(f"agent {voice}")
        roles = [role_values(rng, unseen=False) for _ in range(n_roles)]
        roles += [named_alone(invented(role, rng)) for _ in range(MADE_UP) for role in roles]
        said: set[str] = set()
        for intent in INTENTS.values():
            for template in dict.fromkeys((*intent.replies, UNKNOWN)):
                for role, day in zip([*roles, *[Role()] * len(DAYS)], cycle(DAYS), strict=False):
                    known = {**role.facts, "day": day}
                    if not holes(template) <= known.keys():
                        continue
                    text = template.format(**known)
                    if text not in said:
                        said.add(text)
                        about = {"agent": True, "template": template, "role": asdict(role)}
                        yield Utterance(text, Voice("flite", voice), about)


def named_alone(role: Role) -> Role:
    """The role without what is not a name."""
    return replace(role, opens=None, closes=None, item=None, price=None)


def users(part: Part, n: int) -> Iterator[Utterance]:
    """Questions of a part, in its voices; no intent is rarer than another."""
    rng = random.Random(f"user {part}")
    intents = list(INTENTS)
    for index in range(n):
        asked = question(intents[index % len(intents)], part, rng)
        yield Utterance(asked.text, users_voice(part, rng), {"question": asdict(asked)})


def voices() -> Iterator[Utterance]:
    """What voice prompts say."""
    for name, flite in VOICES.items():
        for text in VOICE_SENTENCES:
            yield Utterance(text, Voice("flite", flite), {"name": name})


def words(n: int) -> Iterator[Utterance]:
    """Agents say what no role of the domain makes them say, for the codec to hear more than the domain."""
    rng = random.Random("words")
    for _ in range(n):
        one, other = role_values(rng, unseen=False), role_values(rng, unseen=False)
        count, item = rng.choice(of_part(NUMBERS, False)), str(other.item).split(" ", 1)[1]
        text = f"{one.name} and {other.name} went to {one.address} for {count} {item}s."
        yield Utterance(text, Voice("flite", rng.choice([*VOICES.values()]), rng.uniform(0.9, 1.1)))


def make(folder: Path, *, n_agent: int, n_user: int, n_heard: int, n_words: int) -> None:
    """The whole corpus. `n_heard`: questions of each of the parts that are not for training."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, utterances in {
        "voices": voices(),
        "agents": agents(n_agent),
        "users-train": users("train", n_user),
        "users-dev": users("dev", n_heard),
        "users-test": users("test", n_heard),
        "words": words(n_words),
    }.items():
        if not (folder / f"{name}.npy").exists():
            render_all(utterances, folder, name)
