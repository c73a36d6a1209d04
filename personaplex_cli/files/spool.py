"""Sources that can be read only once (pipes) are copied to a temporary file, since audio is read at will."""

from __future__ import annotations

import shutil
import stat
import tempfile
from pathlib import Path
from types import TracebackType
from typing import IO

from personaplex_cli.errors import AudioError
from personaplex_cli.files.names import mode_of, shown


class OnDisk:
    """A source as a regular file: itself, or a copy that lives as long as this object is open."""

    def __init__(self, source: Path) -> None:
        self.path = source
        self._copy: IO[bytes] | None = None
        mode = mode_of(source)
        if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode) or stat.S_ISSOCK(mode):
            try:
                self._copy = tempfile.NamedTemporaryFile(prefix="personaplex-", suffix=source.suffix)  # noqa: SIM115
                with source.open("rb") as pipe:
                    shutil.copyfileobj(pipe, self._copy)
                self._copy.flush()
            except OSError as error:
                self.close()
                raise AudioError(f"{shown(source)}: cannot be read: {error.strerror or error}") from error
            self.path = Path(self._copy.name)

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
