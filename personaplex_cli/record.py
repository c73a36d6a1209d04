"""What a reply depends on: its fingerprint, and the record of how it was made."""

from __future__ import annotations

from dataclasses import asdict
from importlib.metadata import version

from personaplex_cli import __version__
from personaplex_cli.audio.pcm import Recording
from personaplex_cli.config.load import config_hash
from personaplex_cli.digest import file_sha256
from personaplex_cli.files.dump import Record
from personaplex_cli.files.jobs import Job
from personaplex_cli.files.resume import fingerprint
from personaplex_cli.prompt import voice_path
from personaplex_cli.settings import Choices
from personaplex_cli.studio import Studio


class Facts:
    """What is the same for all replies of a run, gathered once."""

    def __init__(self, studio: Studio, choices: Choices) -> None:
        self.studio, self.choices = studio, choices
        self.config_hash = config_hash(studio.config)
        self.sampling = {"greedy": True} if choices.sampling.greedy else asdict(choices.sampling)
        self.versions = {
            "personaplex_cli": __version__,
            "torch": version("torch"),
            "moshi": version("moshi"),
        }
        self.voices: dict[str | None, tuple[str | None, str | None]] = {}

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
                "voice": self.voice(job.persona.voice)[1],
                "role": job.persona.role.strip(),
                "sampling": self.sampling,
                "seed": job.seed,
                "timeline": self.choices.timeline,
                "stereo": self.choices.stereo,
                "channel": job.channel or self.choices.channel,
                "fix_nonfinite": self.choices.fix_nonfinite,
                "padding": [self.choices.pad_start_seconds, self.choices.pad_end_seconds],
                "dtype": self.studio.dtype_name,
            }
        )

    def voice(self, voice: str | None) -> tuple[str | None, str | None]:
        """A voice's file name and hash, read once; None twice without a voice."""
        if voice not in self.voices:
            path = voice_path(voice, self.studio.checkpoint.voices)
            self.voices[voice] = (None, None) if path is None else (path.name, file_sha256(path))
        return self.voices[voice]

    def record_of(self, job: Job, recording: Recording, source_sha256: str) -> Record:
        """How a reply was made."""
        config, checkpoint = self.studio.config, self.studio.checkpoint
        voice, voice_sha256 = self.voice(job.persona.voice)
        persona = {"voice": voice, "voice_sha256": voice_sha256, "role": job.persona.role}
        return Record(
            source=job.name,
            source_sha256=source_sha256,
            source_sample_rate=recording.source_sample_rate,
            sample_rate=config.sample_rate,
            n_samples=recording.n_samples,
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
            fingerprint=self.fingerprint(job, source_sha256),
            versions=self.versions,
            audio_vocab_size=config.audio_vocab_size,
            extra={
                "channel": job.channel or self.choices.channel,
                "decode_dtype": self.studio.decode_dtype_name,
                "warnings": recording.warnings,
            },
        )
