"""What stands beside a reply: its token dump and its transcript, with one record of how it was made."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from personaplex_cli.errors import DumpError
from personaplex_cli.files.names import shown
from personaplex_cli.files.plain_json import json_bytes, json_page, json_text, valid_text

TOKENS_SCHEMA = "personaplex-tokens/1"
TRANSCRIPT_SCHEMA = "personaplex-transcript/1"
_DTYPES = {"text": "I32", "agent": "I16", "user": "I16"}
_NUMPY: dict[str, np.dtype[Any]] = {"I32": np.dtype("<i4"), "I16": np.dtype("<i2")}
_open: Any = safe_open  # It comes without types.


@dataclass(frozen=True)
class TokenDump:
    """A reply's tokens on the aligned or the stream timeline. text [F] int32, agent and user [K, F] int16"""

    text: NDArray[np.int32]
    agent: NDArray[np.int16]
    user: NDArray[np.int16]
    metadata: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Record:
    """How a reply was made; the same in the dump and in the transcript."""

    source: str
    source_sha256: str
    source_sample_rate: int
    sample_rate: int
    n_samples: int
    frame_rate: float
    samples_per_frame: int
    model: str
    model_fingerprint: str
    config_hash: str
    persona: Mapping[str, object]
    sampling: Mapping[str, object]
    seed: int
    timeline: str
    dtype: str
    device: str
    fingerprint: str
    versions: Mapping[str, str]
    audio_vocab_size: int | None = None
    extra: Mapping[str, object] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        """The record as JSON values; members of `extra` stand beside the others, None is left out."""
        own = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "extra"}
        return {name: value for name, value in {**self.extra, **own}.items() if value is not None}

    def to_metadata(self) -> dict[str, str]:
        """The record as strings, for safetensors: strings as they are, other values as JSON."""
        members = {"schema": TOKENS_SCHEMA, **self.to_json()}
        return {
            name: value if isinstance(value, str) else json_text(value) for name, value in members.items()
        }


def write_dump(path: Path, dump: TokenDump) -> None:
    """Write a token dump. The same dump gives the same bytes. Raises OSError."""
    tensors = {name: getattr(dump, name) for name in _DTYPES}
    path.write_bytes(_packed(tensors, {"schema": TOKENS_SCHEMA, **dump.metadata}))


def write_transcript(
    path: Path,
    record: Record,
    *,
    text: str,
    words: Iterable[tuple[str, float, float]],
    pieces: Sequence[str],
) -> None:
    """Write what was said: words as (word, start, end) in seconds, pieces one a frame. Raises OSError."""
    timed = [{"word": word, "start": round(start, 3), "end": round(end, 3)} for word, start, end in words]
    said = {"schema": TRANSCRIPT_SCHEMA, "text": text, "words": timed, "pieces": list(pieces)}
    path.write_bytes(json_page({**said, **record.to_json()}))


def read_metadata(path: Path) -> dict[str, str]:
    """A dump's record, read without its tokens; the file's length is checked, its values are not."""
    with _opened(path) as handle:
        return _metadata_of(handle)


def read_dump(path: Path) -> TokenDump:
    """Read a token dump and check it. Nothing in it is ever executed."""
    with _opened(path) as handle:
        metadata = _metadata_of(handle)
        if faults := list(_layout_faults(handle)):
            raise ValueError("; ".join(faults))
        text, agent, user = (handle.get_tensor(name) for name in _DTYPES)
    dump = TokenDump(text, agent, user, metadata)
    if faults := list(_range_faults(dump)):
        raise DumpError(f"{shown(path)}: {'; '.join(faults)}")
    return dump


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        if path.exists() and not path.is_file():
            raise ValueError("not a file")
        with _open(path, framework="np") as handle:
            yield handle
    except OSError as error:
        raise DumpError(f"{shown(path)}: cannot be read: {error.strerror or error}") from error
    except (SafetensorError, ValueError) as error:
        raise DumpError(f"{shown(path)}: not a whole token dump: {shown(error)}") from error


def _metadata_of(handle: Any) -> dict[str, str]:
    metadata: dict[str, str] = handle.metadata() or {}
    if metadata.get("schema") != TOKENS_SCHEMA:
        raise ValueError(f"its schema is {metadata.get('schema')!r}, not {TOKENS_SCHEMA!r}")
    return metadata


def _layout_faults(handle: Any) -> Iterator[str]:
    if missing := sorted(_DTYPES.keys() - set(handle.keys())):
        yield f"no tensor {', '.join(missing)}"
        return
    layout = {name: handle.get_slice(name) for name in _DTYPES}
    shapes = {name: tuple(tensor.get_shape()) for name, tensor in layout.items()}
    for name, dtype in _DTYPES.items():
        if layout[name].get_dtype() != dtype:
            yield f"{name} is {layout[name].get_dtype()}, not {dtype}"
    if len(shapes["text"]) != 1 or len(shapes["agent"]) != 2 or len(shapes["user"]) != 2:
        yield f"shapes {shapes} are not text [F], agent [K, F], user [K, F]"
    elif len({shape[-1] for shape in shapes.values()}) != 1 or shapes["agent"] != shapes["user"]:
        yield f"shapes {shapes} do not agree"


def _range_faults(dump: TokenDump) -> Iterator[str]:
    try:
        largest = int(dump.metadata.get("audio_vocab_size", np.iinfo(np.int16).max + 1)) - 1
    except ValueError:
        yield f"audio_vocab_size {dump.metadata['audio_vocab_size']!r} is not a number"
        return
    for name, codes in (("agent", dump.agent), ("user", dump.user)):
        if codes.size and not 0 <= codes.min() <= codes.max() <= largest:
            yield f"{name} codes {codes.min()} to {codes.max()} are not within 0 to {largest}"
    if dump.text.size and dump.text.min() < 0:
        yield f"text token {dump.text.min()} is negative"


def _packed(tensors: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> bytes:
    # Written here because the library writes metadata in random order: equal replies shall be equal files.
    header: dict[str, object] = {"__metadata__": {k: valid_text(v) for k, v in metadata.items()}}
    blocks, end = [], 0
    for name, tensor in tensors.items():
        dtype = _DTYPES[name]
        assert np.can_cast(tensor.dtype, _NUMPY[dtype], "equiv"), f"{name} is {tensor.dtype}"
        blocks.append(np.asarray(tensor, _NUMPY[dtype]).tobytes())
        begin, end = end, end + len(blocks[-1])
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json_bytes(header)
    text += b" " * (-len(text) % 8)
    return b"".join([len(text).to_bytes(8, "little"), text, *blocks])
