"""What a file is, by its first bytes: a name for what cannot be read here, and a way out."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

HEAD_BYTES = 4096
"""Enough for all signatures, and for a web page to show itself."""
CONVERT = "convert it first"
EXAMPLE = ", for example: ffmpeg -i {old} {new}"
UNPACK = "unpack it first"
NOTHING = ""
PULL = "fetch what it stands for: git lfs pull"
FETCH_AGAIN = "did the download fail? Fetch it again"

SIGNATURES = [
    (rb"....ftyp(?:M4A|M4B|M4P|F4A)", "AAC or ALAC audio in MP4", CONVERT),
    (rb"....ftyp3g", "3GP (AMR or AAC audio)", CONVERT),
    (rb"....ftypqt", "QuickTime (MOV)", CONVERT),
    (rb"....ftyp", "MP4", CONVERT),
    (rb"....(?:moov|mdat|wide)", "QuickTime (MOV)", CONVERT),
    (rb"\xff[\xf0\xf1\xf8\xf9]", "AAC (ADTS)", CONVERT),
    (rb"ADIF", "AAC (ADIF)", CONVERT),
    (rb"\x30\x26\xb2\x75\x8e\x66\xcf\x11", "Windows Media (WMA or WMV)", CONVERT),
    (rb"\x1a\x45\xdf\xa3.{0,64}webm", "WebM", CONVERT),
    (rb"\x1a\x45\xdf\xa3", "Matroska", CONVERT),
    (rb"#!AMR", "AMR", CONVERT),
    (rb"MAC ", "Monkey's Audio (APE)", CONVERT),
    (rb"wvpk", "WavPack", CONVERT),
    (rb"TTA[12]", "True Audio (TTA)", CONVERT),
    (rb"DSD |FRM8", "DSD audio (DSF or DFF)", CONVERT),
    (rb"MPCK|MP\+", "Musepack", CONVERT),
    (rb"\x0b\x77", "AC-3", CONVERT),
    (rb"\x02?#!SILK_V3", "SILK (of a chat program)", "its own decoder is needed"),
    (rb"\.RMF|\.ra\xfd", "RealMedia", CONVERT),
    (rb"FLV\x01", "Flash video", CONVERT),
    (rb"RIFF....AVI ", "AVI video", CONVERT),
    (rb"RIFF....WEBP", "a WebP picture", NOTHING),
    (rb"OggS.{22,80}Speex", "Speex in Ogg", CONVERT),
    (rb"OggS.{22,80}\x80theora", "video in Ogg", CONVERT),
    (rb"BW64", "Broadcast Wave 64 (BW64)", CONVERT),
    (rb"MThd", "MIDI, notes without sound", NOTHING),
    (rb"PK\x03\x04|PK\x05\x06", "a ZIP archive", UNPACK),
    (rb"\x1f\x8b", "a gzip archive", UNPACK),
    (rb"7z\xbc\xaf\x27\x1c|Rar!|BZh|\xfd7zXZ|\x28\xb5\x2f\xfd", "a packed archive", UNPACK),
    (rb".{257}ustar", "a tar archive", UNPACK),
    (rb"%PDF-", "a PDF document", NOTHING),
    (rb"\x89PNG|\xff\xd8\xff|GIF8", "a picture", NOTHING),
    (rb"version https://git-lfs", "a Git LFS pointer, not the recording itself", PULL),
    (rb"(?i)\s*(?:<!doctype html|<html|<head)", "a web page", FETCH_AGAIN),
    (rb"\s*<\?xml|\s*<Error", "an XML document", FETCH_AGAIN),
]
"""How files begin, what they are, and what to do. The first that fits counts."""

WAV_CODECS = {
    0x0022: "TrueSpeech",
    0x0038: "AMR",
    0x0042: "G.723.1",
    0x0045: "G.726",
    0x0055: "MP3",
    0x0057: "AMR",
    0x0064: "G.726",
    0x0065: "G.722",
    0x0083: "G.729",
    0x00FF: "AAC",
    0x0160: "WMA 1",
    0x0161: "WMA 2",
    0x0162: "WMA Professional",
    0x0163: "WMA Lossless",
    0x0270: "ATRAC3",
    0x1600: "AAC (ADTS)",
    0x1610: "AAC",
    0x2000: "AC-3",
    0x2001: "DTS",
    0x566F: "Vorbis",
    0xF1AC: "FLAC",
}
READABLE_CODECS = {0x0001, 0x0002, 0x0003, 0x0006, 0x0007, 0x0011, 0x0031, 0xFFFE}
"""Codecs in WAV for which the reader has better words, when such a file is at fault."""
WAV_HEAD = re.compile(rb"(?:RIFF|RF64)....WAVE.*?fmt .{4}(..)", re.DOTALL)


def unreadable(path: Path, head: bytes) -> str | None:
    """Why a file that begins with `head` cannot be read, and a way out; None if its kind is not known."""
    for beginning, name, way_out in SIGNATURES:
        if re.match(beginning, head, re.DOTALL):
            return told(path, name, way_out)
    if (wav := WAV_HEAD.match(head)) and (tag := int.from_bytes(wav[1], "little")) not in READABLE_CODECS:
        return told(path, f"WAV with {WAV_CODECS.get(tag, 'an unknown codec')} (0x{tag:04X}) inside", CONVERT)
    if is_text(head):
        return told(path, "text", NOTHING)
    return None


def told(path: Path, name: str, way_out: str) -> str:
    """The message: what it is, and what to do."""
    if way_out != CONVERT:
        return f"not audio that can be read: it is {name}" + (f"; {way_out}" if way_out else "")
    return f"is {name}, which cannot be read here; {way_out}" + (example(path) if path.is_file() else "")


def example(path: Path) -> str:
    """A command that converts a file."""
    new = path.with_suffix(".new.wav" if path.suffix.lower() == ".wav" else ".wav")
    return EXAMPLE.format(old=for_shell(path), new=for_shell(new))


def for_shell(path: Path) -> str:
    """A path as one word of a command line, never taken for an option."""
    name = os.fspath(path)
    return shlex.quote(f"./{name}" if name.startswith("-") else name)


def is_text(head: bytes) -> bool:
    """Whether a file begins as words do: UTF-8 without control characters."""
    try:
        words = head.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.start < len(head) - 3:  # A character cut by the head's end is no fault.
            return False
        words = head[: error.start].decode("utf-8")
    return len(words) > 4 and all(c.isprintable() or c in "\t\r\n" for c in words)
