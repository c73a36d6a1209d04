"""run.jsonl: what became of every job, a line each, written as soon as it is known."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Literal

from personaplex_cli.errors import RunStopped, SettingsError
from personaplex_cli.files.atomic import output_error
from personaplex_cli.files.names import identity_of, shown
from personaplex_cli.files.plain_json import json_bytes

Status = Literal["converted", "skipped", "failed", "planned"]
_LINE_START = b'{"source": '


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one job. `outputs` are names relative to the output folder."""

    source: str
    status: Status
    reason: str | None = None
    warnings: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    audio_seconds: float | None = None
    wall_seconds: float | None = None
    extra: Mapping[str, object] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        """One line of the run log; members of `extra` stand beside the others."""
        own = {
            "source": self.source,
            "status": self.status,
            "reason": self.reason,
            "warnings": self.warnings,
            "outputs": self.outputs,
            "audio_seconds": self.audio_seconds,
            "wall_seconds": self.wall_seconds,
        }
        return {**own, **{name: value for name, value in self.extra.items() if name not in own}}


class RunLog:
    """Appends outcomes to a file, which is whole up to its last line whatever happens to the run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: BinaryIO | None = None
        self._folder: tuple[int, int] | None = None

    def __enter__(self) -> RunLog:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._open()
        except OSError as error:
            self.close()
            raise SettingsError(output_error(self.path, error).message) from error
        self._folder = identity_of(self.path.parent)
        return self

    def _open(self) -> None:
        self._file = self.path.open("ab+", buffering=0)
        _mend(self._file)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; what was added is on disk already."""
        if self._file is not None:
            self._file.close()
        self._file = None

    def check(self) -> None:
        """Raise RunStopped if the output folder is no longer the one in which the run began."""
        if identity_of(self.path.parent) != self._folder:
            raise RunStopped(
                f"stopped: {shown(self.path.parent)} was removed or replaced while the run went on; "
                "run again, and what is no longer there is made anew"
            )

    def add(self, outcome: Outcome) -> None:
        """Append one line and see it to the disk."""
        self.check()
        try:
            if identity_of(self.path) is None:
                self.close()
                self._open()  # Somebody took the log away: what follows is on record at least.
            assert self._file is not None, "the run log is not open"
            _write_line(self._file, json_bytes(outcome.to_json()) + b"\n")
        except OSError as error:
            raise output_error(self.path, error) from error


def _write_line(file: BinaryIO, line: bytes) -> None:
    before = file.seek(0, os.SEEK_END)
    try:
        # An unbuffered file may take less than all, without an error.
        while line:
            line = line[file.write(line) :]
        os.fsync(file.fileno())
    except OSError:
        file.truncate(before)  # Half a line would spoil the next one.
        raise


def _mend(file: BinaryIO) -> None:
    """Begin on a fresh line: drop half a line that a killed run left, end a whole one."""
    file.seek(0)
    content = file.read()
    last = content.rpartition(b"\n")[2]
    if not last:
        return
    ours = _LINE_START.startswith(last[: len(_LINE_START)])
    if ours and not _is_json(last):
        file.truncate(len(content) - len(last))
    else:
        file.write(b"\n")


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True
