"""Mimi: PCM to codes and back. The one door to the `moshi` package.

Always float32 (in lower precision codes change), TF32 off. Whole recordings pass in chunks of bounded length,
several side by side, and give what the reference gives frame by frame: the convolutions stream as moshi has
them, and the transformers are driven here, since moshi's ring loses keys when a call brings many frames.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from moshi.models import loaders
from moshi.utils.compile import no_compile
from torch import Tensor

from personaplex_cli.audio.pcm import Pcm, whole_frames
from personaplex_cli.config.tree import PersonaPlexMimiConfig
from personaplex_cli.errors import WeightsError

KeyValue: TypeAlias = tuple[Tensor, Tensor]

CHUNK_FRAMES = 25
NO_PCM: Pcm = np.zeros(0, np.float32)


class Codec:
    """The codec of one checkpoint on one device. Rows are coded side by side; no row hears another."""

    def __init__(self, path: Path, config: PersonaPlexMimiConfig, device: torch.device) -> None:
        self.device = device
        self.n_codebooks = config.num_codebooks
        self.samples_per_frame = config.samples_per_frame
        self.mimi = load_mimi(path, config, device)

    def encode(self, recordings: Sequence[Iterable[Pcm]]) -> list[Tensor]:
        """PCM in blocks of any length, an iterable a row -> codes [8, F] a row, F = ceil(T / 1920).

        A last partial frame is filled up with silence, as in the reference.
        """
        chunk_samples = CHUNK_FRAMES * self.samples_per_frame
        rows = [whole_frames(recording, chunk_samples, self.samples_per_frame) for recording in recordings]
        parts = [[torch.zeros(self.n_codebooks, 0, dtype=torch.long)] for _ in rows]
        with exact_float32(), Encoder(self.mimi, len(rows)) as encoder:
            for chunks in zip_longest(*rows, fillvalue=NO_PCM):
                lengths = [len(chunk) for chunk in chunks]
                pcm = torch.zeros(len(rows), 1, max(lengths))
                for row, chunk in enumerate(chunks):
                    pcm[row, 0, : len(chunk)] = torch.from_numpy(chunk)
                codes = encoder(pcm.to(self.device)).cpu()
                for row, n_samples in enumerate(lengths):
                    parts[row].append(codes[row, :, : n_samples // self.samples_per_frame])
        return [torch.cat(part, dim=1) for part in parts]

    def decode(self, codes: Sequence[Tensor]) -> Iterator[list[Pcm]]:
        """Codes [8, F] a row -> chunk after chunk, PCM [T] a row, F * 1920 samples in all, at 24 kHz."""
        n_frames = [row.shape[1] for row in codes]
        table = torch.zeros(len(codes), self.n_codebooks, max(n_frames), dtype=torch.long)
        for row, row_codes in enumerate(codes):
            table[row, :, : n_frames[row]] = row_codes
        with exact_float32(), Decoder(self.mimi, len(codes)) as decoder:
            for begin in range(0, max(n_frames), CHUNK_FRAMES):
                pcm = decoder(table[:, :, begin : begin + CHUNK_FRAMES].to(self.device))[:, 0].cpu()
                left = [max(0, n - begin) * self.samples_per_frame for n in n_frames]
                yield [row_pcm[: left[row]].numpy() for row, row_pcm in enumerate(pcm)]

    def decode_one(self, codes: Tensor) -> Iterator[Pcm]:
        """One row's codes [8, F] -> PCM [T], chunk after chunk."""
        return (pcm for (pcm,) in self.decode([codes]))


class Encoder(ExitStack):
    """One pass of encoding: moshi's convolutions in streaming mode, the transformer's past beside them."""

    def __init__(self, mimi: Any, n_rows: int) -> None:
        super().__init__()
        self.mimi = mimi
        for module in (mimi.encoder, mimi.downsample.conv):
            self.enter_context(module.streaming(n_rows))
        self.transformer = WindowedTransformer(mimi.encoder_transformer, positions_per_frame(mimi))

    def __call__(self, pcm: Tensor) -> Tensor:
        """[B, 1, n * 1920] -> [B, 8, n]"""
        latent = self.mimi.downsample(self.transformer(self.mimi.encoder(pcm)))
        codes: Tensor = self.mimi.quantizer.encode(latent)
        return codes


class Decoder(ExitStack):
    """One pass of decoding."""

    def __init__(self, mimi: Any, n_rows: int) -> None:
        super().__init__()
        self.mimi = mimi
        for module in (mimi.upsample.convtr, mimi.decoder):
            self.enter_context(module.streaming(n_rows))
        self.transformer = WindowedTransformer(mimi.decoder_transformer, positions_per_frame(mimi))

    def __call__(self, codes: Tensor) -> Tensor:
        """[B, 8, n] -> [B, 1, n * 1920]"""
        latent = self.mimi.upsample(self.mimi.quantizer.decode(codes))
        pcm: Tensor = self.mimi.decoder(self.transformer(latent))
        return pcm


class WindowedTransformer:
    """One of Mimi's transformers over many frames at once, each with the reference's window.

    The reference writes a frame's positions into a ring of `context`, then hides its oldest place. So key j
    is visible to query q iff j <= q and j > r * (q // r + 1) - context, r positions a frame.
    """

    def __init__(self, projected: Any, positions_per_frame: int) -> None:
        self.projected = projected
        self.per_frame = positions_per_frame
        self.context: int = projected.transformer.layers[0].self_attn.context
        self.n_seen = 0
        self.past: list[KeyValue] = []

    def __call__(self, x: Tensor) -> Tensor:
        """[B, C, T] -> [B, C, T]"""
        x = x.transpose(1, 2)
        if self.projected.input_proj is not None:
            x = self.projected.input_proj(x)
        visible = self.window(x.shape[1], x.device)
        layers = self.projected.transformer.layers
        past: Sequence[KeyValue | None] = self.past or [None] * len(layers)
        self.past = []
        for layer, before in zip(layers, past, strict=True):
            x = x + layer.layer_scale_1(self.attend(layer.self_attn, layer.norm1(x), before, visible))
            x = x + layer.layer_scale_2(layer.linear2(layer.activation(layer.linear1(layer.norm2(x)))))
        self.n_seen += x.shape[1]
        out: Tensor = self.projected.output_projs[0](x)
        return out.transpose(1, 2)

    def window(self, n_new: int, device: torch.device) -> Tensor:
        """Which keys each new query sees; the keys are those kept, then the new ones. [T, kept + T] bool"""
        queries = torch.arange(self.n_seen, self.n_seen + n_new, device=device)[:, None]
        keys = torch.arange(self.n_seen - self.n_kept, self.n_seen + n_new, device=device)
        oldest = self.per_frame * (queries // self.per_frame + 1) - self.context
        return (keys <= queries) & (keys > oldest)

    @property
    def n_kept(self) -> int:
        """Keys of earlier calls that a later query can still see."""
        return min(self.n_seen, self.context)

    def attend(self, attention: Any, x: Tensor, before: KeyValue | None, visible: Tensor) -> Tensor:
        """One layer's attention; keeps its keys and values for the next call. [B, T, C] -> [B, T, C]"""
        projected = attention.in_projs[0](x).unflatten(-1, (3, attention.num_heads, -1))
        query, key, value = projected.permute(2, 0, 3, 1, 4)
        with no_compile():
            query, key = attention.rope(query, key, torch.full((x.shape[0],), self.n_seen, device=x.device))
        if before is not None:
            key, value = torch.cat([before[0], key], dim=2), torch.cat([before[1], value], dim=2)
        # Copies: a slice would keep the whole chunk's keys alive.
        self.past.append((key[:, :, -self.context :].clone(), value[:, :, -self.context :].clone()))
        seen = F.scaled_dot_product_attention(query, key, value, attn_mask=visible)
        out: Tensor = attention.out_projs[0](seen.transpose(1, 2).flatten(-2))
        return out


def positions_per_frame(mimi: Any) -> int:
    """Of Mimi's transformers: 2 in the published model (25 Hz)."""
    per_frame: int = round(mimi.encoder_frame_rate / mimi.frame_rate)
    return per_frame


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


def load_mimi(path: Path, config: PersonaPlexMimiConfig, device: torch.device) -> Any:
    """moshi's own MimiModel, loaded strictly, with the codebooks that the LM uses."""
    kwargs = mimi_kwargs(config)
    try:
        mimi = loaders.get_mimi(path, kwargs, device=device, num_codebooks=config.num_codebooks)
    except (RuntimeError, KeyError, TypeError) as error:
        raise WeightsError(f"{path}: does not fit mimi_config.codec: {error}") from error
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
