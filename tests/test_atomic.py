"""Outputs appear whole or not at all, whatever stops the writer."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from personaplex_cli.errors import AudioError, OutputError
from personaplex_cli.files.atomic import finished_file, finished_files, is_disk_full, sweep_partials
from personaplex_cli.interrupts import interrupts_held

WRITER = """
import sys, time
from pathlib import Path
from personaplex_cli.files.atomic import finished_file
with finished_file(Path(sys.argv[1])) as partial:
    partial.write_bytes(b"half")
    print("written", flush=True)
    time.sleep(60)
"""


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def write_whole(target: Path, content: bytes) -> None:
    with finished_file(target) as partial:
        partial.write_bytes(content)


def write_together(*targets: Path) -> None:
    with finished_files(*targets) as partials:
        for partial in partials:
            partial.write_bytes(b"sound")


def fail_half_way(target: Path, error: BaseException) -> None:
    with finished_file(target) as partial:
        partial.write_bytes(b"half")
        raise error


def killed_writer(target: Path, number: signal.Signals) -> int:
    """Start a process, stop it while it writes `target`, and give its id."""
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, target], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"written\n"
        writer.send_signal(number)
    return writer.pid


def test_a_file_appears_when_the_block_ends_well(tmp_path: Path) -> None:
    target = tmp_path / "new" / "folder" / "a.b.wav"
    with finished_file(target) as partial:
        partial.write_bytes(b"sound")
        assert partial.suffix == ".wav"
        assert partial.name.startswith(".partial-")
        assert not target.exists()
    assert target.read_bytes() == b"sound"
    assert files_in(target.parent) == ["a.b.wav"]


@pytest.mark.parametrize("error", [AudioError("bad"), KeyboardInterrupt(), ZeroDivisionError()])
def test_after_a_failure_the_old_file_stands_and_nothing_else(tmp_path: Path, error: BaseException) -> None:
    target = tmp_path / "a.wav"
    target.write_bytes(b"old")
    with pytest.raises(type(error)):
        fail_half_way(target, error)
    assert target.read_bytes() == b"old"
    assert files_in(tmp_path) == ["a.wav"]


def test_a_writer_killed_in_mid_write_leaves_no_target_and_its_partial_is_swept(tmp_path: Path) -> None:
    target = tmp_path / "a.wav"
    pid = killed_writer(target, signal.SIGKILL)
    (left,) = files_in(tmp_path)
    assert left.startswith(f".partial-{pid}-")
    assert sweep_partials([tmp_path / "b.wav"]) == []
    assert sweep_partials([target, tmp_path / "b.wav"]) == [tmp_path / left]
    assert files_in(tmp_path) == []


def test_a_writer_interrupted_by_the_keyboard_leaves_nothing(tmp_path: Path) -> None:
    killed_writer(tmp_path / "a.wav", signal.SIGINT)
    assert files_in(tmp_path) == []


def test_sweeping_leaves_living_writers_and_other_files_alone(tmp_path: Path) -> None:
    target = tmp_path / "a.wav"
    with finished_file(target) as partial:
        partial.write_bytes(b"sound")
    living = partial.name.replace(f"-{os.getpid()}-", f"-{os.getppid()}-")
    kept = ["a.wav", living, ".partial-a.wav", ".partial-1-zz.wav"]
    for name in kept:
        (tmp_path / name).write_bytes(b"x")
    # In a container every run has the same process id: one of ours was left by an earlier run.
    partial.write_bytes(b"half")
    assert sweep_partials([target, tmp_path / "absent" / "c.wav"]) == [partial]
    assert files_in(tmp_path) == sorted(kept)


def test_a_block_that_writes_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"a\.wav: cannot be written"), finished_file(tmp_path / "a.wav"):
        pass


@pytest.mark.parametrize("name", ["x" * 251 + ".wav", os.fsdecode(b"\xff\n.wav"), "🎙" * 60, "-"])
def test_any_name_that_can_be_stored_can_be_written(tmp_path: Path, name: str) -> None:
    write_whole(tmp_path / name, b"sound")
    assert files_in(tmp_path) == [name]


def test_a_link_is_replaced_and_what_it_leads_to_is_kept(tmp_path: Path) -> None:
    precious = tmp_path / "precious.wav"
    precious.write_bytes(b"old")
    (tmp_path / "a.wav").symlink_to(precious)
    write_whole(tmp_path / "a.wav", b"new")
    assert precious.read_bytes() == b"old"
    assert (tmp_path / "a.wav").read_bytes() == b"new"


@pytest.mark.parametrize(
    ("target", "advice"),
    [
        ("file/a.wav", "a file stands where a folder is needed"),
        ("file/deeper/a.wav", "a file stands where a folder is needed"),
        ("folder", "a folder stands where the file should go"),
        ("x" * 256, "the name would be too long"),
        ("x" * 256 + "/a.wav", "the name would be too long"),
    ],
)
def test_what_is_in_the_way_is_told_with_what_to_do(tmp_path: Path, target: str, advice: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    with pytest.raises(OutputError, match=advice):
        write_whole(tmp_path / target, b"sound")
    assert files_in(tmp_path) == ["file", "folder"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS, errno.EIO])
def test_errors_of_the_system_become_errors_of_the_file(tmp_path: Path, number: int) -> None:
    with pytest.raises(OutputError, match=os.strerror(number)) as caught:
        fail_half_way(tmp_path / "a.wav", OSError(number, os.strerror(number)))
    assert is_disk_full(caught.value) == (number in (errno.ENOSPC, errno.EDQUOT))
    assert files_in(tmp_path) == []


def test_a_full_disk_fails_the_file_and_leaves_the_room_free(small_disk: Path) -> None:
    with pytest.raises(OutputError, match="the disk is full; make room") as caught:
        write_whole(small_disk / "a.wav", bytes(200_000))
    assert is_disk_full(caught.value)
    assert files_in(small_disk) == []
    write_whole(small_disk / "b.wav", bytes(20_000))
    assert files_in(small_disk) == ["b.wav"]


def test_an_interrupt_waits_until_all_files_stand_in_their_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = Path.replace

    def replace_and_interrupt(partial: Path, target: Path) -> Path:
        signal.raise_signal(signal.SIGINT)
        return replace(partial, target)

    monkeypatch.setattr(Path, "replace", replace_and_interrupt)
    targets = tmp_path / "a", tmp_path / "b", tmp_path / "c"
    with pytest.raises(KeyboardInterrupt):
        write_together(*targets)
    assert files_in(tmp_path) == ["a", "b", "c"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_is_not_lost_where_its_moment_ends_in_an_error() -> None:
    def fail_and_be_interrupted() -> None:
        with interrupts_held():
            signal.raise_signal(signal.SIGINT)
            raise OSError

    with pytest.raises(KeyboardInterrupt):
        fail_and_be_interrupted()


def test_files_that_belong_together_appear_together_or_not_at_all(tmp_path: Path) -> None:
    (tmp_path / "b" / "in_the_way").mkdir(parents=True)
    with pytest.raises(OutputError, match="/b: cannot be written"):
        write_together(tmp_path / "a", tmp_path / "b", tmp_path / "c")
    assert files_in(tmp_path) == ["b"]


def test_where_nothing_has_appeared_the_older_files_stay(tmp_path: Path) -> None:
    write_whole(tmp_path / "b", b"older")
    (tmp_path / "a" / "in_the_way").mkdir(parents=True)
    with pytest.raises(OutputError, match="/a: cannot be written"):
        write_together(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == b"older"
    assert files_in(tmp_path) == ["a", "b"]
