"""Stage 3: the corpus as codes, by the product's own codec: agents' replies, voices, users' calls.

A call is a recording of one user: questions with pauses that are long enough for the replies, over some line.
It is coded as a whole, as `personaplex convert` would code it.
"""

from __future__ import annotations

import random
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch
from numpy.typing import NDArray
from torch import Tensor

from personaplex_cli.audio.codec import Codec
from personaplex_cli.audio.pcm import Pcm, read_voice
from personaplex_cli.config.tree import PersonaPlexMimiConfig
from recipes.embedded.corpus import WORKERS, Speech
from recipes.embedded.domain import Part
from recipes.embedded.export import write_codec
from recipes.embedded.intents import INTENTS, Question
from recipes.embedded.speech import FRAME, RATE, over_the_line

Codes = NDArray[np.int16]

CALL_FRAMES = 320
SHORTEST_PAUSE = 8
"""Frames that a user leaves besides those of the longest reply: the agent needs some before it begins."""
LEAD_FRAMES = 12
"""Silence before an agent's reply while it is coded: the codec has heard nothing else for a while."""
TAIL_FRAMES = 3


@dataclass(frozen=True)
class Asked:
    """A question within a call, and the frames in which it is heard."""

    question: Question
    begin: int
    end: int


class Questions:
    """Users' questions of one part, by what they ask for."""

    def __init__(self, corpus: Path, part: Part) -> None:
        self.speech = Speech(corpus, f"users-{part}")
        self.of: defaultdict[tuple[str, str | None], list[int]] = defaultdict(list)
        for index, entry in enumerate(self.speech.entries):
            asked = Question(**entry["about"]["question"])
            self.of[asked.intent, asked.item].append(index)

    def fitting(self, intent: str, item: str) -> list[int]:
        """Questions of an intent; where they name an item, this one."""
        return self.of[intent, None] + self.of[intent, item]

    def choose(self, intent: str, item: str, rng: random.Random) -> tuple[Question, Pcm]:
        """One of them, and its sound."""
        index = rng.choice(self.fitting(intent, item))
        return Question(**self.speech.entries[index]["about"]["question"]), self.speech[index]


class Agents:
    """What agents have been rendered to say: of which items, and how long it may take."""

    def __init__(self, corpus: Path) -> None:
        self.speech = Speech(corpus, "agents")
        self.items = sorted({entry["about"]["role"]["item"] for entry in self.speech.entries} - {None})
        longest: defaultdict[str, int] = defaultdict(int)
        for entry in self.speech.entries:
            n_frames, template = -(-entry["n_samples"] // FRAME), entry["about"]["template"]
            longest[template] = max(longest[template], n_frames)
        # Intents share a reply: that something is not known.
        self.frames = {
            name: max(longest[reply] for reply in intent.replies) for name, intent in INTENTS.items()
        }


def call(questions: Questions, agents: Agents, seed: int) -> tuple[Pcm, list[Asked]]:
    """One user's call, from what they say to what the line makes of it."""
    rng, numbers = random.Random(f"call {seed}"), np.random.default_rng(seed)
    item = rng.choice(agents.items)
    possible = [intent for intent in INTENTS if questions.fitting(intent, item)]
    pcm = np.zeros(CALL_FRAMES * FRAME, np.float32)
    asked: list[Asked] = []
    at = rng.randrange(4 * FRAME, 24 * FRAME)
    greets = rng.random() < 0.4 and "hello" in possible
    while True:
        intent = "hello" if greets and not asked else rng.choice(possible)
        asking, spoken = questions.choose(intent, item, rng)
        end = at + len(spoken)
        if end + (agents.frames[intent] + SHORTEST_PAUSE) * FRAME > len(pcm):
            break
        pcm[at:end] = spoken
        asked.append(Asked(asking, at // FRAME, -(-end // FRAME)))
        pause = agents.frames[intent] + rng.randrange(SHORTEST_PAUSE, 26)
        at = end + pause * FRAME + rng.randrange(FRAME)
    return over_the_line(pcm, numbers), asked


# ---- coding in several processes ----

codec: Codec
replies: Speech


def open_codec(path: Path, section: PersonaPlexMimiConfig, corpus: Path) -> None:
    """Each process has its own, and reads for itself what agents say."""
    global codec, replies
    torch.set_num_threads(1)
    codec = Codec(path, section, torch.device("cpu"))
    replies = Speech(corpus, "agents")


def encode(pcm: Pcm) -> Codes:
    """PCM -> codes [8, F]. No tensor: one that comes from another process keeps a file open."""
    return codec.encode([[pcm]])[0].numpy().astype(np.int16)


def encode_reply(index: int) -> Codes:
    """A reply's codes, with the frames in which its sound dies away, but without the silence before it."""
    padded = np.pad(replies[index], (LEAD_FRAMES * FRAME, TAIL_FRAMES * FRAME))
    return encode(padded)[:, LEAD_FRAMES:]


calls_of: tuple[Questions, Agents]


def open_calls(path: Path, section: PersonaPlexMimiConfig, corpus: Path) -> None:
    """For the processes that make calls."""
    global calls_of
    open_codec(path, section, corpus)
    calls_of = Questions(corpus, "train"), Agents(corpus)


def encode_call(seed: int) -> dict[str, Any]:
    """One call in codes."""
    pcm, asked = call(*calls_of, seed)
    return {"codes": encode(pcm), "asked": [(vars(one.question), one.begin, one.end) for one in asked]}


def make(corpus: Path, folder: Path, mimi: Any, n_calls: int) -> None:
    """Write `mimi.safetensors`, `mimi.json` and `codes.pt`."""
    if (folder / "codes.pt").exists():
        return
    path = folder / "mimi.safetensors"
    section = write_codec(mimi, path)
    (folder / "mimi.json").write_text(section.model_dump_json())
    agents = Speech(corpus, "agents")
    with ProcessPoolExecutor(WORKERS, initializer=open_codec, initargs=(path, section, corpus)) as pool:
        coded = list(pool.map(encode_reply, range(len(agents)), chunksize=32))
        voices = voice_codes(corpus, folder, pool)
    print(f"codes: {len(coded):,} replies", flush=True)
    with ProcessPoolExecutor(WORKERS, initializer=open_calls, initargs=(path, section, corpus)) as pool:
        calls = [
            {**one, "codes": torch.from_numpy(one["codes"])}
            for one in pool.map(encode_call, range(n_calls), chunksize=16)
        ]
    print(f"codes: {len(calls):,} calls of {sum(len(one['asked']) for one in calls):,} questions", flush=True)
    told = [
        {
            "voice": entry["voice"]["name"],
            "text": entry["text"],
            "onsets": entry["onsets"],
            "codes": torch.from_numpy(codes),
            **{key: entry["about"][key] for key in ("template", "role")},
        }
        for entry, codes in zip(agents.entries, coded, strict=True)
    ]
    torch.save({"replies": told, "voices": voices, "calls": calls}, folder / "codes.pt")


def voice_codes(corpus: Path, folder: Path, pool: ProcessPoolExecutor) -> dict[str, list[Tensor]]:
    """What each voice's sentences are to the model: read as a voice prompt is."""
    speech = Speech(corpus, "voices")
    codes: defaultdict[str, list[Tensor]] = defaultdict(list)
    for index, entry in enumerate(speech.entries):
        part = folder / "voice.wav"
        soundfile.write(part, speech[index], RATE, subtype="PCM_16")
        codes[entry["voice"]["name"]] += map(torch.from_numpy, pool.map(encode, [read_voice(part, RATE)]))
        part.unlink()
    return dict(codes)


def load(folder: Path) -> tuple[Any, Any, Any, PersonaPlexMimiConfig]:
    """-> replies, voices, calls, and the codec's section of the config tree"""
    saved = torch.load(folder / "codes.pt", weights_only=True)
    section = PersonaPlexMimiConfig.model_validate_json((folder / "mimi.json").read_text())
    return saved["replies"], saved["voices"], saved["calls"], section
