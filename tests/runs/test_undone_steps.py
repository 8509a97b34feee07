"""A run went back to a checkpoint. Files of the undone steps lie there until these steps are archived again."""

from __future__ import annotations

import numpy as np
import pytest

from loopwright.buffer.archive import Archive
from loopwright.buffer.storage.sqlite import SqliteStorage
from loopwright.ports import StalePolicy
from loopwright.runs.one_rollout import read_rollout
from loopwright.runs.run_folder import RunFolder
from loopwright.runs.step_groups import trained_steps
from loopwright.runs.stored_run import StoredRun
from loopwright.runs.text_search import Hit, search
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
    found = search(database, "What is")
    assert found is not None
    assert [hit.key.draw for hit in found.hits if hit.step == 3] == [5, 5]
    async with SqliteStorage(database) as storage:
        await storage.resume(["train"], step=2, next_draws=None, policy=ON_POLICY)
        # Without the numbers of tokens, as with `track.tokens: false`.
        await storage.consume([group], 3, [TrainedRollout(one.key, 0.5, 0.01) for one in group.rollouts])
    after = read_rollout(database, Archive.beside(database), key)
    assert after is not None
    assert after.trained is not None
    assert after.trained.chains == {}


async def test_a_list_of_steps_and_a_search_start_again_after_a_resume(made_up_run: RunFolder) -> None:
    database = made_up_run.rollouts
    steps, hits = trained_steps(database, most=2), search(database, "What is", most=3)
    assert steps is not None
    assert hits is not None
    assert ([one.step for one in steps.steps], len(hits.hits)) == ([3, 2], 3)
    rest, others = trained_steps(database, cursor=steps.next), search(database, "What is", cursor=hits.next)
    assert rest is not None
    assert others is not None
    assert ([one.step for one in rest.steps], rest.next) == ([1], None)
    assert (len(others.hits), others.next) == (9, None)
    async with SqliteStorage(database) as storage:
        await storage.resume(["train"], step=2, next_draws=None, policy=ON_POLICY)
    assert trained_steps(database, cursor=steps.next) is None
    assert search(database, "What is", cursor=hits.next) is None
    again = trained_steps(database, most=2)
    assert again is not None
    assert [one.step for one in again.steps] == [2, 1]


@pytest.mark.parametrize("most", [1, 2, 3, 5, 12, 100])
@pytest.mark.parametrize("seconds", [1.0, 0.0])
def test_pages_of_a_search_have_each_hit_once(made_up_run: RunFolder, most: int, seconds: float) -> None:
    """Also if a page ends within a step, or the time is over after each step."""
    found, cursor, steps = list[Hit](), None, 0
    for _ in range(40):
        page = search(made_up_run.rollouts, "What is", cursor=cursor, most=most, seconds=seconds)
        assert page is not None
        assert len(page.hits) <= most
        found, steps, cursor = [*found, *page.hits], steps + page.steps, page.next
        if cursor is None:
            break
    whole = search(made_up_run.rollouts, "What is")
    assert whole is not None
    assert (found, steps) == (list(whole.hits), 3)
    assert len(found) == 12
