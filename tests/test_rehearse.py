"""`--dry-run`: what a run would do, against what it then does; and the estimate's arithmetic."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from personaplex_cli import estimate
from personaplex_cli.estimate import N_STEPS, few_layers_seconds, some_turns, step_seconds, steps_in_all
from personaplex_cli.model.checkpoint import open_checkpoint
from personaplex_cli.settings import Device, Sampling
from personaplex_cli.studio import Studio
from tests.conftest import UNTRAINED
from tests.helpers import converted, log_of, outputs_in, personaplex, record, record_all


def forecast(*arguments: object, code: int = 0) -> dict[str, Any]:
    result = personaplex("convert", *arguments, "--dry-run", "--json")
    assert result.exit_code == code, result.output
    told: dict[str, Any] = json.loads(result.stdout)
    return told


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    """Two recordings, one of them answered already, and two that will fail."""
    source = record_all(tmp_path / "in", [0.5, 0.3])
    converted(source / "000.wav", tmp_path / "out", "--batch-size", 2, "--quiet")
    (source / "text.wav").write_text("no audio")
    record(source / "long.wav", 2.0)
    return source


def test_a_dry_run_tells_what_the_run_then_does(inputs: Path, tmp_path: Path) -> None:
    command = [inputs, tmp_path / "out", "--batch-size", 2, "--max-duration", 1.5]
    before = outputs_in(tmp_path)
    told = forecast(*command, code=1)
    assert outputs_in(tmp_path) == before
    result = personaplex("convert", *command, "--quiet")
    assert result.exit_code == 1
    done = {line["source"]: line for line in log_of(tmp_path / "out")[-4:]}
    statuses = {"planned": "converted", "skipped": "skipped", "failed": "failed"}
    assert [line["source"] for line in told["files"]] == ["000.wav", "001.wav", "long.wav", "text.wav"]
    for line in told["files"]:
        assert statuses[line["status"]] == done[line["source"]]["status"]
        assert line["reason"] == done[line["source"]]["reason"]
    assert [line["status"] for line in told["files"]] == ["skipped", "planned", "failed", "failed"]
    assert told["files"][1]["outputs"] == done["001.wav"]["outputs"]
    assert told["frames"] == 4
    assert told["batch_size"] == 2
    assert 0 < told["memory_bytes"] < told["free_bytes"]
    assert 0 < told["wall_seconds"] < 60


def test_a_dry_run_needs_no_language_model_and_makes_no_folder(
    inputs: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue("no_lm")  # Not before: one of the inputs is answered with it.
    assert forecast(inputs / "001.wav", tmp_path / "new")["batch_size"] == 1
    assert not (tmp_path / "new").exists()


def test_the_table_names_every_file_and_what_it_takes(inputs: Path, tmp_path: Path) -> None:
    result = personaplex("convert", inputs, tmp_path / "out", "--batch-size", 2, "--dry-run")
    assert result.exit_code == 1
    lines = [line.split() for line in result.stdout.splitlines()]
    assert lines[0] == ["source", "status", "audio", "reply,", "or", "reason"]
    assert lines[1] == ["000.wav", "skipped", "000.wav"]
    assert lines[2] == ["001.wav", "planned", "0.3", "s", "001.wav"]
    assert lines[3] == ["long.wav", "planned", "2.0", "s", "long.wav"]
    assert lines[4][:2] == ["text.wav", "failed"]
    assert lines[-2][:4] == ["29", "frames", "in", "about"]
    assert "batch size 2 (cpu, float32): weights" in result.stdout


def test_where_all_is_done_nothing_is_estimated(inputs: Path, tmp_path: Path) -> None:
    told = forecast(inputs / "000.wav", tmp_path / "out", "--batch-size", 2)
    assert [line["status"] for line in told["files"]] == ["skipped"]
    assert (told["frames"], told["batch_size"], told["wall_seconds"]) == (0, None, 0.0)


def test_files_in_the_way_are_refused_as_in_the_run(inputs: Path, tmp_path: Path) -> None:
    result = personaplex("convert", inputs, tmp_path / "out", "--seed", 1, "--dry-run")
    assert result.exit_code == 2
    assert "000.wav: was made from other input or settings" in result.stderr


# ---- the estimate ----


@pytest.mark.parametrize(
    ("steps", "n_slots", "in_all"),
    [([5], 1, 5), ([5, 4, 3], 1, 12), ([5, 4, 3], 2, 7), ([5, 4, 3], 3, 5), ([5, 4, 3], 9, 5)],
)
def test_steps_are_counted_as_the_slots_take_them(steps: list[int], n_slots: int, in_all: int) -> None:
    assert steps_in_all(steps, n_slots) == in_all


def test_a_step_costs_what_its_layers_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    def linear(_studio: Studio, n_layers: int, *_: object) -> float:
        return 10.0 + 3.0 * n_layers

    studio = Studio(open_checkpoint(str(UNTRAINED)), Device("cpu"))
    n_layers = studio.config.temporal_config.num_hidden_layers
    monkeypatch.setattr(estimate, "few_layers_seconds", linear)
    company = some_turns(studio.config, 1, n_prompt=10, n_done=100)
    assert step_seconds(studio, company, 4, Sampling()) == 10.0 + 3.0 * n_layers


def test_more_slots_that_stand_later_cost_more() -> None:
    studio = Studio(open_checkpoint(str(UNTRAINED)), Device("cpu"))
    soon, late = (some_turns(studio.config, 1, n_prompt=10, n_done=n) for n in (50, 2000))
    few = few_layers_seconds(studio, 2, soon, 1, Sampling())
    many = few_layers_seconds(studio, 2, late, 256, Sampling())
    assert 0 < 2 * few < many


def test_turns_to_be_timed_stand_where_they_are_asked_for() -> None:
    config = open_checkpoint(str(UNTRAINED)).config
    turns = some_turns(config, 3, n_prompt=77, n_done=20)
    assert len({turn.prompt for turn in turns}) == 3
    assert {(turn.prompt.n_frames, turn.n_steps) for turn in turns} == {(77, 20 + N_STEPS)}


# ---- limits and repairs ----


@pytest.mark.usefixtures("no_lm")
def test_a_recording_that_is_too_long_is_refused_before_the_model_is_loaded(tmp_path: Path) -> None:
    recording = record(tmp_path / "a.wav", 2.0)
    result = personaplex("convert", recording, tmp_path / "out", "--max-duration", 1.9, "--quiet")
    assert result.exit_code == 1
    assert "a.wav: is 2 s long, more than --max-duration 1.9 s" in result.stderr
    assert [line["status"] for line in log_of(tmp_path / "out")] == ["failed"]


@pytest.mark.parametrize("seconds", ["0", "-1", "nan"])
def test_a_longest_length_of_nothing_is_a_usage_error(tmp_path: Path, seconds: str) -> None:
    recording = record(tmp_path / "a.wav")
    result = personaplex("convert", recording, tmp_path / "out", "--max-duration", seconds)
    assert result.exit_code == 2
    assert "--max-duration" in result.stderr


def test_samples_that_are_no_numbers_are_replaced_where_that_is_wished_for(tmp_path: Path) -> None:
    samples = np.random.default_rng(0).normal(0, 0.1, 12000).astype(np.float32)
    silenced = samples.copy()
    silenced[[5, 77, 9000]] = 0
    samples[[5, 77, 9000]] = np.nan, np.inf, -np.inf
    for name, content in (("broken", samples), ("silenced", silenced)):
        (tmp_path / name).mkdir()
        soundfile.write(tmp_path / name / "a.wav", content, 24000, "FLOAT")
    refused = personaplex("convert", tmp_path / "broken" / "a.wav", tmp_path / "out", "--quiet")
    assert refused.exit_code == 1
    assert "or let --fix-nonfinite replace them by 0" in refused.stderr
    shutil.rmtree(tmp_path / "out")
    options = ["--fix-nonfinite", "--batch-size", 1, "--quiet"]
    for name in ("broken", "silenced"):
        converted(tmp_path / name / "a.wav", tmp_path / f"out_{name}", *options)
    (line,) = log_of(tmp_path / "out_broken")
    assert line["nonfinite_input_samples"] == 3
    assert line["warnings"] == ["replaced 3 NaN or infinite samples by 0"]
    replies = [(tmp_path / f"out_{name}" / "a.wav").read_bytes() for name in ("broken", "silenced")]
    assert replies[0] == replies[1]
