"""Roles to tokens, and text tokens to words with times."""

from __future__ import annotations

from pathlib import Path

import pytest
import sentencepiece

from personaplex_cli.config.load import load_config
from personaplex_cli.config.tree import PAD, PersonaPlexConfig
from personaplex_cli.errors import ModelError
from personaplex_cli.text import SPECIAL_PIECES, Tokenizer, Word, tag_role
from tests.conftest import GOLDEN

MODEL = GOLDEN / "checkpoint" / "tokenizer_spm_32k_3.model"


@pytest.fixture(scope="module")
def pieces() -> sentencepiece.SentencePieceProcessor:
    return sentencepiece.SentencePieceProcessor(model_file=str(MODEL))


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(MODEL, load_config(GOLDEN / "checkpoint").config)


@pytest.mark.parametrize(
    ("role", "tagged"),
    [
        ("You are kind.", "<system> You are kind. <system>"),
        ("  You are kind.\n", "<system> You are kind. <system>"),
        ("<system> You are kind. <system>", "<system> You are kind. <system>"),
        (" <system> You are kind. <system>\n", "<system> You are kind. <system>"),
        ("<system> You are kind.", "<system> <system> You are kind. <system>"),
        ("You are\nkind \N{ROBOT FACE}", "<system> You are\nkind \N{ROBOT FACE} <system>"),
    ],
)
def test_a_role_stands_between_tags_exactly_once(
    tokenizer: Tokenizer, pieces: sentencepiece.SentencePieceProcessor, role: str, tagged: str
) -> None:
    assert tag_role(role) == tagged
    assert tokenizer.role_tokens(role) == pieces.encode(tagged, add_bos=False, add_eos=False)


@pytest.mark.parametrize("role", ["", " ", "\n\t"])
def test_an_empty_role_has_no_tokens(tokenizer: Tokenizer, role: str) -> None:
    assert tokenizer.role_tokens(role) == []


def test_special_tokens_bear_the_names_of_the_reference(tokenizer: Tokenizer) -> None:
    assert tokenizer.frame_pieces([0, 1, 2, 3]) == ["EPAD", "BOS", "EOS", "PAD"]


def test_a_piece_shows_the_space_before_its_word(
    tokenizer: Tokenizer, pieces: sentencepiece.SentencePieceProcessor
) -> None:
    ids = pieces.encode("hello there")
    assert "".join(tokenizer.frame_pieces(ids)) == " hello there"


def test_words_last_from_their_first_pieces_frame_to_the_end_of_their_last(
    tokenizer: Tokenizer, pieces: sentencepiece.SentencePieceProcessor
) -> None:
    one, two = pieces.encode("hello"), pieces.encode("pizza")
    assert len(one) > 1, "the test needs a word of several pieces"
    frames = [PAD, PAD, one[0], PAD, *one[1:], PAD, 0, *two, PAD]
    end_of_one = 4 + len(one) - 1
    begin_of_two = end_of_one + 2
    assert tokenizer.words(frames) == [
        Word("hello", 0.16, round(end_of_one * 0.08, 6)),
        Word("pizza", round(begin_of_two * 0.08, 6), round((begin_of_two + len(two)) * 0.08, 6)),
    ]
    assert tokenizer.text(frames) == "hello pizza"


def test_a_letter_that_is_spelled_in_bytes_over_several_frames_comes_out_whole(
    tokenizer: Tokenizer, pieces: sentencepiece.SentencePieceProcessor
) -> None:
    ids = pieces.encode("a\N{SNOWMAN}b")
    spelled = [pieces.id_to_piece(token) for token in ids]
    assert sum(piece.startswith("<0x") for piece in spelled) == 3
    frames = [token for piece in ids for token in (piece, PAD)]
    assert tokenizer.text(frames) == "a\N{SNOWMAN}b"
    assert [word.word for word in tokenizer.words(frames)] == ["a\N{SNOWMAN}b"]


def test_padding_and_an_empty_reply_say_nothing(tokenizer: Tokenizer) -> None:
    for frames in ([], [PAD] * 5, [0, 1, 2, PAD]):
        assert tokenizer.text(frames) == ""
        assert tokenizer.words(frames) == []
        assert tokenizer.frame_pieces(frames) == [SPECIAL_PIECES[token] for token in frames]


def test_a_space_alone_is_no_word(tokenizer: Tokenizer, pieces: sentencepiece.SentencePieceProcessor) -> None:
    space = pieces.piece_to_id("\N{LOWER ONE EIGHTH BLOCK}")
    assert tokenizer.words([space, PAD, *pieces.encode("a")])[-1].word == "a"
    assert tokenizer.words([space, PAD]) == []


def test_every_token_of_the_vocabulary_has_a_piece(tokenizer: Tokenizer) -> None:
    assert all(tokenizer.frame_pieces(list(range(512))))


def test_tokens_past_a_small_vocabulary_are_unknown_and_silent(
    pieces: sentencepiece.SentencePieceProcessor, golden_config: PersonaPlexConfig
) -> None:
    roomy = golden_config.model_copy(update={"text_vocab_size": 1000})
    tokenizer = Tokenizer(MODEL, roomy)
    assert tokenizer.frame_piece(pieces.vocab_size()) == pieces.id_to_piece(pieces.unk_id())
    assert tokenizer.text([999]) == ""
    assert tokenizer.words([999]) == []


def test_a_tokenizer_larger_than_the_models_vocabulary_is_refused(golden_config: PersonaPlexConfig) -> None:
    small = golden_config.model_copy(update={"text_vocab_size": 500})
    with pytest.raises(ModelError, match=r"has 512 pieces, but the config tree's text_vocab_size is 500"):
        Tokenizer(MODEL, small)


def test_a_file_that_is_no_tokenizer_is_refused_by_name(
    tmp_path: Path, golden_config: PersonaPlexConfig
) -> None:
    broken = tmp_path / "broken.model"
    broken.write_bytes(b"no tokenizer")
    with pytest.raises(ModelError, match=r"broken\.model: not a SentencePiece model"):
        Tokenizer(broken, golden_config)
