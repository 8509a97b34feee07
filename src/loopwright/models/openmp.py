"""Sets how OpenMP's threads wait for work. libgomp reads the setting once, when torch loads it, so it must be set
before.

libgomp's threads spin for milliseconds after each kernel before they sleep. On a busy machine, a spinning thread
occupies the core that a computing thread needs.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping

SPIN_COUNT = "GOMP_SPINCOUNT"
CHOICES = (SPIN_COUNT, "OMP_WAIT_POLICY")
"""If the user has set one of these variables, we set nothing."""

SPINS = 500
"""How many rounds a waiting thread spins: about as long as it takes to wake a thread. With fewer rounds a step takes
longer on a quiet machine, with more rounds on a busy one (measured, docs/benchmarks.md, `busy`)."""


def wait_without_spinning(env: MutableMapping[str, str]) -> None:
    """Let OpenMP's threads go to sleep soon, in this process and in processes that inherit `env`."""
    if not any(name in env for name in CHOICES):
        env[SPIN_COUNT] = str(SPINS)


def without_our_choice(env: Mapping[str, str]) -> dict[str, str]:
    """The environment as it was before `wait_without_spinning` was called, for processes that make their own choice."""
    return {name: value for name, value in env.items() if (name, value) != (SPIN_COUNT, str(SPINS))}
