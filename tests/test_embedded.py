"""The embedded model: small, whole, loadable by others, and it answers what it is asked."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
import soundfile
import torch
from moshi.models import loaders
from safetensors import safe_open
from torch import Tensor
from typer.testing import CliRunner

from personaplex_cli.audio.codec import Codec, mimi_kwargs
from personaplex_cli.audio.pcm import Pcm, Recording
from personaplex_cli.cli import app
from personaplex_cli.config.facts import expected_tensors
from personaplex_cli.config.tree import PAD
from personaplex_cli.model.checkpoint import EMBEDDED, TOKENIZER, WEIGHTS, Checkpoint, open_checkpoint
from personaplex_cli.model.voices import FOLDER
from personaplex_cli.settings import Device, Persona
from personaplex_cli.studio import Studio
from personaplex_cli.text import Tokenizer

ROOT = Path(__file__).parents[1]
SAMPLE_AUDIO = ROOT / "sample_audio"
GOLDEN_TOKENIZER = ROOT / "tests" / "golden" / "checkpoint" / TOKENIZER
CPU = torch.device("cpu")
SAMPLES = {
    "noisy.wav": (16000, 1, "PCM_16"),
    "question.wav": (24000, 1, "PCM_16"),
    "stereo.flac": (44100, 2, "PCM_16"),
    "telephone.wav": (8000, 1, "ULAW"),
}
ASKED: dict[str, list[dict[str, Any]]] = json.loads((SAMPLE_AUDIO / "questions.json").read_text())
FRAME = 1920


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
    recordings = {name: Recording(SAMPLE_AUDIO / name, 24000) for name in SAMPLES}
    return {name: codec.encode([recording.blocks()])[0] for name, recording in recordings.items()}


@pytest.fixture(scope="module")
def replies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make demo` makes."""
    out = tmp_path_factory.mktemp("demo")
    result = CliRunner().invoke(
        app, ["convert", str(SAMPLE_AUDIO / "calls.jsonl"), str(out), "--model", "embedded"]
    )
    assert result.exit_code == 0, result.output
    return out


def decode(codec: Codec, codes: Tensor) -> Pcm:
    return np.concatenate([rows[0] for rows in codec.decode([codes])])


def rms(pcm: Pcm) -> float:
    return float(np.sqrt(np.mean(np.square(pcm, dtype=np.float64))))


def pcm_of(path: Path) -> Pcm:
    pcm, rate = soundfile.read(path, dtype="float32")
    assert rate == 24000
    return np.asarray(pcm)


# ---- the files ----


def test_all_files_together_are_under_twenty_megabytes() -> None:
    assert bytes_in(EMBEDDED) < 20_000_000


def test_the_notice_says_what_it_is_for_and_what_to_use_for_more(checkpoint: Checkpoint) -> None:
    assert checkpoint.notice is not None
    assert "calls to small businesses" in checkpoint.notice
    assert "--model nvidia/personaplex-7b-v1" in checkpoint.notice


def test_the_card_says_what_it_was_trained_on_and_the_readme_shows_its_figures() -> None:
    card = (EMBEDDED / "MODEL_CARD.md").read_text(encoding="utf-8")
    for heading in ("What it does.", "What it does not do.", "What it was trained on.", "How good it is"):
        assert heading in card
    rows = re.findall(r"^\| .* \|$", card, flags=re.MULTILINE)
    assert len(rows) > 8
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert all(row in readme for row in rows)


def test_the_licence_is_the_projects() -> None:
    assert (EMBEDDED / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_the_voices_are_short_recordings_in_the_models_format(checkpoint: Checkpoint) -> None:
    assert checkpoint.voices.names() == ["female", "male"]
    for name in checkpoint.voices.names():
        voice = soundfile.info(recorded_voice(name))
        assert (voice.samplerate, voice.channels) == (24000, 1)
        assert 1.0 < voice.duration < 5.0


def test_a_voice_is_ready_as_the_recording_beside_it_would_be_prepared(checkpoint: Checkpoint) -> None:
    studio = Studio(checkpoint, Device("cpu", "float32"))
    for name in checkpoint.voices.names():
        assert checkpoint.voices.path(name).suffix == ".pt"
        ready, recorded = (
            studio.prompts.prompt_of(Persona(voice, "You work for Star Pizza."))
            for voice in (name, str(recorded_voice(name)))
        )
        assert ready.embeddings is not None
        n_ready = len(ready.embeddings)
        assert torch.equal(ready.forced[:, n_ready:], recorded.forced[:, n_ready:])
        assert torch.equal(ready.embeddings, studio.lm.embed(recorded.forced[:, :n_ready].T))


def recorded_voice(name: str) -> Path:
    return EMBEDDED / FOLDER / f"{name}.wav"


def test_a_reply_comes_without_scipy_and_without_torchs_compiler(tmp_path: Path) -> None:
    recording = SAMPLE_AUDIO / "telephone.wav"
    arguments = ["convert", str(recording), str(tmp_path), "--quiet", "--model", "embedded"]
    lines = [
        "import sys",
        "from personaplex_cli.cli import app",
        f"app({arguments}, standalone_mode=False)",
        "sys.exit(' '.join({'scipy', 'torch._dynamo', 'torch._inductor'} & set(sys.modules)) or 0)",
    ]
    result = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "telephone.wav").exists()


# ---- the language model and its vocabulary ----


def test_the_weights_have_the_published_names_and_shapes_with_eight_step_sets(
    checkpoint: Checkpoint,
) -> None:
    with safe_open(EMBEDDED / WEIGHTS, framework="pt") as file:
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        dtypes = {file.get_slice(name).get_dtype() for name in shapes}
        assert file.metadata() is None
    assert shapes == expected_tensors(checkpoint.config, n_step_sets=8)
    assert dtypes == {"BF16"}


def test_moshi_itself_loads_the_language_model(checkpoint: Checkpoint) -> None:
    from recipes.embedded.lm import lm_kwargs

    model = loaders.get_moshi_lm(EMBEDDED / WEIGHTS, lm_kwargs(checkpoint.config), dtype=torch.bfloat16)
    assert sum(parameter.numel() for parameter in model.parameters()) == sum(
        int(np.prod(shape)) for shape in expected_tensors(checkpoint.config, n_step_sets=8).values()
    )


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
    # Frame by frame moshi's window holds one position more than the published model's.
    assert kwargs is not None
    kwargs["transformer"] = {**kwargs["transformer"], "context": kwargs["transformer"]["context"] - 1}
    mimi = loaders.get_mimi(checkpoint.mimi, kwargs, num_codebooks=8)
    pcm = np.concatenate(list(Recording(SAMPLE_AUDIO / "question.wav", 24000).blocks()))
    frames = torch.from_numpy(np.pad(pcm, (0, -len(pcm) % FRAME))).view(1, 1, -1, FRAME).unbind(2)
    with torch.inference_mode(), mimi.streaming(1):
        codes = torch.cat([mimi.encode(frame) for frame in frames], dim=2)
    assert torch.equal(codes[0], sample_codes["question.wav"])


def test_silence_stays_quiet(codec: Codec, checkpoint: Checkpoint) -> None:
    silence = torch.tensor(checkpoint.config.mimi_config.silence_codes)[:, None].expand(-1, 50)
    assert rms(decode(codec, silence)) < 0.003


def test_silence_is_said_as_silence(codec: Codec, checkpoint: Checkpoint) -> None:
    heard = codec.encode([[np.zeros(200 * FRAME, np.float32)]])[0][:, 100:]
    said = torch.tensor(checkpoint.config.mimi_config.silence_codes)[:, None]
    assert float((heard == said).float().mean()) > 0.9


def test_a_voice_sounds_like_itself_when_it_has_been_coded(codec: Codec, checkpoint: Checkpoint) -> None:
    for name in checkpoint.voices.names():
        pcm = pcm_of(recorded_voice(name))
        again = decode(codec, codec.encode([[pcm]])[0])[: len(pcm)]
        one, other = (spectrogram(sound) for sound in (pcm, again))
        loud = one > np.percentile(one, 60)
        assert float(np.corrcoef(one[loud], other[loud])[0, 1]) > 0.8


def spectrogram(pcm: Pcm) -> Pcm:
    """Log magnitudes in blocks of 20 ms."""
    blocks = pcm[: len(pcm) // 480 * 480].reshape(-1, 480) * np.hanning(480)
    return np.log(np.abs(np.fft.rfft(blocks))[:, :160] + 1e-2)


# ---- what it says ----


def said_between(transcript: Path, begin: float, end: float) -> str:
    """The words that begin between two moments."""
    words = json.loads(transcript.read_text(encoding="utf-8"))["words"]
    return " ".join(word["word"] for word in words if begin <= word["start"] < end)


def turns(name: str) -> list[tuple[float, float, str]]:
    """A sample's questions: when each begins, when the next does, and the reply that fits."""
    starts = [question["start"] for question in ASKED[name]]
    return list(zip(starts, [*starts[1:], 1e9], [one["reply"] for one in ASKED[name]], strict=True))


def test_the_calls_are_answered(replies: Path) -> None:
    fitting = [
        said_between(replies / Path(name).with_suffix(".json"), begin, end) == reply
        for name in SAMPLES
        for begin, end, reply in turns(name)
    ]
    assert len(fitting) == 9
    # Elsewhere a sum may be rounded otherwise, and a draw fall elsewhere.
    assert sum(fitting) >= 5


def test_the_agent_is_quiet_until_it_is_asked(replies: Path) -> None:
    for name in SAMPLES:
        pcm = pcm_of(replies / Path(name).with_suffix(".wav"))
        for begin, _, _ in turns(name):
            assert rms(pcm[int((begin + 0.1) * 24000) : int((begin + 0.6) * 24000)]) < 0.005


def test_replies_are_as_loud_as_speech(replies: Path) -> None:
    for name in SAMPLES:
        pcm = pcm_of(replies / Path(name).with_suffix(".wav"))
        assert 0.005 < rms(pcm) < 0.2
        assert np.abs(pcm).max() < 1.0


def test_each_call_is_answered_in_its_voice(replies: Path) -> None:
    heights = {name: pitch(pcm_of(recorded_voice(name))) for name in ("female", "male")}
    border = (heights["female"] * heights["male"]) ** 0.5
    assert heights["female"] > 1.3 * heights["male"]
    for line in (SAMPLE_AUDIO / "calls.jsonl").read_text().splitlines():
        row = json.loads(line)
        height = pitch(pcm_of(replies / Path(row["path"]).with_suffix(".wav")))
        assert (height > border) == (row["voice_prompt"] == "female"), row["path"]


def test_the_role_decides_what_is_said(tmp_path: Path) -> None:
    roles = {
        "books": "You work for Happy Books which is a book store and your name is Anna. "
        "Information: Open from nine to seven. Address: twelve Park Road.",
        "gym": "You work for Lion Fitness which is a gym and your name is Thomas. "
        "Information: Open from six thirty to ten. Address: twelve Park Road.",
    }
    question = str(SAMPLE_AUDIO / "question.wav")
    rows = [{"path": question, "output": name, "text_prompt": role} for name, role in roles.items()]
    (tmp_path / "calls.jsonl").write_text("".join(json.dumps({**row, "seed": 3}) + "\n" for row in rows))
    result = CliRunner().invoke(
        app, ["convert", str(tmp_path / "calls.jsonl"), str(tmp_path / "out"), "--model", "embedded"]
    )
    assert result.exit_code == 0, result.output
    said = {name: said_between(tmp_path / "out" / f"{name}.json", 0, 7) for name in roles}
    assert said["books"].startswith("We are open from nine to seven")
    assert said["gym"].startswith("We are open from six thirty to ten")


def pitch(pcm: Pcm) -> float:
    """The median pitch of loud blocks of 40 ms, in hertz: by the lag at which they are most alike."""
    blocks = pcm[: len(pcm) // 960 * 960].reshape(-1, 960)
    blocks = blocks[np.sqrt(np.mean(blocks**2, axis=1)) > 0.03]
    assert len(blocks) >= 5
    likeness = [np.correlate(block, block, "full")[960:] for block in blocks]
    return 24000 / float(np.median([np.argmax(one[60:400]) + 61 for one in likeness]))


# ---- the sample recordings ----


def test_the_sample_recordings_are_small_and_each_has_its_line() -> None:
    readme = (SAMPLE_AUDIO / "README.md").read_text(encoding="utf-8")
    beside = ["README.md", "calls.jsonl", "questions.json"]
    assert sorted(path.name for path in SAMPLE_AUDIO.iterdir()) == sorted([*beside, *SAMPLES])
    assert all(f"`{name}`" in readme for name in SAMPLES)
    assert bytes_in(SAMPLE_AUDIO) < 2_000_000


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_recording_is_of_its_kind(name: str) -> None:
    path = SAMPLE_AUDIO / name
    audio = soundfile.info(path)
    assert (audio.samplerate, audio.channels, audio.subtype) == SAMPLES[name]
    recording = Recording(path, 24000)
    pcm = np.concatenate(list(recording.blocks()))
    assert recording.n_clipped == 0
    assert 0.005 < rms(pcm) < 0.3
