"""JSON that every reader accepts: no NaN, and names in any bytes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import PurePath


def json_text(value: object) -> str:
    """One line of JSON. NaN and infinities become null."""
    return json.dumps(_plain(value), ensure_ascii=False, allow_nan=False)


def json_bytes(value: object) -> bytes:
    """One line of JSON in UTF-8, without its line end."""
    return _utf8(json_text(value))


def json_page(members: Mapping[str, object]) -> bytes:
    """One object in UTF-8, a member a line, so that long lists do not become long columns."""
    lines = [f"  {json_text(name)}: {json_text(value)}" for name, value in members.items()]
    return _utf8("{\n" + ",\n".join(lines) + "\n}\n")


def valid_text(text: str) -> str:
    """Text that is valid Unicode: bytes of a name that could not be decoded become escapes."""
    return _utf8(text).decode("utf-8")


def _utf8(text: str) -> bytes:
    # Only lone surrogates cannot be encoded, and Python's escape for them is JSON's too.
    return text.encode("utf-8", "backslashreplace")


def _plain(value: object) -> object:
    if hasattr(value, "item"):  # A numpy number; numpy itself is not needed to see that.
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, PurePath):
        return value.as_posix()
    if isinstance(value, Mapping):
        return {str(name): _plain(member) for name, member in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(member) for member in value]
    return value
