"""Drawing tokens. Randomness is an argument: every file brings its own noise, whichever slot it sits in."""

from __future__ import annotations

import os
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor

from personaplex_cli.config.tree import PersonaPlexConfig
from personaplex_cli.engine.turns import FREE
from personaplex_cli.settings import Sampling


@dataclass(frozen=True)
class Draw:
    """How one token is drawn: temperature 0 = the likeliest; the `top_k` likeliest take part."""

    temperature: float
    top_k: int


@dataclass(frozen=True)
class Draws:
    """The draws of one step: text, then each codebook."""

    text: Draw
    code: Draw
    n_codebooks: int

    @classmethod
    def of(cls, sampling: Sampling, config: PersonaPlexConfig) -> Draws:
        """What the user chose, within what the vocabularies have."""

        def draw(temperature: float, top_k: int, n_tokens: int) -> Draw:
            return Draw(0.0 if sampling.greedy else temperature, min(top_k or n_tokens, n_tokens))

        return cls(
            draw(sampling.temp_text, sampling.topk_text, config.text_vocab_size),
            draw(sampling.temp_audio, sampling.topk_audio, config.audio_vocab_size),
            config.depformer_config.num_active_codebooks,
        )

    @property
    def n_draws(self) -> int:
        """Tokens drawn a step and slot."""
        return 1 + self.n_codebooks


class Tape:
    """One file's randomness, a key a draw: the same seed and name give the same reply, in whichever slot.

    Philox, keyed by both: it can be cut into blocks anywhere, which torch's own generator does not promise.
    """

    def __init__(self, seed: int, name: str, n_draws: int) -> None:
        digest = blake2b(f"{seed}:".encode() + os.fsencode(name), digest_size=16).digest()
        self.n_draws = n_draws
        self.generator = np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))

    def take(self, n_steps: int) -> Tensor:
        """The next steps' keys. -> [n, n_draws] int64"""
        limits = np.iinfo(np.int64)
        keys = self.generator.integers(
            limits.min, limits.max, (n_steps, self.n_draws), dtype=np.int64, endpoint=True
        )
        return torch.from_numpy(keys)


def exponential_noise(keys: Tensor, ids: Tensor) -> Tensor:
    """Exp(1) noise by token. keys [B] int64, ids [B, k] int64 -> [B, k] float32

    A token's noise hangs on its id and not on its rank: where two logits that are all but equal swap places,
    as rounding has it, the draw stays the same.
    """
    # The finaliser of splitmix64 (Steele, Lea and Flood, 2014). A signed shift drags the sign in; the masks
    # take it out.
    mixed = keys[:, None] + (ids + 1) * -0x61C8864680B583EB
    mixed = (mixed ^ ((mixed >> 30) & ((1 << 34) - 1))) * -0x40A7B892E31B1A47
    mixed = (mixed ^ ((mixed >> 27) & ((1 << 37) - 1))) * -0x6B2FB644ECCEEE15
    return -uniform(mixed ^ ((mixed >> 31) & ((1 << 33) - 1))).log()


def uniform(bits: Tensor) -> Tensor:
    """The lowest 23 bits as a number between 0 and 1, neither included, exact in float32. int64 -> float32"""
    return ((bits & 0x7FFFFF).float() + 0.5) / (1 << 23)


def pick_token(logits: Tensor, keys: Tensor, draw: Draw) -> Tensor:
    """Draw one token a row among the likeliest. logits [B, V], keys [B] -> [B]

    argmax(p / Exp(1)) draws from p, as multinomial does, without its host synchronisation.
    """
    if draw.temperature == 0.0:
        return logits.argmax(dim=-1)
    best, ids = logits.float().topk(draw.top_k, dim=-1)
    weights = torch.softmax(best / draw.temperature, dim=-1)
    winner = (weights / exponential_noise(keys, ids)).argmax(dim=-1, keepdim=True)
    return ids.gather(-1, winner).squeeze(-1)


def settle(drawn: Tensor, forced: Tensor) -> Tensor:
    """Keep what is forced, take the draw elsewhere. [B], [B] -> [B]"""
    return torch.where(forced == FREE, drawn, forced)
