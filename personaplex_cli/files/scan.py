"""The recordings in a folder and below it."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from personaplex_cli.files.names import DUMP, WAV, identity_of, mode_of, real, shown

AUDIO_SUFFIXES = frozenset(
    {".wav", ".wave", ".bwf", ".rf64", ".w64", ".flac", ".ogg", ".oga", ".opus", ".mp3"}
    | {".aif", ".aiff", ".aifc", ".au", ".snd", ".caf", ".sph", ".nist", ".voc"}
)
"""What a scan takes for a recording, in any case of letters: the usual names of what libsndfile reads."""


@dataclass
class Scan:
    """What a scan found: names relative to the folder, sorted; and what it left out or could not see."""

    names: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    n_others: int = 0
    n_own: int = 0


def scan_folder(root: Path, out: Path) -> Scan:
    """Find the recordings below `root`, in a fixed order. Our own outputs in `out` are not among them."""
    walk = _Walk(root, out)
    folders, linked = [""], list[str]()
    # Real folders before linked ones: what can be reached both ways is named after where it stands.
    while folders or linked:
        linked.sort()
        prefix = folders.pop() if folders else linked.pop(0)
        for name, is_link in walk.visit(prefix):
            (linked if is_link else folders).append(name)
    walk.scan.names.sort()
    return walk.scan


class _Walk:
    def __init__(self, root: Path, out: Path) -> None:
        self.root = root
        self.scan = Scan()
        self._seen: set[tuple[int, int]] = set()
        self._out = identity_of(out)
        self._has_outputs = real(out).is_relative_to(real(root))

    def visit(self, prefix: str) -> Iterator[tuple[str, bool]]:
        """Keep the recordings of one folder; give its subfolders, and whether they are links."""
        folder = self.root / prefix
        identity = identity_of(folder)
        if identity is not None and (identity in self._seen or (prefix and identity == self._out)):
            return
        if identity is not None:
            self._seen.add(identity)
        try:
            entries = sorted(folder.iterdir())
        except OSError as error:
            self.scan.faults.append(f"{shown(folder)}: cannot be looked into: {error.strerror}")
            return
        names = {entry.name for entry in entries}
        for entry in entries:
            if entry.name.startswith(".") or entry.name == "__MACOSX":
                continue
            name = f"{prefix}/{entry.name}" if prefix else entry.name
            mode = mode_of(entry)
            if stat.S_ISDIR(mode):
                yield name, entry.is_symlink()
            elif stat.S_ISREG(mode) or not mode:  # A dangling link is kept: it fails alone when it is read.
                self._keep(name, names)

    def _keep(self, name: str, siblings: set[str]) -> None:
        last = PurePosixPath(name).name
        if PurePosixPath(last).suffix.lower() not in AUDIO_SUFFIXES:
            self.scan.n_others += 1
        elif self._has_outputs and last.endswith(WAV) and last.removesuffix(WAV) + DUMP in siblings:
            self.scan.n_own += 1
        else:
            self.scan.names.append(name)
