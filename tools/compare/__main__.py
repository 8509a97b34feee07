"""`python -m tools.compare COMMIT grpo gateway`: is this tree slower than that commit?

Both run in the same environment, round by round in turn, without peers; three steps of the demo are always among it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path

from loopwright.cli.models import models_folder
from loopwright.errors import LoopwrightError
from tools.compare.contests import Contest, DemoContest, WorkerContest
from tools.compare.deadline import Deadline
from tools.compare.trees import Tree, worktree_of
from tools.compare.verdict import Comparison, Verdict

MINUTES = 30.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.compare", description=__doc__)
    parser.add_argument("commit", help="what this tree is compared with")
    parser.add_argument("names", nargs="*", metavar="BENCHMARK", help="see `loopwright bench`")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="how long it may take in all")
    parser.add_argument("--json", action="store_true", help="print every round")
    given = parser.parse_args()
    try:
        found = asyncio.run(_compare(given.commit, given.names, Deadline(60 * given.minutes)))
    except LoopwrightError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for comparison in found:
        print(comparison.line)
    if given.json:
        print(json.dumps([comparison.as_json() for comparison in found], indent=2))
    return int(any(comparison.verdict is Verdict.SLOWER for comparison in found))


async def _compare(commit: str, names: list[str], deadline: Deadline) -> list[Comparison]:
    here = Path(__file__).parents[2]
    runs = here / "runs"
    runs.mkdir(exist_ok=True)
    contests: list[Contest] = [*(WorkerContest(name, models_folder()) for name in names), DemoContest()]
    with tempfile.TemporaryDirectory(dir=runs, prefix="compare-") as temporary:
        folder = Path(temporary)
        with worktree_of(commit, here, folder / "tree") as there:
            old, new = Tree("old", there, os.environ), Tree("new", here, os.environ)
            found = []
            for index, contest in enumerate(contests):
                found.append(await _one(contest, old, new, folder, deadline.share(len(contests) - index)))
    return found


async def _one(contest: Contest, old: Tree, new: Tree, folder: Path, deadline: Deadline) -> Comparison:
    """Once more where the first answer is in doubt; all rounds count then."""
    comparison = Comparison(contest.name)
    for attempt in ("first", "second"):
        place = folder / f"{contest.name}-{attempt}"
        place.mkdir()
        comparison = comparison.with_rounds(await contest.run(old, new, place, deadline.share(2)))
        if comparison.verdict is not Verdict.DOUBTFUL:
            break
    return comparison.settled()


if __name__ == "__main__":
    sys.exit(main())
