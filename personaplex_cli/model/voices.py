"""A model's voices by name: those in its folder `voices/`, and those in `voices.tgz`.

The archive is unpacked into the user's cache, since models may be read-only or shared.
"""

from __future__ import annotations

import atexit
import gzip
import hashlib
import json
import os
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path, PurePosixPath, PureWindowsPath

from personaplex_cli.errors import ModelError, SettingsError

FOLDER = "voices"
ARCHIVE = "voices.tgz"
# In this order: a ready prompt is taken before a recording of the same name.
SUFFIXES = (".pt", ".wav", ".flac", ".ogg", ".opus", ".mp3", ".aif", ".aiff")

MAX_MEMBERS = 10_000
MAX_BYTES = 4 << 30
MAX_HEADER_BYTES = 16 << 20
COMPLETE = ".complete.json"
# Forged headers also make tarfile run into its own numbers (ValueError) and into itself (RecursionError).
DAMAGED = (tarfile.TarError, EOFError, ValueError, RecursionError, zlib.error, gzip.BadGzipFile)


@dataclass(frozen=True)
class Voices:
    """The voices of the model in `folder`. Nothing is unpacked before a voice is asked for by name."""

    folder: Path

    def names(self) -> list[str]:
        """All names, sorted."""
        return sorted(self._by_name)

    def default(self) -> Path | None:
        """The first voice by name; None if the model has none."""
        names = self.names()
        return self._by_name[names[0]] if names else None

    def path(self, name: str) -> Path:
        """The file of a voice: `NATF2`, `NATF2.pt`, or a path to a file of the user's own."""
        own = own_file(name)
        if Path(name).name != name:
            if own is None:
                raise SettingsError(f"{name}: no such voice file")
            return own
        found = self._find(name) or own
        if found is None:
            raise SettingsError(self._unknown(name))
        return found

    @cached_property
    def _files(self) -> dict[str, Path]:
        """File name -> path."""
        own = voice_files(self.folder / FOLDER)
        archive = self.folder / ARCHIVE
        try:
            if not archive.is_file() or holds(own, archive):
                return own
            # The archive wins: a file of the folder that differs may be half extracted. Further voices stay.
            return own | voice_files(unpacked(archive))
        except OSError as error:
            raise ModelError(f"{error.filename or archive}: cannot be read: {error.strerror}") from error

    @cached_property
    def _by_name(self) -> dict[str, Path]:
        files = sorted(
            self._files.values(), key=lambda path: SUFFIXES.index(path.suffix.lower()), reverse=True
        )
        return {path.stem: path for path in files}

    def _find(self, name: str) -> Path | None:
        exact = self._by_name.get(name) or self._files.get(name)
        if exact is not None:
            return exact
        alike = {path for known, path in [*self._by_name.items(), *self._files.items()] if same(known, name)}
        return alike.pop() if len(alike) == 1 else None

    def _unknown(self, name: str) -> str:
        names = self.names()
        if not names:
            return f"voice {name}: this model has no voices of its own; give a path to a .wav or .pt file"
        stem = Path(name).stem if Path(name).suffix.lower() in SUFFIXES else name
        folded = {known.casefold(): known for known in names}
        close = get_close_matches(stem.casefold(), folded, n=1)
        hint = f" Did you mean {folded[close[0]]}?" if close else ""
        return (
            f"voice {name}: no such voice.{hint} This model has {', '.join(names)}; or give a path to a file"
        )


def own_file(name: str) -> Path | None:
    """The user's file of that name, if there is one."""
    try:
        path = Path(name).expanduser()
        return path if path.is_file() else None
    except (OSError, RuntimeError):
        return None


def same(one: str, other: str) -> bool:
    """Equal but for capitals."""
    return one.casefold() == other.casefold()


def voice_files(folder: Path) -> dict[str, Path]:
    """The voice files below a folder, by file name; hidden files and folders are nobody's voices."""
    found = {
        path.name: path
        for path in sorted(folder.rglob("*"), reverse=True)
        if path.suffix.lower() in SUFFIXES
        and not is_junk(PurePosixPath(path.relative_to(folder).as_posix()))
        and path.is_file()
    }
    return dict(sorted(found.items()))


def is_junk(name: PurePosixPath) -> bool:
    """What desktops leave in archives and folders: `._NATF0.pt`, `.DS_Store`, `__MACOSX/`."""
    return any(part.startswith(".") or part == "__MACOSX" for part in name.parts)


def holds(files: dict[str, Path], archive: Path) -> bool:
    """Whether the files are all that the archive has, in the same sizes."""
    if not files:
        return False
    sizes = {PurePosixPath(name): n_bytes for name, n_bytes in archive_sizes(archive).items()}
    return all(
        name.name in files and files[name.name].stat().st_size == n_bytes
        for name, n_bytes in sizes.items()
        if name.suffix.lower() in SUFFIXES
    )


# ---- the cache ----


def unpacked(archive: Path) -> Path:
    """The folder with the archive's files: in the cache, or where that cannot be written, a temporary one."""
    try:
        target = cache_folder(archive)
        if not is_complete(target):
            unpack_into(archive, target)
    except (OSError, RuntimeError):
        return unpack_for_this_run(archive)
    return target


def cache_folder(archive: Path) -> Path:
    """Where this archive belongs. RuntimeError if the user has no home."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or "")
    # The XDG rules: a relative path is ignored.
    base = root if root.is_absolute() else Path("~/.cache").expanduser()
    return base / "personaplex" / FOLDER / archive_id(archive)


def archive_id(archive: Path) -> str:
    """A name for the archive's contents, without reading all of it."""
    n_bytes = archive.stat().st_size
    block = 1 << 16
    digest = hashlib.sha256(str(n_bytes).encode())
    with archive.open("rb") as file:
        # The last block has gzip's checksum of the contents.
        for index in range(16):
            file.seek(max(0, n_bytes - block) * index // 15)
            digest.update(file.read(block))
    return digest.hexdigest()[:32]


def is_complete(folder: Path) -> bool:
    """Whether all files are (still) there: caches are cleaned by others, file by file."""
    sizes = listed_sizes(folder)
    files = [(folder / name, n_bytes) for name, n_bytes in (sizes or {}).items()]
    return sizes is not None and all(path.is_file() and path.stat().st_size == size for path, size in files)


def listed_sizes(folder: Path) -> dict[str, int] | None:
    """The list that is written beside unpacked files, or None."""
    try:
        sizes = json.loads((folder / COMPLETE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return sizes if isinstance(sizes, dict) else None


def archive_sizes(archive: Path) -> dict[str, int]:
    """Member -> bytes; from the cache, if the archive has been unpacked before."""
    try:
        listed = listed_sizes(cache_folder(archive))
    except RuntimeError:
        listed = None
    if listed is not None:
        return listed
    with checked_archive(archive) as (_, members):
        return {str(name): member.size for name, member in members.items()}


def unpack_into(archive: Path, target: Path) -> None:
    """Make `target` the archive's folder in one move; others may do the same at the same moment."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=".partial-", dir=target.parent))
    try:
        write_members(archive, partial)
        put_in_place(partial, target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def put_in_place(partial: Path, target: Path) -> None:
    """Rename; an incomplete folder in the way is moved aside, a complete one is as good as ours."""
    try:
        partial.rename(target)
    except OSError:
        if is_complete(target):
            return
        aside = Path(tempfile.mkdtemp(prefix=".partial-", dir=target.parent))
        try:
            target.rename(aside / "old")
            partial.rename(target)
        except OSError:
            if not is_complete(target):
                raise
        finally:
            shutil.rmtree(aside, ignore_errors=True)


def unpack_for_this_run(archive: Path) -> Path:
    """The archive's files in a folder that is removed at exit."""
    try:
        folder = Path(tempfile.mkdtemp(prefix="personaplex-voices-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        write_members(archive, folder)
    except OSError as error:
        raise ModelError(
            f"{archive}: cannot be unpacked ({error}); set XDG_CACHE_HOME to a writable folder with space"
        ) from error
    return folder


# ---- the archive ----


def write_members(archive: Path, folder: Path) -> None:
    """Write the archive's files, with contents and names only, and the list that says that they are all."""
    with checked_archive(archive) as (tar, members):
        for name, member in members.items():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            source = tar.extractfile(member)
            assert source is not None, "checked members are regular files"
            with source, target.open("xb") as file:
                shutil.copyfileobj(source, file)
    sizes = {str(name): member.size for name, member in members.items()}
    (folder / COMPLETE).write_text(json.dumps(sizes), encoding="utf-8")


@contextmanager
def checked_archive(archive: Path) -> Iterator[tuple[tarfile.TarFile, dict[PurePosixPath, tarfile.TarInfo]]]:
    """The opened archive and its files, after all of it has been read and found harmless."""
    try:
        with BoundedGzip(archive) as stream, tarfile.open(fileobj=stream, mode="r:") as tar:
            members = harmless_members(archive, tar)
            require_zeros(stream)
            yield tar, members
    except DAMAGED as error:
        raise ModelError(
            f"{archive}: damaged, or not a gzipped tar archive ({error}); delete it and download it again"
        ) from error


class BoundedGzip(gzip.GzipFile):
    """A gzip stream that refuses to read much at once, so that a forged header cannot take the memory."""

    def read(self, size: int | None = -1) -> bytes:
        """As gzip's own."""
        if size is None or size < 0 or size > MAX_HEADER_BYTES:
            raise tarfile.ReadError("an absurd header")
        return super().read(size)


def require_zeros(stream: BoundedGzip) -> None:
    """Read to the end: gzip checks its sum there, and tarfile takes a bad header for the end."""
    rest = stream.read(MAX_HEADER_BYTES)
    if rest.strip(b"\0") or stream.read(1):
        raise tarfile.ReadError("something follows the last file")


def harmless_members(archive: Path, tar: tarfile.TarFile) -> dict[PurePosixPath, tarfile.TarInfo]:
    """The regular files of an archive by their path; what could do harm is refused, with its name."""
    files: dict[PurePosixPath, tarfile.TarInfo] = {}
    taken: set[str] = set()
    n_bytes = 0
    for n_before, member in enumerate(tar):
        n_bytes += member.size
        name = PurePosixPath(member.name)
        fault = member_fault(member) or total_fault(n_before + 1, n_bytes)
        if fault is None and member.isreg():
            # File systems that ignore capitals would write the second over the first.
            fault = "is there twice" if str(name).casefold() in taken else None
            taken.add(str(name).casefold())
        if fault is not None:
            raise ModelError(f"{archive}: refused: the member {member.name!r} {fault}; nothing was unpacked")
        if member.isreg() and not is_junk(name):
            files[name] = member
    for name in files:
        if any(str(parent).casefold() in taken for parent in name.parents):
            raise ModelError(
                f"{archive}: refused: the member {str(name)!r} lies in a file; nothing was unpacked"
            )
    return files


def member_fault(member: tarfile.TarInfo) -> str | None:
    """What is wrong with one member, or None."""
    if member.size < 0 or (member.isreg() and not PurePosixPath(member.name).parts):
        return "has no name or a negative size"
    if PureWindowsPath(member.name).anchor or "\\" in member.name:
        return "has an absolute name or a backslash"
    if ".." in PurePosixPath(member.name).parts:
        return "climbs out of its folder"
    if member.issym() or member.islnk():
        return f"is a link (to {member.linkname!r})"
    if not (member.isdir() or member.isreg()) or member.issparse():
        return "is neither a regular file nor a folder"
    return None


def total_fault(n_members: int, n_bytes: int) -> str | None:
    """What is wrong with all members so far together, or None."""
    if n_members > MAX_MEMBERS:
        return f"is one too many (more than {MAX_MEMBERS:,})"
    if n_bytes > MAX_BYTES:
        return f"makes {n_bytes:,} bytes in all (more than {MAX_BYTES:,})"
    return None
