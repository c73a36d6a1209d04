"""The temporal transformer: one column of tokens a frame goes in, one hidden state comes out."""

from __future__ import annotations

import math
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from personaplex_cli.config.tree import HeliumConfig
from personaplex_cli.model.linear import Linear, Weight, linear


class Memory(Protocol):
    """What came before: takes a layer's queries, keys and values, gives back what they see."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """[B, H, T, D] three times -> [B, H, T, D]"""
        ...


class RMSNorm(nn.Module):
    """Root mean square norm, computed in float32 whatever the model's dtype."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.alpha = nn.Parameter(torch.ones(1, 1, width))

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] -> [..., D]"""
        x32 = x.float()
        scale = torch.rsqrt(x32.square().mean(dim=-1, keepdim=True) + self.eps)
        return (x32 * (self.alpha[0, 0].float() * scale)).to(x.dtype)


class Gating(nn.Module):
    """SwiGLU; the gate is the first half of `linear_in`."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.linear_in = Linear(width, 2 * inner)
        self.linear_out = Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] -> [..., D]"""
        gate, up = self.linear_in(x).chunk(2, dim=-1)
        out: Tensor = self.linear_out(F.silu(gate) * up)
        return out


def rotation(positions: Tensor, head_dim: int, theta: float) -> Tensor:
    """Turns of the rotary embedding in float32: by cosines, and by sines with their signs.

    [B, T] -> [2, B, 1, T, D]
    """
    pairs = torch.arange(0, head_dim, 2, device=positions.device, dtype=torch.float32)
    # exp of a log, as the reference: a power rounds otherwise, and at position 3,000 that shows.
    frequencies = torch.exp(pairs * (-math.log(theta) / head_dim))
    angles = positions[:, None, :, None].float() * frequencies
    cos, sin = angles.cos(), angles.sin()
    return torch.stack([torch.stack([cos, cos], dim=-1), torch.stack([-sin, sin], dim=-1)]).flatten(-2)


def rotate(x: Tensor, turns: Tensor) -> Tensor:
    """Turn interleaved pairs (2i, 2i + 1), in float32. x [..., B, H, T, D], turns [2, B, 1, T, D]"""
    # No complex numbers: torch rounds their products otherwise in what is left behind whole vectors.
    along, across = turns
    wide = x.float()
    swapped = wide.view(*x.shape[:-1], -1, 2).flip(-1).flatten(-2)
    turned: Tensor = wide * along + swapped * across
    return turned.to(x.dtype)


class Attention(nn.Module):
    """Self-attention with rotary positions; queries, keys and values are one stacked projection."""

    def __init__(self, config: HeliumConfig) -> None:
        super().__init__()
        self.n_heads = config.num_attention_heads
        self.in_proj_weight: Weight = nn.Parameter(torch.empty(3 * config.hidden_size, config.hidden_size))
        self.out_proj = Linear(config.hidden_size, config.hidden_size)

    def forward(self, x: Tensor, turns: Tensor, memory: Memory, layer: int) -> Tensor:
        """[B, T, D] -> [B, T, D]"""
        projected = linear(x, self.in_proj_weight).view(*x.shape[:2], 3, self.n_heads, -1)
        projected = projected.permute(2, 0, 3, 1, 4)
        query, key = rotate(projected[:2], turns)
        seen = memory.attend(layer, query, key, projected[2])
        out: Tensor = self.out_proj(seen.transpose(1, 2).flatten(-2))
        return out


class Layer(nn.Module):
    """One layer: attention, then gating, each on a normed branch."""

    def __init__(self, config: HeliumConfig) -> None:
        super().__init__()
        self.norm1 = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.norm2 = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.gating = Gating(config.hidden_size, config.intermediate_size)

    def forward(self, x: Tensor, turns: Tensor, memory: Memory, layer: int) -> Tensor:
        """[B, T, D] -> [B, T, D]"""
        x = x + self.self_attn(self.norm1(x), turns, memory, layer)
        out: Tensor = x + self.gating(self.norm2(x))
        return out


class TemporalTransformer(nn.Module):
    """The stack of layers; its memory is an argument."""

    def __init__(self, config: HeliumConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.theta = config.rope_theta
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))

    def forward(self, x: Tensor, positions: Tensor, memory: Memory) -> Tensor:
        """x [B, T, D], positions [B, T] or [1, T]: frames since the slot began. -> [B, T, D]"""
        turns = rotation(positions, self.head_dim, self.theta)
        for index, layer in enumerate(self.layers):
            x = layer(x, turns, memory, index)
        return x
