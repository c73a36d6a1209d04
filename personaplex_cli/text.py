"""Text: a role to tokens, text tokens to words with times. The one door to sentencepiece."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import sentencepiece

from personaplex_cli.config.tree import PersonaPlexConfig
from personaplex_cli.errors import ModelError

SYSTEM_TAG = "<system>"
SPECIAL_PIECES = ("EPAD", "BOS", "EOS", "PAD")
"""The reference's names for the text tokens 0-3."""
WORD_START = "\u2581"


@dataclass(frozen=True)
class Word:
    """One word of a reply and its time, in seconds from the start of the recording."""

    word: str
    start: float
    end: float


class Tokenizer:
    """The model's SentencePiece vocabulary."""

    def __init__(self, path: Path, config: PersonaPlexConfig) -> None:
        self.frame_seconds = 1 / config.frame_rate
        try:
            self.pieces = sentencepiece.SentencePieceProcessor(model_file=str(path))
        except (OSError, RuntimeError) as error:
            raise ModelError(f"{path}: not a SentencePiece model ({error}); download it again") from error
        if self.pieces.vocab_size() > config.text_vocab_size:
            raise ModelError(
                f"{path}: has {self.pieces.vocab_size()} pieces, but the config tree's text_vocab_size is "
                f"{config.text_vocab_size}: they belong to different models"
            )

    def role_tokens(self, role: str) -> list[int]:
        """A role's tokens, between its tags; none for an empty role. (The reference crashes there.)"""
        return list(self.pieces.encode(tag_role(role))) if role.strip() else []

    def frame_pieces(self, tokens: Sequence[int]) -> list[str]:
        """One piece a frame, as the reference prints them."""
        return [self.frame_piece(token) for token in tokens]

    def frame_piece(self, token: int) -> str:
        """One token as the reference prints it."""
        if is_special(token):
            return SPECIAL_PIECES[token]
        if token >= self.pieces.vocab_size():
            return self.pieces.id_to_piece(self.pieces.unk_id())
        return str(self.pieces.id_to_piece(token)).replace(WORD_START, " ")

    def text(self, tokens: Sequence[int]) -> str:
        """What a reply says, without its padding."""
        spoken = [token for token in tokens if not is_special(token) and token < self.pieces.vocab_size()]
        return str(self.pieces.decode(spoken)).strip()

    def words(self, tokens: Sequence[int]) -> list[Word]:
        """The words of a reply; a word lasts from its first piece's frame to the end of its last piece's."""
        words: list[tuple[list[int], int, int]] = []
        for frame, token in enumerate(tokens):
            if is_special(token) or token >= self.pieces.vocab_size():
                continue
            if not words or self.pieces.id_to_piece(token).startswith(WORD_START):
                words.append(([token], frame, frame + 1))
            else:
                ids, start, _ = words[-1]
                words[-1] = ([*ids, token], start, frame + 1)
        spelled = [(str(self.pieces.decode(ids)).strip(), start, end) for ids, start, end in words]
        return [
            Word(word, round(start * self.frame_seconds, 6), round(end * self.frame_seconds, 6))
            for word, start, end in spelled
            if word
        ]


def is_special(token: int) -> bool:
    """Padding and the like: not a word's piece."""
    return 0 <= token < len(SPECIAL_PIECES)


def tag_role(role: str) -> str:
    """A role between system tags, unless it already begins and ends so."""
    role = role.strip()
    tagged = role.startswith(SYSTEM_TAG) and role.endswith(SYSTEM_TAG)
    return role if tagged else f"{SYSTEM_TAG} {role} {SYSTEM_TAG}"
