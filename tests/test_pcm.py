"""PCM in and out: every format's scale, every rate's length, and no sample lost on the way."""

from __future__ import annotations

import wave
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyloudnorm
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from personaplex_cli.audio import pcm
from personaplex_cli.audio.pcm import (
    Pcm,
    Recording,
    fit,
    read_voice,
    resample,
    round_half_up,
    seconds_of,
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


def heard(path: Path, sample_rate: int = 24000, channel: str = "0") -> tuple[Pcm, Recording]:
    recording = Recording(path, sample_rate, channel)
    return np.concatenate(list(recording.blocks())), recording


def refusal(path: Path, channel: str = "0") -> str:
    with pytest.raises(AudioError) as caught:
        heard(path, channel=channel)
    return caught.value.message


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
    assert refusal(tmp_path / "text.wav").endswith(
        "text.wav: not audio that can be read: Format not recognised."
    )
    assert refusal(tmp_path / "header.wav").endswith("no audio: the file holds 0 samples")
    assert refusal(tmp_path / "telephone.wav").endswith("no audio: the file holds 0 samples")
    assert refusal(tmp_path / "gone.wav").endswith("gone.wav: no such file")
    assert "not audio that can be read" in refusal(tmp_path)


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


@pytest.mark.parametrize("container", ["WAV", "AIFF", "W64", "RF64"])
def test_what_a_truncated_file_still_holds_is_used_with_a_warning(tmp_path: Path, container: str) -> None:
    whole, cut_off = tmp_path / "whole", tmp_path / "cut_off"
    soundfile.write(whole, sound(2.0), 24000, "PCM_16", format=container)
    cut_off.write_bytes(whole.read_bytes()[:50_001])
    expected, undisturbed = heard(whole)
    samples, recording = heard(cut_off)
    assert 24_900 < len(samples) == recording.n_samples < 25_000
    assert samples.tolist() == expected[: len(samples)].tolist()
    assert [warning.split(":")[0] for warning in recording.warnings] == ["truncated"]
    assert undisturbed.warnings == []


@pytest.mark.parametrize("promised", [0xFFFFFFFF, 0x7FFFF000, 96_001])
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
    capfd.readouterr()
    assert 0 < len(samples) < 48_000
    assert recording.warnings == [f"truncated: {len(samples)} of 48000 samples are there"]


def test_a_files_length_is_known_from_its_header(tmp_path: Path) -> None:
    assert seconds_of(record(tmp_path / "a.wav", 0.5, sample_rate=8000)) == 0.5
    (tmp_path / "text.wav").write_text("no audio")
    assert [seconds_of(tmp_path / name) for name in ("text.wav", "gone.wav", ".")] == [0.0] * 3


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
