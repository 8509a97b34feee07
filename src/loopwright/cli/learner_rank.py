"""`loopwright learner-rank`: one rank of a run's learner. The run starts it; nobody types it."""

from __future__ import annotations

import json
import logging
import os
import sys

from loopwright.serve.parent import killed_with_parent


def learner_rank() -> None:
    """Train a shard of a model for the run that has started this process, by its pipes. It ends with that run."""
    killed_with_parent()
    calls, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    # What libraries print must not reach the reader of our answers, nor may they read its calls.
    os.dup2(2, 1)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    answers.write(json.dumps({"pid": os.getpid()}).encode() + b"\n")
    answers.flush()
    from loopwright.build import open_rank
    from loopwright.learn.ranks.serving import DriverPipe, serve_rank

    serve_rank(DriverPipe(calls, answers), open_rank)
