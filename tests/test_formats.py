"""What cannot be read is named by what it is, whatever its name says, with a way out."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from personaplex_cli.audio.pcm import Recording
from personaplex_cli.errors import AudioError

CONVERT = "convert it first, for example: ffmpeg -i "


def refusal(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    with pytest.raises(AudioError) as caught:
        list(Recording(path, 24000).blocks())
    return caught.value.message.removeprefix(f"{path}: ")


def with_codec(tag: int) -> bytes:
    """A WAV whose samples are coded by a format tag."""
    fmt = b"fmt " + struct.pack("<IHHIIHHH", 18, tag, 1, 24000, 48000, 2, 16, 0)
    body = b"WAVE" + fmt + b"data" + struct.pack("<I", 100) + bytes(100)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def ogg(payload: bytes) -> bytes:
    """The first page of an Ogg stream."""
    return b"OggS\0\2" + bytes(20) + bytes([1, len(payload)]) + payload


SOUND_AND_VIDEO = {
    "AAC or ALAC audio in MP4": b"\0\0\0\x20ftypM4A \0\0\2\0",
    "MP4": b"\0\0\0\x20ftypisom\0\0\2\0",
    "3GP (AMR or AAC audio)": b"\0\0\0\x18ftyp3gp5\0\0\1\0",
    "QuickTime (MOV)": b"\0\0\0\x14ftypqt  \0\0\0\0",
    "AAC (ADTS)": b"\xff\xf1\x50\x80\x2e\x7f\xfc\x21",
    "Windows Media (WMA or WMV)": bytes.fromhex("3026b2758e66cf11a6d900aa0062ce6c"),
    "WebM": b"\x1a\x45\xdf\xa3\x9f\x42\x86\x81\1\x42\xf7\x81\1\x42\x82\x84webm",
    "Matroska": b"\x1a\x45\xdf\xa3\xa3\x42\x86\x81\1\x42\x82\x88matroska",
    "AMR": b"#!AMR\n\x3c\x91\x17",
    "Monkey's Audio (APE)": b"MAC \x96\x0f\0\0",
    "WavPack": b"wvpk\x7a\0\0\0",
    "True Audio (TTA)": b"TTA1\1\0\1\0",
    "DSD audio (DSF or DFF)": b"DSD \x1c\0\0\0",
    "AVI video": b"RIFF\x40\0\0\0AVI LIST",
    "Speex in Ogg": ogg(b"Speex   1.2rc1" + bytes(60)),
    "WAV with WMA 2 (0x0161) inside": with_codec(0x0161),
    "WAV with AAC (0x00FF) inside": with_codec(0x00FF),
    "WAV with an unknown codec (0x1234) inside": with_codec(0x1234),
}
NO_SOUND = {
    "MIDI, notes without sound": b"MThd\0\0\0\6\0\1",
    "a ZIP archive; unpack it first": b"PK\3\4\x14\0\0\0",
    "a gzip archive; unpack it first": b"\x1f\x8b\x08\0\0\0",
    "a PDF document": b"%PDF-1.7\n%\xe2\xe3",
    "a picture": b"\x89PNG\r\n\x1a\n\0\0",
    "a web page; did the download fail? Fetch it again": b"\n<!DOCTYPE html>\n<html><body>404",
    "text": "Nothing to hear, grüß Gott.\n".encode(),
    "a Git LFS pointer, not the recording itself; fetch what it stands for: git lfs pull": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
    ),
}


@pytest.mark.parametrize("name", SOUND_AND_VIDEO)
def test_sound_that_cannot_be_read_is_named_with_a_way_out(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.m4a"
    said = refusal(path, SOUND_AND_VIDEO[name] + bytes(2000))
    assert said == f"is {name}, which cannot be read here; {CONVERT}{path} {tmp_path / 'a.wav'}"


@pytest.mark.parametrize("name", NO_SOUND)
def test_what_is_no_sound_is_named_as_what_it_is(tmp_path: Path, name: str) -> None:
    assert refusal(tmp_path / "a.wav", NO_SOUND[name]) == f"not audio that can be read: it is {name}"


def test_a_jpeg_is_a_picture(tmp_path: Path) -> None:
    said = refusal(tmp_path / "a.wav", b"\xff\xd8\xff\xe0\0\x10JFIF")
    assert said == "not audio that can be read: it is a picture"


def test_names_in_the_advice_are_quoted_for_a_shell_and_never_the_file_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    amr = b"#!AMR\n\x3c\x91\x17"
    assert refusal(Path("-it's.wav"), amr).endswith("""-i './-it'"'"'s.wav' './-it'"'"'s.new.wav'""")
    assert refusal(Path("a b.amr"), amr).endswith("-i 'a b.amr' 'a b.wav'")


def test_what_nobody_knows_keeps_the_decoders_words(tmp_path: Path) -> None:
    said = refusal(tmp_path / "a.wav", bytes(range(128, 256)))
    assert said == "not audio that can be read: Format not recognised."
