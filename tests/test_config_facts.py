"""Facts without weights, against the headers of real checkpoint files and against the published numbers."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from personaplex_cli.config.facts import (
    expected_tensors,
    frames_of,
    kv_bytes_per_frame,
    memory_bytes,
    n_parameters,
    weight_bytes,
)
from personaplex_cli.config.load import load_config
from personaplex_cli.config.tree import PersonaPlexConfig

GOLDEN = Path(__file__).parent / "golden"
PUBLISHED = PersonaPlexConfig()


def header(file: Path) -> dict[str, tuple[int, ...]]:
    with safe_open(file, framework="numpy") as tensors:  # type: ignore[no-untyped-call]
        return {name: tuple(tensors.get_slice(name).get_shape()) for name in tensors.keys()}  # noqa: SIM118


@pytest.mark.parametrize("folder", ["lm_eight_sets", "lm_sixteen_sets", "checkpoint"])
def test_names_and_shapes_are_those_of_a_real_file(folder: str) -> None:
    config = load_config(GOLDEN / folder).config
    assert expected_tensors(config) == header(GOLDEN / folder / "model.safetensors")


def test_one_config_describes_both_numbers_of_step_sets() -> None:
    config = load_config(GOLDEN / "lm_sixteen_sets").config
    assert expected_tensors(config, 8) == header(GOLDEN / "lm_eight_sets" / "model.safetensors")


def test_the_published_checkpoint_has_475_tensors_and_8_37_billion_parameters() -> None:
    assert len(expected_tensors(PUBLISHED)) == 475
    assert round(n_parameters(PUBLISHED) / 1e9, 2) == 8.37
    assert round(weight_bytes(PUBLISHED, "bfloat16") / 1e9, 1) == 16.7


def test_parameters_agree_with_a_count_by_hand() -> None:
    wide, slim, texts, codes, sets = 4096, 1024, 32001, 2049, 16
    temporal = 32 * (4 * wide**2 + 3 * 11264 * wide + 2 * wide)
    tables = (texts + 32000 + 16 * codes + 1) * wide
    steps = sets * (wide * slim + 2048 * slim) + (sets - 1) * codes * slim + texts * slim
    depformer = 6 * (sets * (4 * slim**2 + 3 * 2816 * slim) + 2 * slim)
    assert n_parameters(PUBLISHED) == temporal + tables + steps + depformer


def test_a_frame_of_keys_and_values_is_half_a_mebibyte() -> None:
    assert kv_bytes_per_frame(PUBLISHED, "bfloat16") == 2**19
    assert kv_bytes_per_frame(PUBLISHED, "float32") == 2**20


def test_int8_holds_products_in_a_byte_a_number_and_all_else_in_bfloat16() -> None:
    tables = 2 * 32001 * 1024 + 2 * 32001 * 4096 + 2 * 2049 * (16 * 4096 + 7 * 1024)
    norms = 2 * (65 * 4096 + 12 * 1024)
    temporal = 32 * (12288 + 4096 + 22528) * 4096 + 32 * 4096 * 11264 + 32000 * 4096
    steps = 8 * (6 * (4 * 1024**2 + 3 * 2816 * 1024) + 1024 * 4096 + 2048 * 1024)
    rows = 32 * (12288 + 4096 + 22528 + 4096) + 32000 + 8 * (6 * (4096 + 5632 + 1024) + 1024 + 2048)
    assert weight_bytes(PUBLISHED, "int8", 8) == tables + norms + temporal + steps + 4 * rows
    assert kv_bytes_per_frame(PUBLISHED, "int8") == kv_bytes_per_frame(PUBLISHED, "bfloat16")


def test_step_sets_that_are_not_loaded_save_memory() -> None:
    saved = weight_bytes(PUBLISHED, "bfloat16", 16) - weight_bytes(PUBLISHED, "bfloat16", 8)
    assert 1.3e9 < saved < 1.4e9


def test_memory_grows_with_slots_and_frames_until_the_rings_are_full() -> None:
    weights = weight_bytes(PUBLISHED, "bfloat16", 8)
    assert memory_bytes(PUBLISHED, "bfloat16", 1, 0) == weights
    assert memory_bytes(PUBLISHED, "bfloat16", 3, 100) == weights + 300 * 2**19
    full = weights + 2 * PUBLISHED.ring_columns * 2**19
    assert memory_bytes(PUBLISHED, "bfloat16", 2, PUBLISHED.ring_columns) == full
    assert memory_bytes(PUBLISHED, "bfloat16", 2, 10**6) == full


@settings(max_examples=50, deadline=None)
@given(n_frames=st.integers(0, 10**6), extra=st.integers(1, 1920))
def test_a_part_of_a_frame_needs_a_whole_one(n_frames: int, extra: int) -> None:
    n_samples = n_frames * 1920 + extra
    assert frames_of(PUBLISHED, n_samples / 24000) == n_frames + 1 == math.ceil(Fraction(n_samples, 1920))
