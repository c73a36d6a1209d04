"""The untrained model of most tests: built by its recipe, of a sensible level, and never of one mind."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import sentencepiece
import torch
from safetensors.torch import load_file

from personaplex_cli.audio.codec import Codec
from personaplex_cli.config.facts import expected_tensors
from personaplex_cli.config.tree import MIMI_NAME, PAD
from personaplex_cli.engine.generate import generate
from personaplex_cli.engine.turns import Reply, lay_out
from personaplex_cli.model.checkpoint import TOKENIZER, WEIGHTS, open_checkpoint
from personaplex_cli.model.weights import load_lm
from personaplex_cli.prompt import PromptMaker
from personaplex_cli.settings import Persona, Sampling
from personaplex_cli.text import Tokenizer
from tests import untrained
from tests.conftest import CPU, UNTRAINED
from tests.helpers import sound


@pytest.fixture(scope="module")
def rebuilt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rebuilt")
    untrained.build(folder)
    return folder


def test_its_recipe_builds_it(rebuilt: Path) -> None:
    built = sorted(path.relative_to(rebuilt) for path in rebuilt.rglob("*") if path.is_file())
    there = sorted(path.relative_to(UNTRAINED) for path in UNTRAINED.rglob("*") if path.is_file())
    assert built == there
    # Other versions of the libraries may write the same contents otherwise.
    for path in set(built) - {Path(WEIGHTS), Path(MIMI_NAME), Path(TOKENIZER)}:
        assert (rebuilt / path).read_bytes() == (UNTRAINED / path).read_bytes()


def test_its_weights_are_those_of_the_recipe(rebuilt: Path) -> None:
    ours, built = load_file(UNTRAINED / WEIGHTS), load_file(rebuilt / WEIGHTS)
    assert ours.keys() == built.keys()
    assert all(torch.equal(ours[name], built[name]) for name in ours)
    config = open_checkpoint(str(UNTRAINED)).config
    assert {name: tuple(tensor.shape) for name, tensor in ours.items()} == expected_tensors(config, 8)


def test_its_codec_is_that_of_the_recipe(rebuilt: Path) -> None:
    ours, built = load_file(UNTRAINED / MIMI_NAME), load_file(rebuilt / MIMI_NAME)
    assert ours.keys() == built.keys()
    for name, tensor in ours.items():
        # Codebooks are measured and rounded to float16: on another machine a number may go to the next one.
        torch.testing.assert_close(tensor, built[name], rtol=2e-3, atol=1e-5)


def test_its_vocabulary_is_that_of_the_recipe(rebuilt: Path) -> None:
    ours, built = (
        sentencepiece.SentencePieceProcessor(model_file=str(folder / TOKENIZER))
        for folder in (UNTRAINED, rebuilt)
    )
    assert [ours.id_to_piece(piece) for piece in range(ours.vocab_size())] == [
        built.id_to_piece(piece) for piece in range(built.vocab_size())
    ]


def test_a_reply_has_varied_codes_and_pads_most_frames_but_not_all() -> None:
    checkpoint = open_checkpoint(str(UNTRAINED))
    config = checkpoint.config
    codec = Codec(checkpoint.mimi, config.mimi_config, CPU)
    lm = load_lm(checkpoint.weights, config, dtype=torch.float32, device=CPU)
    prompts = PromptMaker(config, codec, Tokenizer(checkpoint.tokenizer, config), checkpoint.voices)
    heard = codec.encode([[sound(12.0, seed=1).astype(np.float32)]])[0]
    turn = lay_out(prompts.prompt_of(Persona()), heard, config, seed=1)
    (reply,) = generate(lm, [turn], n_slots=1, sampling=Sampling())
    assert isinstance(reply, Reply)
    text, agent = reply.tokens[0], reply.tokens[1:]
    assert 0.5 < float((text == PAD).float().mean()) < 0.98
    assert min(len(row.unique()) for row in agent) > 30
    pcm = np.concatenate([rows[0] for rows in codec.decode([agent])])
    assert 0.05 < float(np.sqrt(np.mean(pcm**2))) < 0.2
    assert np.abs(pcm).max() < 1.0
