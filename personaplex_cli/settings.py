"""What a user may choose, frozen and checked. What the weights fix is in `config/`."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Literal

from personaplex_cli.errors import SettingsError

DEFAULT_ROLE = (
    "You are a wise and friendly teacher. Answer questions or provide advice in a clear and engaging way."
)
NO_VOICE = "none"
LONGEST_PADDING = 3600.0
CHANNEL = "mix|0|[1-9][0-9]{0,3}"
"""How a channel is written: one way for each, since it is part of what a reply is known by."""

DeviceName = Literal["auto", "cpu", "cuda", "mps"]
WeightsDtypeName = Literal["float32", "bfloat16", "float16", "int8"]
DtypeName = Literal["auto", WeightsDtypeName]
Timeline = Literal["aligned", "stream"]


@dataclass(frozen=True)
class Persona:
    """Who the agent is: a voice (a name, a path; None = the model's first voice) and a role text."""

    voice: str | None = None
    role: str = DEFAULT_ROLE


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn. Temperature 0 = the likeliest; top k 0 = the whole vocabulary."""

    temp_text: float = 0.7
    temp_audio: float = 0.8
    topk_text: int = 25
    topk_audio: int = 250
    greedy: bool = False

    def __post_init__(self) -> None:
        faults = [
            f"--{name.replace('_', '-')} {value}: must be a finite number from 0 on"
            for name in ("temp_text", "temp_audio", "topk_text", "topk_audio")
            if not 0 <= (value := getattr(self, name)) < math.inf
        ]
        if faults:
            raise SettingsError("\n".join(faults))


@dataclass(frozen=True)
class Batching:
    """How many files are answered at once. None = as many as the memory allows."""

    batch_size: int | None = None

    def __post_init__(self) -> None:
        if self.batch_size is not None and self.batch_size < 1:
            raise SettingsError(f"--batch-size {self.batch_size}: must be at least 1, or auto")


@dataclass(frozen=True)
class Device:
    """Where the arithmetic is done, and in which numbers."""

    device: DeviceName = "auto"
    dtype: DtypeName = "auto"


@dataclass(frozen=True)
class Choices:
    """What the user chose for all files of a run. Paddings are silence beside the recording, in seconds.

    Recordings of more than `longest_seconds` are refused.
    """

    sampling: Sampling = field(default_factory=Sampling)
    batching: Batching = field(default_factory=Batching)
    device: Device = field(default_factory=Device)
    timeline: Timeline = "aligned"
    stereo: bool = False
    channel: str = "0"
    pad_start_seconds: float = 0.0
    pad_end_seconds: float = 0.0
    overwrite: bool = False
    fail_fast: bool = False
    fix_nonfinite: bool = False
    longest_seconds: float = math.inf

    def __post_init__(self) -> None:
        if not re.fullmatch(CHANNEL, self.channel):
            raise SettingsError(f"--channel {self.channel}: must be a number from 0, or mix")
        if not self.longest_seconds > 0:
            raise SettingsError(f"--max-duration {self.longest_seconds}: must be a length above 0 seconds")
        for name, seconds in (("start", self.pad_start_seconds), ("end", self.pad_end_seconds)):
            if not 0 <= seconds <= LONGEST_PADDING:
                raise SettingsError(
                    f"--pad-{name} {seconds}: must be from 0 to {LONGEST_PADDING:.0f} seconds"
                )
