"""What several test files share: the golden folders, small models, and where a GPU is asked for."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from personaplex_cli import studio
from personaplex_cli.audio.codec import Codec
from personaplex_cli.config.load import load_config
from personaplex_cli.config.tree import PersonaPlexConfig
from personaplex_cli.model.lm import Lm

GOLDEN = Path(__file__).parent / "golden"
UNTRAINED = GOLDEN / "untrained"
"""The model of commands that name none. Its tokens vary at every frame; a trained one is mostly silent."""
os.environ["PERSONAPLEX_MODEL"] = str(UNTRAINED)
CPU = torch.device("cpu")
# A shell's background job ignores Ctrl-C, and so do its children unless it is heeded here.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if "gpu" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="no CUDA device on this machine"))


@pytest.fixture(scope="session")
def tiny_config() -> PersonaPlexConfig:
    """The golden LM's shape with other widths; context 64."""
    changes = ["hidden_size=32", "head_dim=16", "num_attention_heads=2", "num_key_value_heads=2"]
    changes += ["num_hidden_layers=2", "intermediate_size=88"]
    return load_config(GOLDEN / "lm_eight_sets", [f"temporal_config.{change}" for change in changes]).config


@pytest.fixture(scope="session")
def tiny_lm(tiny_config: PersonaPlexConfig) -> Lm:
    return random_lm(tiny_config, seed=0)


def random_lm(config: PersonaPlexConfig, seed: int) -> Lm:
    """An LM whose logits differ enough that the likeliest token is no accident of rounding."""
    generator = torch.Generator().manual_seed(seed)
    lm = Lm(config).eval().requires_grad_(False)
    for name, weight in lm.named_parameters():
        if "alpha" in name:
            weight.copy_(1 + 0.1 * torch.randn(weight.shape, generator=generator))
        else:
            spread = 0.5 if "emb" in name else weight.shape[-1] ** -0.5
            weight.copy_(spread * torch.randn(weight.shape, generator=generator))
    return lm


@pytest.fixture(scope="session")
def golden_config() -> PersonaPlexConfig:
    return load_config(GOLDEN / "checkpoint").config


@pytest.fixture(scope="session")
def golden_codec(golden_config: PersonaPlexConfig) -> Codec:
    return Codec(GOLDEN / "mimi" / "mimi.safetensors", golden_config.mimi_config, CPU)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    try:
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], capture_output=True
        )
    except OSError:
        pytest.skip("there is no mount here")
    if mounted.returncode:
        pytest.skip("no file system can be mounted here")
    yield disk
    subprocess.run(["umount", disk], check=True)


@pytest.fixture
def no_lm(monkeypatch: pytest.MonkeyPatch) -> None:
    """The language model may not be loaded."""
    monkeypatch.setattr(studio, "load_lm", refuse_model)


@pytest.fixture
def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the model may be loaded."""
    monkeypatch.setattr(studio, "load_lm", refuse_model)
    monkeypatch.setattr(studio, "Codec", refuse_model)


def refuse_model(*_: object, **__: object) -> None:
    raise AssertionError("the model is not needed")
