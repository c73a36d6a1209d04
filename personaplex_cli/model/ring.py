"""What the temporal transformer remembers: a ring of keys and values for every slot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

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


class KVRing:
    """Keys and values of every layer, the last `n_columns` frames of every slot. [B, H, C, D] a layer.

    Position p stands in column p % C. Keys are rotated before they are written, so their order in the ring
    does not matter, and a ring of `context - 1` columns that shows all it holds is the reference's window.
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

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Causal attention, layer after layer. [B, H, T, D] three times -> [B, H, T, D]"""
        assert layer == len(self.keys)
        self.keys.append(key)
        # A copy: the view would keep the queries alive too.
        self.values.append(value.clone())
        n_read = query.shape[2]
        if n_read <= self.n_visible:
            return F.scaled_dot_product_attention(query, key, value, is_causal=True)
        every = torch.ones(n_read, n_read, dtype=torch.bool, device=query.device)
        visible = every.tril().triu(1 - self.n_visible)
        return F.scaled_dot_product_attention(query, key, value, attn_mask=visible)


class RingStep:
    """The memory of one step: every slot writes its column and reads what it has written so far."""

    def __init__(self, ring: KVRing, positions: Tensor, reaches: Sequence[Reach]) -> None:
        """positions [B]: frames since each slot began. reaches: of all slots, in order."""
        self.ring = ring
        self.columns = positions % ring.n_columns
        self.slots = torch.arange(positions.shape[0], device=positions.device)
        self.reaches = reaches

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Write, then read. [B, H, 1, D] three times -> [B, H, 1, D]"""
        keys, values = self.ring.keys[layer], self.ring.values[layer]
        keys[self.slots, :, self.columns] = key[:, :, 0]
        values[self.slots, :, self.columns] = value[:, :, 0]
        read = [
            F.scaled_dot_product_attention(
                query[reach.rows],
                keys[reach.rows, :, : reach.n_columns],
                values[reach.rows, :, : reach.n_columns],
                attn_mask=reach.mask,
            )
            if reach.n_columns
            else torch.zeros_like(query[reach.rows])
            for reach in self.reaches
        ]
        return read[0] if len(read) == 1 else torch.cat(read)


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


def rounded_reaches(positions: Tensor, n_visible: Sequence[int], leap: int, most: int) -> list[Reach]:
    """As `exact_reaches`, but what a slot reads is rounded up to whole leaps, and it hides the rest.

    Neighbours a few frames apart then share a call, and still none shapes what another computes.
    """
    rounded = [min(-(-n // leap) * leap, most) for n in n_visible]
    return [
        replace(reach, mask=filled(positions[reach.rows], reach.n_columns))
        for reach in exact_reaches(rounded)
    ]


def masked_reach(positions: Tensor, n_columns: int) -> list[Reach]:
    """All slots in one call over `n_columns`, each hiding what it has not filled. positions [B]

    One kernel for the whole batch, whatever its positions: what a GPU wants.
    """
    return [Reach(slice(None), n_columns, filled(positions, n_columns))]


def filled(positions: Tensor, n_columns: int) -> Tensor:
    """Which of the first columns each slot has filled. positions [B] -> [B, 1, 1, n_columns]"""
    columns = torch.arange(n_columns, device=positions.device)
    return (columns <= positions[:, None])[:, None, None, :]
