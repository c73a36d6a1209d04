"""Mimi: PCM to codes and back. The one door to the `moshi` package.

Encoding is always in float32 (in lower precision codes change), TF32 off; decoding may be in bfloat16.
Recordings pass in chunks of bounded length, and give what the reference gives frame by frame.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import torch
from moshi.models import loaders
from torch import Tensor

from personaplex_cli.audio.convolutions import Memory
from personaplex_cli.audio.mimi import Decoder, Encoder
from personaplex_cli.audio.pcm import Pcm, whole_frames
from personaplex_cli.config.tree import PersonaPlexMimiConfig
from personaplex_cli.errors import WeightsError

CHUNK_FRAMES = 100
"""So many pass at once: enough that the weights are seldom read anew, and the memory stays small."""
NO_PCM: Pcm = np.zeros(0, np.float32)


class Codec:
    """The codec of one checkpoint on one device. One recording is coded at a time, so none hears another."""

    def __init__(self, path: Path | None, config: PersonaPlexMimiConfig, device: torch.device) -> None:
        self.device = device
        self.n_codebooks = config.num_codebooks
        self.samples_per_frame = config.samples_per_frame
        self.mimi = load_mimi(path, config, device)
        self.decoders: dict[torch.dtype, Decoder] = {}

    @cached_property
    def encoder(self) -> Encoder:
        """Always in float32."""
        return Encoder(self.mimi)

    def decoder(self, dtype: torch.dtype) -> Decoder:
        """The decoder in a dtype, made when it is first asked for."""
        if dtype not in self.decoders:
            self.decoders[dtype] = Decoder(self.mimi, dtype)
        return self.decoders[dtype]

    def encode(self, recordings: Sequence[Iterable[Pcm]]) -> list[Tensor]:
        """PCM in blocks of any length, an iterable a row -> codes [8, F] a row, F = ceil(T / 1920)."""
        return [self.encode_one(recording) for recording in recordings]

    def encode_one(self, recording: Iterable[Pcm]) -> Tensor:
        """PCM in blocks of any length -> codes [8, F], F = ceil(T / 1920).

        A last partial frame is filled up with silence, as in the reference.
        """
        chunks = whole_frames(recording, CHUNK_FRAMES * self.samples_per_frame, self.samples_per_frame)
        memory: Memory = {}
        parts = [torch.zeros(self.n_codebooks, 0, dtype=torch.long)]
        for chunk in chunks:
            with exact_float32():
                parts.append(self.encoder(torch.from_numpy(chunk).to(self.device), memory).cpu())
        return torch.cat(parts, dim=1)

    def decode(self, codes: Sequence[Tensor], dtype: torch.dtype = torch.float32) -> Iterator[list[Pcm]]:
        """Codes [8, F] a row -> chunk after chunk, PCM [T] a row, F * 1920 samples in all, at 24 kHz."""
        rows = [self.decode_one(row, dtype) for row in codes]
        return (list(chunks) for chunks in zip_longest(*rows, fillvalue=NO_PCM))

    def decode_one(self, codes: Tensor, dtype: torch.dtype = torch.float32) -> Iterator[Pcm]:
        """One row's codes [8, F] -> PCM [T] at 24 kHz, chunk after chunk."""
        memory: Memory = {}
        for begin in range(0, codes.shape[1], CHUNK_FRAMES):
            chunk = codes[:, begin : begin + CHUNK_FRAMES].to(self.device)
            with exact_float32():
                pcm: Pcm = self.decoder(dtype)(chunk, memory).cpu().numpy()
            yield pcm


@contextmanager
def exact_float32() -> Iterator[None]:
    """Inference without TF32, whose ten bits of mantissa change codes."""
    cudnn = torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False)
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        with torch.inference_mode(), cudnn:
            yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def load_mimi(path: Path | None, config: PersonaPlexMimiConfig, device: torch.device) -> Any:
    """moshi's own MimiModel, loaded strictly, with the codebooks that the LM uses."""
    kwargs = mimi_kwargs(config)
    try:
        mimi = loaders.get_mimi(path, kwargs, device=device, num_codebooks=config.num_codebooks)
    except (RuntimeError, KeyError, TypeError) as error:
        headline = (
            f"{path}: does not fit mimi_config.codec; give the tree that belongs to this codec "
            "(--config, --set), or download the model again:"
        )
        raise WeightsError.listing(headline, [line.strip() for line in str(error).splitlines()]) from error
    for module in mimi.modules():
        if hasattr(module, "weight_g"):
            torch.nn.utils.remove_weight_norm(module)
    return mimi.float().requires_grad_(False)


def mimi_kwargs(config: PersonaPlexMimiConfig) -> dict[str, Any] | None:
    """The config tree's codec as `get_mimi` wants it. None = the published Mimi."""
    if config.codec is None:
        return None
    return {
        "sample_rate": config.sample_rate,
        "channels": config.num_channels,
        "frame_rate": config.frame_rate,
        **config.codec.model_dump(),
    }
