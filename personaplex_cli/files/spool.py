"""Sources on disk: pipes and devices are copied, since audio is read at will; files must stay as they are."""

from __future__ import annotations

import os
import select
import stat
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import IO, TypeAlias

from personaplex_cli.errors import AudioError
from personaplex_cli.files.names import mode_of, shown

LONGEST_PIPE_BYTES = 4 << 30
"""No WAV is longer, since its sizes are numbers of 32 bits: what goes on after it does not end."""
BLOCK_BYTES = 1 << 20
LONGEST_SUFFIX = 8


Stamp: TypeAlias = tuple[int, int, int, int]
"""What differs once a file has changed: device, inode, bytes, nanoseconds."""


class OnDisk:
    """A source as a regular file: itself, or a copy that lives as long as this object is open.

    idle_seconds: how long a pipe may say nothing; None = for ever. AudioError for what cannot be copied.
    stamp: how a file looked when it was found; None = as it looks now.
    """

    def __init__(self, source: Path, idle_seconds: float | None = None, stamp: Stamp | None = None) -> None:
        self.source = self.path = source
        self._stamp = stamp or stamp_of(source)
        self._copy: IO[bytes] | None = None
        mode = mode_of(source)
        if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
            self._copy = copy_of(source, idle_seconds)
            self.path = Path(self._copy.name)

    def check(self) -> None:
        """AudioError if the file is not the one that was there at first; a copy is nobody else's."""
        if self.path != self.source:
            return
        stamp = stamp_of(self.source)
        if stamp is None or stamp != self._stamp:
            raise AudioError(
                f"{shown(self.source)}: changed while it was read; run again when nobody writes to it"
            )

    def close(self) -> None:
        """Remove the copy, if there is one."""
        if self._copy is not None:
            self._copy.close()
        self._copy = None

    def __enter__(self) -> OnDisk:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def stamp_of(path: Path) -> Stamp | None:
    """How a file looks now. None where nothing is seen."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def copy_of(source: Path, idle_seconds: float | None) -> IO[bytes]:
    """All that comes from a pipe or a device, as a temporary file that is gone when it is closed."""
    n_bytes = 0
    try:
        with ExitStack() as until_whole:
            copy = until_whole.enter_context(
                # A name's last part can be as long as a name may be, and then there is no room for ours.
                tempfile.NamedTemporaryFile(prefix="personaplex-", suffix=source.suffix[:LONGEST_SUFFIX])
            )
            for block in blocks_from(source, idle_seconds):
                n_bytes += len(block)
                if n_bytes > LONGEST_PIPE_BYTES:
                    raise AudioError(
                        f"{shown(source)}: does not end: more than {LONGEST_PIPE_BYTES / (1 << 30):.1f} GiB "
                        "came from it; save what you need to a file"
                    )
                copy.write(block)
            copy.flush()
            until_whole.pop_all()
            return copy
    except OSError as error:
        folder = tempfile.tempdir or "a temporary folder"
        # Without its cause: a run stops where the disk of its outputs stays full, and this is another.
        raise AudioError(
            f"{shown(source)}: cannot be copied to {folder}: {error.strerror or error}; "
            "make room there, or set TMPDIR to another folder"
        ) from None


def blocks_from(source: Path, idle_seconds: float | None) -> Iterator[bytes]:
    """What comes from a pipe or a device until its last writer is gone; AudioError if nothing comes."""
    patience = None if idle_seconds is None else 1000 * idle_seconds
    try:
        # Opening a pipe would wait for its writer. So does poll, but not for ever: it tells of no end before
        # a writer has been there.
        handle = os.open(source, os.O_RDONLY | os.O_NONBLOCK)
        with os.fdopen(handle, "rb", buffering=0) as pipe:
            arrivals = select.poll()
            arrivals.register(pipe, select.POLLIN)
            while arrivals.poll(patience):
                block = pipe.read(BLOCK_BYTES)
                if block:
                    yield block
                elif block is not None:  # None: another reader was quicker.
                    return
    except OSError as error:
        raise AudioError(f"{shown(source)}: cannot be read: {error.strerror or error}") from error
    raise AudioError(
        f"{shown(source)}: nothing came from it for {idle_seconds:g} s; "
        "start its writer first, or convert it alone"
    )
