"""Manifests: `.jsonl` or `.csv` lists of recordings, one a row, with what is special about each."""

from __future__ import annotations

import csv
import difflib
import io
import json
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from personaplex_cli.files.names import WAV, impossible, mode_of, shown, stem_of
from personaplex_cli.settings import CHANNEL

MANIFEST_SUFFIXES = frozenset({".jsonl", ".csv"})


@dataclass(frozen=True)
class Row:
    """One recording; `place` is its output's path without suffix. None = as for the whole run."""

    line: int
    path: Path
    name: str
    place: str
    voice: str | None = None
    role: str | None = None
    seed: int | None = None
    channel: str | None = None


@dataclass(frozen=True)
class Manifest:
    """What a manifest says, and what is wrong with it."""

    rows: tuple[Row, ...]
    faults: tuple[str, ...]


def is_manifest(path: Path) -> bool:
    """Whether a source is a list of recordings rather than a recording."""
    return path.suffix.lower() in MANIFEST_SUFFIXES


def read_manifest(path: Path) -> Manifest:
    """Read all rows and find all faults. Relative paths are relative to the manifest's folder."""
    reader = _Reader(path)
    mode = mode_of(path)
    if mode and not stat.S_ISREG(mode):  # A pipe may have no writer, or no end.
        return Manifest((), (f"{shown(path)}: not a regular file; save the list to one",))
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        return Manifest((), (f"{shown(path)}: cannot be read: {error.strerror}",))
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        return Manifest((), (f"{shown(path)} line {line}: not UTF-8",))
    if path.suffix.lower() == ".csv":
        reader.read_csv(text)
    else:
        reader.read_jsonl(text)
    return Manifest(tuple(reader.rows), tuple(reader.faults))


class _Reader:
    """Collects rows and faults; what is not used in a row is a fault of its line."""

    def __init__(self, path: Path) -> None:
        self.rows: list[Row] = []
        self.faults: list[str] = []
        self._path = path
        self._unknown: set[str] = set()

    def read_jsonl(self, text: str) -> None:
        # Only "\n" ends a line of JSON: str.splitlines would also cut inside strings.
        for line, content in enumerate(text.split("\n"), start=1):
            if not content.strip():
                continue
            try:
                cells = json.loads(content)
            except (ValueError, RecursionError) as error:
                self._fault(line, f"not JSON: {error}")
                continue
            if isinstance(cells, dict):
                self._take(line, cells)
            else:
                self._fault(line, 'not an object like {"path": "a.wav"}')

    def read_csv(self, text: str) -> None:
        records = self._records(text)
        line, header = next(records, (1, []))
        columns = [column.strip() for column in header]
        self._check_header(line, columns)
        for line, cells in records:
            if any(cells[len(columns) :]):
                self._fault(line, f"{len(cells)} cells, but the header names {len(columns)} columns")
            named = zip(columns, cells, strict=False)
            self._take(line, {column: _from_csv(column, cell) for column, cell in named})

    def _check_header(self, line: int, columns: list[str]) -> None:
        if "path" not in columns:
            self._fault(line, "no column path; the first line names the columns, for example: path,seed")
        if doubled := sorted({column for column in columns if columns.count(column) > 1}):
            self._fault(line, f"column {shown(doubled[0])} stands twice")
        self._check_known(line, columns)

    def _records(self, text: str) -> Iterator[tuple[int, list[str]]]:
        reader = csv.reader(io.StringIO(text, newline=""), strict=True)
        begun = 1
        try:
            for cells in reader:
                if any(cell.strip() for cell in cells):
                    yield begun, cells
                begun = reader.line_num + 1
        except csv.Error as error:
            self._fault(begun, f"not CSV: {error}")

    def _take(self, line: int, cells: Mapping[str, object]) -> None:
        self._check_known(line, cells)
        values: dict[str, Any] = {}
        n_faults = len(self.faults)
        for column, read in _CELLS.items():
            try:
                values[column] = read(cells.get(column), self._path.parent)
            except ValueError as error:
                self._fault(line, f"{column}: {error}")
        if len(self.faults) == n_faults:
            self.rows.append(_row(line, values))

    def _check_known(self, line: int, columns: Iterable[str]) -> None:
        for column in columns:
            if column not in _CELLS and column not in self._unknown:
                self._unknown.add(column)
                self._fault(line, f"unknown column {shown(column)}; {_nearest(column)}")

    def _fault(self, line: int, fault: str) -> None:
        self.faults.append(f"{shown(self._path)} line {line}: {fault}")


def _row(line: int, values: Mapping[str, Any]) -> Row:
    written = Path(values["path"][0])
    return Row(
        line=line,
        path=values["path"][1],
        name=written.as_posix(),
        place=values["output"] or _default_place(written),
        voice=values["voice_prompt"],
        role=values["text_prompt"],
        seed=values["seed"],
        channel=values["channel"],
    )


def _default_place(written: Path) -> str:
    stem = stem_of(written.name)
    inside = not written.is_absolute() and ".." not in written.parts
    return (written.parent / stem).as_posix() if inside else stem


def _nearest(column: str) -> str:
    near = difflib.get_close_matches(column.lower(), _CELLS, n=1)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(_CELLS)}"


def _from_csv(column: str, cell: str) -> object:
    if not cell.strip():
        return None
    return int(cell.strip()) if column == "seed" and re.fullmatch(r"\s*[+-]?[0-9]{1,40}\s*", cell) else cell


def _path(cell: object, folder: Path) -> tuple[str, Path]:
    if cell is None or (isinstance(cell, str) and not cell.strip()):
        raise ValueError("missing; every row names a file")
    written = _file_name(cell)
    mode = mode_of(folder / written)
    if not mode:
        raise ValueError(f"{shown(folder / written)}: no such file")
    if stat.S_ISDIR(mode):
        raise ValueError(f"{shown(folder / written)}: a folder; a row names one file")
    return written, folder / written


def _voice(cell: object, folder: Path) -> str | None:
    if cell is None or cell == "":
        return None
    written = _file_name(cell)
    mode = mode_of(folder / written)
    if stat.S_ISREG(mode):
        return str(folder / written)
    # A bare `NAME.pt` may be one of the model's own voices, which are not known here.
    if "/" in written or written.lower().endswith(".wav"):
        raise ValueError(f"{shown(folder / written)}: no such file")
    return written


def _role(cell: object, _folder: Path) -> str | None:
    return None if cell is None else _string(cell)


def _seed(cell: object, _folder: Path) -> int | None:
    if cell is None:
        return None
    if isinstance(cell, bool) or not isinstance(cell, int):
        raise ValueError(f"{_quoted(cell)} is not an integer")
    return cell


def _output(cell: object, _folder: Path) -> str | None:
    if cell is None or cell == "":
        return None
    written = _file_name(cell)
    parts = {*PurePosixPath(written).parts, *PureWindowsPath(written).parts}
    if ".." in parts or PurePosixPath(written).is_absolute() or PureWindowsPath(written).anchor:
        raise ValueError(
            f"{_quoted(written)} leads out of the output folder; give a relative name without .."
        )
    place = PurePosixPath(written)
    if not place.name:
        raise ValueError(f"{_quoted(written)} is not the name of a file")
    named = place.name.lower().endswith(WAV) and place.name.lower() != WAV
    return str(place.with_name(place.name[: -len(WAV)]) if named else place)


def _channel(cell: object, _folder: Path) -> str | None:
    if cell is None or cell == "":
        return None
    text = str(cell) if isinstance(cell, int) and not isinstance(cell, bool) else _string(cell).strip()
    if not re.fullmatch(CHANNEL, text):
        raise ValueError(f"{_quoted(cell)} is neither mix nor a number from 0 on")
    return text


def _string(cell: object) -> str:
    if not isinstance(cell, str):
        raise ValueError(f"{_quoted(cell)} is not a text")
    return cell


def _file_name(cell: object) -> str:
    written = _string(cell)
    if reason := impossible(written):
        raise ValueError(f"{_quoted(cell)} {reason}")
    return written


def _quoted(cell: object) -> str:
    text = json.dumps(cell)
    return text if len(text) <= 80 else text[:77] + "..."


_CELLS: dict[str, Callable[[object, Path], object]] = {
    "path": _path,
    "voice_prompt": _voice,
    "text_prompt": _role,
    "seed": _seed,
    "output": _output,
    "channel": _channel,
}
