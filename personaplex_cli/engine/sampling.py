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

    @property
    def n_noise(self) -> int:
        """Noise values that it uses up."""
        return self.top_k if self.temperature > 0 else 0


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
    def n_noise(self) -> int:
        """Noise values a step and slot."""
        return self.text.n_noise + self.n_codebooks * self.code.n_noise

    def split(self, noise: Tensor) -> list[Tensor]:
        """One step's noise [B, n_noise] -> text's, and each codebook's, [B, top_k]"""
        sizes = [self.text.n_noise, *[self.code.n_noise] * self.n_codebooks]
        return list(torch.split(noise, sizes, dim=1))


class Tape:
    """One file's Exp(1) noise: the same seed and name give the same reply, in whichever slot and block.

    Philox, keyed by both: it can be cut into blocks anywhere, which torch's own generator does not promise.
    """

    def __init__(self, seed: int, name: str, n_noise: int) -> None:
        digest = blake2b(f"{seed}:".encode() + os.fsencode(name), digest_size=16).digest()
        self.n_noise = n_noise
        self.generator = np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))

    def take(self, n_steps: int) -> Tensor:
        """The next steps' noise. -> [n, n_noise] float32"""
        noise = self.generator.standard_exponential((n_steps, self.n_noise), dtype=np.float32)
        return torch.from_numpy(noise)


def pick_token(logits: Tensor, noise: Tensor, draw: Draw) -> Tensor:
    """Draw one token a row among the likeliest. logits [B, V], noise [B, top_k] -> [B]

    argmax(p / Exp(1)) draws from p, as multinomial does, without its host synchronisation.
    """
    if draw.temperature == 0.0:
        return logits.argmax(dim=-1)
    best, ids = logits.float().topk(draw.top_k, dim=-1)
    weights = torch.softmax(best / draw.temperature, dim=-1)
    winner = (weights / noise).argmax(dim=-1, keepdim=True)
    return ids.gather(-1, winner).squeeze(-1)


def settle(drawn: Tensor, forced: Tensor) -> Tensor:
    """Keep what is forced, take the draw elsewhere. [B], [B] -> [B]"""
    return torch.where(forced == FREE, drawn, forced)
