"""How OpenMP's threads wait for work. libgomp reads it once, when torch loads it: to be set before that.

libgomp's threads spin for milliseconds after each kernel before they sleep. On a machine with other work, a spinning
thread holds the core that the thread which still computes is waiting for.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping

SPIN_COUNT = "GOMP_SPINCOUNT"
CHOICES = (SPIN_COUNT, "OMP_WAIT_POLICY")
"""If the user has set one of them, we set nothing."""

SPINS = 500
"""Turns of the waiting loop: about as long as it takes to wake a thread. With fewer a quiet step takes longer, with
more a busy one (measured, docs/benchmarks.md, `busy`)."""


def wait_without_spinning(env: MutableMapping[str, str]) -> None:
    """Let the threads of OpenMP in this process, and in those that inherit `env`, go to sleep soon."""
    if not any(name in env for name in CHOICES):
        env[SPIN_COUNT] = str(SPINS)


def without_our_choice(env: Mapping[str, str]) -> dict[str, str]:
    """What the user has set, before `wait_without_spinning` was called: for processes that choose for themselves."""
    return {name: value for name, value in env.items() if (name, value) != (SPIN_COUNT, str(SPINS))}
