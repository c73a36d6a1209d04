"""A recogniser's dictionary and ears: pocketsphinx with its own English model."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

import numpy as np
import soxr
from pocketsphinx import Decoder

from recipes.embedded.speech import RATE, Pcm, trimmed

HEARD_RATE = 16000
SILENCE = 0.01
BEAM = 1e-80
"""A path that is so much less likely than the best is given up. With pocketsphinx's own beams, those of
dictation, whole sentences are given up before they end, and nothing is heard."""

PHONES = """
    AA AE AH AO AW AY B CH D DH EH ER EY F G HH IH IY JH K L M N NG OW OY P R S SH T TH UH UW V W Y Z ZH
""".split()
"""The dictionary's phones. A phone's number is its place here and one: zero is the blank of CTC."""


def words(text: str) -> list[str]:
    """A text's words, as the dictionary spells them."""
    return re.sub(r"[^a-z' ]", " ", text.lower()).split()


@cache
def dictionary() -> Decoder:
    """Looks up pronunciations."""
    return Decoder(samprate=HEARD_RATE, loglevel="FATAL", lm=None)


def knows(word: str) -> bool:
    """Whether the dictionary has the word."""
    return dictionary().lookup_word(word.lower()) is not None


@cache
def sounds(text: str) -> tuple[str, ...]:
    """How a text's words are said, or spelt where the dictionary lacks them: Jonathan is Jonathon."""
    return tuple(dictionary().lookup_word(word) or word for word in words(text))


@cache
def phone_numbers(text: str) -> tuple[int, ...]:
    """A text's phones. Words that the dictionary lacks are left out."""
    known = [dictionary().lookup_word(word) for word in words(text)]
    return tuple(PHONES.index(phone) + 1 for word in known if word for phone in word.split())


class Ears:
    """Hears one of a closed set of sentences: which of them does it sound most like?"""

    def __init__(self, sentences: Iterable[str]) -> None:
        # The second pass, over a lattice, finds nothing better among whole sentences, and takes minutes where
        # there is no speech.
        beams = dict.fromkeys(("beam", "wbeam", "pbeam"), BEAM)
        self.decoder = Decoder(samprate=HEARD_RATE, loglevel="FATAL", lm=None, bestpath=False, **beams)
        spellings = sorted({" ".join(words(sentence)) for sentence in sentences})
        grammar = f"#JSGF V1.0; grammar replies; public <reply> = {' | '.join(spellings)};"
        self.decoder.add_jsgf_string("replies", grammar)
        self.decoder.activate_search("replies")

    def hear(self, pcm: Pcm) -> str:
        """24 kHz PCM -> the sentence's words; empty if nothing was heard."""
        peak = float(np.abs(pcm).max(initial=0))
        if peak < 1e-3:
            return ""
        # In a long silence that is not quite silent the recogniser loses its way.
        heard = np.pad(soxr.resample(trimmed(pcm, SILENCE), RATE, HEARD_RATE), HEARD_RATE // 4)
        self.decoder.start_utt()
        self.decoder.process_raw((heard / peak * 16000).astype(np.int16).tobytes(), full_utt=True)
        self.decoder.end_utt()
        best = self.decoder.hyp()
        return best.hypstr if best else ""
