"""`personaplex convert` from files to files: the reference's results, the contract, faults, resuming."""

from __future__ import annotations

import csv
import errno
import json
import math
import os
import random
import re
import shutil
import socket
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from safetensors.torch import load_file, save_file

from personaplex_cli import convert as corridor
from personaplex_cli import schedule as schedule_module
from personaplex_cli.convert import Run
from personaplex_cli.files.jobs import plan_jobs
from personaplex_cli.files.runlog import RunLog
from personaplex_cli.model.checkpoint import open_checkpoint
from personaplex_cli.prompt import Voice, make_prompt, read_voice_file
from personaplex_cli.record import Facts
from personaplex_cli.schedule import make_schedule
from personaplex_cli.settings import Batching, Choices, Device, Persona
from personaplex_cli.studio import Studio
from tests.conftest import GOLDEN, UNTRAINED
from tests.flat import cost_of
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
    whole_replies,
    write_manifest,
)

CHECKPOINT = GOLDEN / "checkpoint"
CASES: dict[str, dict[str, str]] = json.loads((GOLDEN / "end_to_end_cases.json").read_text())
ON_THE_TIE, OFF_THE_TIE = GOLDEN / "audio" / "voice.wav", GOLDEN / "audio" / "voice_off_the_tie.wav"
TIE = (7, 38)
"""Codebook and frame of voice.wav's codes where two codes are equally near; the reference's run took 34."""
THREE = ("a.json", "a.tokens.safetensors", "a.wav")


class NoWindow:
    """Nobody watches."""

    def remark(self, line: str) -> None: ...

    def begin(self, n_files: int, n_frames: int) -> None: ...

    def frames(self, n_frames: int, n_places: int) -> None: ...

    def outcome(self, outcome: object) -> None: ...


def fails(*arguments: object, code: int = 2, stdin: bytes = b"") -> str:
    """What `personaplex convert` says on standard error when it ends with `code`."""
    result = personaplex("convert", *arguments, stdin=stdin)
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    return result.stderr


def statuses(folder: Path) -> dict[str, str]:
    return {line["source"]: line["status"] for line in log_of(folder)}


# ---- the reference's results ----


@cache
def expected() -> dict[str, torch.Tensor]:
    return load_file(GOLDEN / "end_to_end_expected.safetensors")


@pytest.fixture(scope="module")
def golden_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All cases in one batch: two voices, two recordings."""
    folder = tmp_path_factory.mktemp("golden")
    rows = []
    for name, case in CASES.items():
        voice = OFF_THE_TIE if case["voice"] == "audio/voice.wav" else GOLDEN / case["voice"]
        rows.append(
            {
                "path": str(GOLDEN / case["input"]),
                "voice_prompt": str(voice),
                "text_prompt": case["role"],
                "output": name,
            }
        )
    manifest = write_manifest(folder / "cases.jsonl", rows)
    options = ["--greedy", "--dtype", "float32", "--timeline", "stream", "--model", CHECKPOINT]
    ended = program("convert", manifest, folder / "out", *options, "--device", "cpu")
    assert (ended.returncode, ended.stdout) == (0, b""), ended.stderr.decode()
    return folder / "out"


@pytest.mark.parametrize("case", CASES)
def test_the_users_codes_are_the_references(golden_run: Path, case: str) -> None:
    user = tokens_in(golden_run / f"{case}{DUMP}")["user"]
    assert user.tolist() == expected()[f"{case}.user_codes"].tolist()


@pytest.mark.parametrize("case", CASES)
def test_every_drawn_token_is_the_references(golden_run: Path, case: str) -> None:
    dump, theirs = tokens_in(golden_run / f"{case}{DUMP}"), expected()[f"{case}.tokens"]
    assert dump["agent"].shape == (8, theirs.shape[1])
    assert dump["agent"][:, :-1].tolist() == theirs[1:9, 1:].tolist()
    assert dump["text"][:-1].tolist() == theirs[0, 1:].tolist()


@pytest.mark.parametrize("case", CASES)
def test_the_reply_sounds_as_the_references_to_the_last_16_bit_step(golden_run: Path, case: str) -> None:
    samples, rate = soundfile.read(golden_run / f"{case}.wav", dtype="int16")
    theirs = expected()[f"{case}.pcm"].numpy().astype(float).ravel()
    assert (rate, len(samples)) == (24000, len(theirs))
    assert np.abs(samples - 32768 * theirs).max() <= 1.0


def test_the_voice_off_the_tie_is_the_voice_and_the_noise_that_the_readme_names() -> None:
    voice, other = (soundfile.read(path, dtype="int16")[0] for path in (ON_THE_TIE, OFF_THE_TIE))
    noise = np.random.default_rng(3846).integers(-2, 3, len(voice))
    assert (voice + noise).tolist() == other.tolist()


def test_a_recorded_voice_has_the_codes_that_the_reference_saved_but_perhaps_at_one_tie() -> None:
    studio = Studio(open_checkpoint(str(CHECKPOINT)), Device("cpu", "float32"))
    saved = torch.load(CHECKPOINT / "voices" / "VOICE0.pt", map_location="cpu", weights_only=True)
    codes = {
        path: read_voice_file(path, studio.codec, studio.config).codes for path in (ON_THE_TIE, OFF_THE_TIE)
    }
    theirs, ours = codes[OFF_THE_TIE], codes[ON_THE_TIE]
    assert theirs is not None
    assert ours is not None
    assert theirs[TIE] == 34
    assert ours[TIE] in (7, 34)
    assert set(map(tuple, (ours != theirs).nonzero().tolist())) <= {TIE}
    n_frames = theirs.shape[1]
    forced = make_prompt(Voice(n_frames, codes=theirs), [], studio.config).forced
    with torch.inference_mode():
        embedded = studio.lm.embed(forced[:, : n_frames - 1].T)
    assert torch.equal(embedded, saved["embeddings"][:, 0, 0])
    # The last column is not among the embeddings, but in the ring of four.
    assert forced[:, n_frames - 1].tolist() == saved["cache"][0, :, (n_frames - 1) % 4].tolist()


@pytest.mark.parametrize("case", ["short_wavvoice", "question_wavvoice"])
def test_a_file_that_is_converted_alone_gives_the_references_tokens_too(case: str, tmp_path: Path) -> None:
    source = GOLDEN / CASES[case]["input"]
    converted(
        *[source, tmp_path, "--greedy", "--dtype", "float32", "--model", CHECKPOINT, "--quiet"],
        *["--voice-prompt", OFF_THE_TIE, "--text-prompt", CASES[case]["role"], "--batch-size", 1],
    )
    dump = tokens_in(tmp_path / f"{source.stem}{DUMP}")
    assert dump["agent"][:, :-1].tolist() == expected()[f"{case}.tokens"][1:9, 1:].tolist()
    # The aligned reply begins with the reply's own first frame, so the codec has heard nothing before it.
    studio = Studio(open_checkpoint(str(CHECKPOINT)), Device("cpu"))
    heard = np.concatenate([rows[0] for rows in studio.codec.decode([torch.from_numpy(dump["agent"])])])
    samples = soundfile.read(tmp_path / source.name, dtype="int16")[0]
    assert np.abs(samples - 32768 * heard[: len(samples)]).max() <= 0.5


# ---- the contract ----


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """a.wav, b/c.wav and b/d/e.flac, at three rates."""
    folder = tmp_path_factory.mktemp("recordings")
    record(folder / "a.wav", 0.31, seed=1)
    record(folder / "b" / "c.wav", 0.2, seed=2, sample_rate=8000)
    record(folder / "b" / "d" / "e.flac", 0.25, seed=3, sample_rate=44100)
    return folder


@pytest.fixture(scope="module")
def whole_folder(recordings: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The replies to all recordings, with default settings, in slots of 2."""
    out = tmp_path_factory.mktemp("whole") / "out"
    converted(recordings, out, "--batch-size", 2, "--quiet")
    return out


def test_a_folder_is_mirrored_with_three_files_a_recording_and_one_log(whole_folder: Path) -> None:
    stems = ["a", "b/c", "b/d/e"]
    suffixes = [".json", DUMP, ".wav"]
    assert names_in(whole_folder) == [*[stem + suffix for stem in stems for suffix in suffixes], "run.jsonl"]
    assert statuses(whole_folder) == dict.fromkeys(["a.wav", "b/c.wav", "b/d/e.flac"], "converted")


@pytest.mark.parametrize(
    ("stem", "n_samples"), [("a", 7440), ("b/c", 1600 * 3), ("b/d/e", round(11025 * 24000 / 44100))]
)
def test_a_reply_is_exactly_as_long_as_its_recording(whole_folder: Path, stem: str, n_samples: int) -> None:
    info = soundfile.info(whole_folder / f"{stem}.wav")
    assert (info.frames, info.samplerate, info.channels, info.subtype) == (n_samples, 24000, 1, "PCM_16")
    n_frames = -(-n_samples // 1920)
    assert {name: tokens.shape for name, tokens in tokens_in(whole_folder / f"{stem}{DUMP}").items()} == {
        "text": (n_frames,),
        "agent": (8, n_frames),
        "user": (8, n_frames),
    }
    transcript = json.loads((whole_folder / f"{stem}.json").read_text())
    assert len(transcript["pieces"]) == n_frames
    assert transcript["n_samples"] == n_samples


@pytest.mark.parametrize("n_samples", [1, 1919, 1920, 1921, 7919])
def test_recordings_of_any_number_of_samples_are_answered_to_the_sample(
    tmp_path: Path, n_samples: int
) -> None:
    soundfile.write(tmp_path / "a.wav", sound(1.0)[:n_samples], 24000)
    converted(tmp_path / "a.wav", tmp_path / "out", "--quiet")
    assert soundfile.info(tmp_path / "out" / "a.wav").frames == n_samples
    assert tokens_in(tmp_path / "out" / f"a{DUMP}")["text"].shape == (-(-n_samples // 1920),)


def test_a_single_file_and_lists_of_all_kinds_give_the_same_bytes(
    recordings: Path, whole_folder: Path, tmp_path: Path
) -> None:
    wanted = {name: (whole_folder / name).read_bytes() for name in THREE}
    a = str(recordings / "a.wav")
    rows = [{"path": a, "output": "a"}, {"path": str(recordings / "b" / "c.wav"), "output": "c"}]
    with (tmp_path / "list.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["path", "output"])
        writer.writeheader()
        writer.writerows(rows)
    sources: dict[str, tuple[object, bytes]] = {
        "file": (a, b""),
        "lines": ("-", f"{a}\n{recordings / 'b' / 'c.wav'}\n".encode()),
        "nul": ("-", f"{a}\0{recordings / 'b' / 'c.wav'}\0".encode()),
    }
    for kind, (source, stdin) in sources.items():
        converted(source, tmp_path / kind, "--batch-size", 2, "--quiet", stdin=stdin)
        found = outputs_in(tmp_path / kind)
        assert {name: found[name] for name in THREE} == wanted, kind
        assert len(found) == (3 if kind == "file" else 6)
    # In a manifest a recording bears its path as its name, which decides what is drawn, so it is compared
    # between the two kinds of manifest.
    write_manifest(tmp_path / "list.jsonl", rows)
    for kind in ("csv", "jsonl"):
        converted(tmp_path / f"list.{kind}", tmp_path / kind, "--batch-size", 2, "--quiet")
    assert outputs_in(tmp_path / "csv") == outputs_in(tmp_path / "jsonl")
    assert len(outputs_in(tmp_path / "csv")) == 6


@pytest.mark.parametrize(
    "stem", ["a b", "-n", "\N{SNOWMAN}\N{ROBOT FACE}", "line\nbreak", "not\udcffunicode", "x" * 230]
)
def test_a_recording_of_any_name_is_answered_under_that_name(tmp_path: Path, stem: str) -> None:
    record(tmp_path / "in" / "plain.wav", 0.1).rename(tmp_path / "in" / f"{stem}.wav")
    converted(tmp_path / "in", tmp_path / "out", "--quiet")
    assert names_in(tmp_path / "out") == sorted([f"{stem}.json", f"{stem}{DUMP}", f"{stem}.wav", "run.jsonl"])
    assert soundfile.info(os.fsencode(tmp_path / "out" / f"{stem}.wav")).frames == 2400


def test_a_name_that_leaves_no_room_for_our_suffixes_fails_alone(tmp_path: Path) -> None:
    record(tmp_path / "in" / "a.wav", 0.1)
    record(tmp_path / "in" / f"{'x' * 250}.wav", 0.1)
    assert "the output name would be too long" in fails(tmp_path / "in", tmp_path / "out", "--quiet", code=1)
    assert sorted(outputs_in(tmp_path / "out")) == list(THREE)


def test_a_manifest_gives_each_row_its_own_voice_role_seed_and_channel(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", np.stack([sound(0.3, seed=1), sound(0.3, seed=2)], axis=1), 24000)
    own: list[dict[str, Any]] = [
        {},
        {"voice_prompt": "male"},
        {"text_prompt": "You are short."},
        {"text_prompt": ""},
        {"seed": 7},
        {"channel": "1"},
    ]
    rows = [{"path": "a.wav", "output": str(number), **row} for number, row in enumerate(own)]
    converted(write_manifest(tmp_path / "list.jsonl", rows), tmp_path / "out", "--quiet")
    agents = {tokens_in(tmp_path / "out" / f"{number}{DUMP}")["agent"].tobytes() for number in range(6)}
    assert len(agents) == 6
    users = [tokens_in(tmp_path / "out" / f"{number}{DUMP}")["user"].tobytes() for number in range(6)]
    assert len(set(users[:5])) == 1
    assert users[5] != users[0]
    records = [json.loads((tmp_path / "out" / f"{number}.json").read_text()) for number in range(6)]
    assert records[1]["persona"]["voice"] == "male.wav"
    assert [records[2]["persona"]["role"], records[3]["persona"]["role"]] == ["You are short.", ""]
    assert [records[4]["seed"], records[0]["seed"], records[5]["channel"]] == [7, 0, "1"]


def test_one_reply_goes_to_standard_output_as_the_same_bytes(recordings: Path, whole_folder: Path) -> None:
    result = converted(recordings / "a.wav", "-", "--batch-size", 2)
    assert result.stdout_bytes == (whole_folder / "a.wav").read_bytes()


def test_a_pipe_in_and_a_pipe_out(recordings: Path, tmp_path: Path) -> None:
    recording = recordings / "b" / "c.wav"
    converted(recording, tmp_path, "--greedy", "--batch-size", 1, "--quiet")
    piped = program("convert", "/dev/stdin", "-", "--greedy", "--batch-size", 1, stdin=recording.read_bytes())
    assert piped.returncode == 0, piped.stderr.decode()
    assert piped.stdout == (tmp_path / "c.wav").read_bytes()


def test_more_than_one_reply_does_not_fit_standard_output(recordings: Path) -> None:
    assert "takes one reply, and there are 3 recordings" in fails(recordings, "-")
    assert "both want standard output" in fails(recordings / "a.wav", "-", "--json")


def test_json_lines_are_those_of_the_run_log_and_nothing_else_is_on_standard_output(
    recordings: Path, tmp_path: Path
) -> None:
    result = converted(recordings, tmp_path / "json", "--json")
    assert result.stdout == (tmp_path / "json" / "run.jsonl").read_text()
    lines = {line["source"]: line for line in log_of(tmp_path / "json")}
    assert list(lines["a.wav"]) == [
        *["source", "status", "reason", "warnings", "outputs", "audio_seconds", "wall_seconds"],
        *["source_sample_rate", "clipped_input_samples", "clamped_output_samples"],
        "nonfinite_input_samples",
    ]
    assert lines["b/c.wav"]["outputs"] == ["b/c.wav", f"b/c{DUMP}", "b/c.json"]
    assert (lines["b/c.wav"]["audio_seconds"], lines["b/c.wav"]["source_sample_rate"]) == (0.2, 8000)
    assert "is untrained" in result.stderr
    assert re.search(r"batch size 3 \(cpu, float32\)", result.stderr) or torch.cuda.is_available()


def test_quiet_says_nothing_but_the_models_notice_and_failures(recordings: Path, tmp_path: Path) -> None:
    notice = (UNTRAINED / "NOTICE.txt").read_text(encoding="utf-8").strip()
    result = converted(recordings / "a.wav", tmp_path / "out", "--quiet")
    assert result.output == f"{notice}\n"
    (tmp_path / "bad.wav").write_text("no audio")
    said = fails(tmp_path / "bad.wav", tmp_path / "bad", "--quiet", code=1)
    assert said.startswith(f"{notice}\nfailed: {tmp_path / 'bad.wav'}: not audio that can be read")
    assert said.count("\n") == notice.count("\n") + 2


def test_padding_gives_the_reply_room(tmp_path: Path) -> None:
    """As if the silence were in the recording; the dump's user codes say so."""
    recording = record(tmp_path / "a.wav", 0.5)
    silence = np.zeros(12000), np.zeros(36000)
    soundfile.write(tmp_path / "b.wav", np.concatenate([silence[0], sound(0.5), silence[1]]), 24000)
    converted(recording, tmp_path / "padded", "--pad-start", 0.5, "--pad-end", 1.5, "--quiet")
    converted(tmp_path / "b.wav", tmp_path / "written", "--quiet")
    padded, written = (tokens_in(tmp_path / name) for name in (f"padded/a{DUMP}", f"written/b{DUMP}"))
    assert np.array_equal(padded["user"], written["user"])
    assert soundfile.info(tmp_path / "padded" / "a.wav").frames == 60000


def test_fail_fast_stops_at_the_first_failure(tmp_path: Path) -> None:
    record_all(tmp_path / "in", [0.5, 0.4, 0.3])
    for name in ("001.wav", "002.wav"):
        soundfile.write(tmp_path / "in" / name, [0.1, math.nan], 24000, "FLOAT")
    said = fails(tmp_path / "in", tmp_path / "out", "--fail-fast", "--batch-size", 1, "--quiet", code=1)
    assert "stopped at the first failure: 001.wav" in said
    assert statuses(tmp_path / "out") == {"000.wav": "converted", "001.wav": "failed"}


@pytest.mark.usefixtures("no_lm")
def test_fail_fast_stops_before_the_model_is_loaded_where_a_header_tells(tmp_path: Path) -> None:
    record_all(tmp_path / "in", [0.5, 0.4])
    (tmp_path / "in" / "001.wav").write_text("no audio")
    said = fails(tmp_path / "in", tmp_path / "out", "--fail-fast", "--quiet", code=1)
    assert "stopped at the first failure: 001.wav" in said
    assert statuses(tmp_path / "out") == {"001.wav": "failed"}


def test_a_recording_that_changes_before_its_stereo_reply_is_written_fails_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = record_all(tmp_path / "in", [0.6, 0.4])
    write_dump = corridor.write_dump

    def change(target: Path, dump: object) -> None:
        record(source / "000.wav", 0.2, seed=9)
        write_dump(target, dump)  # type: ignore[arg-type]

    monkeypatch.setattr(corridor, "write_dump", change)
    fails(source, tmp_path / "out", "--stereo", "--quiet", code=1)
    assert statuses(tmp_path / "out") == {"000.wav": "failed", "001.wav": "converted"}
    assert "changed since it was read" in next(
        line["reason"] for line in log_of(tmp_path / "out") if line["status"] == "failed"
    )
    assert names_in(tmp_path / "out") == ["001.json", f"001{DUMP}", "001.wav", "run.jsonl"]


@pytest.mark.parametrize("option", ["--temp-text", "--temp-audio", "--pad-end"])
@pytest.mark.parametrize("value", ["inf", "nan"])
def test_numbers_without_an_end_are_refused(
    recordings: Path, tmp_path: Path, option: str, value: str
) -> None:
    assert option in fails(recordings, tmp_path / "out", option, value)


def test_a_stereo_reply_has_the_recording_left_and_the_reply_right(tmp_path: Path) -> None:
    recording = record(tmp_path / "a.wav", 2.5)
    converted(recording, tmp_path / "mono", "--quiet")
    converted(recording, tmp_path / "stereo", "--stereo", "--quiet")
    both, _ = soundfile.read(tmp_path / "stereo" / "a.wav", dtype="int16")
    assert both[:, 0].tolist() == soundfile.read(recording, dtype="int16")[0].tolist()
    assert both[:, 1].tolist() == soundfile.read(tmp_path / "mono" / "a.wav", dtype="int16")[0].tolist()


def test_on_the_stream_timeline_the_dump_stays_aligned_and_only_the_wav_is_late(
    recordings: Path, tmp_path: Path
) -> None:
    for timeline in ("aligned", "stream"):
        converted(recordings / "a.wav", tmp_path / timeline, "--timeline", timeline, "--quiet")
    aligned, stream = (tokens_in(tmp_path / timeline / f"a{DUMP}") for timeline in ("aligned", "stream"))
    assert {name: tokens.tolist() for name, tokens in aligned.items()} == {
        name: tokens.tolist() for name, tokens in stream.items()
    }
    studio = Studio(open_checkpoint(str(UNTRAINED)), Device("cpu"))
    silence = torch.tensor(studio.config.mimi_config.silence_codes)[:, None]
    codes = torch.cat([silence, torch.from_numpy(stream["agent"])[:, :-1]], dim=1)
    heard = np.concatenate([rows[0] for rows in studio.codec.decode([codes])])
    samples = soundfile.read(tmp_path / "stream" / "a.wav", dtype="int16")[0]
    assert np.abs(samples - 32768 * heard[: len(samples)]).max() <= 0.5
    pieces = [
        json.loads((tmp_path / line / "a.json").read_text())["pieces"] for line in ("aligned", "stream")
    ]
    assert pieces[1] == ["PAD", *pieces[0][:-1]]


def test_the_same_run_gives_the_same_bytes_again(
    recordings: Path, whole_folder: Path, tmp_path: Path
) -> None:
    converted(recordings, tmp_path, "--batch-size", 2, "--quiet")
    assert outputs_in(tmp_path) == outputs_in(whole_folder)


# ---- faults ----


def spoil(folder: Path) -> list[str]:
    """Put files into a folder of which no reply can be made."""
    (folder / "text.wav").write_text("no audio at all")
    (folder / "empty.wav").touch()
    soundfile.write(folder / "header.wav", np.zeros(0), 24000)
    samples = sound(0.5, seed=9)
    samples[7000] = np.nan
    soundfile.write(folder / "nan.wav", samples, 24000, "FLOAT")
    return ["empty.wav", "header.wav", "nan.wav", "text.wav"]


def test_bad_files_fail_alone_and_leave_their_neighbours_bytes_as_they_are(
    recordings: Path, whole_folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(recordings, tmp_path / "in")
    bad = spoil(tmp_path / "in")
    said = fails(tmp_path / "in", tmp_path / "out", "--batch-size", 2, code=1)
    assert outputs_in(tmp_path / "out") == outputs_in(whole_folder)
    assert sorted(name for name, status in statuses(tmp_path / "out").items() if status == "failed") == bad
    assert len(re.findall(r"^failed: ", said, flags=re.MULTILINE)) == 4
    reasons = {line["source"]: line["reason"] for line in log_of(tmp_path / "out")}
    assert "holds NaN or infinite samples" in reasons["nan.wav"]
    assert "no audio: the file is empty" in reasons["empty.wav"]
    assert "no audio: the file holds 0 samples" in reasons["header.wav"]
    assert "not audio that can be read" in reasons["text.wav"]


def test_when_every_file_fails_the_exit_code_is_1_too(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    spoil(tmp_path / "in")
    fails(tmp_path / "in", tmp_path / "out", code=1)
    assert outputs_in(tmp_path / "out") == {}


def test_a_file_that_vanishes_between_plan_and_reading_fails_alone(
    recordings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(recordings, tmp_path / "in")
    planned = schedule_module.sort_out

    def and_then_it_is_gone(*arguments: Any, **options: Any) -> Any:
        (tmp_path / "in" / "a.wav").unlink()
        return planned(*arguments, **options)

    monkeypatch.setattr(schedule_module, "sort_out", and_then_it_is_gone)
    said = fails(tmp_path / "in", tmp_path / "out", "--quiet", code=1)
    assert "a.wav: no such file" in said
    assert len(outputs_in(tmp_path / "out")) == 6


@pytest.mark.parametrize("name", ["a.json", "a.wav", f"a{DUMP}", "run.jsonl"])
def test_a_folder_in_an_outputs_place_is_refused_before_anything_is_touched(
    recordings: Path, whole_folder: Path, tmp_path: Path, name: str
) -> None:
    out = shutil.copytree(whole_folder, tmp_path / "out")
    (out / name).unlink()
    (out / name).mkdir()
    before = outputs_in(out)
    said = fails(recordings, out, "--overwrite", "--quiet")
    assert f"{out / name}: a folder stands where a file is to be written" in said
    assert outputs_in(out) == before


def test_an_output_that_cannot_be_written_fails_alone_and_leaves_no_part(
    recordings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = corridor.write_transcript

    def write_but_one(path: Path, record: Any, **said: Any) -> None:
        if record.source == "a.wav":
            raise OSError(errno.EIO, "Input/output error", str(path))
        write(path, record, **said)

    monkeypatch.setattr(corridor, "write_transcript", write_but_one)
    said = fails(recordings, tmp_path / "out", "--quiet", code=1)
    assert "a.json: cannot be written (Input/output error)" in said
    assert len(outputs_in(tmp_path / "out")) == 6
    assert not (tmp_path / "out" / "a.wav").exists()


def broken_model(folder: Path) -> Path:
    """A model whose files look whole, but whose weights are another model's."""
    shutil.copytree(CHECKPOINT, folder)
    config = json.loads((folder / "config.json").read_text())
    config["temporal_config"]["num_hidden_layers"] = 2
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_model_that_cannot_be_loaded_leaves_the_output_folder_alone(
    recordings: Path, tmp_path: Path
) -> None:
    model = shutil.copytree(GOLDEN / "checkpoint", tmp_path / "model")
    weights = load_file(model / "model.safetensors")
    del weights["out_norm.alpha"]
    save_file(weights, model / "model.safetensors")
    options = ("--model", model, "--voice-prompt", "none", "--text-prompt", "")
    assert "missing: out_norm.alpha" in fails(recordings, tmp_path / "out", *options)
    assert not (tmp_path / "out").exists()


def test_what_is_wrong_with_the_plan_or_a_persona_is_said_before_the_model_is_loaded(
    recordings: Path, tmp_path: Path
) -> None:
    model = ["--model", broken_model(tmp_path / "model"), "--text-prompt", "Be kind."]
    a, out = recordings / "a.wav", tmp_path / "out"
    assert "transformer.layers.2" in fails(a, out, *model)
    for arguments, reason in [
        ([recordings / "gone.wav", out], "gone.wav: No such file or directory"),
        ([a, a, out], "a.wav"),
        ([a, out, "--voice-prompt", "NOBODY"], "NOBODY"),
        ([a, out, "--channel", "left"], "--channel left: must be a number from 0, or mix"),
        ([a, out, "--batch-size", "0"], "--batch-size 0: must be at least 1"),
        ([a, out, "--batch-size", "many"], "--batch-size many: must be a number, or auto"),
        ([a], "name the recordings, then the folder for the replies"),
        ([tmp_path / "model", tmp_path / "out"], "no recordings found"),
    ]:
        said = fails(*arguments, *model)
        assert reason in said
        assert "transformer.layers" not in said
    assert not out.exists() or names_in(out) == ["run.jsonl"]


def test_an_unknown_option_or_value_is_a_usage_error(recordings: Path, tmp_path: Path) -> None:
    for options in (["--nonsense"], ["--dtype", "int4"], ["--temp-audio", "-1"], ["--seed", "x"]):
        assert options[0] in fails(recordings / "a.wav", tmp_path / "out", *options)
    assert not (tmp_path / "out").exists()


def test_all_faulty_personas_are_listed_together(recordings: Path, tmp_path: Path) -> None:
    short = str(recordings / "b" / "c.wav")
    rows = [
        {"path": str(recordings / "a.wav"), "output": "1", "voice_prompt": "NOBODY", "text_prompt": ""},
        {"path": str(recordings / "a.wav"), "output": "2", "text_prompt": "be kind " * 60},
        {"path": str(recordings / "a.wav"), "output": "3", "voice_prompt": short, "text_prompt": ""},
    ]
    manifest = write_manifest(tmp_path / "list.jsonl", rows)
    said = fails(manifest, tmp_path / "out", "--model", CHECKPOINT)
    assert re.search(r"NOBODY", said)
    assert re.search(r"the role 'be kind .* is too long: it takes \d+ frames, .* window holds 63", said)
    assert "c.wav: a voice of 0.20 s is too short" in said
    assert said.count("\n  - ") == 3


def test_a_recording_beyond_the_window_is_answered_with_a_warning(tmp_path: Path) -> None:
    recording = record(tmp_path / "in" / "a.wav", 3.0)
    converted(recording, tmp_path, "--model", CHECKPOINT, "--text-prompt", "", "--quiet")
    (line,) = log_of(tmp_path)
    assert line["warnings"] == [
        # The voice's 49 frames and two silences of 6 leave 2 of the ring's 63 columns.
        "exceeds the model's window of 5.04 s: from 0.16 s on the prompt leaves it"
    ]
    assert json.loads((tmp_path / "a.json").read_text())["warnings"] == line["warnings"]


# ---- going on ----


def test_what_is_done_is_skipped_without_the_model(
    recordings: Path, whole_folder: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    shutil.copytree(whole_folder, tmp_path / "out")
    before = outputs_in(tmp_path / "out")
    request.getfixturevalue("no_model")  # Not before: the replies are made with it.
    result = converted(recordings, tmp_path / "out", "--json")
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["status"] for line in lines] == ["skipped"] * 3
    assert lines == log_of(tmp_path / "out")[-3:]
    assert outputs_in(tmp_path / "out") == before


@pytest.mark.parametrize(
    "change",
    [
        ["--seed", "1"],
        ["--greedy"],
        ["--voice-prompt", "male"],
        ["--text-prompt", "Be brief."],
        ["--timeline", "stream"],
        ["--dtype", "bfloat16"],
        ["--temp-text", "0.5"],
    ],
)
def test_other_settings_are_refused_with_every_file_that_is_in_the_way(
    recordings: Path, whole_folder: Path, change: list[str]
) -> None:
    before = outputs_in(whole_folder)
    said = fails(recordings, whole_folder, *change)
    assert "pass --overwrite, or choose another folder" in said
    for name in ("a.wav", "b/c.wav", "b/d/e.wav"):
        assert f"{whole_folder / name}: was made from other input or settings" in said
    assert outputs_in(whole_folder) == before


def test_overwrite_does_everything_again(recordings: Path, whole_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(whole_folder, tmp_path / "out")
    converted(recordings, tmp_path / "out", "--seed", 1, "--overwrite", "--batch-size", 2, "--quiet")
    converted(recordings, tmp_path / "fresh", "--seed", 1, "--batch-size", 2, "--quiet")
    assert outputs_in(tmp_path / "out") == outputs_in(tmp_path / "fresh")
    assert all(outputs_in(tmp_path / "out")[name] != outputs_in(whole_folder)[name] for name in THREE)


def test_only_the_missing_part_is_made_again(recordings: Path, whole_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(whole_folder, out)
    (out / "b" / "c.json").unlink()
    (out / "b" / "c.wav").unlink()
    converted(recordings, out, "--batch-size", 2, "--quiet")
    assert outputs_in(out) == outputs_in(whole_folder)
    assert [line["status"] for line in log_of(out)[-3:]].count("skipped") == 2


# ---- batches ----


def test_200_files_with_two_personas_are_answered_as_each_of_them_alone(tmp_path: Path) -> None:
    chance = random.Random(200)
    rows = []
    for number in range(200):
        recording = record(tmp_path / "in" / f"{number}.wav", 0.1 + 2.9 * chance.random() ** 4, seed=number)
        persona = {"voice_prompt": "male", "text_prompt": "You are Joe."} if number % 3 else {}
        rows.append({"path": str(recording), "output": str(number), **persona})
    manifest = write_manifest(tmp_path / "list.jsonl", rows)
    converted(manifest, tmp_path / "together", "--device", "cpu", "--batch-size", 8, "--quiet")
    together = outputs_in(tmp_path / "together")

    studio = Studio(open_checkpoint(str(UNTRAINED)), Device("cpu"))

    def alone(batch_size: int, every: int) -> dict[str, bytes]:
        out = tmp_path / f"alone_{batch_size}"
        choices = Choices(batching=Batching(batch_size), device=Device("cpu"))
        with RunLog(out / "run.jsonl") as log:
            facts = Facts(studio, choices)
            run = Run(studio, choices, facts, log, NoWindow())
            plan = plan_jobs([str(manifest)], out, persona=Persona(), seed=0)
            for job in plan.jobs[::every]:
                run.answer(make_schedule(replace(plan, jobs=(job,)), studio, facts, choices))
        return outputs_in(out)

    assert alone(8, every=1) == together
    # At another batch size sums are rounded otherwise; noise by token keeps the draws where they were.
    one_by_one = alone(1, every=4)
    assert len(one_by_one) == 150
    assert one_by_one == {name: together[name] for name in one_by_one}


def test_the_order_of_the_files_does_not_matter(tmp_path: Path) -> None:
    source = record_all(tmp_path / "in", [0.3, 0.5, 0.1, 0.9, 0.2])
    paths = [str(path) for path in sorted(source.iterdir())]
    converted(*paths, tmp_path / "out", "--batch-size", 2, "--quiet")
    converted(*reversed(paths), tmp_path / "reversed", "--batch-size", 2, "--quiet")
    assert outputs_in(tmp_path / "out") == outputs_in(tmp_path / "reversed")


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc to measure memory")
def test_memory_does_not_grow_with_the_number_of_files(tmp_path: Path) -> None:
    peaks = []
    for n_files in (50, 500):
        source = record_all(tmp_path / f"in_{n_files}", [0.5] * n_files)
        peaks.append(cost_of(source, tmp_path / f"out_{n_files}", batch_size=32).peak_kib)
        assert len(whole_replies(tmp_path / f"out_{n_files}")) == n_files
    assert peaks[1] < 1.1 * peaks[0]


# ---- number types and devices ----


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_gives_replies_of_a_sane_level(recordings: Path, tmp_path: Path, dtype: str) -> None:
    converted(recordings, tmp_path, "--dtype", dtype, "--quiet")
    for stem in ("a", "b/c", "b/d/e"):
        samples, _ = soundfile.read(tmp_path / f"{stem}.wav")
        assert 0.001 < np.sqrt(np.mean(samples**2)) < 0.5
        agent = tokens_in(tmp_path / f"{stem}{DUMP}")["agent"]
        assert agent.min() >= 0
        assert agent.max() < 256
        assert json.loads((tmp_path / f"{stem}.json").read_text())["dtype"] == dtype


def test_a_gpu_that_is_not_there_is_a_clear_error(
    recordings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    said = fails(recordings, tmp_path / "out", "--device", "cuda", "--quiet")
    assert said.endswith("error: --device cuda: torch sees no such device here; use --device cpu, or auto\n")
    assert not (tmp_path / "out").exists()


@pytest.mark.gpu
def test_a_gpu_answers_in_bfloat16_and_hears_the_same_codes(recordings: Path, tmp_path: Path) -> None:
    converted(recordings, tmp_path / "gpu", "--device", "cuda", "--dtype", "bfloat16", "--quiet")
    converted(recordings, tmp_path / "cpu", "--device", "cpu", "--quiet")
    for stem in ("a", "b/c", "b/d/e"):
        gpu, cpu = (tokens_in(tmp_path / device / f"{stem}{DUMP}") for device in ("gpu", "cpu"))
        assert gpu["user"].tolist() == cpu["user"].tolist()
        assert gpu["agent"].shape == cpu["agent"].shape
        samples, _ = soundfile.read(tmp_path / "gpu" / f"{stem}.wav")
        assert 0.001 < np.sqrt(np.mean(samples**2)) < 0.5


def test_a_local_model_needs_no_network(
    recordings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_network(*_: object, **__: object) -> None:
        raise AssertionError("the network is not needed")

    monkeypatch.setattr(socket.socket, "connect", no_network)
    converted(recordings / "a.wav", tmp_path, "--model", CHECKPOINT, "--text-prompt", "", "--quiet")
