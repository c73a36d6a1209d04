"""One frame's mathematics: a column of tokens -> hidden state -> text logits, and step by step code logits.

Modules are named as in the published checkpoint (the table is `config.facts.expected_tensors`), so loading
renames nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from personaplex_cli.config.facts import expected_tensors, is_linear, is_stacked
from personaplex_cli.config.tree import PersonaPlexConfig
from personaplex_cli.model.depformer import Depformer, InnerMemory
from personaplex_cli.model.linear import Int8Weight, Linear, Weight
from personaplex_cli.model.transformer import Memory, RMSNorm, TemporalTransformer


class TokenEmbedding(nn.Module):
    """A table of token embeddings; token -1 is the zero vector."""

    def __init__(self, n_tokens: int, width: int) -> None:
        super().__init__()
        # Not an `nn.Embedding`: that draws its numbers, and on the meta device torch's compiler is imported
        # for it, which takes longer than loading a small model.
        self.weight = nn.Parameter(torch.empty(n_tokens, width))

    def forward(self, tokens: Tensor) -> Tensor:
        """[...] -> [..., D]"""
        rows = F.embedding(tokens.clamp(min=0), self.weight)
        return rows.masked_fill((tokens < 0).unsqueeze(-1), 0.0)


class Lm(nn.Module):
    """The language model, with the first `n_steps` depformer step sets (default: the agent's)."""

    def __init__(self, config: PersonaPlexConfig, n_steps: int | None = None) -> None:
        super().__init__()
        temporal, depformer = config.temporal_config, config.depformer_config
        width, inner_width = temporal.hidden_size, depformer.hidden_size
        n_steps = n_steps or depformer.num_active_codebooks
        self.config = config
        self.text_emb = TokenEmbedding(config.text_embedding_rows, width)
        self.emb = nn.ModuleList(
            TokenEmbedding(config.audio_vocab_size + 1, width) for _ in range(config.num_audio_codebooks)
        )
        self.transformer = TemporalTransformer(temporal)
        self.out_norm = RMSNorm(width, temporal.rms_norm_eps)
        self.text_linear = Linear(width, config.text_vocab_size)
        self.depformer_in = nn.ModuleList(Linear(width, inner_width) for _ in range(n_steps))
        self.depformer_text_emb = TokenEmbedding(config.text_embedding_rows, inner_width)
        self.depformer_emb = nn.ModuleList(
            TokenEmbedding(config.audio_vocab_size + 1, inner_width) for _ in range(n_steps - 1)
        )
        self.depformer = Depformer(depformer, n_steps)
        self.linears = nn.ModuleList(Linear(inner_width, config.audio_vocab_size) for _ in range(n_steps))

    @property
    def dtype(self) -> torch.dtype:
        """Of all states, and of the weights that are not in int8."""
        return self.text_emb.weight.dtype

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.text_emb.weight.device

    def hold_in_int8(self, name: str, weight: Tensor) -> None:
        """Put one of the checkpoint's weights in its place in int8. It is on the device already."""
        owner, _, attribute = name.rpartition(".")
        module = self.get_submodule(owner)
        n_sets = self.depformer.n_steps if is_stacked(name) else 1
        delattr(module, attribute)
        setattr(module, attribute, Int8Weight(weight, n_sets))

    def linear_weights(self) -> Iterator[tuple[Weight, int]]:
        """Every weight of products, and how many step sets are stacked in it."""
        n_steps = self.depformer.n_steps
        for name in filter(is_linear, expected_tensors(self.config, n_steps)):
            yield attrgetter(name)(self), n_steps if is_stacked(name) else 1

    def embed(self, columns: Tensor) -> Tensor:
        """Sum of the streams' embeddings: agent, user, text last. [..., 17] -> [..., D]"""
        # Summed one by one in the reference's order: in bfloat16 the order shows.
        text, *codes = columns.unbind(-1)
        total: Tensor = self.emb[0](codes[0])
        for tokens, table in zip(codes[1:], list(self.emb)[1:], strict=True):
            total = total + table(tokens)
        return total.add(self.text_emb(text))

    def hear(self, x: Tensor, positions: Tensor, memory: Memory) -> Tensor:
        """The temporal transformer. x [B, T, D], positions [B, T] -> hidden [B, T, D]"""
        hidden: Tensor = self.out_norm(self.transformer(x, positions, memory))
        return hidden

    def text_logits(self, hidden: Tensor) -> Tensor:
        """[B, D] -> [B, V]"""
        logits: Tensor = self.text_linear(hidden)
        return logits

    def code_logits(self, step: int, hidden: Tensor, previous: Tensor, memory: InnerMemory) -> Tensor:
        """Inner step `step`, given the token before it (text for step 0). [B, D], [B] -> [B, V]"""
        table = self.depformer_emb[step - 1] if step else self.depformer_text_emb
        x = self.depformer_in[step](hidden) + table(previous)
        logits: Tensor = self.linears[step](self.depformer(x, step, memory))
        return logits
