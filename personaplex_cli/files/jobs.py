"""Sources become jobs: one file to do each, every output name planned before anything starts."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from personaplex_cli.errors import SettingsError
from personaplex_cli.files.manifest import Row, is_manifest, read_manifest
from personaplex_cli.files.names import (
    DUMP,
    RUN_LOG,
    TRANSCRIPT,
    WAV,
    mode_of,
    real,
    shown,
    stem_of,
    too_long,
)
from personaplex_cli.files.scan import AUDIO_SUFFIXES as AUDIO_SUFFIXES
from personaplex_cli.files.scan import scan_folder
from personaplex_cli.files.targets import folder_faults, target_faults
from personaplex_cli.settings import Persona

LONGEST_LIST_BYTES = 1 << 28
"""Paths of millions of files; what goes on after it does not end."""


@dataclass(frozen=True)
class Job:
    """One file to do.

    `source` is what to open, `name` what the run log calls it, `origin` how the user named it;
    `target` is the outputs' common path without suffix, `place` the same relative to the output folder.
    """

    source: Path
    name: str
    target: Path
    place: str
    persona: Persona
    seed: int
    channel: str | None = None
    fault: str | None = None
    origin: str = ""

    @property
    def wav(self) -> Path:
        """The reply's audio."""
        return self.target.with_name(self.target.name + WAV)

    @property
    def dump(self) -> Path:
        """The reply's tokens."""
        return self.target.with_name(self.target.name + DUMP)

    @property
    def transcript(self) -> Path:
        """The reply's text."""
        return self.target.with_name(self.target.name + TRANSCRIPT)

    @property
    def outputs(self) -> tuple[Path, Path, Path]:
        """All outputs, in the order in which they are written: the dump tells whose the others are."""
        return self.dump, self.wav, self.transcript

    @property
    def output_names(self) -> tuple[str, str, str]:
        """All outputs relative to the output folder, for the run log."""
        return self.place + WAV, self.place + DUMP, self.place + TRANSCRIPT


@dataclass(frozen=True)
class Plan:
    """All jobs of a run, in order."""

    jobs: tuple[Job, ...]
    out: Path

    @property
    def run_log(self) -> Path:
        """Where outcomes are written."""
        return self.out / RUN_LOG

    @property
    def outputs(self) -> Iterator[Path]:
        """Every file that the run may write, the run log besides."""
        return (path for job in self.jobs for path in job.outputs)


def plan_jobs(
    sources: Sequence[str], out: Path, *, persona: Persona, seed: int, stdin: BinaryIO | None = None
) -> Plan:
    """Pair every recording with its outputs, and refuse the whole run while anything is wrong."""
    gathering = _Gathering(Job(Path(), "", out, "", persona, seed), stdin)
    for source in sources:
        gathering.take(source)
    faults = [*folder_faults(out), *gathering.faults, *target_faults(gathering.jobs, out, gathering.lists)]
    if faults:
        raise SettingsError.listing("nothing was converted, because", faults)
    if not gathering.jobs:
        raise SettingsError.listing("no recordings found", gathering.remarks or ["no source was given"])
    return Plan(tuple(gathering.jobs), out)


class _Gathering:
    """Takes sources as `cp` does. `pattern` is a job with what is the same for all."""

    def __init__(self, pattern: Job, stdin: BinaryIO | None) -> None:
        self.jobs: list[Job] = []
        self.faults: list[str] = []
        self.remarks: list[str] = []
        self.lists: list[Path] = []
        self._pattern = pattern
        self._out = pattern.target
        self._real_out = real(pattern.target)
        self._stdin = stdin

    def take(self, source: str) -> None:
        """One source from the command line."""
        if source != "-":
            self._take_path(source)
        elif self._stdin is None:
            self.faults.append("-: can be given once, where standard input holds paths")
        else:
            content = self._stdin.read(LONGEST_LIST_BYTES + 1)
            self._stdin = None
            self._take_list(content)

    def _take_list(self, content: bytes) -> None:
        if len(content) > LONGEST_LIST_BYTES:
            self.faults.append("-: standard input does not end, or holds no paths; give a list of files")
            return
        if _is_audio(content):
            self.faults.append("-: standard input holds audio, not paths; a piped recording is /dev/stdin")
            return
        paths = _listed_paths(content)
        if not paths:
            self.remarks.append("standard input: no paths in it")
        for path in paths:
            self._take_path(path)

    def _take_path(self, source: str) -> None:
        path = Path(source)
        mode = mode_of(path)
        if not source.strip():
            self.faults.append("a source is empty; to take this folder, write .")
        elif not mode:
            self.faults.append(f"{shown(source)}: {_why_unseen(source)}")
        elif stat.S_ISDIR(mode):
            self._take_folder(path)
        elif is_manifest(path):
            self._take_manifest(path)
        else:
            self._add(path, path.name, stem_of(path.name), source)

    def _take_folder(self, root: Path) -> None:
        scan = scan_folder(root, self._out)
        self.faults += scan.faults
        for name in scan.names:
            folder, slash, last = name.rpartition("/")
            self._add(root / name, name, folder + slash + stem_of(last), str(root / name))
        if not scan.names:
            self.remarks.append(
                f"{shown(root)}: no file in it or below ends in {' '.join(sorted(AUDIO_SUFFIXES))}; "
                f"left out: {scan.n_others} of other kinds, {scan.n_own} from earlier runs"
            )

    def _take_manifest(self, path: Path) -> None:
        manifest = read_manifest(path)
        self.lists.append(path)
        self.faults += manifest.faults
        if not manifest.rows:
            self.remarks.append(f"{shown(path)}: no rows in it")
        for row in manifest.rows:
            self._add_row(path, row)

    def _add_row(self, path: Path, row: Row) -> None:
        origin = f"{path} line {row.line}"
        folder = (self._out / row.place).parent
        if not real(folder).is_relative_to(self._real_out):
            self.faults.append(
                f"{shown(origin)}: output: {shown(folder)} leads out of the output folder by a link"
            )
            return
        self._add(row.path, row.name, row.place, origin, row)

    def _add(self, source: Path, name: str, place: str, origin: str, row: Row | None = None) -> None:
        job = replace(
            self._pattern,
            source=source,
            name=name,
            target=self._out / place,
            place=place,
            origin=origin,
            fault=too_long(place),
        )
        self.jobs.append(_with_row(job, row) if row else job)


def _with_row(job: Job, row: Row) -> Job:
    voice = job.persona.voice if row.voice is None else row.voice
    role = job.persona.role if row.role is None else row.role
    persona = replace(job.persona, voice=voice, role=role)
    return replace(job, persona=persona, seed=job.seed if row.seed is None else row.seed, channel=row.channel)


def _is_audio(content: bytes) -> bool:
    """Whether somebody piped a recording where paths are expected. No list of paths begins like one."""
    headed = content[:4] in (b"RIFF", b"RF64", b"FORM") and content[8:12] in (b"WAVE", b"AIFF", b"AIFC")
    return headed or content.startswith((b"fLaC\0\0", b"OggS\0\2", b"ID3\3", b"ID3\4", b"\xff\xfb"))


def _listed_paths(content: bytes) -> list[str]:
    lines = content.split(b"\0" if b"\0" in content else b"\n")
    if all(line.endswith(b"\r") for line in lines if line):
        lines = [line[:-1] for line in lines]
    return [os.fsdecode(line) for line in lines if line.strip()]


def _why_unseen(source: str) -> str:
    try:
        Path(source).stat()
    except OSError as error:
        linked = os.path.lexists(source)
        return "a link to nothing" if linked and isinstance(error, FileNotFoundError) else f"{error.strerror}"
    except ValueError as error:
        return str(error)
    return "no such file"
