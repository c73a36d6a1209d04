"""The five doors through which strangers' files come in, each as a function of a file's bytes.

A file is read, and then what was read keeps the rules asserted here; or the door's own error refuses it.
Anything else is a find: another exception, a warning, a hang, too much memory. A door gives back why the file
was refused, or None. Each imports its own room only: the fuzzer's start is short where torch is not needed.
"""

from __future__ import annotations

import unicodedata
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from personaplex_cli.audio.pcm import Recording
    from personaplex_cli.config.load import LoadedConfig
    from personaplex_cli.config.tree import PersonaPlexConfig
    from personaplex_cli.files.manifest import Row

Door: TypeAlias = Callable[[bytes, Path], "str | None"]
SAMPLE_RATE = 24000
NOT_IN_A_LINE = {"Cc", "Cs", "Zl", "Zp"}
"""Unicode's control characters, half surrogates and line ends: a message of one line has none."""


def fuzz_audio(content: bytes, folder: Path) -> str | None:
    """A recording: its header, channel 0 (whose refusal this gives), all repaired, and as a voice."""
    from personaplex_cli.audio.pcm import Recording

    path = stored(folder / "a.wav", content)
    with no_warnings():
        first = Recording(path, SAMPLE_RATE)
        repaired = Recording(path, SAMPLE_RATE, "mix", fix_nonfinite=True)
        refusal_of_header, refusal = check_header(first), hear(first)
        assert refusal_of_header in (None, refusal)
        if hear(repaired) is None and refusal is None:
            assert repaired.n_samples == first.n_samples
        hear_voice(path)
    return refusal


def check_header(recording: Recording) -> str | None:
    """What the header promises is a time that there can be."""
    from personaplex_cli.errors import AudioError

    try:
        assert 0 <= recording.promised_seconds() < float("inf")
    except AudioError as error:
        return error.message
    return None


def hear(recording: Recording) -> str | None:
    """Read to the end: finite mono float32 blocks, as many samples as the recording then says."""
    import numpy as np

    from personaplex_cli.errors import AudioError

    n_samples = 0
    try:
        for block in recording.blocks():
            assert block.dtype == np.float32
            assert block.ndim == 1
            assert np.isfinite(block).all()
            n_samples += len(block)
    except AudioError as error:
        return error.message
    assert n_samples == recording.n_samples > 0
    assert recording.source_sample_rate > 0
    assert 0 <= recording.n_clipped <= recording.n_source_samples
    return None


def hear_voice(path: Path) -> None:
    """Read as a voice: finite, long enough, and not silent."""
    import numpy as np

    from personaplex_cli.audio.pcm import SHORTEST_VOICE_SECONDS, read_voice
    from personaplex_cli.errors import AudioError

    try:
        voice = read_voice(path, SAMPLE_RATE)
    except AudioError:
        return
    assert voice.dtype == np.float32
    assert voice.shape == (len(voice),)
    assert len(voice) >= SHORTEST_VOICE_SECONDS * SAMPLE_RATE
    assert np.isfinite(voice).all()
    assert voice.any()


def fuzz_manifest(content: bytes, folder: Path) -> str | None:
    """A list of recordings, read as both kinds. It never raises: what is wrong stands in its faults."""
    from personaplex_cli.files.manifest import read_manifest

    (folder / "a.wav").touch()
    (folder / "voice.wav").touch()
    (folder / "inner").mkdir(exist_ok=True)
    faults: list[str] = []
    for suffix in (".csv", ".jsonl"):
        path = stored(folder / f"list{suffix}", content)
        with no_warnings():
            manifest = read_manifest(path)
        lines = [row.line for row in manifest.rows]
        assert lines == sorted(set(lines))
        for row in manifest.rows:
            check_row(row, 1 + content.count(b"\n") + content.count(b"\r"))
        for fault in manifest.faults:
            check_line(fault)
            assert fault.startswith(str(path))
        faults = [*manifest.faults]
    return faults[0] if faults else None


def check_row(row: Row, n_lines: int) -> None:
    """A row names a file that is there and a place inside OUT; its other cells are of their kinds."""
    place = PurePosixPath(row.place)
    assert 1 <= row.line <= n_lines
    assert row.path.exists()
    assert not row.path.is_dir()
    assert place.name
    assert ".." not in place.parts
    assert not place.is_absolute()
    assert "\0" not in row.place
    assert row.seed is None or type(row.seed) is int
    assert row.channel is None or row.channel == "mix" or row.channel.isdecimal()
    assert row.voice != ""


def fuzz_config(content: bytes, folder: Path) -> str | None:
    """A config, as YAML, as JSON and as a `--set`. The refusal is that of the YAML."""
    from personaplex_cli.config.load import load_config
    from personaplex_cli.errors import ConfigError

    refusals: list[str | None] = []
    override = content.decode(errors="surrogateescape")
    files = [stored(folder / f"config{suffix}", content) for suffix in (".yaml", ".json")]
    for source, overrides in [(files[0], []), (files[1], []), (None, [override])]:
        try:
            with no_warnings():
                loaded = load_config(source, overrides)
        except ConfigError as error:
            refusals.append(error.message)
        else:
            check_config(loaded, folder)
            refusals.append(None)
    assert "" not in refusals
    return refusals[0]


def check_config(loaded: LoadedConfig, folder: Path) -> None:
    """What is written out loads again to the same tree; every value has a source."""
    from personaplex_cli.config.load import config_hash, leaves, load_config, render_config

    assert loaded.origins.keys() == {".".join(path) for path in leaves(loaded.config)}
    for origin in loaded.origins.values():
        assert origin in ("default", "--set") or int(origin.rpartition(":")[2]) >= 1
    yaml = stored(folder / "again.yaml", render_config(loaded.config, "yaml").encode())
    json = stored(folder / "again.json", render_config(loaded.config, "json").encode())
    for again in (load_config(yaml).config, load_config(json).config):
        assert again == loaded.config
        assert config_hash(again) == config_hash(loaded.config)


def fuzz_dump(content: bytes, folder: Path) -> str | None:
    """A token dump: its record alone and the whole agree, and what is written again is the same."""
    from personaplex_cli.errors import DumpError
    from personaplex_cli.files.dump import read_dump, read_metadata, write_dump

    path = stored(folder / "a.tokens.safetensors", content)
    try:
        with no_warnings():
            metadata = read_metadata(path)
            dump = read_dump(path)
    except DumpError as error:
        check_line(error.message)
        return error.message
    assert metadata == dump.metadata
    check_tokens(dump.text, dump.agent, dump.user)
    copy = folder / "copy.tokens.safetensors"
    write_dump(copy, dump)
    again = read_dump(copy)
    assert again.metadata == dump.metadata
    for name in ("text", "agent", "user"):
        assert (getattr(again, name) == getattr(dump, name)).all()
    return None


def check_tokens(text: Any, agent: Any, user: Any) -> None:
    """text [F] int32, agent and user [K, F] int16, none below 0."""
    assert (text.dtype, agent.dtype, user.dtype) == ("int32", "int16", "int16")
    assert (text.ndim, agent.ndim) == (1, 2)
    assert agent.shape == user.shape == (len(agent), len(text))
    for tokens in (text, agent, user):
        assert not tokens.size or tokens.min() >= 0


def fuzz_voice(content: bytes, folder: Path) -> str | None:
    """A `.pt` voice for a small model: a prompt can be laid out from it, with no token out of range."""
    import torch

    from personaplex_cli.errors import SettingsError
    from personaplex_cli.prompt import load_voice, make_prompt

    config = small_config()
    path = stored(folder / "v.pt", content)
    try:
        with no_warnings():
            voice = load_voice(path, config)
    except SettingsError as error:
        return error.message
    assert voice.embeddings is not None
    assert voice.embeddings.shape == (voice.n_frames - 1, config.temporal_config.hidden_size)
    assert torch.isfinite(voice.embeddings).all()
    assert not voice.embeddings.requires_grad
    if voice.n_frames <= config.ring_columns:
        prompt = make_prompt(voice, [5], config)
        assert prompt.forced.shape[0] == config.n_streams
        assert prompt.forced[0].max() <= config.text_initial
        assert prompt.forced[1:].max() <= config.audio_initial
    return None


@lru_cache
def small_config() -> PersonaPlexConfig:
    """The published streams on a temporal transformer of width 4, so that a voice takes a few bytes."""
    from personaplex_cli.config.load import load_config

    widths = {"hidden_size": 4, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 2}
    return load_config(None, [f"temporal_config.{key}={value}" for key, value in widths.items()]).config


DOORS: Mapping[str, Door] = {
    "audio": fuzz_audio,
    "manifest": fuzz_manifest,
    "config": fuzz_config,
    "dump": fuzz_dump,
    "voice": fuzz_voice,
}


def stored(path: Path, content: bytes) -> Path:
    """The bytes as a new file: an old one may still be mapped into memory."""
    path.unlink(missing_ok=True)
    path.write_bytes(content)
    return path


def check_line(message: str) -> None:
    """A message of one line that any terminal can show."""
    assert message
    assert not any(unicodedata.category(character) in NOT_IN_A_LINE for character in message), repr(message)


@contextmanager
def no_warnings() -> Iterator[None]:
    """Nothing may warn inside, not even where a wide `except` would swallow the warning as an error."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    assert not caught, [str(warning.message) for warning in caught]
