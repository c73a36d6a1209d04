"""A run goes on where it stopped: what is done is skipped, and nothing that would be lost is touched."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from personaplex_cli.digest import file_sha256
from personaplex_cli.errors import AudioError, SettingsError
from personaplex_cli.files.dump import Record, TokenDump, write_dump, write_transcript
from personaplex_cli.files.jobs import Job
from personaplex_cli.files.resume import fingerprint, recorded_fingerprint, sort_out, state_of
from personaplex_cli.settings import Persona

RECORD = Record(
    source="a.wav",
    source_sha256="",
    source_sample_rate=24000,
    sample_rate=24000,
    n_samples=1,
    frame_rate=12.5,
    samples_per_frame=1920,
    model="embedded",
    model_fingerprint="",
    config_hash="",
    persona={},
    sampling={},
    seed=0,
    timeline="aligned",
    dtype="float32",
    device="cpu",
    fingerprint="same",
    versions={},
)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    source = tmp_path / "in" / "a.wav"
    source.parent.mkdir()
    source.write_bytes(b"sound")
    (tmp_path / "out").mkdir()
    return Job(source, "a.wav", tmp_path / "out" / "a", "a", Persona(), 0, origin=str(source))


def finish(job: Job, mark: str = "same", n_outputs: int = 3) -> None:
    """Write a job's first outputs, in their order."""
    record = replace(RECORD, fingerprint=mark)
    codes = np.zeros((8, 1), np.int16)
    write_dump(job.dump, TokenDump(np.zeros(1, np.int32), codes, codes, record.to_metadata()))
    if n_outputs > 1:
        job.wav.write_bytes(b"reply")
    if n_outputs > 2:
        write_transcript(job.transcript, record, text="", words=[], pieces=[""])


def same(_job: Job) -> str:
    return "same"


def never(job: Job) -> str:
    raise AssertionError(f"{job.name} was hashed for nothing")


def refusal(*jobs: Job) -> str:
    with pytest.raises(SettingsError) as caught:
        sort_out(jobs, same, overwrite=False)
    return caught.value.message


def test_a_new_job_is_to_do_and_its_input_is_not_hashed(job: Job) -> None:
    assert state_of(job) == "absent"
    assert recorded_fingerprint(job) is None
    assert sort_out([job], never, overwrite=False).todo == (job,)


def test_a_finished_job_is_skipped(job: Job) -> None:
    finish(job)
    assert state_of(job) == "complete"
    assert recorded_fingerprint(job) == "same"
    assert sort_out([job], same, overwrite=False).skipped == (job,)


@pytest.mark.parametrize("n_outputs", [1, 2])
def test_a_job_that_was_killed_between_its_outputs_is_done_again(job: Job, n_outputs: int) -> None:
    finish(job, n_outputs=n_outputs)
    assert state_of(job) == "partial"
    assert sort_out([job], same, overwrite=False).todo == (job,)


@pytest.mark.parametrize("n_outputs", [1, 2])
def test_a_job_that_was_killed_while_it_replaced_older_outputs_is_done_again(
    job: Job, n_outputs: int
) -> None:
    finish(job, "older")
    finish(job, n_outputs=n_outputs)
    assert state_of(job) == "partial"
    assert sort_out([job], same, overwrite=False).todo == (job,)


@pytest.mark.parametrize("n_outputs", [1, 2, 3])
def test_outputs_of_other_settings_are_refused(job: Job, n_outputs: int) -> None:
    finish(job, "other", n_outputs)
    assert "was made from other input or settings" in refusal(job)
    assert "--overwrite" in refusal(job)


def test_files_of_others_are_refused(job: Job) -> None:
    for path in job.outputs:
        path.write_bytes(b"precious")
        assert state_of(job) == "foreign"
        assert f"{path}: not a whole output of this tool" in refusal(job)
        path.unlink()
    job.wav.symlink_to("nowhere")
    assert state_of(job) == "foreign"


def test_a_dump_that_is_not_whole_is_not_taken_for_ours(job: Job) -> None:
    finish(job)
    os.truncate(job.dump, job.dump.stat().st_size - 1)
    assert state_of(job) == "foreign"


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b"[" * 100_000])
def test_a_transcript_that_is_not_whole_is_made_again(job: Job, content: bytes) -> None:
    finish(job)
    job.transcript.write_bytes(content)
    assert state_of(job) == "partial"


def test_all_that_is_in_the_way_is_told_at_once(job: Job) -> None:
    other = replace(job, target=job.target.with_name("b"), place="b")
    finish(job, "other")
    other.wav.write_bytes(b"precious")
    message = refusal(job, other)
    assert str(job.wav) in message
    assert str(other.wav) in message
    assert len(message.splitlines()) == 3


def test_with_overwrite_everything_is_done_again(job: Job) -> None:
    finish(job)
    assert sort_out([job], never, overwrite=True).todo == (job,)


def test_a_vanished_input_fails_alone_though_outputs_exist(job: Job) -> None:
    finish(job)
    job.source.unlink()
    assert sort_out([job], lambda each: file_sha256(each.source), overwrite=False).todo == (job,)


def test_an_input_that_cannot_be_read_fails_alone(job: Job) -> None:
    def unreadable(_job: Job) -> str:
        raise AudioError("no audio")

    finish(job)
    assert sort_out([job], unreadable, overwrite=False).todo == (job,)


def test_a_pipe_is_not_read_to_compare_it(job: Job) -> None:
    finish(job)
    job.source.unlink()
    os.mkfifo(job.source)
    assert "is no regular file" in refusal(job)


def test_a_job_that_cannot_be_stored_is_left_to_fail_alone(job: Job) -> None:
    long = replace(job, target=job.target.with_name("x" * 250), fault="too long")
    assert sort_out([long], never, overwrite=False).todo == (long,)


def test_jobs_keep_their_order(job: Job) -> None:
    jobs = [replace(job, target=job.target.with_name(name), place=name) for name in "cab"]
    finish(jobs[1])
    found = sort_out(jobs, same, overwrite=False)
    assert [each.place for each in found.todo] == ["c", "b"]
    assert [each.place for each in found.skipped] == ["a"]


def test_a_fingerprint_depends_on_every_fact_and_not_on_their_order() -> None:
    facts = {"seed": 1, "sampling": {"a": 0.7, "b": 2}, "name": "\udcff.wav", "voice": None}
    assert fingerprint(facts) == fingerprint(dict(reversed(facts.items())))
    assert len({fingerprint(facts), *(fingerprint({**facts, name: "x"}) for name in facts)}) == 5
    assert fingerprint({"a": 1}) == hashlib.sha256(b'{"a":1}').hexdigest()


def test_a_fingerprint_of_nan_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        fingerprint({"a": float("nan")})


def test_a_file_is_hashed_by_its_bytes(tmp_path: Path) -> None:
    content = bytes(range(256)) * 5000
    (tmp_path / "a").write_bytes(content)
    assert file_sha256(tmp_path / "a") == hashlib.sha256(content).hexdigest()
