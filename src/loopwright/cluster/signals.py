"""Ray's native code puts its own handlers in place of ours. Its handler for SIGTERM prints a stack, lets ours run, and
aborts the process three seconds later, so a run that is told to stop would never write its checkpoint."""

from __future__ import annotations

import ctypes
import signal
from collections.abc import Iterator
from contextlib import contextmanager

SIGNALS = (
    *(signal.SIGTERM, signal.SIGINT, signal.SIGSEGV, signal.SIGILL),
    *(signal.SIGFPE, signal.SIGABRT, signal.SIGBUS, signal.SIGTRAP),
)
ACTION_BYTES = 1024
"""More than a `struct sigaction` takes on any system."""


@contextmanager
def kept_signal_handlers() -> Iterator[None]:
    """After this block, signals have the handlers that they had before it. Any thread may use it, unlike
    Python's own functions for signals."""
    libc = ctypes.CDLL(None)
    before = {number: ctypes.create_string_buffer(ACTION_BYTES) for number in SIGNALS}
    for number, action in before.items():
        libc.sigaction(number, None, action)
    try:
        yield
    finally:
        for number, action in before.items():
            libc.sigaction(number, action, None)
