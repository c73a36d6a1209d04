"""Sources that can be read only once are copied, within bounds; all others must stay as they are."""

from __future__ import annotations

import errno
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import pytest

from personaplex_cli.errors import AudioError
from personaplex_cli.files import spool
from personaplex_cli.files.atomic import is_disk_full
from personaplex_cli.files.spool import OnDisk, stamp_of

CONTENT = bytes(range(256)) * 1000


@pytest.fixture(autouse=True)
def copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary copies stand; none may be left."""
    folder = tmp_path / "copies"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@contextmanager
def written_by(writer: Callable[[IO[bytes]], object], pipe: Path, *, after: float = 0.0) -> Iterator[Path]:
    """A pipe, and a thread that opens it `after` so many seconds."""

    def write() -> None:
        time.sleep(after)
        with suppress(BrokenPipeError), pipe.open("wb", buffering=0) as file:
            writer(file)

    os.mkfifo(pipe)
    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    yield pipe
    thread.join(10)
    assert not thread.is_alive()


def without_end(file: IO[bytes]) -> None:
    while file.write(b"y\n" * 4096):
        pass


def refusal(pipe: Path, idle_seconds: float | None = None) -> AudioError:
    with pytest.raises(AudioError) as caught:
        OnDisk(pipe, idle_seconds)
    return caught.value


# ---- files ----


def test_a_regular_file_is_used_where_it_is(tmp_path: Path) -> None:
    source = tmp_path / "a.wav"
    source.write_bytes(b"sound")
    with OnDisk(source) as held:
        assert held.path == source
        held.check()
    assert source.read_bytes() == b"sound"


def test_a_file_that_is_not_there_is_left_to_the_reader(tmp_path: Path) -> None:
    with OnDisk(tmp_path / "gone.wav") as held:
        assert held.path == tmp_path / "gone.wav"


def grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"!")


def replace(path: Path) -> None:
    before = path.stat()
    other = path.with_name("other")
    other.write_bytes(path.read_bytes())
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.rename(path)


def rewrite(path: Path) -> None:
    time.sleep(0.02)  # A file system's clock ticks every 10 ms at the slowest.
    path.write_bytes(b"SOUND")


def restore(path: Path) -> None:
    content = path.read_bytes()
    path.unlink()
    time.sleep(0.02)
    path.write_bytes(content)


@pytest.mark.parametrize("change", [grow, replace, rewrite, restore, Path.unlink])
@pytest.mark.parametrize("linked", [False, True])
def test_a_file_that_changes_while_it_is_read_is_that_files_error(
    tmp_path: Path, change: Callable[[Path], None], linked: bool
) -> None:
    source, link = tmp_path / "a.wav", tmp_path / "link.wav"
    source.write_bytes(b"sound")
    link.symlink_to(source)
    with OnDisk(link if linked else source) as held:
        held.check()
        change(source)
        with pytest.raises(AudioError) as caught:
            held.check()
    assert caught.value.message == (
        f"{held.path}: changed while it was read; run again when nobody writes to it"
    )


def test_a_file_that_has_changed_since_it_was_found_is_that_files_error(tmp_path: Path) -> None:
    source = tmp_path / "a.wav"
    source.write_bytes(b"sound")
    found = stamp_of(source)
    with OnDisk(source, stamp=found) as held:
        held.check()
    grow(source)
    with OnDisk(source, stamp=found) as held, pytest.raises(AudioError, match="changed while it was read"):
        held.check()


def test_a_file_that_is_only_looked_at_has_not_changed(tmp_path: Path) -> None:
    source = tmp_path / "a.wav"
    source.write_bytes(b"sound")
    with OnDisk(source) as held:
        os.utime(source, ns=(1, source.stat().st_mtime_ns))
        source.chmod(0o400)
        os.link(source, tmp_path / "b.wav")
        assert source.read_bytes() == b"sound"
        held.check()


# ---- pipes ----


def test_a_pipes_content_is_there_as_often_as_it_is_wanted(tmp_path: Path, copies: Path) -> None:
    with written_by(lambda file: file.write(CONTENT), tmp_path / "pipe.wav") as pipe, OnDisk(pipe) as held:
        copy = held.path
        assert (copy.suffix, copy.parent) == (".wav", copies)
        assert [copy.read_bytes(), copy.read_bytes()] == [CONTENT, CONTENT]
        pipe.unlink()
        held.check()
    held.check()
    assert not list(copies.iterdir())


def test_closing_twice_does_no_harm(tmp_path: Path, copies: Path) -> None:
    with written_by(lambda file: file.write(b"sound"), tmp_path / "pipe") as pipe:
        held = OnDisk(pipe)
        held.close()
        held.close()
    assert not list(copies.iterdir())


@pytest.mark.parametrize("idle_seconds", [None, 10])
def test_a_writer_may_come_late_and_pause(tmp_path: Path, idle_seconds: float | None) -> None:
    def with_pauses(file: IO[bytes]) -> None:
        for part in (CONTENT[:1000], CONTENT[1000:]):
            time.sleep(0.1)
            file.write(part)

    with (
        written_by(with_pauses, tmp_path / "pipe", after=0.2) as pipe,
        OnDisk(pipe, idle_seconds) as held,
    ):
        assert held.path.read_bytes() == CONTENT


def test_a_writer_that_writes_nothing_makes_an_empty_file(tmp_path: Path) -> None:
    with written_by(lambda _: None, tmp_path / "pipe", after=0.1) as pipe, OnDisk(pipe) as held:
        assert held.path.read_bytes() == b""


def test_a_pipe_without_a_writer_is_given_up(tmp_path: Path, copies: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    began = time.monotonic()
    assert refusal(tmp_path / "pipe", 0.2).message == (
        f"{tmp_path / 'pipe'}: nothing came from it for 0.2 s; start its writer first, or convert it alone"
    )
    assert 0.15 < time.monotonic() - began < 5
    assert not list(copies.iterdir())


def test_a_writer_that_falls_silent_is_given_up(tmp_path: Path, copies: Path) -> None:
    given_up = threading.Event()

    def fall_silent(file: IO[bytes]) -> None:
        file.write(CONTENT)
        given_up.wait(10)

    with written_by(fall_silent, tmp_path / "pipe") as pipe:
        assert "nothing came from it for 0.2 s" in refusal(pipe, 0.2).message
        given_up.set()
    assert not list(copies.iterdir())


def test_a_pipe_without_an_end_is_given_up_and_its_copy_removed(
    tmp_path: Path, copies: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool, "LONGEST_PIPE_BYTES", 3 << 20)
    with written_by(without_end, tmp_path / "pipe") as pipe:
        assert "pipe: does not end: more than 0.0 GiB came from it; save" in refusal(pipe).message
    assert not list(copies.iterdir())


def test_as_much_as_a_wav_can_hold_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert spool.LONGEST_PIPE_BYTES == 4 * 1024**3
    monkeypatch.setattr(spool, "LONGEST_PIPE_BYTES", len(CONTENT))
    with written_by(lambda file: file.write(CONTENT), tmp_path / "pipe") as pipe, OnDisk(pipe) as held:
        assert held.path.read_bytes() == CONTENT
    with written_by(lambda file: file.write(CONTENT + b"!"), tmp_path / "other") as pipe:
        assert "does not end" in refusal(pipe).message


def test_an_inherited_pipe_is_read_by_its_number() -> None:
    """What `<(...)` and /dev/stdin are. Its holder must find it as it was: waiting."""
    reading, writing = os.pipe()
    os.write(writing, b"sound")
    os.close(writing)
    try:
        with OnDisk(Path(f"/dev/fd/{reading}"), 10) as held:
            assert held.path.read_bytes() == b"sound"
        assert os.get_blocking(reading)
    finally:
        os.close(reading)


def test_a_reader_that_another_was_quicker_than_waits_on(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hasty:
        """Tells of arrivals all the time."""

        def register(self, *_: object) -> None: ...

        def poll(self, _: float | None) -> bool:
            return True

    monkeypatch.setattr(spool.select, "poll", Hasty)
    reading, writing = os.pipe()

    def write() -> None:
        time.sleep(0.1)
        os.write(writing, b"sound")
        os.close(writing)

    threading.Thread(target=write, daemon=True).start()
    with OnDisk(Path(f"/dev/fd/{reading}")) as held:
        assert held.path.read_bytes() == b"sound"
    os.close(reading)


def test_a_file_by_its_number_is_used_where_it_is(tmp_path: Path) -> None:
    """What /dev/stdin is after `< a.wav`."""
    (tmp_path / "a.wav").write_bytes(b"sound")
    with (tmp_path / "a.wav").open("rb") as file, OnDisk(Path(f"/dev/fd/{file.fileno()}")) as held:
        assert held.path.read_bytes() == b"sound"
        held.check()


def test_devices_are_read_like_pipes(copies: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with OnDisk(Path("/dev/null"), 10) as held:
        assert held.path.read_bytes() == b""
    monkeypatch.setattr(spool, "LONGEST_PIPE_BYTES", 1 << 20)
    assert refusal(Path("/dev/zero"), 10).message.startswith("/dev/zero: does not end")
    assert not list(copies.iterdir())


def test_a_pipe_that_cannot_be_opened_is_that_files_error(
    tmp_path: Path, copies: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe, open_any = tmp_path / "pipe", os.open

    def open_but(path: Any, *arguments: Any, **options: Any) -> int:
        if path == pipe:
            raise PermissionError(errno.EACCES, "Permission denied")
        return open_any(path, *arguments, **options)

    os.mkfifo(pipe)
    monkeypatch.setattr(os, "open", open_but)
    assert refusal(pipe).message == f"{pipe}: cannot be read: Permission denied"
    assert not list(copies.iterdir())


def test_a_full_temporary_folder_is_named_and_does_not_end_the_run(
    tmp_path: Path, copies: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = tempfile.NamedTemporaryFile

    def with_a_full_disk(**options: Any) -> Any:
        copy = make(**options)

        def refuse(_: bytes) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        copy.write = refuse
        return copy

    monkeypatch.setattr(tempfile, "NamedTemporaryFile", with_a_full_disk)
    with written_by(lambda file: file.write(CONTENT), tmp_path / "pipe") as pipe:
        error = refusal(pipe)
    assert error.message == (
        f"{pipe}: cannot be copied to {copies}: No space left on device; "
        "make room there, or set TMPDIR to another folder"
    )
    assert not is_disk_full(error)
    assert not list(copies.iterdir())


def test_no_temporary_folder_at_all_is_that_files_error(tmp_path: Path, copies: Path) -> None:
    copies.rmdir()
    os.mkfifo(tmp_path / "pipe")
    assert (
        f"pipe: cannot be copied to {copies}: No such file or directory" in refusal(tmp_path / "pipe").message
    )


def test_a_pipes_name_may_be_as_long_as_names_may_be(tmp_path: Path) -> None:
    name = "a." + "é" * 126 + "b"
    with written_by(lambda file: file.write(CONTENT), tmp_path / name) as pipe, OnDisk(pipe) as held:
        assert held.path.read_bytes() == CONTENT


def test_ctrl_c_ends_the_wait_for_a_writer(tmp_path: Path, copies: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(0.2, signal.pthread_kill, [threading.get_ident(), signal.SIGINT])
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            OnDisk(tmp_path / "pipe")
    finally:
        timer.join()
        signal.signal(signal.SIGINT, before)
    assert not list(copies.iterdir())
