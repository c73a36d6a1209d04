"""`personaplex inspect-config` and the front door's habits."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from personaplex_cli import __version__, cli
from personaplex_cli.cli import Stopped
from personaplex_cli.config.facts import memory_bytes, n_parameters
from personaplex_cli.config.load import load_config
from personaplex_cli.config.tree import PersonaPlexConfig
from personaplex_cli.console import show_error
from personaplex_cli.errors import ConfigError, JobError

GOLDEN = Path(__file__).parent / "golden"
PUBLISHED = PersonaPlexConfig()
runner = CliRunner()


def shown(*arguments: str) -> str:
    result = runner.invoke(cli.app, ["inspect-config", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def program(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "personaplex_cli", *arguments]
    env = {key: value for key, value in os.environ.items() if key != "PYTHONIOENCODING"}
    return subprocess.run(
        command, capture_output=True, env={**env, **environment}, encoding="utf-8", check=False
    )


def test_the_tree_shows_the_source_of_every_value() -> None:
    lines = shown(str(GOLDEN / "checkpoint"), "--set", "temporal_config.rope_theta=20000").splitlines()
    assert lines[0] == f"config {GOLDEN / 'checkpoint' / 'config.json'}"
    found = {tuple(line.strip("│├└─ ").split()) for line in lines}
    assert ("rope_theta", "20000.0", "--set") in found
    assert ("num_hidden_layers", "3", "config.json:5") in found
    assert ("hidden_act", "silu", "default") in found
    assert ("n_filters", "4") in found
    assert ("quantizer", "config.json:80") in found


def test_every_value_of_the_tree_is_on_one_line_of_its_own() -> None:
    loaded = load_config(None)
    lines = [line for line in shown().splitlines() if line.endswith("default")]
    keys = [line.strip("│├└─ ").split()[0] for line in lines]
    assert keys == [key.rpartition(".")[2] for key in loaded.origins]


def test_what_follows_is_what_the_facts_say() -> None:
    text = shown("--batch-size", "3", "--seconds", "8", "--dtype", "float32")
    assert f"checkpoint, 16 step sets  {n_parameters(PUBLISHED):,} (8.37 B) parameters, 475 tensors" in text
    assert f"loaded, 8 step sets       {n_parameters(PUBLISHED, 8):,} (7.69 B) parameters" in text
    assert "1.00 MiB a frame and slot" in text
    gib = memory_bytes(PUBLISHED, "float32", 3, 100) / 2**30
    assert f"{gib:.2f} GiB for 3 slots of 8 s = 100 frames" in text


@pytest.mark.parametrize("style", ["yaml", "json"])
@pytest.mark.parametrize("source", [[], [str(GOLDEN / "checkpoint")]])
def test_what_is_printed_loads_again(tmp_path: Path, style: str, source: list[str]) -> None:
    text = shown(*source, "--format", style, "--set", "temporal_config.num_hidden_layers=2")
    file = tmp_path / f"c.{style}"
    file.write_text(text)
    again = load_config(file).config
    assert again.temporal_config.num_hidden_layers == 2
    assert (
        again
        == load_config(Path(*source) if source else None, ["temporal_config.num_hidden_layers=2"]).config
    )
    assert shown(str(file), "--format", style) == text


def test_the_schema_is_json() -> None:
    assert json.loads(shown("--format", "schema"))["title"] == "PersonaPlexConfig"


def test_plain_formats_are_neither_coloured_nor_wrapped(tmp_path: Path) -> None:
    name = "a-very-long-name-" * 12 + "[red]"
    file = tmp_path / "c.yaml"
    file.write_text(f"mimi_name: '{name}'")
    for style in ("yaml", "json", "tree"):
        result = program("inspect-config", str(file), "--format", style, FORCE_COLOR="", COLUMNS="40")
        assert name in result.stdout
        assert "\x1b" not in result.stdout


def test_a_wrong_config_is_an_error_with_exit_code_2() -> None:
    wrong = ["--set", "text_vocab_sise=3", "--set", "temporal_config.head_dim=x"]
    result = runner.invoke(cli.app, ["inspect-config", *wrong])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.splitlines() == [
        "error: the config: cannot be used",
        '  - --set: temporal_config.head_dim: must be a whole number, not "x"',
        "  - --set: text_vocab_sise: unknown key (did you mean text_vocab_size?)",
    ]
    outside = program("inspect-config", *wrong)
    assert (outside.returncode, outside.stdout, outside.stderr) == (2, "", result.stderr)


def test_a_missing_source_is_an_error_with_exit_code_2() -> None:
    result = program("inspect-config", "nowhere.yaml")
    assert (result.returncode, result.stderr) == (2, "error: nowhere.yaml: no such file or folder\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--format", "xml"],
        ["--batch-size", "0"],
        ["--dtype", "int4"],
        ["--seconds", "-1"],
        ["--bogus"],
        ["a", "b"],
    ],
)
def test_wrong_usage_exits_with_2(arguments: list[str]) -> None:
    assert runner.invoke(cli.app, ["inspect-config", *arguments]).exit_code == 2


@pytest.mark.parametrize("seconds", ["nan", "inf", "1e300"])
def test_a_length_that_is_none_is_refused(seconds: str) -> None:
    result = runner.invoke(cli.app, ["inspect-config", "--seconds", seconds])
    assert result.exit_code == 2
    assert "--seconds" in result.stderr


def test_no_arguments_show_the_help() -> None:
    assert "inspect-config" in runner.invoke(cli.app, []).output


def test_h_is_help_for_every_command() -> None:
    assert runner.invoke(cli.app, ["-h"]).output == runner.invoke(cli.app, ["--help"]).output
    assert "--format" in re.sub(
        r"\x1b\[[0-9;]*m", "", runner.invoke(cli.app, ["inspect-config", "-h"]).output
    )


def test_version_is_shown() -> None:
    result = program("--version")
    assert (result.returncode, result.stdout) == (0, f"personaplex {__version__}\n")


def test_every_option_has_help() -> None:
    command = typer.main.get_command(cli.app)
    for name, sub in command.commands.items():  # type: ignore[attr-defined]
        assert sub.help, name
        for parameter in sub.params:
            assert getattr(parameter, "help", None), f"{name} {parameter.name}"


@pytest.mark.parametrize(
    "environment",
    [
        {"LC_ALL": "C"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
    ],
)
def test_no_locale_breaks_the_output(tmp_path: Path, environment: dict[str, str]) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("mimi_name: ключ\n", encoding="utf-8")
    for arguments in (["-h"], ["inspect-config"], ["inspect-config", str(file)]):
        result = program(*arguments, **environment)
        assert (result.returncode, result.stderr) == (0, "")
    wrong = program("inspect-config", "--set", "ключ=1", **environment)
    assert wrong.returncode == 2
    assert "Traceback" not in wrong.stderr


@pytest.mark.parametrize(
    "arguments", [["inspect-config"], ["inspect-config", "--format", "schema"], ["--help"]]
)
def test_a_closed_pipe_ends_the_program_quietly(arguments: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        result = subprocess.run(
            [sys.executable, "-m", "personaplex_cli", *arguments],
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    finally:
        os.close(writing)
    assert result.stderr == ""
    assert result.returncode != 0


def failing_app(error: BaseException) -> typer.Typer:
    app = typer.Typer(cls=cli.FrontDoor)

    @app.callback()
    def top() -> None:
        """Have commands."""

    @app.command()
    def fail() -> None:
        raise error

    return app


@pytest.mark.parametrize(
    ("error", "exit_code", "said"),
    [
        (ConfigError("a\n  - b"), 2, "error: a\n  - b\n"),
        (JobError("c"), 1, "error: c\n"),
        (KeyboardInterrupt(), 130, "stopped by SIGINT\n"),
        (Stopped(signal.SIGTERM), 143, "stopped by SIGTERM\n"),
    ],
)
def test_errors_become_messages_and_exit_codes(error: BaseException, exit_code: int, said: str) -> None:
    result = runner.invoke(failing_app(error), ["fail"])
    assert (result.exit_code, result.stderr, result.stdout) == (exit_code, said, "")


def test_a_bug_keeps_its_traceback() -> None:
    result = runner.invoke(failing_app(ZeroDivisionError()), ["fail"])
    assert isinstance(result.exception, ZeroDivisionError)


def test_a_message_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    show_error("a\x1b[2J\rb\nключ")
    assert capsys.readouterr().err == "error: a\\x1b[2J\\rb\nключ\n"


@pytest.mark.parametrize(
    "arguments", ["['--help']", "['inspect-config']", "['inspect-config', '--format', 'json']"]
)
def test_neither_help_nor_inspect_config_loads_torch(arguments: str) -> None:
    heavy = "{'torch', 'moshi', 'numpy', 'safetensors'}"
    lines = [
        "import sys",
        "from personaplex_cli.cli import app",
        f"app({arguments}, standalone_mode=False)",
        f"sys.exit(' '.join({heavy} & set(sys.modules)) or 0)",
    ]
    result = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")


def test_help_answers_in_under_half_a_second() -> None:
    def seconds() -> float:
        # Of the processor: other tests may run at the same time.
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert program("--help").returncode == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime

    assert min(seconds() for _ in range(5)) < 0.5
