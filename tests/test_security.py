"""Attacks at the command line: nothing that comes in is executed, and nothing is written outside OUT."""

from __future__ import annotations

import ast
import io
import os
import pickle
import shutil
import tarfile
import threading
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from tests.conftest import GOLDEN
from tests.helpers import DUMP, converted, log_of, names_in, personaplex, record, write_manifest

PACKAGE = Path(__file__).parents[1] / "personaplex_cli"
CHECKPOINT = GOLDEN / "checkpoint"
QUICK = ("--batch-size", 2, "--quiet")
MODEL_FILES = (
    "model.safetensors",
    "tokenizer-e351c8d8-checkpoint125.safetensors",
    "tokenizer_spm_32k_3.model",
)


class Hostile:
    """Runs a command in a shell when it is unpickled carelessly."""

    def __init__(self, marker: Path) -> None:
        self.command = f"touch {marker}"

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, (self.command,)


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """What is there if an attack has worked."""
    return tmp_path / "executed"


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    return record(tmp_path / "in" / "a.wav", 0.1)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A whole model of the user's own."""
    return shutil.copytree(CHECKPOINT, tmp_path / "model")


def refused(command: str, *arguments: object) -> str:
    """What is said on standard error when a whole run is refused."""
    result = personaplex(command, *arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    return result.stderr


# ---- pickles ----


def test_the_pickle_of_these_tests_is_hostile(tmp_path: Path, marker: Path) -> None:
    """Else the tests below would show nothing."""
    pickle.loads(pickle.dumps(Hostile(marker)))
    assert marker.exists()
    marker.unlink()
    torch.save({"embeddings": Hostile(marker)}, tmp_path / "v.pt")
    torch.load(tmp_path / "v.pt", weights_only=False)
    assert marker.exists()


@pytest.mark.parametrize("way", ["option", "manifest", "model"])
@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_as_voice_is_never_executed(
    recording: Path, out: Path, model: Path, marker: Path, way: str, zipped: bool
) -> None:
    voice = model / "voices" / "A.pt" if way == "model" else recording.with_name("evil.pt")
    if zipped:
        torch.save({"embeddings": Hostile(marker)}, voice)
    else:
        voice.write_bytes(pickle.dumps(Hostile(marker)))
    rows = [{"path": "a.wav", "voice_prompt": "evil.pt"}]
    arguments: dict[str, list[object]] = {
        "option": [recording, out, "--voice-prompt", voice],
        "manifest": [write_manifest(recording.with_name("list.jsonl"), rows), out],
        "model": [recording, out, "--model", model, "--text-prompt", ""],
    }
    said = refused("convert", *arguments[way], *QUICK)
    assert f"{voice}: not a voice that can be loaded safely" in said
    assert not marker.exists()
    assert not out.exists()


@pytest.mark.parametrize("name", MODEL_FILES)
def test_a_pickle_as_a_models_file_is_never_executed(
    recording: Path, out: Path, model: Path, marker: Path, name: str
) -> None:
    # Longer than the file it replaces, so that no check of sizes comes first.
    hostile = pickle.dumps([Hostile(marker), bytes((model / name).stat().st_size)])
    (model / name).write_bytes(hostile)
    said = refused("convert", recording, out, "--model", model, "--text-prompt", "", *QUICK)
    assert name in said
    assert not marker.exists()
    assert not out.exists()


def test_a_pickle_as_a_dump_is_never_executed(tmp_path: Path, out: Path, marker: Path) -> None:
    dump = tmp_path / f"a{DUMP}"
    dump.write_bytes(pickle.dumps(Hostile(marker)))
    assert f"{dump}: " in refused("decode", dump, out)
    assert not marker.exists()
    assert not out.exists()


def test_a_pickle_as_a_recording_fails_alone_and_is_never_executed(
    recording: Path, out: Path, marker: Path
) -> None:
    recording.with_name("evil.wav").write_bytes(pickle.dumps(Hostile(marker)))
    assert personaplex("convert", recording.parent, out, *QUICK).exit_code == 1
    assert {line["source"]: line["status"] for line in log_of(out)} == {
        "a.wav": "converted",
        "evil.wav": "failed",
    }
    assert not marker.exists()


# ---- archives ----


def member(name: str, **about: object) -> tarfile.TarInfo:
    """One member of an archive; a file of four bytes unless it is said to be something else."""
    found = tarfile.TarInfo(name)
    found.size = 0 if "type" in about else 4
    for key, value in about.items():
        setattr(found, key, value)
    return found


@pytest.mark.parametrize(
    ("hostile", "reason"),
    [
        (member("../evil.pt"), "climbs out of its folder"),
        (member("voices/../../evil.pt"), "climbs out of its folder"),
        (member("/tmp/evil.pt"), "has an absolute name"),
        (member("C:\\evil.pt"), "has an absolute name or a backslash"),
        (member("voices/evil.pt", type=tarfile.SYMTYPE, linkname="/etc/passwd"), "is a link"),
        (member("voices/evil.pt", type=tarfile.LNKTYPE, linkname="../../evil"), "is a link"),
        (member("voices/evil.pt", type=tarfile.FIFOTYPE), "is neither a regular file nor a folder"),
        (member("voices/evil.pt", type=tarfile.CHRTYPE, devmajor=1, devminor=5), "is neither a regular file"),
    ],
    ids=["climbing", "climbing_later", "absolute", "drive", "symlink", "hard_link", "pipe", "device"],
)
def test_an_archive_that_reaches_out_of_its_folder_is_refused(
    recording: Path,
    out: Path,
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
    hostile: tarfile.TarInfo,
    reason: str,
) -> None:
    cache = recording.parent / "cache" / "deep"
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    shutil.rmtree(model / "voices")
    with tarfile.open(model / "voices.tgz", "w:gz") as archive:
        archive.addfile(member("voices/good.pt"), io.BytesIO(b"good"))
        archive.addfile(hostile, io.BytesIO(b"evil"))
    before = names_in(recording.parents[1])
    said = refused("convert", recording, out, "--model", model, "--text-prompt", "", *QUICK)
    assert f"{model / 'voices.tgz'}: refused: the member {hostile.name!r} {reason}" in said
    assert names_in(recording.parents[1]) == before
    assert not Path("/tmp/evil.pt").exists()


# ---- names ----


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("../x", "leads out of the output folder"),
        ("a/../../x", "leads out of the output folder"),
        ("{tmp}/x", "leads out of the output folder"),
        ("C:\\x", "leads out of the output folder"),
        ("C:x", "leads out of the output folder"),
        ("\\\\server\\share\\x", "leads out of the output folder"),
        ("way/x", "leads out of the output folder by a link"),
        ("inside/way/x", "leads out of the output folder by a link"),
    ],
)
def test_a_manifest_cannot_write_outside_the_output_folder(
    tmp_path: Path, recording: Path, out: Path, output: str, reason: str
) -> None:
    (out / "inside").mkdir(parents=True)
    (out / "way").symlink_to(tmp_path)
    (out / "inside" / "way").symlink_to("../..")
    written = output.replace("{tmp}", str(tmp_path))
    listed = write_manifest(tmp_path / "list.jsonl", [{"path": str(recording), "output": written}])
    before = names_in(tmp_path)
    assert reason in refused("convert", listed, out, *QUICK)
    assert names_in(tmp_path) == before


SHELL_NAMES = [
    "$(touch executed)",
    "`touch executed`",
    "; touch executed;",
    "| touch executed",
    "a && touch executed",
    "\ntouch executed\n",
    "'; touch executed; '",
    '" ; touch executed ; "',
    "${IFS}{0}%s%(a)s",
    "--voice-prompt=none",
    "!!python",
]


def test_names_that_a_shell_would_obey_run_nothing_and_survive(
    tmp_path: Path, recording: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in SHELL_NAMES:
        shutil.copy(recording, recording.with_name(f"{name}.wav"))
    rows = [{"path": str(recording), "output": name, "text_prompt": name} for name in SHELL_NAMES]
    listed = write_manifest(tmp_path / "list.jsonl", rows)
    recording.unlink()
    converted("in", "out", "--batch-size", 4)
    wanted = sorted([*(n + suffix for n in SHELL_NAMES for suffix in (".wav", ".json", DUMP)), "run.jsonl"])
    assert names_in(out) == wanted
    record(recording, 0.1)
    converted(listed, "listed", "--batch-size", 4)
    assert names_in(tmp_path / "listed") == wanted
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "list.jsonl", "listed", "out"]


ESCAPES = "\x1b[31m\x1b]0;title\x07\x9b2J\u202e"


def test_what_would_steer_a_terminal_is_shown_as_its_escape(recording: Path, out: Path, model: Path) -> None:
    name = f"{ESCAPES}bad.wav"
    recording.with_name(name).write_text("no audio")
    (model / "NOTICE.txt").write_text(f"notice {ESCAPES}", encoding="utf-8")
    options = ["--model", model, "--text-prompt", ""]
    failed = personaplex("convert", recording.parent, out, *options)
    assert failed.exit_code == 1
    said = [
        failed.stderr,
        refused("convert", recording.with_name(f"{name}.gone"), out, *options),
        refused("convert", recording, out, "--voice-prompt", name, *options),
        refused("convert", recording, out, "--set", f"{name}=1", *options),
        refused("convert", recording, out, "--model", name),
        refused("convert", recording, out, "--config", f"{name}.json", *options),
        refused("convert", write_manifest(recording.with_name("list.jsonl"), [{name: 1}]), out, *options),
        refused("decode", recording.with_name(name), out),
    ]
    assert "notice" in said[0]
    assert "failed: " in said[0]
    for text in said:
        assert all(sign.isprintable() or sign == "\n" for sign in text), ascii(text)
    for text in said[1:]:
        assert "[31m" in text


# ---- configs ----


@pytest.mark.parametrize(
    "written",
    [
        "!!python/object/apply:os.system ['touch {marker}']",
        "!!python/object/new:os.system ['touch {marker}']",
        "!!python/object/apply:subprocess.check_call [[touch, {marker}]]",
        "temporal_config: !!python/object/apply:os.system ['touch {marker}']",
        "? !!python/object/apply:os.system ['touch {marker}']\n: 1",
        "text_card: !!python/name:os.system",
        "a: &a !!python/module:os\nb: *a",
    ],
)
def test_a_config_that_names_python_is_refused_and_never_executed(
    recording: Path, out: Path, marker: Path, written: str
) -> None:
    config = recording.with_name("config.yaml")
    config.write_text(written.replace("{marker}", str(marker)))
    said = refused("convert", recording, out, "--config", config, *QUICK)
    assert str(config) in said
    if "\n" not in written:
        said = refused("convert", recording, out, "--set", f"temporal_config={config.read_text()}", *QUICK)
        assert "--set: " in said
    assert not marker.exists()
    assert not out.exists()


LAUGHS = "\n".join(
    ["a0: &a0 [lol]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12))]
)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.yaml", LAUGHS),
        ("config.yaml", "a: &a [*a, *a]"),
        ("config.yaml", "[\n" * 1_000_000),
        ("config.yaml", "a: " * 100_000),
        ("config.json", "[" * 10_000_000),
        ("config.json", '{"a":' * 1_000_000),
        ("config.json", '{"temporal_config": {"hidden_size": ' + "9" * 1_000_000 + "}}"),
    ],
    ids=["laughs", "cycle", "deep_yaml", "long_yaml", "deep_json", "deep_objects", "long_number"],
)
def test_a_config_that_would_swell_is_refused_soon(
    recording: Path, out: Path, name: str, content: str
) -> None:
    config = recording.with_name(name)
    config.write_text(content)
    began = time.monotonic()
    assert str(config) in refused("convert", recording, out, "--config", config, *QUICK)
    assert time.monotonic() - began < 20
    assert not out.exists()


def test_aliases_cannot_fill_the_memory(recording: Path, out: Path) -> None:
    """Spelled out they would be 10^11 values."""
    config = recording.with_name("config.yaml")
    config.write_text(LAUGHS)
    tracemalloc.start()
    try:
        refused("convert", recording, out, "--config", config, *QUICK)
        assert tracemalloc.get_traced_memory()[1] < 100 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("leads_to", ["pipe", "/dev/null"])
def test_a_models_config_that_is_no_file_is_not_waited_for(
    recording: Path, out: Path, model: Path, leads_to: str
) -> None:
    (model / "config.json").unlink()
    if leads_to == "pipe":
        os.mkfifo(model / "config.json")
    else:
        (model / "config.json").symlink_to(leads_to)
    said = refused("convert", recording, out, "--model", model, "--text-prompt", "", *QUICK)
    assert str(model) in said
    assert not out.exists()


def test_a_config_that_may_have_no_end_is_not_read(recording: Path, out: Path) -> None:
    pipe, zero = recording.with_name("pipe.json"), recording.with_name("zero.yaml")
    os.mkfifo(pipe)

    def offer() -> None:
        with suppress(BrokenPipeError):
            pipe.write_text("{}")

    # If the pipe were read, it would be taken for a config, and refused later for another reason.
    threading.Thread(target=offer, daemon=True).start()
    said = refused("convert", recording, out, "--config", pipe, *QUICK)
    assert f"{pipe}: not a regular file" in said
    os.close(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK))  # Lets the writer go.
    zero.symlink_to("/dev/zero")
    assert f"{zero}: not a regular file" in refused("convert", recording, out, "--config", zero, *QUICK)
    assert not out.exists()


# ---- our own code ----

FORBIDDEN_MODULES = {
    "pickle",
    "subprocess",
    "marshal",
    "shelve",
    "dill",
    "cloudpickle",
    "joblib",
    "pty",
    "ctypes",
}
FORBIDDEN_NAMES = {"eval", "exec", "compile", "__import__"}
FORBIDDEN_OF = {
    "os": {"system", "popen", "posix_spawn", "posix_spawnp", "fork"},
    "yaml": {"load", "load_all", "unsafe_load", "full_load", "Loader", "UnsafeLoader", "FullLoader"},
    "tarfile": {"extractall", "extract"},
}


def dangers(source: str) -> Iterator[str]:
    """What could run foreign code, or is a careless way of reading foreign data."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names if each.name.partition(".")[0] in FORBIDDEN_MODULES)
        elif isinstance(node, ast.ImportFrom):
            top = (node.module or "").partition(".")[0]
            yield from (
                f"{node.module}.{each.name}"
                for each in node.names
                if top in FORBIDDEN_MODULES or each.name in FORBIDDEN_OF.get(top, ())
            )
        elif isinstance(node, ast.Name) and node.id in FORBIDDEN_NAMES:
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            runs = node.value.id == "os" and node.attr.startswith(("exec", "spawn"))
            if runs or node.attr in FORBIDDEN_OF.get(node.value.id, ()):
                yield f"{node.value.id}.{node.attr}"
        elif isinstance(node, ast.Call):
            options = {word.arg: ast.unparse(word.value) for word in node.keywords}
            if ast.unparse(node.func) == "torch.load" and options.get("weights_only") != "True":
                yield "torch.load without weights_only=True"
            yield from (f"{name}=True" for name in ("shell", "allow_pickle") if options.get(name) == "True")


def test_the_package_has_nothing_that_runs_foreign_code() -> None:
    files = sorted(PACKAGE.rglob("*.py"))
    assert len(files) > 40
    found = {file.name: list(dangers(file.read_text(encoding="utf-8"))) for file in files}
    assert {name: told for name, told in found.items() if told} == {}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from subprocess import run",
        "import os\nos.system('x')",
        "from os import popen",
        "os.execvp('x', [])",
        "eval('1')",
        "__import__('os')",
        "yaml.load(x, Loader=yaml.SafeLoader)",
        "class L(yaml.FullLoader): ...",
        "torch.load(x)",
        "torch.load(x, weights_only=False)",
        "run(x, shell=True)",
        "np.load(x, allow_pickle=True)",
        "tarfile.extractall()",
    ],
)
def test_what_runs_foreign_code_would_be_found(source: str) -> None:
    assert list(dangers(source))
