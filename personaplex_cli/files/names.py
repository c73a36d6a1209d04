"""File names: ours, which are the same, which are too long, and how they are shown."""

from __future__ import annotations

import os
import unicodedata
from pathlib import Path, PurePosixPath

WAV = ".wav"
DUMP = ".tokens.safetensors"
TRANSCRIPT = ".json"
RUN_LOG = "run.jsonl"
LONGEST_NAME = 255  # bytes; of ext4, XFS, APFS, NTFS and nearly all others


def stem_of(name: str) -> str:
    """A file name without its suffix. `.wav` has none: it is a hidden file."""
    head, _, _ = name.rpartition(".")
    return head if head.strip(".") else name


def sameness(name: str) -> str:
    """Equal for names that some file systems take for one: case and Unicode form are left out."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", name).casefold())


def shown(name: object) -> str:
    """A name for one line of a message: line breaks, control characters and undecodable bytes as escapes."""
    return "".join(_escaped(c) if unicodedata.category(c) in _UNSHOWN else c for c in str(name))


def impossible(name: str) -> str | None:
    """Why no file can have this name, or None."""
    if "\0" in name:
        return "holds a NUL character"
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        return "cannot be written as a file name"
    return None


def too_long(place: str) -> str | None:
    """Why outputs at `place` (a path without suffix) cannot be stored, or None."""
    for part in PurePosixPath(place + DUMP).parts:
        n_bytes = len(os.fsencode(part))
        if n_bytes > LONGEST_NAME:
            return (
                f"the output name would be too long, {n_bytes} bytes of at most {LONGEST_NAME}: {shown(part)}"
            )
    return None


def real(path: Path) -> Path:
    """Where a path leads, links followed as far as they go. Unlike `Path.resolve`, loops do not raise."""
    return Path(os.path.realpath(path))


def identity_of(path: Path) -> tuple[int, int] | None:
    """What a path leads to, whatever its name: device and inode. None where nothing can be seen."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def mode_of(path: Path) -> int:
    """What a path leads to, as `st_mode`; 0 where nothing can be seen, whatever the reason."""
    try:
        return path.stat().st_mode
    except (OSError, ValueError):
        return 0


_UNSHOWN = {"Cc", "Cs", "Zl", "Zp"}


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
