"""Voices by name, and the archive they may come in."""

from __future__ import annotations

import gzip
import io
import os
import random
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from personaplex_cli.errors import ModelError, SettingsError
from personaplex_cli.model import voices as module
from personaplex_cli.model.voices import Voices

Entry = tuple[tarfile.TarInfo, bytes]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(root))
    return root / "personaplex" / "voices"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    return folder


def entry(name: str, content: bytes = b"voice", kind: bytes = tarfile.REGTYPE, link: str = "") -> Entry:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, link
    member.size = len(content) if kind == tarfile.REGTYPE else 0
    return member, content


def tar_bytes(entries: Sequence[Entry]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for member, content in entries:
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def write_archive(model: Path, *entries: Entry, level: int = 1) -> Path:
    archive = model / "voices.tgz"
    archive.write_bytes(gzip.compress(tar_bytes(entries), level))
    return archive


def write_voice(model: Path, name: str, content: bytes = b"voice") -> Path:
    path = model / "voices" / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    return path


def files_below(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


# ---- names ----


def test_names_are_sorted_and_the_first_is_the_default(model: Path) -> None:
    for name in ("VARF0.pt", "NATM1.wav", "NATF2.pt"):
        write_voice(model, name)
    voices = Voices(model)
    assert voices.names() == ["NATF2", "NATM1", "VARF0"]
    assert voices.default() == model / "voices" / "NATF2.pt"


def test_a_model_without_voices_has_no_default(model: Path) -> None:
    assert Voices(model).names() == []
    assert Voices(model).default() is None
    with pytest.raises(SettingsError, match=r"voice NATF2: this model has no voices of its own; give a path"):
        Voices(model).path("NATF2")


@pytest.mark.parametrize("name", ["NATF2", "NATF2.pt", "natf2", "natf2.PT"])
def test_a_voice_is_found_by_name_with_or_without_suffix(model: Path, name: str) -> None:
    assert Voices(model).folder == model
    path = write_voice(model, "NATF2.pt")
    assert Voices(model).path(name) == path


def test_a_ready_prompt_is_taken_before_a_recording_of_the_same_name(model: Path) -> None:
    write_voice(model, "NATF2.wav")
    write_voice(model, "NATF2.pt")
    assert Voices(model).names() == ["NATF2"]
    assert Voices(model).path("NATF2").name == "NATF2.pt"
    assert Voices(model).path("NATF2.wav").name == "NATF2.wav"


def test_exact_capitals_win_and_ambiguous_ones_are_refused(model: Path) -> None:
    first, second = write_voice(model, "Ann.pt"), write_voice(model, "ANN.pt")
    if first.samefile(second):
        pytest.skip("this file system ignores capitals")
    assert Voices(model).path("Ann") == first
    assert Voices(model).path("ANN") == second
    with pytest.raises(SettingsError, match=r"voice ann: no such voice.*ANN, Ann"):
        Voices(model).path("ann")


@pytest.mark.parametrize("name", ["NATF22", "natf22", "NATF22.pt"])
def test_an_unknown_voice_is_refused_with_the_nearest_name_and_all_names(model: Path, name: str) -> None:
    for known in ("NATF2.pt", "VARM0.pt"):
        write_voice(model, known)
    with pytest.raises(SettingsError) as refused:
        Voices(model).path(name)
    assert refused.value.message == (
        f"voice {name}: no such voice. Did you mean NATF2? "
        "This model has NATF2, VARM0; or give a path to a file"
    )


def test_a_name_unlike_all_others_gets_no_suggestion(model: Path) -> None:
    write_voice(model, "NATF2.pt")
    with pytest.raises(SettingsError, match=r"voice grandmother: no such voice. This model has NATF2;"):
        Voices(model).path("grandmother")


def test_a_path_is_returned_as_it_is_and_unpacks_nothing(model: Path, tmp_path: Path, cache: Path) -> None:
    (model / "voices.tgz").write_bytes(b"not an archive")
    own = tmp_path / "my voice.flac"
    own.write_bytes(b"audio")
    assert Voices(model).path(str(own)) == own
    assert not cache.exists()


def test_a_file_in_the_working_folder_is_found_unless_the_model_has_a_voice_of_that_name(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("NATF2.pt", "mine.wav"):
        Path(name).write_bytes(b"own")
    published = write_voice(model, "NATF2.pt")
    assert Voices(model).path("mine.wav") == Path("mine.wav")
    assert Voices(model).path("NATF2.pt") == published
    assert Voices(model).path("./NATF2.pt") == Path("NATF2.pt")


@pytest.mark.parametrize("name", ["no/such.wav", "/no/such.pt", "~nobody-here/x.wav", "../voices/NATF2.pt"])
def test_a_path_to_nothing_is_refused(model: Path, name: str) -> None:
    write_voice(model, "NATF2.pt")
    with pytest.raises(SettingsError) as refused:
        Voices(model).path(name)
    assert refused.value.message == f"{name}: no such voice file"


@pytest.mark.parametrize("name", ["", ".", "..", "x" * 5000, "a\0b", "é\udcff"])
def test_odd_names_are_refused_as_names(model: Path, name: str) -> None:
    write_voice(model, "NATF2.pt")
    with pytest.raises(SettingsError, match="no such voice"):
        Voices(model).path(name)


def test_hidden_files_folders_and_other_files_are_no_voices(model: Path) -> None:
    write_voice(model, "NATF2.pt")
    write_voice(model, "._NATF2.pt")
    write_voice(model, ".part-NATF3.pt")
    write_voice(model, "README.txt")
    (model / "voices" / "folder.wav").mkdir()
    (model / "voices" / "gone.wav").symlink_to("nowhere")
    assert Voices(model).names() == ["NATF2"]


# ---- the archive ----


@pytest.mark.parametrize("prefix", ["", "./", "voices/", "./voices/", "a/b/"])
def test_an_archive_is_unpacked_into_the_cache_and_not_into_the_model(
    model: Path, cache: Path, prefix: str
) -> None:
    write_archive(
        model,
        entry(f"{prefix}NATF0.pt", b"first"),
        entry(f"{prefix}NATF1.pt", b"second"),
        entry(f"{prefix}._NATF0.pt", b"junk"),
        entry(f"__MACOSX/{prefix}._NATF1.pt", b"junk"),
    )
    voices = Voices(model)
    assert voices.names() == ["NATF0", "NATF1"]
    assert voices.path("NATF1").read_bytes() == b"second"
    assert voices.path("NATF1").is_relative_to(cache)
    assert files_below(model) == ["voices.tgz"]


def test_folders_and_an_empty_archive_are_fine(model: Path) -> None:
    write_archive(model, entry("voices/", kind=tarfile.DIRTYPE), entry("voices/", kind=tarfile.DIRTYPE))
    assert Voices(model).names() == []


def test_a_read_only_model_folder_is_enough(model: Path) -> None:
    write_archive(model, entry("NATF0.pt"))
    model.chmod(0o555)
    assert Voices(model).names() == ["NATF0"]
    model.chmod(0o755)


def test_an_unpacked_archive_is_not_read_again(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_archive(model, entry("NATF0.pt"))
    first = Voices(model).path("NATF0")
    monkeypatch.setattr(module, "checked_archive", None)
    assert Voices(model).path("NATF0") == first


def test_the_same_archive_in_two_models_is_unpacked_once(model: Path, tmp_path: Path, cache: Path) -> None:
    write_archive(model, entry("NATF0.pt"))
    copy = tmp_path / "copy"
    shutil.copytree(model, copy)
    assert Voices(model).path("NATF0") == Voices(copy).path("NATF0")
    assert len(list(cache.iterdir())) == 1


@pytest.mark.parametrize("place", [700_001, 1_500_000, 2_999_999])
def test_another_archive_of_the_same_size_is_another_one(model: Path, place: int) -> None:
    content = random.Random(0).randbytes(3_000_000)
    other = content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
    sizes = set()
    for contents in (content, other):
        archive = write_archive(model, entry("NATF0.pt", contents), level=0)
        sizes.add(archive.stat().st_size)
        assert Voices(model).path("NATF0").read_bytes() == contents
    assert len(sizes) == 1


@pytest.mark.parametrize("damage", ["removed", "cut off"])
def test_a_cache_that_lost_files_is_made_again(model: Path, damage: str) -> None:
    write_archive(model, entry("NATF0.pt", b"first"), entry("NATF1.pt", b"second"))
    path = Voices(model).path("NATF1")
    path.unlink() if damage == "removed" else path.write_bytes(b"sec")
    assert Voices(model).path("NATF1").read_bytes() == b"second"
    assert files_below(path.parent.parent) == [
        f"{path.parent.name}/{name}" for name in (".complete.json", "NATF0.pt", "NATF1.pt")
    ]


@pytest.mark.parametrize("leftover", ["without a list", "with a bad list", "a file"])
def test_a_half_unpacked_leftover_is_never_used(model: Path, leftover: str) -> None:
    archive = write_archive(model, entry("NATF0.pt", b"whole"), entry("NATF1.pt", b"whole"))
    target = module.cache_folder(archive)
    target.parent.mkdir(parents=True)
    if leftover == "a file":
        target.write_bytes(b"")
    else:
        target.mkdir()
        (target / "NATF0.pt").write_bytes(b"ha")
    if leftover == "with a bad list":
        (target / ".complete.json").write_text("[1")
    assert Voices(model).names() == ["NATF0", "NATF1"]
    assert Voices(model).path("NATF0").read_bytes() == b"whole"


def test_an_interrupted_unpacking_leaves_nothing_behind(
    model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_archive(model, entry("NATF0.pt"), entry("NATF1.pt"))

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfileobj", interrupted)
        with pytest.raises(KeyboardInterrupt):
            Voices(model).names()
    assert list(cache.iterdir()) == []
    assert Voices(model).names() == ["NATF0", "NATF1"]


# ---- a folder beside the archive ----


def test_a_whole_folder_beside_its_archive_is_used_as_it_is(model: Path, cache: Path) -> None:
    write_archive(model, entry("voices/NATF0.pt", b"12345"), entry("voices/LICENCE.txt"))
    path = write_voice(model, "NATF0.pt", b"abcde")
    assert Voices(model).path("NATF0") == path
    assert not cache.exists()


@pytest.mark.parametrize("state", ["empty", "one missing", "one cut off"])
def test_a_half_extracted_folder_is_repaired_from_the_archive(model: Path, state: str) -> None:
    write_archive(model, entry("voices/NATF0.pt", b"12345"), entry("voices/NATF1.pt", b"67890"))
    (model / "voices").mkdir()
    if state != "empty":
        write_voice(model, "NATF0.pt", b"12345")
    if state == "one cut off":
        write_voice(model, "NATF1.pt", b"67")
    assert Voices(model).names() == ["NATF0", "NATF1"]
    assert Voices(model).path("NATF1").read_bytes() == b"67890"


def test_own_voices_beside_a_half_extracted_folder_are_kept(model: Path) -> None:
    write_archive(model, entry("NATF0.pt"), entry("NATF1.pt"))
    write_voice(model, "NATF0.pt")
    mine = write_voice(model, "MINE.wav")
    assert Voices(model).names() == ["MINE", "NATF0", "NATF1"]
    assert Voices(model).path("MINE") == mine


def test_a_folder_is_compared_with_an_archive_that_is_unpacked_already_without_reading_it(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_archive(model, entry("NATF0.pt", b"12345"))
    assert Voices(model).names() == ["NATF0"]
    path = write_voice(model, "NATF0.pt", b"12345")
    monkeypatch.setattr(module, "checked_archive", None)
    assert Voices(model).path("NATF0") == path


# ---- several at once ----


def test_threads_that_unpack_at_once_all_succeed(model: Path, cache: Path) -> None:
    entries = [entry(f"voices/V{index}.pt", bytes([index]) * 20_000) for index in range(20)]
    write_archive(model, *entries)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: Voices(model).path("V7").read_bytes(), range(16)))
    assert found == [bytes([7]) * 20_000] * 16
    assert len(list(cache.iterdir())) == 1


def test_processes_that_unpack_at_once_all_succeed(model: Path, cache: Path) -> None:
    write_archive(model, *[entry(f"V{index}.pt", bytes([index]) * 20_000) for index in range(20)])
    code = "import sys; from pathlib import Path; from personaplex_cli.model.voices import Voices\n"
    code += "print(Voices(Path(sys.argv[1])).path('V7').read_bytes() == bytes([7]) * 20_000)"
    runs = [
        subprocess.Popen([sys.executable, "-c", code, str(model)], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    assert [run.communicate(timeout=60)[0].strip() for run in runs] == ["True"] * 3
    assert len(list(cache.iterdir())) == 1


def test_who_finds_the_archive_unpacked_by_another_uses_it(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = write_archive(model, entry("NATF0.pt"))
    write = module.write_members

    def another_is_faster(source: Path, folder: Path) -> None:
        write(source, folder)
        target = module.cache_folder(archive)
        if not target.exists():
            shutil.copytree(folder, target)

    monkeypatch.setattr(module, "write_members", another_is_faster)
    assert Voices(model).path("NATF0").parent == module.cache_folder(archive)


# ---- no place to write ----


def test_without_a_writable_cache_a_temporary_folder_is_used_and_removed_at_exit(
    model: Path, tmp_path: Path
) -> None:
    write_archive(model, entry("NATF0.pt", b"contents"))
    blocked, temporary = tmp_path / "blocked", tmp_path / "temporary"
    blocked.write_bytes(b"a file is in the way")
    temporary.mkdir()
    code = "import sys; from pathlib import Path; from personaplex_cli.model.voices import Voices\n"
    code += "path = Voices(Path(sys.argv[1])).path('NATF0'); print(path, path.read_text())"
    environment = {**os.environ, "XDG_CACHE_HOME": str(blocked), "TMPDIR": str(temporary)}
    run = subprocess.run(
        [sys.executable, "-c", code, str(model)], capture_output=True, text=True, env=environment, check=True
    )
    path, content = run.stdout.split()
    assert content == "contents"
    assert path.startswith(str(temporary))
    assert list(temporary.iterdir()) == []


def test_without_any_place_the_reason_is_given(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_archive(model, entry("NATF0.pt"))

    def full(*_: object, **__: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "mkdtemp", full)
    with pytest.raises(ModelError, match=r"cannot be unpacked .*No space left.*XDG_CACHE_HOME"):
        Voices(model).names()


def test_a_relative_cache_folder_is_ignored(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    archive = write_archive(model, entry("NATF0.pt"))
    expected = tmp_path / "home" / ".cache" / "personaplex" / "voices"
    assert module.cache_folder(archive).parent == expected


def test_an_archive_that_may_not_be_read_is_named(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = write_archive(model, entry("NATF0.pt"))
    write_voice(model, "NATF0.pt")
    real = Path.open

    def forbidden(path: Path, *rest: Any, **options: Any) -> Any:
        if path == archive:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *rest, **options)

    monkeypatch.setattr(Path, "open", forbidden)
    with pytest.raises(ModelError) as refused:
        Voices(model).names()
    assert refused.value.message == f"{archive}: cannot be read: Permission denied"


# ---- hostile and damaged archives ----

ATTACKS = {
    "an absolute name": (entry("/tmp/NATF1.pt"), "absolute"),
    "a drive letter": (entry("C:/NATF1.pt"), "absolute"),
    "a backslash": (entry("..\\NATF1.pt"), "backslash"),
    "a climb": (entry("../NATF1.pt"), "climbs out"),
    "a hidden climb": (entry("voices/../../NATF1.pt"), "climbs out"),
    "a folder that climbs": (entry("../voices", kind=tarfile.DIRTYPE), "climbs out"),
    "a symbolic link": (entry("NATF1.pt", kind=tarfile.SYMTYPE, link="/etc/passwd"), "is a link"),
    "a hard link": (entry("NATF1.pt", kind=tarfile.LNKTYPE, link="../secret"), "is a link"),
    "junk that is a link": (entry("._NATF1.pt", kind=tarfile.SYMTYPE, link="x"), "is a link"),
    "a pipe": (entry("NATF1.pt", kind=tarfile.FIFOTYPE), "neither a regular file nor a folder"),
    "a character device": (entry("NATF1.pt", kind=tarfile.CHRTYPE), "neither a regular file nor a folder"),
    "a block device": (entry("NATF1.pt", kind=tarfile.BLKTYPE), "neither a regular file nor a folder"),
    "a name twice": (entry("NATF0.pt"), "is there twice"),
    "a name twice in other letters": (entry("natf0.PT"), "is there twice"),
    "a name twice by another way": (entry("./NATF0.pt"), "is there twice"),
    "a file in a file": (entry("NATF0.pt/NATF1.pt"), "lies in a file"),
    "no name": (entry("."), "no name"),
}


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("with_folder", [False, True])
def test_a_hostile_member_is_refused_by_name_and_nothing_is_unpacked(
    model: Path, cache: Path, tmp_path: Path, attack: str, with_folder: bool
) -> None:
    (member, content), reason = ATTACKS[attack]
    write_archive(model, entry("NATF0.pt"), (member, content), entry("NATF9.pt"))
    if with_folder:
        write_voice(model, "NATF0.pt")
    before = files_below(tmp_path)
    with pytest.raises(ModelError) as refused:
        Voices(model).names()
    assert reason in refused.value.message
    assert refused.value.message.endswith("nothing was unpacked")
    assert repr(member.name).removeprefix("'./").strip("'") in refused.value.message
    assert files_below(tmp_path) == before
    assert not cache.exists() or list(cache.iterdir()) == []


def test_too_many_members_are_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_MEMBERS", 3)
    write_archive(model, *[entry(f"V{index}.pt", b"") for index in range(4)])
    with pytest.raises(ModelError, match=r"'V3.pt' is one too many \(more than 3\)"):
        Voices(model).names()


def test_an_absurd_size_is_refused_before_it_is_read(model: Path) -> None:
    huge = tarfile.TarInfo("V0.pt")
    huge.size = 5 << 30
    (model / "voices.tgz").write_bytes(gzip.compress(huge.tobuf() + bytes(1024)))
    with pytest.raises(ModelError, match=r"'V0.pt' makes 5,368,709,120 bytes in all"):
        Voices(model).names()


def test_a_header_that_promises_gigabytes_is_refused_without_taking_memory(model: Path) -> None:
    long_name = tarfile.TarInfo("././@LongLink")
    long_name.type, long_name.size = tarfile.GNUTYPE_LONGNAME, 3 << 30
    (model / "voices.tgz").write_bytes(gzip.compress(long_name.tobuf() + bytes(1024)))
    with pytest.raises(ModelError, match="an absurd header"):
        Voices(model).names()


def test_headers_that_announce_headers_without_end_are_refused(model: Path) -> None:
    long_name = tarfile.TarInfo("././@LongLink")
    long_name.type, long_name.size = tarfile.GNUTYPE_LONGNAME, 1
    announced = (long_name.tobuf() + b"a".ljust(512, b"\0")) * 5000
    (model / "voices.tgz").write_bytes(gzip.compress(announced + tar_bytes([entry("NATF0.pt")])))
    with pytest.raises(ModelError, match="damaged, or not a gzipped tar archive"):
        Voices(model).names()


def test_a_flood_behind_the_last_file_is_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_HEADER_BYTES", 1 << 16)
    content = gzip.compress(tar_bytes([entry("NATF0.pt")]) + bytes(1 << 17))
    (model / "voices.tgz").write_bytes(content)
    with pytest.raises(ModelError, match="something follows the last file"):
        Voices(model).names()


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "cut off": lambda packed: packed[: len(packed) // 2],
    "without its checksum": lambda packed: packed[:-8],
    "with a wrong checksum": lambda packed: packed[:-8] + b"\0" * 8,
    "empty": lambda _: b"",
    "a web page": lambda _: b"<!doctype html><title>Log in</title>",
    "a pointer": lambda _: b"version https://git-lfs\noid sha256:0\nsize 1\n",
    "no gzip": gzip.decompress,
    "gzip of something else": lambda _: gzip.compress(b"hello" * 300),
    "gzip of nothing": lambda _: gzip.compress(b""),
    "with a spoilt second header": lambda packed: gzip.compress(spoilt(gzip.decompress(packed), 1024 + 150)),
    "with contents that end early": lambda packed: gzip.compress(gzip.decompress(packed)[: 1024 + 600]),
}


def spoilt(content: bytes, place: int) -> bytes:
    return content[:place] + b"\xff" + content[place + 1 :]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_archive_says_what_to_do_and_leaves_nothing(model: Path, cache: Path, damage: str) -> None:
    archive = write_archive(model, entry("NATF0.pt"), entry("NATF1.pt", random.Random(0).randbytes(3000)))
    archive.write_bytes(DAMAGES[damage](archive.read_bytes()))
    with pytest.raises(ModelError) as refused:
        Voices(model).names()
    assert refused.value.message.startswith(f"{archive}: damaged, or not a gzipped tar archive (")
    assert refused.value.message.endswith("delete it and download it again")
    assert not cache.exists() or list(cache.iterdir()) == []


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    places=st.lists(st.tuples(st.integers(0, 4607), st.integers(0, 255)), min_size=1, max_size=4),
    formats=st.sampled_from([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT]),
)
def test_whatever_the_headers_say_the_files_stay_in_the_cache_or_are_refused(
    tmp_path: Path, places: list[tuple[int, int]], formats: int
) -> None:
    model = tmp_path / "fuzzed"
    model.mkdir(exist_ok=True)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=formats) as tar:
        for member, content in (entry("é" * 120 + ".pt"), entry("voices/NATF1.pt")):
            tar.addfile(member, io.BytesIO(content))
    packed = bytearray(buffer.getvalue())
    for place, value in places:
        packed[place] = value
        header = place // 512 * 512
        if packed[header + 257 : header + 262] == b"ustar":
            block = packed[header : header + 148] + b" " * 8 + packed[header + 156 : header + 512]
            packed[header + 148 : header + 156] = b"%06o\0 " % sum(block)
    (model / "voices.tgz").write_bytes(gzip.compress(bytes(packed), 1))
    before = {path for path in tmp_path.rglob("*") if not path.is_relative_to(tmp_path / "cache")}
    with suppress(ModelError):
        Voices(model).names()
    after = {path for path in tmp_path.rglob("*") if not path.is_relative_to(tmp_path / "cache")}
    assert after == before
