"""Outputs appear whole or not at all."""

from __future__ import annotations

import errno
import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from personaplex_cli.errors import JobError, OutputError
from personaplex_cli.files.names import shown
from personaplex_cli.interrupts import interrupts_held

_PARTIAL = re.compile(r"\.partial-(?P<pid>\d+)-(?P<name>[0-9a-f]{16})(\.|$)")
_DISK_IS_FULL = {errno.ENOSPC, errno.EDQUOT}
_ADVICE = {
    errno.ENOSPC: "the disk is full; make room and run again, finished files are kept",
    errno.EDQUOT: "the disk quota is used up; make room and run again, finished files are kept",
    errno.EACCES: "not permitted to write there; choose another folder",
    errno.EPERM: "not permitted to write there; choose another folder",
    errno.EROFS: "the file system is read-only; choose another folder",
    errno.ENAMETOOLONG: "the name would be too long; rename the input, or name its output in a manifest",
    errno.ENOTDIR: "a file stands where a folder is needed; move it, or choose another folder",
    errno.EEXIST: "a file stands where a folder is needed; move it, or choose another folder",
    errno.EISDIR: "a folder stands where the file should go; move it, or choose another folder",
    errno.ENOENT: "it was not written, or its folder was removed meanwhile; run again",
}


@contextmanager
def finished_files(*targets: Path) -> Iterator[tuple[Path, ...]]:
    """Give paths to write to; they become `targets`, in this order, only if the block ends well.

    They appear together: an interrupt waits meanwhile, and a failure takes back what has appeared.
    OSError -> OutputError.
    """
    partials = {_partial_of(target): target for target in targets}
    folders = list(dict.fromkeys(target.parent for target in targets))
    try:
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
        yield tuple(partials)
        for partial in partials:
            _to_disk(partial)
        with interrupts_held():
            _publish(partials)
        for folder in folders:
            _folder_to_disk(folder)
    except OSError as error:
        raise output_error(_complained_of(error, partials), error) from error
    finally:
        with interrupts_held():
            _remove(partials)


@contextmanager
def finished_file(target: Path) -> Iterator[Path]:
    """Give a path to write to; it becomes `target` only if the block ends well. OSError -> OutputError."""
    with finished_files(target) as (partial,):
        yield partial


def output_error(target: Path, error: OSError) -> OutputError:
    """The system's complaint about `target` in words for the user, with what to do."""
    reason = error.strerror or str(error)
    advice = _ADVICE.get(error.errno or 0, "see to it and run again")
    return OutputError(f"{shown(target)}: cannot be written ({reason}): {advice}")


def is_disk_full(error: JobError) -> bool:
    """Whether a job failed for want of room: if that repeats, the run had better stop."""
    cause = error.__cause__
    return isinstance(cause, OSError) and cause.errno in _DISK_IS_FULL


def sweep_partials(outputs: Iterable[Path]) -> list[Path]:
    """Remove what a killed run left of these outputs; other files and living runs are left alone."""
    names: dict[Path, set[str]] = {}
    for output in outputs:
        names.setdefault(output.parent, set()).add(_name_tag(output))
    swept = []
    for folder, tags in names.items():
        for partial in _partials_in(folder, tags):
            with suppress(OSError):
                partial.unlink()
                swept.append(partial)
    return swept


def _partial_of(target: Path) -> Path:
    # soundfile picks the format by suffix: the partial file must end like the target.
    # A tag in place of the name: the partial's name is never longer than the file system allows.
    return target.with_name(f".partial-{os.getpid()}-{_name_tag(target)}{target.suffix}")


def _publish(partials: Mapping[Path, Path]) -> None:
    try:
        for partial, target in partials.items():
            partial.replace(target)
    except OSError:
        # What had its place already would be a part, or stand beside parts of an older one.
        if not all(partial.exists() for partial in partials):
            _remove(partials.values())
        raise


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        with suppress(OSError):
            path.unlink()


def _complained_of(error: OSError, partials: Mapping[Path, Path]) -> Path:
    named = Path(os.fsdecode(error.filename)) if isinstance(error.filename, (str, bytes)) else None
    first = next(iter(partials.values()))
    return first if named is None else partials.get(named, first)


def _name_tag(target: Path) -> str:
    return hashlib.sha256(os.fsencode(target.name)).hexdigest()[:16]


def _partials_in(folder: Path, tags: set[str]) -> list[Path]:
    try:
        entries = list(folder.iterdir())
    except OSError:
        return []
    found = ((entry, _PARTIAL.match(entry.name)) for entry in entries)
    return [
        entry for entry, match in found if match and match["name"] in tags and _is_stale(int(match["pid"]))
    ]


def _is_stale(pid: int) -> bool:
    if pid == os.getpid():
        return True  # We have not begun to write: in containers every run has the same pid.
    if os.name == "nt":
        return False  # Signal 0 would end the process there.
    try:
        os.kill(pid, 0)
    except PermissionError:
        return False
    except (OSError, OverflowError):
        return True
    return False


def _to_disk(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _folder_to_disk(folder: Path) -> None:
    # Some file systems cannot do this, and the file is in its place already: nothing to report.
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
