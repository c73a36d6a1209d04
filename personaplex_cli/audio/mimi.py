"""Mimi's encoder and decoder over long stretches of one recording, with the weights of moshi's modules.

One recording goes through at a time, so none hears another. What it needs of its past is in a `Memory`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from personaplex_cli.audio.convolutions import (
    Layer,
    Memory,
    convolution,
    layers_of,
    through,
    transposed,
)
from personaplex_cli.audio.window import WindowedTransformer

STRETCH_FRAMES = 10
"""So many at once pass the layers near the PCM, where a frame is large, so that a CPU's caches hold them."""


class Encoder:
    """PCM -> codes, in float32: in lower precision codes change."""

    def __init__(self, mimi: Any) -> None:
        self.near_pcm, self.near_codes = halves(layers_of(mimi.encoder.model, torch.float32))
        self.transformer = WindowedTransformer(mimi.encoder_transformer, per_frame(mimi), torch.float32)
        self.downsample = convolution(mimi.downsample.conv, torch.float32)
        self.first, self.rest = Quantizer(mimi.quantizer.rvq_first), Quantizer(mimi.quantizer.rvq_rest)
        self.samples_per_frame: int = mimi.frame_size

    def __call__(self, pcm: Tensor, memory: Memory) -> Tensor:
        """[n * 1920] -> [8, n]"""
        n_frames = len(pcm) // self.samples_per_frame
        heard = in_stretches(self.near_pcm, pcm[:, None], n_frames, memory)
        heard = self.transformer(through(self.near_codes, heard, memory), memory)
        latent = self.downsample(heard, memory)
        return torch.cat([self.first.encode(latent), self.rest.encode(latent)])


class Decoder:
    """Codes -> PCM. Products are in `dtype`."""

    def __init__(self, mimi: Any, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.first, self.rest = Quantizer(mimi.quantizer.rvq_first), Quantizer(mimi.quantizer.rvq_rest)
        self.upsample = transposed(mimi.upsample.convtr, torch.float32)
        self.transformer = WindowedTransformer(mimi.decoder_transformer, per_frame(mimi), dtype)
        self.near_codes, self.near_pcm = halves(layers_of(mimi.decoder.model, dtype))

    def __call__(self, codes: Tensor, memory: Memory) -> Tensor:
        """[8, n] -> [n * 1920] float32"""
        n_first, n_frames = len(self.first.codebooks), codes.shape[1]
        latent = self.first.decode(codes[:n_first]) + self.rest.decode(codes[n_first:])
        said = self.transformer(self.upsample(latent, memory), memory).to(self.dtype)
        pcm = in_stretches(self.near_pcm, through(self.near_codes, said, memory), n_frames, memory)
        return pcm[:, 0].float()


def per_frame(mimi: Any) -> int:
    """Positions a frame in Mimi's transformers: 2 in the published model (25 Hz)."""
    positions: int = round(mimi.encoder_frame_rate / mimi.frame_rate)
    return positions


def halves(layers: Sequence[Layer]) -> tuple[Sequence[Layer], Sequence[Layer]]:
    """The earlier half and the later one."""
    middle = len(layers) // 2
    return layers[:middle], layers[middle:]


def in_stretches(layers: Sequence[Layer], x: Tensor, n_frames: int, memory: Memory) -> Tensor:
    """Through layers, on a CPU a stretch at a time. x is n_frames long."""
    n_rows = len(x) // n_frames * (STRETCH_FRAMES if x.device.type == "cpu" else n_frames)
    return torch.cat([through(layers, stretch, memory) for stretch in torch.split(x, n_rows)])


class Quantizer:
    """One of the residual quantizers: each codebook speaks of what those before it left over."""

    def __init__(self, rvq: Any) -> None:
        self.codebooks: list[Tensor] = [layer.embedding for layer in rvq.vq.layers[: rvq.n_q]]
        self.halves = [codebook.square().sum(dim=1) / 2 for codebook in self.codebooks]
        self.inwards, self.outwards = matrix_of(rvq.input_proj), matrix_of(rvq.output_proj)

    def encode(self, latent: Tensor) -> Tensor:
        """[n, C] -> [codebooks, n]"""
        left = latent if self.inwards is None else latent @ self.inwards
        codes = []
        for codebook, half in zip(self.codebooks, self.halves, strict=True):
            # |x - e|^2 is least where |e|^2 / 2 - x e is.
            codes.append(torch.addmm(half, left, codebook.t(), alpha=-1).argmin(dim=1))
            left = left - codebook[codes[-1]]
        return torch.stack(codes)

    def decode(self, codes: Tensor) -> Tensor:
        """[codebooks, n] -> [n, C]"""
        pairs = zip(self.codebooks, codes, strict=True)
        total = torch.stack([codebook[chosen] for codebook, chosen in pairs]).sum(dim=0)
        return total if self.outwards is None else total @ self.outwards


def matrix_of(projection: Any) -> Tensor | None:
    """A convolution of one tap as a matrix; None for moshi's Identity. -> [C, D]"""
    return None if isinstance(projection, nn.Identity) else projection.weight[:, :, 0].t()
