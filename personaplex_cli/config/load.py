"""YAML, JSON, a model's folder and `--set` -> the tree, with the source of every value; and back to text."""

from __future__ import annotations

import copy
import difflib
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import yaml
from pydantic import BaseModel, ValidationError

from personaplex_cli.config.tree import Contradiction, PersonaPlexConfig
from personaplex_cli.errors import ConfigError

DEFAULT = "default"
SET = "--set"
FOLDER_NAMES = ("config.json", "config.yaml", "config.yml")

# Sorting keys for what has no line: after the file comes `--set`, then the defaults.
SET_LINE, DEFAULT_LINE = 10**9, 10**9 + 1
# Aliases can make a short YAML file stand for any number of values.
MAX_VALUES = 10_000
MAX_WIDTH = 10**6

Keys = tuple[str, ...]


@dataclass(frozen=True)
class LoadedConfig:
    """A tree, and where each of its values comes from."""

    config: PersonaPlexConfig
    origins: Mapping[str, str]
    """Dotted key of every value -> "default", "FILE:LINE" or "--set"."""


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong: where, and what. `line` only sorts."""

    where: str
    problem: str
    line: int = SET_LINE

    def __str__(self) -> str:
        return f"{self.where}: {self.problem}" if self.where else self.problem


@dataclass
class _Raw:
    """What was written, before it is checked: nested values, the lines of their keys, the faults so far."""

    name: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    lines: dict[Keys, int] = field(default_factory=dict)
    overridden: set[Keys] = field(default_factory=set)
    faults: list[Fault] = field(default_factory=list)
    # Keys whose intended value is not known: what their stand-ins contradict says nothing.
    doubtful: set[Keys] = field(default_factory=set)
    n_values: int = 0

    def fault_at_line(self, line: int, problem: str) -> None:
        self.faults.append(Fault(f"{self.name}:{line}", problem, line))

    def origin(self, path: Keys) -> str:
        """Where the value at a path, or the closest written section around it, was written."""
        for end in range(len(path), 0, -1):
            if path[:end] in self.overridden:
                return SET
            if path[:end] in self.lines:
                return f"{self.name}:{self.lines[path[:end]]}"
        return DEFAULT

    def line(self, path: Keys) -> int:
        """A number to sort by: lines of the file first, then `--set`, then defaults."""
        where = self.origin(path)
        if where == DEFAULT:
            return DEFAULT_LINE
        return SET_LINE if where == SET else int(where.rpartition(":")[2])


def load_config(source: Path | None, overrides: Sequence[str] = ()) -> LoadedConfig:
    """Read a config (None = the defaults), then apply each `--set KEY=VALUE`; refuse all faults at once.

    A folder's config is its config.json (or config.yaml); a folder without one means the defaults.
    """
    file = _config_file(source)
    raw = _read_file(file) if file is not None else _Raw()
    for override in overrides:
        _apply_override(raw, override)
    try:
        config = _check(raw)
    except RecursionError:
        raise ConfigError(f"{raw.name or SET}: is nested too deeply") from None
    if config is None:
        faults = [str(fault) for fault in sorted(raw.faults, key=lambda fault: fault.line)]
        raise ConfigError.listing(f"{raw.name or 'the config'}: cannot be used", faults)
    origins = {".".join(path): _leaf_origin(raw, path) for path in leaves(config)}
    return LoadedConfig(config, origins)


def render_config(config: PersonaPlexConfig, style: Literal["yaml", "json"]) -> str:
    """Write the whole tree, so that it loads again to the same tree. Plain ASCII, ends with a newline."""
    values = config.model_dump(mode="json")
    if style == "json":
        return json.dumps(values, indent=2) + "\n"
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, width=MAX_WIDTH)


def render_schema() -> str:
    """The JSON Schema of the tree, for editors."""
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **PersonaPlexConfig.model_json_schema(),
    }
    return json.dumps(schema, indent=2) + "\n"


def config_hash(config: PersonaPlexConfig) -> str:
    """A stable fingerprint of the values: the same tree gives the same, however it was written."""
    canonical = json.dumps(config.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def leaves(section: BaseModel, path: Keys = ()) -> Iterator[Keys]:
    """Paths of all values that are no sections, in the tree's order."""
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            yield from leaves(value, (*path, name))
        else:
            yield (*path, name)


# ---- reading ----


def _config_file(source: Path | None) -> Path | None:
    if source is None:
        return None
    if source.is_dir():
        return next((file for name in FOLDER_NAMES if (file := source / name).is_file()), None)
    if not source.exists():
        raise ConfigError(f"{source}: no such file or folder")
    if not source.is_file():  # A pipe may have no writer, or no end.
        raise ConfigError(f"{source}: not a regular file; save the config to one")
    if source.suffix.lower() not in (".json", ".yaml", ".yml"):
        raise ConfigError(f"{source}: a config is a .yaml or .json file, or a model's folder")
    return source


def _read_file(file: Path) -> _Raw:
    try:
        text = file.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: is not UTF-8 text (byte {error.start})") from error
    raw = _Raw(str(file))
    try:
        values = _parse_json(text, raw) if file.suffix.lower() == ".json" else _parse_yaml(text, raw)
    except RecursionError:
        raise ConfigError(f"{file}: is nested too deeply") from None
    if raw.faults and not isinstance(values, dict):
        raise ConfigError(str(raw.faults[0]))
    if not isinstance(values, dict):
        written = "nothing" if values is None else f"a {type(values).__name__}"
        raise ConfigError(
            f"{file}: the top must be a mapping of keys to values, not {written} ({{}} = all defaults)"
        )
    raw.values = values
    return raw


_JSON_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not a JSON number")


def _parse_json(text: str, raw: _Raw) -> Any:
    try:
        values = json.loads(text, parse_constant=_refuse_constant)
        # JSON can escape half of a surrogate pair, which is no text anywhere else.
        json.dumps(values, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"{raw.name}:{error.lineno}: is not JSON: {error.msg} (column {error.colno})"
        ) from error
    except UnicodeEncodeError as error:
        raise ConfigError(f"{raw.name}: has half of a surrogate pair as text") from error
    except ValueError as error:
        raise ConfigError(f"{raw.name}: is not JSON: {error}") from error
    for path, line in _json_keys(text):
        _note_key(raw, path, line)
    return values


def _json_keys(text: str) -> Iterator[tuple[Keys, int]]:
    """The path and line of every key in valid JSON; a list's items count as keys 0, 1, ..."""
    path: list[str | int] = []
    line, end, before = 1, 0, ""
    for match in _JSON_TOKEN.finditer(text):
        token = match.group()
        line, end = line + text.count("\n", end, match.start()), match.start()
        if token in "{[":
            path.append("" if token == "{" else 0)
        elif token in "}]":
            path.pop()
        elif token == "," and isinstance(path[-1], int):
            path[-1] += 1
        elif token.startswith('"') and before in ("{", ",") and path and isinstance(path[-1], str):
            path[-1] = json.loads(token)
            yield tuple(map(str, path)), line
        before = token


def _note_key(raw: _Raw, path: Keys, line: int) -> None:
    if path in raw.lines:
        raw.fault_at_line(line, f"{'.'.join(path)}: is written twice (first on line {raw.lines[path]})")
    else:
        raw.lines[path] = line


class _Loader(yaml.SafeLoader):
    """YAML 1.2's plain values: 1e-8 is a number, and no, on or 2024-01-01 are text."""


class _Dumper(yaml.SafeDumper):
    """Quotes what either YAML 1.1 or 1.2 would not read as text; lists of values go on one line."""

    def ignore_aliases(self, _data: Any) -> bool:
        """Write equal values out each time: anchors are for people who type."""
        return True


_CORE = "tag:yaml.org,2002:"
_PLAIN = [
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+|0x[0-9a-fA-F]+|0o[0-7]+", list("-+0123456789")),
    (
        "float",
        r"[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*)(?:[eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
]
_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in _PLAIN:
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(_CORE + _tag, re.compile(rf"(?:{_pattern})\Z"), _first)
_Dumper.add_representer(
    list, lambda dumper, items: dumper.represent_sequence(_CORE + "seq", items, flow_style=True)
)


def _parse_yaml(text: str, raw: _Raw) -> Any:
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{raw.name}:{mark.line + 1}" if mark else raw.name
        raise ConfigError(f"{where}: is not YAML: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{raw.name}: is not YAML: {' '.join(str(error).split())}") from error
    return _yaml_value(node, (), raw, ())


def _yaml_value(node: yaml.Node | None, path: Keys, raw: _Raw, around: tuple[yaml.Node, ...]) -> Any:
    """A node's plain value; notes the lines of keys, and what we refuse: tags, cycles, odd keys."""
    if node is None:
        return None
    raw.n_values += 1
    if raw.n_values > MAX_VALUES:
        raise ConfigError(f"{raw.name}: stands for more than {MAX_VALUES} values")
    line, key = node.start_mark.line + 1, ".".join(path) or "the value"
    kind = node.tag.removeprefix(_CORE)
    if any(node is outer for outer in around):
        raw.fault_at_line(line, f"{key}: contains itself")
    elif isinstance(node, yaml.MappingNode) and kind == "map":
        return _yaml_mapping(node, path, raw, (*around, node))
    elif isinstance(node, yaml.SequenceNode) and kind == "seq":
        return [_yaml_value(item, (*path, str(i)), raw, (*around, node)) for i, item in enumerate(node.value)]
    elif isinstance(node, yaml.ScalarNode) and kind in ("str", "null", "bool", "int", "float"):
        try:
            return _yaml_scalar(kind, node.value)
        except ValueError as error:
            raw.fault_at_line(line, f"{key}: {error}")
    else:
        raw.fault_at_line(line, f"{key}: the tag {node.tag} is refused: plain values only")
    raw.doubtful.add(path)
    return None


def _yaml_mapping(
    node: yaml.MappingNode, path: Keys, raw: _Raw, around: tuple[yaml.Node, ...]
) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        if key_node.tag != _CORE + "str":
            written = key_node.value if isinstance(key_node, yaml.ScalarNode) else "a collection"
            raw.fault_at_line(line, f"{'.'.join((*path, str(written)))}: a key must be text")
            continue
        key = key_node.value
        if not _is_text(key):
            raw.fault_at_line(line, f"{'.'.join((*path, ascii(key)))}: a key must be text")
            continue
        # An anchored section is read once for each place that names it, on the same lines.
        if key in values:
            raw.fault_at_line(line, f"{'.'.join((*path, key))}: is written twice")
        raw.lines.setdefault((*path, key), line)
        values[key] = _yaml_value(value_node, (*path, key), raw, around)
    return values


def _yaml_scalar(kind: str, written: str) -> Any:
    if kind == "str":
        if not _is_text(written):
            raise ValueError("has half of a surrogate pair as text")
        return written
    if kind == "null":
        return None
    if kind == "bool":
        if written.lower() not in ("true", "false"):
            raise ValueError(f"{written!r} is not true or false")
        return written.lower() == "true"
    if kind == "int":
        base = {"0x": 16, "0o": 8}.get(written[:2], 10)
        return int(written, base)
    return float(re.sub(r"\.(?=inf|nan)", "", written.lower()))


def _is_text(written: str) -> bool:
    """Whether it holds no half of a surrogate pair, which YAML can escape and nothing else can write."""
    return not any("\ud800" <= sign <= "\udfff" for sign in written)


def _apply_override(raw: _Raw, override: str) -> None:
    """Put one KEY=VALUE over what was read. A mapping is merged into, any other value is replaced."""
    key, equals, written = override.partition("=")
    path = tuple(key.strip().split("."))
    if not _is_text(key):
        raw.faults.append(Fault(SET, f"{override}: is not text in this locale's encoding"))
        return
    if not equals or not all(path):
        raw.faults.append(
            Fault(SET, f"{override!r}: must be KEY=VALUE, as in temporal_config.num_hidden_layers=2")
        )
        return
    reading = _Raw(SET)
    try:
        value = _parse_yaml(written, reading)
    except RecursionError:
        reading.faults.append(Fault(SET, "is nested too deeply"))
    except ConfigError as error:
        reading.faults.append(Fault(SET, error.message.partition(": ")[2]))
    if reading.faults:
        raw.faults += [Fault(SET, f"{override}: {fault.problem}") for fault in reading.faults]
        raw.doubtful.add(path)
        return
    section = raw.values
    for depth, name in enumerate(path[:-1], start=1):
        inner = section.get(name)
        if inner is None:
            inner = section[name] = {}
            raw.overridden.add(path[:depth])
        if not isinstance(inner, dict):
            raw.faults.append(Fault(SET, f"{key}: {'.'.join(path[:depth])} is a value, not a section"))
            raw.doubtful.add(path[:depth])
            return
        section = inner
    _merge(raw, section, path, value)


def _merge(raw: _Raw, section: dict[str, Any], path: Keys, value: Any) -> None:
    raw.overridden.add(path)
    name = path[-1]
    if not isinstance(value, dict):
        section[name] = value
        return
    if not isinstance(section.get(name), dict):
        section[name] = {}
    for key, inner in value.items():
        _merge(raw, section[name], (*path, key), inner)


# ---- checking ----


def _check(raw: _Raw) -> PersonaPlexConfig | None:
    """The tree, or None and all faults noted: first each value for itself, then what contradicts what."""
    try:
        config = PersonaPlexConfig.model_validate(raw.values)
        return None if raw.faults else config
    except ValidationError as error:
        problems = error.errors(include_url=False)
    if any(problem["type"] != "contradictions" for problem in problems):
        repaired = _without_faulty(raw, problems)
        try:
            PersonaPlexConfig.model_validate(repaired)
            problems = []
        except ValidationError as error:
            problems = error.errors(include_url=False)
    for problem in problems:
        if problem["type"] == "contradictions":
            _note_contradictions(raw, problem["ctx"]["found"])
    return None


def _without_faulty(raw: _Raw, problems: Sequence[Any]) -> Any:
    """Note the faults of single values, and give what was read without them."""
    repaired = copy.deepcopy(raw.values)
    reported = set(raw.doubtful)
    for problem in problems:
        if problem["type"] == "contradictions":
            continue
        path = _written_path(raw.values, problem)
        _remove(repaired, path)
        if path not in reported:
            raw.faults.append(Fault(raw.origin(path), _describe(problem, path, raw), raw.line(path)))
        raw.doubtful.add(path)
    return repaired


def _written_path(values: Any, problem: Any) -> Keys:
    """Where a problem lies among what was written: pydantic's place without the names of its own types."""
    path: list[str] = []
    for key in problem["loc"]:
        if (isinstance(values, dict) and key in values) or (
            isinstance(values, list) and isinstance(key, int)
        ):
            values = values[key]
        elif problem["type"] != "missing":
            continue
        path.append(str(key))
    return tuple(path)


def _note_contradictions(raw: _Raw, found: Sequence[Contradiction]) -> None:
    for keys, problem in found:
        paths = [tuple(key.split(".")) for key in keys]
        if any(_overlap(path, doubtful) for path in paths for doubtful in raw.doubtful):
            continue
        written = sorted((path for path in paths if _leaf_origin(raw, path) != DEFAULT), key=raw.line)
        where = ", ".join(dict.fromkeys(_leaf_origin(raw, path) for path in written))
        raw.faults.append(Fault(where, problem, raw.line(written[0]) if written else DEFAULT_LINE))


def _overlap(one: Keys, other: Keys) -> bool:
    shared = min(len(one), len(other))
    return one[:shared] == other[:shared]


def _remove(values: dict[str, Any], path: Keys) -> None:
    """Take a faulty value out; where something is missing, the section that misses it."""
    section, holder, name = values, values, path[0]
    for key in path:
        holder, name = section, key
        inner = section.get(key)
        if not isinstance(inner, dict):
            break
        section = inner
    if name not in holder and len(path) > 1:
        _remove(values, path[:-1])
    else:
        holder.pop(name, None)


_WANTED = {
    "int_type": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "text",
    "tuple_type": "a list of whole numbers",
    "model_type": "a section (a mapping of keys to values)",
    "model_attributes_type": "a section (a mapping of keys to values)",
    "dict_type": "a mapping of keys to values",
    "greater_than": "greater than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than_equal": "at most {le}",
    "literal_error": "{expected}",
}


def _describe(problem: Any, path: Keys, raw: _Raw) -> str:
    """A fault in our words: its key, what is wanted, what was found."""
    kind, key = problem["type"], ".".join(path)
    if kind == "extra_forbidden":
        return f"{key}: unknown key{_suggestion(path, raw)}"
    if kind == "missing":
        return f"{key}: is missing"
    if kind in _WANTED:
        wanted = _WANTED[kind].format_map(problem.get("ctx", {}))
        return f"{key}: must be {wanted}, not {_shown(problem['input'])}"
    return f"{key}: {problem['msg']}"


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _suggestion(path: Keys, raw: _Raw) -> str:
    """The nearest known name: in the same section, else the same name in another one."""
    *sections, name = path
    here = [known for known in _known_paths(PersonaPlexConfig) if known[:-1] == tuple(sections)]
    near = difflib.get_close_matches(name, [known[-1] for known in here], n=1)
    if near:
        raw.doubtful.add((*sections, near[0]))
        return f" (did you mean {near[0]}?)"
    elsewhere = [".".join(known) for known in _known_paths(PersonaPlexConfig) if known[-1] == name]
    if elsewhere:
        return f" (did you mean {' or '.join(elsewhere)}?)"
    return f" (known here: {', '.join(known[-1] for known in here)})"


def _known_paths(model: type[BaseModel], path: Keys = ()) -> Iterator[Keys]:
    """Paths of all sections and values that a tree can have."""
    for name, known in model.model_fields.items():
        yield (*path, name)
        for choice in (known.annotation, *get_args(known.annotation)):
            if isinstance(choice, type) and issubclass(choice, BaseModel):
                yield from _known_paths(choice, (*path, name))


def _leaf_origin(raw: _Raw, path: Keys) -> str:
    """The source of one value of a valid tree: its own key's, or that of anything that was set inside it."""
    if path in raw.overridden or any(inner[: len(path)] == path for inner in raw.overridden):
        return SET
    return f"{raw.name}:{raw.lines[path]}" if path in raw.lines else DEFAULT
