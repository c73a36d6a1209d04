"""Silence for libraries that write to the process's output by themselves."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

STDOUT, STDERR = 1, 2
ONE_AT_A_TIME = threading.Lock()
"""Two threads that each put back what they found could leave the process mute."""


@contextmanager
def quiet() -> Iterator[None]:
    """File descriptors 1 and 2 lead nowhere meanwhile. What else writes there is lost too: keep it short."""
    with ONE_AT_A_TIME, ExitStack() as put_back:
        for stream in (STDOUT, STDERR):
            with suppress(OSError):  # It is closed: nobody hears anything anyway.
                kept = os.dup(stream)
                put_back.callback(os.close, kept)
                put_back.callback(os.dup2, kept, stream)
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, stream)
                os.close(nowhere)
        yield
