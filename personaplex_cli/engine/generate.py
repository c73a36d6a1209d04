"""The loop: turns go in, replies come out as they finish."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch

from personaplex_cli.engine.sampling import Draws
from personaplex_cli.engine.slots import Slots
from personaplex_cli.engine.turns import Reply, Turn
from personaplex_cli.model.lm import Lm
from personaplex_cli.settings import Sampling


@torch.inference_mode()
def generate(
    lm: Lm,
    turns: Iterable[Turn],
    *,
    n_slots: int,
    sampling: Sampling,
    on_frames: Callable[[int], None] = lambda _: None,
) -> Iterator[Reply]:
    """Answer every turn; replies come as they finish, not in order. Turns are taken only as slots fall free.

    `on_frames` hears how many frames each block has added, over all slots.
    """
    waiting = iter(turns)
    slots = Slots(lm, n_slots, Draws.of(sampling, lm.config))
    while True:
        slots.admit(waiting)
        if not slots.occupied:
            return
        block = slots.next_block()
        drawn = slots.run(block)
        on_frames(sum(seat.frames_in(drawn.shape[0]) for seat in slots.occupied))
        yield from slots.retire(drawn)
