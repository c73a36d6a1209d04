"""How long a run will take: measured on this machine in about a second, with a model of the same widths."""

from __future__ import annotations

import heapq
import statistics
import time
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch

from personaplex_cli.audio.codec import CHUNK_FRAMES, Codec
from personaplex_cli.config.tree import PersonaPlexConfig
from personaplex_cli.engine.sampling import Draws
from personaplex_cli.engine.slots import Slots
from personaplex_cli.engine.turns import FREE, Prompt, Turn
from personaplex_cli.model.device import DTYPES
from personaplex_cli.model.lm import Lm
from personaplex_cli.settings import Sampling
from personaplex_cli.studio import Studio

N_TIMES = 3
N_STEPS = 4
FEW_LAYERS = (1, 2)
"""Temporal layers of the models that are timed; the others cost what the second adds to the first."""


def wall_seconds(studio: Studio, turns: Sequence[tuple[int, int]], n_slots: int, sampling: Sampling) -> float:
    """Of a run over turns of (prompt frames, frames), in their order; loading is not in it."""
    n_prompt = round(statistics.fmean(prompt for prompt, _ in turns))
    middle = round(statistics.fmean(prompt + frames / 2 for prompt, frames in turns))
    step = step_seconds(studio, n_slots, max(middle, n_prompt), sampling)
    n_steps = steps_in_all([n_frames + 1 for _, n_frames in turns], n_slots)
    n_frames = sum(n_frames for _, n_frames in turns)
    return n_steps * step + n_frames * codec_seconds(studio.codec)


def steps_in_all(steps: Iterable[int], n_slots: int) -> int:
    """Steps until the last slot is done, where each slot takes the next turn as soon as it is free."""
    slots = [0] * n_slots
    for n_steps in steps:
        heapq.heappush(slots, heapq.heappop(slots) + n_steps)
    return max(slots)


def step_seconds(studio: Studio, n_slots: int, position: int, sampling: Sampling) -> float:
    """Of one step of all slots, `position` frames into their turns."""
    n_layers = studio.config.temporal_config.num_hidden_layers
    one, two = (few_layers_seconds(studio, n, n_slots, position, sampling) for n in FEW_LAYERS)
    return max(one + (n_layers - 1) * (two - one), one)


def few_layers_seconds(
    studio: Studio, n_layers: int, n_slots: int, position: int, sampling: Sampling
) -> float:
    """Of one step of all slots in a model with few temporal layers."""
    temporal = studio.config.temporal_config.model_copy(update={"num_hidden_layers": n_layers})
    config = studio.config.model_copy(update={"temporal_config": temporal})
    lm = hollow_lm(config, DTYPES[studio.dtype_name], studio.device)
    slots = Slots(lm, n_slots, Draws.of(sampling, config))
    turn = turn_at(position, config)
    slots.make_room(turn.n_positions)
    for slot in range(n_slots):
        slots.seat(slot, turn)

    def steps() -> None:
        slots.run(slots.next_block())

    return seconds_of(steps) / turn.n_steps


def turn_at(position: int, config: PersonaPlexConfig) -> Turn:
    """A turn of a few steps whose prompt ends at `position`."""
    nothing = torch.zeros(config.n_streams, 0, dtype=torch.long)
    return Turn("", 0, Prompt(nothing, position), torch.full((config.n_streams, N_STEPS + 1), FREE))


def hollow_lm(config: PersonaPlexConfig, dtype: torch.dtype, device: torch.device) -> Lm:
    """A model of these widths whose weights are all alike: right in nothing but its cost."""
    with torch.device("meta"):
        lm = Lm(config).to(dtype)
    lm = lm.to_empty(device=device).eval().requires_grad_(False)
    for weight in lm.parameters():
        weight.fill_(1 / 64)
    return lm


def codec_seconds(codec: Codec) -> float:
    """Of encoding and decoding one frame."""
    noise = np.random.default_rng(0).standard_normal(CHUNK_FRAMES * codec.samples_per_frame)
    pcm = (0.1 * noise).astype(np.float32)

    def both_ways() -> None:
        (codes,) = codec.encode([[pcm]])
        for _ in codec.decode_one(codes):
            pass

    return seconds_of(both_ways) / CHUNK_FRAMES


def seconds_of(work: Callable[[], None]) -> float:
    """The median of some runs, after one that is not counted."""
    work()
    times = []
    for _ in range(N_TIMES):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return statistics.median(times)
