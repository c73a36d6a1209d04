"""Finding a model, and refusing one that is not whole."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from personaplex_cli.errors import ConfigError, ModelError, SettingsError
from personaplex_cli.model import checkpoint as module
from personaplex_cli.model.checkpoint import open_checkpoint

GOLDEN = Path(__file__).parent / "golden" / "checkpoint"
MIMI = "tokenizer-e351c8d8-checkpoint125.safetensors"
TOKENIZER = "tokenizer_spm_32k_3.model"
NEEDED = ("model.safetensors", MIMI, TOKENIZER)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A copy of the small model."""
    return Path(shutil.copytree(GOLDEN, tmp_path / "model"))


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever runs in this process must not open a connection; the Hub's tests run in others."""

    def refused(*_: object, **__: object) -> None:
        raise AssertionError("the network was touched")

    monkeypatch.setattr(socket.socket, "connect", refused)
    monkeypatch.setattr(socket, "getaddrinfo", refused)


def refusal(model: object, **options: Any) -> str:
    with pytest.raises(ModelError) as refused:
        open_checkpoint(str(model), **options)
    return refused.value.message


def safetensors(tensors: dict[str, int], *, change: int | None = None) -> bytes:
    """A file of uint8 tensors: name -> bytes; the data byte at `change` differs."""
    header, begin = {}, 0
    for name, n_bytes in tensors.items():
        header[name] = {"dtype": "U8", "shape": [n_bytes], "data_offsets": [begin, begin + n_bytes]}
        begin += n_bytes
    text = json.dumps(header).encode()
    data = bytearray(range(256)) * (begin // 256 + 1)
    if change is not None:
        data[change] ^= 1
    return len(text).to_bytes(8, "little") + text + bytes(data[:begin])


# ---- which model ----


def test_a_directory_is_opened_with_its_own_config_and_without_the_network(model: Path) -> None:
    opened = open_checkpoint(str(model))
    assert opened.name == str(model)
    assert opened.folder == model
    assert opened.weights == (model / "model.safetensors",)
    assert opened.mimi == model / MIMI
    assert opened.tokenizer == model / TOKENIZER
    assert opened.voices.names() == ["VOICE0"]
    assert opened.config.temporal_config.hidden_size == 48
    assert opened.loaded.origins["temporal_config.hidden_size"].startswith(str(model / "config.json"))
    assert opened.notice is None


def test_opening_a_directory_loads_neither_torch_nor_the_hub(model: Path) -> None:
    code = "import sys; from personaplex_cli.model.checkpoint import open_checkpoint\n"
    code += "open_checkpoint(sys.argv[1]).voices.names()\n"
    code += "print([name for name in ('torch', 'huggingface_hub') if name in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code, str(model)], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_the_embedded_model_is_the_package_s_own(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (module.EMBEDDED / "LICENSE").is_file()
    monkeypatch.setattr(module, "EMBEDDED", model)
    opened = open_checkpoint("embedded")
    assert opened.name == "embedded"
    assert opened.folder == model


def test_a_broken_embedded_model_asks_for_a_new_installation(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "EMBEDDED", model)
    (model / TOKENIZER).unlink()
    message = refusal("embedded")
    assert message.startswith(f"embedded ({model}): not a whole PersonaPlex model:")
    assert message.endswith("Install personaplex-cli again, or name another model.")


def test_a_directory_wins_over_a_repository_of_the_same_name(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(model.parent.parent)
    name = f"{model.parent.name}/{model.name}"
    assert open_checkpoint(name).folder == Path(name)


def test_a_tilde_is_the_home(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(model.parent))
    assert open_checkpoint("~/model").folder == model


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "no-such",
        "./no/such",
        "../such",
        "~/no-such",
        "~nobody-here/x",
        "/no/such",
        "a/b/c",
        "a\\b",
        "a/",
        "/a",
        "org/..",
        "https://host/org/name",
        "a\0b",
        "é/è",
        "x" * 5000,
    ],
)
def test_what_looks_like_a_path_is_never_looked_for_on_the_hub(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    monkeypatch.chdir(folder)
    message = refusal(name)
    assert ("missing" if name == "." else "no such directory") in message


def test_a_file_is_no_model(model: Path) -> None:
    assert refusal(model / "model.safetensors").endswith("is a file; name the model's folder")


def test_a_local_model_has_no_revisions(model: Path) -> None:
    with pytest.raises(SettingsError, match=r"revision v2: only a model of the Hub has revisions"):
        open_checkpoint(str(model), revision="v2")


# ---- the config ----


def test_another_config_takes_the_place_of_the_folder_s(model: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    content = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text("{")
    other.write_text(json.dumps(content))
    opened = open_checkpoint(str(model), config=other)
    assert opened.loaded.origins["temporal_config.hidden_size"].startswith(str(other))


def test_overrides_are_handed_on_and_may_name_another_codec(model: Path) -> None:
    (model / MIMI).rename(model / "codec.safetensors")
    opened = open_checkpoint(str(model), overrides=["mimi_name=codec.safetensors"])
    assert opened.mimi == model / "codec.safetensors"
    assert opened.loaded.origins["mimi_name"] == "--set"


def test_a_folder_without_a_config_is_the_default_tree(model: Path) -> None:
    (model / "config.json").unlink()
    assert open_checkpoint(str(model)).config.temporal_config.hidden_size == 4096


def test_a_config_of_another_model_is_told_as_such(model: Path) -> None:
    (model / "config.json").write_text('{"model_type": "llama", "hidden_size": 4096}')
    assert refusal(model) == (
        f"{model}: another model's folder? config.json says model_type 'llama', not 'personaplex'"
    )


@pytest.mark.parametrize("content", ["{", "[]", '{"hidden": 1}', '{"model_type": "personaplex", "x": 1}'])
def test_a_faulty_config_stays_a_config_error(model: Path, content: str) -> None:
    (model / "config.json").write_text(content)
    with pytest.raises(ConfigError, match=r"config\.json"):
        open_checkpoint(str(model))


def test_a_faulty_config_of_the_user_s_is_not_blamed_on_the_folder(model: Path, tmp_path: Path) -> None:
    (model / "config.json").write_text('{"model_type": "llama"}')
    other = tmp_path / "other.json"
    other.write_text('{"hidden": 1}')
    with pytest.raises(ConfigError, match=r"other\.json"):
        open_checkpoint(str(model), config=other)


# ---- missing and broken files ----


def test_all_missing_files_are_listed_at_once_with_what_is_there_and_what_to_do(model: Path) -> None:
    for name in NEEDED:
        (model / name).rename(model / f"{name}.renamed")
    assert refusal(model).splitlines() == [
        f"{model}: not a whole PersonaPlex model:",
        "  - model.safetensors: missing",
        f"  - {MIMI}: missing",
        f"  - {TOKENIZER}: missing",
        "In the folder: config.json, model.safetensors.renamed, "
        f"{MIMI}.renamed, {TOKENIZER}.renamed, voices.",
        f"Download it again (the published model: `hf download {module.PUBLISHED} --local-dir {model}`).",
    ]


def test_an_empty_folder_says_so(tmp_path: Path) -> None:
    assert "The folder is empty." in refusal(tmp_path).splitlines()


def test_a_folder_full_of_other_things_is_not_listed_whole(tmp_path: Path) -> None:
    for index in range(20):
        (tmp_path / f"{index:02}.bin").touch()
    assert "10.bin, 11.bin and 8 more." in refusal(tmp_path)


def test_a_missing_file_beside_another_model_s_config_is_explained(model: Path) -> None:
    config = model.parent / "own.json"
    shutil.move(model / "config.json", config)
    (model / "config.json").write_text('{"model_type": "moshi"}')
    (model / MIMI).unlink()
    message = refusal(model, config=config)
    assert "Another model's folder? config.json says model_type 'moshi', not 'personaplex'." in message


def test_an_interrupted_download_is_recognised(model: Path) -> None:
    (model / MIMI).unlink()
    partial = model / ".cache" / "huggingface" / "download" / "abc.incomplete"
    partial.parent.mkdir(parents=True)
    partial.touch()
    assert "There are *.incomplete files: a download was interrupted; started again, it goes on." in refusal(
        model
    )


BREAKAGES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "a pointer": (lambda _: b"version https://git-lfs\noid sha256:0\nsize 9\n", "a Git LFS pointer"),
    "a page": (lambda _: b"\n<!DOCTYPE html><html>Log in</html>", "a web page, not the file itself"),
    "an answer in XML": (lambda _: b'<?xml version="1.0"?><Error/>', "a web page, not the file itself"),
    "empty": (lambda _: b"", "empty"),
}
TENSOR_BREAKAGES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "without its last byte": (lambda whole: whole[:-1], "half downloaded: "),
    "cut off in its header": (lambda whole: whole[:50], "half downloaded: 50 bytes"),
    "cut off in its first bytes": (lambda whole: whole[:5], "not a safetensors file"),
    "with a byte too many": (lambda whole: whole + b"!", "too long: "),
    "a pickle": (lambda _: b"PK\x03\x04" + bytes(range(200)), "not a safetensors file"),
    "zeros": (lambda _: bytes(4000), "not a safetensors file"),
    "with a header that is no mapping": (lambda _: (2).to_bytes(8, "little") + b"[]", "not a safetensors"),
    "with offsets that are none": (
        lambda _: tiny_header('{"a": {"data_offsets": "x"}}'),
        "not a safetensors",
    ),
    "with offsets in disorder": (lambda _: tiny_header('{"a": {"data_offsets": [4, 2]}}'), "not a safetens"),
    "with a header too deep": (lambda _: tiny_header("[" * 100_000), "not a safetensors file"),
}


def tiny_header(text: str) -> bytes:
    return len(text).to_bytes(8, "little") + text.encode()


@pytest.mark.parametrize("breakage", BREAKAGES)
@pytest.mark.parametrize("name", [*NEEDED, "voices.tgz"])
def test_a_file_that_is_something_else_is_told_as_such(model: Path, name: str, breakage: str) -> None:
    spoil, reason = BREAKAGES[breakage]
    (model / name).write_bytes(spoil(b""))
    assert f"  - {name}: {reason}" in refusal(model)


@pytest.mark.parametrize("breakage", TENSOR_BREAKAGES)
@pytest.mark.parametrize("name", NEEDED[:2])
def test_a_weight_file_that_is_not_whole_is_found_by_its_header(
    model: Path, name: str, breakage: str
) -> None:
    spoil, reason = TENSOR_BREAKAGES[breakage]
    (model / name).write_bytes(spoil((model / name).read_bytes()))
    assert f"  - {name}: {reason}" in refusal(model)


@pytest.mark.parametrize("name", [*NEEDED, "config.json", "voices.tgz"])
def test_a_link_to_nothing_is_no_file(model: Path, name: str) -> None:
    (model / name).unlink(missing_ok=True)
    (model / name).symlink_to("../../blobs/gone")
    assert f"  - {name}: a link to a file that is not there" in refusal(model)


def test_a_folder_in_place_of_a_file_is_missing(model: Path) -> None:
    (model / TOKENIZER).unlink()
    (model / TOKENIZER).mkdir()
    assert f"  - {TOKENIZER}: missing" in refusal(model)


def test_a_file_that_may_not_be_read_is_named(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path.open

    def forbidden(path: Path, *rest: Any, **options: Any) -> Any:
        if path.name == MIMI:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *rest, **options)

    monkeypatch.setattr(Path, "open", forbidden)
    assert refusal(model) == f"{model / MIMI}: cannot be read: Permission denied"


# ---- shards ----


def shard(model: Path, *names: str) -> None:
    """Make the model a sharded one: the first shard is all of it, the others hold a tensor each."""
    (model / "model.safetensors").rename(model / names[0])
    for name in names[1:]:
        (model / name).write_bytes(safetensors({name: 8}))
    write_index(model, dict(enumerate(names)))


def write_index(model: Path, weight_map: object) -> None:
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_shards_are_found_through_the_index(model: Path) -> None:
    names = ("model-00002-of-00002.safetensors", "model-00001-of-00002.safetensors")
    shard(model, *names)
    assert open_checkpoint(str(model)).weights == tuple(model / name for name in sorted(names))


def test_one_whole_file_wins_over_an_index(model: Path) -> None:
    write_index(model, {"a": "gone.safetensors"})
    assert open_checkpoint(str(model)).weights == (model / "model.safetensors",)


def test_every_missing_or_broken_shard_is_listed(model: Path) -> None:
    shard(model, "a.safetensors", "b.safetensors", "c.safetensors")
    (model / "a.safetensors").unlink()
    (model / "c.safetensors").write_bytes(b"")
    message = refusal(model)
    assert "  - a.safetensors: missing" in message
    assert "  - c.safetensors: empty" in message
    assert "b.safetensors:" not in message


@pytest.mark.parametrize(
    "name",
    [
        "../x.safetensors",
        "/x.safetensors",
        "a/b.safetensors",
        "..\\x.safetensors",
        "x.bin",
        "*.safetensors",
        "",
    ],
)
def test_a_hostile_shard_name_is_refused(model: Path, name: str) -> None:
    shard(model, "a.safetensors")
    write_index(model, {"a": "a.safetensors", "b": name})
    message = refusal(model)
    assert f"refused: it names {[name]}, but shards must be plain *.safetensors names" in message


@pytest.mark.parametrize(
    "content", ["", "{}", "[]", '{"weight_map": []}', '{"weight_map": 1}', "[" * 100_000]
)
def test_an_index_that_is_none_is_refused(model: Path, content: str) -> None:
    (model / "model.safetensors").unlink()
    (model / "model.safetensors.index.json").write_text(content)
    assert "not an index of weights" in refusal(model)


def test_an_index_without_shards_is_refused(model: Path) -> None:
    (model / "model.safetensors").unlink()
    write_index(model, {})
    assert "refused: it names []" in refusal(model)


# ---- the notice ----


def test_a_notice_is_read_without_what_a_terminal_would_obey(model: Path) -> None:
    (model / "NOTICE.txt").write_bytes(
        "\n\x1b[31mUntrained:\x07 noise\nby design \u202e\n".encode() + b"\xff\n"
    )
    assert open_checkpoint(str(model)).notice == "[31mUntrained: noise\nby design \n\ufffd"


@pytest.mark.parametrize("content", ["", "\n \n"])
def test_an_empty_notice_is_none(model: Path, content: str) -> None:
    (model / "NOTICE.txt").write_text(content)
    assert open_checkpoint(str(model)).notice is None


# ---- the fingerprint ----


def test_the_same_files_elsewhere_have_the_same_fingerprint(model: Path) -> None:
    (model / "config.json").unlink()
    (model / "model.safetensors").touch()
    assert open_checkpoint(str(model)).fingerprint == open_checkpoint(str(GOLDEN)).fingerprint


def test_a_changed_small_file_changes_the_fingerprint(model: Path) -> None:
    before = open_checkpoint(str(model)).fingerprint
    for name in (MIMI, TOKENIZER):
        content = (model / name).read_bytes()
        assert len(content) < module.WHOLE_BYTES
        (model / name).write_bytes(content[:-1000] + bytes([content[-1000] ^ 1]) + content[-999:])
        after = open_checkpoint(str(model)).fingerprint
        assert after != before
        before = after


TENSORS = {f"t{index}": 100_000 + index for index in range(40)}


@pytest.mark.parametrize("index", range(40))
def test_a_change_where_any_tensor_begins_changes_the_fingerprint_of_a_big_file(
    tmp_path: Path, index: int
) -> None:
    begin = sum(list(TENSORS.values())[:index])
    path = tmp_path / "big.safetensors"
    path.write_bytes(safetensors(TENSORS))
    before = module.fingerprint([path])
    path.write_bytes(safetensors(TENSORS, change=begin))
    assert module.fingerprint([path]) != before


@pytest.mark.parametrize("place", [0, -1])
def test_the_first_and_last_byte_of_a_big_file_count(tmp_path: Path, place: int) -> None:
    path = tmp_path / "big.model"
    content = bytearray(2_000_000)
    path.write_bytes(content)
    before = module.fingerprint([path])
    content[place] = 1
    path.write_bytes(content)
    assert module.fingerprint([path]) != before


def test_another_tensor_name_or_size_changes_the_fingerprint_of_a_big_file(tmp_path: Path) -> None:
    found = set()
    for tensors in ({"a": 2_000_000}, {"b": 2_000_000}, {"a": 2_000_001}):
        path = tmp_path / "big.safetensors"
        path.write_bytes(safetensors(tensors))
        found.add(module.fingerprint([path]))
    assert len(found) == 3


def test_a_fingerprint_reads_little_of_a_big_file(tmp_path: Path) -> None:
    path = tmp_path / "sparse.safetensors"
    n_bytes = 20_000_000_000
    header = json.dumps({"a": {"dtype": "U8", "shape": [n_bytes], "data_offsets": [0, n_bytes]}}).encode()
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + n_bytes)
    _, offsets = module.sampled_places(path, path.stat().st_size)
    assert len(offsets) <= module.N_BLOCKS + 1
    assert len(module.fingerprint([path])) == 64


# ---- the Hub: a small one on this machine ----

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class FakeHub:
    """The two questions that a download asks: what is in a repository, and what is in a file."""

    folder: Path
    files_status: int = 200
    files_error: str = ""
    info_status: int = 200
    info_error: str = ""
    token: str = ""
    spoiled: dict[str, Callable[[BaseHTTPRequestHandler, bytes], None]] = field(default_factory=dict)
    """What is sent in place of a file, by its name. What is said about it stays right."""
    asked: list[str] = field(default_factory=list)
    url: str = ""

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        self.asked.append(f"{request.command} {request.path}")
        repository, _, name = request.path.partition(f"/resolve/{COMMIT}/")
        known = not self.token or request.headers.get("Authorization") == f"Bearer {self.token}"
        if request.path.startswith("/api/models/"):
            self.tell_files(request)
        elif not known:
            send(request, 401, b"", error="GatedRepo")
        elif repository != "/maker/small" or self.files_status != 200:
            send(request, self.files_status, b"", error=self.files_error)
        else:
            self.send_file(request, name, (self.folder / name).read_bytes())

    def send_file(self, request: BaseHTTPRequestHandler, name: str, content: bytes) -> None:
        """A file, or what is left of it."""
        spoil = self.spoiled.get(name) if request.command == "GET" else None
        if spoil is not None:
            spoil(request, content)
        elif (begin := request.headers.get("Range", "bytes=0-")) == "bytes=0-":
            send(request, 200, content, etag=etag_of(content))
        else:
            send(request, 206, content[int(begin[6:-1]) :], etag=etag_of(content))

    def tell_files(self, request: BaseHTTPRequestHandler) -> None:
        names = [
            path.relative_to(self.folder).as_posix() for path in self.folder.rglob("*") if path.is_file()
        ]
        info = {"id": "maker/small", "sha": COMMIT, "siblings": [{"rfilename": name} for name in names]}
        send(request, self.info_status, json.dumps(info).encode(), error=self.info_error)

    def downloaded(self) -> set[str]:
        """Names of the files whose contents were sent."""
        return {asked.partition(f"{COMMIT}/")[2] for asked in self.asked if asked.startswith("GET /maker")}


def etag_of(content: bytes) -> str:
    """As the Hub's large files have it."""
    return hashlib.sha256(content).hexdigest()


def send(
    request: BaseHTTPRequestHandler,
    status: int,
    content: bytes,
    *,
    error: str = "",
    etag: str = "",
    n_bytes: int | None = None,
) -> None:
    """An answer; `n_bytes` is the length that it promises, if not its own."""
    request.send_response(status)
    if error:
        request.send_header("X-Error-Code", error)
    request.send_header("X-Repo-Commit", COMMIT)
    request.send_header("ETag", f'"{etag or etag_of(content)}"')
    request.send_header("Content-Length", str(len(content) if n_bytes is None else n_bytes))
    request.end_headers()
    if request.command == "GET":
        request.wfile.write(content)


@pytest.fixture
def hub(model: Path) -> Iterator[FakeHub]:
    fake = FakeHub(model)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            fake.answer(self)

        do_HEAD = do_GET

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    fake.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield fake
    server.shutdown()
    server.server_close()
    thread.join()


SCRIPT = """
import json, sys, time
from pathlib import Path
import huggingface_hub.constants
from personaplex_cli.errors import ModelError
from personaplex_cli.model.checkpoint import open_checkpoint
name, revision = sys.argv[1], sys.argv[2] or None
# The Hub's library waits for longer and longer before it asks again, and writes 10 MB at a time.
time.sleep = lambda _: None
huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE = 1 << 16
try:
    opened = open_checkpoint(name, revision=revision)
    paths = [*opened.weights, opened.mimi, opened.tokenizer]
    result = {"folder": str(opened.folder), "fingerprint": opened.fingerprint, "notice": opened.notice,
              "files": [path.name for path in paths], "voices": opened.voices.names()}
except ModelError as error:
    assert error.exit_code == 2
    result = {"error": error.message}
print(json.dumps(result))
"""


def open_from(
    url: str,
    home: Path,
    *,
    name: str = "maker/small",
    revision: str = "",
    quiet: bool = True,
    **more: str,
) -> Any:
    """Open a model of the Hub at a URL in another process, since its address is read once a process."""
    kept = {
        key: value for key, value in os.environ.items() if "proxy" not in key.lower() and key[:3] != "HF_"
    }
    environment = {**kept, "HF_ENDPOINT": url, "HF_HOME": str(home), "XDG_CACHE_HOME": str(home), **more}
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT, name, revision],
        capture_output=True,
        text=True,
        env=environment,
        cwd=home.parent,
        timeout=60,
    )
    assert run.returncode == 0, run.stderr
    assert run.stderr == "" or not quiet, "nothing is shown where there is no terminal"
    return json.loads(run.stdout)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


CLOSED = "http://127.0.0.1:9"


def test_only_what_is_needed_is_downloaded_and_then_used_without_the_network(
    hub: FakeHub, home: Path
) -> None:
    needed = {path.relative_to(hub.folder).as_posix() for path in hub.folder.rglob("*") if path.is_file()}
    (hub.folder / "NOTICE.txt").write_text("Small.")
    for name in ("pytorch_model.bin", "other.safetensors", "README.md"):
        (hub.folder / name).write_bytes(b"not needed")
    opened = open_from(hub.url, home)
    assert hub.downloaded() == needed | {"NOTICE.txt"}
    assert opened["files"] == list(NEEDED)
    assert opened["voices"] == ["VOICE0"]
    assert opened["notice"] == "Small."
    assert opened["fingerprint"] == open_checkpoint(str(GOLDEN)).fingerprint

    hub.asked.clear()
    assert open_from(hub.url, home) == opened
    assert hub.downloaded() == set(), "a second run takes everything from the cache"
    hub.asked.clear()
    assert open_from(hub.url, home, HF_HUB_OFFLINE="1") == opened
    assert hub.asked == [], "HF_HUB_OFFLINE is honoured"
    assert open_from(CLOSED, home) == opened


def test_shards_an_archive_and_a_revision_are_downloaded(hub: FakeHub, home: Path, tmp_path: Path) -> None:
    shard(hub.folder, "model-1.safetensors", "model-2.safetensors")
    (hub.folder / "model-3.safetensors").write_bytes(b"not in the index")
    shutil.make_archive(str(tmp_path / "voices"), "gztar", hub.folder, "voices")
    shutil.move(tmp_path / "voices.tar.gz", hub.folder / "voices.tgz")
    shutil.rmtree(hub.folder / "voices")
    opened = open_from(hub.url, home, revision="v2")
    assert opened["files"] == ["model-1.safetensors", "model-2.safetensors", MIMI, TOKENIZER]
    assert opened["voices"] == ["VOICE0"]
    assert "model-3.safetensors" not in hub.downloaded()
    assert any("/revision/v2" in asked for asked in hub.asked)


def test_a_gated_repository_asks_for_the_licence_and_a_token(hub: FakeHub, home: Path) -> None:
    hub.token = "hf_secret"
    message = open_from(hub.url, home)["error"]
    assert message == (
        "maker/small: the Hub refuses the download (401). If the repository is gated, accept its licence on "
        "its page of the Hub; then log in with `hf auth login` or set HF_TOKEN "
        "(with a token that may read gated repositories)."
    )
    assert open_from(hub.url, home, HF_TOKEN="hf_secret")["files"] == list(NEEDED)


@pytest.mark.parametrize(
    ("status", "code", "reason"),
    [
        (403, "GatedRepo", "the Hub refuses the download (403). If the repository is gated, accept"),
        (403, "", "the Hub refuses the download (403)"),
        (401, "", "the Hub refuses the download (401)"),
        (404, "EntryNotFound", "the Hub answered 404; try again later"),
        (429, "", "the Hub answered 429; try again later"),
        (500, "", "the Hub answered 500; try again later"),
        (503, "", "the Hub answered 503; try again later"),
        (410, "", "the Hub answered 410; try again later, or name a directory"),
    ],
)
def test_a_refused_file_says_why(hub: FakeHub, home: Path, status: int, code: str, reason: str) -> None:
    hub.files_status, hub.files_error = status, code
    # What is worth another try is tried again, and that is shown.
    assert reason in open_from(hub.url, home, quiet=status not in (500, 503))["error"]


@pytest.mark.parametrize(
    ("status", "code", "reason"),
    [
        (
            401,
            "RepoNotFound",
            "no such directory, and no such repository on the Hub; if it is a private one, log",
        ),
        (404, "RepoNotFound", "no such directory, and no such repository on the Hub"),
        (404, "RevisionNotFound", "the repository has no revision 'v9'"),
        (403, "", "the Hub refuses the download (403)"),
        (429, "", "the Hub answered 429"),
        (500, "", "the Hub answered 500"),
        (503, "", "the Hub answered 503"),
    ],
)
def test_a_refused_repository_says_why(hub: FakeHub, home: Path, status: int, code: str, reason: str) -> None:
    hub.info_status, hub.info_error = status, code
    assert open_from(hub.url, home, revision="v9")["error"].startswith(f"maker/small: {reason}")


@pytest.mark.parametrize("offline", ["0", "1"])
def test_without_network_and_cache_a_directory_is_recommended(home: Path, offline: str) -> None:
    home.mkdir()
    message = open_from(CLOSED, home, HF_HUB_OFFLINE=offline)["error"]
    assert message.startswith(
        "maker/small: the Hub cannot be reached, and the model is not in its cache. Without a network, "
        "name a directory that holds the model's files. ("
    )


def test_a_name_that_the_hub_could_not_have_is_told_as_such(home: Path) -> None:
    home.mkdir()
    message = open_from(CLOSED, home, name="a--b/c")["error"]
    assert message == "a--b/c: no such directory, and no name that the Hub could have"


def test_a_proxy_s_page_in_place_of_an_answer_is_no_traceback(hub: FakeHub, home: Path) -> None:
    hub.tell_files = lambda request: send(request, 200, b"<html>Log in</html>")  # type: ignore[method-assign]
    assert "the Hub cannot be reached" in open_from(hub.url, home)["error"]


def test_a_repository_that_lacks_files_is_told_with_all_names(hub: FakeHub, home: Path) -> None:
    (hub.folder / MIMI).unlink()
    (hub.folder / "model.safetensors").unlink()
    lines = open_from(hub.url, home)["error"].splitlines()
    assert lines[0].startswith("maker/small (")
    assert lines[1:3] == ["  - model.safetensors: missing", f"  - {MIMI}: missing"]
    assert lines[-1].startswith("Run again with the network: what is missing will be downloaded")


def test_a_broken_file_in_the_cache_names_the_repair(hub: FakeHub, home: Path) -> None:
    folder = Path(open_from(hub.url, home)["folder"])
    weights = (folder / "model.safetensors").resolve()
    weights.write_bytes(weights.read_bytes()[:-1])
    message = open_from(hub.url, home, HF_HUB_OFFLINE="1")["error"]
    assert "  - model.safetensors: half downloaded: 1,397,855 bytes, its header promises 1,397,856" in message
    assert "`hf download maker/small FILE --force-download` does both" in message


def test_an_unwritable_hub_cache_is_told_as_such(hub: FakeHub, home: Path, tmp_path: Path) -> None:
    home.mkdir()
    blocked = tmp_path / "blocked"
    blocked.write_bytes(b"")
    message = open_from(hub.url, home, HF_HOME=str(blocked))["error"]
    assert message.startswith("maker/small: the Hub's cache cannot be written (")
    assert str(blocked) in message


def cut_off(request: BaseHTTPRequestHandler, content: bytes) -> None:
    """The connection is closed in mid-file."""
    send(request, 200, content[: len(content) // 2], n_bytes=len(content))


def other_bytes(request: BaseHTTPRequestHandler, content: bytes) -> None:
    """As many bytes, but one of them is another one."""
    send(request, 200, content[:-1] + bytes([content[-1] ^ 1]))


def a_page(request: BaseHTTPRequestHandler, _: bytes) -> None:
    """What a proxy has to say."""
    send(request, 200, b"<!DOCTYPE html><html>Log in</html>")


def too_much(request: BaseHTTPRequestHandler, content: bytes) -> None:
    """More than was announced."""
    send(request, 200, content + b"more")


def around(request: BaseHTTPRequestHandler, _: bytes = b"") -> None:
    """Go and ask yourself."""
    request.send_response(302)
    request.send_header("Location", request.path)
    request.send_header("Content-Length", "0")
    request.end_headers()


def silence(request: BaseHTTPRequestHandler, _: bytes) -> None:
    """Nothing, until the other side is tired of it."""
    request.rfile.read(1)


BROKEN_OFF = "the connection broke off or stalled; run again, and the download goes on"
DAMAGED = "the download arrived damaged and was removed; run again."


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (cut_off, BROKEN_OFF),
        (silence, BROKEN_OFF),
        (other_bytes, DAMAGED),
        (a_page, DAMAGED),
        (too_much, DAMAGED),
        (around, "the Hub answered 302; try again later"),
    ],
)
def test_a_download_that_goes_wrong_is_told_and_the_next_run_completes_it(
    hub: FakeHub, home: Path, spoil: Callable[[BaseHTTPRequestHandler, bytes], None], reason: str
) -> None:
    hub.spoiled["model.safetensors"] = spoil
    message = open_from(hub.url, home, quiet=spoil is not silence, HF_HUB_DOWNLOAD_TIMEOUT="1")
    assert message["error"].startswith(f"maker/small: {reason}")
    assert "\n  - model.safetensors: " in open_from(CLOSED, home)["error"], "a part is no whole"

    hub.spoiled.clear()
    hub.asked.clear()
    opened = open_from(hub.url, home)
    assert opened["fingerprint"] == open_checkpoint(str(GOLDEN)).fingerprint
    assert hub.downloaded() == {"model.safetensors"}, "what had arrived is not asked for again"


def test_an_interrupted_download_goes_on_where_it_stopped(hub: FakeHub, home: Path) -> None:
    hub.spoiled["model.safetensors"] = cut_off
    assert BROKEN_OFF in open_from(hub.url, home)["error"]
    sent: list[int] = []

    def rest(request: BaseHTTPRequestHandler, content: bytes) -> None:
        begin = int(request.headers["Range"].removeprefix("bytes=").removesuffix("-"))
        sent.append(len(content) - begin)
        send(request, 206, content[begin:])

    hub.spoiled["model.safetensors"] = rest
    assert open_from(hub.url, home)["fingerprint"] == open_checkpoint(str(GOLDEN)).fingerprint
    n_bytes = (GOLDEN / "model.safetensors").stat().st_size
    assert sent == [n_bytes - n_bytes // 2 // (1 << 16) * (1 << 16)]


def test_a_damaged_file_among_the_small_ones_is_noticed_too(hub: FakeHub, home: Path) -> None:
    hub.spoiled[TOKENIZER] = other_bytes
    assert open_from(hub.url, home)["error"].startswith(f"maker/small: {DAMAGED}")
    hub.spoiled.clear()
    assert open_from(hub.url, home)["fingerprint"] == open_checkpoint(str(GOLDEN)).fingerprint


def test_questions_that_lead_in_a_circle_end(hub: FakeHub, home: Path) -> None:
    hub.tell_files = around  # type: ignore[method-assign]
    assert "the Hub answered 302; try again later" in open_from(hub.url, home)["error"]


# ---- other models ----


@pytest.mark.parametrize(
    "tensors",
    [
        ["model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight", "lm_head.weight"],
        ["encoder.model.0.conv.conv.weight", "quantizer.rvq_first.input_proj.weight"],
        [],
    ],
    ids=["a Llama", "a codec", "nothing"],
)
def test_weights_of_another_kind_of_model_are_told_in_one_line(model: Path, tensors: list[str]) -> None:
    (model / "model.safetensors").write_bytes(safetensors(dict.fromkeys(tensors, 8)))
    lines = refusal(model).splitlines()
    some = ", ".join(sorted(tensors))
    assert lines[1] == (
        f"  - model.safetensors: another model's weights: of {len(tensors)} tensors ({some}...) "
        "none is PersonaPlex's"
    )
    assert lines[-1].startswith("Download it again (the published model: `hf download ")


def test_the_codecs_file_in_the_weights_place_is_told(model: Path) -> None:
    shutil.copy(model / MIMI, model / "model.safetensors")
    assert "model.safetensors: another model's weights: " in refusal(model)


def test_a_truncated_shard_is_told_by_its_name(model: Path) -> None:
    shard(model, "model-1.safetensors", "model-2.safetensors")
    whole = (model / "model-1.safetensors").read_bytes()
    (model / "model-1.safetensors").write_bytes(whole[:-1000])
    message = refusal(model)
    assert f"  - model-1.safetensors: half downloaded: {len(whole) - 1000:,} bytes" in message
    assert "model-2.safetensors:" not in message
