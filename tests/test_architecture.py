"""The plan of the house as a test: who may import whom, and which room is the door to which outer package."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = "personaplex_cli"
ROOT = Path(__file__).parents[1] / PACKAGE

# Imports point down, or stay in the room. `__init__` is the package's name and version only.
FLOORS = [
    {"__main__"},
    {"cli"},
    {"console"},
    {"bench", "convert", "decode", "rehearse"},
    {"estimate", "schedule"},
    {"record"},
    {"studio"},
    {"prompt"},
    {"engine", "text"},
    {"audio", "model", "files"},
    {"config", "settings"},
    {"errors", "interrupts", "digest"},
    {"__init__"},
]
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
STRANGERS = {("engine", "audio"), ("engine", "prompt"), ("audio", "model"), ("model", "audio")}

DOORS = {
    "moshi": ["audio/"],
    "sphn": ["audio/"],
    "pyloudnorm": ["audio/"],
    "soundfile": ["audio/pcm.py"],
    "soxr": ["audio/pcm.py"],
    "safetensors": ["model/weights.py", "model/checkpoint.py", "files/dump.py", "prompt.py"],
    "sentencepiece": ["text.py"],
    "huggingface_hub": ["model/checkpoint.py"],
    "typer": ["cli.py"],
    "click": ["cli.py"],
    "rich": ["console.py"],
    "tqdm": ["console.py"],
    "pydantic": ["config/"],
    "pydantic_core": ["config/"],
    "yaml": ["config/"],
}


def imported(source: str, file: str) -> Iterator[str]:
    """Every module that a source names in an import, at its top or inside a function."""
    here = [PACKAGE, *Path(file).parts[:-1]]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            around = here[: len(here) - node.level + 1] if node.level else []
            module = ".".join([*around, *filter(None, [node.module])])
            yield from (f"{module}.{name.name}" for name in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if called in ("import_module", "__import__"):
                yield str(node.args[0].value)


def broken_rules(source: str, file: str) -> list[str]:
    """What a module (its path inside the package) imports against the plan."""
    room = Path(file).parts[0].removesuffix(".py")
    broken = []
    for module in imported(source, file):
        top, *inner = module.split(".")
        if top != PACKAGE:
            if not file.startswith(tuple(DOORS.get(top, [""]))):
                broken.append(f"{file} imports {top}")
            continue
        other = inner[0] if inner and inner[0] in FLOOR_OF else "__init__"
        if inner and inner[0] == "embedded":
            broken.append(f"{file} imports embedded, which is data")
        elif other != room and (FLOOR_OF[other] <= FLOOR_OF[room] or (room, other) in STRANGERS):
            broken.append(f"{file} imports {other}")
    return broken


@pytest.mark.parametrize("file", sorted(str(path.relative_to(ROOT)) for path in ROOT.rglob("*.py")))
def test_a_module_keeps_to_the_plan(file: str) -> None:
    assert Path(file).parts[0] == "embedded" or Path(file).parts[0].removesuffix(".py") in FLOOR_OF
    assert broken_rules((ROOT / file).read_text(encoding="utf-8"), file) == []


@pytest.mark.parametrize(
    ("file", "line", "broken"),
    [
        ("engine/step.py", "from personaplex_cli.audio import codec", "imports audio"),
        ("engine/step.py", "from personaplex_cli import prompt", "imports prompt"),
        ("audio/codec.py", "import personaplex_cli.model.lm", "imports model"),
        ("model/lm.py", "from personaplex_cli.audio.codec import Codec", "imports audio"),
        ("config/load.py", "from ..cli import app", "imports cli"),
        ("config/tree.py", "import personaplex_cli.settings", "imports settings"),
        ("errors.py", "from .settings import Persona", "imports settings"),
        ("files/dump.py", "def f():\n    from personaplex_cli.engine.turns import Turn", "imports engine"),
        ("convert.py", "from personaplex_cli.console import show_error", "imports console"),
        ("cli.py", "import personaplex_cli.embedded", "imports embedded, which is data"),
        ("model/lm.py", "import moshi.models", "imports moshi"),
        ("audio/codec.py", "def f():\n    import soundfile as sf", "imports soundfile"),
        ("engine/generate.py", "import importlib\nimportlib.import_module('tqdm')", "imports tqdm"),
        ("settings.py", "from pydantic import BaseModel", "imports pydantic"),
        ("files/jobs.py", "import rich.table", "imports rich"),
        ("model/lm.py", "from safetensors import safe_open", "imports safetensors"),
    ],
)
def test_the_checker_finds_a_broken_rule(file: str, line: str, broken: str) -> None:
    assert broken_rules(line, file) == [f"{file} {broken}"]


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("cli.py", "def f():\n    from personaplex_cli.convert import convert_files"),
        ("cli.py", "from personaplex_cli import __version__"),
        ("convert.py", "from personaplex_cli.engine import generate\nimport torch"),
        ("engine/step.py", "from personaplex_cli.engine.turns import FREE\nfrom . import slots"),
        ("engine/step.py", "from personaplex_cli.model.lm import Lm"),
        (
            "config/load.py",
            "import yaml\nfrom .tree import PersonaPlexConfig\nfrom personaplex_cli.errors import E",
        ),
        ("audio/codec.py", "import moshi\nfrom personaplex_cli.settings import Device"),
    ],
)
def test_the_checker_lets_pass_what_points_down(file: str, line: str) -> None:
    assert broken_rules(line, file) == []
