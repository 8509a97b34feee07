"""Derives an independent seed for each thing that needs one from the seed of the run.

Names are hashed with a fixed function: Python's `hash` is salted per process, and adding small integers would give
neighbours the same seeds.
"""

from __future__ import annotations

import hashlib


def derive_seed(*parts: str | int) -> int:
    """A 63-bit seed that depends on all parts, and only on them."""
    text = "\x1f".join(str(part) for part in parts).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1
