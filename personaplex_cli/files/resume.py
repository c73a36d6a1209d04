"""Going on where a run stopped: what is done, what is to do, and what must not be touched."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from personaplex_cli.errors import DumpError, JobError, SettingsError
from personaplex_cli.files.dump import read_metadata
from personaplex_cli.files.jobs import Job
from personaplex_cli.files.names import mode_of, shown

State = Literal["absent", "partial", "complete", "foreign"]
_ADVICE = "pass --overwrite, or choose another folder"


@dataclass(frozen=True)
class Sorted:
    """Jobs to do, and jobs whose outputs are there already, made from the same input and settings."""

    todo: tuple[Job, ...]
    skipped: tuple[Job, ...]


def fingerprint(facts: Mapping[str, object]) -> str:
    """One hash of all that a reply depends on, in whatever order the facts come."""
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def recorded_fingerprint(job: Job) -> str | None:
    """The fingerprint in the dump that is there; None where there is no whole dump of ours."""
    try:
        return read_metadata(job.dump).get("fingerprint")
    except DumpError:
        return None


def state_of(job: Job) -> State:
    """What stands where the outputs go: nothing, a part of a reply, a reply, or something else."""
    if not any(os.path.lexists(path) for path in job.outputs):
        return "absent"
    recorded = recorded_fingerprint(job)
    if recorded is None:
        return "foreign"
    # The dump is written first and the transcript last: where they agree, what is between them belongs to
    # them too; where they do not, a run that replaced older outputs was killed half-way.
    whole = job.wav.is_file() and _transcript_fingerprint(job) == recorded
    return "complete" if whole else "partial"


def _transcript_fingerprint(job: Job) -> object:
    try:
        transcript = json.loads(job.transcript.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return transcript.get("fingerprint") if isinstance(transcript, dict) else None


def sort_out(jobs: Iterable[Job], fingerprint_of: Callable[[Job], str], *, overwrite: bool) -> Sorted:
    """Skip what is done already, and refuse the whole run where an output would be lost."""
    jobs = tuple(jobs)
    if overwrite:
        return Sorted(jobs, ())
    todo, skipped, faults = [], [], []
    for job in jobs:
        verdict = _judge(job, fingerprint_of)
        if verdict == "todo":
            todo.append(job)
        elif verdict == "done":
            skipped.append(job)
        else:
            faults.append(verdict)
    if faults:
        raise SettingsError.listing(
            f"nothing was converted, because outputs exist already ({_ADVICE})", faults
        )
    return Sorted(tuple(todo), tuple(skipped))


def _judge(job: Job, fingerprint_of: Callable[[Job], str]) -> str:
    """`todo`, `done`, or why the outputs that are there must stay."""
    state = "absent" if job.fault else state_of(job)
    if state == "absent":
        return "todo"
    if state == "foreign":
        return f"{_standing(job)}: not a whole output of this tool"
    mode = mode_of(job.source)
    if mode and not stat.S_ISREG(mode):
        return f"{_standing(job)}: cannot be compared with {shown(job.origin)}, which is no regular file"
    try:
        same = fingerprint_of(job) == recorded_fingerprint(job)
    except (OSError, JobError):
        return "todo"  # Its input has vanished or cannot be read: it fails alone, and nothing is written.
    if not same:
        return f"{_standing(job)}: was made from other input or settings"
    return "done" if state == "complete" else "todo"


def _standing(job: Job) -> str:
    return shown(next(path for path in (job.wav, job.dump, job.transcript) if os.path.lexists(path)))
