"""A run went back to a checkpoint. Files of the undone steps lie there until these steps are archived again."""

from __future__ import annotations

import numpy as np

from loopwright.buffer.archive import Archive
from loopwright.buffer.storage.sqlite import SqliteStorage
from loopwright.ports import StalePolicy
from loopwright.runs.one_rollout import read_rollout
from loopwright.runs.run_folder import RunFolder
from loopwright.runs.stored_run import StoredRun
from loopwright.runs.text_search import search
from loopwright.types import Group, Rollout, RolloutKey, TrainedChain, TrainedRollout

ON_POLICY = StalePolicy()


def computed(rollout: Rollout) -> TrainedRollout:
    assert rollout.episode is not None
    (chain,) = rollout.episode.chains
    places = np.flatnonzero(chain.mask).astype(np.int32)
    numbers = TrainedChain(0, places, chain.logprobs[places] + np.float32(0.25), np.full(len(places), 1e-3, np.float32))
    return TrainedRollout(rollout.key, 0.5, 0.01, (numbers,))


async def test_nothing_of_an_undone_step_is_told_of_the_new_one(made_up_run: RunFolder) -> None:
    key, database = RolloutKey("train", 4, 0), made_up_run.rollouts
    stored = StoredRun(database).rollouts(3)
    group = Group("train", 4, stored[0].task, stored[:2])
    async with SqliteStorage(database) as storage:
        await storage.resume(["train"], step=2, next_draws=None, policy=ON_POLICY)
        await storage.consume([group], 3, [computed(one) for one in group.rollouts])
        await storage.archive(3)
    before = read_rollout(database, Archive.beside(database), key)
    assert before is not None
    assert before.trained is not None
    assert before.trained.chains
    async with SqliteStorage(database) as storage:
        await storage.resume(["train"], step=2, next_draws=None, policy=ON_POLICY)
        other = Group("train", 5, stored[2].task, stored[2:])
        await storage.consume([other], 3)
    assert (made_up_run.path / "archive" / "step-000003.parquet").is_file(), "it is what this is about"
    assert [hit.key.draw for hit in search(database, "What is").hits if hit.step == 3] == [5, 5]
    async with SqliteStorage(database) as storage:
        await storage.resume(["train"], step=2, next_draws=None, policy=ON_POLICY)
        # Without the numbers of tokens, as with `track.tokens: false`.
        await storage.consume([group], 3, [TrainedRollout(one.key, 0.5, 0.01) for one in group.rollouts])
    after = read_rollout(database, Archive.beside(database), key)
    assert after is not None
    assert after.trained is not None
    assert after.trained.chains == {}
