"""PCM in and out: files, channels, resampling, loudness. The one door to soundfile, soxr, pyloudnorm."""

from __future__ import annotations

import errno
import os
import re
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyloudnorm
import soundfile
import soxr

from personaplex_cli.errors import AudioError

Pcm: TypeAlias = npt.NDArray[np.float32]
"""Mono samples, full scale is +-1. [T]"""

READ_SECONDS = 10
CUT_OFF = re.compile(r"^\s*(?:data|SSND|riff|Riff size)\s*: (\d+) \(should be (\d+)\)", re.MULTILINE)
"""How libsndfile's log tells that a header promises more bytes than there are; its frame count does not."""
VOICE_LUFS = -24.0
"""What the reference brings a voice sample to (BS.1770)."""
SHORTEST_VOICE_SECONDS = 0.4
"""One gating block of BS.1770: less has no loudness."""
FULL_SCALE = 1 << 15
"""Of PCM_16. Reading divides by it, so a 16-bit recording is written back unchanged."""


@dataclass
class Recording:
    """One audio file, read in blocks. The counts grow as it is read.

    channel: an index from 0, or "mix" for the mean of all. n_before, n_after: silence to put beside it, in
    samples at `sample_rate`.
    """

    path: Path
    sample_rate: int
    channel: str = "0"
    n_before: int = 0
    n_after: int = 0
    source_sample_rate: int = 0
    n_source_samples: int = 0
    n_clipped: int = 0
    warnings: list[str] = field(default_factory=list)

    @property
    def n_samples(self) -> int:
        """Samples at `sample_rate`, silence included; known when it has been read."""
        return self.n_before + self.n_resampled + self.n_after

    @property
    def n_resampled(self) -> int:
        """Samples of the recording itself at `sample_rate`."""
        return round_half_up(self.n_source_samples * self.sample_rate, self.source_sample_rate)

    def blocks(self) -> Iterator[Pcm]:
        """Mono blocks at `sample_rate`. Raises AudioError for what cannot be used."""
        with open_audio(self.path) as audio:
            self.source_sample_rate = audio.samplerate
            promised = audio.frames
            if cut_off := CUT_OFF.search(audio.extra_info):
                self.warnings.append("truncated: {1} of {0} bytes are there".format(*cut_off.groups()))
            if self.n_before:
                yield np.zeros(self.n_before, np.float32)
            yield from resample(self.source_blocks(audio), audio.samplerate, self.sample_rate)
            if self.n_after:
                yield np.zeros(self.n_after, np.float32)
        if not self.n_resampled:
            raise AudioError(f"{self.path}: no audio: the file holds {self.n_source_samples} samples")
        if promised > self.n_source_samples and promised < 1 << 62:
            self.warnings.append(f"truncated: {self.n_source_samples} of {promised} samples are there")

    def source_blocks(self, audio: soundfile.SoundFile) -> Iterator[Pcm]:
        """Mono blocks at the file's own rate, checked."""
        pick = channel_picker(self.channel, audio.channels, self.path)
        while True:
            try:
                block = audio.read(READ_SECONDS * audio.samplerate, dtype="float32", always_2d=True)
            except (soundfile.LibsndfileError, RuntimeError) as error:
                raise AudioError(f"{self.path}: cannot be decoded: {error}") from error
            if not len(block):
                return
            mono = pick(block)
            if not np.isfinite(mono).all():
                raise AudioError(f"{self.path}: holds NaN or infinite samples; repair the file")
            self.n_source_samples += len(mono)
            self.n_clipped += int(np.count_nonzero(np.abs(mono) > 1.0))
            yield mono


def open_audio(path: Path) -> soundfile.SoundFile:
    """Open by content, with an error for people."""
    try:
        return soundfile.SoundFile(os.fsencode(path))  # It refuses a str that is not Unicode.
    except (soundfile.LibsndfileError, RuntimeError, OSError, TypeError) as error:
        if path.is_file() and not path.stat().st_size:
            raise AudioError(f"{path}: no audio: the file is empty") from error
        if not path.exists():
            raise AudioError(f"{path}: no such file") from error
        reason = getattr(error, "error_string", error)  # Without the path, which soundfile puts before it.
        raise AudioError(f"{path}: not audio that can be read: {reason}") from error


def channel_picker(channel: str, n_channels: int, path: Path) -> Callable[[npt.NDArray[np.float32]], Pcm]:
    """What turns [T, channels] into [T]."""
    if channel == "mix":
        return lambda block: block.mean(axis=1, dtype=np.float32)
    index = int(channel)
    if not index < n_channels:
        raise AudioError(f"{path}: has no channel {index}; it has {n_channels}, counted from 0")
    return lambda block: np.ascontiguousarray(block[:, index])


def round_half_up(numerator: int, denominator: int) -> int:
    """Exact on integers of any size."""
    return (2 * numerator + denominator) // (2 * denominator)


def resample(blocks: Iterable[Pcm], source_rate: int, target_rate: int) -> Iterator[Pcm]:
    """Band-limited resampling without delay, block by block; exactly round(n * target / source) samples.

    The same rate is the identity. (The reference's sphn.resample delays the signal by 12 to 64 ms, depending
    on the rate; ours keeps each moment where it was.)
    """
    if source_rate == target_rate:
        yield from blocks
        return
    stream = soxr.ResampleStream(source_rate, target_rate, 1, dtype="float32", quality="VHQ")
    n_in = n_out = 0
    for block in blocks:
        n_in += len(block)
        out = stream.resample_chunk(block)
        n_out += len(out)
        yield out
    rest = stream.resample_chunk(np.zeros(0, np.float32), last=True)
    n_left = round_half_up(n_in * target_rate, source_rate) - n_out
    yield np.pad(rest, (0, max(0, n_left - len(rest))))[:n_left]


def whole_frames(blocks: Iterable[Pcm], chunk_samples: int, samples_per_frame: int) -> Iterator[Pcm]:
    """Cut blocks of any length anew: chunks of `chunk_samples`, the last filled up to a whole frame."""
    left: list[Pcm] = []
    n_left = 0
    for block in blocks:
        left.append(block)
        n_left += len(block)
        if n_left >= chunk_samples:
            joined = np.concatenate(left)
            n_whole = n_left - n_left % chunk_samples
            yield from np.split(joined[:n_whole], n_whole // chunk_samples)
            left, n_left = [joined[n_whole:]], n_left % chunk_samples
    if n_left:
        yield np.pad(np.concatenate(left), (0, -n_left % samples_per_frame))


def read_voice(path: Path, sample_rate: int) -> Pcm:
    """A voice sample as the reference prepares it: channel 0, resampled, brought to -24 LUFS. -> [T]"""
    pcm = np.concatenate(list(Recording(path, sample_rate).blocks()))
    if len(pcm) < SHORTEST_VOICE_SECONDS * sample_rate:
        seconds = len(pcm) / sample_rate
        raise AudioError(
            f"{path}: a voice of {seconds:.2f} s is too short; {SHORTEST_VOICE_SECONDS} s at least"
        )
    loudness = pyloudnorm.Meter(sample_rate).integrated_loudness(pcm)
    if not np.isfinite(loudness):
        raise AudioError(f"{path}: a silent voice cannot be brought to {VOICE_LUFS:.0f} LUFS")
    with warnings.catch_warnings():
        # A peak over full scale is no fault here: the codec takes it, as in the reference.
        warnings.simplefilter("ignore")
        normed = pyloudnorm.normalize.loudness(pcm, loudness, VOICE_LUFS)
    return np.asarray(normed, np.float32)


def seconds_of(path: Path) -> float:
    """What a file's header promises, for estimates. 0 if it cannot be read, or only once (a pipe)."""
    if not path.is_file():
        return 0.0
    try:
        return float(soundfile.info(os.fsencode(path)).duration)
    except (soundfile.LibsndfileError, RuntimeError, OSError, TypeError):
        return 0.0


def side_by_side(left: Iterable[Pcm], right: Iterable[Pcm]) -> Iterator[Pcm]:
    """Two mono streams in equal blocks -> stereo blocks [T, 2]. AudioError where they are not equal."""
    nothing: Pcm = np.zeros(0, np.float32)
    for one, other in zip_longest(left, right, fillvalue=nothing):
        if len(one) != len(other):
            raise AudioError("the recording has changed since it was read; run again")
        yield np.stack([one, other], axis=1)


def fit(blocks: Iterable[Pcm], n_samples: int) -> Iterator[Pcm]:
    """Cut blocks [T, ...] to `n_samples` in all; the codec's whole frames are never fewer."""
    for block in blocks:
        yield block[:n_samples]
        n_samples = max(0, n_samples - len(block))


def write_wav(path: Path, blocks: Iterable[Pcm], sample_rate: int, n_channels: int = 1) -> int:
    """Write blocks [T] or [T, channels] as PCM_16, clamped to full scale.

    Gives back how many samples of the last channel, the reply's, were clamped.
    Raises OSError when the disk takes no more, which libsndfile reports as an error of its own.
    """
    n_clamped = 0
    try:
        name = os.fsencode(path)
        with soundfile.SoundFile(name, "w", sample_rate, n_channels, "PCM_16", format="WAV") as wav:
            for block in blocks:
                n_clamped += int(np.count_nonzero(np.abs(block[..., -1] if block.ndim > 1 else block) > 1.0))
                # Rounded by us: libsndfile cuts off, half a step below the truth on average.
                steps = np.rint(block * FULL_SCALE).clip(-FULL_SCALE, FULL_SCALE - 1)
                wav.write(steps.astype(np.int16))
    except soundfile.LibsndfileError as error:
        full = shutil.disk_usage(path.parent).free < 1 << 20
        raise OSError(errno.ENOSPC if full else errno.EIO, str(error)) from error
    return n_clamped
