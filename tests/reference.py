"""Slow, obvious versions of what the package does fast: lists and whole sequences, no cache, no batch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from personaplex_cli.config.tree import PersonaPlexConfig

DELAYS = [0, 0, 1, 1, 1, 1, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1]


def norm(x: Tensor, alpha: Tensor) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + 1e-8).sqrt() * alpha.view(-1)


def swiglu(x: Tensor, weights: Mapping[str, Tensor], prefix: str) -> Tensor:
    both = x @ weights[f"{prefix}.linear_in.weight"].T
    half = both.shape[-1] // 2
    return (both[..., :half].sigmoid() * both[..., :half] * both[..., half:]) @ weights[
        f"{prefix}.linear_out.weight"
    ].T


def rotated(x: Tensor, position: int) -> Tensor:
    """One head's vector, turned pair by pair. [D]"""
    out = x.clone()
    for pair in range(len(x) // 2):
        angle = position * 10000 ** (-2 * pair / len(x))
        cos, sin = math.cos(angle), math.sin(angle)
        a, b = x[2 * pair].item(), x[2 * pair + 1].item()
        out[2 * pair], out[2 * pair + 1] = a * cos - b * sin, a * sin + b * cos
    return out


def hidden_states(weights: Mapping[str, Tensor], config: PersonaPlexConfig, columns: Tensor) -> Tensor:
    """All hidden states of a sequence, full attention under a window mask. [17, N] -> [N, D]"""
    temporal = config.temporal_config
    n_heads, width = temporal.num_attention_heads, temporal.head_dim
    tables = [weights["text_emb.weight"], *(weights[f"emb.{i}.weight"] for i in range(16))]
    x = sum(table[row] for table, row in zip(tables, columns, strict=True))
    assert isinstance(x, Tensor)
    n = len(x)
    age = torch.arange(n)[:, None] - torch.arange(n)
    # The reference hides the oldest slot of a full ring: context - 1 keys.
    hidden = (age < 0) | (age >= temporal.sliding_window - 1)
    for layer in range(temporal.num_hidden_layers):
        prefix = f"transformer.layers.{layer}"
        normed = norm(x, weights[f"{prefix}.norm1.alpha"])
        projected = (normed @ weights[f"{prefix}.self_attn.in_proj_weight"].T).view(n, 3, n_heads, width)
        heads = []
        for head in range(n_heads):
            query, key = (
                torch.stack([rotated(projected[p, which, head], p) for p in range(n)]) for which in (0, 1)
            )
            scores = (query @ key.T / math.sqrt(width)).masked_fill(hidden, -math.inf)
            heads.append(scores.softmax(-1) @ projected[:, 2, head])
        x = x + torch.cat(heads, -1) @ weights[f"{prefix}.self_attn.out_proj.weight"].T
        x = x + swiglu(norm(x, weights[f"{prefix}.norm2.alpha"]), weights, f"{prefix}.gating")
    return norm(x, weights["out_norm.alpha"])


def frame_codes(
    weights: Mapping[str, Tensor],
    config: PersonaPlexConfig,
    hidden: Tensor,
    text: int,
    given: Sequence[int | None],
) -> list[int]:
    """One frame's codes, greedily, every inner step from scratch. hidden [D]"""
    dep = config.depformer_config
    n_heads, width, n_sets = dep.num_attention_heads, dep.head_dim, dep.dep_q
    tokens = [text]
    for step in range(8):
        inputs = []
        for i, token in enumerate(tokens):
            name = "depformer_text_emb" if i == 0 else f"depformer_emb.{i - 1}"
            inputs.append(weights[f"depformer_in.{i}.weight"] @ hidden + weights[f"{name}.weight"][token])
        x = torch.stack(inputs)
        n = len(x)
        for layer in range(dep.num_hidden_layers):
            prefix = f"depformer.layers.{layer}"
            in_proj = weights[f"{prefix}.self_attn.in_proj_weight"].view(n_sets, -1, dep.hidden_size)
            out_proj = weights[f"{prefix}.self_attn.out_proj.weight"].view(n_sets, -1, dep.hidden_size)
            normed = norm(x, weights[f"{prefix}.norm1.alpha"])
            projected = torch.stack([in_proj[i] @ normed[i] for i in range(n)]).view(n, 3, n_heads, width)
            seen = torch.zeros(n, n_heads, width)
            for i in range(n):
                for head in range(n_heads):
                    scores = projected[: i + 1, 1, head] @ projected[i, 0, head] / math.sqrt(width)
                    seen[i, head] = scores.softmax(-1) @ projected[: i + 1, 2, head]
            x = x + torch.stack([out_proj[i] @ seen[i].flatten() for i in range(n)])
            normed = norm(x, weights[f"{prefix}.norm2.alpha"])
            x = x + torch.stack([swiglu(normed[i], weights, f"{prefix}.gating.{i}") for i in range(n)])
        drawn = int((weights[f"linears.{step}.weight"] @ x[-1]).argmax())
        tokens.append(drawn if given[step] is None else int(given[step] or 0))
    return tokens[1:]


def delayed(given: Sequence[Sequence[int | None]], initial: Sequence[int]) -> list[list[int | None]]:
    """Tokens by frame -> by position, None where free: FACTS of the delays, by lists."""
    n_frames = len(given[0])
    table: list[list[int | None]] = [[None] * (n_frames + 1) for _ in given]
    for stream, delay in enumerate(DELAYS):
        for frame in range(n_frames):
            table[stream][frame + delay] = given[stream][frame]
        for position in range(delay + 1):
            table[stream][position] = initial[stream]
    return table


def greedy_reply(
    weights: Mapping[str, Tensor], config: PersonaPlexConfig, prompt: list[list[int]], user: list[list[int]]
) -> list[list[int]]:
    """A whole reply, the sequence read anew every step. By frame: prompt 17 x P, user 8 x F -> 9 x F"""
    n_prompt, n_user = len(prompt[0]), len(user[0])
    given: list[list[int | None]] = [[*row, *[None] * n_user] for row in prompt]
    for row in range(8):
        given[9 + row][n_prompt:] = user[row]
    initial = [config.text_vocab_size] + [config.audio_vocab_size] * 16
    table = delayed(given, initial)
    for position in range(n_prompt, n_prompt + n_user + 1):
        columns = torch.tensor([[int(token or 0) for token in row[:position]] for row in table])
        hidden = hidden_states(weights, config, columns)[-1]
        if table[0][position] is None:
            table[0][position] = int((weights["text_linear.weight"] @ hidden).argmax())
        text = table[0][position]
        assert text is not None
        codes = frame_codes(weights, config, hidden, text, [table[1 + k][position] for k in range(8)])
        for k in range(8):
            table[1 + k][position] = codes[k]
    return [[int(table[row][n_prompt + f + DELAYS[row]] or 0) for f in range(n_user)] for row in range(9)]
