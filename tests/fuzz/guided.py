"""libFuzzer in this process: inputs are chosen by the lines that they reach."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tests.fuzz.doors import DOORS

ELSEWHERE = {"audio": ["soundfile"]}
"""Packages that decide about a door's input in Python, beside ours."""


def fuzz(name: str, flags: list[str], folder: Path) -> None:
    """Let libFuzzer try inputs at a door until its time is over; the process ends in here."""
    import atheris

    door = DOORS[name]
    with atheris.instrument_imports(include=["personaplex_cli", *ELSEWHERE.get(name, [])]):
        # The door imports its room at its first call.
        door(b"", folder)
    if name == "voice":
        from torch import _weights_only_unpickler

        unpickler: Any = _weights_only_unpickler.Unpickler
        unpickler.load = atheris.instrument_func(unpickler.load)

    def try_one(content: bytes) -> None:
        door(content, folder)

    atheris.Setup([sys.argv[0], *flags], try_one)
    atheris.Fuzz()
