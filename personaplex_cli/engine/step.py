"""The device's work: the prompt in one pass, then step after step, without a word from the host."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from personaplex_cli.engine.sampling import Draws, pick_token, settle
from personaplex_cli.engine.turns import Prompt
from personaplex_cli.model.depformer import InnerMemory
from personaplex_cli.model.lm import Lm
from personaplex_cli.model.ring import (
    KeysAndValues,
    KVRing,
    Reach,
    RingStep,
    Shared,
    exact_reaches,
    masked_reach,
    rounded_reaches,
)

COLUMNS_A_READ = 64
"""Where one call reads all rings, its length grows in such leaps: few shapes, little read in vain."""
COLUMNS_ALIKE = 32
"""Where neighbours' calls are joined, they may lie so far apart."""


@dataclass(frozen=True)
class Block:
    """Some steps of all slots, laid out by the host beforehand.

    forced [n, B, 17], positions [n, B] (of the columns read), keys [n, B, n_draws] of the draws;
    n_apart [B]: columns of each slot's prompt that stand apart from its ring;
    n_visible n x B: ring columns filled when the step reads, 0 = nobody sits there;
    shared: by step, the prompts that stand apart, and who sees them.
    """

    forced: Tensor
    positions: Tensor
    keys: Tensor
    n_apart: Tensor
    n_visible: list[list[int]]
    shared: list[list[Shared]]

    @property
    def frames(self) -> Tensor:
        """Frames in each slot's ring before each step. [n, B]"""
        return self.positions - self.n_apart

    def to(self, device: torch.device) -> Block:
        """Host to device, once a block."""
        forced, positions, keys, n_apart = (
            table.to(device) for table in (self.forced, self.positions, self.keys, self.n_apart)
        )
        return Block(forced, positions, keys, n_apart, self.n_visible, self.shared)


@torch.inference_mode()
def read_prompt(lm: Lm, prompt: Prompt) -> KeysAndValues:
    """Read a prompt but for its last column. Nothing is drawn there: one pass does, without the depformer."""
    n_read = prompt.n_frames - 1
    columns = prompt.forced[:, :n_read].T.to(lm.device)
    ready = prompt.embeddings
    n_ready = 0 if ready is None else ready.shape[0]
    x = lm.embed(columns[n_ready:])
    if ready is not None:
        x = torch.cat([ready.to(x), x])
    past = KeysAndValues(lm.config.ring_columns)
    lm.hear(x[None], torch.arange(n_read, device=lm.device)[None], past)
    return past


@torch.inference_mode()
def run_block(lm: Lm, ring: KVRing, columns: Tensor, block: Block, draws: Draws) -> Tensor:
    """Take all slots through a block. columns [B, 17]: where they stand -> [n, B, 17]: the columns filled"""
    filled = []
    for forced, positions, keys, frames, n_visible, shared in zip(
        block.forced, block.positions, block.keys, block.frames, block.n_visible, block.shared, strict=True
    ):
        memory = RingStep(ring, frames, reaches_of(lm, ring, frames, n_visible), shared)
        columns = step(lm, columns, positions, memory, forced, keys, draws)
        filled.append(columns)
    return torch.stack(filled)


def reaches_of(lm: Lm, ring: KVRing, frames: Tensor, n_visible: list[int]) -> list[Reach]:
    """What each slot reads of its ring: on a CPU its own columns, in float32 exactly; elsewhere all the
    longest reach. frames [B]: those in the rings."""
    if lm.device.type == "cpu" and lm.dtype == torch.float32:
        return exact_reaches(n_visible)
    if lm.device.type == "cpu":
        return rounded_reaches(frames, n_visible, COLUMNS_ALIKE, ring.n_columns)
    return masked_reach(frames, columns_read(ring, n_visible))


def columns_read(ring: KVRing, n_visible: list[int]) -> int:
    """How much of all rings one call reads, so that each slot sees what is visible to it."""
    n_columns = -(-max(n_visible) // COLUMNS_A_READ) * COLUMNS_A_READ
    return min(n_columns, ring.n_columns)


def step(
    lm: Lm, columns: Tensor, positions: Tensor, memory: RingStep, forced: Tensor, keys: Tensor, draws: Draws
) -> Tensor:
    """Read one column a slot, fill the next. columns, forced [B, 17], positions [B], keys [B, 9] -> [B, 17]

    Where a token is given it wins, and the next inner step sees the given one.
    """
    hidden = lm.hear(lm.embed(columns)[:, None], positions[:, None], memory)[:, 0]
    previous = settle(pick_token(lm.text_logits(hidden), keys[:, 0], draws.text), forced[:, 0])
    tokens, inner = [previous], InnerMemory(lm.depformer, hidden)
    for inner_step in range(draws.n_codebooks):
        logits = lm.code_logits(inner_step, hidden, previous, inner)
        previous = settle(pick_token(logits, keys[:, 1 + inner_step], draws.code), forced[:, 1 + inner_step])
        tokens.append(previous)
    return torch.cat([torch.stack(tokens, dim=1), forced[:, len(tokens) :]], dim=1)
