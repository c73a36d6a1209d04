"""`personaplex decode`: WAVs from token dumps, and what is refused before anything is written."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from personaplex_cli.files.dump import read_dump, write_dump
from personaplex_cli.model.device import choose_decode_dtype
from tests.conftest import GOLDEN
from tests.helpers import DUMP, converted, names_in, personaplex, record, record_all


@pytest.fixture(scope="module")
def replies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two replies, one longer than what the codec decodes at once."""
    folder = tmp_path_factory.mktemp("replies")
    converted(record_all(folder / "in", [8.7, 0.21]), folder / "out", "--quiet")
    return folder / "out"


def refused(*arguments: object) -> str:
    result = personaplex("decode", *arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    return result.stderr


def test_a_dump_gives_the_bytes_that_convert_wrote(replies: Path, tmp_path: Path) -> None:
    result = personaplex("decode", replies / f"000{DUMP}", replies / f"001{DUMP}", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert names_in(tmp_path / "out") == ["000.wav", "001.wav"]
    assert result.stdout.splitlines() == [str(tmp_path / "out" / name) for name in ("000.wav", "001.wav")]
    for name in ("000.wav", "001.wav"):
        assert (tmp_path / "out" / name).read_bytes() == (replies / name).read_bytes()


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_a_reply_that_was_not_made_in_float32_is_decoded_to_the_same_bytes(
    tmp_path: Path, dtype: str
) -> None:
    recording = record(tmp_path / "a.wav", 2.3)
    converted(recording, tmp_path / "out", "--dtype", dtype, "--quiet")
    dump = tmp_path / "out" / f"a{DUMP}"
    assert read_dump(dump).metadata["decode_dtype"] == choose_decode_dtype(dtype, torch.device("cpu"))
    result = personaplex("decode", dump, tmp_path / "again")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "again" / "a.wav").read_bytes() == (tmp_path / "out" / "a.wav").read_bytes()


def test_of_a_stream_reply_the_aligned_wav_is_made(replies: Path, tmp_path: Path) -> None:
    source = record_all(tmp_path / "in", [8.7, 0.21])
    converted(source, tmp_path / "stream", "--timeline", "stream", "--quiet")
    result = personaplex("decode", tmp_path / "stream" / f"000{DUMP}", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "out" / "000.wav").read_bytes() == (replies / "000.wav").read_bytes()


def test_all_faults_are_listed_and_nothing_is_written(replies: Path, tmp_path: Path) -> None:
    (tmp_path / f"text{DUMP}").write_text("no dump")
    whole = (replies / f"000{DUMP}").read_bytes()
    (tmp_path / f"half{DUMP}").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "000.wav").touch()
    dumps = [tmp_path / f"{stem}{DUMP}" for stem in ("text", "half", "gone")]
    said = refused(*dumps, replies / f"000{DUMP}", replies / f"001{DUMP}", tmp_path / "out")
    assert [line.split(":")[0] for line in said.splitlines()[1:]] == [
        f"  - {path}" for path in (*dumps, tmp_path / "out" / "000.wav")
    ]
    assert "exists already; pass --overwrite" in said
    assert names_in(tmp_path / "out") == ["000.wav"]


def test_a_wav_that_is_there_is_replaced_only_if_that_is_asked_for(replies: Path, tmp_path: Path) -> None:
    (tmp_path / "000.wav").write_bytes(b"old")
    assert "exists already" in refused(replies / f"000{DUMP}", tmp_path)
    assert (tmp_path / "000.wav").read_bytes() == b"old"
    assert personaplex("decode", replies / f"000{DUMP}", tmp_path, "--overwrite").exit_code == 0
    assert (tmp_path / "000.wav").read_bytes() == (replies / "000.wav").read_bytes()


def test_a_dump_of_another_model_is_refused(replies: Path, tmp_path: Path) -> None:
    said = refused(replies / f"000{DUMP}", tmp_path, "--model", GOLDEN / "checkpoint")
    assert "was made by another model than" in said
    assert names_in(tmp_path) == []


def test_two_dumps_that_would_give_one_wav_are_refused(replies: Path, tmp_path: Path) -> None:
    shutil.copy(replies / f"000{DUMP}", tmp_path / f"000{DUMP}")
    said = refused(replies / f"000{DUMP}", tmp_path / f"000{DUMP}", tmp_path / "out")
    assert "two dumps would write the same WAV" in said


def test_a_single_path_is_a_usage_error(replies: Path) -> None:
    assert "name the dumps, then the folder" in refused(replies / f"000{DUMP}")


def test_a_recording_is_no_dump(tmp_path: Path) -> None:
    assert "a.wav" in refused(record(tmp_path / "a.wav"), tmp_path / "out")


def test_a_dump_whose_record_does_not_fit_its_tokens_is_refused_before_anything_is_written(
    replies: Path, tmp_path: Path
) -> None:
    whole = read_dump(replies / f"000{DUMP}")
    record = dict(whole.metadata)
    spoilt = {
        "none": replace(whole, metadata={k: v for k, v in record.items() if k != "n_samples"}),
        "less": replace(whole, metadata={**record, "n_samples": "1"}),
        "numbers": replace(whole, metadata={**record, "decode_dtype": "int3"}),
        "words": replace(whole, metadata={**record, "n_samples": "many"}),
        "beyond": replace(
            whole, agent=whole.agent + np.int16(200), metadata={**record, "audio_vocab_size": "999"}
        ),
    }
    nothing = replace(whole, text=whole.text[:0], agent=whole.agent[:, :0], user=whole.user[:, :0])
    spoilt["empty"] = replace(nothing, metadata={**record, "n_samples": "0"})
    for name, dump in spoilt.items():
        write_dump(tmp_path / f"{name}{DUMP}", dump)
    dumps = [replies / f"000{DUMP}", *(tmp_path / f"{name}{DUMP}" for name in spoilt)]
    said = refused(*dumps, tmp_path / "out")
    assert said.count("do not fit its") == 4
    assert "and the codec has 256" in said
    assert "its decode_dtype is int3, not float32 or bfloat16" in said
    assert not (tmp_path / "out").exists()


def test_a_file_in_place_of_the_folder_is_refused(replies: Path, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    assert "out" in refused(replies / f"000{DUMP}", tmp_path / "out")
    assert (tmp_path / "out").read_text() == "mine"


def test_the_models_notice_is_shown(replies: Path, tmp_path: Path) -> None:
    result = personaplex("decode", replies / f"000{DUMP}", tmp_path / "out")
    assert "untrained" in result.stderr
    assert result.stdout == f"{tmp_path / 'out' / '000.wav'}\n"
