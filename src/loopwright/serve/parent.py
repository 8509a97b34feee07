"""Children die with their parent, however it ends.

On Linux the kernel kills the child when its parent is gone. Everywhere, the child also watches the pipe at its standard
input, of which the parent holds the other end: when it breaks, there is no parent any more.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading

PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Called by a child, early. Its standard input must be a pipe from its parent that carries nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # A parent that died before the call above is seen here: its end of the pipe is closed.
    threading.Thread(target=_watch, args=(sys.stdin.fileno(),), name="loopwright-parent", daemon=True).start()


def _watch(pipe: int) -> None:
    while os.read(pipe, 1):
        pass
    os._exit(1)
