"""A crew gives each piece of work to one actor, once; prefers those that work; and keeps them running within a budget.

The hosts here are fakes in an event loop with a virtual clock. `test_hosts.py` has real ones.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopwright.cluster.crew import Crew
from loopwright.cluster.judger import MAX_LOSSES, RayJudger
from loopwright.errors import BudgetError, ClusterRoomError, ConfigError, JudgeError, WorkerLostError
from loopwright.testing import run_virtually
from loopwright.types import Episode, Scored, Task

Does = Callable[..., Awaitable[Any]]
"""What an actor does with a piece of work."""

TASK, EPISODES = Task.ask("t", "?"), (Episode(({"role": "assistant", "content": "a"},), ()),)


def virtually(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(**given: Any) -> None:
        run_virtually(test(**given))

    return run


class FakeHost:
    """An actor that tells what was asked of it."""

    def __init__(self, place: Place, number: int) -> None:
        self.name = f"{place.name}.{number}"
        self.place = place
        self.asked: list[Any] = []
        self.cancelled: list[Any] = []
        self.silence = 0.0
        self._ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def call(self, method: str, *args: Any) -> Any:
        self.asked.append(args[0] if args else method)
        work = asyncio.ensure_future(self.place.does(self, *args))
        try:
            await asyncio.wait((work, self._ended), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self.cancelled.append(args[0])
            raise
        finally:
            if not work.done():
                work.cancel()
        if self._ended.done():
            raise WorkerLostError(f"{self.name} is lost: {self._ended.result()}", remedy="")
        return work.result()

    def silent_seconds(self) -> float:
        return self.silence

    async def died(self) -> str:
        return await asyncio.shield(self._ended)

    def die(self, words: str = "killed") -> None:
        if not self._ended.done():
            self._ended.set_result(words)


async def echo(host: FakeHost, work: Any = None, *rest: Any) -> Any:
    return work


class Place:
    """Where actors of one name are started. `starts` are the errors of the starts to come, or None for a good one."""

    def __init__(self, name: str, does: Does = echo, starts: tuple[Exception | None, ...] = (), seconds: float = 1.0):
        self.name, self.does = name, does
        self.starts, self.seconds = list(starts), seconds
        self.hosts: list[FakeHost] = []
        self.open = self.closed = 0

    @property
    def host(self) -> FakeHost:
        return self.hosts[-1]

    @asynccontextmanager
    async def launch(self) -> AsyncIterator[FakeHost]:
        await asyncio.sleep(self.seconds)
        if self.starts and (error := self.starts.pop(0)) is not None:
            raise error
        self.hosts.append(FakeHost(self, len(self.hosts)))
        self.open += 1
        try:
            yield self.host
            self.closed += 1
        finally:
            self.host.die("it was ended")
            self.open -= 1


def places(*doing: Does) -> list[Place]:
    return [Place(f"p{i}", does) for i, does in enumerate(doing)]


def crew_of(*members: Place, **settings: Any) -> Any:
    return Crew.open("things", [(member.name, member.launch) for member in members], **settings)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(1000):
        while not condition():
            await asyncio.sleep(0.01)


def meeting(parties: int) -> Does:
    barrier = asyncio.Barrier(parties)

    async def meet(host: FakeHost, work: Any) -> Any:
        await barrier.wait()
        return work

    return meet


@virtually
async def test_actors_are_started_at_the_same_time_and_ended_together() -> None:
    members = places(echo, echo, echo)
    loop = asyncio.get_running_loop()
    async with crew_of(*members) as crew:
        assert loop.time() == pytest.approx(1.0)
        assert len(crew.running) == 3
    assert [(member.open, member.closed) for member in members] == [(0, 1)] * 3, "each closed its part"


@virtually
async def test_the_least_loaded_actor_gets_the_work_and_no_piece_is_done_twice() -> None:
    together = meeting(6)
    members = places(together, together, together)
    async with crew_of(*members) as crew:
        done = await asyncio.gather(*(crew.work("do", i) for i in range(6)))
    assert done == list(range(6))
    assert [len(member.host.asked) for member in members] == [2, 2, 2]
    assert sorted(work for member in members for work in member.host.asked) == list(range(6))


@virtually
async def test_a_session_stays_with_its_actor_until_that_is_lost() -> None:
    members = places(echo, echo)
    async with crew_of(*members) as crew:
        for i in range(4):
            await crew.work("do", f"a{i}", session="a")
        held = asyncio.create_task(crew.work("do", "busy"))
        await crew.work("do", "a4", session="a")
        await held
        home = next(member for member in members if "a0" in member.host.asked)
        other = next(member for member in members if member is not home)
        assert [work for work in home.host.asked if work.startswith("a")] == ["a0", "a1", "a2", "a3", "a4"]
        home.host.die()
        await until(lambda: len(crew.running) == 1)
        await crew.work("do", "a5", session="a")
        assert "a5" in other.host.asked
        await until(lambda: len(crew.running) == 2)
        await crew.work("do", "a6", session="a")
        assert "a6" in other.host.asked, "it does not go back and forth"


@virtually
async def test_a_crew_counts_its_actors_their_calls_and_their_restarts_without_asking_anybody() -> None:
    members = places(slow, slow)
    async with crew_of(*members) as crew:
        begun = crew.standing()
        calls = [asyncio.create_task(crew.work("do", i)) for i in range(3)]
        await asyncio.sleep(0.01)
        busy = crew.standing()
        await asyncio.gather(*calls)
        members[0].host.die()
        await until(lambda: len(crew.running) == 1)
        lost = crew.standing()
        await until(lambda: len(crew.running) == 2)
        again = crew.standing()
    assert begun == {"role": "things", "actors": 2, "alive": 2, "calls": 0, "restarts": 0, "given_up": None}
    assert busy == {**begun, "calls": 3}
    assert lost == {**begun, "alive": 1}
    assert again == {**begun, "restarts": 1}
    assert sum(len(host.asked) for member in members for host in member.hosts) == 3


async def raises(host: FakeHost, work: Any) -> Any:
    raise ValueError(work)


async def fails(host: FakeHost, work: Any) -> Any:
    return "failed"


async def slow(host: FakeHost, work: Any) -> Any:
    await asyncio.sleep(0.05)
    return work


@pytest.mark.parametrize("bad", [raises, fails])
def test_an_actor_that_fails_fast_does_not_attract_work(bad: Does) -> None:
    async def main() -> tuple[int, int]:
        members = places(bad, slow)
        async with crew_of(*members) as crew:
            work = crew.work
            succeeded = lambda result: result != "failed"  # noqa: E731

            async def one(i: int) -> None:
                await asyncio.sleep(0.05 * i)
                with suppress(ValueError):
                    await work("do", i, succeeded=succeeded)

            await asyncio.gather(*(one(i) for i in range(200)))
        return len(members[0].host.asked), len(members[1].host.asked)

    failed, done = run_virtually(main())
    assert failed + done == 200
    assert failed <= 8, "it is tried again after 0.1, 0.2, 0.4 s and so on"


@virtually
async def test_the_only_actor_gets_work_even_if_it_fails() -> None:
    [member] = places(raises)
    async with crew_of(member) as crew:
        for i in range(5):
            with pytest.raises(ValueError, match=str(i)):
                await crew.work("do", i)
    assert member.host.asked == list(range(5))


@virtually
async def test_an_actor_that_is_lost_gets_nothing_more_and_is_started_again() -> None:
    told: list[tuple[str, str]] = []
    member, other = places(meeting(2), echo)
    async with crew_of(member, other, on_death=lambda *death: told.append(death)) as crew:
        first = member.host
        lost = asyncio.create_task(crew.work("do", "lost"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        first.die("out of memory")
        with pytest.raises(WorkerLostError, match=r"p0\.0 is lost: out of memory"):
            await lost
        assert [one.name for one in crew.running] == ["p1"], "at once, not when its end was noticed"
        await asyncio.gather(*(crew.work("do", i) for i in range(4)))
        assert first.asked == ["lost"]
        await until(lambda: len(crew.running) == 2)
        assert len(member.hosts) == 2
    assert told == [("p0", "out of memory")]


@virtually
async def test_an_actor_that_says_that_it_ends_is_replaced_at_once() -> None:
    """One that has used too much memory says so, and is there for another second: it answers everything at once."""

    async def too_large(host: FakeHost, work: Any) -> Any:
        if len(host.place.hosts) == 1:
            raise WorkerLostError("it used 200 MiB", remedy="raise memory_per_actor")
        return work

    [member] = places(too_large)
    deaths: list[str] = []
    async with crew_of(member, on_death=lambda name, words: deaths.append(words)) as crew:
        with pytest.raises(WorkerLostError, match="200 MiB"):
            await crew.work("do", 1)
        assert await crew.work("do", 2) == 2
    assert member.hosts[0].asked == [1]
    assert deaths == ["it used 200 MiB"]


@virtually
async def test_a_success_between_deaths_renews_the_budget() -> None:
    [member] = places(echo)
    async with crew_of(member, max_restarts=2) as crew:
        for i in range(10):
            assert await crew.work("do", i) == i
            member.host.die()
            await until(lambda count=i + 2: len(member.hosts) == count)  # type: ignore[misc]
    assert len(member.hosts) == 11


def no_room() -> ClusterRoomError:
    return ClusterRoomError("it takes 2 CPUs. Free are: n1 has 1 CPU", remedy="add nodes")


@virtually
async def test_an_actor_without_room_waits_as_long_as_others_do_its_work() -> None:
    member, other = places(echo, echo)
    member.starts = [None, *(no_room() for _ in range(20)), None]
    async with crew_of(member, other, max_restarts=1) as crew:
        member.host.die()
        await until(lambda: len(member.hosts) == 2)
        assert len(crew.running) == 2, "it cost no budget"
        assert len(other.hosts) == 1


@virtually
async def test_actors_without_room_are_given_up_if_nobody_does_their_work() -> None:
    member, other = places(echo, echo)
    for place in (member, other):
        place.starts = [None, no_room()]
    async with crew_of(member, other) as crew:
        member.host.die()
        other.host.die()
        await until(lambda: not crew.running)
        with pytest.raises(BudgetError, match=r"no actor of things is left: it takes 2 CPUs\. Free are: n1 has 1 CPU"):
            await crew.work("do", 1)


@virtually
async def test_a_crew_that_has_no_room_at_its_start_says_so() -> None:
    member, other = places(echo, echo)
    other.starts = [no_room()]
    with pytest.raises(ClusterRoomError):
        async with crew_of(member, other):
            pass


@virtually
async def test_when_the_last_actor_is_given_up_every_caller_gets_the_reason() -> None:
    async def dies(host: FakeHost, work: Any) -> Any:
        host.die("segmentation fault")
        await asyncio.sleep(10)

    members = places(dies, dies)
    async with crew_of(*members, max_restarts=2) as crew:

        async def ask(i: int) -> Exception:
            while True:
                try:
                    await crew.work("do", i)
                except WorkerLostError:
                    continue
                except BudgetError as error:
                    return error

        errors = await asyncio.gather(*(ask(i) for i in range(5)))
        for error in errors:
            assert "no actor of things is left: p" in str(error)
            assert "was lost 3 times without doing its work in between: segmentation fault" in str(error)
        assert len(set(map(id, errors))) == 5
        with pytest.raises(BudgetError):
            await crew.work("do", "later")
    assert all(member.open == 0 for member in members)


@virtually
async def test_the_others_go_on_without_one_that_is_given_up() -> None:
    async def dies(host: FakeHost, work: Any) -> Any:
        host.die()
        await asyncio.sleep(10)

    bad, good = places(dies, slow)
    async with crew_of(bad, good, max_restarts=1) as crew:
        lost = 0
        for i in range(100):
            try:
                assert await crew.work("do", i) == i
            except WorkerLostError:
                lost += 1
    assert (lost, len(bad.hosts)) == (2, 2)


@virtually
async def test_a_start_that_fails_is_raised_as_it_is_and_leaves_no_actor() -> None:
    refused = ConfigError("there is no such judger", remedy="name another one")
    bad, good, slow_one = Place("bad", starts=(refused,)), Place("good", seconds=0.5), Place("slow", seconds=1000)
    with pytest.raises(ConfigError) as caught:
        async with crew_of(bad, good, slow_one):
            raise AssertionError("it is not open")
    assert caught.value is refused
    assert asyncio.get_running_loop().time() < 2, "nobody waits for those that are still starting"
    assert (good.open, good.closed) == (0, 1)
    assert slow_one.hosts == []


@virtually
async def test_an_actor_that_is_lost_while_it_starts_is_an_error_with_its_last_words() -> None:
    bad = Place("bad", starts=(WorkerLostError("bad is lost: no libgomp", remedy=""),))
    with pytest.raises(BudgetError, match="bad did not start: bad is lost: no libgomp"):
        async with crew_of(bad, Place("good")):
            raise AssertionError("it is not open")


@virtually
async def test_a_start_that_fails_later_costs_its_budget() -> None:
    broken = ConfigError("judger.py is broken", remedy="fix it")
    member = Place("p0", starts=(None, broken, broken, None))
    async with crew_of(member, max_restarts=3) as crew:
        member.host.die()
        await until(lambda: not crew.running)
        assert await crew.work("do", 1) == 1
    member = Place("p0", starts=(None, broken, broken, broken))
    async with crew_of(member, max_restarts=2) as crew:
        member.host.die()
        await until(lambda: not crew.running)
        with pytest.raises(BudgetError, match=r"judger\.py is broken"):
            await crew.work("do", 1)


@virtually
async def test_an_actor_of_which_nothing_is_heard_is_lost() -> None:
    member = Place("p0")
    told: list[str] = []
    async with crew_of(member, max_silence=60, on_death=lambda name, words: told.append(words)) as crew:
        first = member.host
        first.silence = 61.0
        await until(lambda: len(member.hosts) == 2)
        assert await crew.work("do", 1) == 1
        assert first.asked == []
    assert told == ["nothing was heard of it for 61 s"]


@virtually
async def test_what_everyone_is_asked_is_done_by_all_that_live() -> None:
    """One that dies meanwhile stops nobody else, and is started again."""
    done: list[str] = []

    async def dies(host: FakeHost, work: Any) -> Any:
        host.die()
        await asyncio.sleep(10)

    async def does(host: FakeHost, work: Any) -> str:
        await asyncio.sleep(1)
        done.append(host.name)
        return host.name

    members = places(does, dies, does)
    async with crew_of(*members) as crew:
        assert await crew.everyone("do", 1) == ["p0.0", "p2.0"]
        assert sorted(done) == ["p0.0", "p2.0"]
        await until(lambda: len(crew.running) == 3)
        assert len(members[1].hosts) == 2


@virtually
async def test_what_one_of_everyone_raises_is_raised() -> None:
    async with crew_of(*places(echo, raises)) as crew:
        with pytest.raises(ValueError, match="7"):
            await crew.everyone("do", 7)
        assert len(crew.running) == 2


@virtually
async def test_cancelling_a_caller_reaches_the_actor() -> None:
    [member] = places(meeting(2))
    async with crew_of(member) as crew:
        call = asyncio.create_task(crew.work("do", "x"))
        await until(lambda: member.host.asked == ["x"])
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert member.host.cancelled == ["x"]
        assert crew.running[0].busy == 0
        assert not crew.running[0].is_resting(asyncio.get_running_loop().time()), "that was no failure of its own"


@virtually
async def test_closing_waits_for_no_restart_and_tells_whoever_still_asks() -> None:
    member = Place("p0", seconds=100)
    async with crew_of(member) as crew:
        member.host.die()
        await until(lambda: not crew.running)
        waiting = asyncio.create_task(crew.work("do", 1))
        await asyncio.sleep(1)
        at = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - at < 1
    with pytest.raises(WorkerLostError, match="the actors of things were ended"):
        await waiting


@given(st.lists(st.tuples(st.integers(0, 2), st.floats(0, 3)), max_size=12), st.integers(1, 30))
def test_whatever_dies_no_result_is_taken_twice_and_none_is_lost(kills: list[tuple[int, float]], count: int) -> None:
    async def main() -> None:
        members = places(slow, slow, slow)
        async with crew_of(*members, max_restarts=20) as crew:

            async def killer() -> None:
                for place, pause in kills:
                    await asyncio.sleep(pause)
                    if members[place].open:
                        members[place].host.die()

            async def ask(i: int) -> tuple[int, int]:
                lost = 0
                while True:
                    try:
                        return await crew.work("do", i), lost
                    except WorkerLostError:
                        lost += 1

            killing = asyncio.create_task(killer())
            answers = await asyncio.gather(*(ask(i) for i in range(count)))
            await killing
            asked = [work for member in members for host in member.hosts for work in host.asked]
            assert [answer for answer, _ in answers] == list(range(count))
            assert len(asked) == count + sum(lost for _, lost in answers), "asked again only by whoever lost it"
            assert all(one.busy == 0 for one in crew._members)
        assert all(member.open == 0 for member in members)

    run_virtually(main())


@virtually
async def test_a_judgement_is_made_again_elsewhere_if_its_actor_is_lost() -> None:
    async def dies_once(host: FakeHost, task: Any, episodes: Any) -> Any:
        if len(host.place.hosts) == 1:
            host.die("killed")
            await asyncio.sleep(10)
        return [Scored(1.0)]

    async with crew_of(*places(dies_once, dies_once)) as crew:
        assert await RayJudger("fair", False, crew).score(TASK, EPISODES) == [Scored(1.0)]


@virtually
async def test_an_episode_that_kills_every_actor_is_a_failure_of_the_judger() -> None:
    async def dies(host: FakeHost, task: Any, episodes: Any) -> Any:
        host.die("killed by signal 9")
        await asyncio.sleep(10)

    members = places(dies, dies)
    async with crew_of(*members) as crew:
        with pytest.raises(
            JudgeError, match=r"judger 'fair' lost 3 actors over task 't': p.*killed by signal 9"
        ) as caught:
            await RayJudger("fair", False, crew).score(TASK, EPISODES)
    assert caught.value.facts == {"judger": "fair", "error": "WorkerDied"}
    assert sum(len(host.asked) for member in members for host in member.hosts) == MAX_LOSSES


@virtually
async def test_thousands_of_failures_in_a_row_are_told_as_they_are() -> None:
    async def fail(host: FakeHost, work: int) -> None:
        raise ValueError("bad")

    async with crew_of(Place("p", fail)) as crew:
        for number in range(1100):
            with pytest.raises(ValueError, match="bad"):
                await crew.work("do", number)


class ClosesBadly(Place):
    @asynccontextmanager
    async def launch(self) -> AsyncIterator[FakeHost]:
        async with super().launch() as host:
            yield host
        raise OSError("the disk is full")


@virtually
async def test_an_actor_that_cannot_close_its_part_at_the_end_is_not_started_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    place, deaths = ClosesBadly("p"), list[str]()
    async with crew_of(place, on_death=lambda name, words: deaths.append(words)):
        pass
    assert len(place.hosts) == 1
    assert deaths == []
    assert "did not close its part: OSError: the disk is full" in caplog.text
