"""PCM in and out: every format's scale, every rate's length, and no sample lost on the way."""

from __future__ import annotations

import errno
import os
import re
import signal
import struct
import tracemalloc
import wave
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyloudnorm
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from personaplex_cli.audio import headers, pcm
from personaplex_cli.audio.pcm import (
    Pcm,
    Recording,
    fit,
    read_voice,
    resample,
    round_half_up,
    side_by_side,
    whole_frames,
    write_wav,
)
from personaplex_cli.errors import AudioError
from tests.conftest import GOLDEN
from tests.helpers import record, sound

RATES = [8000, 11025, 16000, 22050, 44100, 48000, 96000, 192000]
LENGTHS = st.lists(st.integers(0, 50), max_size=12)


def sine(n_samples: int, sample_rate: int, hertz: float = 440.0) -> npt.NDArray[np.float64]:
    return np.sin(2 * np.pi * hertz * np.arange(n_samples) / sample_rate)


def heard(path: Path, sample_rate: int = 24000, channel: str = "0", **options: Any) -> tuple[Pcm, Recording]:
    recording = Recording(path, sample_rate, channel, **options)
    return np.concatenate(list(recording.blocks())), recording


def refusal(path: Path, channel: str = "0", **options: Any) -> str:
    with pytest.raises(AudioError) as caught:
        heard(path, channel=channel, **options)
    return caught.value.message


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def chunk(name: bytes, content: bytes, *, padded: bool = True) -> bytes:
    """A chunk of a WAV."""
    return name + struct.pack("<I", len(content)) + content + bytes(len(content) % 2 * padded)


def fmt(tag: int = 1, n_channels: int = 1, sample_rate: int = 24000) -> bytes:
    """A WAV's fmt chunk, 16 bits a sample."""
    rest = (sample_rate * 2 * n_channels % 2**32, n_channels * 2 % 2**16, 16)
    return chunk(b"fmt ", struct.pack("<HHIIHH", tag, n_channels, sample_rate, *rest))


def wav(*chunks: bytes) -> bytes:
    body = b"WAVE" + b"".join(chunks)
    return b"RIFF" + struct.pack("<I", len(body)) + body


STEPS = np.arange(-500, 500, dtype="<i2")
LIST = chunk(b"LIST", b"INFOISFT\4\0\0\0rec\0")


def cut(whole: npt.NDArray[np.float32], lengths: Iterable[int]) -> Iterator[Pcm]:
    """Blocks of the given lengths, over and over."""
    begin = 0
    for length in lengths:
        yield whole[begin : begin + length]
        begin += length
    yield whole[begin:]


def counted(n_samples: int) -> Pcm:
    return np.arange(1, n_samples + 1, dtype=np.float32)


# ---- scale ----


@pytest.mark.parametrize("n_bytes", [1, 2, 3, 4])
def test_an_integer_sine_of_full_scale_is_a_sine_of_full_scale(tmp_path: Path, n_bytes: int) -> None:
    full_scale = 1 << (8 * n_bytes - 1)
    expected = sine(2400, 24000, 1000.0)
    steps = np.rint(expected * (full_scale - 1)).astype("<i8") + (128 if n_bytes == 1 else 0)
    with wave.open(str(tmp_path / "a.wav"), "wb") as file:
        file.setparams((1, n_bytes, 24000, 0, "NONE", ""))
        file.writeframes(steps.view("u1").reshape(-1, 8)[:, :n_bytes].tobytes())
    samples, recording = heard(tmp_path / "a.wav")
    assert np.abs(samples - expected).max() <= 2 / full_scale + 1e-7
    assert recording.n_clipped == 0


@pytest.mark.parametrize(
    ("subtype", "error"), [("FLOAT", 1e-7), ("DOUBLE", 1e-7), ("ALAW", 0.02), ("ULAW", 0.02)]
)
def test_a_sine_of_full_scale_survives_every_number_type(tmp_path: Path, subtype: str, error: float) -> None:
    expected = sine(2400, 24000, 1000.0)
    soundfile.write(tmp_path / "a.wav", expected, 24000, subtype)
    samples, _ = heard(tmp_path / "a.wav")
    assert np.abs(samples).max() == pytest.approx(1.0, abs=error)
    assert np.abs(samples - expected).max() <= error * 1.1


@pytest.mark.parametrize("container", ["FLAC", "AIFF", "W64", "RF64", "WAVEX"])
def test_a_file_is_read_by_its_content_whatever_its_name(tmp_path: Path, container: str) -> None:
    expected = 0.5 * sine(2400, 24000)
    soundfile.write(tmp_path / "a.mp3", expected, 24000, "PCM_16", format=container)
    samples, _ = heard(tmp_path / "a.mp3")
    assert np.abs(samples - expected).max() <= 1 / 32768


# ---- resampling ----


@pytest.mark.parametrize("rate", RATES)
def test_a_sine_stays_that_sine_at_every_rate_without_delay(tmp_path: Path, rate: int) -> None:
    soundfile.write(tmp_path / "a.wav", 0.9 * sine(rate, rate), rate, "FLOAT")
    samples, recording = heard(tmp_path / "a.wav")
    assert len(samples) == recording.n_samples == 24000
    inner = slice(1200, -1200)
    assert np.abs(samples - 0.9 * sine(24000, 24000))[inner].max() < 1e-3


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("n_samples", [1, 2, 7, 1919, 1920, 1921, 10007])
def test_a_recording_is_exactly_as_long_as_its_rate_says(tmp_path: Path, rate: int, n_samples: int) -> None:
    soundfile.write(tmp_path / "a.wav", 0.1 * sine(n_samples, rate), rate)
    n_expected = (2 * n_samples * 24000 + rate) // (2 * rate)
    if not n_expected:
        with pytest.raises(AudioError, match=f"no audio: the file holds {n_samples} samples"):
            heard(tmp_path / "a.wav")
        return
    samples, recording = heard(tmp_path / "a.wav")
    assert len(samples) == recording.n_samples == n_expected
    assert recording.source_sample_rate == rate


@given(st.integers(0, 10**12), st.integers(1, 10**7))
def test_halves_are_rounded_up(numerator: int, denominator: int) -> None:
    rounded = round_half_up(numerator, denominator)
    assert 2 * numerator - denominator < 2 * rounded * denominator <= 2 * numerator + denominator


def test_the_same_rate_changes_nothing() -> None:
    blocks = [counted(5), counted(3)]
    assert [block is kept for block, kept in zip(blocks, resample(blocks, 8000, 8000), strict=True)]


@settings(max_examples=20, deadline=None)
@given(rate=st.sampled_from(RATES), lengths=st.lists(st.integers(0, 700), max_size=8))
def test_resampling_block_by_block_equals_resampling_the_whole(rate: int, lengths: list[int]) -> None:
    whole = sound(0.05, sample_rate=rate).astype(np.float32)
    at_once = np.concatenate(list(resample([whole], rate, 24000)))
    in_blocks = np.concatenate(list(resample(cut(whole, lengths), rate, 24000)))
    np.testing.assert_allclose(in_blocks, at_once, rtol=0, atol=1e-6)


def test_a_long_recording_read_in_many_blocks_equals_one_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(tmp_path / "a.wav", 3.3, sample_rate=16000)
    whole, _ = heard(tmp_path / "a.wav")
    monkeypatch.setattr(pcm, "READ_SECONDS", 1)
    blocks = list(Recording(tmp_path / "a.wav", 24000).blocks())
    assert len(blocks) > 3
    np.testing.assert_allclose(np.concatenate(blocks), whole, rtol=0, atol=1e-6)


# ---- channels ----


@pytest.mark.parametrize(("channel", "level"), [("0", 0.5), ("1", -0.25), ("2", 0.125), ("mix", 0.125)])
def test_a_channel_is_chosen_by_its_number_or_all_are_mixed(
    tmp_path: Path, channel: str, level: float
) -> None:
    soundfile.write(tmp_path / "a.wav", np.tile([0.5, -0.25, 0.125], (100, 1)), 24000, "FLOAT")
    samples, _ = heard(tmp_path / "a.wav", channel=channel)
    np.testing.assert_allclose(samples, np.full(100, level), atol=1e-7)


@pytest.mark.parametrize(("channel", "level"), [("0", 0.5), ("5", 0.0625), ("mix", 0.125)])
def test_of_surround_sound_a_channel_or_the_mix_is_heard(tmp_path: Path, channel: str, level: float) -> None:
    levels = [0.5, -0.25, 0.125, 0.25, 0.0625, 0.0625]
    soundfile.write(tmp_path / "a.wav", np.tile(levels, (1921, 1)), 24000, "PCM_24", format="WAVEX")
    samples, _ = heard(tmp_path / "a.wav", channel=channel)
    np.testing.assert_allclose(samples, np.full(1921, level), atol=1e-7)


def test_a_channel_that_is_not_there_is_that_files_error(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", np.zeros((100, 2)), 24000)
    assert refusal(tmp_path / "a.wav", "2").endswith("has no channel 2; it has 2, counted from 0")


# ---- what cannot be used, and what can all the same ----


def test_files_without_audio_are_refused_with_their_reason(tmp_path: Path) -> None:
    (tmp_path / "empty.wav").touch()
    (tmp_path / "text.wav").write_text("no audio at all")
    soundfile.write(tmp_path / "header.wav", np.zeros(0), 24000)
    soundfile.write(tmp_path / "telephone.wav", np.zeros(0), 8000)
    assert refusal(tmp_path / "empty.wav").endswith("empty.wav: no audio: the file is empty")
    assert refusal(tmp_path / "text.wav").endswith("text.wav: not audio that can be read: it is text")
    assert refusal(tmp_path / "header.wav").endswith("no audio: the file holds 0 samples")
    assert refusal(tmp_path / "telephone.wav").endswith("no audio: the file holds 0 samples")
    assert refusal(tmp_path / "gone.wav").endswith("gone.wav: no such file")
    assert refusal(tmp_path).endswith(": cannot be read: Is a directory")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_samples_that_are_no_numbers_are_refused(tmp_path: Path, bad: float) -> None:
    samples = sine(2400, 24000)
    samples[1234] = bad
    soundfile.write(tmp_path / "a.wav", samples, 24000, "FLOAT")
    assert "holds NaN or infinite samples" in refusal(tmp_path / "a.wav")


def test_the_nan_of_a_channel_that_is_not_heard_does_not_matter(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", np.tile([0.5, np.nan], (100, 1)), 24000, "FLOAT")
    samples, _ = heard(tmp_path / "a.wav")
    assert samples.tolist() == [0.5] * 100


def test_samples_beyond_full_scale_are_kept_and_counted(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", np.array([0.5, 1.5, -2.0, 1.0, -1.0]), 24000, "FLOAT")
    samples, recording = heard(tmp_path / "a.wav")
    assert samples.tolist() == [0.5, 1.5, -2.0, 1.0, -1.0]
    assert recording.n_clipped == 2


@pytest.mark.parametrize("container", ["WAV", "AIFF", "W64", "RF64", "AU", "CAF"])
def test_what_a_truncated_file_still_holds_is_used_with_a_warning(tmp_path: Path, container: str) -> None:
    whole, cut_off = tmp_path / "whole", tmp_path / "cut_off"
    soundfile.write(whole, sound(2.0), 24000, "PCM_16", format=container)
    cut_off.write_bytes(whole.read_bytes()[:50_001])
    expected, undisturbed = heard(whole)
    samples, recording = heard(cut_off)
    assert 22_900 < len(samples) == recording.n_samples < 25_000
    assert samples.tolist() == expected[: len(samples)].tolist()
    assert [warning.split(":")[0] for warning in recording.warnings] == ["truncated"]
    assert undisturbed.warnings == []


@pytest.mark.parametrize("promised", [0xFFFFFFFE, 0x40000000, 96_001])
def test_a_wav_whose_writer_never_came_back_to_its_header_gives_what_is_there(
    tmp_path: Path, promised: int
) -> None:
    content = bytearray(record(tmp_path / "whole.wav", 2.0).read_bytes())
    assert content[36:40] == b"data"
    content[40:44] = promised.to_bytes(4, "little")
    (tmp_path / "a.wav").write_bytes(content)
    samples, recording = heard(tmp_path / "a.wav")
    assert samples.tolist() == heard(tmp_path / "whole.wav")[0].tolist()
    assert recording.warnings == [f"truncated: 96000 of {promised} bytes are there"]


def test_a_compressed_file_that_ends_too_early_is_warned_of_in_samples(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    soundfile.write(tmp_path / "whole.mp3", sound(2.0), 24000, "MPEG_LAYER_III", format="MP3")
    content = (tmp_path / "whole.mp3").read_bytes()
    (tmp_path / "a.mp3").write_bytes(content[: len(content) // 2])
    samples, recording = heard(tmp_path / "a.mp3")
    assert capfd.readouterr() == ("", "")
    assert 0 < len(samples) < 48_000
    assert recording.warnings == [f"truncated: {len(samples)} of 48000 samples are there"]


# ---- headers that lie, and files cut short ----


@pytest.mark.parametrize("size", [0, 0xFFFFFFFF])
@pytest.mark.parametrize("riff_size", [0, 0xFFFFFFFF, 2036])
@pytest.mark.parametrize("tail", [b"", b"\7"])
def test_a_wav_without_a_length_gives_all_that_is_there(
    tmp_path: Path, size: int, riff_size: int, tail: bytes
) -> None:
    content = wav(LIST, fmt(), b"data" + struct.pack("<I", size) + STEPS.tobytes() + tail)
    content = content[:4] + struct.pack("<I", riff_size) + content[8:]
    samples, recording = heard(written(tmp_path / "a.wav", content))
    assert (samples * 32768).tolist() == STEPS.tolist()
    assert recording.warnings == [
        f"the header gives no length (was its writer stopped?): all {2000 + len(tail)} bytes there are used"
    ]
    assert recording.promised_seconds() == 1000 / 24000


SIZE_FIELDS = {
    "RF64": (b"ds64", 16, "<Q", [0, 2**64 - 1]),
    "W64": (b"data\xf3\xac", 16, "<Q", [0, 24, 2**64 - 1]),
    "AIFF": (b"SSND", 4, ">I", [0, 8, 2**32 - 1]),
    "AU": (b".snd", 8, ">I", [0, 2**32 - 1]),
    "CAF": (b"data", 4, ">Q", [0, 4, 2**64 - 1]),
}


@pytest.mark.parametrize("container", SIZE_FIELDS)
def test_other_containers_without_a_length_give_all_that_is_there(tmp_path: Path, container: str) -> None:
    name, offset, size_format, sizes = SIZE_FIELDS[container]
    soundfile.write(tmp_path / "whole", STEPS, 24000, "PCM_16", format=container)
    content = bytearray((tmp_path / "whole").read_bytes())
    for size in sizes:
        struct.pack_into(size_format, content, content.index(name) + offset, size)
        samples, recording = heard(written(tmp_path / "a", content))
        assert (samples * 32768).tolist() == STEPS.tolist()
        assert [warning[:27] for warning in recording.warnings] == ["the header gives no length "]


@pytest.mark.parametrize("container", ["WAV", *SIZE_FIELDS])
def test_an_empty_file_of_every_container_is_no_audio(tmp_path: Path, container: str) -> None:
    soundfile.write(tmp_path / "a", STEPS[:0], 24000, "PCM_16", format=container)
    assert "no audio" in refusal(tmp_path / "a")


def test_the_tags_after_an_empty_data_chunk_are_not_heard(tmp_path: Path) -> None:
    empty = written(tmp_path / "a.wav", wav(fmt(), chunk(b"data", b""), LIST))
    assert refusal(empty).endswith("no audio: the file holds 0 samples")


@pytest.mark.parametrize("padded", [True, False])
def test_chunks_around_the_samples_change_nothing(tmp_path: Path, padded: bool) -> None:
    odd = [chunk(name, b"INFOabc", padded=padded) for name in (b"LIST", b"JUNK")]
    content = wav(*odd, chunk(b"bext", bytes(602)), fmt(), *odd, LIST, chunk(b"data", STEPS.tobytes()), LIST)
    samples, recording = heard(written(tmp_path / "a.wav", content))
    assert (samples * 32768).tolist() == STEPS.tolist()
    assert recording.warnings == []


@pytest.mark.parametrize("padded", [True, False])
def test_a_last_sample_in_part_is_left_out_with_a_warning(tmp_path: Path, padded: bool) -> None:
    content = wav(fmt(), chunk(b"data", STEPS.tobytes() + b"\7", padded=padded))
    samples, recording = heard(written(tmp_path / "a.wav", content))
    assert (samples * 32768).tolist() == STEPS.tolist()
    assert recording.warnings == ["the last sample is incomplete: 1 of its 2 bytes are there"]


@pytest.mark.parametrize(
    ("container", "subtype", "remark"),
    [
        ("FLAC", "PCM_16", "truncated: {} of 72000 samples are there"),
        ("FLAC", "PCM_24", "truncated: {} of 72000 samples are there"),
        ("MP3", "MPEG_LAYER_III", "truncated: {} of 72000 samples are there"),
        ("OGG", "VORBIS", "truncated: the stream's end is missing"),
        ("OGG", "OPUS", "truncated: the stream's end is missing"),
        ("CAF", "ALAC_16", "truncated: {} of 69632 samples are there"),
    ],
)
def test_what_can_be_decoded_of_a_compressed_file_cut_short_is_used(
    tmp_path: Path, container: str, subtype: str, remark: str
) -> None:
    soundfile.write(tmp_path / "whole", sound(3.0), 24000, subtype, format=container)
    content = (tmp_path / "whole").read_bytes()
    whole, undisturbed = heard(tmp_path / "whole")
    samples, recording = heard(written(tmp_path / "a", content[: len(content) * 4 // 5]))
    assert 12_000 < len(samples) < 60_000
    n_same = len(samples) - 2000  # A lossy codec's last frames lean on those that follow.
    np.testing.assert_allclose(samples[:n_same], whole[:n_same], rtol=0, atol=1e-4)
    assert recording.warnings[-1] == remark.format(len(samples))
    assert undisturbed.warnings == []


@pytest.mark.parametrize(("n_promised", "remarks"), [(0, 0), (2**36 - 1, 1)])
def test_a_flac_whose_header_does_not_know_its_length_is_read_whole(
    tmp_path: Path, n_promised: int, remarks: int
) -> None:
    soundfile.write(tmp_path / "whole.flac", sound(2.0), 24000)
    content = bytearray((tmp_path / "whole.flac").read_bytes())
    content[21:26] = (((content[21] >> 4) << 36) | n_promised).to_bytes(5, "big")
    samples, recording = heard(written(tmp_path / "a.flac", content))
    assert np.array_equal(samples, heard(tmp_path / "whole.flac")[0])
    assert len(recording.warnings) == remarks
    assert recording.promised_seconds() == 0.0
    assert refusal(tmp_path / "a.flac", longest_seconds=1.5).endswith("is longer than --max-duration 1.5 s")


@pytest.mark.parametrize("container", ["MP3", "OGG", "FLAC"])
def test_a_compressed_file_sounds_the_same_in_blocks_of_any_length(
    tmp_path: Path, container: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    soundfile.write(tmp_path / "a", sound(3.0), 24000, format=container)
    whole, _ = heard(tmp_path / "a")
    monkeypatch.setattr(pcm, "BLOCK_SAMPLES", 5000)
    assert np.array_equal(heard(tmp_path / "a")[0], whole)


def test_a_broken_mp3_says_nothing_on_the_terminal(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    soundfile.write(tmp_path / "a.mp3", sound(2.0), 24000)
    content = bytearray((tmp_path / "a.mp3").read_bytes())
    content[2000:2100] = bytes(100)
    _, recording = heard(written(tmp_path / "a.mp3", content))
    os.write(2, b"heard again")
    assert capfd.readouterr() == ("", "heard again")
    assert recording.warnings[0].startswith("truncated: ")


def test_a_recording_named_as_standard_input_is_a_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(tmp_path / "a.wav").rename(tmp_path / "-")
    monkeypatch.chdir(tmp_path)
    assert heard(Path("-"))[0].tolist() == heard(tmp_path / "-")[0].tolist()


@pytest.mark.parametrize("place", [0, 3000])
def test_a_disk_that_fails_is_that_files_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    content = bytearray(record(tmp_path / "whole.wav", 2.0).read_bytes())
    content[40:44] = bytes(4)  # No length: it is read through our own hands.
    path = written(tmp_path / "a.wav", content)
    read = headers._read

    def fail_at(file: BinaryIO, at: int, n_bytes: int) -> bytes:
        if at >= place:
            raise OSError(errno.EIO, "Input/output error")
        return read(file, at, n_bytes)

    monkeypatch.setattr(headers, "_read", fail_at)
    assert refusal(path).endswith("a.wav: cannot be read: Input/output error")


def test_a_signal_waits_until_libsndfile_has_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = bytearray(record(tmp_path / "whole.wav", 2.0).read_bytes())
    content[40:44] = bytes(4)
    path = written(tmp_path / "a.wav", content)
    read = headers.View.read

    def read_and_interrupt(view: headers.View, n_bytes: int) -> bytes:
        signal.raise_signal(signal.SIGINT)
        return read(view, n_bytes)

    monkeypatch.setattr(headers.View, "read", read_and_interrupt)
    with pytest.raises(KeyboardInterrupt):
        heard(path)


def test_what_streaming_tools_promise_is_no_truncation(tmp_path: Path) -> None:
    content = bytearray(record(tmp_path / "whole.wav", 2.0).read_bytes())
    content[40:44] = (0x7FFFF000).to_bytes(4, "little")
    samples, recording = heard(written(tmp_path / "a.wav", content))
    assert len(samples) == 48_000
    assert recording.warnings[0].startswith("the header gives no length")


def test_a_copy_is_called_by_the_name_that_the_user_knows(tmp_path: Path) -> None:
    written(tmp_path / "copy", b"\0\0\0\x20ftypM4A ")
    recording = Recording(tmp_path / "copy", 24000, called=Path("/dev/stdin"))
    with pytest.raises(AudioError) as caught:
        list(recording.blocks())
    assert caught.value.message == (
        "/dev/stdin: is AAC or ALAC audio in MP4, which cannot be read here; convert it first"
    )


def test_a_broken_midi_dump_says_nothing_where_results_are_written(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    soundfile.write(tmp_path / "a.sds", sound(0.1), 24000, "PCM_16", format="SDS")
    content = bytearray((tmp_path / "a.sds").read_bytes())
    content[21] ^= 0xFF  # The first packet's marker.
    written(tmp_path / "a.sds", content)
    soundfile.SoundFile(tmp_path / "a.sds").close()
    assert capfd.readouterr().out == "Error A : 0F\n"
    heard(tmp_path / "a.sds")
    os.write(1, b"heard again")
    assert capfd.readouterr() == ("heard again", "")


@pytest.mark.parametrize(
    ("n_channels", "sample_rate", "reason"),
    [
        (1, 0, "its header gives no usable sample rate or encoding"),
        (1, 1, "a sample rate of 1 Hz cannot be right; 1000 to 768000 Hz can be read"),
        (1, 999, "a sample rate of 999 Hz cannot be right; 1000 to 768000 Hz can be read"),
        (1, 2**31 - 1, "a sample rate of 2147483647 Hz cannot be right; 1000 to 768000 Hz can be read"),
        (1, 2**32 - 1, "its header gives no usable sample rate or encoding"),
        (0, 24000, "Channel count is zero."),
        (65535, 24000, "Too many channels specified."),
    ],
)
def test_an_absurd_header_is_refused(tmp_path: Path, n_channels: int, sample_rate: int, reason: str) -> None:
    content = wav(fmt(1, n_channels, sample_rate), chunk(b"data", STEPS.tobytes()))
    path = written(tmp_path / "a.wav", content)
    assert refusal(path).endswith(reason)
    with pytest.raises(AudioError, match=re.escape(reason)):
        Recording(path, 24000).promised_seconds()


@pytest.mark.parametrize(("n_channels", "sample_rate"), [(1024, 768_000), (1, 768_000), (64, 192_000)])
def test_no_header_decides_how_much_memory_is_taken(
    tmp_path: Path, n_channels: int, sample_rate: int
) -> None:
    data = b"data" + struct.pack("<I", 0x7FFFFFFF) + bytes(2 * 1024 * 40)
    path = written(tmp_path / "a.wav", wav(fmt(1, n_channels, sample_rate), data))
    tracemalloc.start()
    heard(path, channel="mix")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 40 << 20  # Two blocks: the one before is still held.


def test_a_44_byte_file_that_promises_hours_is_no_audio(tmp_path: Path) -> None:
    path = written(tmp_path / "a.wav", wav(fmt(), b"data" + struct.pack("<I", 0x7FFFFFFF)))
    assert path.stat().st_size == 44
    assert refusal(path).endswith("no audio: the file holds 0 samples")
    assert Recording(path, 24000).promised_seconds() == 0.0


# ---- how long ----


def test_a_header_that_promises_too_much_is_refused_unread(tmp_path: Path) -> None:
    path = record(tmp_path / "a.wav", 2.0, sample_rate=8000)
    expected = "a.wav: is 2 s long, more than --max-duration 1.5 s"
    recording = Recording(path, 24000, longest_seconds=1.5)
    with pytest.raises(AudioError, match=re.escape(expected)):
        next(recording.blocks())
    with pytest.raises(AudioError, match=re.escape(expected)):
        recording.promised_seconds()
    assert recording.n_source_samples == 0
    assert len(heard(path, longest_seconds=2.0)[0]) == 48_000


def test_promised_seconds_refuses_what_blocks_would_refuse(tmp_path: Path) -> None:
    path = record(tmp_path / "a.wav", 0.5, sample_rate=8000)
    assert Recording(path, 24000).promised_seconds() == 0.5
    for wrong in (Recording(path, 24000, "1"), Recording(tmp_path / "none.wav", 24000)):
        with pytest.raises(AudioError) as promised:
            wrong.promised_seconds()
        assert promised.value.message == refusal(wrong.path, wrong.channel)


def test_a_pipe_promises_nothing_and_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert Recording(tmp_path / "pipe", 24000).promised_seconds() == 0.0  # To open it would wait for ever.


# ---- numbers that are no sound ----


@pytest.mark.parametrize(("channel", "n_replaced"), [("0", 2), ("1", 1), ("2", 0), ("mix", 2)])
def test_nonfinite_samples_become_silence_if_that_is_wished_for(
    tmp_path: Path, channel: str, n_replaced: int
) -> None:
    frames = np.tile([0.5, 0.25, 0.75], (6, 1))
    frames[2, :2] = np.nan, -np.inf
    frames[4, 0] = np.inf
    soundfile.write(tmp_path / "a.wav", frames, 24000, "FLOAT")
    expected = np.where(np.isfinite(frames), frames, 0)
    expected = expected.mean(axis=1) if channel == "mix" else expected[:, int(channel)]
    samples, recording = heard(tmp_path / "a.wav", channel=channel, fix_nonfinite=True)
    np.testing.assert_allclose(samples, expected, atol=1e-7)
    assert recording.n_nonfinite == n_replaced
    told = [f"replaced {n_replaced} NaN or infinite samples by 0"] if n_replaced else []
    assert recording.warnings == told
    if n_replaced:
        assert "let --fix-nonfinite replace them by 0" in refusal(tmp_path / "a.wav", channel)


@pytest.mark.parametrize(
    ("peak", "hint"),
    [
        (12345, "peak 12345, where 1 is full scale: integers stored as floats? divide by 32768"),
        (-(2**23), "peak 8.38861e+06, where 1 is full scale: integers stored as floats? divide by 8388608"),
        (1e30, "peak 1e+30, where 1 is full scale: these are no samples of sound"),
    ],
)
@pytest.mark.parametrize("subtype", ["FLOAT", "DOUBLE"])
def test_integers_stored_as_floats_are_refused_with_a_hint(
    tmp_path: Path, peak: float, hint: str, subtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pcm, "BLOCK_SAMPLES", 500)
    samples = np.zeros(2400)
    samples[2300] = peak
    soundfile.write(tmp_path / "a.wav", samples, 24000, subtype)
    assert refusal(tmp_path / "a.wav").endswith(hint)
    assert refusal(tmp_path / "a.wav", "mix").endswith(hint)


def test_floats_that_are_merely_too_loud_are_accepted(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", np.array([0.5, 8.0, -32.0]), 24000, "FLOAT")
    samples, recording = heard(tmp_path / "a.wav")
    assert samples.tolist() == [0.5, 8.0, -32.0]
    assert recording.n_clipped == 2


@pytest.mark.parametrize("level", [0.0, 0.25, -1.0, 2.0**-31])
def test_silence_a_constant_and_a_whisper_are_exact(tmp_path: Path, level: float) -> None:
    soundfile.write(tmp_path / "a.wav", np.full(1921, level), 24000, "FLOAT")
    assert heard(tmp_path / "a.wav")[0].tolist() == [level] * 1921


# ---- every encoding ----

EXACT, COMPANDED, LOSSY = 1e-7, 0.02, 0.15
ENCODINGS = [
    *[("WAV", subtype, 2 / 2**bits) for subtype, bits in {"PCM_U8": 7, "PCM_16": 15, "PCM_24": 23}.items()],
    *[("WAV", subtype, EXACT) for subtype in ("PCM_32", "FLOAT", "DOUBLE")],
    *[("WAVEX", subtype, EXACT) for subtype in ("PCM_32", "FLOAT", "DOUBLE")],
    *[("WAVEX", subtype, COMPANDED) for subtype in ("ALAW", "ULAW")],
    *[("WAV", subtype, LOSSY) for subtype in ("IMA_ADPCM", "MS_ADPCM", "GSM610", "G721_32")],
    *[(container, "PCM_24", 2 / 2**23) for container in ("RF64", "W64", "AIFF", "AU", "CAF", "FLAC")],
    *[("AIFF", "PCM_S8", 2 / 2**7), ("FLAC", "PCM_16", 2 / 2**15), ("CAF", "ALAC_16", 2 / 2**15)],
    *[("CAF", "ALAC_24", 2 / 2**23), ("AU", "ULAW", COMPANDED), ("AU", "G721_32", LOSSY)],
    *[("OGG", "VORBIS", LOSSY), ("OGG", "OPUS", LOSSY), ("MP3", "MPEG_LAYER_III", LOSSY)],
]


@pytest.mark.parametrize(("container", "subtype", "error"), ENCODINGS)
def test_a_full_scale_sine_is_one_in_every_encoding(
    tmp_path: Path, container: str, subtype: str, error: float
) -> None:
    """Opus and MP3 as well: their decoders take the codecs' delay away."""
    rate = 8000 if subtype in ("GSM610", "G721_32") else 24000
    # G.721 as libsndfile writes it has no room for the very top: it wraps.
    level = 0.9 if subtype == "G721_32" else 1.0
    expected = level * sine(3 * rate, rate, 300.0)
    soundfile.write(tmp_path / "a", expected, rate, subtype, format=container)
    samples, recording = heard(tmp_path / "a", rate)
    inner = slice(2000, len(expected) - 2000) if error == LOSSY else slice(None)
    assert np.abs(samples[: len(expected)] - expected)[inner].max() <= error
    assert np.abs(samples[inner]).max() == pytest.approx(level, abs=error)
    filled_up = 2048 if "ADPCM" in subtype else 320 if subtype in ("GSM610", "G721_32") else 0
    assert 0 <= len(samples) - len(expected) <= filled_up
    assert recording.warnings == []


def test_little_endian_aiff_is_read(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.aif", STEPS, 24000, "PCM_16", endian="LITTLE", format="AIFF")
    assert b"sowt" in (tmp_path / "a.aif").read_bytes()
    assert (heard(tmp_path / "a.aif")[0] * 32768).tolist() == STEPS.tolist()


@pytest.mark.parametrize("name", ["a.wav", "a.flac"])
@pytest.mark.parametrize("container", ["MP3", "OGG", "FLAC", "WAV"])
def test_a_name_that_lies_is_not_believed(tmp_path: Path, name: str, container: str) -> None:
    expected = 0.5 * sine(24000, 24000)
    soundfile.write(tmp_path / name, expected, 24000, format=container)
    samples, _ = heard(tmp_path / name)
    assert np.abs(samples - expected)[2000:-2000].max() < 0.05


# ---- cutting anew ----


@given(LENGTHS, st.integers(1, 4), st.integers(1, 5))
def test_whole_frames_hold_every_sample_in_order(lengths: list[int], per_chunk: int, per_frame: int) -> None:
    whole = counted(sum(lengths))
    chunk_samples = per_chunk * per_frame
    chunks = list(whole_frames(cut(whole, lengths), chunk_samples, per_frame))
    joined = np.concatenate([np.zeros(0, np.float32), *chunks])
    assert joined[: len(whole)].tolist() == whole.tolist()
    assert not joined[len(whole) :].any()
    assert len(joined) == -(-len(whole) // per_frame) * per_frame
    assert all(len(chunk) == chunk_samples for chunk in chunks[:-1])
    assert all(0 < len(chunk) <= chunk_samples for chunk in chunks[-1:])


@given(LENGTHS, st.integers(0, 700))
def test_fitted_blocks_are_the_first_samples_of_the_whole(lengths: list[int], n_samples: int) -> None:
    whole = counted(sum(lengths))
    fitted = list(fit(cut(whole, lengths), n_samples))
    assert np.concatenate(fitted).tolist() == whole[:n_samples].tolist()


@given(LENGTHS)
def test_side_by_side_each_channel_is_its_own_stream(lengths: list[int]) -> None:
    whole = counted(sum(lengths))
    stereo = list(side_by_side(cut(whole, lengths), cut(-whole, lengths)))
    joined = np.concatenate(stereo)
    assert joined.tolist() == [[sample, -sample] for sample in whole]


# ---- writing ----


def test_written_samples_are_rounded_clamped_and_counted(tmp_path: Path) -> None:
    steps = [0, 1, -1, 0.4, 0.6, -0.4, -0.6, 32767, -32768, 40000, -40000, 32768]
    blocks = [np.array(part, np.float32) / 32768 for part in (steps[:5], [], steps[5:])]
    assert write_wav(tmp_path / "a.wav", blocks, 24000) == 2
    written, rate = soundfile.read(tmp_path / "a.wav", dtype="int16")
    assert written.tolist() == [0, 1, -1, 0, 1, 0, -1, 32767, -32768, 32767, -32768, 32767]
    assert rate == 24000
    assert soundfile.info(tmp_path / "a.wav").subtype == "PCM_16"


def test_a_16_bit_recording_is_written_back_unchanged(tmp_path: Path) -> None:
    every = np.arange(-32768, 32768, dtype=np.int16)
    soundfile.write(tmp_path / "a.wav", every, 24000)
    assert write_wav(tmp_path / "b.wav", Recording(tmp_path / "a.wav", 24000).blocks(), 24000) == 0
    assert (tmp_path / "b.wav").read_bytes() == (tmp_path / "a.wav").read_bytes()


def test_stereo_blocks_make_a_stereo_file(tmp_path: Path) -> None:
    write_wav(tmp_path / "a.wav", [np.full((3, 2), 0.5, np.float32)], 24000, n_channels=2)
    assert soundfile.read(tmp_path / "a.wav")[0].tolist() == [[0.5, 0.5]] * 3


def test_a_disk_that_takes_no_more_is_the_systems_error() -> None:
    with pytest.raises(OSError, match=r".") as caught:
        write_wav(Path("/dev/full"), [np.zeros(100_000, np.float32)], 24000)
    assert caught.value.errno


# ---- voices ----


@pytest.mark.parametrize("level", [0.01, 0.1, 1.0])
def test_a_voice_is_brought_to_24_lufs_below_full_scale(tmp_path: Path, level: float) -> None:
    speech, rate = soundfile.read(GOLDEN / "audio" / "voice.wav")
    soundfile.write(tmp_path / "a.wav", level * speech, rate, "FLOAT")
    voice = read_voice(tmp_path / "a.wav", 24000)
    assert pyloudnorm.Meter(24000).integrated_loudness(voice.astype(float)) == pytest.approx(-24, abs=0.01)
    assert len(voice) == len(speech)


def test_of_a_stereo_voice_channel_0_is_heard(tmp_path: Path) -> None:
    speech, rate = soundfile.read(GOLDEN / "audio" / "voice.wav")
    soundfile.write(tmp_path / "a.wav", np.stack([speech, np.zeros_like(speech)], 1), rate)
    assert np.array_equal(
        read_voice(tmp_path / "a.wav", 24000), read_voice(GOLDEN / "audio" / "voice.wav", 24000)
    )


def test_a_voice_without_a_loudness_is_refused_with_its_reason(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "short.wav", sound(0.39), 24000)
    soundfile.write(tmp_path / "silent.wav", np.zeros(24000), 24000)
    with pytest.raises(AudioError, match=r"short\.wav: a voice of 0\.39 s is too short; 0\.4 s at least"):
        read_voice(tmp_path / "short.wav", 24000)
    with pytest.raises(AudioError, match=r"silent\.wav: a silent voice cannot be brought to -24 LUFS"):
        read_voice(tmp_path / "silent.wav", 24000)
