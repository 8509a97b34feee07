"""What Ray reads from the environment. It does so when it is imported, so this comes first.

A cluster that we start is for this machine and this run alone: it listens on loopback, and only who has its token may
use it. One process can therefore start clusters, or join others, but not both.
"""

from __future__ import annotations

import os
import secrets
import sys

from loopwright.errors import ConfigError

KIND = "LOOPWRIGHT_RAY"
"""For what this process has prepared Ray's environment: `local` or `joined`."""


def prepare_environment(*, joins: bool) -> None:
    """Set what Ray is to find. `joins`: the cluster is somebody else's, and has its own token."""
    kind = "joined" if joins else "local"
    if "ray" in sys.modules and os.environ.get(KIND) != kind:
        raise ConfigError(
            "ray was imported in this process before the run could set it up, or for a cluster of another kind",
            remedy="open the run in a new process, and let no code of yours import ray while it is loaded",
        )
    os.environ[KIND] = kind
    # A stray call after the end would start another cluster.
    os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if joins:
        if "RAY_AUTH_TOKEN" in os.environ or "RAY_AUTH_TOKEN_PATH" in os.environ:
            # Ray looks at a token by itself only if it has found the cluster by itself.
            os.environ.setdefault("RAY_AUTH_MODE", "token")
        return
    # A side use of this switch: every socket is on loopback.
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    os.environ["RAY_AUTH_MODE"] = "token"
    if "ray" not in sys.modules:
        # Ray would make one itself, and write it into the user's home.
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
