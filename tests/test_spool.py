"""Sources that can be read only once are copied; all others are used as they are."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from personaplex_cli.errors import AudioError
from personaplex_cli.files.spool import OnDisk


def pipe_with(content: bytes, path: Path) -> Path:
    os.mkfifo(path)
    threading.Thread(target=path.write_bytes, args=[content], daemon=True).start()
    return path


def test_a_regular_file_is_used_where_it_is(tmp_path: Path) -> None:
    source = tmp_path / "a.wav"
    source.write_bytes(b"sound")
    with OnDisk(source) as held:
        assert held.path == source
    assert source.read_bytes() == b"sound"


def test_a_pipes_content_is_there_as_often_as_it_is_wanted(tmp_path: Path) -> None:
    content = bytes(range(256)) * 1000
    with OnDisk(pipe_with(content, tmp_path / "pipe.wav")) as held:
        copy = held.path
        assert copy.suffix == ".wav"
        assert [copy.read_bytes(), copy.read_bytes()] == [content, content]
    assert not copy.exists()


def test_closing_twice_does_no_harm(tmp_path: Path) -> None:
    held = OnDisk(pipe_with(b"sound", tmp_path / "pipe"))
    held.close()
    held.close()
    assert not held.path.exists()


def test_a_device_that_cannot_be_opened_is_that_files_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(AudioError, match=r"pipe: cannot be read: Permission denied"):
        OnDisk(pipe)


def test_a_file_that_is_not_there_is_left_to_the_reader(tmp_path: Path) -> None:
    with OnDisk(tmp_path / "gone.wav") as held:
        assert held.path == tmp_path / "gone.wav"
