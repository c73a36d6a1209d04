"""Stage 4: the codec's decoder, trained on for the agents' voices, from the codes that will be said.

Encoder and codebooks stay as they are, so all codes stay valid.
"""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from recipes.embedded import codes
from recipes.embedded.codec import Spectra, decoded, load
from recipes.embedded.corpus import Speech
from recipes.embedded.speech import FRAME
from recipes.embedded.training import Training, in_workers

N_ROWS = 6
N_FRAMES = 24
UNHEARD_FRAMES = 3
"""At a stretch's beginning the decoder lacks what came before it."""


def train(work: Path, n_steps: int, n_workers: int) -> None:
    """Train on; `mimi-refined.pt` is the averaged state."""
    if not (work / "mimi-refined.pt").exists():
        in_workers(n_workers, train_worker, work, n_steps)


def train_worker(rank: int, work: Path, n_steps: int) -> None:
    """One worker's share."""
    torch.manual_seed(1)
    mimi, spectra = load(work), Spectra()
    mimi.requires_grad_(False)
    for part in (mimi.upsample, mimi.decoder_transformer, mimi.decoder):
        part.requires_grad_(True)
    training = Training("decoder", work, n_steps, rate=6e-4, betas=(0.8, 0.99), clip=2.0)
    training.take(mimi=mimi)
    stretches = Stretches(work, seed=1000 * training.step + rank)
    while not training.done:
        said, meant = stretches.batch()
        sound = decoded(mimi, mimi.quantizer.decode(said))[:, UNHEARD_FRAMES * FRAME :]
        meant = meant[:, UNHEARD_FRAMES * FRAME :]
        spectral = spectra(sound, meant, training.step)
        wave = (sound - meant).abs().mean()
        training.update(spectral + wave, spectral=spectral, wave=wave)
        training.log(every=50)
    if rank == 0:
        torch.save(training.averaged()["mimi"], work / "mimi-refined.pt")


class Stretches:
    """Parts of replies: codes and what they were made from."""

    def __init__(self, work: Path, seed: int) -> None:
        self.replies, *_ = codes.load(work)
        self.speech = Speech(work / "corpus", "agents")
        self.rng = random.Random(seed)

    def batch(self) -> tuple[Tensor, Tensor]:
        """-> codes [B, 8, frames], PCM [B, T]"""
        rows = [self.stretch(self.rng.randrange(len(self.replies))) for _ in range(N_ROWS)]
        return torch.stack([said for said, _ in rows]), torch.stack([meant for _, meant in rows])

    def stretch(self, index: int) -> tuple[Tensor, Tensor]:
        """Some of a reply; what is missing at its end is silence that was said as such."""
        said = self.replies[index]["codes"].long()
        begin = self.rng.randrange(max(1, said.shape[1] - N_FRAMES + 1))
        part = said[:, begin : begin + N_FRAMES]
        part = torch.cat([part, said[:, -1:].expand(-1, N_FRAMES - part.shape[1])], dim=1)
        pcm = self.speech[index][begin * FRAME : (begin + N_FRAMES) * FRAME]
        return part, torch.from_numpy(np.pad(pcm, (0, N_FRAMES * FRAME - len(pcm))))
