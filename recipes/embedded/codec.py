"""Stage 2: a small Mimi. Its first codebook learns to tell phones, the other seven how they sound.

The published Mimi's first codebook is taught by a large speech model. There is none here; instead the frames'
first codes alone must spell the phones that are said (CTC), whoever says them: that is what lets the language
model understand voices that it has never heard. Sound is learnt from spectra at several scales.

The convolutions are matrix products over [B, T, C]: on a CPU several times faster than convolutions.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from moshi.models.loaders import get_mimi
from moshi.modules.conv import StreamingConv1d, StreamingConvTranspose1d
from moshi.modules.seanet import SEANetResnetBlock
from torch import Tensor, nn
from torch.nn import functional as F

from recipes.embedded.corpus import Speech
from recipes.embedded.hearing import PHONES, phone_numbers
from recipes.embedded.speech import FRAME, RATE, Pcm, over_the_line
from recipes.embedded.training import HALF, Training, in_workers

CARD = 256
WIDTH = 128
CONTEXT = 48
"""Positions of 40 ms: some two seconds. What is longer ago the codec need not know."""

PHONES_A_FRAME = 3
"""So many may be told by one frame's first code: some are shorter than 30 ms."""


def codec_kwargs() -> dict[str, Any]:
    """The codec's section of the config tree: arguments of moshi's `get_mimi`."""
    return {
        "seanet": {
            "channels": 1,
            "dimension": WIDTH,
            "causal": True,
            "n_filters": 16,
            "n_residual_layers": 1,
            "activation": "ELU",
            "compress": 2,
            "dilation_base": 2,
            "disable_norm_outer_blocks": 0,
            "kernel_size": 7,
            "residual_kernel_size": 3,
            "last_kernel_size": 3,
            "norm": "none",
            "pad_mode": "constant",
            "ratios": [8, 6, 5, 4],
            "true_skip": True,
        },
        "quantizer": {
            "dimension": 64,
            "n_q": 8,
            "bins": CARD,
            "input_dimension": WIDTH,
            "output_dimension": WIDTH,
        },
        "transformer": {
            "d_model": WIDTH,
            "num_heads": 4,
            "num_layers": 2,
            "causal": True,
            "layer_scale": 0.01,
            "context": CONTEXT,
            "conv_layout": True,
            "max_period": 10000,
            "gating": "none",
            "norm": "layer_norm",
            "positional_embedding": "rope",
            "dim_feedforward": 4 * WIDTH,
            "input_dimension": WIDTH,
            "output_dimensions": [WIDTH],
        },
    }


def new_mimi() -> Any:
    """An untrained one, whose layers neither shrink nor swell what passes them."""
    kwargs = {"sample_rate": RATE, "channels": 1, "frame_rate": 12.5, **codec_kwargs()}
    mimi = get_mimi(None, kwargs, num_codebooks=8)
    for net in (mimi.encoder, mimi.decoder):
        for module in net.modules():
            if isinstance(module, (nn.Conv1d, nn.ConvTranspose1d)):
                per_output = module.in_channels * module.kernel_size[0]
                if isinstance(module, nn.ConvTranspose1d):
                    per_output //= module.stride[0]
                nn.init.normal_(module.weight, std=(1.4 / per_output) ** 0.5)
                nn.init.zeros_(module.bias)
        for module in net.modules():
            if isinstance(module, SEANetResnetBlock):
                module.block[-1].conv.conv.weight.data.mul_(0.5)
    with torch.no_grad():
        mimi.encoder.model[0].conv.conv.weight.mul_(6.0)  # speech is quiet
        mimi.decoder.model[-1].conv.conv.weight.mul_(0.1)
        for quantizer in (mimi.quantizer.rvq_first, mimi.quantizer.rvq_rest):
            nn.init.orthogonal_(quantizer.input_proj.weight[:, :, 0])
            quantizer.output_proj.weight[:, :, 0] = quantizer.input_proj.weight[:, :, 0].t()
        mimi.quantizer.rvq_rest.output_proj.weight.mul_(0.5)
        mimi.quantizer.rvq_first.output_proj.weight.mul_(0.5)
        for transformer in (mimi.encoder_transformer, mimi.decoder_transformer):
            for layer in transformer.transformer.layers:
                layer.layer_scale_1.scale.fill_(0.1)
                layer.layer_scale_2.scale.fill_(0.1)
    return mimi


# ---- forwards for training: moshi's parameters, matrix products ----


@torch.compile(dynamic=True)
def elu(x: Tensor) -> Tensor:
    """ELU in one pass: torch's own is scalar on a CPU, and was a third of a step."""
    return torch.where(x > 0, x, torch.expm1(x))


def convolved(x: Tensor, module: StreamingConv1d) -> Tensor:
    """[B, T, C] -> [B, T / stride, D]"""
    conv = module.conv.conv
    width, stride = conv.kernel_size[0], conv.stride[0]
    weight = conv.weight.permute(0, 2, 1).reshape(conv.out_channels, -1)
    batch, n, channels = x.shape
    if stride == 1:
        padded = F.pad(x, (0, 0, width - 1, 0))
        taps = torch.cat([padded[:, tap : tap + n] for tap in range(width)], dim=-1) if width > 1 else x
    else:
        blocks = x.reshape(batch, n // stride, stride * channels)
        taps = torch.cat([F.pad(blocks, (0, 0, 1, 0))[:, :-1], blocks], dim=-1)
    return F.linear(taps, weight, conv.bias)


def transposed(x: Tensor, module: StreamingConvTranspose1d) -> Tensor:
    """[B, T, C] -> [B, T * stride, D]"""
    conv = module.convtr.convtr
    batch, n, channels = x.shape
    out, stride = conv.weight.shape[1], conv.stride[0]
    spread = F.linear(x, conv.weight.permute(2, 1, 0).reshape(-1, channels))
    now, later = spread.split(stride * out, dim=-1)
    return (now + F.pad(later, (0, 0, 1, 0))[:, :-1]).reshape(batch, n * stride, out) + conv.bias.to(
        now.dtype
    )


def through(x: Tensor, net: nn.Module) -> Tensor:
    """Through a SEANet."""
    for layer in net.model:
        if isinstance(layer, StreamingConv1d):
            x = convolved(x, layer)
        elif isinstance(layer, StreamingConvTranspose1d):
            x = transposed(x, layer)
        elif isinstance(layer, SEANetResnetBlock):
            inner = x
            for part in layer.block:
                inner = convolved(inner, part) if isinstance(part, StreamingConv1d) else elu(inner)
            x = x + inner
        else:
            x = elu(x)
    return x


def encoded(mimi: Any, pcm: Tensor) -> Tensor:
    """[B, T] -> the latent that is quantised, [B, C, frames], float32"""
    with torch.autocast("cpu", torch.bfloat16, enabled=HALF is torch.bfloat16):
        heard = through(pcm[:, :, None].to(HALF), mimi.encoder)
        heard = mimi.encoder_transformer.transformer(heard).transpose(1, 2)
        return mimi.downsample(heard).float()


def decoded(mimi: Any, latent: Tensor) -> Tensor:
    """[B, C, frames] -> [B, T] float32"""
    with torch.autocast("cpu", torch.bfloat16, enabled=HALF is torch.bfloat16):
        said = mimi.upsample(latent).transpose(1, 2)
        said = mimi.decoder_transformer.transformer(said).to(HALF)
        return through(said, mimi.decoder)[:, :, 0].float()


# ---- losses ----


class Spectra(nn.Module):
    """How far two sounds' spectra are from each other, at two of the scales, in turn."""

    SCALES = ((2048, 80), (1024, 80), (512, 64), (256, 32), (128, 16))
    FLOOR = 1e-2

    def __init__(self) -> None:
        super().__init__()
        for size, n_bands in self.SCALES:
            self.register_buffer(f"window{size}", torch.hann_window(size), persistent=False)
            self.register_buffer(f"bands{size}", mel_bands(size, n_bands), persistent=False)

    def forward(self, said: Tensor, meant: Tensor, turn: int) -> Tensor:
        """[B, T] both -> the mean over bands of log and of linear differences"""
        total = said.new_zeros(())
        for index in (turn % 5, (turn + 2) % 5):
            size, _ = self.SCALES[index]
            ours, our_bands = self.spectrum(said, size)
            with torch.no_grad():
                theirs, their_bands = self.spectrum(meant, size)
            logs = ((our_bands + self.FLOOR).log() - (their_bands + self.FLOOR).log()).abs().mean()
            total = total + logs + 0.4 * (ours - theirs).abs().mean() / (theirs.mean() + 0.02)
        return total / 2

    def spectrum(self, pcm: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """Magnitudes, and the same in mel bands."""
        bins = torch.stft(pcm, size, size // 4, window=getattr(self, f"window{size}"), return_complex=True)
        power = bins.real.square() + bins.imag.square()
        magnitude = (power + 1e-9).sqrt() * (2 / size**0.5)
        return magnitude, getattr(self, f"bands{size}") @ magnitude


def mel_bands(size: int, n_bands: int) -> Tensor:
    """Triangular filters over the bins of a spectrum. [n_bands, size / 2 + 1]"""

    def mel(hertz: Any) -> Any:
        return 2595 * np.log10(1 + hertz / 700)

    edges = 700 * (10 ** (np.linspace(0, mel(RATE / 2), n_bands + 2) / 2595) - 1)
    bins = np.linspace(0, RATE / 2, size // 2 + 1)
    rise = (bins - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    fall = (edges[2:, None] - bins) / (edges[2:] - edges[1:-1])[:, None]
    return torch.tensor(np.maximum(0, np.minimum(rise, fall)), dtype=torch.float32)


class Said(NamedTuple):
    """What is said in a stretch: phones, and about when each ends; none: not to be spelt."""

    phones: tuple[int, ...] = ()
    begins: tuple[float, ...] = ()
    """In samples."""
    ends: tuple[float, ...] = ()


def timed(entry: dict[str, Any], at: int) -> Said:
    """An utterance's phones, if vowels last twice as long as other phones, from a sample on.

    Agents' words have known times; of users' utterances only the whole length is known.
    """
    n_samples = entry["n_samples"]
    spelled, starts = [phone_numbers(entry["text"])], [0.0]
    if "onsets" in entry:
        spelled = [phone_numbers(word) for word in entry["text"].split()]
        starts = [onset * RATE for onset in entry["onsets"]]
    phones: list[int] = []
    begins: list[float] = []
    ends: list[float] = []
    for word, start, stop in zip(spelled, starts, [*starts[1:], n_samples], strict=True):
        lasting = np.array([2.0 if PHONES[phone - 1][0] in "AEIOU" else 1.0 for phone in word])
        # There may be a pause behind a word.
        length = min(stop - start, float(lasting.sum()) * LONGEST_PHONE) if len(spelled) > 1 else stop - start
        after = at + start + np.cumsum(lasting) / max(1.0, lasting.sum()) * length
        phones += word
        begins += [at + start, *after[:-1]][: len(word)]
        ends += after.tolist()
    return Said(tuple(phones), tuple(begins), tuple(ends))


LONGEST_PHONE = 0.09 * RATE


class Speller(nn.Module):
    """Reads phones from the first codes. Used in training alone.

    Twice: as a sequence (CTC), which is exact but begins to learn late, and frame by frame, with each phone
    about where it must be if all of them last as long as is usual.
    """

    def __init__(self) -> None:
        super().__init__()
        self.near = nn.Conv1d(WIDTH, 192, 3)
        self.sequence = nn.Conv1d(192, PHONES_A_FRAME * (len(PHONES) + 1), 1)
        self.frames = nn.Conv1d(192, len(PHONES) + 1, 1)

    def forward(self, latent: Tensor, said: list[Said]) -> tuple[Tensor, Tensor]:
        """latent [B, C, frames] -> CTC loss a phone, cross entropy a frame"""
        rows = [row for row, one in enumerate(said) if one.phones]
        if not rows:
            return latent.sum() * 0, latent.sum() * 0
        read = F.gelu(self.near(F.pad(latent[rows], (2, 0))))
        told = self.sequence(read)
        n_rows, _, n_frames = told.shape
        told = (
            told.view(n_rows, PHONES_A_FRAME, -1, n_frames).permute(3, 1, 0, 2).flatten(0, 1).log_softmax(-1)
        )
        lengths = [len(said[row].phones) for row in rows]
        targets = torch.tensor([phone for row in rows for phone in said[row].phones])
        times = [n_frames * PHONES_A_FRAME] * n_rows
        sequence = F.ctc_loss(told, targets, tuple(times), tuple(lengths), zero_infinity=True)
        about = torch.stack([roughly(said[row], n_frames) for row in rows])
        frames = F.cross_entropy(self.frames(read).transpose(1, 2).flatten(0, 1), about.flatten(0, 1))
        return sequence, frames


POINTS = 16


def roughly(said: Said, n_frames: int) -> Tensor:
    """Which phones a frame holds. [frames, phones + 1]; 0: none"""
    points = (torch.arange(n_frames * POINTS) + 0.5) * (FRAME / POINTS)
    begins, ends = torch.tensor(said.begins), torch.tensor(said.ends)
    index = torch.searchsorted(ends, points).clamp(max=len(ends) - 1)
    phone = torch.where(
        (points >= begins[index]) & (points < ends[index]), torch.tensor(said.phones)[index], 0
    )
    return F.one_hot(phone, len(PHONES) + 1).float().view(n_frames, POINTS, -1).mean(dim=1)


# ---- what it is trained on ----


class Chunks:
    """Stretches of the corpus: agents' first, as flite gives them, then users', as a line gives them."""

    def __init__(self, corpus: Path, seed: int, n_frames: int) -> None:
        self.agents, self.words = Speech(corpus, "agents"), Speech(corpus, "words")
        self.users = Speech(corpus, "users-train")
        self.rng, self.numbers = random.Random(seed), np.random.default_rng(seed)
        self.n_samples = n_frames * FRAME

    def batch(self, n_agents: int, n_users: int) -> tuple[Tensor, list[Said]]:
        """-> PCM [B, T], and what is said in each row (nothing where the row has not the whole of it)"""
        rows = [self.row(self.words if self.rng.random() < 0.25 else self.agents) for _ in range(n_agents)]
        for _ in range(n_users):
            pcm, said = self.row(self.users)
            rows.append((over_the_line(pcm, self.numbers), said))
        return torch.from_numpy(np.stack([pcm for pcm, _ in rows])), [said for _, said in rows]

    def row(self, speech: Speech) -> tuple[Pcm, Said]:
        """An utterance somewhere in a stretch of silence, or a part of a long one."""
        index = self.rng.randrange(len(speech))
        pcm, out = speech[index], np.zeros(self.n_samples, np.float32)
        # The last phone is known a little after it has been said.
        room = self.n_samples - 2 * FRAME - len(pcm)
        start = self.rng.randrange(room) if room > 0 else -self.rng.randrange(len(pcm) - self.n_samples // 2)
        part = pcm[max(0, -start) : self.n_samples - start]
        out[max(0, start) : max(0, start) + len(part)] = part
        return out, within(timed(speech.entries[index], start), self.n_samples - FRAME)


def within(said: Said, n_samples: int) -> Said:
    """The phones that are wholly between the first sample and another."""
    spans = [span for span in zip(*said, strict=True) if span[1] >= 0 and span[2] <= n_samples]
    return Said(*zip(*spans, strict=True)) if spans else Said()


# ---- the training ----

N_FRAMES = 30
N_WARM = 250
"""Steps without quantisation; then the codebooks begin as clusters of the latents."""


def train(corpus: Path, folder: Path, n_steps: int, n_workers: int) -> None:
    """Train everything; `mimi.pt` is the averaged state."""
    if not (folder / "mimi.pt").exists():
        in_workers(n_workers, train_worker, corpus, folder, n_steps)


def train_worker(rank: int, corpus: Path, folder: Path, n_steps: int) -> None:
    """One worker's share."""
    torch.manual_seed(1)
    mimi, speller, spectra = new_mimi(), Speller(), Spectra()
    mimi.train()
    training = Training("codec", folder, n_steps, rate=1e-3, betas=(0.85, 0.99), clip=2.0)
    training.take(mimi=mimi, speller=speller)
    chunks = Chunks(corpus, seed=1000 * training.step + rank, n_frames=N_FRAMES)
    n_warm = min(N_WARM, n_steps // 4)
    pool: list[Tensor] = []
    while not training.done:
        pcm, said = chunks.batch(2, 4)
        latent = encoded(mimi, pcm)
        quantizers = (mimi.quantizer.rvq_first, mimi.quantizer.rvq_rest)
        if training.step < n_warm:
            first, rest = (one.output_proj(one.input_proj(latent)) for one in quantizers)
            commitment = latent.new_zeros(())
            pool = [*pool[-40:], latent.detach()]
            if training.step == n_warm - 1:
                # Each codebook begins only after those before it.
                for _ in range(9):
                    mimi.quantizer(torch.cat(list(torch.cat(pool)), dim=1)[None], 12.5)
                pool = []
        else:
            results = [one(latent, 12.5) for one in quantizers]
            first, rest = (result.x for result in results)
            commitment = results[0].penalty / 8 + results[1].penalty * 7 / 8
        # Agents are what is to sound well; one user's row keeps the decoder from knowing nothing else.
        heard = slice(0, 3)
        sound = decoded(mimi, (first + rest)[heard])
        spectral = spectra(sound, pcm[heard], training.step)
        wave = (sound - pcm[heard]).abs().mean()
        sequence, frames = speller(first, said)
        # What the code has to choose from must be about phones, too.
        _, unquantised = speller(quantizers[0].output_proj(quantizers[0].input_proj(latent)), said)
        loss = spectral + wave + 0.1 * commitment + 0.2 * sequence + 0.5 * frames + 0.5 * unquantised
        training.update(
            loss,
            spectral=spectral,
            wave=wave,
            sequence=sequence,
            frames=frames,
            unquantised=unquantised,
            commitment=commitment,
        )
        training.log(every=50)
    if rank == 0:
        torch.save(training.averaged()["mimi"], folder / "mimi.pt")


def load(folder: Path, name: str = "mimi.pt") -> Any:
    """The trained codec."""
    mimi = new_mimi()
    mimi.load_state_dict(torch.load(folder / name, weights_only=True))
    return mimi.eval()
