"""Make the inputs that every peer is given. A seed decides them, and nothing but the standard library computes them.

Groups are `plain` (every group has better and worse members) or `degenerate` (one member, equal rewards, rewards that
differ by rounding noise: where definitions part). Tokens are `near` (a step after sampling), `far` (ratios from 0.05 to
20) or `extreme` (log-ratios beyond the bounds that some peers put on them).
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

SEED = 20
DATA = Path(__file__).parents[2] / "tests" / "data" / "parity"
SETTINGS = {
    "clip_low": 0.2,
    "clip_high": 0.28,
    "dual_clip": 3.0,
    "constant_length": 16,
    "kl_coefficient": 0.05,
    "floor": 0.5,
    "cap": 2.0,
}
SPREADS = {"near": 0.1, "far": 1.0, "extreme": 8.0}
FLOAT32_NOISE = 2.0**-23
LENGTHS = (1, 1, 1, 1, 2, 9, 3, 6, 5, 7, 4, 2)
JUMPS = (25.0, 25.0, -25.0, -25.0)
"""How far the first four move in `extreme`: their advantages alternate in sign, so each direction has both."""


def main() -> None:
    dice = random.Random(SEED)
    groups = {"plain": _plain_groups(dice), "degenerate": _degenerate_groups(dice)}
    tokens = {name: _sequences(dice, spread) for name, spread in SPREADS.items()}
    made = {"seed": SEED, "settings": SETTINGS, "groups": groups, "tokens": tokens}
    DATA.mkdir(parents=True, exist_ok=True)
    (DATA / "inputs.json").write_text(json.dumps(made, indent=None, separators=(",", ":")) + "\n")


def _plain_groups(dice: random.Random) -> list[dict[str, Any]]:
    # Multiples of 1/1024 are exact in float32, in which TRL keeps rewards.
    continuous = [[dice.randrange(-1024, 2048) / 1024 for _ in range(size)] for size in (2, 4, 4, 7)]
    binary = [[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0], [0.0, 1.0], [1.0, 1.0, 0.0, 0.5]]
    return [_group(dice, rewards) for rewards in (*continuous, *binary)]


def _degenerate_groups(dice: random.Random) -> list[dict[str, Any]]:
    flat = [[0.75], [1.0, 1.0, 1.0], [0.0] * 4, [1.0, 1.0, 1.0, 1.0 + FLOAT32_NOISE]]
    return [_group(dice, rewards) for rewards in (*flat, [0.25, 0.5, 1.0, 0.0])]


def _group(dice: random.Random, rewards: list[float]) -> dict[str, Any]:
    return {"rewards": rewards, "lengths": [dice.randint(1, 9) for _ in rewards]}


def _sequences(dice: random.Random, spread: float) -> list[dict[str, Any]]:
    """The last one stays near: where every weight is masked, verl divides by zero."""
    if spread == SPREADS["extreme"]:
        moves = [*((SPREADS["far"], jump) for jump in JUMPS), *[(spread, 0.0)] * 7, (SPREADS["near"], 0.0)]
    else:
        moves = [(spread, 0.0)] * len(LENGTHS)
    signs = (1, -1) * (len(LENGTHS) // 2)
    return [_sequence(dice, n, *move, sign) for n, move, sign in zip(LENGTHS, moves, signs, strict=True)]


def _sequence(dice: random.Random, length: int, spread: float, jump: float, sign: int) -> dict[str, Any]:
    now = [-dice.expovariate(1.0) - 0.01 for _ in range(length)]
    away = {"old": jump, "sampled": 0.0, "reference": jump}
    others = {key: [dice.gauss(n - by, spread) for n in now] for key, by in away.items()}
    return {"advantage": sign * dice.uniform(0.1, 2.0), "logprobs": now, **others}


if __name__ == "__main__":
    main()
