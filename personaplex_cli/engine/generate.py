"""The loop: turns go in, replies come out as they finish."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain

import torch

from personaplex_cli.engine.sampling import Draws
from personaplex_cli.engine.slots import Slots
from personaplex_cli.engine.turns import Reply, Turn, Unanswered
from personaplex_cli.model.device import is_out_of_memory, release_memory
from personaplex_cli.model.lm import Lm
from personaplex_cli.settings import Sampling


def generate(
    lm: Lm,
    turns: Iterable[Turn],
    *,
    n_slots: int,
    sampling: Sampling,
    on_frames: Callable[[int, int], None] = lambda _, __: None,
    on_shrink: Callable[[int, int], None] = lambda _, __: None,
) -> Iterator[Reply | Unanswered]:
    """Answer every turn; replies come as they finish, not in order. Turns are taken only as slots fall free.

    Where the memory runs out, the turns in the slots begin again in half as many; a turn for which even one
    slot is too much is given back as Unanswered. `on_frames` hears after each block how many frames it has
    added over all slots (less than none when turns begin again), and how many there was room for; `on_shrink`
    the slots from now on, and the turns that begin again. `turns` sees to its own want of memory: once it has
    raised, nothing more would come from it.
    """
    waiting = iter(turns)
    while True:
        slots = Slots(lm, n_slots, Draws.of(sampling, lm.config))
        try:
            yield from answer(slots, waiting, on_frames)
            return
        except (RuntimeError, MemoryError) as error:
            if not slots.occupied or not is_out_of_memory(error):
                raise
        # The turns alone: their seats hold memory.
        begun = [seat.turn for seat in slots.occupied]
        n_frames = sum(seat.n_frames_done for seat in slots.occupied)
        del slots
        release_memory(lm.device)
        on_frames(-n_frames, 0)
        if n_slots == 1:
            yield Unanswered(begun[0])
            continue
        n_slots //= 2
        on_shrink(n_slots, len(begun))
        waiting = chain(begun, waiting)


@torch.inference_mode()
def answer(slots: Slots, waiting: Iterator[Turn], on_frames: Callable[[int, int], None]) -> Iterator[Reply]:
    """Fill the slots, take them through blocks and empty them, until nobody waits."""
    while True:
        slots.admit(waiting)
        if not slots.occupied:
            return
        block = slots.next_block()
        drawn = slots.run(block)
        n_frames = sum(seat.frames_in(drawn.shape[0]) for seat in slots.occupied)
        on_frames(n_frames, drawn.shape[0] * drawn.shape[1])
        yield from slots.retire(drawn)
