"""Makes child processes die with their parent, no matter how the parent ends.

On Linux the kernel kills the child when its parent is gone. On all systems the child also watches its standard input, a
pipe whose other end the parent holds. When the pipe closes, the parent is gone.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading

PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """A child calls this when it starts. Its standard input must be a pipe from its parent that carries no data."""
    killed_with_parent()
    # If the parent died before the call above, this thread notices it: the parent's end of the pipe is closed.
    threading.Thread(target=_watch, args=(sys.stdin.fileno(),), name="loopwright-parent", daemon=True).start()


def killed_with_parent() -> None:
    """Ask the kernel for it. Nothing happens if the parent is gone already: who reads from its pipe notices that."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _watch(pipe: int) -> None:
    while os.read(pipe, 1):
        pass
    os._exit(1)
