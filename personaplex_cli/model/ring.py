"""What the temporal transformer remembers: a ring of keys and values for every slot, and whole prompts.

Slots with the same persona may share its prompt's memory: it then stands apart from their rings, and what a
slot sees of both is joined. A prompt is then read once for all of them, and held once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Reach:
    """The slots `rows` read the first `n_columns` of their rings, less what `mask` hides.

    mask [rows, 1, 1, n_columns] bool or None: everything there is visible.
    """

    rows: slice
    n_columns: int
    mask: Tensor | None = None


@dataclass(frozen=True)
class Shared:
    """The n slots `rows` see a prompt that stands apart, but for its first `n_hidden` columns."""

    rows: slice | Tensor
    past: KeysAndValues
    n_hidden: int = 0

    @property
    def n_columns(self) -> int:
        """Columns that are seen."""
        return self.past.n_columns - self.n_hidden


class KVRing:
    """Keys and values of every layer, the last `n_columns` frames of every slot. [B, H, C, D] a layer.

    The ring's frame i stands in column i % C; a prompt that stands apart is not counted. Keys are rotated
    before they are written, so their order in the ring does not matter, and a ring of `context - 1` columns
    that shows all it holds is the reference's window.
    """

    def __init__(
        self,
        n_layers: int,
        n_slots: int,
        n_heads: int,
        head_dim: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.keys = [
            torch.zeros(n_slots, n_heads, 0, head_dim, dtype=dtype, device=device) for _ in range(n_layers)
        ]
        self.values = [keys.clone() for keys in self.keys]

    @property
    def dtype(self) -> torch.dtype:
        """Of keys and values."""
        return self.keys[0].dtype

    @property
    def n_columns(self) -> int:
        """Columns that the ring has at present."""
        return self.keys[0].shape[2]

    def grow(self, n_columns: int) -> None:
        """Make room for `n_columns`; only before any slot has wrapped."""
        # Layer by layer, so that no more than one layer is in memory twice.
        for layers in (self.keys, self.values):
            for index, old in enumerate(layers):
                layers[index] = old.new_zeros(*old.shape[:2], n_columns, old.shape[3])
                layers[index][:, :, : old.shape[2]] = old

    def place(self, slot: int, past: KeysAndValues) -> None:
        """Begin a slot with a prompt's keys and values, [1, H, P, D] a layer."""
        for ring, prompt in ((self.keys, past.keys), (self.values, past.values)):
            for layer, rows in zip(ring, prompt, strict=True):
                n_read = rows.shape[2]
                positions = torch.arange(max(0, n_read - self.n_columns), n_read, device=rows.device)
                layer[slot, :, positions % self.n_columns] = rows[0, :, positions]


class KeysAndValues:
    """A whole prompt's memory, read in one pass: a position sees the last `n_visible`, its own included."""

    def __init__(self, n_visible: int) -> None:
        self.n_visible = n_visible
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    @property
    def n_columns(self) -> int:
        """Positions that have been read."""
        return self.keys[0].shape[2]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Causal attention, layer after layer. [B, H, T, D] three times -> [B, H, T, D]"""
        assert layer == len(self.keys)
        # Copies: the views would keep the queries alive too.
        self.keys.append(key.clone(memory_format=torch.contiguous_format))
        self.values.append(value.clone(memory_format=torch.contiguous_format))
        n_read = query.shape[2]
        if n_read <= self.n_visible:
            return F.scaled_dot_product_attention(query, key, value, is_causal=True)
        every = torch.ones(n_read, n_read, dtype=torch.bool, device=query.device)
        visible = every.tril().triu(1 - self.n_visible)
        return F.scaled_dot_product_attention(query, key, value, attn_mask=visible)


class RingStep:
    """The memory of one step: every slot writes its column and reads what it has written so far."""

    def __init__(
        self, ring: KVRing, frames: Tensor, reaches: Sequence[Reach], shared: Sequence[Shared] = ()
    ) -> None:
        """frames [B]: those in each slot's ring before this one. reaches: of all slots, in order."""
        self.ring = ring
        self.columns = frames % ring.n_columns
        self.slots = torch.arange(frames.shape[0], device=frames.device)
        self.shared = shared
        self.reaches = [added(reach, ring.dtype) for reach in reaches] if shared else reaches

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Write, then read. [B, H, 1, D] three times -> [B, H, 1, D]"""
        keys, values = self.ring.keys[layer], self.ring.values[layer]
        keys[self.slots, :, self.columns] = key[:, :, 0]
        values[self.slots, :, self.columns] = value[:, :, 0]
        if not self.shared:
            return concatenated([self.read(keys, values, query, reach) for reach in self.reaches])
        parts = [self.weigh(keys, values, query, reach) for reach in self.reaches]
        seen, weight = (concatenated(list(each)) for each in zip(*parts, strict=True))
        for shared in self.shared:
            rows, past = shared.rows, shared.past
            before = read_shared(
                query[rows],
                past.keys[layer][:, :, shared.n_hidden :],
                past.values[layer][:, :, shared.n_hidden :],
            )
            seen[rows] = joined(before, (seen[rows], weight[rows]))
        return seen

    def read(self, keys: Tensor, values: Tensor, query: Tensor, reach: Reach) -> Tensor:
        """What slots see of their rings. [B, H, C, D] twice, [B, H, 1, D] -> [rows, H, 1, D]"""
        query = query[reach.rows]
        if not reach.n_columns:
            return torch.zeros_like(query)
        read = (reach.rows, slice(None), slice(reach.n_columns))
        return F.scaled_dot_product_attention(query, keys[read], values[read], attn_mask=reach.mask)

    def weigh(self, keys: Tensor, values: Tensor, query: Tensor, reach: Reach) -> Seen:
        """The same, and how much it weighs beside what else is seen."""
        query = query[reach.rows]
        if not reach.n_columns:
            return torch.zeros_like(query), torch.zeros(query.shape[:3])
        read = (reach.rows, slice(None), slice(reach.n_columns))
        return weighed_attention(query, keys[read], values[read], reach.mask)


Seen: TypeAlias = tuple[Tensor, Tensor]
"""What attention over some of the columns gives [B, H, 1, D], and the logarithm of its weight [B, H, 1]."""


def weighed_attention(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None) -> Seen:
    """Attention over some of the columns, on a CPU. torch's public function keeps the weight to itself.

    mask: what is added to the scores.
    """
    seen: Seen = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, keys, values, attn_mask=mask
    )
    return seen


def read_shared(query: Tensor, keys: Tensor, values: Tensor) -> Seen:
    """What n slots see of the columns that all of them share. [n, H, 1, D], [1, H, P, D] twice"""
    read = row_by_row if query.dtype == torch.float32 else in_blocks
    return read(query, keys, values)


def row_by_row(query: Tensor, keys: Tensor, values: Tensor) -> Seen:
    """As `read_shared`, slot by slot: in one product a row might feel how many others there are.

    Head by head, so that a head's columns stay in the cache for all slots.
    """
    n = len(query)
    by_head = [each.transpose(0, 1).expand(-1, n, -1, -1) for each in (keys, values)]
    seen, weight = weighed_attention(query.transpose(0, 1), *by_head)
    return seen.transpose(0, 1), weight.transpose(0, 1)


def in_blocks(query: Tensor, keys: Tensor, values: Tensor) -> Seen:
    """As `read_shared`, in products of many slots at once, filled up to whole tiles of the processor's."""
    blocks = []
    for begin in range(0, len(query), MOST_ROWS):
        block = query[begin : begin + MOST_ROWS].permute(2, 1, 0, 3)
        n = block.shape[2]
        seen, weight = weighed_attention(F.pad(block, (0, 0, 0, -n % TILE_ROWS)), keys, values)
        blocks.append((seen[:, :, :n].permute(2, 1, 0, 3), weight[:, :, :n].permute(2, 1, 0)))
    seen, weight = (concatenated(list(each)) for each in zip(*blocks, strict=True))
    return seen, weight


TILE_ROWS, MOST_ROWS = 16, 32
"""torch's kernel takes another way for products of fewer rows and of more, and rounds otherwise there."""


def joined(one: Seen, other: Seen) -> Tensor:
    """Attention over two parts as attention over both."""
    (one_seen, one_weight), (other_seen, other_weight) = one, other
    # torch rounds a sigmoid otherwise in what is left behind whole vectors: none is, then.
    n_heads = one_weight.shape[1]
    more = F.pad((one_weight - other_weight).squeeze(-1), (0, -n_heads % WHOLE_VECTORS))
    share = torch.sigmoid(more)[:, :n_heads, None, None]
    wide = other_seen.to(share.dtype)
    return (one_seen.to(share.dtype) - wide).mul_(share).add_(wide).to(one_seen.dtype)


WHOLE_VECTORS = 32
"""So many numbers fill torch's vectors, whatever the machine."""


def added(reach: Reach, dtype: torch.dtype) -> Reach:
    """With its mask as numbers to be added to scores."""
    if reach.mask is None:
        return reach
    numbers = torch.zeros_like(reach.mask, dtype=dtype).masked_fill_(~reach.mask, -torch.inf)
    return replace(reach, mask=numbers)


def concatenated(parts: list[Tensor]) -> Tensor:
    """One after another; a single one as it is."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def exact_reaches(n_visible: Sequence[int]) -> list[Reach]:
    """Every slot reads just the columns that it has filled, in a call that its neighbours do not shape.

    n_visible: filled columns of each slot, this step's included; 0 = nobody sits there.
    Neighbours of equal reach share a call: attention is computed row by row all the same.
    """
    reaches, begin = [], 0
    for n_columns, group in groupby(n_visible):
        end = begin + len(list(group))
        reaches.append(Reach(slice(begin, end), n_columns))
        begin = end
    return reaches


def rounded_reaches(frames: Tensor, n_visible: Sequence[int], leap: int, most: int) -> list[Reach]:
    """As `exact_reaches`, but what a slot reads is rounded up to whole leaps, and it hides the rest.

    Neighbours a few frames apart then share a call, and still none shapes what another computes.
    """
    rounded = [min(-(-n // leap) * leap, most) for n in n_visible]
    return [
        replace(reach, mask=filled(frames[reach.rows], reach.n_columns)) for reach in exact_reaches(rounded)
    ]


def masked_reach(frames: Tensor, n_columns: int) -> list[Reach]:
    """All slots in one call over `n_columns`, each hiding what it has not filled. frames [B]

    One kernel for the whole batch, whatever its positions: what a GPU wants.
    """
    return [Reach(slice(None), n_columns, filled(frames, n_columns))]


def filled(frames: Tensor, n_columns: int) -> Tensor:
    """Which of the first columns each slot has filled, with this frame. [B] -> [B, 1, 1, n_columns]"""
    columns = torch.arange(n_columns, device=frames.device)
    return (columns <= frames[:, None])[:, None, None, :]
