"""`personaplex bench`: what its figures are made of, its JSON and its table. Never how fast anything is."""

from __future__ import annotations

import json
import math
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

from personaplex_cli import bench
from personaplex_cli.bench import (
    Load,
    Parts,
    linear_layers,
    linear_products,
    random_turns,
    stand_at,
    take_seats,
)
from personaplex_cli.config.facts import expected_tensors, kv_bytes_per_frame
from personaplex_cli.config.load import load_config
from personaplex_cli.config.tree import PersonaPlexConfig
from personaplex_cli.engine.sampling import Draws
from personaplex_cli.engine.slots import Slots
from personaplex_cli.errors import SettingsError
from personaplex_cli.estimate import random_lm
from personaplex_cli.model.checkpoint import EMBEDDED
from personaplex_cli.model.lm import Lm
from personaplex_cli.settings import Sampling
from tests.conftest import CPU, UNTRAINED
from tests.helpers import converted, personaplex, record

FEW = ["--prompt-frames", "12", "--frames", "3"]
UNTRAINED_CONFIG = UNTRAINED / "config.json"


@pytest.fixture(autouse=True)
def little_to_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory's speed is of no interest here."""
    monkeypatch.setattr(bench, "READ_BYTES", 1 << 20)


def report(*arguments: object) -> dict[str, Any]:
    result = personaplex("bench", *arguments, "--json")
    assert result.exit_code == 0, result.output
    told: dict[str, Any] = json.loads(result.stdout)
    return told


def numbers(value: object) -> list[float]:
    """All numbers in what JSON holds."""
    if isinstance(value, dict):
        return [number for member in value.values() for number in numbers(member)]
    if isinstance(value, list):
        return [number for member in value for number in numbers(member)]
    return [value] if isinstance(value, (int, float)) else []


def test_the_json_tells_the_machine_the_model_and_a_row_a_batch_size() -> None:
    told = report("--batch-size", "1,3", *FEW)
    assert set(told) == {"machine", "model", "rows"}
    assert set(told["machine"]) == {
        *("device", "cores", "threads", "memory_bytes", "system", "python", "torch", "bytes_per_second")
    }
    assert told["model"]["name"] == str(UNTRAINED)
    assert (told["model"]["dtype"], told["model"]["layers"]) == ("float32", 3)
    assert [row["batch_size"] for row in told["rows"]] == [1, 3]
    assert [row["position"] for row in told["rows"]] == [11, 11]
    parts = {"temporal_ms", "depformer_ms", "draw_ms", "host_ms"}
    bound = {"linear_ms", "kv_ms", "bound_ms", "step_over_bound"}
    codec = {"encode_ms", "decode_ms", "codec_ms"}
    rates = {"frames_per_second", "lm_times_real_time", "times_real_time", "peak_bytes"}
    whole = {"batch_size", "position", "prompt_ms", "again_ms", "step_ms"}
    assert all(set(row) == whole | parts | bound | codec | rates for row in told["rows"])
    assert all(0 < number < math.inf for number in numbers(told))


@pytest.mark.parametrize("n_personas", [1, 3, 9])
def test_figures_that_follow_from_others_do_so(n_personas: int) -> None:
    told = report("--batch-size", "12", "--personas", n_personas, *FEW)
    (row,) = told["rows"]
    config = load_config(UNTRAINED).config
    assert row["bound_ms"] == pytest.approx(row["linear_ms"] + row["kv_ms"])
    assert row["step_over_bound"] == pytest.approx(row["step_ms"] / row["bound_ms"])
    assert row["codec_ms"] == pytest.approx(row["encode_ms"] + row["decode_ms"])
    # Slots stand one frame apart, and each persona's prompt is read once, but for its last frame.
    n_columns = sum(1 + slot for slot in range(12)) + n_personas * 11
    kv_bytes = n_columns * kv_bytes_per_frame(config, "float32")
    assert row["kv_ms"] == pytest.approx(1000 * kv_bytes / told["machine"]["bytes_per_second"])
    seconds_a_frame = (row["step_ms"] / 12 + row["codec_ms"]) / 1000
    assert row["frames_per_second"] == pytest.approx(1 / seconds_a_frame)
    assert row["times_real_time"] == pytest.approx(0.08 / seconds_a_frame)
    assert row["lm_times_real_time"] == pytest.approx(0.08 / (row["step_ms"] / 12 / 1000))


def test_the_parts_add_up_to_about_the_step() -> None:
    """They are timed apart, on a machine that does other things too: no more is asked than the right size."""
    (row,) = report("--batch-size", "2", "--prompt-frames", 12, "--frames", 25)["rows"]
    parts = sum(row[name] for name in ("temporal_ms", "depformer_ms", "draw_ms", "host_ms"))
    assert row["step_ms"] / 4 < parts < row["step_ms"] * 4


def test_without_weights_a_model_of_any_size_is_measured() -> None:
    sizes = ["--config", UNTRAINED_CONFIG, "--set", "temporal_config.num_hidden_layers=1"]
    told = report("--random-weights", *sizes, "--dtype", "bfloat16", "--batch-size", "2", *FEW)
    assert told["model"]["name"] == "random weights"
    assert (told["model"]["dtype"], told["model"]["layers"]) == ("bfloat16", 1)
    assert all(0 < number < math.inf for number in numbers(told))


def test_int8_is_measured_as_any_other_type() -> None:
    sizes = ["--random-weights", "--config", UNTRAINED_CONFIG, "--batch-size", "2", *FEW]
    int8, half = (report(*sizes, "--dtype", dtype)["model"] for dtype in ("int8", "bfloat16"))
    assert int8["dtype"] == "int8"
    assert 2 * int8["linear_bytes"] == half["linear_bytes"]
    assert int8["weight_bytes"] < half["weight_bytes"]


def test_the_table_has_a_line_a_batch_size_below_machine_and_model() -> None:
    result = personaplex("bench", "--batch-size", "1,2", *FEW)
    assert result.exit_code == 0, result.output
    machine, model, empty, header, *rows = result.stdout.splitlines()
    assert f"torch {torch.__version__}" in machine
    assert model.startswith(f"{UNTRAINED}: 3 layers, ")
    assert empty == ""
    assert header.split()[:3] == ["batch", "prompt", "ms"]
    assert [row.split()[0] for row in rows] == ["1", "2"]


# ---- the bound ----


def linear_bytes_by_hand(config: PersonaPlexConfig) -> int:
    """Of all linear layers with the active step sets, from the sizes in the config tree."""
    temporal, inner = config.temporal_config, config.depformer_config
    width, narrow, n_steps = temporal.hidden_size, inner.hidden_size, inner.num_active_codebooks
    layer = 4 * width * width + 3 * width * temporal.intermediate_size
    inner_layer = 4 * narrow * narrow + 3 * narrow * inner.intermediate_size
    inner_step = inner.num_hidden_layers * inner_layer + narrow * width + inner.card * narrow
    return 4 * (temporal.num_hidden_layers * layer + config.text_vocab_size * width + n_steps * inner_step)


def test_the_bound_is_over_all_linear_layers(tiny_lm: Lm) -> None:
    layers = list(linear_layers(tiny_lm))
    n_bytes = sum(4 * layer.n_in * layer.n_out for layer in layers)
    assert n_bytes == linear_bytes_by_hand(tiny_lm.config)
    outputs = [layer(torch.ones(3, layer.n_in)) for layer in layers]
    assert [tuple(output.shape) for output in outputs] == [(3, layer.n_out) for layer in layers]


def test_the_report_counts_the_bytes_that_every_step_reads() -> None:
    told = report("--batch-size", "1", *FEW)["model"]
    assert told["linear_bytes"] == linear_bytes_by_hand(load_config(UNTRAINED).config)


def test_the_bound_multiplies_just_what_a_step_multiplies(tiny_lm: Lm) -> None:
    """Weights as torch sees them in a real step and in the bound: the same ones, as often."""
    slots = standing(tiny_lm, Load((2,), 5, 3))
    with torch.inference_mode():
        in_step = weights_multiplied(lambda: bench.take_steps(slots, 1))
        in_bound = weights_multiplied(linear_products(tiny_lm, 2))
    assert sorted(in_step) == sorted(in_bound)
    assert len(in_bound) == len(set(in_bound))


def weights_multiplied(work: Any) -> list[tuple[int, int]]:
    """Where the second argument of each `linear` begins, and how long it is."""
    seen = []

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.nn.functional.linear:
                seen.append((args[1].data_ptr(), args[1].numel()))
            return func(*args, **(kwargs or {}))

    with Watch():
        work()
    return seen


# ---- the parts ----


def standing(lm: Lm, load: Load) -> Slots:
    """Slots as the bench has them."""
    slots = Slots(lm, load.batch_sizes[0], Draws.of(Sampling(), lm.config))
    take_seats(slots, random_turns(lm.config, load))
    stand_at(slots, load.n_skipped)
    return slots


def test_slots_stand_a_frame_apart_where_they_are_asked_to(tiny_lm: Lm) -> None:
    slots = standing(tiny_lm, Load((3,), 10, 4, position=30))
    assert [seat.position for seat in slots.occupied] == [29, 30, 31]
    assert slots.next_block(1).positions[0].tolist() == [29, 30, 31]


def test_the_parts_of_a_step_are_the_steps(tiny_lm: Lm) -> None:
    """The bench's own temporal part gives what the step's gives, and each part has all draws."""
    slots = standing(tiny_lm, Load((2,), 10, 4))
    heard = []
    hook = tiny_lm.out_norm.register_forward_hook(lambda _m, _i, out: heard.append(out[:, 0].clone()))
    with torch.inference_mode():
        parts = Parts(slots)
        n_alone = len(heard)
        bench.take_steps(slots, 1)
    hook.remove()
    assert torch.equal(parts.hidden, heard[n_alone])
    n_tokens = [logits.shape[1] for logits in parts.logits]
    config = tiny_lm.config
    assert n_tokens == [config.text_vocab_size, *[config.audio_vocab_size] * config.n_codebooks]


def test_a_turn_outlasts_all_that_is_timed(tiny_config: PersonaPlexConfig) -> None:
    for load in (Load((1,), 5, 1), Load((7, 2), 5, 100), Load((2,), 5, 40, position=50)):
        (turn,) = random_turns(tiny_config, load)
        n_taken = load.n_skipped + max(load.batch_sizes) + (load.n_rounds + 1) * load.steps_a_round
        assert n_taken <= turn.n_frames
        assert turn.prompt.n_frames == 5


def test_random_weights_are_of_the_usual_size_and_no_two_rows_are_alike() -> None:
    config = load_config(UNTRAINED).config
    weights = random_lm(config, "float32", CPU).state_dict()
    assert {name: tuple(weight.shape) for name, weight in weights.items()} == expected_tensors(config, 8)
    for name, weight in weights.items():
        if name.endswith("alpha"):
            assert (weight == 1).all()
        else:
            assert weight.std() == pytest.approx(weight.shape[1] ** -0.5, rel=0.1)
            assert len(weight.unique(dim=0)) == len(weight)


def test_the_recipe_writes_a_folder_that_converts(tmp_path: Path) -> None:
    path = Path(__file__).parents[1] / "recipes" / "random_checkpoint.py"
    runpy.run_path(str(path))["build"](tmp_path / "model", load_config(EMBEDDED).config)
    record(tmp_path / "in" / "a.wav")
    result = converted(tmp_path / "in", tmp_path / "out", "--model", tmp_path / "model", "--json")
    assert json.loads(result.stdout)["status"] == "converted"


# ---- usage ----


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--batch-size", "0"], "--batch-size: must be whole numbers from 1 on"),
        (["--batch-size", "1,x"], "--batch-size 1,x: must be numbers with commas between"),
        (["--batch-size", ""], "--batch-size : must be numbers with commas between"),
        (["--batch-size", "1000000"], "--batch-size 1000000: keys and values take"),
        (["--frames", "0"], "--frames at least 1"),
        (["--prompt-frames", "1"], "--prompt-frames must be at least 2"),
        (["--personas", "0"], "--personas must be at least 1"),
        (["--position", "20"], "--position 20: must not be within the prompt"),
        (["--random-weights", "--model", "embedded"], "--random-weights needs no model"),
    ],
)
def test_what_cannot_be_measured_is_refused(arguments: list[str], told: str) -> None:
    result = personaplex("bench", *arguments)
    assert result.exit_code == 2
    assert told in result.stderr


def test_a_model_that_the_memory_cannot_hold_is_refused_before_it_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bench, "free_bytes", lambda _: 10**9)
    result = personaplex("bench", "--random-weights", "--dtype", "bfloat16")
    assert result.exit_code == 2
    assert "the weights take 14.32 GiB" in result.stderr


def test_a_model_of_ones_own_is_taken_from_the_variable_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERSONAPLEX_MODEL", "nowhere/at all")
    result = personaplex("bench")
    assert result.exit_code == 2
    assert "nowhere/at all" in result.stderr


def test_loads_know_their_limits() -> None:
    with pytest.raises(SettingsError):
        Load(())
    assert Load((1,), 10, 7).steps_a_round * Load((1,), 10, 7).n_rounds >= 7


def test_the_machine_is_known_by_its_processor_and_its_memory() -> None:
    assert bench.cpu_name()
    assert bench.host_bytes() > 1 << 28
    assert 0 < bench.peak_bytes(CPU) < bench.host_bytes()
