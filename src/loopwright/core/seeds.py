"""One run seed, split into as many independent ones as there are things to seed.

Python's `hash` is salted per process and adding small integers makes neighbours collide, so names are hashed.
"""

from __future__ import annotations

import hashlib


def derive_seed(*parts: str | int) -> int:
    """A 63-bit seed that depends on every part and on nothing else."""
    text = "\x1f".join(str(part) for part in parts).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1
