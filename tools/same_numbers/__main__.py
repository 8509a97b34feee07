"""`python -m tools.same_numbers COMMIT`: does this tree compute the same bits as that commit?

Each example that can run with `trainer.deterministic` trains one small step in both trees, in the same environment. The
token ids, logprobs and rewards of all rollouts, loss, gradient norm and the weights after the step are compared.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from loopwright.errors import LoopwrightError
from tools.compare.trees import Tree, worktree_of
from tools.same_numbers.examples import examples, numbers_of
from tools.same_numbers.numbers import GRADIENT, differences


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.same_numbers", description=__doc__)
    parser.add_argument("commit", help="what this tree is compared with")
    parser.add_argument("names", nargs="*", metavar="EXAMPLE", help="without .yaml; all of them if not given")
    given = parser.parse_args()
    here = Path(__file__).parents[2]
    runs = here / "runs"
    runs.mkdir(exist_ok=True)
    all_equal = True
    try:
        with (
            tempfile.TemporaryDirectory(dir=runs, prefix="same-numbers-") as temporary,
            worktree_of(given.commit, here, Path(temporary) / "tree") as there,
        ):
            trees = Tree("old", there, os.environ), Tree("new", here, os.environ)
            for name, reason in examples(here / "examples", tuple(given.names)):
                is_equal, said = (True, f"not compared: {reason}") if reason else _compared(name, *trees)
                all_equal = all_equal and is_equal
                print(f"{name:<20} {said}", flush=True)
    except LoopwrightError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0 if all_equal else 1


def _compared(name: str, old: Tree, new: Tree) -> tuple[bool, str]:
    """Whether both trees compute the same, and what to say of it."""
    if not (old.path / "examples" / f"{name}.yaml").is_file():
        return True, "not compared: it is new"
    started = time.monotonic()
    numbers = []
    for tree in (old, new):
        with tempfile.TemporaryDirectory(dir=new.path / "runs", prefix=f"same-{tree.name}-") as folder:
            numbers.append(numbers_of(name, tree, Path(folder) / "run"))
    seconds = f"{time.monotonic() - started:.0f} s"
    if found := list(differences(*numbers)):
        return False, "\n".join([f"DIFFERENT ({seconds})", *(f"  {line}" for line in found)])
    one = numbers[0]
    gradient = one.metrics[GRADIENT]
    # All groups had equal rewards: nothing was learned, so the learner's numbers say little.
    weak = "" if gradient else ", but no group taught anything"
    what = f"{len(one.chains)} rollouts, {one.sampled} sampled tokens, gradient norm {gradient}"
    return True, f"equal{weak} ({what}, {len(one.weights)} tensors, {seconds})"


if __name__ == "__main__":
    sys.exit(main())
