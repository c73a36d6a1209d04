"""Sizes in headers, put right where their writer never came back. The file itself is not touched.

libsndfile takes a header at its word: a WAV whose recorder was killed, with data size 0, is empty to it, and
it refuses a CAF that was cut short, or a WAV whose odd chunks lack their padding.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass, replace
from typing import BinaryIO

LONGEST_HEAD = 1 << 24  # bytes before the samples; pictures in tags come near to one MiB
MOST_CHUNKS = 10_000
STREAMED = range(0x7FFFF000 - 255, 0x80000001)
"""About 2 GiB: what programs promise that cannot come back to their header (sox, arecord)."""
W64_DATA = b"data\xf3\xac\xd3\x11\x8c\xd1\x00\xc0\x4f\x8e\xdb\x8a"
DS64_DATA_SIZE = 28
"""Where RF64 keeps the size that its data chunk has no room for."""


@dataclass(frozen=True)
class Chunks:
    """How a container lays out its chunks: an id, a size, the content, filled up to `alignment`.

    preamble: bytes of the data chunk's content that come before the samples.
    """

    first: int
    size_format: str
    data: bytes
    alignment: int = 2
    counts_itself: bool = False
    preamble: int = 0

    @property
    def header_bytes(self) -> int:
        """Of an id and a size."""
        return len(self.data) + struct.calcsize(self.size_format)


CONTAINERS = {
    (b"RIFF", b"WAVE"): Chunks(12, "<I", b"data"),
    (b"RIFX", b"WAVE"): Chunks(12, ">I", b"data"),
    (b"RF64", b"WAVE"): Chunks(12, "<I", b"data"),
    (b"FORM", b"AIFF"): Chunks(12, ">I", b"SSND", preamble=8),
    (b"FORM", b"AIFC"): Chunks(12, ">I", b"SSND", preamble=8),
    (b"riff", b"\xa5\xd6\x28\xdb"): Chunks(40, "<Q", W64_DATA, alignment=8, counts_itself=True),
    (b"caff", b"desc"): Chunks(8, ">Q", b"data", alignment=1, preamble=4),
}
"""By bytes 0 to 3 and 8 to 11."""


@dataclass(frozen=True)
class Header:
    """A file up to its samples, with sizes that are true.

    n_file_bytes: its length in the file. n_sample_bytes: how many bytes of samples there are.
    replaced: what to read instead, None where it is fine. remark: for the record, where the file lied.
    """

    n_file_bytes: int
    n_sample_bytes: int
    replaced: bytes | None = None
    remark: str | None = None


def read_header(file: BinaryIO) -> Header | None:
    """The header of an open file; None if its kind is not known here, or it leads to no samples."""
    n_bytes = file.seek(0, os.SEEK_END)
    beginning = _read(file, 0, 12)
    if beginning[:4] in (b".snd", b"dns.") and len(beginning) == 12:
        size_format = ">I" if beginning[:4] == b".snd" else "<I"
        (begins,) = struct.unpack_from(size_format, beginning, 4)
        if not 24 <= begins <= min(n_bytes, LONGEST_HEAD):
            return None
        head = bytearray(_read(file, 0, begins))
        return _with_size(head, begins, 8, size_format, n_bytes - begins)
    chunks = CONTAINERS.get((beginning[:4], beginning[8:12]))
    return _read_chunks(file, n_bytes, chunks) if chunks else None


def _read_chunks(file: BinaryIO, n_bytes: int, chunks: Chunks) -> Header | None:
    """The same of a container of chunks."""
    found = _find_samples(file, n_bytes, chunks)
    if found is None:
        return None
    at, gaps = found
    begins = at + chunks.header_bytes
    head, size_at, size_format = bytearray(_read(file, 0, begins)), at + len(chunks.data), chunks.size_format
    if head[:4] == b"RF64" and head[12:16] == b"ds64" and head[size_at:] == b"\xff" * 4:
        size_at, size_format = DS64_DATA_SIZE, "<Q"
    if _is_empty(file, begins, n_bytes, chunks):
        return Header(begins, 0)
    n_extra = chunks.header_bytes * chunks.counts_itself
    header = _with_size(head, begins, size_at, size_format, n_bytes - begins, n_extra, chunks.preamble)
    if not gaps:
        return header
    for place, padding in reversed(gaps):
        head[place:place] = bytes(padding)
    return replace(header, replaced=bytes(head))


def _find_samples(file: BinaryIO, n_bytes: int, chunks: Chunks) -> tuple[int, list[tuple[int, int]]] | None:
    """Where the data chunk begins, and the gaps before it: where padding is missing, and how much."""
    at, gaps = chunks.first, list[tuple[int, int]]()
    for _ in range(MOST_CHUNKS):
        if at >= min(n_bytes, LONGEST_HEAD):
            return None
        name, size = _chunk_at(file, at, chunks)
        if name == chunks.data:
            return at, gaps
        if not _is_name(name):
            return None
        length = chunks.header_bytes + size
        at += length
        if padding := -length % chunks.alignment:
            if _is_chunk(file, at, n_bytes, chunks):
                gaps.append((at, padding))
            else:
                at += padding
    return None


def _with_size(
    head: bytearray,
    begins: int,
    size_at: int,
    size_format: str,
    n_there: int,
    n_extra: int = 0,
    preamble: int = 0,
) -> Header:
    """The header, with a true size where its own promises more than is there, or nothing.

    The size at `size_at` counts `n_extra` bytes and the `preamble` besides the samples. `n_there`: bytes that
    follow the header, preamble and all.
    """
    (size,) = struct.unpack_from(size_format, head, size_at)
    most = (1 << 8 * struct.calcsize(size_format)) - 1
    n_promised, n_usable = size - n_extra - preamble, n_there - preamble
    says_nothing = n_promised <= 0 or size == most or (size in STREAMED and n_promised > n_usable)
    if n_usable <= 0 or (n_promised <= n_usable and not says_nothing):
        return Header(begins, max(0, min(n_promised, n_usable)))
    struct.pack_into(size_format, head, size_at, min(n_there + n_extra, most - 1))
    if says_nothing:
        remark = f"the header gives no length (was its writer stopped?): all {n_usable} bytes there are used"
    else:
        remark = f"truncated: {n_usable} of {n_promised} bytes are there"
    return Header(begins, n_usable, bytes(head), remark)


def _is_empty(file: BinaryIO, begins: int, n_bytes: int, chunks: Chunks) -> bool:
    """Whether a data chunk says that it holds nothing, and another chunk follows: no sound, but tags."""
    _, size = _chunk_at(file, begins - chunks.header_bytes, chunks)
    return size <= chunks.preamble and _is_chunk(file, begins + size, n_bytes, chunks)


def _chunk_at(file: BinaryIO, at: int, chunks: Chunks) -> tuple[bytes, int]:
    """Id, and bytes of content; an empty id where the file ends."""
    header = _read(file, at, chunks.header_bytes)
    if len(header) < chunks.header_bytes:
        return b"", 0
    (size,) = struct.unpack_from(chunks.size_format, header, len(chunks.data))
    return header[: len(chunks.data)], max(0, size - chunks.header_bytes) if chunks.counts_itself else size


def _is_chunk(file: BinaryIO, at: int, n_bytes: int, chunks: Chunks) -> bool:
    """Whether there is a chunk, rather than sound: a name, and a size that has room."""
    if at > n_bytes:  # W64's sizes can lead further than a file offset can.
        return False
    name, size = _chunk_at(file, at, chunks)
    return name == chunks.data or (_is_name(name) and at + size <= n_bytes)


def _is_name(name: bytes) -> bool:
    """Whether an id can be one: four printable characters (the rest of W64's is a constant)."""
    return len(name) >= 4 and all(0x20 <= byte < 0x7F for byte in name[:4])


def _read(file: BinaryIO, at: int, n_bytes: int) -> bytes:
    """Bytes from a place; fewer where the file ends."""
    file.seek(at)
    return file.read(n_bytes)


class View:
    """A file behind a replaced header, as soundfile reads it. `trouble`: why it could not be read, if so."""

    def __init__(self, file: BinaryIO, head: bytes, n_replaced: int) -> None:
        self.trouble: OSError | None = None
        self._file, self._head, self._shift = file, head, n_replaced - len(head)
        self._n_bytes = file.seek(0, os.SEEK_END) - self._shift
        self._at = 0

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a place, as a file does."""
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._n_bytes}[whence]
        return self._at

    def tell(self) -> int:
        """The place."""
        return self._at

    def read(self, n_bytes: int) -> bytes:
        """The next bytes; fewer only at the end, or in trouble: C code would lose an error."""
        part = self._head[self._at : self._at + n_bytes]
        if len(part) < n_bytes:
            try:
                part += _read(self._file, self._at + len(part) + self._shift, n_bytes - len(part))
            except OSError as error:
                self.trouble = error
        self._at += len(part)
        return part
