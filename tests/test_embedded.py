"""The embedded model: small, whole, loadable by others, sensible in level, and built by its recipe."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import sentencepiece
import soundfile
import torch
from moshi.models import loaders
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from personaplex_cli.audio.codec import Codec, mimi_kwargs
from personaplex_cli.audio.pcm import Pcm, Recording
from personaplex_cli.config.facts import expected_tensors
from personaplex_cli.config.tree import MIMI_NAME, PAD
from personaplex_cli.engine.generate import generate
from personaplex_cli.engine.turns import lay_out
from personaplex_cli.model.checkpoint import EMBEDDED, TOKENIZER, WEIGHTS, Checkpoint, open_checkpoint
from personaplex_cli.model.ring import KeysAndValues
from personaplex_cli.model.weights import load_lm
from personaplex_cli.prompt import PromptMaker
from personaplex_cli.settings import Persona, Sampling
from personaplex_cli.text import Tokenizer

ROOT = Path(__file__).parents[1]
GOLDEN_TOKENIZER = ROOT / "tests" / "golden" / "checkpoint" / TOKENIZER
CPU = torch.device("cpu")
SAMPLES = {
    "question.wav": (24000, 1, "PCM_16"),
    "stereo.flac": (44100, 2, "PCM_16"),
    "telephone.wav": (8000, 1, "ULAW"),
    "tones.wav": (48000, 1, "PCM_24"),
}


def bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return open_checkpoint("embedded")


@pytest.fixture(scope="module")
def codec(checkpoint: Checkpoint) -> Codec:
    return Codec(checkpoint.mimi, checkpoint.config.mimi_config, CPU)


@pytest.fixture(scope="module")
def sample_codes(codec: Codec) -> dict[str, Tensor]:
    recordings = {name: Recording(ROOT / "sample_audio" / name, 24000) for name in SAMPLES}
    return {name: codec.encode([recording.blocks()])[0] for name, recording in recordings.items()}


@cache
def recipe() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "embedded_untrained", ROOT / "recipes" / "embedded_untrained.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def rebuilt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rebuilt")
    recipe().build(folder)
    return folder


def decode(codec: Codec, codes: Tensor) -> Pcm:
    return np.concatenate([rows[0] for rows in codec.decode([codes])])


def rms(pcm: Pcm) -> float:
    return float(np.sqrt(np.mean(np.square(pcm, dtype=np.float64))))


# ---- the files ----


def test_all_files_together_are_under_four_megabytes() -> None:
    assert bytes_in(EMBEDDED) < 4_000_000


def test_the_notice_says_that_the_model_is_untrained_and_what_to_use_for_speech(
    checkpoint: Checkpoint,
) -> None:
    assert checkpoint.notice is not None
    assert "untrained" in checkpoint.notice
    assert "noise" in checkpoint.notice
    assert "--model nvidia/personaplex-7b-v1" in checkpoint.notice


def test_the_licence_is_the_projects() -> None:
    assert (EMBEDDED / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_the_voices_are_short_recordings_in_the_models_format(checkpoint: Checkpoint) -> None:
    assert checkpoint.voices.names() == ["female", "male"]
    for name in checkpoint.voices.names():
        voice = soundfile.info(checkpoint.voices.path(name))
        assert (voice.samplerate, voice.channels) == (24000, 1)
        assert 1.0 < voice.duration < 2.5


# ---- the language model and its vocabulary ----


def test_the_weights_have_the_published_names_and_shapes_with_eight_step_sets(
    checkpoint: Checkpoint,
) -> None:
    with safe_open(EMBEDDED / WEIGHTS, framework="pt") as file:
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        dtypes = {file.get_slice(name).get_dtype() for name in shapes}
        assert file.metadata() is None
    assert shapes == expected_tensors(checkpoint.config, n_step_sets=8)
    assert dtypes == {"F16"}


def test_a_reply_has_varied_codes_and_pads_most_frames_but_not_all(
    checkpoint: Checkpoint, codec: Codec, sample_codes: dict[str, Tensor]
) -> None:
    config = checkpoint.config
    lm = load_lm(checkpoint.weights, config, dtype=torch.float32, device=CPU)
    prompts = PromptMaker(config, codec, Tokenizer(checkpoint.tokenizer, config), checkpoint.voices)
    heard = torch.cat(list(sample_codes.values()), dim=1)
    turn = lay_out(prompts.prompt_of(Persona()), heard, config, seed=1)
    (reply,) = generate(lm, [turn], n_slots=1, sampling=Sampling())
    text, agent = reply.tokens[0], reply.tokens[1:]
    assert 0.5 < float((text == PAD).float().mean()) < 0.98
    assert min(len(row.unique()) for row in agent) > 30
    pcm = decode(codec, agent)
    assert 0.05 < rms(pcm) < 0.2
    assert np.abs(pcm).max() < 1.0


def test_the_layers_neither_blow_up_nor_fade(checkpoint: Checkpoint) -> None:
    config = checkpoint.config
    lm = load_lm(checkpoint.weights, config, dtype=torch.float32, device=CPU)
    sizes: list[float] = []
    for layer in lm.transformer.layers:
        layer.register_forward_hook(lambda _layer, _x, out: sizes.append(float(out.square().mean().sqrt())))
    columns = torch.randint(256, (200, config.n_streams), generator=torch.Generator().manual_seed(7))
    lm.hear(lm.embed(columns)[None], torch.arange(200)[None], KeysAndValues(config.ring_columns))
    assert len(sizes) == 3
    assert 0.5 < min(sizes) <= max(sizes) < 4.0


def test_the_special_ids_are_those_of_the_published_vocabulary(checkpoint: Checkpoint) -> None:
    ours = sentencepiece.SentencePieceProcessor(model_file=str(checkpoint.tokenizer))
    published = sentencepiece.SentencePieceProcessor(model_file=str(GOLDEN_TOKENIZER))
    for piece in range(4):
        assert ours.id_to_piece(piece) == published.id_to_piece(piece)
        assert ours.is_control(piece) == published.is_control(piece)
        assert ours.is_unknown(piece) == published.is_unknown(piece)
    assert ours.vocab_size() == checkpoint.config.text_vocab_size


@pytest.mark.parametrize("role", ["You work for a bakery.", "Grüße, 你好 🙂", "two  spaces, \ttab"])
def test_any_role_survives_the_vocabulary(checkpoint: Checkpoint, role: str) -> None:
    tokenizer = Tokenizer(checkpoint.tokenizer, checkpoint.config)
    tokens = tokenizer.role_tokens(role)
    assert min(tokens) > PAD
    assert tokenizer.text(tokens).split() == ["<system>", *role.split(), "<system>"]


# ---- the codec ----


def test_moshi_itself_loads_the_codec_and_hears_the_same(
    checkpoint: Checkpoint, sample_codes: dict[str, Tensor]
) -> None:
    kwargs = mimi_kwargs(checkpoint.config.mimi_config)
    mimi = loaders.get_mimi(checkpoint.mimi, kwargs, num_codebooks=8)
    (pcm,) = Recording(ROOT / "sample_audio" / "question.wav", 24000).blocks()
    frames = torch.from_numpy(np.pad(pcm, (0, -len(pcm) % 1920))).view(1, 1, -1, 1920).unbind(2)
    with torch.inference_mode(), mimi.streaming(1):
        codes = torch.cat([mimi.encode(frame) for frame in frames], dim=2)
    assert torch.equal(codes[0], sample_codes["question.wav"])


def test_random_codes_sound_as_loud_as_speech_without_clipping(codec: Codec) -> None:
    codes = torch.randint(256, (8, 500), generator=torch.Generator().manual_seed(7))
    pcm = decode(codec, codes)
    assert 0.05 < rms(pcm) < 0.2
    assert np.abs(pcm).max() < 1.0
    assert abs(float(pcm.mean())) < 0.02


def test_silence_stays_quiet(codec: Codec, checkpoint: Checkpoint) -> None:
    silence = torch.tensor(checkpoint.config.mimi_config.silence_codes)[:, None].expand(-1, 50)
    assert rms(decode(codec, silence)) < 0.02


def test_different_recordings_give_different_codes(sample_codes: dict[str, Tensor]) -> None:
    names = sorted(sample_codes)
    for index, name in enumerate(names):
        for other in names[index + 1 :]:
            n_frames = min(sample_codes[name].shape[1], sample_codes[other].shape[1])
            alike = sample_codes[name][:, :n_frames] == sample_codes[other][:, :n_frames]
            assert float(alike.float().mean()) < 0.5
    together = torch.cat([sample_codes[name] for name in names], dim=1)
    assert min(len(row.unique()) for row in together) > 50


def test_silence_and_sine_codes_are_what_the_codec_says(codec: Codec, checkpoint: Checkpoint) -> None:
    # The reference's sine begins anew in every frame, where a whole number of periods does not fit.
    seconds = np.arange(1920) / 24000
    frames = {
        "silence_codes": np.zeros(1920, np.float32),
        "sine_codes": (0.5 * np.sin(2 * np.pi * 440 * seconds)).astype(np.float32),
    }
    for key, frame in frames.items():
        heard = codec.encode([[np.tile(frame, 200)]])[0]
        said = torch.tensor(getattr(checkpoint.config.mimi_config, key))
        assert torch.equal(heard[:, 10:], said[:, None].expand(-1, 190))


# ---- the recipe ----


def test_the_recipe_builds_the_same_bytes_every_time(rebuilt: Path, tmp_path: Path) -> None:
    recipe().build(tmp_path)
    for path in [path for path in rebuilt.rglob("*") if path.is_file()]:
        assert (tmp_path / path.relative_to(rebuilt)).read_bytes() == path.read_bytes()


def test_the_package_holds_what_the_recipe_builds(rebuilt: Path) -> None:
    built = sorted(path.relative_to(rebuilt) for path in rebuilt.rglob("*") if path.is_file())
    packaged = sorted(path.relative_to(EMBEDDED) for path in EMBEDDED.rglob("*") if path.is_file())
    assert built == packaged
    # Other versions of the libraries may write the same contents otherwise.
    by_content = {Path(WEIGHTS), Path(MIMI_NAME), Path(TOKENIZER)}
    for path in set(built) - by_content:
        assert (rebuilt / path).read_bytes() == (EMBEDDED / path).read_bytes()


def test_the_packaged_weights_are_those_of_the_recipe(rebuilt: Path) -> None:
    ours, built = load_file(EMBEDDED / WEIGHTS), load_file(rebuilt / WEIGHTS)
    assert ours.keys() == built.keys()
    assert all(torch.equal(ours[name], built[name]) for name in ours)


def test_the_packaged_codec_is_that_of_the_recipe(rebuilt: Path) -> None:
    ours, built = load_file(EMBEDDED / MIMI_NAME), load_file(rebuilt / MIMI_NAME)
    assert ours.keys() == built.keys()
    for name, tensor in ours.items():
        # Codebooks are measured and rounded to float16: on another machine a number may go to the next one.
        torch.testing.assert_close(tensor, built[name], rtol=2e-3, atol=1e-5)


def test_the_packaged_vocabulary_is_that_of_the_recipe(rebuilt: Path) -> None:
    ours, built = (
        sentencepiece.SentencePieceProcessor(model_file=str(folder / TOKENIZER))
        for folder in (EMBEDDED, rebuilt)
    )
    assert [ours.id_to_piece(piece) for piece in range(ours.vocab_size())] == [
        built.id_to_piece(piece) for piece in range(built.vocab_size())
    ]


# ---- the sample recordings ----


def test_the_sample_recordings_are_small_and_each_has_its_line() -> None:
    folder = ROOT / "sample_audio"
    readme = (folder / "README.md").read_text(encoding="utf-8")
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", *sorted(SAMPLES)]
    assert all(f"`{name}`" in readme for name in SAMPLES)
    assert bytes_in(folder) < 700_000


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_recording_is_of_its_kind(name: str) -> None:
    path = ROOT / "sample_audio" / name
    audio = soundfile.info(path)
    assert (audio.samplerate, audio.channels, audio.subtype) == SAMPLES[name]
    recording = Recording(path, 24000)
    pcm = np.concatenate(list(recording.blocks()))
    assert recording.n_clipped == 0
    assert 0.01 < rms(pcm) < 0.3
