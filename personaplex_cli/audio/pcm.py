"""PCM in and out: files, channels, resampling, loudness. The one door to soundfile, soxr, pyloudnorm."""

from __future__ import annotations

import errno
import math
import os
import re
import shutil
import stat
import warnings
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import soundfile
import soxr

from personaplex_cli.audio.formats import HEAD_BYTES, unreadable
from personaplex_cli.audio.headers import Header, View, read_header
from personaplex_cli.audio.quiet import quiet
from personaplex_cli.errors import AudioError
from personaplex_cli.interrupts import interrupts_held

Pcm: TypeAlias = npt.NDArray[np.float32]
"""Mono samples, full scale is +-1. [T]"""
Block: TypeAlias = npt.NDArray[np.float32]
"""The same of all channels. [T, channels]"""

READ_SECONDS = 10
BLOCK_SAMPLES = 1 << 22
"""Of all channels in one block, 16 MiB: a header's rate and channels shall not decide our memory."""
LOWEST_RATE, HIGHEST_RATE = 1000, 768_000
"""Hz. No recorder is slower or faster; a resampler for such a step would take memory without end."""
HIGHEST_PEAK = 32.0
"""30 dB over full scale: no float audio goes there, and of integers stored as floats only near silence stays
below."""
INTEGER_SCALES = (1 << 15, 1 << 23, 1 << 31)
MOST_SAMPLES_PER_BYTE = 5000
"""FLAC's silence, the densest there is, holds 65,535 samples in 14 bytes. A header that says more lies."""
NO_FRAME_COUNT = 1 << 62
"""libsndfile's frames where it does not know them are more."""
BYTES_PER_SAMPLE = {"PCM_S8": 1, "PCM_U8": 1, "PCM_16": 2, "PCM_24": 3, "PCM_32": 4, "FLOAT": 4, "DOUBLE": 8}
FAULTS_IN_LOG = {
    re.compile(r"Last page lacks an end-of-stream bit"): "truncated: the stream's end is missing",
    re.compile(r"Corrupted bitstream|reports a hole"): "damaged: parts cannot be decoded and are left out",
}
"""What libsndfile says of Ogg in its log only, and what it means."""
PLAIN_WORDS = {
    "Internal error : SF_INFO struct incomplete.": "its header gives no usable sample rate or encoding",
    "Unspecified internal error.": "its header is broken",
    "File does not exist or is not a regular file (possibly a pipe?).": "broken MPEG audio",
}
"""libsndfile's words that help nobody."""
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
    samples at `sample_rate`. fix_nonfinite: NaN and infinite samples become 0 instead of an error.
    longest_seconds: what is longer is refused. called: the name in messages, if it is not the path (a copy).
    """

    path: Path
    sample_rate: int
    channel: str = "0"
    n_before: int = 0
    n_after: int = 0
    fix_nonfinite: bool = False
    longest_seconds: float = math.inf
    called: Path | None = None
    source_sample_rate: int = 0
    n_source_samples: int = 0
    n_clipped: int = 0
    n_nonfinite: int = 0
    warnings: list[str] = field(default_factory=list)

    @property
    def name(self) -> Path:
        """What it is called in messages."""
        return self.called or self.path

    @property
    def n_samples(self) -> int:
        """Samples at `sample_rate`, silence included; known when it has been read."""
        return self.n_before + self.n_resampled + self.n_after

    @property
    def n_resampled(self) -> int:
        """Samples of the recording itself at `sample_rate`."""
        return round_half_up(self.n_source_samples * self.sample_rate, self.source_sample_rate)

    def promised_seconds(self) -> float:
        """What the header promises; 0 where it promises nothing that can be true, and for a pipe, unopened.

        Raises AudioError for all that the header shows.
        """
        if is_read_once(self.path):
            return 0.0
        with open_audio(self.path, self.name) as opened:
            self.check(opened)
            return opened.promised_seconds

    def blocks(self) -> Iterator[Pcm]:
        """Mono blocks at `sample_rate`. Raises AudioError for what cannot be used."""
        with open_audio(self.path, self.name) as opened:
            self.check(opened)
            audio = opened.audio
            self.source_sample_rate = audio.samplerate
            self.warnings += opened.remarks
            if self.n_before:
                yield np.zeros(self.n_before, np.float32)
            yield from resample(self.source_blocks(audio), audio.samplerate, self.sample_rate)
            if self.n_after:
                yield np.zeros(self.n_after, np.float32)
            self.warnings += self.faults(audio)
        if not self.n_resampled:
            raise AudioError(f"{self.name}: no audio: the file holds {self.n_source_samples} samples")

    def check(self, opened: Opened) -> None:
        """Refuse what the header shows to be of no use, before a sample is read."""
        audio = opened.audio
        if not LOWEST_RATE <= audio.samplerate <= HIGHEST_RATE:
            raise AudioError(
                f"{self.name}: a sample rate of {audio.samplerate} Hz cannot be right; "
                f"{LOWEST_RATE} to {HIGHEST_RATE} Hz can be read"
            )
        if self.channel != "mix" and not int(self.channel) < audio.channels:
            raise AudioError(
                f"{self.name}: has no channel {self.channel}; it has {audio.channels}, counted from 0"
            )
        if opened.promised_seconds > self.longest_seconds:
            raise AudioError(
                f"{self.name}: is {opened.promised_seconds:.6g} s long, "
                f"more than --max-duration {self.longest_seconds:g} s"
            )

    def source_blocks(self, audio: Stream) -> Iterator[Pcm]:
        """Mono blocks at the file's own rate, checked."""
        n_frames = min(READ_SECONDS * audio.samplerate, BLOCK_SAMPLES // audio.channels)
        whole = True
        while whole:
            block, whole = self.read(audio, n_frames)
            if not len(block):
                return
            mono = self.heard(block, is_float=audio.subtype in ("FLOAT", "DOUBLE"))
            self.n_source_samples += len(mono)
            if self.n_source_samples > self.longest_seconds * audio.samplerate:
                raise AudioError(f"{self.name}: is longer than --max-duration {self.longest_seconds:g} s")
            yield mono

    def read(self, audio: Stream, n_frames: int) -> tuple[Block, bool]:
        """The next frames, and whether nothing was in their way: what was decoded before a fault is used."""
        block = np.empty((n_frames, audio.channels), np.float32)
        try:
            with interrupts_held(), quiet() if audio.subtype.startswith("MPEG") else nullcontext():
                got = audio.read(out=block)
            audio.check()
            return got, True
        except (soundfile.LibsndfileError, RuntimeError) as error:
            n_decoded = audio.tell() - self.n_source_samples
            if not self.n_source_samples + n_decoded:
                raise AudioError(f"{self.name}: cannot be decoded: {reason_of(error)}") from error
            return block[:n_decoded], False
        except OSError as error:
            raise AudioError(f"{self.name}: cannot be read: {error.strerror or error}") from error

    def heard(self, block: Block, *, is_float: bool) -> Pcm:
        """What is listened to in a block, without what are no samples. [T, channels] -> [T]"""
        mix = self.channel == "mix"
        chosen = block if mix else np.ascontiguousarray(block[:, int(self.channel), np.newaxis])
        peak = peak_of(chosen)
        if not math.isfinite(peak):
            chosen = self.without_nonfinite(chosen)
            peak = peak_of(chosen)
        if is_float and peak > HIGHEST_PEAK:
            raise AudioError(f"{self.name}: peak {peak:g}, where 1 is full scale: {hint_for(peak)}")
        mono: Pcm = chosen.mean(axis=1, dtype=np.float32) if mix else chosen[:, 0]
        if peak > 1.0:
            self.n_clipped += int(np.count_nonzero(np.abs(mono) > 1.0))
        return mono

    def without_nonfinite(self, chosen: Block) -> Block:
        """NaN and infinite samples as 0, counted by moment; an error unless that is wished for."""
        if not self.fix_nonfinite:
            raise AudioError(
                f"{self.name}: holds NaN or infinite samples; repair the file, "
                "or let --fix-nonfinite replace them by 0"
            )
        finite = np.isfinite(chosen)
        self.n_nonfinite += int(np.count_nonzero(~finite.all(axis=1)))
        return np.where(finite, chosen, np.float32(0))

    def faults(self, audio: Stream) -> Iterator[str]:
        """What the record shall tell of a file that has been read to its end."""
        if self.n_nonfinite:
            yield f"replaced {self.n_nonfinite} NaN or infinite samples by 0"
        if self.n_source_samples < audio.frames < NO_FRAME_COUNT:
            yield f"truncated: {self.n_source_samples} of {audio.frames} samples are there"
        log = audio.extra_info
        yield from (meaning for words, meaning in FAULTS_IN_LOG.items() if words.search(log))


class Stream(soundfile.SoundFile):  # type: ignore[misc]
    """A file that is read from start to end only.

    Of one that can seek, soundfile seeks after every read; in an MP3 that spoils the samples that follow.
    """

    def seekable(self) -> bool:
        """Not."""
        return False

    def check(self) -> None:
        """OSError where libsndfile has been told of an end because the file could not be read."""
        if isinstance(self.name, View) and self.name.trouble:
            raise self.name.trouble


@dataclass(frozen=True)
class Opened:
    """An open file, what its header promises, and what is wrong with it."""

    audio: Stream
    promised_seconds: float
    remarks: tuple[str, ...] = ()


@contextmanager
def open_audio(path: Path, name: Path) -> Iterator[Opened]:
    """Open by content, with an error for people, who know the file by that name."""
    if path.is_socket():
        raise AudioError(f"{name}: a socket, which cannot be read as a file; give a file or a pipe")
    with ExitStack() as opened:
        try:
            file = opened.enter_context(path.open("rb"))
            found = os.fstat(file.fileno())
            header = read_header(file) if stat.S_ISREG(found.st_mode) else None
            file.seek(0)
            head = file.read(HEAD_BYTES)
        except FileNotFoundError as error:
            raise AudioError(f"{name}: no such file") from error
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise AudioError(f"{name}: cannot be read: {reason}") from error
        if not stat.S_ISREG(found.st_mode):
            raise AudioError(f"{name}: no file; save its sound to one")
        if not found.st_size:
            raise AudioError(f"{name}: no audio: the file is empty")
        # It refuses a str that is not Unicode, and takes a lone - for standard input.
        source: bytes | View = os.fsencode(path.absolute())
        if header and header.replaced:
            source = View(file, header.replaced, header.n_file_bytes)
        audio = opened.enter_context(stream_of(source, name, head))
        yield Opened(audio, promised_seconds(audio, found.st_size), tuple(remarks_on(header, audio)))


def remarks_on(header: Header | None, audio: Stream) -> Iterator[str]:
    """What the record shall tell of a file's header."""
    if header is None:
        return
    if header.remark:
        yield header.remark
        return
    frame_bytes = audio.channels * BYTES_PER_SAMPLE.get(audio.subtype, 0)
    # Other frame counts are libsndfile's own affair: padded samples, or a header that contradicts itself.
    if not frame_bytes or header.n_sample_bytes // frame_bytes != audio.frames:
        return
    if n_left := header.n_sample_bytes % frame_bytes:
        yield f"the last sample is incomplete: {n_left} of its {frame_bytes} bytes are there"


def stream_of(source: bytes | View, name: Path, head: bytes) -> Stream:
    """The decoder of a file, given by its path or as a view. `head`: its first bytes, to say what it is."""
    try:
        # A signal would be lost on its way through C. And libmpg123 tells the terminal what it thinks of an
        # MP3, libsndfile of an SDS file.
        with interrupts_held(), quiet():
            audio = Stream(source)
        audio.check()
        return audio
    except (soundfile.LibsndfileError, RuntimeError, OSError, TypeError) as error:
        if isinstance(source, View) and source.trouble:
            raise AudioError(f"{name}: cannot be read: {source.trouble.strerror}") from error
        reason = reason_of(error)
        known = unreadable(name, head)
        if "No 'data' chunk" in reason and not known:
            known = "no audio: the header is all there is, or it is broken"
        raise AudioError(f"{name}: {known or f'not audio that can be read: {reason}'}") from error


def is_read_once(path: Path) -> bool:
    """Whether it is a pipe or the like."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)


def promised_seconds(audio: Stream, n_bytes: int) -> float:
    """A header's word, as far as a file of that many bytes can keep it; else 0."""
    n_frames = int(audio.frames)
    return n_frames / audio.samplerate if 0 < n_frames <= n_bytes * MOST_SAMPLES_PER_BYTE else 0.0


def reason_of(error: Exception) -> str:
    """libsndfile's reason, without the path, which soundfile puts before it."""
    reason = str(getattr(error, "error_string", error))
    return PLAIN_WORDS.get(reason, reason or "its data is damaged")


def peak_of(block: Block) -> float:
    """The largest magnitude; NaN or infinite if one sample is."""
    return max(float(block.max()), -float(block.min()))


def hint_for(peak: float) -> str:
    """Why floats may be so large."""
    for scale in INTEGER_SCALES:
        if peak <= scale:
            return f"integers stored as floats? divide by {scale}"
    return "these are no samples of sound"


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
    # scipy stands behind it and takes most of a second to import: for recorded voices alone.
    import pyloudnorm

    loudness = pyloudnorm.Meter(sample_rate).integrated_loudness(pcm)
    if not np.isfinite(loudness):
        raise AudioError(f"{path}: a silent voice cannot be brought to {VOICE_LUFS:.0f} LUFS")
    with warnings.catch_warnings():
        # A peak over full scale is no fault here: the codec takes it, as in the reference.
        warnings.simplefilter("ignore")
        normed = pyloudnorm.normalize.loudness(pcm, loudness, VOICE_LUFS)
    return np.asarray(normed, np.float32)


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
        number = errno.ENOSPC if full else errno.EIO
        raise OSError(number, os.strerror(number), str(path)) from error
    return n_clamped
