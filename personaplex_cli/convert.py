"""The corridor: recordings -> codes -> turns -> replies -> files. One file's failure stays one file's."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
from torch import Tensor

from personaplex_cli.audio.codec import CHUNK_FRAMES
from personaplex_cli.audio.pcm import Pcm, Recording, fit, side_by_side, whole_frames, write_wav
from personaplex_cli.digest import file_sha256
from personaplex_cli.engine.generate import generate
from personaplex_cli.engine.turns import Prompt, Reply, Turn, lay_out, on_stream_timeline, user_codes
from personaplex_cli.errors import JobError, RunStopped
from personaplex_cli.files.atomic import finished_files, is_disk_full, sweep_partials
from personaplex_cli.files.dump import Record, TokenDump, write_dump, write_transcript
from personaplex_cli.files.jobs import Job, Plan
from personaplex_cli.files.runlog import Outcome, RunLog
from personaplex_cli.files.spool import OnDisk
from personaplex_cli.model.checkpoint import Checkpoint
from personaplex_cli.model.device import DTYPES, is_out_of_memory
from personaplex_cli.record import Facts
from personaplex_cli.schedule import Schedule, Scheduled, make_schedule, recording_of
from personaplex_cli.settings import Choices
from personaplex_cli.studio import Studio

PIPE_SECONDS = 60.0
"""How long a pipe may say nothing while other files wait."""


class Window(Protocol):
    """Where a run is watched from."""

    def remark(self, line: str) -> None:
        """Something worth a line."""

    def begin(self, n_files: int, n_frames: int) -> None:
        """The work begins: so many files, so many frames as far as their headers tell."""

    def frames(self, n_frames: int, n_places: int) -> None:
        """So many more frames are done, in slots that had room for so many."""

    def outcome(self, outcome: Outcome) -> None:
        """A file is finished, or has failed, or need not be done."""


@dataclass
class Underway:
    """A job between its reading and its writing."""

    job: Job
    source: OnDisk
    recording: Recording
    sha256: str
    began: float = field(default_factory=time.monotonic)


def convert(plan: Plan, checkpoint: Checkpoint, choices: Choices, window: Window) -> bool:
    """Answer every recording of a plan. -> whether all of them have their replies now

    What is done is skipped, and all that is known to be wrong refused, before the model is loaded.
    """
    studio = Studio(checkpoint, choices.device)
    facts = Facts(studio, choices)
    schedule = make_schedule(plan, studio, facts, choices)
    if schedule.reckoning and not (choices.fail_fast and schedule.refused):
        if choices.batching.batch_size != schedule.reckoning.n_slots:
            window.remark(schedule.reckoning.line)
        studio.load()
    sweep_partials(plan.outputs)
    with RunLog(plan.run_log) as log:
        run = Run(studio, choices, facts, log, window)
        for job in schedule.skipped:
            run.settle(Outcome(source=job.name, status="skipped", outputs=job.output_names))
        for job, error in schedule.refused:
            run.fail(job, error)
        run.answer(schedule)
    assert run.n_settled == len(plan.jobs), "a job was lost"
    return not run.n_failed


class Run:
    """One run over its jobs."""

    def __init__(self, studio: Studio, choices: Choices, facts: Facts, log: RunLog, window: Window) -> None:
        self.studio, self.choices, self.facts, self.log, self.window = studio, choices, facts, log, window
        self.underway: dict[Turn, Underway] = {}
        self.n_failed = self.n_settled = 0
        self.disk_was_full = False

    def answer(self, schedule: Schedule) -> None:
        """Generate the replies and write each as it finishes."""
        if not schedule.reckoning:
            return
        self.window.begin(len(schedule.due), schedule.n_frames)
        for answered in generate(
            self.studio.lm,
            self.turns(schedule.due),
            n_slots=schedule.reckoning.n_slots,
            sampling=self.choices.sampling,
            on_frames=self.window.frames,
            on_shrink=self.shrunk,
        ):
            underway = self.underway.pop(answered.turn)
            with underway.source:
                if isinstance(answered, Reply):
                    self.finish(underway, answered)
                else:
                    self.fail(underway.job, out_of_memory(underway.job, "to answer it, even alone"))

    def shrunk(self, n_slots: int, n_begun: int) -> None:
        """Tell of a smaller batch."""
        self.window.remark(
            f"out of memory: batch size {n_slots} from now on; {n_begun} recordings in the slots begin again"
        )

    def turns(self, due: Sequence[Scheduled]) -> Iterator[Turn]:
        """Read and encode the recordings, one after another, as slots fall free."""
        # A pipe may keep its reader waiting for ever, but not the other files.
        idle_seconds = PIPE_SECONDS if len(due) > 1 else None
        for each in due:
            if turn := self.begin(each, idle_seconds):
                yield turn

    def begin(self, each: Scheduled, idle_seconds: float | None) -> Turn | None:
        """Read, encode and lay out a job's recording; None where that fails."""
        job = each.job
        with ExitStack() as until_begun:
            try:
                with memory_failures(job, "to begin it"):
                    source = until_begun.enter_context(OnDisk(job.source, idle_seconds, each.stamp))
                    underway = Underway(job, source, self.recording(job, source), sha256_of(job, source))
                    heard = self.studio.codec.encode_one(underway.recording.blocks())
                    source.check()
                    turn = self.turn(underway, heard)
            except JobError as error:
                self.fail(job, error)
                return None
            until_begun.pop_all()
        return turn

    def recording(self, job: Job, source: OnDisk) -> Recording:
        """What the user says in a job."""
        return recording_of(job, source.path, self.studio, self.choices)

    def turn(self, underway: Underway, heard: Tensor) -> Turn:
        """Persona and user join."""
        job = underway.job
        prompt = self.studio.prompts.prompt_of(job.persona)
        turn = lay_out(prompt, heard, self.studio.config, name=job.name, seed=job.seed)
        self.underway[turn] = underway
        if turn.n_positions > self.studio.config.ring_columns:
            underway.recording.warnings.append(self.window_warning(prompt))
        return turn

    def window_warning(self, prompt: Prompt) -> str:
        """When a long recording's persona is forgotten."""
        config = self.studio.config
        window = config.ring_columns / config.frame_rate
        left = max(0.0, (config.ring_columns - prompt.n_frames) / config.frame_rate)
        return f"exceeds the model's window of {window:.2f} s: from {left:.2f} s on the prompt leaves it"

    def finish(self, underway: Underway, reply: Reply) -> None:
        """Write a reply's files, which appear together."""
        job = underway.job
        self.log.check()
        try:
            record = self.facts.record_of(job, underway.recording, underway.sha256)
            shown = self.on_timeline(reply)
            with (
                memory_failures(job, "to make its audio"),
                finished_files(*job.outputs) as (dump, wav, transcript),
            ):
                write_dump(dump, token_dump(reply, user_codes(reply.turn, self.studio.config), record))
                n_clamped = self.write_wav(wav, underway, shown[1:])
                self.write_transcript(transcript, record, shown[0].tolist())
        except JobError as error:
            self.fail(job, error)
        else:
            self.settle(converted(underway, n_clamped))

    def on_timeline(self, reply: Reply) -> Tensor:
        """The reply's tokens as they will be heard. [9, F]"""
        if self.choices.timeline == "aligned":
            return reply.tokens
        return on_stream_timeline(reply, self.studio.config)

    def write_wav(self, path: Path, underway: Underway, codes: Tensor) -> int:
        """Decode codes [8, F] into the reply's WAV, as long as the recording. -> clamped samples"""
        codec, n_samples = self.studio.codec, underway.recording.n_samples
        blocks: Iterable[Pcm] = codec.decode_one(codes, DTYPES[self.studio.decode_dtype_name])
        if self.choices.stereo:
            user = self.recording(underway.job, underway.source).blocks()
            per_frame = codec.samples_per_frame
            blocks = side_by_side(whole_frames(user, CHUNK_FRAMES * per_frame, per_frame), blocks)
        n_channels = 2 if self.choices.stereo else 1
        n_clamped = write_wav(path, fit(blocks, n_samples), self.studio.config.sample_rate, n_channels)
        if self.choices.stereo:
            underway.source.check()
        return n_clamped

    def write_transcript(self, path: Path, record: Record, text_tokens: Sequence[int]) -> None:
        """Write what was said, with times."""
        tokenizer = self.studio.tokenizer
        write_transcript(
            path,
            record,
            text=tokenizer.text(text_tokens),
            words=[(word.word, word.start, word.end) for word in tokenizer.words(text_tokens)],
            pieces=tokenizer.frame_pieces(text_tokens),
        )

    def fail(self, job: Job, error: JobError) -> None:
        """A job has failed; the others go on."""
        self.n_failed += 1
        self.settle(Outcome(source=job.name, status="failed", reason=error.message))
        if self.choices.fail_fast:
            raise RunStopped(f"stopped at the first failure: {job.name}") from error
        if is_disk_full(error) and self.disk_was_full:
            raise RunStopped("stopped: the disk is full; make room and run again, finished files are kept")
        self.disk_was_full = is_disk_full(error)

    def settle(self, outcome: Outcome) -> None:
        """Put an outcome on record."""
        self.n_settled += 1
        self.log.add(outcome)
        self.window.outcome(outcome)


@contextmanager
def memory_failures(job: Job, what_for: str) -> Iterator[None]:
    """Where the memory runs out, the job fails."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise out_of_memory(job, what_for) from error


def out_of_memory(job: Job, what_for: str) -> JobError:
    """There is not enough memory for a job."""
    return JobError(
        f"{job.source}: not enough memory {what_for}; use --dtype bfloat16, a shorter recording, "
        "or a larger machine"
    )


def sha256_of(job: Job, source: OnDisk) -> str:
    """The input's hash, or its failure."""
    try:
        return file_sha256(source.path)
    except OSError as error:
        raise JobError(f"{job.source}: cannot be read: {error.strerror}") from error


def token_dump(reply: Reply, user: Tensor, record: Record) -> TokenDump:
    """A reply's tokens on the aligned timeline, whatever the WAV's."""
    text, agent = reply.tokens[0], reply.tokens[1:]
    return TokenDump(
        text.numpy().astype(np.int32),
        agent.numpy().astype(np.int16),
        user.numpy().astype(np.int16),
        record.to_metadata(),
    )


def converted(underway: Underway, n_clamped: int) -> Outcome:
    """A job well done."""
    recording = underway.recording
    return Outcome(
        source=underway.job.name,
        status="converted",
        warnings=tuple(recording.warnings),
        outputs=underway.job.output_names,
        audio_seconds=round(recording.n_samples / recording.sample_rate, 6),
        wall_seconds=round(time.monotonic() - underway.began, 3),
        extra={
            "source_sample_rate": recording.source_sample_rate,
            "clipped_input_samples": recording.n_clipped,
            "clamped_output_samples": n_clamped,
            "nonfinite_input_samples": recording.n_nonfinite,
        },
    )
