"""The window: the only room that shows anything.

Standard output is for what was asked, standard error for the rest.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text
from rich.tree import Tree
from tqdm import tqdm

from personaplex_cli.config import facts
from personaplex_cli.config.load import DEFAULT, SET, LoadedConfig
from personaplex_cli.config.tree import PersonaPlexConfig
from personaplex_cli.files.plain_json import json_bytes
from personaplex_cli.files.runlog import Outcome

if TYPE_CHECKING:  # It would load torch.
    from personaplex_cli.bench import Report
    from personaplex_cli.rehearse import Forecast

BENCH_COLUMNS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "batch": ("batch_size", str),
    **{
        f"{name} ms": (f"{name}_ms", "{:.4g}".format)
        for name in ("prompt", "again", "step", "temporal", "depformer", "draw", "host", "bound")
    },
    "step/bound": ("step_over_bound", "{:.2f}".format),
    "encode ms": ("encode_ms", "{:.3g}".format),
    "decode ms": ("decode_ms", "{:.3g}".format),
    "frames/s": ("frames_per_second", "{:.1f}".format),
    "x real time": ("times_real_time", "{:.2f}".format),
    "without codec": ("lm_times_real_time", "{:.2f}".format),
    "peak memory": ("peak_bytes", lambda n_bytes: _bytes(n_bytes)),
}
"""Of the bench's table: what each shows, and how."""
ORIGIN_COLUMN = 60
GUIDE_WIDTH = 4
UNWRAPPED = 10_000


def show_error(message: str) -> None:
    """Say what went wrong, on standard error."""
    show_remark(f"error: {message}")


def show_remark(line: str) -> None:
    """Say something worth a line, on standard error, if anybody can hear it."""
    with heard_or_not():
        sys.stderr.write(f"{visible(line)}\n")


@contextmanager
def heard_or_not() -> Iterator[None]:
    """A full or vanished standard error ends no run; a closed pipe does, as for other programs."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError:
        pass


def visible(text: str) -> str:
    """Text as a terminal may have it: what could steer one is shown as its escape."""
    return "".join(sign if sign.isprintable() or sign == "\n" else ascii(sign)[1:-1] for sign in text)


class RunWindow:
    """A run of `convert` as it goes: remarks, a bar on a terminal, failures, and what came of it all."""

    def __init__(self, *, quiet: bool, as_json: bool) -> None:
        self.quiet, self.as_json = quiet, as_json
        self.began = time.monotonic()
        self.bar: tqdm[Any] | None = None
        self.n_of: Counter[str] = Counter()
        self.audio_seconds = 0.0
        self.n_frames = self.n_places = 0

    def remark(self, line: str) -> None:
        """Something worth a line."""
        if not self.quiet:
            self.say(line)

    def begin(self, n_files: int, n_frames: int) -> None:
        """Set up the bar; tqdm shows none where standard error is no terminal."""
        self.began = time.monotonic()
        # On a terminal without a size (a serial line, a recorder of terminals) tqdm would draw nothing.
        tells_size = columns_of(sys.stderr) > 0
        n_columns, n_rows = (None, None) if tells_size else shutil.get_terminal_size()
        self.bar = tqdm(
            total=n_frames,
            desc=f"{n_files} files",
            unit=" frames",
            file=sys.stderr,
            ncols=n_columns,
            nrows=n_rows,
            dynamic_ncols=tells_size,
            disable=self.quiet or not sys.stderr.isatty(),
        )

    def frames(self, n_frames: int, n_places: int) -> None:
        """So many more frames are done, in slots that had room for so many."""
        self.n_frames += n_frames
        self.n_places += n_places
        if self.bar is not None:
            self.bar.update(n_frames)

    def outcome(self, outcome: Outcome) -> None:
        """One file is settled: a failure is said, and each is a line of JSON if that was asked for."""
        self.n_of[outcome.status] += 1
        if outcome.status == "converted":
            self.audio_seconds += outcome.audio_seconds or 0.0
        if outcome.status == "failed":
            # A line a failure, whatever the file's name holds.
            self.say(f"failed: {outcome.reason}".replace("\n", "\\n"))
        if self.as_json:
            # JSON is UTF-8 whatever the locale says; above the bar, since both may share a terminal.
            with tqdm.external_write_mode(file=sys.stdout):
                sys.stdout.buffer.write(json_bytes(outcome.to_json()) + b"\n")
                sys.stdout.flush()

    def say(self, line: str) -> None:
        """A line on standard error, above the bar if there is one."""
        with tqdm.external_write_mode(file=sys.stderr):
            show_remark(line)

    def __enter__(self) -> RunWindow:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar is not None:
            with heard_or_not():
                self.bar.close()
        if error is None and not self.quiet:
            self.show_summary()

    def show_summary(self) -> None:
        """The table at the end."""
        wall_seconds = time.monotonic() - self.began
        table = Table(box=None, pad_edge=False, header_style="bold")
        row = {
            **{status: str(self.n_of[status]) for status in ("converted", "skipped", "failed")},
            "audio": f"{self.audio_seconds:.1f} s",
            "wall": f"{wall_seconds:.1f} s",
            "frames/s": f"{self.n_frames / wall_seconds:.1f}",
            "times real time": f"{self.audio_seconds / wall_seconds:.2f}",
            "slots in use": f"{self.n_frames / self.n_places:.0%}" if self.n_places else "",
        }
        for name in row:
            table.add_column(name, justify="right")
        table.add_row(*row.values())
        # A narrow terminal wraps the lines; rich would cut the numbers off.
        with heard_or_not():
            Console(stderr=True, highlight=False, width=UNWRAPPED).print(table)


def columns_of(stream: TextIO) -> int:
    """A terminal's width in letters; 0 where there is none, or it does not tell."""
    try:
        return os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        return 0


def show_forecast(forecast: Forecast, *, as_json: bool) -> None:
    """What a run would do, on standard output: a table, or one JSON object."""
    reckoning, minutes = forecast.reckoning, forecast.wall_seconds / 60
    if as_json:
        what = {
            "files": [outcome.to_json() for outcome in forecast.outcomes],
            "frames": forecast.n_frames,
            "batch_size": reckoning and reckoning.n_slots,
            "memory_bytes": reckoning and reckoning.n_bytes,
            "free_bytes": reckoning and reckoning.n_free,
            "wall_seconds": round(forecast.wall_seconds, 3),
        }
        sys.stdout.buffer.write(json_bytes(what) + b"\n")
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("source", "status", "audio", "reply, or reason"):
        table.add_column(name, justify="right" if name == "audio" else "left", overflow="fold")
    for outcome in forecast.outcomes:
        seconds = "" if outcome.audio_seconds is None else f"{outcome.audio_seconds:.1f} s"
        cells = outcome.source, outcome.status, seconds, outcome.reason or outcome.outputs[0]
        table.add_row(*(Text(visible(cell).replace("\n", "\\n")) for cell in cells))
    _write(table)
    if reckoning:
        sys.stdout.write(
            f"\n{forecast.n_frames} frames in about {minutes:.1f} min, loading apart\n{reckoning.line}\n"
        )


def show_bench(report: Report, *, as_json: bool) -> None:
    """What the bench has measured, on standard output: a table, or one JSON object."""
    if as_json:
        sys.stdout.buffer.write(json_bytes(asdict(report)) + b"\n")
        return
    machine, model = report.machine, report.model
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in BENCH_COLUMNS:
        table.add_column(name, justify="right")
    for row in report.rows:
        table.add_row(*(shown(getattr(row, field)) for field, shown in BENCH_COLUMNS.values()))
    sys.stdout.write(
        f"{machine.device}, {machine.cores} cores, {machine.threads} threads, "
        f"{_bytes(machine.memory_bytes)} at {machine.bytes_per_second / 1e9:.1f} GB/s, "
        f"torch {machine.torch}\n"
        f"{visible(model.name)}: {model.layers} layers, {_count(model.parameters)} parameters, "
        f"{model.dtype}, "
        f"{_bytes(model.linear_bytes)} read by every step\n\n"
    )
    _write(table)


def show_config(loaded: LoadedConfig, dtype_name: str, batch_size: int, audio_seconds: float) -> None:
    """Show a config as a tree with the source of every value, then what follows from it."""
    files = dict.fromkeys(_file_of(origin) for origin in loaded.origins.values())
    tree = Tree(Text(" ".join(["config", *filter(None, files)]), style="bold"), guide_style="dim")
    _add_section(tree, loaded.config.model_dump(mode="json"), loaded.origins, "")
    follows = Tree(Text("what follows", style="bold"), guide_style="dim")
    rows = _consequences(loaded.config, dtype_name, batch_size, audio_seconds)
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        follows.add(Text(f"{name:<{width}}  {value}"))
    _write(tree, follows)


def _add_section(
    branch: Tree, values: Mapping[str, Any], origins: Mapping[str, str], section: str, depth: int = 1
) -> None:
    width = max((len(key) for key in values), default=0)
    for key, value in values.items():
        path = f"{section}{key}"
        origin = origins.get(path, "")
        if isinstance(value, dict):
            inner = branch.add(_line(key, origin, depth) if origin else Text(key, style="bold"))
            _add_section(inner, value, origins, f"{path}.", depth + 1)
        else:
            branch.add(_line(f"{key:<{width}}  {_shown(value)}", origin, depth))


def _line(written: str, origin: str, depth: int) -> Text:
    """One value and its source, which stands in one column whatever the branch."""
    line = Text(written)
    if origin:
        gap = max(2, ORIGIN_COLUMN - GUIDE_WIDTH * depth - len(written))
        file = _file_of(origin)
        line.append(" " * gap)
        line.append(
            origin if not file else f"{Path(file).name}{origin[len(file) :]}",
            style="dim" if origin == DEFAULT else "cyan",
        )
    return line


def _file_of(origin: str) -> str:
    return "" if origin in (DEFAULT, SET) else origin.rpartition(":")[0]


def _shown(value: Any) -> str:
    return str(value) if isinstance(value, (str, float)) else json.dumps(value)


def _consequences(
    config: PersonaPlexConfig, dtype_name: str, batch_size: int, audio_seconds: float
) -> list[tuple[str, str]]:
    n_all, n_active = config.depformer_config.dep_q, config.depformer_config.num_active_codebooks
    n_frames = facts.frames_of(config, audio_seconds)
    return [
        (
            f"checkpoint, {n_all} step sets",
            f"{_count(facts.n_parameters(config, n_all))} parameters, "
            f"{len(facts.expected_tensors(config, n_all))} tensors, "
            f"{_bytes(facts.weight_bytes(config, dtype_name, n_all))} in {dtype_name}",
        ),
        (
            f"loaded, {n_active} step sets",
            f"{_count(facts.n_parameters(config, n_active))} parameters, "
            f"{_bytes(facts.weight_bytes(config, dtype_name, n_active))} in {dtype_name}",
        ),
        (
            "streams",
            f"{config.n_streams}: text, {config.n_codebooks} agent codes, {config.n_codebooks} user codes",
        ),
        ("context", f"{config.ring_columns} frames = {config.ring_columns / config.frame_rate:.1f} s"),
        ("keys and values", f"{_bytes(facts.kv_bytes_per_frame(config, dtype_name))} a frame and slot"),
        (
            "memory of the LM",
            f"{_bytes(facts.memory_bytes(config, dtype_name, batch_size, n_frames))} for {batch_size} slots "
            f"of {audio_seconds:g} s = {n_frames} frames",
        ),
        ("codec's weights", config.resolved_mimi_name),
    ]


def _count(number: int) -> str:
    for unit, size in (("B", 10**9), ("M", 10**6)):
        if number >= size:
            return f"{number:,} ({number / size:.2f} {unit})"
    return f"{number:,}"


def _bytes(number: int) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if number >= size:
            return f"{number / size:.2f} {unit}"
    return f"{number} bytes"


def _write(*trees: Tree | Table) -> None:
    # rich would end the program by itself when a pipe is closed; written by us, the front door sees it.
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = UNWRAPPED
    with console.capture() as captured:
        for tree in trees:
            console.print(tree)
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))
