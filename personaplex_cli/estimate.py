"""How long a run will take: measured on this machine, with a model of the same widths and few layers."""

from __future__ import annotations

import heapq
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import cycle

import numpy as np
import torch
from torch import Tensor

from personaplex_cli.audio.codec import CHUNK_FRAMES, Codec
from personaplex_cli.config.facts import Shape
from personaplex_cli.config.tree import PersonaPlexConfig
from personaplex_cli.engine.sampling import Draws
from personaplex_cli.engine.slots import Slots
from personaplex_cli.engine.turns import Prompt, Turn, add_delays, lay_out
from personaplex_cli.model.device import DTYPES
from personaplex_cli.model.lm import Lm
from personaplex_cli.model.weights import build_lm
from personaplex_cli.settings import Sampling
from personaplex_cli.studio import Studio

N_TIMES = 3
N_STEPS = 4
N_NOISE = 1_000_003
"""Random numbers that weights are filled with, again and again. A prime: so no two rows are alike."""
FEW_LAYERS = (1, 2)
"""Temporal layers of the models that are timed; the others cost what the second adds to the first."""


def wall_seconds(
    studio: Studio, turns: Sequence[tuple[int, int]], n_personas: int, n_slots: int, sampling: Sampling
) -> float:
    """Of a run over turns of (prompt frames, frames), in their order; loading is not in it."""
    n_prompt = round(statistics.fmean(prompt for prompt, _ in turns))
    middle = round(statistics.fmean(frames / 2 for _, frames in turns))
    company = some_turns(studio.config, min(n_personas, n_slots), n_prompt, middle)
    step = step_seconds(studio, company, n_slots, sampling)
    n_steps = steps_in_all([n_frames + 1 for _, n_frames in turns], n_slots)
    n_frames = sum(n_frames for _, n_frames in turns)
    decode_dtype = DTYPES[studio.decode_dtype_name]
    return n_steps * step + n_frames * sum(codec_seconds(studio.codec, decode_dtype))


def steps_in_all(steps: Iterable[int], n_slots: int) -> int:
    """Steps until the last slot is done, where each slot takes the next turn as soon as it is free."""
    slots = [0] * n_slots
    for n_steps in steps:
        heapq.heappush(slots, heapq.heappop(slots) + n_steps)
    return max(slots)


def step_seconds(studio: Studio, company: Sequence[Turn], n_slots: int, sampling: Sampling) -> float:
    """Of one of the last steps of a company's turns, in all slots."""
    n_layers = studio.config.temporal_config.num_hidden_layers
    one, two = (few_layers_seconds(studio, n, company, n_slots, sampling) for n in FEW_LAYERS)
    return max(one + (n_layers - 1) * (two - one), one)


def few_layers_seconds(
    studio: Studio, n_layers: int, company: Sequence[Turn], n_slots: int, sampling: Sampling
) -> float:
    """The same in a model with few temporal layers."""
    temporal = studio.config.temporal_config.model_copy(update={"num_hidden_layers": n_layers})
    config = studio.config.model_copy(update={"temporal_config": temporal})
    lm = random_lm(config, studio.dtype_name, studio.device)
    slots = Slots(lm, n_slots, Draws.of(sampling, config))
    slots.admit(cycle(company))
    for seat in slots.occupied:
        seat.n_done = seat.turn.n_steps - N_STEPS

    def steps() -> None:
        slots.run(slots.next_block())

    return seconds_of(steps, studio.device) / N_STEPS


def some_turns(config: PersonaPlexConfig, n_personas: int, n_prompt: int, n_done: int) -> list[Turn]:
    """Turns of `N_STEPS` steps more than `n_done`, each with a persona of its own."""

    def nothing(n_rows: int, n_frames: int) -> Tensor:
        return torch.zeros(n_rows, n_frames, dtype=torch.long)

    said = nothing(config.n_codebooks, n_done + N_STEPS - 1)
    prompts = [
        Prompt(add_delays(nothing(config.n_streams, n_prompt), config), n_prompt) for _ in range(n_personas)
    ]
    return [lay_out(prompt, said, config) for prompt in prompts]


def random_lm(config: PersonaPlexConfig, dtype_name: str, device: torch.device) -> Lm:
    """A model of these sizes with random weights, made in place: right in nothing but its cost."""
    dtype = DTYPES[dtype_name]
    made_in = dtype if dtype.is_floating_point else torch.bfloat16
    noise = torch.randn(N_NOISE, generator=torch.Generator().manual_seed(0)).to(device, made_in)
    return build_lm(config, lambda name, shape: random_tensor(name, shape, noise), dtype=dtype, device=device)


def random_tensor(name: str, shape: Shape, noise: Tensor) -> Tensor:
    """One of the checkpoint's tensors, filled with the same noise again and again: drawing takes minutes."""
    tensor = noise.new_empty(shape)
    if name.endswith(".alpha"):
        return tensor.fill_(1.0)
    # Sums of so many products have the size of what is summed.
    scaled, flat = noise * shape[-1] ** -0.5, tensor.view(-1)
    for begin in range(0, len(flat), len(noise)):
        piece = flat[begin : begin + len(noise)]
        piece.copy_(scaled[: len(piece)])
    return tensor


def codec_seconds(
    codec: Codec, decode_dtype: torch.dtype, n_frames: int = CHUNK_FRAMES
) -> tuple[float, float]:
    """Of encoding and of decoding one frame, in a recording of so many."""
    noise = np.random.default_rng(0).standard_normal(n_frames * codec.samples_per_frame)
    pcm = (0.1 * noise).astype(np.float32)
    (codes,) = codec.encode([[pcm]])
    encode = seconds_of(lambda: codec.encode([[pcm]]), codec.device)
    decode = seconds_of(lambda: list(codec.decode_one(codes, decode_dtype)), codec.device)
    return encode / n_frames, decode / n_frames


def seconds_of(work: Callable[[], object], device: torch.device) -> float:
    """The median of some runs, after one that is not counted."""
    work()
    return statistics.median(timed(work, device) for _ in range(N_TIMES))


def timed(work: Callable[[], object], device: torch.device) -> float:
    """Seconds from the start to the end of all that the device has to do."""
    finish(device)
    began = time.perf_counter()
    work()
    finish(device)
    return time.perf_counter() - began


def finish(device: torch.device) -> None:
    """Wait for what a GPU still has to do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
