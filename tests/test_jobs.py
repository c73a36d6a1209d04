"""Sources become jobs, and what cannot be done as a whole is refused before anything starts."""

from __future__ import annotations

import io
import os
import socket
import unicodedata
from pathlib import Path

import pytest

from personaplex_cli.errors import SettingsError
from personaplex_cli.files import jobs
from personaplex_cli.files.jobs import Job, Plan, plan_jobs
from personaplex_cli.settings import Persona

PERSONA = Persona(role="You are kind.")


def put(path: Path, content: bytes = b"sound") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def plan(*sources: object, out: Path, stdin: bytes | None = None) -> Plan:
    listed = None if stdin is None else io.BytesIO(stdin)
    return plan_jobs([str(source) for source in sources], out, persona=PERSONA, seed=7, stdin=listed)


def refusal(*sources: object, out: Path, stdin: bytes | None = None) -> str:
    with pytest.raises(SettingsError) as caught:
        plan(*sources, out=out, stdin=stdin)
    return caught.value.message


def places(found: Plan) -> list[str]:
    return [job.place for job in found.jobs]


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    return tmp_path / "in"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def test_a_file_goes_into_the_output_folder_under_its_own_name(inputs: Path, out: Path) -> None:
    source = put(inputs / "x" / "a.b.flac")
    (job,) = plan(source, out=out).jobs
    assert job == Job(source, "a.b.flac", out / "a.b", "a.b", PERSONA, 7, origin=str(source))
    assert [path.name for path in job.outputs] == ["a.b.tokens.safetensors", "a.b.wav", "a.b.json"]
    assert job.output_names == ("a.b.wav", "a.b.tokens.safetensors", "a.b.json")


def test_a_folder_is_mirrored_in_a_fixed_order(inputs: Path, out: Path) -> None:
    for name in ("2/input.wav", "1/input.wav", "1/deep/er/input.wav", "z.mp3", "B.WAV"):
        put(inputs / name)
    found = plan(inputs, out=out)
    assert [job.name for job in found.jobs] == [
        "1/deep/er/input.wav",
        "1/input.wav",
        "2/input.wav",
        "B.WAV",
        "z.mp3",
    ]
    assert [job.target for job in found.jobs] == [out / place for place in places(found)]
    assert places(found)[0] == "1/deep/er/input"


def test_scans_ignore_hidden_files_leftovers_and_what_is_no_audio(inputs: Path, out: Path) -> None:
    put(inputs / "a.wav")
    for name in (
        "._a.wav",
        ".hidden.wav",
        ".git/b.wav",
        "__MACOSX/c.wav",
        ".DS_Store",
        "notes.txt",
        "d.zip",
        "e.mp4",
    ):
        put(inputs / name)
    assert places(plan(inputs, out=out)) == ["a"]


def test_explicit_paths_are_tried_whatever_their_name(inputs: Path, out: Path) -> None:
    sources = [put(inputs / name) for name in ("a.dat", "noname", ".wav", "._b.wav")]
    assert places(plan(*sources, out=out)) == ["a", "noname", ".wav", "._b"]


def test_a_hidden_folder_that_is_named_is_scanned(inputs: Path, out: Path) -> None:
    put(inputs / ".hidden" / "a.wav")
    assert places(plan(inputs / ".hidden", out=out)) == ["a"]


def test_a_folder_named_like_a_recording_is_a_folder(inputs: Path, out: Path) -> None:
    put(inputs / "x.wav" / "a.wav")
    assert places(plan(inputs, out=out)) == places(plan(inputs / "x.wav" / "..", out=out)) == ["x.wav/a"]


def test_links_do_not_loop_and_are_followed_once(inputs: Path, out: Path) -> None:
    put(inputs / "real" / "a.wav")
    put(inputs.parent / "elsewhere" / "b.wav")
    (inputs / "real" / "up").symlink_to(inputs)
    (inputs / "again").symlink_to(inputs / "real")
    (inputs / "far").symlink_to(inputs.parent / "elsewhere")
    (inputs / "far2").symlink_to(inputs.parent / "elsewhere")
    (inputs / "self").symlink_to(inputs / "self")
    assert places(plan(inputs, out=out)) == ["far/b", "real/a"]


def test_a_dangling_link_in_a_scan_is_a_job_that_will_fail_alone(inputs: Path, out: Path) -> None:
    put(inputs / "a.wav")
    (inputs / "gone.wav").symlink_to(inputs / "nowhere.wav")
    assert places(plan(inputs, out=out)) == ["a", "gone"]


def test_pipes_and_sockets_are_left_out_of_scans(
    inputs: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(inputs / "a.wav")
    os.mkfifo(inputs / "pipe.wav")
    monkeypatch.chdir(inputs)  # A socket's path must be short.
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket.wav")
        assert places(plan(inputs, out=out)) == ["a"]


def test_a_pipe_that_is_named_is_a_job(inputs: Path, out: Path) -> None:
    inputs.mkdir()
    os.mkfifo(inputs / "pipe.wav")
    assert places(plan(inputs / "pipe.wav", out=out)) == ["pipe"]


@pytest.mark.parametrize(
    "stdin",
    [b"{0}/a.wav\n{0}/b\xff.wav\n\n", b"{0}/a.wav\0{0}/b\xff.wav\0", b"{0}/a.wav\r\n{0}/b\xff.wav\r\n"],
    ids=["lines", "nul", "crlf"],
)
def test_standard_input_lists_paths_in_any_bytes(inputs: Path, out: Path, stdin: bytes) -> None:
    put(inputs / "a.wav")
    put(inputs / os.fsdecode(b"b\xff.wav"))
    found = plan("-", out=out, stdin=stdin.replace(b"{0}", os.fsencode(inputs)))
    assert [os.fsencode(job.place) for job in found.jobs] == [b"a", b"b\xff"]


def test_nul_separated_names_may_hold_newlines(inputs: Path, out: Path) -> None:
    source = put(inputs / "two\nlines.wav")
    assert places(plan("-", out=out, stdin=os.fsencode(source) + b"\0")) == ["two\nlines"]


def test_standard_input_is_read_once(inputs: Path, out: Path) -> None:
    source = put(inputs / "a.wav")
    assert "-: can be given once" in refusal("-", "-", out=out, stdin=os.fsencode(source))
    assert "-: can be given once" in refusal("-", out=out)


def test_a_list_on_standard_input_must_end(inputs: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = os.fsencode(put(inputs / "a.wav")) + b"\n"
    monkeypatch.setattr(jobs, "LONGEST_LIST_BYTES", len(listed))
    assert places(plan("-", out=out, stdin=listed)) == ["a"]
    assert "-: standard input does not end" in refusal("-", out=out, stdin=listed + b"\n")


@pytest.mark.parametrize(
    "name",
    ["with space.wav", "émoji 🎙.wav", "two\nlines.wav", "-dash.wav", "UP.WAV", os.fsdecode(b"\xff\xfe.wav")],
)
def test_unusual_names_work(inputs: Path, out: Path, name: str) -> None:
    source = put(inputs / name)
    assert places(plan(inputs, out=out)) == places(plan(source, out=out)) == [name[:-4]]


def test_a_name_that_would_become_too_long_fails_alone(inputs: Path, out: Path) -> None:
    for stem in ("a" * 236, "b" * 237, "c" * 251, "é" * 118, "é" * 119):
        put(inputs / f"{stem}.wav")
    fits, over, longest, accented_fits, accented_over = plan(inputs, out=out).jobs
    assert fits.fault is accented_fits.fault is None
    assert len(os.fsencode(fits.dump.name)) == len(os.fsencode(accented_fits.dump.name)) == 255
    for job, n_bytes in ((over, 256), (longest, 270), (accented_over, 257)):
        assert job.fault is not None
        assert f"too long, {n_bytes} bytes" in job.fault


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("a.wav", "a.flac"),
        ("a.wav", "A.flac"),
        ("straße.wav", "STRASSE.wav"),
        (unicodedata.normalize("NFC", "é.wav"), unicodedata.normalize("NFD", "é.wav")),
    ],
)
def test_two_inputs_with_one_output_are_refused_by_name(
    inputs: Path, out: Path, one: str, other: str
) -> None:
    put(inputs / one)
    put(inputs / other)
    message = refusal(inputs, out=out)
    assert str(inputs / one) in message
    assert str(inputs / other) in message


def test_equal_names_from_two_folders_are_refused(inputs: Path, out: Path) -> None:
    x, y = put(inputs / "x" / "a.wav"), put(inputs / "y" / "a.wav")
    assert f"{x} and {y} would both be written to {out / 'a.wav'}" in refusal(x, y, out=out)
    assert str(y) in refusal(inputs / "x", inputs / "y", out=out)
    assert " and " in refusal(inputs / "x", x, out=out)


def test_a_file_and_a_folder_of_one_stem_live_together(inputs: Path, out: Path) -> None:
    put(inputs / "a.wav")
    put(inputs / "a" / "b.wav")
    assert places(plan(inputs, out=out)) == ["a", "a/b"]


def test_an_output_file_where_a_folder_is_needed_is_refused(inputs: Path, out: Path) -> None:
    put(inputs / "x.flac")
    put(inputs / "x.wav" / "b.wav")
    assert f"needs a folder {out / 'x.wav'}" in refusal(inputs, out=out)
    put(inputs / "logs" / "run.jsonl" / "a.wav")
    assert f"needs a folder {out / 'run.jsonl'}" in refusal(inputs / "logs", out=out)


def reply(target: Path) -> None:
    for suffix in (".wav", ".tokens.safetensors", ".json"):
        put(target.with_name(target.name + suffix))


def test_an_output_folder_inside_the_input_is_not_scanned(inputs: Path) -> None:
    put(inputs / "a.wav")
    put(inputs / "out" / "user.wav")
    reply(inputs / "out" / "a")
    (inputs / "link").symlink_to(inputs / "out")
    assert places(plan(inputs, out=inputs / "out")) == ["a"]


def test_replies_of_an_earlier_run_in_the_same_tree_are_not_inputs(inputs: Path) -> None:
    put(inputs / "a.wav")
    reply(inputs / "replies1" / "a")
    assert places(plan(inputs, out=inputs / "replies2")) == ["a"]


def test_replies_can_be_inputs_of_another_run(inputs: Path, out: Path) -> None:
    reply(inputs / "a")
    assert places(plan(inputs, out=out)) == ["a"]


def test_outputs_may_stand_beside_their_inputs_if_the_names_differ(inputs: Path) -> None:
    put(inputs / "x" / "a.flac")
    assert places(plan(inputs, out=inputs)) == ["x/a"]
    reply(inputs / "x" / "a")
    assert places(plan(inputs, out=inputs)) == ["x/a"]


def test_an_input_is_never_overwritten(inputs: Path, tmp_path: Path) -> None:
    put(inputs / "a.wav")
    link = tmp_path / "link"
    link.symlink_to(inputs)
    for source, out in [(inputs, inputs), (link, inputs), (inputs, link), (inputs / "a.wav", inputs)]:
        assert "an input would be overwritten" in refusal(source, out=out)
    os.link(inputs / "a.wav", put(tmp_path / "hard" / "b.wav").with_name("a.wav"))
    assert "an input would be overwritten" in refusal(inputs, out=tmp_path / "hard")


def test_a_voice_or_a_manifest_is_never_overwritten(inputs: Path, out: Path) -> None:
    source, voice = put(inputs / "a.flac"), put(out / "a.wav")
    with pytest.raises(SettingsError, match="an input would be overwritten"):
        plan_jobs([str(source)], out, persona=Persona(voice=str(voice)), seed=0)
    put(out / "run.jsonl", b'{"path": "../in/a.flac", "output": "b"}')
    assert "an input would be overwritten" in refusal(out / "run.jsonl", out=out)


def test_all_faults_are_told_at_once(inputs: Path, out: Path) -> None:
    put(inputs / "a.wav")
    put(inputs / "a.mp3")
    put(out)
    (inputs / "dangling.wav").symlink_to("nowhere")
    bad = put(inputs / "list.jsonl", b'{"path": "nope.wav"}\n{"path": "a.wav", "vioce_prompt": "x"}\n[]')
    message = refusal("", inputs / "none.wav", inputs / "dangling.wav", inputs, bad, out=out)
    for fault in (
        f"{out}: a file; outputs need a folder",
        "a source is empty",
        f"{inputs / 'none.wav'}: No such file",
        "a link to nothing",
        "would both be written",
        f"{bad} line 1: path: {inputs / 'nope.wav'}: no such file",
        f"{bad} line 2: unknown column vioce_prompt; did you mean voice_prompt?",
        f"{bad} line 3: not an object",
    ):
        assert fault in message
    assert len(message.splitlines()) == 9


def test_names_cannot_break_a_message_into_lines(out: Path) -> None:
    assert "no\\x1b[31m\\nsuch\\udcff.wav" in refusal("no\x1b[31m\nsuch\udcff.wav", out=out)


def test_finding_nothing_is_an_error_that_says_what_was_looked_for(inputs: Path, out: Path) -> None:
    put(inputs / "readme.txt")
    reply(inputs / "out2" / "a")
    message = refusal(inputs, out=inputs)
    assert message.startswith("no recordings found")
    assert ".flac" in message
    assert "3 of other kinds, 1 from earlier runs" in message
    assert "no paths in it" in refusal("-", out=out, stdin=b"\n")
    assert "no source was given" in refusal(out=out)
    assert "no rows in it" in refusal(put(inputs / "empty.jsonl", b"\n"), out=out)


@pytest.mark.parametrize("name", ["out", "out/deeper/still"])
def test_an_output_folder_below_a_file_or_a_dead_link_is_refused(inputs: Path, out: Path, name: str) -> None:
    source = put(inputs / "a.wav")
    for leads_to in ("nowhere", out.name):
        out.symlink_to(leads_to)
        assert "a link to nothing" in refusal(inputs, source, out=out.parent / name)
        out.unlink()
    put(out)
    assert f"{out}: a file; outputs need a folder" in refusal(source, out=out.parent / name)


def test_an_output_folder_that_may_not_be_written_is_refused(
    inputs: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert "not permitted" in refusal(put(inputs / "a.wav"), out=out)


def test_a_folder_that_cannot_be_looked_into_is_a_fault(
    inputs: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(inputs / "a.wav")
    (inputs / "locked").mkdir()
    listing = Path.iterdir

    def locked(self: Path) -> object:
        if self.name == "locked":
            raise PermissionError(13, "Permission denied")
        return listing(self)

    monkeypatch.setattr(Path, "iterdir", locked)
    assert "locked: cannot be looked into: Permission denied" in refusal(inputs, out=out)


def test_a_manifest_gives_each_row_its_own_settings(inputs: Path, out: Path) -> None:
    put(inputs / "a.wav")
    rows = (
        b'{"path": "a.wav", "seed": 1, "text_prompt": "", "output": "one", "channel": 1}\n{"path": "a.wav"}'
    )
    one, other = plan(put(inputs / "list.jsonl", rows), out=out).jobs
    assert (one.place, one.seed, one.persona.role, one.channel) == ("one", 1, "", "1")
    assert (other.place, other.seed, other.persona, other.channel) == ("a", 7, PERSONA, None)
    assert other.origin == f"{inputs / 'list.jsonl'} line 2"


def test_a_manifest_with_duplicate_outputs_is_refused_by_line(inputs: Path, out: Path) -> None:
    put(inputs / "a.wav")
    put(inputs / "b.wav")
    rows = b'{"path": "a.wav"}\n{"path": "b.wav", "output": "A.wav"}'
    source = put(inputs / "list.jsonl", rows)
    assert f"{source} line 1 and {source} line 2 would both be written" in refusal(source, out=out)


def test_a_manifest_cannot_leave_the_output_folder_through_a_link(inputs: Path, out: Path) -> None:
    put(inputs / "a.wav")
    out.mkdir()
    (out / "loop").symlink_to(out / "loop")
    (out / "way").symlink_to(inputs)
    source = put(inputs / "list.jsonl", b'{"path": "a.wav", "output": "way/b"}')
    assert "leads out of the output folder by a link" in refusal(source, out=out)
