"""Mimi's transformers over many frames at once, each frame with the window that the reference gives it."""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from personaplex_cli.audio.convolutions import Memory


@dataclass(frozen=True)
class Place:
    """Where a stretch lies in its recording: its positions' rotations [T, D / 2], and which keys they see.

    `mask` is added to the scores, [T, kept + T]: 0 where a key is seen, else minus infinity.
    """

    cos: Tensor
    sin: Tensor
    mask: Tensor


class WindowedTransformer:
    """One of Mimi's transformers. Products are in `dtype`, what goes between layers in float32.

    The reference writes a frame's positions into a ring of `context`, then hides its oldest place. So key j
    is visible to query q iff j <= q and j > r * (q // r + 1) - context, r positions a frame.
    """

    def __init__(self, projected: Any, positions_per_frame: int, dtype: torch.dtype) -> None:
        self.inwards, (self.outwards,) = projected.input_proj, projected.output_projs
        self.layers = [WindowedLayer(layer, dtype) for layer in projected.transformer.layers]
        self.per_frame = positions_per_frame
        self.dtype = dtype

    def __call__(self, x: Tensor, memory: Memory) -> Tensor:
        """[T, C] -> [T, C]"""
        n_seen: int = memory.get(self, 0)
        memory[self] = n_seen + len(x)
        place = self.place(n_seen, len(x), x.device)
        if self.inwards is not None:
            x = self.inwards(x)
        for layer in self.layers:
            x = layer(x, place, memory)
        out: Tensor = self.outwards(x)
        return out

    def place(self, n_seen: int, n_new: int, device: torch.device) -> Place:
        """The place of the next positions, after those seen."""
        first = self.layers[0]
        queries = torch.arange(n_seen, n_seen + n_new, device=device)[:, None]
        keys = torch.arange(n_seen - min(n_seen, first.context), n_seen + n_new, device=device)
        oldest = self.per_frame * (queries // self.per_frame + 1) - first.context
        hidden = (keys > queries) | (keys <= oldest)
        mask = torch.zeros(hidden.shape, dtype=self.dtype, device=device).masked_fill_(hidden, -math.inf)
        pairs = torch.arange(first.head_width // 2, dtype=torch.float32, device=device)
        angles = torch.exp(pairs * (-math.log(first.max_period) * 2 / first.head_width)) * queries
        return Place(torch.cos(angles), torch.sin(angles), mask)


class WindowedLayer:
    """One layer, with its past."""

    def __init__(self, layer: Any, dtype: torch.dtype) -> None:
        attention = layer.self_attn
        self.context: int = attention.context
        self.max_period: float = attention.rope.max_period
        self.head_width: int = attention.embed_dim // attention.num_heads
        self.norm1, self.norm2 = layer.norm1, layer.norm2
        self.scale1, self.scale2 = layer.layer_scale_1, layer.layer_scale_2
        self.activation = layer.activation
        self.in_proj, self.out_proj, self.linear1, self.linear2 = (
            linear if dtype == torch.float32 else deepcopy(linear).to(dtype)
            for linear in (attention.in_projs[0], attention.out_projs[0], layer.linear1, layer.linear2)
        )
        self.dtype = dtype

    def __call__(self, x: Tensor, place: Place, memory: Memory) -> Tensor:
        """[T, C] -> [T, C] float32"""
        x = x + self.scale1(self.attend(self.norm1(x).to(self.dtype), place, memory).float())
        inner = self.activation(self.linear1(self.norm2(x).to(self.dtype)))
        out: Tensor = x + self.scale2(self.linear2(inner).float())
        return out

    def attend(self, x: Tensor, place: Place, memory: Memory) -> Tensor:
        """Attention; keeps its keys and values for the next stretch. [T, C] -> [T, C]"""
        projected = self.in_proj(x).view(len(x), 3, 1, -1, self.head_width)
        query, key, value = projected.permute(1, 2, 3, 0, 4)
        query, key = rotated(query, place), rotated(key, place)
        if self in memory:
            old_keys, old_values = memory[self]
            key, value = torch.cat([old_keys, key], dim=2), torch.cat([old_values, value], dim=2)
        # Copies: a slice would keep the whole stretch's keys alive.
        memory[self] = (key[:, :, -self.context :].clone(), value[:, :, -self.context :].clone())
        seen = F.scaled_dot_product_attention(query, key, value, attn_mask=place.mask)
        out: Tensor = self.out_proj(seen[0].transpose(0, 1).flatten(1))
        return out


def rotated(x: Tensor, place: Place) -> Tensor:
    """Neighbours in pairs, turned by their positions' angles, in float32. [1, H, T, D] -> [1, H, T, D]"""
    real, imaginary = x.float().view(*x.shape[:-1], -1, 2).unbind(-1)
    turned = [real * place.cos - imaginary * place.sin, real * place.sin + imaginary * place.cos]
    return torch.stack(turned, dim=-1).flatten(-2).to(x.dtype)
