"""The ranks of a learner, as the driver starts them. What each of them builds is in `build.rank`."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loopwright.build.hosted_rank import bound_to
from loopwright.build.parts import rank_threads
from loopwright.build.rank import RankSetup
from loopwright.config import Loaded
from loopwright.core.environment import computing_environment
from loopwright.core.own_command import own_command
from loopwright.errors import EngineLostError, LearnerLostError
from loopwright.learn.ranks.cut import RowCost
from loopwright.learn.ranks.gang import Gang
from loopwright.learn.ranks.learner import RankedLearner
from loopwright.learn.ranks.messages import RankPlace, RankReport
from loopwright.learn.ranks.remote import RemoteRank
from loopwright.learn.recipe import Recipe
from loopwright.models.compute import ComputeThread
from loopwright.models.outline import ModelOutline
from loopwright.runs.run_folder import RunFolder
from loopwright.serve.child import Child, child_process
from loopwright.serve.frames import frame, receive_frame
from loopwright.track.jsonl import JsonlTracker
from loopwright.weights.folder import weights_folder

if TYPE_CHECKING:
    from loopwright.cluster.cluster import Cluster

START_SECONDS = 120.0
"""Until a rank's Python has started. Loading the model comes later, and is watched by its beats."""
GRACE_SECONDS = 0.5
"""A rank has nothing to clean up."""
LOOPBACK = {"darwin": "lo0"}
"""What the interface of loopback is called; elsewhere it is `lo`."""


class ChildLine:
    """A rank in a child process."""

    def __init__(self, child: Child) -> None:
        self._child = child

    async def send(self, value: object) -> None:
        self._child.stdin.write(frame(value))
        await self._child.stdin.drain()

    async def receive(self) -> Any:
        return await receive_frame(self._child.stdout)

    async def ended(self) -> tuple[str, str]:
        return await self._child.ended(), self._child.last_words()

    def last_words(self) -> str:
        return self._child.last_words()


@asynccontextmanager
async def open_ranked_learner(
    loaded: Loaded,
    model: ModelOutline,
    recipe: Recipe,
    compute: ComputeThread,
    *,
    cache: Path,
    folder: RunFolder,
    env: Mapping[str, str],
    cluster: Cluster | None,
    journal: JsonlTracker,
) -> AsyncIterator[RankedLearner]:
    """Start the ranks, and wait until they have loaded the model. They end with the context, and with this process.
    `recipe` is the driver's. If the config has them on actors, these are on `cluster`. What each rank did in a step is
    written to `journal`."""
    count, silence = loaded.config.learner.ranks, loaded.config.trainer.stall_seconds
    threads = await compute.run(rank_threads, loaded.config)
    setup = RankSetup(replace(loaded, secrets={}, objects={}, environment={}), cache, threads)
    folder.ranks.mkdir(parents=True, exist_ok=True)
    async with AsyncExitStack() as stack:
        meeting_folder, address = stack.enter_context(weights_folder(folder.ranks)), None
        if cluster is not None and loaded.config.learner.is_on_actors:
            from loopwright.build.placed_ranks import rank_actors

            actors = await stack.enter_async_context(rank_actors(loaded.config, cluster, meeting_folder))
            ranks, address = actors.ranks, actors.address
        else:
            logs = [folder.ranks / f"rank-{number}.log" for number in range(count)]
            ranks = [await _started(number, log, env, stack) for number, log in enumerate(logs)]
        gang = Gang(ranks, silence)
        places = [RankPlace(number, count, meeting_folder, silence, setup, address) for number in range(count)]
        describes = (await gang.open(places))[0]
        # Products of the forward pass: two for each parameter and token, and two for each layer, feature and pair.
        cost = RowCost(2.0 * model.parameters, 2.0 * model.attention)

        def on_part(rank: int, step: int, report: RankReport) -> None:
            journal.note(
                "compute",
                step=step,
                start=report.started,
                seconds=report.seconds,
                who=f"rank {rank}",
                tokens=report.tokens,
                communication_seconds=round(report.communication_seconds, 3),
            )

        yield RankedLearner(gang, recipe, cost, model.tokenizer, compute, describes, on_part)


async def _started(number: int, log: Path, env: Mapping[str, str], stack: AsyncExitStack) -> RemoteRank:
    command = own_command("loopwright.cli", "learner-rank")
    private = computing_environment(env) | bound_to(LOOPBACK.get(sys.platform, "lo"), env)
    opening = child_process(command, env=private, log=log, ready_seconds=START_SECONDS, grace_seconds=GRACE_SECONDS)
    try:
        child = await stack.enter_async_context(opening)
    except EngineLostError as error:
        raise LearnerLostError.of_rank(number, error.message, "") from error
    rank = RemoteRank(number, ChildLine(child))
    stack.push_async_callback(rank.close)
    return rank
