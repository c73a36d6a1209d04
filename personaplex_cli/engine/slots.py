"""Who sits where: the rows of the batch, each at its own position in its own turn. Plain host decisions."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from personaplex_cli.config.tree import PersonaPlexConfig
from personaplex_cli.engine.graph import StepGraphs
from personaplex_cli.engine.sampling import Draws, Tape
from personaplex_cli.engine.step import Block, read_prompt, run_block
from personaplex_cli.engine.turns import Prompt, Reply, Turn, initial_column, remove_delays
from personaplex_cli.model.lm import Lm
from personaplex_cli.model.ring import KeysAndValues, KVRing, Shared

STEPS_A_BLOCK = 32
PROMPTS_KEPT = 8
COLUMNS_A_GROWTH = 64


def columns_for(n_frames: int, config: PersonaPlexConfig) -> int:
    """Ring columns of a slot that is to hold so many frames."""
    n_columns = -(-n_frames // COLUMNS_A_GROWTH) * COLUMNS_A_GROWTH
    return min(n_columns, config.ring_columns)


def frames_apart(n_prompt_frames: int, device: torch.device) -> int:
    """Frames of a prompt that slots share, apart from their rings. None on a GPU: there one kernel for all
    slots wants all of it in the rings."""
    return n_prompt_frames - 1 if device.type == "cpu" else 0


@dataclass
class Seat:
    """One slot's turn, and how far it has come."""

    turn: Turn
    tape: Tape
    past: KeysAndValues | None = None
    """The prompt's memory where that stands apart from the ring, as long as any of it is seen."""
    n_apart: int = 0
    """Its columns."""
    n_done: int = 0
    drawn: list[Tensor] = field(default_factory=list)

    @property
    def n_left(self) -> int:
        """Live steps to go."""
        return self.turn.n_steps - self.n_done

    def frames_in(self, n_steps: int) -> int:
        """Frames that the next steps finish: the last step only brings the last frame's delayed codes."""
        return min(n_steps, self.turn.n_frames - self.n_done)

    @property
    def n_frames_done(self) -> int:
        """Frames of the reply that are finished."""
        return min(self.n_done, self.turn.n_frames)

    @property
    def position(self) -> int:
        """Of the column that the next step reads."""
        return self.turn.prompt.n_frames - 1 + self.n_done


class PromptCache:
    """The keys and values of personas: those used last, and those that anybody still holds.

    A persona is read once for all its jobs that begin while it is there.
    """

    def __init__(self, lm: Lm) -> None:
        self.lm = lm
        self.last: OrderedDict[Prompt, KeysAndValues] = OrderedDict()
        self.held: WeakValueDictionary[Prompt, KeysAndValues] = WeakValueDictionary()

    def past_of(self, prompt: Prompt) -> KeysAndValues:
        """[1, H, P - 1, D] a layer."""
        if prompt not in self.last and len(self.last) == PROMPTS_KEPT:
            self.last.popitem(last=False)
        past = self.held.get(prompt) or read_prompt(self.lm, prompt)
        self.held[prompt] = self.last[prompt] = past
        self.last.move_to_end(prompt)
        return past


class Slots:
    """`n_slots` rows. A row computes the same whoever sits beside it; one that ends takes the next turn."""

    def __init__(self, lm: Lm, n_slots: int, draws: Draws) -> None:
        temporal = lm.config.temporal_config
        self.lm, self.draws = lm, draws
        self.prompts = PromptCache(lm)
        self.seats: list[Seat | None] = [None] * n_slots
        self.ring = KVRing(
            temporal.num_hidden_layers,
            n_slots,
            temporal.num_attention_heads,
            temporal.head_dim,
            dtype=lm.dtype,
            device=lm.device,
        )
        self.graphs = StepGraphs(lm, self.ring, n_slots, draws) if lm.device.type == "cuda" else None
        self.nobody = initial_column(lm.config)
        self.columns = self.nobody.repeat(n_slots, 1).to(lm.device)

    @property
    def occupied(self) -> list[Seat]:
        """The seats that are taken."""
        return [seat for seat in self.seats if seat]

    def admit(self, turns: Iterator[Turn]) -> None:
        """Fill the free slots with the next turns."""
        for slot, seat in enumerate(self.seats):
            if seat is None and (turn := next(turns, None)):
                self.sit(slot, turn)

    def sit(self, slot: int, turn: Turn) -> None:
        """Begin a turn: its prompt's memory is at hand, its first column laid."""
        # Seated first: if the memory runs out below, the turn is known to have begun.
        seat = self.seats[slot] = Seat(turn, Tape(turn.seed, turn.name, self.draws.n_draws))
        past = self.prompts.past_of(turn.prompt)
        if frames_apart(turn.prompt.n_frames, self.lm.device):
            seat.past, seat.n_apart = past, past.n_columns
        self.make_room(turn)
        if not seat.past:
            self.ring.place(slot, past)
        self.columns[slot] = turn.live[:, 0].to(self.columns.device)

    def make_room(self, turn: Turn) -> None:
        """Rings are as long as the longest turn so far, up to the context."""
        n_frames = turn.n_positions - frames_apart(turn.prompt.n_frames, self.lm.device)
        n_columns = columns_for(n_frames, self.lm.config)
        if n_columns > self.ring.n_columns:
            self.ring.grow(n_columns)

    def next_block(self, at_most: int = STEPS_A_BLOCK) -> Block:
        """The next steps as tables for the device: as many as the first slot to finish needs."""
        n_steps = min(at_most, *(seat.n_left for seat in self.occupied))
        n_slots = len(self.seats)
        forced = self.nobody.repeat(n_steps, n_slots, 1)
        positions = torch.zeros(n_steps, n_slots, dtype=torch.long)
        keys = torch.zeros(n_steps, n_slots, self.draws.n_draws, dtype=torch.long)
        n_apart = torch.zeros(n_slots, dtype=torch.long)
        visible = [[0] * n_slots for _ in range(n_steps)]
        for slot, seat in enumerate(self.seats):
            if seat is None:
                continue
            forced[:, slot] = seat.turn.live[:, seat.n_done + 1 : seat.n_done + 1 + n_steps].T
            positions[:, slot] = torch.arange(seat.position, seat.position + n_steps)
            keys[:, slot] = seat.tape.take(n_steps)
            n_apart[slot] = seat.n_apart
            for index in range(n_steps):
                n_frames = seat.position - seat.n_apart + index + 1
                visible[index][slot] = min(n_frames, self.ring.n_columns)
        shared = [self.shared_at(index) for index in range(n_steps)]
        return Block(forced, positions, keys, n_apart, visible, shared)

    def shared_at(self, n_later: int) -> list[Shared]:
        """The prompts that stand apart as they are seen some steps from now: the oldest columns leave the
        window first."""
        groups: defaultdict[tuple[KeysAndValues, int], list[int]] = defaultdict(list)
        for slot, seat in enumerate(self.seats):
            if seat and seat.past and (n_hidden := self.n_hidden(seat, n_later)) < seat.n_apart:
                groups[seat.past, n_hidden].append(slot)
        return [Shared(rows_of(slots), past, n_hidden) for (past, n_hidden), slots in groups.items()]

    def n_hidden(self, seat: Seat, n_later: int = 0) -> int:
        """Positions that have left a seat's window when it takes a step, now or some steps from now."""
        return max(0, seat.position + n_later + 1 - self.lm.config.ring_columns)

    def run(self, block: Block) -> Tensor:
        """Take every slot through a block. -> [n, B, 9] on the host"""
        there = block.to(self.lm.device)
        if self.graphs:
            filled = self.graphs.run_block(self.columns, there)
        else:
            filled = run_block(self.lm, self.ring, self.columns, there, self.draws)
        self.columns = filled[-1].clone()
        return filled[:, :, : 1 + self.draws.n_codebooks].cpu()

    def retire(self, drawn: Tensor) -> Iterator[Reply]:
        """Hand each slot its tokens [n, B, 9]; those that have finished leave, with their replies."""
        for slot, seat in enumerate(self.seats):
            if seat is None:
                continue
            # A copy: a view would keep the tokens of all slots alive.
            seat.drawn.append(drawn[:, slot].clone())
            seat.n_done += drawn.shape[0]
            if self.n_hidden(seat) >= seat.n_apart:
                seat.past = None
            if not seat.n_left:
                self.seats[slot] = None
                yield Reply(seat.turn, remove_delays(torch.cat(seat.drawn).T, self.lm.config))


def rows_of(slots: list[int]) -> slice | Tensor:
    """Slots as an index: neighbours need no copy."""
    first, last = slots[0], slots[-1]
    return slice(first, last + 1) if last - first < len(slots) else torch.tensor(slots)
