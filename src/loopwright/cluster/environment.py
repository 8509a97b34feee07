"""What Ray reads from the environment. It does so when it is imported, so this comes first.

A cluster that we start is for this machine and this run alone.
"""

from __future__ import annotations

import os
import secrets
import sys


def prepare_environment(*, joins: bool) -> None:
    """Set what Ray is to find. `joins`: the cluster is somebody else's, and has its own token."""
    if "ray" in sys.modules and "RAY_ENABLE_AUTO_CONNECT" not in os.environ:
        raise RuntimeError("ray was imported before its environment was prepared")
    # A stray call after the end would start another cluster.
    os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if not joins:
        # A side use of this switch: every socket is on loopback.
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
