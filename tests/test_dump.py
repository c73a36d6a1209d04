"""Token dumps and transcripts come back as they were written, and nothing else is taken for one."""

from __future__ import annotations

import json
import os
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from personaplex_cli.errors import DumpError
from personaplex_cli.files.dump import (
    Record,
    TokenDump,
    read_dump,
    read_metadata,
    write_dump,
    write_transcript,
)

RECORD = Record(
    source="sub/a.wav",
    source_sha256="12",
    source_sample_rate=44100,
    sample_rate=24000,
    n_samples=5000,
    frame_rate=12.5,
    samples_per_frame=1920,
    model="embedded",
    model_fingerprint="34",
    config_hash="56",
    persona={"voice": None, "voice_sha256": "78", "role": "Be kind.\n🎙"},
    sampling={"temp_text": 0.7, "greedy": False},
    seed=42,
    timeline="aligned",
    dtype="float32",
    device="cpu",
    fingerprint="9a",
    versions={"personaplex_cli": "0.1"},
    audio_vocab_size=2048,
    extra={"stereo": True},
)


def codes(n_frames: int = 3) -> np.ndarray:
    return np.arange(8 * n_frames, dtype=np.int16).reshape(8, n_frames)


def tokens(n_frames: int = 3) -> TokenDump:
    text = np.array([3, 0, 31999, 5])[:n_frames].astype(np.int32)
    # Columns of a larger table, as the engine gives them: not contiguous in memory.
    return TokenDump(text, codes(n_frames + 2)[:, 1:-1], codes(n_frames)[::-1], RECORD.to_metadata())


def raw(path: Path, header: object, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.tokens.safetensors"


@pytest.mark.parametrize("n_frames", [0, 1, 3])
def test_a_dump_comes_back_as_it_was_written(path: Path, n_frames: int) -> None:
    write_dump(path, tokens(n_frames))
    found = read_dump(path)
    for name in ("text", "agent", "user"):
        np.testing.assert_array_equal(getattr(found, name), getattr(tokens(n_frames), name), strict=True)
    assert found.metadata == read_metadata(path) == RECORD.to_metadata()


def test_a_dump_is_an_ordinary_safetensors_file(path: Path) -> None:
    write_dump(path, tokens())
    assert {name: (tensor.dtype.name, tensor.shape) for name, tensor in load_file(path).items()} == {
        "text": ("int32", (3,)),
        "agent": ("int16", (8, 3)),
        "user": ("int16", (8, 3)),
    }
    with safe_open(path, "np") as handle:
        assert handle.metadata()["schema"] == "personaplex-tokens/1"


def test_equal_dumps_are_equal_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_dump(tmp_path / name, tokens())
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_record_is_strings_in_the_dump_and_values_in_the_transcript() -> None:
    metadata = RECORD.to_metadata()
    assert all(isinstance(value, str) for value in metadata.values())
    assert metadata["source"] == "sub/a.wav"
    assert metadata["frame_rate"] == "12.5"
    assert json.loads(metadata["persona"]) == RECORD.persona
    assert json.loads(metadata["stereo"]) is True
    assert RECORD.to_json()["sampling"] == RECORD.sampling
    assert RECORD.to_json().keys() | {"schema"} == metadata.keys()


def test_what_is_none_is_left_out() -> None:
    assert "audio_vocab_size" not in replace(RECORD, audio_vocab_size=None).to_json()


def test_every_truncation_is_refused(path: Path) -> None:
    write_dump(path, tokens(1))
    whole = path.read_bytes()
    for n_bytes in range(len(whole)):
        path.write_bytes(whole[:n_bytes])
        with pytest.raises(DumpError, match=r"a\.tokens\.safetensors: not a whole token dump"):
            read_metadata(path)


@given(st.binary(max_size=300))
def test_any_bytes_are_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any"
    path.write_bytes(content)
    with pytest.raises(DumpError):
        read_dump(path)


def test_a_hostile_pickle_is_refused_and_not_run(path: Path, tmp_path: Path) -> None:
    class Hostile:
        def __reduce__(self) -> object:
            return Path.touch, (tmp_path / "ran",)

    path.write_bytes(pickle.dumps(Hostile()))
    with pytest.raises(DumpError):
        read_dump(path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"[" * 10_000,
        {"text": {"dtype": "I32", "shape": [2**62, 2**62], "data_offsets": [0, 8]}},
        {"text": {"dtype": "I32", "shape": [1], "data_offsets": [0, 2**63]}},
        {"__metadata__": {"schema": 5}},
        {"__metadata__": {"schema": "personaplex-tokens/2"}},
        {},
    ],
)
def test_hostile_headers_are_refused(path: Path, header: object) -> None:
    with pytest.raises(DumpError):
        read_dump(raw(path, header))


def test_a_header_longer_than_the_file_is_refused(path: Path) -> None:
    path.write_bytes((2**63).to_bytes(8, "little"))
    with pytest.raises(DumpError):
        read_dump(path)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"text": None}, "no tensor text"),
        ({"text": np.zeros(3, np.int64)}, "text is I64, not I32"),
        ({"agent": codes().astype(np.float32)}, "agent is F32, not I16"),
        ({"agent": codes(2)}, "do not agree"),
        ({"user": codes()[:4]}, "do not agree"),
        ({"text": np.zeros((1, 3), np.int32)}, "are not text"),
        ({"user": codes() - np.int16(1)}, "user codes -1 to 22 are not within 0 to 2047"),
        ({"agent": codes() + np.int16(2026)}, "agent codes 2026 to 2049 are not within 0 to 2047"),
        ({"text": np.full(3, -1, np.int32)}, "text token -1 is negative"),
        ({"audio_vocab_size": "many"}, "'many' is not a number"),
    ],
)
def test_a_dump_that_contradicts_itself_is_refused(path: Path, change: dict[str, object], fault: str) -> None:
    metadata = RECORD.to_metadata()
    tensors: dict[str, object] = {"text": np.zeros(3, np.int32), "agent": codes(), "user": codes()}
    for name, value in change.items():
        (metadata if isinstance(value, str) else tensors)[name] = value  # type: ignore[assignment]
    save_file({name: value for name, value in tensors.items() if value is not None}, path, metadata)
    with pytest.raises(DumpError, match=fault):
        read_dump(path)


def test_a_dump_that_is_not_there_or_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DumpError, match="cannot be read"):
        read_dump(tmp_path / "none")
    with pytest.raises(DumpError, match="not a file"):
        read_dump(tmp_path)


def test_a_transcript_says_what_was_said_and_how_it_was_made(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    words = [("Hé", 0.0800000001, 0.16), ("<b>", 0.24, 0.32)]
    write_transcript(path, RECORD, text="Hé <b>", words=words, pieces=["PAD", "▁Hé", "EPAD"])
    found = json.loads(path.read_text(encoding="utf-8"))
    assert found["schema"] == "personaplex-transcript/1"
    assert found["words"] == [
        {"word": "Hé", "start": 0.08, "end": 0.16},
        {"word": "<b>", "start": 0.24, "end": 0.32},
    ]
    assert found["pieces"] == ["PAD", "▁Hé", "EPAD"]
    assert {name: found[name] for name in RECORD.to_json()} == RECORD.to_json()
    assert "▁Hé" in path.read_text(encoding="utf-8")


@given(st.binary(min_size=1, max_size=40))
def test_names_of_any_bytes_survive(tmp_path_factory: pytest.TempPathFactory, name: bytes) -> None:
    folder = tmp_path_factory.getbasetemp()
    record = replace(RECORD, source=os.fsdecode(name))
    write_transcript(folder / "any.json", record, text="", words=[], pieces=[])
    assert os.fsencode(json.loads((folder / "any.json").read_bytes().decode())["source"]) == name
    write_dump(folder / "any.st", replace(tokens(), metadata=record.to_metadata()))
    kept = read_dump(folder / "any.st").metadata["source"]
    assert kept == name.decode("utf-8", "surrogateescape").encode("utf-8", "backslashreplace").decode()


def test_numbers_that_json_does_not_know_become_null(tmp_path: Path) -> None:
    record = replace(RECORD, extra={"peak": float("nan"), "loudness": np.float32("-inf"), "n": np.int64(3)})
    write_transcript(tmp_path / "a.json", record, text="", words=[], pieces=[])
    found = json.loads((tmp_path / "a.json").read_text(), parse_constant=pytest.fail)
    assert (found["peak"], found["loudness"], found["n"]) == (None, None, 3)
