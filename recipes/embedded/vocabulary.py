"""The text vocabulary: SentencePiece pieces of roles and replies, with the published special ids."""

from __future__ import annotations

import io
import random
from collections.abc import Iterator
from pathlib import Path

import sentencepiece

from recipes.embedded.domain import role_text, role_values
from recipes.embedded.intents import INTENTS, question, reply_to

N_PIECES = 768
EPAD, PAD = 0, 3
ALPHABET = "abcdefghijklmnopqrstuvwxyz"
SYMBOLS = "0123456789.,?!:;'\"-()/&%$@+"


def sentences(n_roles: int) -> Iterator[str]:
    """Roles and replies, of training's values alone."""
    rng = random.Random("vocabulary")
    for _ in range(n_roles):
        role = role_values(rng, unseen=False)
        yield f"<system> {role_text(role, rng)} <system>"
        for intent in INTENTS:
            yield reply_to(question(intent, "train", rng), role)[0]
    for letters in (ALPHABET, ALPHABET.upper(), SYMBOLS):
        yield from [" ".join(letters)] * 20


def train(folder: Path, n_roles: int = 2000) -> None:
    """Write `tokenizer.model`."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=sentences(n_roles),
        model_writer=model,
        model_type="bpe",
        vocab_size=N_PIECES,
        unk_id=0,
        bos_id=1,
        eos_id=2,
        pad_id=3,
        user_defined_symbols=["<system>"],
        byte_fallback=True,
        character_coverage=1.0,
        # The usual normalisation brings a table of 240 KB.
        normalization_rule_name="identity",
        num_threads=1,
        minloglevel=2,
    )
    (folder / "tokenizer.model").write_bytes(model.getvalue())
