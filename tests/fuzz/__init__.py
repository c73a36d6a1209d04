"""Files of strangers: what comes in at the five doors, made odd on purpose."""

from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"
"""A folder a door; every file in there once was a seed or a find."""
