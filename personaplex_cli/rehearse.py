"""The rehearsal: what a run would do, how much memory and about how much time it would take."""

from __future__ import annotations

from dataclasses import dataclass, replace

from personaplex_cli import estimate
from personaplex_cli.files.jobs import Plan
from personaplex_cli.files.runlog import Outcome
from personaplex_cli.model.checkpoint import Checkpoint
from personaplex_cli.record import Facts
from personaplex_cli.schedule import Scheduled, make_schedule
from personaplex_cli.settings import Choices
from personaplex_cli.studio import Reckoning, Studio


@dataclass(frozen=True)
class Forecast:
    """What a run would do: an outcome for every job, and what it would take. wall_seconds: as measured."""

    outcomes: tuple[Outcome, ...]
    reckoning: Reckoning | None
    n_frames: int
    wall_seconds: float

    @property
    def all_well(self) -> bool:
        """Whether nothing is known to fail."""
        return all(outcome.status != "failed" for outcome in self.outcomes)


def rehearse(plan: Plan, checkpoint: Checkpoint, choices: Choices) -> Forecast:
    """What `convert` would do, without the language model, and without a trace."""
    studio = Studio(checkpoint, choices.device)
    schedule = make_schedule(plan, studio, Facts(studio, choices), choices)
    wall_seconds = 0.0
    if schedule.reckoning:
        turns = [(each.n_prompt_frames, each.n_frames) for each in schedule.due]
        n_personas = len({each.job.persona for each in schedule.due})
        n_slots = schedule.reckoning.n_slots
        wall_seconds = estimate.wall_seconds(studio, turns, n_personas, n_slots, choices.sampling)
    outcomes = {
        **{job: Outcome(source=job.name, status="skipped") for job in schedule.skipped},
        **{
            job: Outcome(source=job.name, status="failed", reason=error.message)
            for job, error in schedule.refused
        },
        **{each.job: planned(each) for each in schedule.due},
    }
    # In the order of the sources, as the user knows them.
    in_order = tuple(replace(outcomes[job], outputs=job.output_names) for job in plan.jobs)
    return Forecast(in_order, schedule.reckoning, schedule.n_frames, wall_seconds)


def planned(each: Scheduled) -> Outcome:
    """A job that would be done; a pipe does not tell its length."""
    seconds = round(each.audio_seconds, 6) or None
    return Outcome(source=each.job.name, status="planned", audio_seconds=seconds)
