"""Judgers on real actors: shared by name, judged again after a death, refused before anything starts."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from judger_contract import TASK, USER_JUDGERS, Configs, failure, is_alive, native, said, until
from judgers_on_actors import opened_judgers, placed

from loopwright.cluster.judger import RayJudger
from loopwright.config import ComposedJudgerConfig, HttpJudgerConfig, NativeJudgerConfig
from loopwright.config.judgers import PartConfig
from loopwright.errors import BudgetError, ConfigError
from loopwright.ports import Judger
from loopwright.testing import JudgeReply, JudgeServer, score_one
from loopwright.types import Episode, Scored, Task

if TYPE_CHECKING:
    from loopwright.cluster.cluster import Cluster

pytestmark = pytest.mark.real


def pids(judger: Judger) -> list[int]:
    """The processes of its actors."""
    assert isinstance(judger, RayJudger)
    return [member.host.started.pid for member in judger.crew.running if member.host is not None]  # type: ignore[attr-defined]


def living_actors() -> int:
    import ray

    return sum(actor["State"] in ("ALIVE", "PENDING_CREATION") for actor in ray._private.state.actors().values())


async def test_a_judger_is_opened_once_whoever_names_it(cluster: Cluster) -> None:
    parts = {"only": PartConfig(judger="pid")}
    configs: Configs = {
        "pid": placed(native("pid_async")),
        "a": ComposedJudgerConfig(parts=parts),
        "b": ComposedJudgerConfig(by_source={"words": "pid"}, default="a"),
    }
    before = living_actors()
    async with opened_judgers(cluster, ["a", "b", "pid", "a"], configs, USER_JUDGERS) as judgers:
        assert living_actors() == before + 1
        [actor] = pids(judgers["pid"])
        scores = {name: await score_one(judger, TASK, said("")) for name, judger in judgers.items()}
    assert {scored.value for scored in scores.values()} == {actor}
    assert scores["a"].parts == {"only": actor}
    assert scores["b"].parts == {"pid": actor}
    assert living_actors() == before


async def test_a_composed_judger_on_actors_holds_its_parts_there(cluster: Cluster) -> None:
    configs: Configs = {
        "pid": native("pid_async"),
        "total": placed(ComposedJudgerConfig(parts={"only": PartConfig(judger="pid")}), num_actors=2),
    }
    async with opened_judgers(cluster, ["total"], configs, USER_JUDGERS) as judgers:
        actors = pids(judgers["total"])
        scored = await asyncio.gather(*(score_one(judgers["total"], TASK, said("")) for _ in range(8)))
    assert len(actors) == 2
    assert {one.parts["only"] for one in scored} == set(actors)


async def test_an_actor_has_only_the_secrets_and_objects_of_its_own_judger(cluster: Cluster) -> None:
    async def seen(task: Task, episode: Episode) -> float:
        return 1.0

    with JudgeServer([JudgeReply({"score": 1})]) as server:
        configs: Configs = {
            "web": placed(HttpJudgerConfig(url=server.url, api_key_env="WEB_KEY")),
            "mine": placed(NativeJudgerConfig(path="object:mine")),
        }
        # The lock belongs to neither of them, and cannot be sent.
        objects = {"object:mine": seen, "object:other": threading.Lock()}
        secrets = {"WEB_KEY": "s3cret", "OTHER": "x"}
        async with opened_judgers(cluster, ["web", "mine"], configs, USER_JUDGERS, secrets, objects) as judgers:
            assert [await score_one(judger, TASK, said("")) for judger in judgers.values()] == [Scored(1.0)] * 2
    assert server.requests[0].headers["authorization"] == "Bearer s3cret"


async def test_an_object_that_cannot_be_sent_is_refused_by_name_and_starts_nothing(cluster: Cluster) -> None:
    class Keeps:
        def __init__(self) -> None:
            self.lock = threading.Lock()

        def judge(self, task: Task, episode: Episode) -> float:
            return 1.0

    before = living_actors()
    configs: Configs = {"fair": placed(NativeJudgerConfig(path="object:main.Keeps()"))}
    with pytest.raises(
        ConfigError, match=r"judger 'fair' \(object:main\.Keeps\(\)\) cannot be sent to an actor"
    ) as caught:
        async with opened_judgers(cluster, ["fair"], configs, USER_JUDGERS, None, {"object:main.Keeps()": Keeps()}):
            raise AssertionError("it is not open")
    assert "num_actors: 0" in caught.value.remedy
    assert living_actors() == before


async def test_a_judger_that_cannot_be_opened_leaves_no_actor(cluster: Cluster) -> None:
    before = living_actors()
    configs: Configs = {"bad": placed(native("NOT_A_FUNCTION"), num_actors=3)}
    with pytest.raises(ConfigError, match="which cannot be called"):
        async with opened_judgers(cluster, ["bad"], configs, USER_JUDGERS):
            raise AssertionError("it is not open")
    await until(lambda: living_actors() == before)


async def test_a_proxy_knows_the_port_and_nothing_else(cluster: Cluster) -> None:
    async with opened_judgers(cluster, ["length"], {"length": placed(native("length_async"))}, USER_JUDGERS) as judgers:
        judger = judgers["length"]
        assert (judger.name, judger.judges_groups) == ("length", False)
        assert not hasattr(judger, "judge"), "a name that is not there is no call on an actor"
        assert not hasattr(judger, "judge_group")


async def test_an_actor_that_is_killed_is_replaced_and_its_judgements_are_made_again(
    cluster: Cluster, tmp_path: Path
) -> None:
    def started() -> int:
        return len(list(tmp_path.glob("started-*")))

    configs: Configs = {"slow": placed(native("waits_for_async"), num_actors=2)}
    async with opened_judgers(cluster, ["slow"], configs, USER_JUDGERS) as judgers:
        judger = judgers["slow"]
        first = pids(judger)
        go = tmp_path / "go"
        calls = [asyncio.create_task(score_one(judger, TASK, said(f"{go}:{i}"))) for i in range(6)]
        await until(lambda: started() == 6)
        os.kill(first[0], signal.SIGKILL)
        await until(lambda: started() == 9)
        go.touch()
        async with asyncio.timeout(60):
            scores = await asyncio.gather(*calls)
        assert [scored.parts["number"] for scored in scores] == [0, 1, 2, 3, 4, 5]
        assert started() == 9, "the three of the lost actor were asked again, once"
        await until(lambda: len(pids(judger)) == 2)
        assert set(pids(judger)) != set(first)
    for pid in first:
        await until(lambda pid=pid: not is_alive(pid))  # type: ignore[misc]


async def test_an_actor_that_dies_again_and_again_ends_with_its_reason(cluster: Cluster) -> None:
    """`os._exit` in an async function takes the actor itself down, not a worker of it."""
    configs: Configs = {"dies": placed(native("dies_async"))}
    async with opened_judgers(cluster, ["dies"], configs, USER_JUDGERS) as judgers:
        error = await failure(score_one(judgers["dies"], TASK, said("die")))
        assert error.facts == {"judger": "dies", "error": "WorkerDied"}
        with pytest.raises(BudgetError, match="no actor of dies is left: judgers-dies-0 was lost 4 times"):
            async with asyncio.timeout(60):
                await judgers["dies"].score(TASK, [said("die")])


async def test_what_would_end_a_process_is_a_failure_of_the_judger(cluster: Cluster) -> None:
    async with opened_judgers(cluster, ["stops"], {"stops": placed(native("stops_async"))}, USER_JUDGERS) as judgers:
        error = await failure(score_one(judgers["stops"], TASK, said("stop")))
        assert error.message.startswith("judger 'stops' failed: KeyboardInterrupt")
        assert error.facts["judger"] == "stops"
        assert await score_one(judgers["stops"], TASK, said("quick")) == Scored(1.0)


async def test_closing_is_prompt_while_an_actor_starts_again(cluster: Cluster) -> None:
    loop = asyncio.get_running_loop()
    async with opened_judgers(cluster, ["pid"], {"pid": placed(native("pid_async"))}, USER_JUDGERS) as judgers:
        os.kill(pids(judgers["pid"])[0], signal.SIGKILL)
        await until(lambda: not pids(judgers["pid"]))
        at = loop.time()
    assert loop.time() - at < 5


async def test_an_actor_with_very_many_judgements_is_still_heard(cluster: Cluster, tmp_path: Path) -> None:
    """Ray runs 1000 calls of an actor at a time by default: a beat would wait behind them, and its actor look dead."""
    go = tmp_path / "go"
    async with opened_judgers(cluster, ["slow"], {"slow": placed(native("waits_for_async"))}, USER_JUDGERS) as judgers:
        judger = judgers["slow"]
        assert isinstance(judger, RayJudger)
        [member] = judger.crew.running
        assert member.host is not None
        calls = [asyncio.create_task(score_one(judger, TASK, said(f"{go}:{i}"))) for i in range(1100)]
        await until(lambda: len(list(tmp_path.glob("started-*"))) == 1100)
        assert member.host.silent_seconds() < 30
        go.touch()
        assert len(await asyncio.gather(*calls)) == 1100
