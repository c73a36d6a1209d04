"""Speech from flite and espeak-ng, at 24 kHz, and what a line and a room do to it.

Agents are spoken by flite, which recognisers understand well. Users are spoken by both, in many voices.
"""

from __future__ import annotations

import io
import math
import random
import re
import subprocess
import tempfile
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cache
from pathlib import Path

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray
from scipy.signal import butter, fftconvolve, lfilter, sosfilt

from recipes.embedded.domain import Part

RATE = 24000
FRAME = 1920

Pcm = NDArray[np.float32]

ACCENTS = ["en-us", "en-us", "en-us", "en-gb", "en-gb-x-rp", "en-gb-scotland", "en-us-nyc", "en-029"]
VARIANTS = {
    "train": """
        Alex Alicia Andy Annie Belinda Benjamin Caleb David Diogo Ed Edward Gene Gene2 Henrique Hugo Iven
        Jacky Lee Linda Marcelo Marco Mario Max Michael Miguel Mike Pablo Paul Pedro Quincy Rob Robert Steph
        Steph2 Steph3 Zac anika female1 female2 female3 female4 male1 male2 male3 male4 male5 male6 klatt
        klatt2 klatt3 shelby travis victor norbert grandma
    """.split(),
    "dev": ["Adam", "Denis", "female5", "sandro"],
    "test": ["Andrea", "John", "male7", "Auntie", "Michel", "male8"],
}
"""espeak-ng's variants of a voice that sound like people. No part's voices are another's."""
FLITES = {"train": ["kal16", "slt", "rms"], "dev": ["awb"], "test": ["awb"]}
FLITE_SHARE = {"train": 0.4, "dev": 0.2, "test": 0.2}
"""flite's few voices are harder to understand than espeak-ng's many."""
OWN_PITCH = {"kal16": 90, "slt": 173}
"""Hertz, of those who are learnt from; rms cannot be told another."""


@dataclass(frozen=True)
class Voice:
    """One way to speak: an engine's voice at a speed and a height."""

    engine: str
    name: str
    speed: float = 1.0
    """Faster above one."""
    height: float = 1.0
    """Pitch and formants together; the voice of a smaller person above one."""
    pitch: float = 1.0
    """Pitch alone; a higher voice above one."""


def users_voice(part: Part, rng: random.Random) -> Voice:
    """A voice of a part, at random; those that are learnt from differ more than their engines make them."""
    if rng.random() < FLITE_SHARE[part]:
        engine, name = "flite", rng.choice(FLITES[part])
        speed, height = rng.uniform(0.85, 1.3), rng.uniform(0.82, 1.25)
    else:
        engine, name = "espeak-ng", f"{rng.choice(ACCENTS)}+{rng.choice(VARIANTS[part])}"
        speed, height = rng.uniform(0.7, 1.15), rng.uniform(0.88, 1.14)
    return Voice(engine, name, speed, height, rng.uniform(0.7, 1.4) if part == "train" else 1.0)


def spoken(text: str, voice: Voice) -> Pcm:
    """Text as speech, without the silence around it, as loud as a telephone call."""
    return with_phones(text, voice)[0]


Phones = list[tuple[str, float]]
"""Names, and when they begin, in seconds."""


def with_phones(text: str, voice: Voice) -> tuple[Pcm, Phones]:
    """The same, and flite's phones; none of espeak-ng."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "speech.wav"
        if voice.engine == "flite":
            stretch = f"duration_stretch={voice.height / voice.speed:.3f}"
            command = ["flite", "-voice", voice.name, "--setf", stretch, "-psdur", "-t", text, "-o", str(out)]
            if voice.pitch != 1.0 and voice.name in OWN_PITCH:
                command += ["--setf", f"int_f0_target_mean={voice.pitch * OWN_PITCH[voice.name]:.0f}"]
        else:
            speed = round(175 * voice.speed / voice.height)
            # Of 100 steps of pitch, 50 is a voice's own, and 55 make an octave.
            pitch = round(50 + 55 * math.log2(voice.pitch))
            manner = ["-v", voice.name, "-s", str(speed), "-p", str(pitch)]
            command = ["espeak-ng", *manner, "-w", str(out), text]
        told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        pcm, rate = soundfile.read(io.BytesIO(out.read_bytes()), dtype="float32")
    heard = soxr.resample(pcm, rate * voice.height, RATE).astype(np.float32)
    return levelled(trimmed(heard)), phones(told) if voice.engine == "flite" else []


def phones(told: str) -> Phones:
    """What flite prints: names with the times at which they end."""
    ends = [(name, float(end)) for name, end in (entry.split(":") for entry in told.split())]
    return [(name, start) for (name, _), start in zip(ends, [0.0, *(end for _, end in ends)], strict=False)]


def trimmed(pcm: Pcm, threshold: float = 0.004) -> Pcm:
    """Without the silence before and after."""
    loud = np.flatnonzero(np.abs(pcm) > threshold)
    return pcm[max(0, loud[0] - RATE // 50) : loud[-1] + RATE // 50] if len(loud) else pcm


def levelled(pcm: Pcm, rms: float = 0.06) -> Pcm:
    """Where there is speech, of this root mean square; never beyond full scale."""
    size = np.abs(pcm)
    speech = pcm[size > 0.02 * size.max()]
    return np.clip(pcm * (rms / np.sqrt(np.mean(speech**2))), -0.95, 0.95).astype(np.float32)


# ---- when each word begins ----


def onsets(text: str, sentence: Phones) -> list[float]:
    """When each word of a text begins, in seconds after the first sound, by its phones."""
    spelled = [phones_of(word) for word in text.split()]
    owners = [index for index, word in enumerate(spelled) for _ in word]
    said = [(name, start) for name, start in sentence if name != "pau"]
    alike = SequenceMatcher(
        None, [one for word in spelled for one in word], [name for name, _ in said], False
    )
    begins: dict[int, float] = {}
    for block in alike.get_matching_blocks():
        for index in range(block.size):
            begins.setdefault(owners[block.a + index], said[block.b + index][1] - said[0][1])
    times, last = [], 0.0
    for index in range(len(spelled)):
        last = max(last, begins.get(index, last))
        times.append(last)
    return times


@cache
def phones_of(word: str) -> list[str]:
    """A word's phones where it stands alone."""
    letters = re.sub(r"[^a-z' ]", "", word.lower())
    return [name for name, _ in with_phones(letters, Voice("flite", "kal16"))[1] if name != "pau"]


# ---- the line and the room ----


def noise(n: int, rng: np.random.Generator, level: float) -> Pcm:
    """Noise of a random colour. `level`: its root mean square."""
    white = rng.standard_normal(n)
    pole = rng.choice([0.0, rng.uniform(0.4, 0.97)])
    coloured = lfilter([1.0], [1.0, -pole], white)
    return (coloured * (level / max(float(coloured.std()), 1e-9))).astype(np.float32)


def telephone(pcm: Pcm) -> Pcm:
    """The narrow band of a telephone, and its mu-law."""
    band = butter(4, [300, 3400], "bandpass", fs=RATE, output="sos")
    narrow = np.clip(sosfilt(band, pcm), -1, 1)
    compressed = np.sign(narrow) * np.log1p(255 * np.abs(narrow)) / np.log(256)
    rough = np.round(compressed * 127) / 127
    return (np.sign(rough) * np.expm1(np.abs(rough) * np.log(256)) / 255).astype(np.float32)


def room(pcm: Pcm, rng: np.random.Generator) -> Pcm:
    """The echoes of a small room."""
    seconds = rng.uniform(0.08, 0.35)
    n = int(seconds * RATE)
    tail = rng.standard_normal(n) * np.exp(-6.9 * np.arange(n) / n) * rng.uniform(0.01, 0.04)
    tail[0] = 1.0
    return fftconvolve(pcm, tail)[: len(pcm)].astype(np.float32)


def over_the_line(pcm: Pcm, rng: np.random.Generator) -> Pcm:
    """A whole recording as some microphone and some line would give it."""
    if rng.random() < 0.3:
        pcm = room(pcm, rng)
    if rng.random() < 0.4:
        tilt = rng.uniform(-0.6, 0.6)
        pcm = lfilter([1.0, tilt], [1.0], pcm).astype(np.float32)
    pcm = pcm * np.float32(10 ** (rng.uniform(-12, 6) / 20))
    if rng.random() < 0.75:
        pcm = pcm + noise(len(pcm), rng, 10 ** (rng.uniform(-75, -42) / 20))
    if rng.random() < 0.2:
        pcm = telephone(pcm)
    return np.clip(pcm, -1, 1).astype(np.float32)
