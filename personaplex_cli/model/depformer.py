"""The depformer: draws a frame's agent codes one after another, with its own weights for each codebook."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from personaplex_cli.config.tree import PersonaPlexDepformerConfig
from personaplex_cli.model.linear import Linear, Weight, linear
from personaplex_cli.model.transformer import Gating, RMSNorm


class InnerMemory:
    """Keys and values of one frame's inner steps. [B, H, K, D] a layer; every step sees all before it.

    The config's `max_position_embeddings` of 8 must not hide step 0 from step 7, so nothing is a ring here.
    """

    def __init__(self, depformer: Depformer, like: Tensor) -> None:
        """like [B, ...]: gives the batch, the dtype and the device."""
        shape = (
            len(depformer.layers),
            2,
            like.shape[0],
            depformer.n_heads,
            depformer.n_steps,
            depformer.head_dim,
        )
        self.kept = like.new_empty(shape)

    def attend(self, layer: int, step: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """[B, H, D] three times -> [B, H, D]"""
        keys, values = self.kept[layer]
        keys[:, :, step] = key
        values[:, :, step] = value
        until = slice(step + 1)
        seen = F.scaled_dot_product_attention(query[:, :, None], keys[:, :, until], values[:, :, until])
        return seen[:, :, 0]


class DepformerAttention(nn.Module):
    """Attention over the inner steps; the weights of all steps are stacked, as in the checkpoint."""

    def __init__(self, config: PersonaPlexDepformerConfig, n_steps: int) -> None:
        super().__init__()
        width = config.hidden_size
        self.n_heads, self.n_steps = config.num_attention_heads, n_steps
        self.in_proj_weight: Weight = nn.Parameter(torch.empty(n_steps * 3 * width, width))
        self.out_proj = Linear(width, width, n_steps)

    def forward(self, x: Tensor, step: int, memory: InnerMemory, layer: int) -> Tensor:
        """[B, D] -> [B, D]"""
        projected = linear(x, self.in_proj_weight, step, self.n_steps)
        query, key, value = projected.view(x.shape[0], 3, self.n_heads, -1).unbind(1)
        seen = memory.attend(layer, step, query, key, value)
        out: Tensor = self.out_proj(seen.flatten(1), step)
        return out


class DepformerLayer(nn.Module):
    """One layer; its norms are shared by all inner steps."""

    def __init__(self, config: PersonaPlexDepformerConfig, n_steps: int) -> None:
        super().__init__()
        self.norm1 = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = DepformerAttention(config, n_steps)
        self.norm2 = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.gating = nn.ModuleList(
            Gating(config.hidden_size, config.intermediate_size) for _ in range(n_steps)
        )

    def forward(self, x: Tensor, step: int, memory: InnerMemory, layer: int) -> Tensor:
        """[B, D] -> [B, D]"""
        x = x + self.self_attn(self.norm1(x), step, memory, layer)
        out: Tensor = x + self.gating[step](self.norm2(x))
        return out


class Depformer(nn.Module):
    """The stack of layers for `n_steps` inner steps, without positions: order is in the weights."""

    def __init__(self, config: PersonaPlexDepformerConfig, n_steps: int) -> None:
        super().__init__()
        self.n_steps = n_steps
        self.n_heads, self.head_dim = config.num_attention_heads, config.head_dim
        self.layers = nn.ModuleList(DepformerLayer(config, n_steps) for _ in range(config.num_hidden_layers))

    def forward(self, x: Tensor, step: int, memory: InnerMemory) -> Tensor:
        """One inner step. [B, D] -> [B, D]"""
        for index, layer in enumerate(self.layers):
            x = layer(x, step, memory, index)
        return x
