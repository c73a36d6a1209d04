"""The guest room: a persona (voice + role) becomes forced columns, or embeddings and columns after them.

The phases, one column a frame: voice, half a second of silence, role, half a second of silence.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from personaplex_cli.audio.codec import Codec
from personaplex_cli.audio.pcm import Recording, read_voice
from personaplex_cli.config.facts import frames_of
from personaplex_cli.config.tree import PAD, PersonaPlexConfig
from personaplex_cli.engine.turns import Prompt, add_delays, initial_column
from personaplex_cli.errors import AudioError, SettingsError
from personaplex_cli.model.voices import Voices
from personaplex_cli.settings import NO_VOICE, Persona
from personaplex_cli.text import Tokenizer

SILENCE_SECONDS = 0.5
PROMPTS_KEPT = 64
FLOATS = frozenset({torch.float32, torch.bfloat16, torch.float16, torch.float64})
INTEGERS = frozenset({torch.int64, torch.int32, torch.int16})


@dataclass(frozen=True, eq=False)
class Voice:
    """A voice sample as codes [8, V], or as a `.pt` holds it: embeddings, and the columns at their end.

    embeddings [V - 1, D]: the summed embeddings of positions 0..V-2.
    cache [17, 4]: the last token columns, a ring: position p is column p % 4.
    """

    n_frames: int
    codes: Tensor | None = None
    embeddings: Tensor | None = None
    cache: Tensor | None = None


def make_prompt(voice: Voice, role: Sequence[int], config: PersonaPlexConfig) -> Prompt:
    """Lay out all phases. role: text tokens, one a frame."""
    silence_frames = int(SILENCE_SECONDS * config.frame_rate)
    silence = torch.tensor(config.mimi_config.silence_codes)[:, None]
    codes = silence.expand(-1, voice.n_frames) if voice.codes is None else voice.codes
    given = torch.cat(
        [
            phase(config, agent=codes),
            phase(config, agent=silence.expand(-1, silence_frames)),
            phase(config, agent=silence.expand(-1, len(role)), text=torch.tensor(role, dtype=torch.long)),
            phase(config, agent=silence.expand(-1, silence_frames)),
        ],
        dim=1,
    )
    forced = add_delays(given, config)
    if voice.cache is not None:
        rebuild_columns(forced, voice.cache, voice.n_frames, config)
    return Prompt(forced, given.shape[1], voice.embeddings)


def phase(config: PersonaPlexConfig, *, agent: Tensor, text: Tensor | None = None) -> Tensor:
    """One phase: the user is a sine all the while, the text PAD but for the role. agent [8, F] -> [17, F]"""
    given = torch.empty(config.n_streams, agent.shape[1], dtype=torch.long)
    given[config.text] = PAD if text is None else text
    given[config.agent] = agent
    given[config.user] = torch.tensor(config.mimi_config.sine_codes)[:, None]
    return given


def rebuild_columns(forced: Tensor, cache: Tensor, n_frames: int, config: PersonaPlexConfig) -> None:
    """Put back what a `.pt`'s embeddings do not cover: position V-1, and the last frame's delayed codes."""
    for stream, delay in enumerate(config.delays):
        for position in range(n_frames - 1, n_frames + delay):
            forced[stream, position] = cache[stream, position % cache.shape[1]]


class PromptMaker:
    """Personas to prompts. The voices are read once; the prompts used last are kept."""

    def __init__(self, config: PersonaPlexConfig, codec: Codec, tokenizer: Tokenizer, voices: Voices) -> None:
        self.config, self.codec, self.tokenizer, self.voices = config, codec, tokenizer, voices
        self.known: dict[str | None, Voice] = {}
        self.prompt_of = lru_cache(PROMPTS_KEPT)(self.make)

    def check(self, personas: Sequence[Persona]) -> None:
        """Read every voice and measure every role; refuse all faults at once."""
        faults = []
        for persona in dict.fromkeys(personas):
            for part in (self.voice_of, self.role_of):
                try:
                    part(persona)
                except (SettingsError, AudioError) as error:
                    faults.append(error.message)
        if faults:
            raise SettingsError.listing("cannot use:", list(dict.fromkeys(faults)))

    def measure(self, persona: Persona) -> int:
        """The prompt's frames."""
        n_silence = int(SILENCE_SECONDS * self.config.frame_rate)
        return self.voice_of(persona).n_frames + len(self.role_of(persona)) + 2 * n_silence

    def role_of(self, persona: Persona) -> list[int]:
        """The role's tokens. They must fit the window, or its start is lost before its end is read."""
        role = self.tokenizer.role_tokens(persona.role)
        if len(role) > self.config.ring_columns:
            raise SettingsError(
                f"the role {persona.role[:40]!r}... is too long: it takes {len(role)} frames, "
                f"and the model's window holds {self.config.ring_columns}; shorten it"
            )
        return role

    def make(self, persona: Persona) -> Prompt:
        """Voice and role, laid out."""
        return make_prompt(self.voice_of(persona), self.role_of(persona), self.config)

    def voice_of(self, persona: Persona) -> Voice:
        """The persona's voice, read once. It must fit the window."""
        if persona.voice not in self.known:
            path = voice_path(persona.voice, self.voices)
            voice = Voice(0) if path is None else read_voice_file(path, self.codec, self.config)
            self.known[persona.voice] = voice
        return self.known[persona.voice]


def voice_path(voice: str | None, voices: Voices) -> Path | None:
    """Where a voice's file is. None = no voice phase: asked for by name, or the model has no voices."""
    if voice == NO_VOICE:
        return None
    return voices.default() if voice is None else voices.path(voice)


def read_voice_file(path: Path, codec: Codec, config: PersonaPlexConfig) -> Voice:
    """A `.pt` voice, or a recording of one."""
    if path.suffix.lower() == ".pt":
        return load_voice(path, config)
    # A voice is held in memory as a whole: one of hours shall not be read before it is refused.
    promised_seconds = Recording(path, config.sample_rate).promised_seconds()
    check_length(path, frames_of(config, promised_seconds), config)
    codes = codec.encode([[read_voice(path, config.sample_rate)]])[0]
    check_length(path, codes.shape[1], config)
    return Voice(codes.shape[1], codes=codes)


def check_length(path: Path, n_frames: int, config: PersonaPlexConfig) -> None:
    """A voice must fit the window. Raises SettingsError."""
    if n_frames > config.ring_columns:
        raise SettingsError(
            f"{path}: too long for a voice: it takes {n_frames} frames, "
            f"and the model's window holds {config.ring_columns}; some seconds are enough"
        )


def load_voice(path: Path, config: PersonaPlexConfig) -> Voice:
    """Read a `.pt` voice; whatever else is pickled in there is refused, never executed."""
    held = read_pickled_tensors(path)
    try:
        embeddings = plain_tensor(held["embeddings"], FLOATS)
        cache = plain_tensor(held["cache"], INTEGERS)
        n_before, one, another, width = embeddings.shape
        n_voices, n_streams, n_columns = cache.shape
        if (one, another, n_voices) != (1, 1, 1):
            raise ValueError("more than one voice, or none")
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise SettingsError(
            f"{path}: not a voice: needs tensors `embeddings` [V-1, 1, 1, D] and `cache` [1, 17, 4]"
        ) from error
    if (width, n_streams) != (config.temporal_config.hidden_size, config.n_streams):
        raise SettingsError(
            f"{path}: a voice of another model: width {width} and {n_streams} streams, "
            f"this model has {config.temporal_config.hidden_size} and {config.n_streams}"
        )
    # Shapes first: a few bytes can stand for a tensor without end, as long as nothing reads it.
    check_length(path, n_before + 1, config)
    highest = initial_column(config)[:, None]
    fits = max(config.delays) < n_columns <= config.ring_columns
    if not fits or not ((cache >= -1) & (cache <= highest)).all():
        raise SettingsError(
            f"{path}: not a voice of this model: its `cache` holds tokens that it does not have"
        )
    if not embeddings.isfinite().all():
        raise SettingsError(f"{path}: its `embeddings` hold NaN or infinite numbers; make the voice anew")
    return Voice(n_before + 1, embeddings=embeddings[:, 0, 0], cache=cache[0].long())


def plain_tensor(held: Any, dtypes: frozenset[torch.dtype]) -> Tensor:
    """A tensor with its numbers in memory and no gradient. Raises TypeError for any other kind."""
    if not isinstance(held, Tensor) or held.dtype not in dtypes:
        raise TypeError("not a tensor of the wanted numbers")
    if held.layout != torch.strided or held.device.type != "cpu":
        raise TypeError("not a tensor with its numbers in memory")
    return held.detach()


def read_pickled_tensors(path: Path) -> Any:
    """torch's own reader, which makes tensors and plain containers and nothing else."""
    try:
        with warnings.catch_warnings():
            # Old files make torch warn about its own inside.
            warnings.simplefilter("ignore")
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        # Broken bytes make the unpickler raise anything. Its second sentence advises to trust the file.
        reason = next(iter(str(error).splitlines()), type(error).__name__).partition(". ")[0]
        raise SettingsError(f"{path}: not a voice that can be loaded safely ({reason})") from error
