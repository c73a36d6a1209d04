"""Manifests: every row is read as written, and every fault is told with its line."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from personaplex_cli.files.manifest import Manifest, Row, read_manifest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a.wav", "sub/b.flac", "voice.pt", "voices/v.wav"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"sound")
    return tmp_path


def read(folder: Path, content: str | bytes, name: str = "list.jsonl") -> Manifest:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_manifest(path)


def row(folder: Path, **cells: object) -> Manifest:
    return read(folder, json.dumps({"path": "a.wav", **cells}))


def faults(manifest: Manifest) -> list[str]:
    return [fault.partition(" line ")[2] for fault in manifest.faults]


def test_jsonl_rows_are_read_with_their_lines(folder: Path) -> None:
    found = read(
        folder, '{"path": "a.wav"}\n\n  \r\n{"path": "./sub/b.flac", "seed": -3, "voice_prompt": null}\n'
    )
    assert found == Manifest(
        (
            Row(1, folder / "a.wav", "a.wav", "a"),
            Row(4, folder / "sub/b.flac", "sub/b.flac", "sub/b", seed=-3),
        ),
        (),
    )


def test_csv_says_the_same_as_jsonl(folder: Path) -> None:
    text = (
        "\ufeffpath, seed ,text_prompt,channel,output\r\n"
        'a.wav,5,"Be brief,\nplease.",mix,x/y.wav\r\n'
        ",,,,\r\n"
        "sub/b.flac,,,0\r\n"
    )
    found = read(folder, text, "LIST.CSV")
    assert found.faults == ()
    assert found.rows == (
        Row(2, folder / "a.wav", "a.wav", "x/y", role="Be brief,\nplease.", seed=5, channel="mix"),
        Row(5, folder / "sub/b.flac", "sub/b.flac", "sub/b", channel="0"),
    )


def test_a_line_separator_inside_a_string_ends_no_line(folder: Path) -> None:
    text = "Be\u2028brief."
    assert (
        read(folder, json.dumps({"path": "a.wav", "text_prompt": text}, ensure_ascii=False)).rows[0].role
        == text
    )
    assert read(folder, f"path,text_prompt\na.wav,{text}", "list.csv").rows[0].role == text


def test_outputs_mirror_relative_paths_only(folder: Path) -> None:
    (folder / "lists").mkdir()
    found = read(folder / "lists", f'{{"path": "../sub/b.flac"}}\n{{"path": "{folder}/a.wav"}}')
    assert [(each.place, each.name) for each in found.rows] == [
        ("b", "../sub/b.flac"),
        ("a", f"{folder}/a.wav"),
    ]


@pytest.mark.parametrize(
    ("output", "place"),
    [("x", "x"), ("x.wav", "x"), ("d/x.WAV", "d/x"), ("./d//x.y", "d/x.y"), (".wav", ".wav"), ("", "a")],
)
def test_an_output_may_be_named_with_or_without_suffix(folder: Path, output: str, place: str) -> None:
    assert [each.place for each in row(folder, output=output).rows] == [place]


@pytest.mark.parametrize("output", ["../x", "d/../../x", "/x", "C:\\x", "..\\x", "d/..", "."])
def test_an_output_that_climbs_out_is_refused(folder: Path, output: str) -> None:
    (fault,) = faults(row(folder, output=output))
    assert fault.startswith("1: output: ")


def test_an_empty_role_is_a_role_in_jsonl_and_no_choice_in_csv(folder: Path) -> None:
    assert row(folder, text_prompt="").rows[0].role == ""
    assert read(folder, "path,text_prompt\na.wav,\n", "list.csv").rows[0].role is None


def test_a_voice_path_is_relative_to_the_manifest(folder: Path) -> None:
    assert row(folder, voice_prompt="voices/v.wav").rows[0].voice == str(folder / "voices/v.wav")
    assert row(folder, voice_prompt="voice.pt").rows[0].voice == str(folder / "voice.pt")


def test_a_bare_voice_name_is_left_to_the_model(folder: Path) -> None:
    assert [row(folder, voice_prompt=name).rows[0].voice for name in ("NATF2", "NATF2.pt")] == [
        "NATF2",
        "NATF2.pt",
    ]


@pytest.mark.parametrize(
    ("cells", "fault"),
    [
        ({"path": "none.wav"}, "path: {}/none.wav: no such file"),
        ({"path": "sub"}, "path: {}/sub: a folder; a row names one file"),
        ({"path": " "}, "path: missing; every row names a file"),
        ({"path": None}, "path: missing; every row names a file"),
        ({"path": 3}, "path: 3 is not a text"),
        ({"path": "a\0.wav"}, 'path: "a\\u0000.wav" holds a NUL character'),
        ({"path": "\ud800.wav"}, 'path: "\\ud800.wav" cannot be written as a file name'),
        ({"path": "x" * 300}, "path: {}/" + "x" * 300 + ": no such file"),
        ({"seed": "7"}, 'seed: "7" is not an integer'),
        ({"seed": 7.0}, "seed: 7.0 is not an integer"),
        ({"seed": True}, "seed: true is not an integer"),
        ({"text_prompt": ["x"]}, 'text_prompt: ["x"] is not a text'),
        ({"voice_prompt": 1}, "voice_prompt: 1 is not a text"),
        ({"voice_prompt": "none.wav"}, "voice_prompt: {}/none.wav: no such file"),
        ({"voice_prompt": "no/v.pt"}, "voice_prompt: {}/no/v.pt: no such file"),
        ({"channel": "left"}, 'channel: "left" is neither mix nor a number from 0 on'),
        ({"channel": -1}, "channel: -1 is neither mix nor a number from 0 on"),
        ({"sede": 1}, "unknown column sede; did you mean seed?"),
        ({"zzz": 1}, "unknown column zzz; there are path, voice_prompt, text_prompt, seed, output, channel"),
    ],
)
def test_each_fault_is_told_with_its_line(folder: Path, cells: dict[str, object], fault: str) -> None:
    assert faults(row(folder, **cells)) == [f"1: {fault.replace('{}', str(folder))}"]


def test_all_faults_of_a_file_are_told(folder: Path) -> None:
    lines = ['{"path": "a.wav"}'] * 6 + ["{bad json", "3", '{"path": "none", "seed": 1.5}', "[" * 100000]
    told = faults(read(folder, "\n".join(lines)))
    begins = ["7: not JSON: ", "8: not an object", "9: path: ", "9: seed: ", "10: not JSON: "]
    assert [fault[: len(begin)] for fault, begin in zip(told, begins, strict=True)] == begins


def test_an_unknown_column_is_told_once(folder: Path) -> None:
    assert len(read(folder, '{"path": "a.wav", "x": 1}\n' * 3).faults) == 1
    assert len(read(folder, "path,x\na.wav,1\na.wav,2\n", "list.csv").faults) == 1


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "1: no column path; the first line names the columns, for example: path,seed"),
        ("path;seed\n", "1: no column path; the first line names the columns, for example: path,seed"),
        ("path,path\n", "1: column path stands twice"),
        ("path\na.wav,7\n", "2: 2 cells, but the header names 1 columns"),
        ("path,seed\na.wav,seven\n", '2: seed: "seven" is not an integer'),
        ('path\na.wav\n"a.wav', "3: not CSV: unexpected end of data"),
    ],
)
def test_faults_of_csv_are_told_with_their_line(folder: Path, text: str, fault: str) -> None:
    assert fault in faults(read(folder, text, "list.csv"))


def test_a_manifest_that_is_not_utf8_is_refused_with_its_line(folder: Path) -> None:
    assert faults(read(folder, b'{"path": "a.wav"}\n{"path": "\xff.wav"}')) == ["2: not UTF-8"]


def test_a_manifest_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    assert "cannot be read: No such file" in read_manifest(tmp_path / "none.jsonl").faults[0]


def test_a_manifest_that_may_have_no_end_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "zero.csv").symlink_to("/dev/zero")
    for path in (tmp_path / "pipe.jsonl", tmp_path / "zero.csv"):
        assert read_manifest(path) == Manifest((), (f"{path}: not a regular file; save the list to one",))


@given(st.binary(max_size=200), st.sampled_from(["list.jsonl", "list.csv"]))
def test_any_bytes_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, name: str
) -> None:
    found = read(tmp_path_factory.getbasetemp(), content, name)
    assert all(os.fspath(each.path) for each in found.rows)
