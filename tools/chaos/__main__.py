"""`python -m tools.chaos CONFIG --kills 20 --seed 0`: kill a run again and again, and see that nothing is lost (D1)."""

from __future__ import annotations

import argparse
import os
import random
import sys
from pathlib import Path

from loopwright.config import load
from loopwright.errors import LoopwrightError
from tools.chaos.chaos import Chaos, ChaosError


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.chaos", description=__doc__)
    parser.add_argument("config", type=Path, help="the config file of a run; the run in its folder is deleted")
    parser.add_argument("--kills", type=int, default=20, help="how often it is killed before it may finish")
    parser.add_argument("--seed", type=int, default=0, help="of the moments at which it is killed")
    parser.add_argument("--longest", type=int, default=6, help="train steps that a life lasts at most")
    given = parser.parse_args()
    try:
        folder = Path(load(given.config, env=os.environ).config.trainer.run_dir)
        chaos = Chaos(given.config, folder, random.Random(given.seed), longest=given.longest)
        chaos.run(given.kills)
    except (ChaosError, LoopwrightError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
