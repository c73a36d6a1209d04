"""The corridor: recordings -> codes -> turns -> replies -> files. One file's failure stays one file's."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from personaplex_cli import __version__
from personaplex_cli.audio.codec import CHUNK_FRAMES
from personaplex_cli.audio.pcm import Pcm, Recording, fit, seconds_of, side_by_side, whole_frames, write_wav
from personaplex_cli.config.facts import frames_of
from personaplex_cli.config.load import config_hash
from personaplex_cli.engine.generate import generate
from personaplex_cli.engine.turns import Prompt, Reply, Turn, lay_out, on_stream_timeline, user_codes
from personaplex_cli.errors import JobError, SettingsError
from personaplex_cli.files.atomic import finished_file, sweep_partials
from personaplex_cli.files.dump import Record, TokenDump, read_dump, write_dump, write_transcript
from personaplex_cli.files.jobs import Job, Plan
from personaplex_cli.files.resume import file_sha256, fingerprint, sort_out, state_of
from personaplex_cli.files.runlog import Outcome, RunLog
from personaplex_cli.files.spool import OnDisk
from personaplex_cli.model.checkpoint import Checkpoint
from personaplex_cli.prompt import voice_path
from personaplex_cli.settings import Batching, Device, Sampling, Timeline
from personaplex_cli.studio import Studio


@dataclass(frozen=True)
class Choices:
    """What the user chose for all files of a run."""

    sampling: Sampling = field(default_factory=Sampling)
    batching: Batching = field(default_factory=Batching)
    device: Device = field(default_factory=Device)
    timeline: Timeline = "aligned"
    stereo: bool = False
    channel: str = "0"
    overwrite: bool = False


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
    if jobs.todo:
        studio.prompts.check([job.persona for job in jobs.todo])
    sweep_partials(plan.outputs)
    with RunLog(plan.run_log) as log:
        run = Run(studio, choices, facts, log, window)
        for job in jobs.skipped:
            run.settle(Outcome(source=job.name, status="skipped", outputs=job.output_names))
        if jobs.todo:
            run.answer(jobs.todo)
    return not run.n_failed


class Run:
    """One run over its jobs."""

    def __init__(self, studio: Studio, choices: Choices, facts: Facts, log: RunLog, window: Window) -> None:
        self.studio, self.choices, self.facts, self.log, self.window = studio, choices, facts, log, window
        self.underway: dict[int, Underway] = {}
        self.n_failed = 0

    def answer(self, jobs: Sequence[Job]) -> None:
        """Generate the replies and write each as it finishes."""
        n_frames = {job: frames_of(self.studio.config, seconds_of(job.source)) for job in jobs}
        # Longest first: the slots then finish close together, and the rings are made long enough at once.
        jobs = sorted(jobs, key=lambda job: -n_frames[job])
        n_slots = self.n_slots(jobs, n_frames[jobs[0]])
        self.window.begin(len(jobs), sum(n_frames.values()))
        for reply in generate(
            self.studio.lm,
            self.turns(jobs),
            n_slots=n_slots,
            sampling=self.choices.sampling,
            on_frames=self.window.frames,
        ):
            self.finish(self.underway.pop(reply.turn.key), reply)

    def n_slots(self, jobs: Sequence[Job], n_frames: int) -> int:
        """The batch size: the user's, or what the memory allows for the longest turn."""
        longest_prompt = max(
            self.studio.prompts.measure(persona) for persona in {job.persona for job in jobs}
        )
        if (chosen := self.choices.batching.batch_size) is not None:
            return chosen
        n_slots, reckoning = self.studio.slots_that_fit(len(jobs), longest_prompt + n_frames)
        self.window.remark(reckoning)
        return n_slots

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
            recording = self.recording(job, source)
            return Underway(job, source, recording, sha256_of(job, source.path))
        except JobError as error:
            self.fail(job, error)
            return None

    def recording(self, job: Job, source: OnDisk) -> Recording:
        """What the user says in a job."""
        return Recording(source.path, self.studio.config.sample_rate, job.channel or self.choices.channel)

    def turn(self, underway: Underway, heard: Tensor) -> Turn:
        """Persona and user join."""
        job, key = underway.job, id(underway)
        self.underway[key] = underway
        prompt = self.studio.prompts.prompt_of(job.persona)
        turn = lay_out(prompt, heard, self.studio.config, key=key, name=job.name, seed=job.seed)
        if turn.n_positions > self.studio.config.ring_columns:
            underway.recording.warnings.append(self.window_warning(prompt))
        return turn

    def window_warning(self, prompt: Prompt) -> str:
        """When a long recording's persona is forgotten."""
        config = self.studio.config
        window = config.ring_columns / config.frame_rate
        left = max(0.0, (config.ring_columns - prompt.n_frames) / config.frame_rate)
        return f"longer than the model's window of {window:.2f} s: from {left:.2f} s on the prompt leaves it"

    def finish(self, underway: Underway, reply: Reply) -> None:
        """Write a reply's files: the dump first, the transcript last, so that a part is known as a part."""
        job = underway.job
        in_part: tuple[Path, ...] = ()
        try:
            record = self.facts.record_of(underway)
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
        blocks: Iterable[Pcm] = (rows[0] for rows in codec.decode([codes]))
        if self.choices.stereo:
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


class Facts:
    """What a reply depends on: its fingerprint, and the record of how it was made."""

    def __init__(self, studio: Studio, choices: Choices) -> None:
        self.studio, self.choices = studio, choices
        self.config_hash = config_hash(studio.config)
        self.sampling = {"greedy": True} if choices.sampling.greedy else asdict(choices.sampling)
        self.voices: dict[str | None, str | None] = {}

    def fingerprint_of(self, job: Job) -> str:
        """The job's fingerprint; reads its input."""
        return self.fingerprint(job, file_sha256(job.source))

    def fingerprint(self, job: Job, source_sha256: str) -> str:
        """Equal for jobs that would give equal outputs."""
        return fingerprint(
            {
                "source_sha256": source_sha256,
                "name": ascii(job.name),
                "model": self.studio.checkpoint.fingerprint,
                "config": self.config_hash,
                "voice": self.voice_sha256(job.persona.voice),
                "role": job.persona.role.strip(),
                "sampling": self.sampling,
                "seed": job.seed,
                "timeline": self.choices.timeline,
                "stereo": self.choices.stereo,
                "channel": job.channel or self.choices.channel,
                "dtype": self.studio.dtype_name,
            }
        )

    def voice_sha256(self, voice: str | None) -> str | None:
        """Of the voice's file; None without a voice."""
        if voice not in self.voices:
            path = voice_path(voice, self.studio.checkpoint.voices)
            self.voices[voice] = None if path is None else file_sha256(path)
        return self.voices[voice]

    def record_of(self, underway: Underway) -> Record:
        """How a reply was made."""
        job, config, checkpoint = underway.job, self.studio.config, self.studio.checkpoint
        voice = voice_path(job.persona.voice, checkpoint.voices)
        persona = {
            "voice": voice.name if voice else None,
            "voice_sha256": self.voice_sha256(job.persona.voice),
            "role": job.persona.role,
        }
        return Record(
            source=job.name,
            source_sha256=underway.sha256,
            source_sample_rate=underway.recording.source_sample_rate,
            sample_rate=config.sample_rate,
            n_samples=underway.recording.n_samples,
            frame_rate=config.frame_rate,
            samples_per_frame=config.samples_per_frame,
            model=checkpoint.name,
            model_fingerprint=checkpoint.fingerprint,
            config_hash=self.config_hash,
            persona=persona,
            sampling=self.sampling,
            seed=job.seed,
            timeline=self.choices.timeline,
            dtype=self.studio.dtype_name,
            device=self.studio.device.type,
            fingerprint=self.fingerprint(job, underway.sha256),
            versions={"personaplex_cli": __version__, "torch": version("torch"), "moshi": version("moshi")},
            audio_vocab_size=config.audio_vocab_size,
            extra={"channel": job.channel or self.choices.channel, "warnings": underway.recording.warnings},
        )


def sha256_of(job: Job, path: Path) -> str:
    """The input's hash, or its failure."""
    try:
        return file_sha256(path)
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
        },
    )


def decode_dumps(dumps: Sequence[Path], out: Path, studio: Studio, *, overwrite: bool) -> list[Path]:
    """Make the WAVs of token dumps again, on the aligned timeline. -> what was written

    All dumps are checked before anything is written.
    """
    targets = {
        dump: out / f"{dump.name.removesuffix('.safetensors').removesuffix('.tokens')}.wav" for dump in dumps
    }
    faults = []
    for dump, target in targets.items():
        try:
            made_by = read_dump(dump).metadata.get("model_fingerprint")
        except JobError as error:
            faults.append(error.message)
            continue
        if made_by != studio.checkpoint.fingerprint:
            faults.append(
                f"{dump}: was made by another model than {studio.checkpoint.name}; name it with --model"
            )
        if target.exists() and not overwrite:
            faults.append(f"{target}: exists already; pass --overwrite, or choose another folder")
    if len(set(targets.values())) < len(targets):
        faults.append("two dumps would write the same WAV; decode them into different folders")
    if faults:
        raise SettingsError.listing("nothing was decoded, because", faults)
    return [decode_dump(dump, target, studio) for dump, target in targets.items()]


def decode_dump(path: Path, target: Path, studio: Studio) -> Path:
    """One dump's WAV, the same bytes as convert's."""
    dump = read_dump(path)
    n_samples = int(dump.metadata["n_samples"])
    codes = torch.from_numpy(dump.agent.astype(np.int64))
    with finished_file(target) as partial:
        blocks = (rows[0] for rows in studio.codec.decode([codes]))
        write_wav(partial, fit(blocks, n_samples), studio.config.sample_rate)
    return target
