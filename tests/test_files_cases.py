"""The table "Files and folders" at the command line: what goes wrong for people, and what they get."""

from __future__ import annotations

import json
import os
import shutil
import socket
import threading
import unicodedata
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from personaplex_cli.audio.pcm import Recording
from personaplex_cli.files import spool
from tests.helpers import (
    DUMP,
    converted,
    log_of,
    names_in,
    outputs_in,
    personaplex,
    program,
    record,
    record_all,
    sound,
    tokens_in,
)

QUICK = ("--batch-size", 2, "--quiet")


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    """A folder with one good recording, a.wav."""
    record(tmp_path / "in" / "a.wav", 0.1)
    return tmp_path / "in"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def fails(*arguments: object, code: int) -> str:
    """What `personaplex convert` says on standard error when it ends with `code`."""
    result = personaplex("convert", *arguments, *QUICK)
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    return result.stderr


def statuses(folder: Path) -> dict[str, str]:
    return {line["source"]: line["status"] for line in log_of(folder)}


def reasons(folder: Path) -> dict[str, str]:
    return {line["source"]: line["reason"] for line in log_of(folder) if line["status"] == "failed"}


def files_of(*stems: str) -> list[str]:
    """What an output folder holds when these have their replies."""
    return sorted([*(stem + suffix for stem in stems for suffix in (".json", DUMP, ".wav")), "run.jsonl"])


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in names_in(folder)}


# ---- what is refused before anything starts ----


@pytest.mark.usefixtures("no_model")
@pytest.mark.parametrize("below", ["", "deeper/still"])
def test_an_output_folder_that_is_a_file_is_refused(inputs: Path, out: Path, below: str) -> None:
    out.write_text("mine")
    assert fails(inputs, out / below, code=2) == (
        f"error: nothing was converted, because\n  - {out}: a file; outputs need a folder\n"
    )
    assert out.read_text() == "mine"


@pytest.mark.usefixtures("no_model")
def test_an_output_folder_that_leads_nowhere_is_refused(inputs: Path, out: Path) -> None:
    out.symlink_to("nowhere")
    assert f"{out}: a link to nothing; outputs need a folder" in fails(inputs, out, code=2)
    assert not (out.parent / "nowhere").exists()


@pytest.mark.usefixtures("no_model")
def test_an_output_folder_that_may_not_be_written_is_refused(
    inputs: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out.mkdir()
    monkeypatch.setattr(os, "access", lambda path, _: Path(path) != out)  # Root may write anywhere.
    assert f"{out}: not permitted to write there; choose another folder" in fails(inputs, out, code=2)
    assert names_in(out) == []


@pytest.mark.usefixtures("no_model")
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("a.wav", "a.flac"),
        ("b.wav", "B.wav"),
        (unicodedata.normalize("NFC", "é.wav"), unicodedata.normalize("NFD", "é.wav")),
    ],
    ids=["suffix", "case", "unicode"],
)
def test_two_names_for_one_output_are_refused_by_name(inputs: Path, out: Path, one: str, other: str) -> None:
    for name in (one, other):
        (inputs / name).write_bytes(b"sound")
    if len(list(inputs.iterdir())) < 2:
        pytest.skip("this file system takes the two names for one")
    said = fails(inputs, out, code=2)
    assert str(inputs / one) in said
    assert str(inputs / other) in said
    assert "would both be written to" in said
    assert not out.exists()


@pytest.mark.usefixtures("no_model")
def test_one_name_from_two_sources_is_refused_by_name(inputs: Path, out: Path) -> None:
    x, y = record(inputs / "x" / "a.wav", 0.1), record(inputs / "y" / "a.wav", 0.1)
    wanted = f"{x} and {y} would both be written to {out / 'a.wav'}"
    for sources in ([x, y], [inputs / "x", inputs / "y"], [inputs / "x", y]):
        assert wanted in fails(*sources, out, code=2)
    assert f"{x} and {x} would both be written" in fails(x, x, out, code=2)
    assert not out.exists()


@pytest.mark.usefixtures("no_model")
@pytest.mark.parametrize("nothing", ["empty", "others", "list", "input"])
def test_finding_nothing_says_where_was_looked(tmp_path: Path, out: Path, nothing: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "a.mp4").touch()
    (tmp_path / "list.jsonl").touch()
    source, told = {
        "empty": (tmp_path / "empty", "no file in it or below ends in"),
        "others": (tmp_path / "others", "left out: 1 of other kinds, 0 from earlier runs"),
        "list": (tmp_path / "list.jsonl", "list.jsonl: no rows in it"),
        "input": ("-", "standard input: no paths in it"),
    }[nothing]
    said = fails(source, out, code=2)
    assert said.startswith("error: no recordings found\n  - ")
    assert told in said
    assert not out.exists()


MANY_FAULTS = """\
{"path": "in/a.wav"}
{"path": "in/none.wav", "seed": "seven"}
{"path": "in/a.wav", "voice_prompt": "voices/none.wav"}
{"path": "in/a.wav", "output": "../climbs"}
{"path": "in/a.wav", "vioce_prompt": "NATF2"}
[1]
{"path": "in/a.wav",
{"path": "in/b.wav", "output": "a"}
"""


@pytest.mark.usefixtures("no_model")
def test_all_faults_of_a_batch_are_told_in_one_message_before_any_work(
    inputs: Path, out: Path, tmp_path: Path
) -> None:
    record(inputs / "b.wav", 0.1)
    record(inputs / "b.flac", 0.1)
    (inputs / "dangling.wav").symlink_to("nowhere")
    listed, table = tmp_path / "list.jsonl", tmp_path / "table.csv"
    listed.write_text(MANY_FAULTS)
    table.write_text("path,sede\nin/a.wav,1\nin/none.flac,2\n")
    out.write_text("mine")
    said = fails(
        tmp_path / "gone.wav", "", inputs / "dangling.wav", inputs, listed, table, out / "new", code=2
    )
    headline, *faults = said.splitlines()
    assert headline == "error: nothing was converted, because"
    begins = [
        f"{out}: a file; outputs need a folder",
        f"{tmp_path / 'gone.wav'}: No such file or directory",
        "a source is empty; to take this folder, write .",
        f"{inputs / 'dangling.wav'}: a link to nothing",
        f"{listed} line 2: path: {inputs / 'none.wav'}: no such file",
        f'{listed} line 2: seed: "seven" is not an integer',
        f"{listed} line 3: voice_prompt: {tmp_path / 'voices/none.wav'}: no such file",
        f'{listed} line 4: output: "../climbs" leads out of the output folder',
        f"{listed} line 5: unknown column vioce_prompt; did you mean voice_prompt?",
        f"{listed} line 6: not an object",
        f"{listed} line 7: not JSON: ",
        f"{table} line 1: unknown column sede; did you mean seed?",
        f"{table} line 3: path: {inputs / 'none.flac'}: no such file",
        f"{inputs / 'a.wav'} and {listed} line 8 would both be written to {out / 'new' / 'a.wav'}",
        f"{inputs / 'b.flac'} and {inputs / 'b.wav'} would both be written to {out / 'new' / 'b.wav'}",
    ]
    for begin in begins:
        assert any(fault.startswith(f"  - {begin}") for fault in faults), begin
    assert out.read_text() == "mine"


@pytest.mark.usefixtures("no_model")
def test_a_manifest_is_refused_with_every_line_that_is_wrong(inputs: Path, out: Path) -> None:
    record(inputs / "b.wav", 0.1)
    lines = [
        '{"path": "a.wav"}',
        '{"path": "b.wav", "colour": "red"}',
        '{"path": "gone.wav"}',
        '{"path": "b.wav", "output": "A"}',
        '{"path": "b.wav", "output": "../../b"}',
        '{"path": "b.wav", "output": "/b"}',
        '{"path": "b.wav", seed: 1}',
        '{"path": "b.wav", "output": "fine"}',
    ]
    listed = inputs / "list.jsonl"
    listed.write_text("\n".join(lines))
    said = fails(listed, out, code=2)
    told = [line.removeprefix(f"  - {listed} line ") for line in said.splitlines()[1:]]
    assert [fault[:12] for fault in told] == [
        "2: unknown c",
        "3: path: " + str(inputs)[:3],
        '5: output: "',
        '6: output: "',
        "7: not JSON:",
        "1 and " + str(listed)[:6],
    ]
    assert f"1 and {listed} line 4 would both be written to {out / 'a.wav'}" in told[-1]
    assert not out.exists()


# ---- folders ----


def test_folders_that_all_hold_an_input_wav_are_mirrored(tmp_path: Path, out: Path) -> None:
    """Full-Duplex-Bench's layout."""
    for number in (1, 2, 10):
        record(tmp_path / "in" / str(number) / "input.wav", 0.1, seed=number)
        (tmp_path / "in" / str(number) / "metadata.json").write_text("{}")
    converted(tmp_path / "in", out, *QUICK)
    assert names_in(out) == files_of("1/input", "2/input", "10/input")
    assert statuses(out) == dict.fromkeys(["1/input.wav", "2/input.wav", "10/input.wav"], "converted")
    for number in (1, 2, 10):
        transcript = json.loads((out / str(number) / "input.json").read_text())
        assert transcript["source"] == f"{number}/input.wav"
    assert len({(out / str(number) / "input.wav").read_bytes() for number in (1, 2, 10)}) == 3


def test_an_output_folder_inside_the_input_can_be_used_again(inputs: Path) -> None:
    record(inputs / "b" / "c.wav", 0.1)
    before = contents(inputs)
    for status in ("converted", "skipped"):
        converted(inputs, inputs / "out", *QUICK)
        lines = log_of(inputs / "out")[-2:]
        assert {line["source"]: line["status"] for line in lines} == {"a.wav": status, "b/c.wav": status}
    assert len(log_of(inputs / "out")) == 4
    assert names_in(inputs / "out") == files_of("a", "b/c")
    assert {name: contents(inputs)[name] for name in before} == before


def test_replies_beside_their_recordings_are_not_answered_in_turn(inputs: Path) -> None:
    (inputs / "a.wav").rename(inputs / "unused.txt")
    record(inputs / "b.flac", 0.1)
    before = contents(inputs)
    for status in ("converted", "skipped"):
        converted(inputs, inputs, *QUICK)
        assert [(line["source"], line["status"]) for line in log_of(inputs)][-1:] == [("b.flac", status)]
    assert names_in(inputs) == sorted([*files_of("b"), "b.flac", "unused.txt"])
    assert {name: contents(inputs)[name] for name in before} == before


@pytest.mark.usefixtures("no_model")
@pytest.mark.parametrize("overwrite", [(), ("--overwrite",)])
def test_a_recording_is_never_overwritten_even_if_that_is_asked_for(
    inputs: Path, overwrite: tuple[str, ...]
) -> None:
    before = contents(inputs)
    said = fails(inputs, inputs, *overwrite, code=2)
    assert f"{inputs / 'a.wav'}: an input would be overwritten; choose another output folder" in said
    assert contents(inputs) == before


def clutter(folder: Path) -> list[str]:
    """Everything that a scan must pass over. -> the names"""
    names = ["._a.wav", ".hidden.wav", ".DS_Store", "__MACOSX/b.wav", ".git/c.wav", "notes.txt", "film.mp4"]
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"not audio")
    with zipfile.ZipFile(folder / "more.zip", "w") as archive:
        archive.write(folder / "a.wav", "d.wav")
    return [*names, "more.zip"]


def test_a_scan_passes_over_what_is_no_recording(inputs: Path, out: Path) -> None:
    clutter(inputs)
    converted(inputs, out, *QUICK)
    assert statuses(out) == {"a.wav": "converted"}
    assert names_in(out) == files_of("a")


def test_what_is_named_is_tried(inputs: Path, out: Path) -> None:
    names = clutter(inputs)
    shutil.copy(inputs / "a.wav", inputs / "really.txt")
    shutil.copy(inputs / "a.wav", inputs / "._really")
    said = fails(*(inputs / name for name in [*names, "really.txt"]), out, code=1)
    assert sorted(reasons(out)) == sorted(Path(name).name for name in names)
    assert all("not audio that can be read" in reason for reason in reasons(out).values())
    assert said.count("failed: ") == len(names)
    assert names_in(out) == files_of("really")
    converted(inputs / "._really", out.with_name("other"), *QUICK)
    assert names_in(out.with_name("other")) == files_of("._really")


def test_links_end_and_a_dangling_one_fails_alone(inputs: Path, out: Path) -> None:
    record(inputs.parent / "elsewhere" / "b.wav", 0.1, seed=2)
    for name, leads_to in {
        "up": inputs,
        "self": inputs / "self",
        "self.wav": inputs / "self.wav",
        "far": inputs.parent / "elsewhere",
        "far_again": inputs.parent / "elsewhere",
        "twin.wav": inputs / "a.wav",
        "dangling.wav": inputs / "nowhere.wav",
    }.items():
        (inputs / name).symlink_to(leads_to)
    fails(inputs, out, code=1)
    done = dict.fromkeys(["a.wav", "twin.wav", "far/b.wav"], "converted")
    assert statuses(out) == {**done, "dangling.wav": "failed", "self.wav": "failed"}
    assert f"{inputs / 'dangling.wav'}: no such file" in reasons(out)["dangling.wav"]
    assert f"{inputs / 'self.wav'}: " in reasons(out)["self.wav"]
    assert names_in(out) == files_of("a", "twin", "far/b")
    twins = [tokens_in(out / f"{stem}{DUMP}")["user"].tolist() for stem in ("a", "twin")]
    assert twins[0] == twins[1]


def test_what_is_no_file_is_passed_over_in_scans(
    inputs: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(inputs / "pipe.wav")
    (inputs / "zero.wav").symlink_to("/dev/zero")
    (inputs / "null.wav").symlink_to("/dev/null")
    (inputs / "folder.wav").mkdir()
    monkeypatch.chdir(inputs)  # A socket's path must be short.
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket.wav")
        converted(inputs, out, *QUICK)
    assert statuses(out) == {"a.wav": "converted"}


def test_what_is_no_file_and_named_is_tried_or_fails_alone(
    inputs: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool, "LONGEST_PIPE_BYTES", 1 << 20)
    monkeypatch.chdir(inputs)
    os.mkfifo("pipe.wav")
    content = (inputs / "a.wav").read_bytes()
    writer = threading.Thread(target=Path("pipe.wav").write_bytes, args=[content], daemon=True)
    writer.start()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("s.wav")
        fails("a.wav", "pipe.wav", "s.wav", "/dev/null", "/dev/zero", out, code=1)
    writer.join(10)
    assert {name: reason.partition(": ")[2] for name, reason in reasons(out).items() if name != "null"} == {
        "s.wav": "a socket, which cannot be read as a file; give a file or a pipe",
        "zero": "does not end: more than 0.0 GiB came from it; save what you need to a file",
    }
    assert "no audio: the file is empty" in reasons(out)["null"]
    assert names_in(out) == files_of("a", "pipe")
    assert tokens_in(out / f"a{DUMP}")["user"].tolist() == tokens_in(out / f"pipe{DUMP}")["user"].tolist()


def test_what_a_shell_hands_over_by_number_is_a_recording(inputs: Path, out: Path) -> None:
    """`<(...)` is a pipe under /dev/fd."""
    reading, writing = os.pipe()
    os.write(writing, (inputs / "a.wav").read_bytes())
    os.close(writing)
    converted(f"/dev/fd/{reading}", out, *QUICK)
    os.close(reading)
    assert statuses(out) == {str(reading): "converted"}
    assert soundfile.info(out / f"{reading}.wav").frames == 2400


def test_a_folder_named_like_a_recording_is_a_folder(inputs: Path, out: Path) -> None:
    record(inputs / "x.wav" / "b.wav", 0.1)
    converted(inputs, out, *QUICK)
    assert names_in(out) == files_of("a", "x.wav/b")
    converted(inputs / "x.wav", out.with_name("other"), *QUICK)
    assert names_in(out.with_name("other")) == files_of("b")


# ---- names ----

NAMES = [
    b"with  spaces .wav",
    "\N{ROBOT FACE}\u200d\N{SNOWMAN}.wav".encode(),
    b"two\nlines\r.wav",
    b"-x.wav",
    b"--help.wav",
    b"\xff\xfe\xed\xa0\x80.wav",
    b'tab\tquote"back\\slash.wav',
    b"\x1b[31mred.wav",
    b"e\xcc\x81.wav",
    b"UPPER.WAV",
    b"%s{}~*?.wav",
    b"a" * 236 + b".wav",
]


@pytest.fixture
def oddly_named(tmp_path: Path) -> Path:
    """A folder with one recording under many names."""
    folder = tmp_path / "odd"
    plain = record(tmp_path / "plain.wav", 0.1)
    folder.mkdir()
    for name in NAMES:
        shutil.copy(plain, folder / os.fsdecode(name))
    return folder


def names_as_bytes(folder: Path) -> list[bytes]:
    """What stands in a folder, as the system tells it."""
    return sorted(entry.name for entry in os.scandir(os.fsencode(folder)))


def odd_outputs() -> list[bytes]:
    suffixes = (b".wav", b".json", DUMP.encode())
    return sorted([*(name[:-4] + suffix for name in NAMES for suffix in suffixes), b"run.jsonl"])


def test_names_survive_byte_for_byte_in_outputs_log_and_transcript(oddly_named: Path, out: Path) -> None:
    converted(oddly_named, out, "--batch-size", 8, "--quiet")
    assert names_as_bytes(out) == odd_outputs()
    lines = log_of(out)
    assert {os.fsencode(line["source"]) for line in lines} == set(NAMES)
    assert {os.fsencode(name) for line in lines for name in line["outputs"]} == {*odd_outputs()} - {
        b"run.jsonl"
    }
    for line in lines:
        transcript = json.loads((out / line["outputs"][2]).read_text(encoding="utf-8"))
        assert transcript["source"] == line["source"]


def test_names_survive_byte_for_byte_as_arguments_and_in_json_lines(oddly_named: Path, out: Path) -> None:
    sources = [oddly_named / os.fsdecode(name) for name in names_as_bytes(oddly_named)]
    ended = program("convert", *sources, out, "--batch-size", 8, "--json")
    assert ended.returncode == 0, ended.stderr
    lines = [json.loads(line) for line in ended.stdout.decode("utf-8").split("\n") if line]
    assert {os.fsencode(line["source"]) for line in lines} == {*NAMES}
    assert lines == log_of(out)
    assert names_as_bytes(out) == odd_outputs()


def test_a_leading_dash_is_a_name_after_two_dashes_or_with_a_folder(
    inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (inputs / "a.wav").rename(inputs / "-x.wav")
    monkeypatch.chdir(inputs)
    assert "No such option: -x" in fails("-x.wav", tmp_path / "1", code=2)
    converted("./-x.wav", tmp_path / "2", *QUICK)
    converted(*QUICK, "--", "-x.wav", tmp_path / "3")
    assert names_in(tmp_path / "2") == names_in(tmp_path / "3") == files_of("-x")
    assert outputs_in(tmp_path / "2") == outputs_in(tmp_path / "3")


def test_a_recording_that_is_named_by_its_suffix_alone_is_answered(inputs: Path, out: Path) -> None:
    (inputs / "a.wav").rename(inputs / ".wav")
    converted(inputs / ".wav", out, *QUICK)
    assert names_in(out) == files_of(".wav")
    assert statuses(out) == {".wav": "converted"}


@pytest.mark.parametrize(("n_bytes", "fits"), [(240, True), (241, False), (255, False)])
def test_a_name_of_255_bytes_works_or_fails_alone(inputs: Path, out: Path, n_bytes: int, fits: bool) -> None:
    name = "x" * (n_bytes - 6) + "é.wav"
    assert len(os.fsencode(name)) == n_bytes
    shutil.copy(inputs / "a.wav", inputs / name)
    if fits:
        converted(inputs, out, *QUICK)
        assert names_in(out) == files_of("a", name[:-4])
    else:
        fails(inputs, out, code=1)
        assert list(reasons(out)) == [name]
        assert f"the output name would be too long, {n_bytes + 15} bytes of at most 255" in reasons(out)[name]
        assert names_in(out) == files_of("a")


# ---- files that change, and files that spoil a batch ----


def test_a_file_that_changes_while_it_is_read_fails_alone(
    tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = record_all(tmp_path / "in", [0.3, 0.2, 0.1])
    blocks = Recording.blocks

    def blocks_while_a_recorder_goes_on(self: Any) -> Any:
        yield from blocks(self)
        if self.path.name == "001.wav":
            with self.path.open("ab") as file:
                file.write(bytes(4800))

    monkeypatch.setattr(Recording, "blocks", blocks_while_a_recorder_goes_on)
    fails(source, out, code=1)
    assert reasons(out) == {
        "001.wav": f"{source / '001.wav'}: changed while it was read; run again when nobody writes to it"
    }
    assert names_in(out) == files_of("000", "002")


def test_files_that_spoil_a_batch_leave_their_neighbours_bytes_as_they_are(
    tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool, "LONGEST_PIPE_BYTES", 1 << 20)
    source = record_all(tmp_path / "in", [0.3, 0.2, 0.25])
    converted(source, out, *QUICK)
    samples = sound(0.28, seed=9)
    samples[3000] = np.nan
    soundfile.write(source / "nan.wav", samples, 24000, "FLOAT")
    (source / "text.wav").write_text("no audio")
    pipe = tmp_path / "endless.wav"
    os.mkfifo(pipe)

    def write_without_end() -> None:
        with suppress(BrokenPipeError), pipe.open("wb", buffering=0) as file:
            while file.write(bytes(1 << 16)):
                pass

    writer = threading.Thread(target=write_without_end, daemon=True)
    writer.start()
    spoilt = out.with_name("spoilt")
    said = fails(source, pipe, spoilt, code=1)
    writer.join(10)
    assert not writer.is_alive()
    assert outputs_in(spoilt) == outputs_in(out)
    assert sorted(reasons(spoilt)) == ["endless.wav", "nan.wav", "text.wav"]
    assert said.count("failed: ") == 3
    assert f"failed: {pipe}: does not end: more than 0.0 GiB came from it" in said
