"""Whether all outputs of a plan can be written, each to a place of its own, and over nobody's input."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from personaplex_cli.files.names import RUN_LOG, identity_of, mode_of, real, sameness, shown

if TYPE_CHECKING:
    from personaplex_cli.files.jobs import Job


def folder_faults(out: Path) -> Iterator[str]:
    """Why nothing could be written in the output folder, as far as that shows beforehand."""
    standing = next((path for path in (out, *out.absolute().parents) if os.path.lexists(path)), Path())
    if not mode_of(standing):
        yield f"{shown(standing)}: a link to nothing; outputs need a folder"
    elif not stat.S_ISDIR(mode_of(standing)):
        yield f"{shown(standing)}: a file; outputs need a folder"
    elif not os.access(standing, os.W_OK | os.X_OK):
        yield f"{shown(standing)}: not permitted to write there; choose another folder"


def target_faults(jobs: Sequence[Job], out: Path, lists: Iterable[Path]) -> list[str]:
    """Two jobs with one output, a folder where an output goes or the reverse, an output that is an input."""
    spot = _Spots()
    return [
        *_collisions(jobs, spot),
        *_blocked(jobs, out),
        *_occupied(jobs, out),
        *_overwritten(jobs, out, lists, spot),
    ]


class _Spots:
    """Where a path really stands; every folder is resolved once."""

    def __init__(self) -> None:
        self._folders: dict[Path, Path] = {}

    def __call__(self, path: Path) -> Path:
        # The last part is not resolved: a link is replaced by an output, not what it leads to.
        if path.parent not in self._folders:
            self._folders[path.parent] = real(path.parent)
        return self._folders[path.parent] / path.name


def _collisions(jobs: Sequence[Job], spot: _Spots) -> Iterator[str]:
    groups: dict[str, list[Job]] = {}
    for job in jobs:
        groups.setdefault(sameness(str(spot(job.target))), []).append(job)
    for group in groups.values():
        if len(group) > 1:
            origins = " and ".join(shown(job.origin) for job in group)
            yield (
                f"{origins} would both be written to {shown(group[0].wav)}; "
                "convert them into different folders, or name their outputs in a manifest"
            )


def _blocked(jobs: Sequence[Job], out: Path) -> Iterator[str]:
    # `x.flac` becomes the file OUT/x.wav; then `x.wav/b.flac` cannot have a folder OUT/x.wav.
    files = {sameness(name) for job in jobs for name in job.output_names} | {RUN_LOG}
    for job in jobs:
        for folder in PurePosixPath(job.place).parents:
            if sameness(str(folder)) in files:
                where = shown(out / folder)
                yield f"{shown(job.origin)} needs a folder {where}, where a file is to be written"


def _occupied(jobs: Sequence[Job], out: Path) -> Iterator[str]:
    for path in (*(path for job in jobs for path in job.outputs), out / RUN_LOG):
        if stat.S_ISDIR(mode_of(path)):
            yield f"{shown(path)}: a folder stands where a file is to be written; move it, or choose another"


def _overwritten(jobs: Sequence[Job], out: Path, lists: Iterable[Path], spot: _Spots) -> Iterator[str]:
    voices = {Path(job.persona.voice) for job in jobs if job.persona.voice}
    inputs = [*(job.source for job in jobs), *lists, *(voice for voice in voices if mode_of(voice))]
    spots = {spot(path) for path in inputs}
    identities = {identity for path in inputs if (identity := identity_of(path))}
    for path in (*(path for job in jobs for path in job.outputs), out / RUN_LOG):
        if spot(path) in spots or identity_of(path) in identities:
            yield f"{shown(path)}: an input would be overwritten; choose another output folder"
