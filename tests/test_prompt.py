"""Personas to prompts: the phases, `.pt` voices, and what is refused."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from personaplex_cli.audio.codec import Codec
from personaplex_cli.config.tree import PAD, PersonaPlexConfig
from personaplex_cli.engine.turns import FREE, initial_column
from personaplex_cli.errors import AudioError, SettingsError
from personaplex_cli.model.voices import Voices
from personaplex_cli.prompt import PromptMaker, Voice, load_voice, make_prompt
from personaplex_cli.settings import NO_VOICE, Persona
from personaplex_cli.text import Tokenizer
from tests.conftest import GOLDEN

CHECKPOINT = GOLDEN / "checkpoint"
SILENCE_FRAMES = 6


@pytest.fixture
def maker(golden_config: PersonaPlexConfig, golden_codec: Codec) -> PromptMaker:
    tokenizer = Tokenizer(CHECKPOINT / "tokenizer_spm_32k_3.model", golden_config)
    return PromptMaker(golden_config, golden_codec, tokenizer, Voices(CHECKPOINT))


def test_the_phases_stand_one_after_another() -> None:
    """Voice, silence, role, silence, at full size, against the constants of the published model."""
    silence = [948, 243, 1178, 546, 1736, 1030, 1978, 2008]
    sine = [430, 1268, 381, 1611, 1095, 1495, 56, 472]
    voice = torch.randint(0, 2048, (8, 4), generator=torch.Generator().manual_seed(0))
    prompt = make_prompt(Voice(4, codes=voice), [100, 200, 300], PersonaPlexConfig())
    assert prompt.n_frames == 4 + 6 + 3 + 6
    text, agent0, agent1 = (prompt.forced[row].tolist() for row in (0, 1, 2))
    assert text == [32000, *[PAD] * 9, 100, 200, 300, *[PAD] * 6, FREE]
    assert agent0 == [2048, *voice[0, 1:].tolist(), *[silence[0]] * 15, FREE]
    assert agent1 == [2048, 2048, *voice[1, 1:].tolist(), *[silence[1]] * 15]
    assert prompt.forced[9].tolist() == [2048, *[sine[0]] * 18, FREE]
    assert prompt.forced[16].tolist() == [2048, 2048, *[sine[7]] * 18]


def test_an_empty_role_skips_its_phase(maker: PromptMaker) -> None:
    prompt = maker.prompt_of(Persona(NO_VOICE, "  \n"))
    assert prompt.n_frames == 2 * SILENCE_FRAMES
    assert (prompt.forced[0, 1:-1] == PAD).all()


def test_a_pt_voice_is_the_wav_voices_prompt(maker: PromptMaker) -> None:
    """The same persona from both: equal columns from position V - 1 on, and as many frames."""
    recorded = maker.prompt_of(Persona(str(GOLDEN / "audio" / "voice_off_the_tie.wav"), "Hello."))
    kept = maker.prompt_of(Persona("VOICE0", "Hello."))
    assert kept.n_frames == recorded.n_frames
    assert kept.embeddings is not None
    last = len(kept.embeddings)
    assert torch.equal(kept.forced[:, last:], recorded.forced[:, last:])


def test_the_first_voice_is_the_default(maker: PromptMaker) -> None:
    assert maker.voice_of(Persona(None, "")).embeddings is not None
    assert maker.voice_of(Persona(NO_VOICE, "")).n_frames == 0


def test_a_voice_is_encoded_once_and_a_prompt_is_made_once(maker: PromptMaker) -> None:
    persona = Persona("VOICE0", "Hello.")
    assert maker.prompt_of(persona) is maker.prompt_of(Persona("VOICE0", "Hello."))
    assert maker.voice_of(persona) is maker.voice_of(Persona("VOICE0", "Something else."))


def test_all_faulty_personas_are_refused_in_one_message(maker: PromptMaker) -> None:
    personas = [Persona("NATF9", ""), Persona(NO_VOICE, "word " * 500), Persona("VOICE0", "Hi.")]
    with pytest.raises(SettingsError) as refusal:
        maker.check(personas)
    assert "NATF9" in refusal.value.message
    assert "is too long: it takes" in refusal.value.message
    assert "holds 63" in refusal.value.message


def test_a_prompt_longer_than_the_window_is_measured(maker: PromptMaker) -> None:
    assert maker.measure(Persona("VOICE0", "Hello.")) == maker.prompt_of(Persona("VOICE0", "Hello.")).n_frames


def save(path: Path, **held: object) -> Path:
    torch.save(held, path)
    return path


def test_extra_keys_in_a_voice_do_no_harm(tmp_path: Path, golden_config: PersonaPlexConfig) -> None:
    good = torch.load(CHECKPOINT / "voices" / "VOICE0.pt", weights_only=True)
    path = save(tmp_path / "v.pt", **good, made_by="somebody")
    voice = load_voice(path, golden_config)
    assert voice.n_frames == len(good["embeddings"]) + 1


def test_a_voice_of_another_width_is_refused_by_name(
    tmp_path: Path, golden_config: PersonaPlexConfig
) -> None:
    path = save(
        tmp_path / "NATF0.pt",
        embeddings=torch.zeros(5, 1, 1, 4096),
        cache=torch.zeros(1, 17, 4, dtype=torch.long),
    )
    with pytest.raises(SettingsError, match=r"NATF0\.pt: a voice of another model: width 4096"):
        load_voice(path, golden_config)


@pytest.mark.parametrize("held", [{}, {"embeddings": 3, "cache": 4}, {"embeddings": torch.zeros(3)}])
def test_a_file_that_is_no_voice_is_refused(
    tmp_path: Path, golden_config: PersonaPlexConfig, held: dict[str, object]
) -> None:
    with pytest.raises(SettingsError, match="not a voice: needs tensors"):
        load_voice(save(tmp_path / "v.pt", **held), golden_config)


class Hostile:
    """Unpickling it would make a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[object, ...]:
        return Path.mkdir, (self.folder,)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_hostile_pickle_is_never_executed(
    tmp_path: Path, golden_config: PersonaPlexConfig, zipped: bool
) -> None:
    path, proof = tmp_path / "v.pt", tmp_path / "executed"
    if zipped:
        torch.save({"embeddings": Hostile(proof)}, path)
    else:
        path.write_bytes(pickle.dumps({"embeddings": Hostile(proof)}, protocol=2))
    with pytest.raises(SettingsError, match="not a voice that can be loaded safely"):
        load_voice(path, golden_config)
    assert not proof.exists()


def test_broken_bytes_are_no_voice(tmp_path: Path, golden_config: PersonaPlexConfig) -> None:
    for content in (b"", b"\x80", b"PK\x03\x04nothing", b"version https://git-lfs"):
        (tmp_path / "v.pt").write_bytes(content)
        with pytest.raises(SettingsError, match="not a voice that can be loaded safely"):
            load_voice(tmp_path / "v.pt", golden_config)


def wav(path: Path, pcm: np.ndarray) -> Path:
    soundfile.write(path, pcm, 24000)
    return path


@pytest.mark.parametrize(
    ("pcm", "reason"),
    [(np.ones(2400), "0.10 s is too short"), (np.zeros(24000), "a silent voice"), (np.zeros(0), "no audio")],
    ids=["short", "silent", "empty"],
)
def test_voices_that_have_no_loudness_are_refused(
    tmp_path: Path, maker: PromptMaker, pcm: np.ndarray, reason: str
) -> None:
    path = wav(tmp_path / "voice.wav", pcm)
    with pytest.raises(AudioError, match=reason):
        maker.voice_of(Persona(str(path), ""))


def test_of_a_stereo_voice_channel_0_speaks(tmp_path: Path, maker: PromptMaker) -> None:
    mono, _ = soundfile.read(GOLDEN / "audio" / "voice.wav")
    other = np.random.default_rng(0).normal(0, 0.1, len(mono))
    path = wav(tmp_path / "stereo.wav", np.stack([mono, other], 1))
    stereo, alone = (maker.voice_of(Persona(str(p), "")) for p in (path, GOLDEN / "audio" / "voice.wav"))
    assert stereo.codes is not None
    assert alone.codes is not None
    assert torch.equal(stereo.codes, alone.codes)


def test_position_0_holds_nothing_yet() -> None:
    config = PersonaPlexConfig()
    assert initial_column(config).tolist() == [32000, *[2048] * 16]


def test_a_voice_longer_than_the_window_is_refused(tmp_path: Path, maker: PromptMaker) -> None:
    path = wav(tmp_path / "long.wav", np.random.default_rng(0).normal(0, 0.1, 64 * 1920))
    with pytest.raises(SettingsError, match=r"long\.wav: too long for a voice: it takes 64 frames"):
        maker.check([Persona(str(path), "")])


def test_a_voice_with_tokens_that_the_model_lacks_is_refused(
    tmp_path: Path, golden_config: PersonaPlexConfig
) -> None:
    good = torch.load(CHECKPOINT / "voices" / "VOICE0.pt", weights_only=True)
    for cache in (good["cache"] + 60, good["cache"] - 100, good["cache"][:, :, :1]):
        path = save(tmp_path / "v.pt", embeddings=good["embeddings"], cache=cache)
        with pytest.raises(SettingsError, match="holds tokens that it does not have"):
            load_voice(path, golden_config)
