"""The corridor: recordings -> codes -> turns -> replies -> files. One file's failure stays one file's."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Protocol

import numpy as np
from torch import Tensor

from personaplex_cli.audio.codec import CHUNK_FRAMES
from personaplex_cli.audio.pcm import Pcm, Recording, fit, seconds_of, side_by_side, whole_frames, write_wav
from personaplex_cli.config.facts import frames_of
from personaplex_cli.engine.generate import generate
from personaplex_cli.engine.turns import Prompt, Reply, Turn, lay_out, on_stream_timeline, user_codes
from personaplex_cli.errors import JobError, RunStopped
from personaplex_cli.files.atomic import finished_file, is_disk_full, sweep_partials
from personaplex_cli.files.dump import Record, TokenDump, write_dump, write_transcript
from personaplex_cli.files.jobs import Job, Plan
from personaplex_cli.files.resume import file_sha256, sort_out, state_of
from personaplex_cli.files.runlog import Outcome, RunLog
from personaplex_cli.files.spool import OnDisk
from personaplex_cli.model.checkpoint import Checkpoint
from personaplex_cli.record import Facts
from personaplex_cli.settings import Choices
from personaplex_cli.studio import Studio

FRAMES_ALIKE = 125
"""Recordings whose lengths differ by less (10 s) may begin in any order."""


class Window(Protocol):
    """Where a run is watched from."""

    def remark(self, line: str) -> None:
        """Something worth a line."""

    def begin(self, n_files: int, n_frames: int) -> None:
        """The work begins: so many files, so many frames as far as their headers tell."""

    def frames(self, n_frames: int) -> None:
        """So many more frames are done."""

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
    jobs = sort_out(plan.jobs, facts.fingerprint_of, overwrite=choices.overwrite)
    queue = Queue.of(jobs.todo, studio, choices.pad_start_seconds + choices.pad_end_seconds)
    n_slots = batch_size(queue, len(plan.jobs), studio, choices, window) if jobs.todo else 0
    for job in jobs.todo:
        facts.voice(job.persona.voice)
    if jobs.todo:
        studio.load()
    sweep_partials(plan.outputs)
    with RunLog(plan.run_log) as log:
        run = Run(studio, choices, facts, log, window)
        for job in jobs.skipped:
            run.settle(Outcome(source=job.name, status="skipped", outputs=job.output_names))
        if jobs.todo:
            run.answer(queue, n_slots)
    return not run.n_failed


@dataclass(frozen=True)
class Queue:
    """Jobs in the order in which they begin, and the frames that their headers promise."""

    jobs: tuple[Job, ...]
    n_frames: int
    longest: int
    longest_prompt: int

    @classmethod
    def of(cls, jobs: Sequence[Job], studio: Studio, padding_seconds: float = 0.0) -> Queue:
        """Long recordings first, so that slots finish close together; of those about equal, by persona, so
        that its memory is made once. Refuses personas that cannot be used."""
        if not jobs:
            return cls((), 0, 0, 0)
        personas = list(dict.fromkeys(job.persona for job in jobs))
        studio.prompts.check(personas)
        rank = {persona: index for index, persona in enumerate(personas)}
        seconds = {job: seconds_of(job.source) + padding_seconds for job in jobs}
        frames = {job: frames_of(studio.config, seconds[job]) for job in jobs}
        ordered = sorted(
            jobs, key=lambda job: (-(frames[job] // FRAMES_ALIKE), rank[job.persona], -frames[job])
        )
        prompts = (studio.prompts.measure(persona) for persona in personas)
        return cls(tuple(ordered), sum(frames.values()), max(frames.values()), max(prompts))


def batch_size(queue: Queue, n_planned: int, studio: Studio, choices: Choices, window: Window) -> int:
    """The user's, or what the memory allows for the longest turn.

    Of all that were planned, not of what is left: a run that goes on shall compute as it began.
    """
    if choices.batching.batch_size is not None:
        return choices.batching.batch_size
    n_slots, reckoning = studio.slots_that_fit(n_planned, queue.longest_prompt + queue.longest)
    window.remark(reckoning)
    return n_slots


class Run:
    """One run over its jobs."""

    def __init__(self, studio: Studio, choices: Choices, facts: Facts, log: RunLog, window: Window) -> None:
        self.studio, self.choices, self.facts, self.log, self.window = studio, choices, facts, log, window
        self.underway: dict[Turn, Underway] = {}
        self.n_failed = 0
        self.disk_was_full = False

    def answer(self, queue: Queue, n_slots: int) -> None:
        """Generate the replies and write each as it finishes."""
        self.window.begin(len(queue.jobs), queue.n_frames)
        for reply in generate(
            self.studio.lm,
            self.turns(queue.jobs),
            n_slots=n_slots,
            sampling=self.choices.sampling,
            on_frames=self.window.frames,
        ):
            self.finish(self.underway.pop(reply.turn), reply)

    def turns(self, jobs: Iterable[Job]) -> Iterator[Turn]:
        """Read and encode the recordings, as many side by side as suits the device, as slots fall free."""
        waiting = iter(jobs)
        while group := list(islice(waiting, self.studio.n_codec_rows)):
            opened = [underway for job in group if (underway := self.open(job))]
            readings = [Reading(underway.recording) for underway in opened]
            codes = self.studio.codec.encode(readings) if opened else []
            for underway, reading, heard in zip(opened, readings, codes, strict=True):
                if reading.error:
                    self.fail(underway.job, reading.error)
                    underway.source.close()
                else:
                    yield self.turn(underway, heard)

    def open(self, job: Job) -> Underway | None:
        """Begin a job, or say why it cannot be begun."""
        try:
            if job.fault:
                raise JobError(job.fault)
            source = OnDisk(job.source)
            return Underway(job, source, self.recording(job, source), sha256_of(job, source))
        except JobError as error:
            self.fail(job, error)
            return None

    def recording(self, job: Job, source: OnDisk) -> Recording:
        """What the user says in a job."""
        rate, choices = self.studio.config.sample_rate, self.choices
        n_before, n_after = round(choices.pad_start_seconds * rate), round(choices.pad_end_seconds * rate)
        return Recording(source.path, rate, job.channel or choices.channel, n_before, n_after)

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
        """Write a reply's files: the dump first, the transcript last, so that a part is known as a part."""
        job = underway.job
        in_part: tuple[Path, ...] = ()
        try:
            record = self.facts.record_of(job, underway.recording, underway.sha256)
            write_dump(job.dump, token_dump(reply, user_codes(reply.turn, self.studio.config), record))
            in_part = job.outputs
            shown = self.on_timeline(reply)
            n_clamped = self.write_wav(underway, shown[1:])
            self.write_transcript(job, record, shown[0].tolist())
        except BaseException as error:
            # Whatever stops us, Ctrl-C too: no reply stays in part, or with a part of an older one.
            for path in in_part if state_of(job) != "complete" else ():
                with suppress(OSError):
                    path.unlink()
            if not isinstance(error, JobError):
                raise
            self.fail(job, error)
        else:
            self.settle(converted(underway, n_clamped))
        finally:
            underway.source.close()

    def on_timeline(self, reply: Reply) -> Tensor:
        """The reply's tokens as they will be heard. [9, F]"""
        if self.choices.timeline == "aligned":
            return reply.tokens
        return on_stream_timeline(reply, self.studio.config)

    def write_wav(self, underway: Underway, codes: Tensor) -> int:
        """Decode codes [8, F] into the reply's WAV, as long as the recording. -> clamped samples"""
        codec, n_samples = self.studio.codec, underway.recording.n_samples
        blocks: Iterable[Pcm] = codec.decode_one(codes)
        if self.choices.stereo:
            if sha256_of(underway.job, underway.source) != underway.sha256:
                raise JobError(f"{underway.job.source}: has changed since it was read; run again")
            user = self.recording(underway.job, underway.source).blocks()
            per_frame = codec.samples_per_frame
            blocks = side_by_side(whole_frames(user, CHUNK_FRAMES * per_frame, per_frame), blocks)
        with finished_file(underway.job.wav) as partial:
            n_channels = 2 if self.choices.stereo else 1
            return write_wav(partial, fit(blocks, n_samples), self.studio.config.sample_rate, n_channels)

    def write_transcript(self, job: Job, record: Record, text_tokens: Sequence[int]) -> None:
        """Write what was said, with times."""
        tokenizer = self.studio.tokenizer
        write_transcript(
            job.transcript,
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
        self.log.add(outcome)
        self.window.outcome(outcome)


class Reading:
    """A recording's blocks; a failure ends them and is kept, so that a neighbour in the codec goes on."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.error: JobError | None = None

    def __iter__(self) -> Iterator[Pcm]:
        try:
            yield from self.recording.blocks()
        except JobError as error:
            self.error = error


def sha256_of(job: Job, source: OnDisk) -> str:
    """The input's hash, or its failure."""
    try:
        return file_sha256(source.path)
    except OSError as error:
        source.close()
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
        },
    )
