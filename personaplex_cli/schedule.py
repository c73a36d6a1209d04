"""The order of the day: what is done, what cannot be, what is to do, in which order and how many at once.

All of it is known from names and headers, before the language model is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from personaplex_cli.audio.pcm import Recording
from personaplex_cli.config.facts import frames_of
from personaplex_cli.engine.slots import PROMPTS_KEPT
from personaplex_cli.errors import JobError
from personaplex_cli.files.jobs import Job, Plan
from personaplex_cli.files.resume import sort_out
from personaplex_cli.files.spool import Stamp, stamp_of
from personaplex_cli.record import Facts
from personaplex_cli.settings import Choices
from personaplex_cli.studio import Demand, Reckoning, Studio

FRAMES_ALIKE = 125
"""Recordings whose lengths differ by less (10 s) may begin in any order."""


@dataclass(frozen=True)
class Scheduled:
    """A job to do: what its header promises (0 = unknown), its prompt's frames, how its file looked."""

    job: Job
    audio_seconds: float
    n_frames: int
    n_prompt_frames: int
    stamp: Stamp | None


@dataclass(frozen=True)
class Schedule:
    """What is due, in order; what is done already; what cannot be done. reckoning None: nothing is due."""

    due: tuple[Scheduled, ...]
    skipped: tuple[Job, ...]
    refused: tuple[tuple[Job, JobError], ...]
    reckoning: Reckoning | None

    @property
    def n_frames(self) -> int:
        """Frames to answer, as far as headers tell."""
        return sum(each.n_frames for each in self.due)


def make_schedule(plan: Plan, studio: Studio, facts: Facts, choices: Choices) -> Schedule:
    """Look at everything. Refuses the whole run for outputs that would be lost, and for personas that cannot
    be used; a file that cannot be used is refused alone."""
    sorted_out = sort_out(plan.jobs, facts.fingerprint_of, overwrite=choices.overwrite)
    personas = list(dict.fromkeys(job.persona for job in sorted_out.todo))
    if personas:
        studio.prompts.check(personas)
    prompt_frames = {persona: studio.prompts.measure(persona) for persona in personas}
    due, refused = [], []
    for job in sorted_out.todo:
        facts.voice(job.persona.voice)
        try:
            seconds = promised_seconds(job, studio, choices)
            n_frames = frames_of(studio.config, seconds)
            due.append(Scheduled(job, seconds, n_frames, prompt_frames[job.persona], stamp_of(job.source)))
        except JobError as error:
            refused.append((job, error))
    reckoning = None
    if due:
        demand = Demand(
            # Of all that were planned, not of what is left: a run that goes on shall compute as it began.
            n_jobs=len(plan.jobs),
            n_personas=len({job.persona for job in plan.jobs}),
            n_prompt_frames=max(each.n_prompt_frames for each in due),
            n_frames=max(each.n_frames for each in due),
        )
        reckoning = studio.reckon(demand, choices.batching.batch_size)
    return Schedule(in_order(due), sorted_out.skipped, tuple(refused), reckoning)


def promised_seconds(job: Job, studio: Studio, choices: Choices) -> float:
    """As far as the header tells, with padding. Raises JobError for what it shows to be of no use."""
    if job.fault:
        raise JobError(job.fault)
    seconds = recording_of(job, job.source, studio, choices).promised_seconds()
    return seconds + choices.pad_start_seconds + choices.pad_end_seconds


def recording_of(job: Job, path: Path, studio: Studio, choices: Choices) -> Recording:
    """What the user says in a job, read from `path`."""
    rate = studio.config.sample_rate
    return Recording(
        path,
        rate,
        job.channel or choices.channel,
        n_before=round(choices.pad_start_seconds * rate),
        n_after=round(choices.pad_end_seconds * rate),
        fix_nonfinite=choices.fix_nonfinite,
        longest_seconds=choices.longest_seconds,
        called=job.source,
    )


def in_order(due: Sequence[Scheduled]) -> tuple[Scheduled, ...]:
    """Long recordings first, so that slots finish close together. Where there are more personas than are kept
    in memory, those about equal go by persona, so that each is read once."""
    personas = dict.fromkeys(each.job.persona for each in due)
    if len(personas) <= PROMPTS_KEPT:
        return tuple(sorted(due, key=lambda each: -each.n_frames))
    rank = {persona: index for index, persona in enumerate(personas)}
    return tuple(
        sorted(
            due, key=lambda each: (-(each.n_frames // FRAMES_ALIKE), rank[each.job.persona], -each.n_frames)
        )
    )
