"""The embedded model's recipe, from nothing to the packaged files, at a scale of minutes."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from moshi.models import loaders
from safetensors.torch import load_file

from personaplex_cli.audio.codec import mimi_kwargs
from personaplex_cli.config.tree import MIMI_NAME
from personaplex_cli.model.checkpoint import TOKENIZER, WEIGHTS, open_checkpoint

ROOT = Path(__file__).parents[1]
MISSING = [tool for tool in ("flite", "espeak-ng") if shutil.which(tool) is None]

pytest.importorskip("pocketsphinx", reason="the recipe's packages are not installed: pip install '.[recipe]'")
pytest.importorskip("faker", reason="the recipe's packages are not installed: pip install '.[recipe]'")

from recipes.embedded import codec as training_codec  # noqa: E402
from recipes.embedded import corpus, evaluate, export, lm, start  # noqa: E402
from recipes.embedded.dialogues import Dialogues  # noqa: E402
from recipes.embedded.domain import KINDS, VOICES, Role, invented, is_unseen, role_text, role_values  # noqa: E402
from recipes.embedded.hearing import Ears, sounds, words  # noqa: E402
from recipes.embedded.intents import INTENTS, Intent, Question, question, reply_to  # noqa: E402
from recipes.embedded.speech import Voice, spoken  # noqa: E402
from recipes.embedded.vocabulary import PAD  # noqa: E402


def run_recipe(work: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """At the small scale, without compilation, which would take longer than what it speeds up."""
    command = [sys.executable, "-m", "recipes.embedded", "--work", str(work), "--scale", "small", *options]
    # No result of a stage may keep a file open: there are many thousands of them.
    limited = ["sh", "-c", 'ulimit -n 100 && exec "$@"', "sh", *command]
    environment = {**os.environ, "TORCHDYNAMO_DISABLE": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.run(limited, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if MISSING:
        pytest.skip(f"not installed: {', '.join(MISSING)}")
    folder = tmp_path_factory.mktemp("recipe")
    ended = run_recipe(folder)
    assert ended.returncode == 0, ended.stderr
    return folder


# ---- the whole ----


def test_every_stage_leaves_its_result_and_its_figures(work: Path) -> None:
    for name in ("mimi.pt", "codes.pt", "mimi-refined.pt", "lm.pt", "tokenizer.model"):
        assert (work / name).stat().st_size > 0
    for stage, measure in {"codec": "spectral", "decoder": "spectral", "lm": "text"}.items():
        lines = (work / f"{stage}.log.jsonl").read_text().splitlines()
        assert all(np.isfinite(json.loads(line)[measure]) for line in lines)
    report = json.loads((work / "evaluation-test.json").read_text())
    assert report["n_turns"] > 0
    assert {share["measure"] for share in report["shares"]} >= {
        "reply of the right kind",
        "the prompted voice",
    }
    for share in report["shares"]:
        assert 0 <= share["from"] <= share["to"] <= 1


def test_what_is_there_is_not_made_again(work: Path) -> None:
    made = {path: path.stat().st_mtime_ns for path in work.glob("*.pt")}
    assert run_recipe(work, "--until", "lm").returncode == 0
    assert {path: path.stat().st_mtime_ns for path in work.glob("*.pt")} == made


def test_the_files_are_a_model_for_us_and_for_moshi(work: Path) -> None:
    checkpoint = open_checkpoint(str(work / "model"))
    assert checkpoint.voices.names() == ["female", "male"]
    loaders.get_mimi(work / "model" / MIMI_NAME, mimi_kwargs(checkpoint.config.mimi_config), num_codebooks=8)
    model = loaders.get_moshi_lm(
        work / "model" / WEIGHTS, lm.lm_kwargs(checkpoint.config), dtype=torch.bfloat16
    )
    trained = torch.load(work / "lm.pt", weights_only=True)
    sharpness = {"text_linear.weight": export.TEXT_SHARPNESS}
    sharpness |= {f"linears.{step}.weight": export.CODE_SHARPNESS for step in range(8)}
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, (sharpness.get(name, 1.0) * trained[name]).bfloat16()), name


def test_the_card_tells_what_was_measured(work: Path) -> None:
    card = (work / "model" / "MODEL_CARD.md").read_text()
    report = json.loads((work / "evaluation-test.json").read_text())
    for share in report["shares"]:
        assert f"| {share['measure']} | {share['share']:.1%} " in card


def test_a_training_goes_on_from_a_model(work: Path, tmp_path: Path) -> None:
    shutil.copytree(work / "corpus", tmp_path / "corpus")
    ended = run_recipe(tmp_path, "--start", str(work / "model"), "--until", "lm")
    assert ended.returncode == 0, ended.stderr
    # The codec is the model's: it hears the corpus as it did.
    one, other = (torch.load(folder / "codes.pt", weights_only=True) for folder in (work, tmp_path))
    for reply, again in zip(one["replies"], other["replies"], strict=True):
        assert torch.equal(reply["codes"], again["codes"])
    begun, trained = (torch.load(tmp_path / name, weights_only=True) for name in (lm.START, "lm.pt"))
    assert any(not torch.equal(begun[name], trained[name]) for name in begun)
    # What was begun counts as the first two thirds.
    saved = torch.load(tmp_path / "lm.training.pt", weights_only=True)
    assert saved["step"] == 3
    assert {float(state["step"]) for state in saved["optimizer"]["state"].values()} == {1.0}


def test_a_model_to_go_on_from_is_the_packaged_one_bit_for_bit(tmp_path: Path) -> None:
    model = ROOT / "personaplex_cli" / "embedded"
    start.lay_out(model, tmp_path)
    assert (tmp_path / "tokenizer.model").read_bytes() == (model / TOKENIZER).read_bytes()
    mimi = training_codec.load(tmp_path, "mimi-refined.pt")
    state = torch.load(tmp_path / lm.START, weights_only=True)
    written = {
        MIMI_NAME: export.codec_tensors(mimi),
        WEIGHTS: export.lm_tensors(state, export.TEXT_SHARPNESS, export.CODE_SHARPNESS),
    }
    for name, tensors in written.items():
        packaged = load_file(model / name)
        assert packaged.keys() == tensors.keys()
        assert all(torch.equal(packaged[key], tensors[key]) for key in packaged)


# ---- its parts against a second way ----


def test_a_reading_is_of_recorded_replies_with_names_and_its_words_are_not_learnt(work: Path) -> None:
    dialogues = Dialogues(work, seed=1)
    for _ in range(4):
        row = dialogues.reading()
        assert not row.text_weights[row.live].any()
        read = dialogues.pieces.decode([token for token in row.table[0][row.live].tolist() if token > PAD])
        speaking = row.speaking.int()
        begins = (speaking.diff() == 1).nonzero()[:, 0] + 1
        ends = (speaking.diff() == -1).nonzero()[:, 0] + 1
        # The last may be cut off.
        heard = [row.table[1:9, begin : end + 1] for begin, end in zip(begins, ends, strict=True)][:-1]
        assert len(heard) > 2
        for sound in heard:
            # All codebooks but the first come a position later.
            codes = torch.cat([sound[:1, :-1], sound[1:, 1:]])
            (reply,) = [one for one in dialogues.said.values() if torch.equal(one["codes"].long(), codes)]
            names = [reply["role"][fact] for fact in ("name", "business", "address")]
            assert any(name and name in reply["text"] for name in names)
            assert reply["text"] in read


def test_the_training_forward_of_the_codec_is_moshi_s() -> None:
    mimi = training_codec.new_mimi().eval()
    pcm = torch.randn(2, 10 * 1920, generator=torch.Generator().manual_seed(1)) * 0.1
    with torch.no_grad():
        theirs = mimi.encode_to_latent(pcm[:, None], quantize=False)
        ours = training_codec.encoded(mimi, pcm)
        torch.testing.assert_close(ours, theirs, rtol=0.1, atol=0.05 * float(theirs.abs().max()))
        theirs = mimi.decoder(mimi.decoder_transformer(mimi.upsample(theirs))[0])[:, 0]
        ours = training_codec.decoded(mimi, mimi.encode_to_latent(pcm[:, None], quantize=False))
        torch.testing.assert_close(ours, theirs, rtol=0.1, atol=0.05 * float(theirs.abs().max()))


def test_the_training_forward_of_the_language_model_is_moshi_s(small_lm: tuple[Any, Any]) -> None:
    model, config = small_lm
    numbers = torch.Generator().manual_seed(1)
    table = torch.randint(config.audio_vocab_size, (2, 17, 20), generator=numbers)
    with torch.no_grad():
        _, logits = lm.listened(model, table, torch.arange(20).expand(2, -1))
        theirs, text = model.forward_text(table)
        torch.testing.assert_close(logits, text[:, 0], rtol=0, atol=0.05 * float(text.abs().max()))
        codes = torch.randint(config.audio_vocab_size, (40, 8), generator=numbers)
        said = lm.depformed(model, theirs.flatten(0, 1), table[:, 0].flatten(), codes)
        model.depformer.set_streaming_detached(True)
        with model.depformer.streaming(40):
            token = table[:, 0].reshape(40, 1, 1)
            for step in range(8):
                each = model.forward_depformer(step, token, theirs.reshape(40, 1, -1))
                torch.testing.assert_close(
                    said[step], each[:, 0, 0], rtol=0, atol=0.05 * float(each.abs().max())
                )
                token = codes[:, step].reshape(40, 1, 1)


@pytest.fixture(scope="module")
def small_lm() -> tuple[Any, Any]:
    config = open_checkpoint("embedded").config
    torch.manual_seed(1)
    return lm.new_lm(config).eval(), config


# ---- what is said ----


@pytest.mark.parametrize("unseen", [False, True])
def test_a_role_carries_the_facts_of_its_replies(unseen: bool) -> None:
    rng = random.Random(1)
    for _ in range(50):
        role = role_values(rng, unseen=unseen)
        told = role_text(role, rng).lower()
        for intent in INTENTS:
            reply, facts = reply_to(question(intent, "train", rng), role)
            for fact in set(facts) - {None}:
                assert fact.lower() in reply.lower()
                assert fact.lower() in told or intent == "day"


def test_unseen_values_are_never_met_in_training() -> None:
    rng = random.Random(1)
    for _ in range(200):
        seen = role_values(rng, unseen=False)
        values: Mapping[str, str | None] = vars(seen)
        assert not any(is_unseen(str(values[name])) for name in ("name", "price"))
        assert not is_unseen(str(seen.business).split()[0])
        unseen = role_values(rng, unseen=True)
        assert is_unseen(str(unseen.name))
        assert is_unseen(str(unseen.business).split()[0])


def test_made_up_names_are_none_that_are_kept_out_of_training() -> None:
    rng = random.Random(1)
    for _ in range(200):
        role = invented(role_values(rng, unseen=False), rng)
        first, kind = str(role.business).split()
        assert not any(map(is_unseen, (str(role.name), first, str(role.address).split()[-2])))
        assert kind in KINDS


def test_agents_say_everything_of_a_role_and_the_names_of_a_made_up_one() -> None:
    said = [utterance for utterance in corpus.agents(3) if utterance.voice.name == "slt"]
    roles = {tuple(utterance.about["role"].items()): utterance.about["role"] for utterance in said}
    whole = [role for role in roles.values() if all(role.values())]
    names_alone = [role for role in roles.values() if role["name"] and not role["price"]]
    assert (len(whole), len(names_alone)) == (3, 3 * corpus.MADE_UP)
    texts = {utterance.text for utterance in said}
    for values in [*whole, *names_alone]:
        role = Role(**values)
        for intent in INTENTS:
            asked = question(intent, "train", random.Random(1), role.item)
            assert reply_to(asked, role)[0] in texts


def plain(phrasing: str) -> str:
    return " ".join(words(phrasing.replace("what's", "what is").replace("I'd", "I would")))


def test_no_phrasing_is_in_two_parts() -> None:
    rng = random.Random(1)
    for intent in INTENTS.values():
        dev, test = set(map(plain, intent.dev)), set(map(plain, intent.test))
        train = {plain(intent.phrasing("train", rng)) for _ in range(400)}
        assert not dev & test
        assert not train & (dev | test)
        assert len(test) >= 3
        assert len(train) >= 30


def test_a_group_of_a_phrasing_is_one_of_its_ways() -> None:
    rng = random.Random(1)
    intent = Intent((), ("a (red|blue) (ball|) for {item}",))
    said = {intent.phrasing("train", rng) for _ in range(100)}
    assert said == {
        f"a {colour} {thing} for {{item}}" for colour in ("red", "blue") for thing in ("ball", "")
    }


def test_who_does_not_know_says_so() -> None:
    assert reply_to(Question("name", "what is your name"), Role())[0] == "I am sorry, I do not know that."


# ---- the judge ----


def test_shares_come_with_wilson_s_intervals() -> None:
    # R: prop.test(84, 100, correct = FALSE)$conf.int
    lower, upper = evaluate.Share("", 84, 100).bounds
    assert lower == pytest.approx(0.7558, abs=1e-4)
    assert upper == pytest.approx(0.8990, abs=1e-4)


def test_a_reply_is_of_its_kind_whatever_its_facts() -> None:
    kind = evaluate.pattern("My name is Anna.", ("Anna",), "name")
    assert evaluate.re.fullmatch(kind, "My name is Peter.")
    assert not evaluate.re.fullmatch(kind, "Our address is two Main Street.")


def test_names_that_sound_alike_are_the_same_to_the_judge() -> None:
    assert sounds("My name is Jonathan.") == sounds("my name is jonathon")
    assert sounds("My name is Jonathan.") != sounds("my name is jennifer")
    # Those that the dictionary lacks are as they are spelt.
    assert sounds("Tobelwick.") != sounds("tobelwack")


@pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")
def test_the_judge_hears_what_an_agent_says_and_nothing_in_silence() -> None:
    said = ["My name is Monica.", "Our address is four Union Avenue.", "You are welcome."]
    ears = Ears([*said, "My name is Victor.", "Our address is five Garden Street.", "Goodbye."])
    for voice in VOICES.values():
        for text in said:
            assert sounds(ears.hear(spoken(text, Voice("flite", voice)))) == sounds(text)
    assert ears.hear(np.zeros(24000, np.float32)) == ""


@pytest.mark.parametrize("hertz", [90.0, 120.0, 180.0, 240.0])
def test_pitch_is_measured(hertz: float) -> None:
    seconds = np.arange(24000) / 24000
    tone = sum(np.sin(2 * np.pi * hertz * k * seconds) / k for k in range(1, 8)) * 0.1
    assert evaluate.pitch(tone.astype(np.float32)) == pytest.approx(hertz, rel=0.03)
