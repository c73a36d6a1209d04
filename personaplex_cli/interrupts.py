"""Signals that ask us to stop, and the moments at which they had better wait."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

STOP_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
"""What people, schedulers and closing terminals send to end a program."""


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Let the signals that would stop the run wait until the block has ended, however it ends."""
    waiting: list[tuple[int, FrameType | None]] = []
    replaced: dict[int, Callable[[int, FrameType | None], object]] = {}
    try:
        if threading.current_thread() is threading.main_thread():
            for number in STOP_SIGNALS:
                handler = signal.getsignal(number)
                if callable(handler):
                    replaced[number] = handler
                    signal.signal(number, lambda *what: waiting.append(what))
        yield
    finally:
        for number, handler in replaced.items():
            signal.signal(number, handler)
        for number, frame in waiting:
            replaced[number](number, frame)
