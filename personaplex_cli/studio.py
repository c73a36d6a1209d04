"""The studio: a checkpoint's parts, each loaded when it is needed, and how many jobs fit in at once."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property

from personaplex_cli.audio.codec import Codec
from personaplex_cli.config.facts import kv_bytes_per_frame, weight_bytes
from personaplex_cli.engine.slots import PROMPTS_KEPT, columns_for, frames_apart
from personaplex_cli.errors import SettingsError
from personaplex_cli.model.checkpoint import Checkpoint
from personaplex_cli.model.device import DTYPES, choose_decode_dtype, choose_device, choose_dtype, free_bytes
from personaplex_cli.model.lm import Lm
from personaplex_cli.model.weights import load_lm
from personaplex_cli.prompt import PromptMaker
from personaplex_cli.settings import Device
from personaplex_cli.text import Tokenizer

MOST_SLOTS = {"cpu": 32, "mps": 32, "cuda": 128}
"""More rows than this no longer make a step's frames cheaper."""
MEMORY_SHARE = 0.9
CODEC_BYTES = 1_500_000_000
"""What the published codec takes at work, weights included."""


@dataclass(frozen=True)
class Demand:
    """What a run asks for: jobs, personas, and the frames of the longest prompt and the longest recording."""

    n_jobs: int
    n_personas: int
    n_prompt_frames: int
    n_frames: int


@dataclass(frozen=True)
class Reckoning:
    """A batch size, the bytes that it takes with everything else, those that are free, and a line on them."""

    n_slots: int
    n_bytes: int
    n_free: int
    line: str


class Studio:
    """What one run works with."""

    def __init__(self, checkpoint: Checkpoint, device: Device) -> None:
        self.checkpoint = checkpoint
        self.config = checkpoint.config
        self.device = choose_device(device.device)
        self.dtype_name = choose_dtype(device.dtype, self.device, self.config)
        self.decode_dtype_name = choose_decode_dtype(self.dtype_name, self.device)

    @cached_property
    def codec(self) -> Codec:
        """Mimi."""
        return Codec(self.checkpoint.mimi, self.config.mimi_config, self.device)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The text vocabulary."""
        return Tokenizer(self.checkpoint.tokenizer, self.config)

    @cached_property
    def prompts(self) -> PromptMaker:
        """Personas to prompts."""
        return PromptMaker(self.config, self.codec, self.tokenizer, self.checkpoint.voices)

    @cached_property
    def lm(self) -> Lm:
        """The language model."""
        return load_lm(
            self.checkpoint.weights, self.config, dtype=DTYPES[self.dtype_name], device=self.device
        )

    def load(self) -> None:
        """Load the language model now: what is wrong with it is known before any output is touched."""
        assert self.lm.config is self.config

    def reckon(self, demand: Demand, asked: int | None = None) -> Reckoning:
        """The batch size for a run: what was asked for, or what suits the device, but no more than the memory
        holds."""
        n_active = self.config.depformer_config.num_active_codebooks
        weights = weight_bytes(self.config, self.dtype_name, n_active)
        frame = kv_bytes_per_frame(self.config, self.dtype_name)
        apart = frames_apart(demand.n_prompt_frames, self.device)
        prompt = frame * (demand.n_prompt_frames - 1)
        slot_frames = demand.n_prompt_frames + demand.n_frames - apart
        slot = frame * columns_for(slot_frames, self.config)

        def n_prompts(n_slots: int) -> int:
            # Those used last are kept, with the last that somebody sits with.
            return min(demand.n_personas, PROMPTS_KEPT + (n_slots - 1 if apart else 0))

        def n_bytes(n_slots: int) -> int:
            return weights + CODEC_BYTES + n_slots * slot + n_prompts(n_slots) * prompt

        free = free_bytes(self.device)
        wanted = asked or min(demand.n_jobs, MOST_SLOTS[self.device.type])
        fitting = bisect_right(range(1, wanted + 1), free * MEMORY_SHARE, key=n_bytes)
        if not fitting and asked is None:
            raise SettingsError(
                f"not enough memory: the weights take {shown(weights)}, {n_prompts(1)} x "
                f"{demand.n_prompt_frames} frames of prompts {shown(n_prompts(1) * prompt)}, a slot of "
                f"{slot_frames} frames {shown(slot)}, and {shown(free)} are free; use --dtype bfloat16, "
                "shorter recordings, a larger machine, or name a --batch-size to try all the same"
            )
        n_slots = max(1, fitting)
        asked_for = f", {asked} do not fit" if asked and n_slots < asked else ""
        return Reckoning(
            n_slots,
            n_bytes=n_bytes(n_slots),
            n_free=free,
            line=f"batch size {n_slots}{asked_for} ({self.device.type}, {self.dtype_name}): weights "
            f"{shown(weights)} + {n_slots} x {shown(slot)} keys and values + {n_prompts(n_slots)} x "
            f"{shown(prompt)} prompts + codec, {shown(free)} free",
        )


def shown(n_bytes: int) -> str:
    """A size for people."""
    unit, size = ("GiB", 2**30) if n_bytes >= 2**30 else ("MiB", 2**20)
    return f"{n_bytes / size:.2f} {unit}"
