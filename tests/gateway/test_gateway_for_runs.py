"""A gateway that training runs register with: its lease, its sessions over restarts, and what a run's rollouts see."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from gateway_house import KEY, MAX_CONTEXT, house, odd_ids, renderer
from run_house import (
    DOOR_KEY,
    OTHER,
    RUN,
    TASK,
    Door,
    ask,
    asks_twice,
    failure,
    free_port,
    gateway,
    managing,
    policies,
    registration,
    request,
    until,
    worker,
)

from loopwright.errors import ConfigError, EngineLostError, LeaseError, LoopwrightError, RunError
from loopwright.gateway import client, remote_policy
from loopwright.gateway.client import GatewayAddress, GatewayClient
from loopwright.gateway.offer import Offer, Served
from loopwright.gateway.registration import (
    registration_from_json,
    registration_to_json,
)
from loopwright.gateway.remote_policy import (
    HeardTimes,
    RemoteSessionPolicies,
    RemoteSessionPolicy,
    _counted,
    _OpenSession,
    open_remote_policies,
)
from loopwright.gateway.server import Gateway, open_gateway
from loopwright.gateway.session import SessionState
from loopwright.gateway.store import MemoryStore
from loopwright.gateway.takeover import EarlierSessions
from loopwright.ports import SessionTimes
from loopwright.types import (
    FailureCause,
    Sampling,
    Split,
    Task,
    Unscored,
)

# One rollout.


async def test_a_rollout_has_the_tokens_that_the_gateway_has_recorded(tmp_path: Path) -> None:
    door = Door()
    async with gateway(tmp_path, door) as opened, policies(opened.base_url) as made:
        rollout = await worker(made, asks_twice).run(request())
        (session,) = opened.sessions
        assert session.id.startswith(f"{RUN}-0-00000000-t0-0-0-")
        assert session.state is SessionState.COMPLETED
        assert session.settings.sampling == Sampling(), "the run's settings override those of the agent"
        assert session.settings.seed == 7
        recorder = opened.sessions.recorder_of(session)
    assert isinstance(rollout.reward, Unscored)
    assert rollout.episode is not None
    assert rollout.episode.chains == recorder.chains()
    assert rollout.episode.drift is not None
    assert rollout.episode.drift.tokens > 0
    assert {one.sampling.seed for one in door.engine.requests} & {7} == set(), "each answer has a seed of its own"
    assert {one.affinity for one in door.engine.requests} == {request().group}


async def test_a_session_in_this_process_has_the_affinity_of_its_group_too() -> None:
    async with house(["Hello."]) as h:
        policy = h.gateway.policies().policy(request(), resumable=False)
        async with policy.endpoint():
            await policy.reply([{"role": "user", "content": "Hi"}])
    assert [one.affinity for one in h.engine.requests] == [request().group]


async def test_an_endpoint_names_the_model_and_where_agents_reach_it(tmp_path: Path) -> None:
    async with (
        gateway(tmp_path) as opened,
        policies(f"{opened.base_url}/") as made,
        RemoteSessionPolicy(made, request()).endpoint() as endpoint,
    ):
        assert endpoint.model == "tiny"
        assert endpoint.base_url.startswith(f"{opened.base_url}/sessions/{RUN}-0-")
        assert endpoint.base_url == f"{endpoint.anthropic_url}/v1"


async def test_a_session_is_deleted_when_its_rollout_is_stored_and_not_before(tmp_path: Path) -> None:
    async with gateway(tmp_path) as opened, policies(opened.base_url) as made:
        run = worker(made, asks_twice)
        await run.run(request(draw=1))
        await run.run(request(draw=2))
        assert len(list(opened.sessions)) == 2
        made.stored(Split.EVAL, request(draw=1).key)  # another rollout
        run.stored(Split.TRAIN, request(draw=1).key)
        await until(lambda: len(list(opened.sessions)) == 1)
        (left,) = opened.sessions
        assert "-t2-" in left.id


async def test_a_run_knows_its_sessions_from_what_the_gateway_answers_anyway(tmp_path: Path) -> None:
    door = Door()
    async with gateway(tmp_path, door) as opened, policies(opened.base_url) as made:
        assert (made.standing()["open"], made.standing()["completed"]) == (0, 0)
        run = worker(made, asks_twice)
        await door.engine.pause()
        rollouts = [asyncio.create_task(run.run(request(draw=draw))) for draw in (1, 2)]
        await until(lambda: (made.standing()["open"], made.standing()["waiting"]) == (2, 2))
        assert opened.sessions.standing() == {"open": 2, "waiting": 2, "completed": 0}
        await door.engine.resume()
        await asyncio.gather(*rollouts)
        await until(lambda: (made.standing()["open"], made.standing()["waiting"]) == (0, 0))
        told = made.standing()
        assert opened.sessions.standing()["completed"] == 2
    assert (told["completed"], told["restarts"], told["lost"]) == (2, 0, None)
    assert 0 <= time.time() - told["heard"] < 10


async def test_a_session_that_was_lost_is_infrastructure(tmp_path: Path) -> None:
    async with gateway(tmp_path) as opened, policies(opened.base_url) as made:

        async def agent(task: Task, base_url: str, api_key: str) -> None:
            await asks_twice(task, base_url, api_key)
            (session,) = opened.sessions
            opened.sessions.delete(session)

        rollout = await worker(made, agent).run(request())
    assert failure(rollout) == (FailureCause.INFRA, "EngineLostError")


async def test_a_session_whose_record_could_not_be_read_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gateway(tmp_path) as opened, policies(opened.base_url, wait_seconds=0.1) as made:
        real = made.client._asked

        async def no_records(method: str, path: str, *more: Any) -> Any:
            if "/record" in path:
                raise client._AwayError("nobody is there")
            return await real(method, path, *more)

        monkeypatch.setattr(made.client, "_asked", no_records)
        rollout = await worker(made, asks_twice).run(request())
        assert failure(rollout) == (FailureCause.INFRA, "EngineLostError")
        await until(lambda: not list(opened.sessions))


async def test_a_gateway_that_stays_away_is_infrastructure(tmp_path: Path) -> None:
    async with policies_of_closed(tmp_path) as made:
        rollout = await worker(made, asks_twice).run(request())
    assert failure(rollout) == (FailureCause.INFRA, "EngineLostError")


@asynccontextmanager
async def policies_of_closed(folder: Path) -> AsyncIterator[RemoteSessionPolicies]:
    """Policies whose gateway has gone."""
    async with gateway(folder) as opened:
        opening = policies(opened.base_url, wait_seconds=0.3)
        made = await opening.__aenter__()
    try:
        yield made
    finally:
        await opening.__aexit__(None, None, None)


async def test_an_agent_is_charged_neither_for_held_engines_nor_for_a_gateway_that_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_policy, "LONGEST_STEP_SECONDS", 0.2)
    door, port = Door(), free_port()
    async with AsyncExitStack() as stack, policies_at(tmp_path, door, port) as (made, close):
        policy = RemoteSessionPolicy(made, request())
        async with policy.endpoint() as endpoint:
            assert policy.times().since_first_call is None
            await ask(endpoint.base_url, endpoint.api_key)
            await until(lambda: policy.times().since_first_call is not None)
            before, clock = policy.times(), made.clock
            await until(lambda: made.clock > clock + 0.5)
            door.held += 0.4
            (session,) = made._heard
            await until(lambda: made.times(session).held_seconds == pytest.approx(0.4))
            after, advanced = policy.times(), made.clock - clock
            assert after.total - before.total == pytest.approx(advanced - 0.4)
            assert (after.since_first_call or 0) - (before.since_first_call or 0) == pytest.approx(advanced - 0.4)
            await close()
            gone = policy.times()
            await asyncio.sleep(1.0)
            assert policy.times() == gone
            await stack.enter_async_context(gateway(tmp_path, door, port))
            await until(lambda: policy.times() != gone)
            assert policy.times().total < gone.total + 0.8
        ended = policy.times()
        assert (ended.since_first_call or 0.0) > (after.since_first_call or 0.0)
        await asyncio.sleep(0.05)
        assert policy.times().total > ended.total, "a verifier's seconds count"
        assert policy.times().since_first_call == ended.since_first_call


@asynccontextmanager
async def policies_at(
    folder: Path, door: Door, port: int
) -> AsyncIterator[tuple[RemoteSessionPolicies, Callable[[], Awaitable[None]]]]:
    """Policies, and what ends their first gateway as a kill would: its sessions stay open."""
    opening = gateway(folder, door, port)
    opened = await opening.__aenter__()
    is_open = True

    async def close() -> None:
        nonlocal is_open
        if is_open:
            is_open = False
            await opening.__aexit__(None, None, None)

    try:
        async with policies(opened.base_url) as made:
            yield made, close
    finally:
        await close()


async def test_a_first_call_just_before_the_gateway_went_away_is_not_charged_for_its_absence() -> None:
    """The gateway's own clock runs on while it is away. No answer had told of the call before."""
    session = _OpenSession("s", own_seconds=1.0, clock=10.0)
    assert _counted(session, HeardTimes(), clock=13.0) == SessionTimes(4.0, None)
    assert _counted(session, HeardTimes(0.0, since_first_call=102.0), clock=15.0) == SessionTimes(6.0, 2.0)
    assert _counted(session, HeardTimes(0.0, since_first_call=103.0), clock=16.0) == SessionTimes(7.0, 3.0)


async def test_an_agent_is_not_charged_for_its_wait_for_a_session(tmp_path: Path) -> None:
    door, port, begun = Door(), free_port(), asyncio.get_running_loop().time
    async with policies_at(tmp_path, door, port) as (made, close):
        await close()
        policy, start = RemoteSessionPolicy(made, request()), begun()

        async def opened() -> float:
            async with policy.endpoint():
                return policy.times().total

        opening = asyncio.create_task(opened())
        await until(lambda: begun() > start + 0.5)
        assert policy.times().total < 0.4
        async with gateway(tmp_path, door, port):
            assert await opening < 0.4


async def test_an_agent_is_not_charged_for_held_engines_before_and_after_its_session(tmp_path: Path) -> None:
    held = 0.0
    async with gateway(tmp_path) as opened:
        address = GatewayAddress(opened.base_url, KEY)
        async with open_remote_policies(address, registration(), held=lambda: held, beat_seconds=60) as made:
            policy = RemoteSessionPolicy(made, request())
            held += 100
            assert policy.times().total < -90, "only the clock of held seconds has advanced"
            async with policy.endpoint():
                pass
            before, held = policy.times().total, held + 100
            assert policy.times().total < before - 90


async def test_the_time_of_an_agent_ends_when_another_run_has_the_gateway(tmp_path: Path) -> None:
    """Nobody tells how long it runs any more."""
    async with gateway(tmp_path) as opened, policies(opened.base_url) as made:
        running = asyncio.create_task(worker(made, waits_for_ever).run(request(seconds=1.0)))
        await until(lambda: list(opened.sessions))
        async with policies(opened.base_url, registration(lineage=1)), asyncio.timeout(10):
            with pytest.raises(LeaseError):
                await running


async def test_the_time_of_an_agent_ends_when_the_gateway_stays_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_policy, "LONGEST_STEP_SECONDS", 0.05)
    async with AsyncExitStack() as stack:
        opened = await stack.enter_async_context(gateway(tmp_path))
        made = await stack.enter_async_context(policies(opened.base_url, wait_seconds=0.2))
        running = asyncio.create_task(worker(made, waits_for_ever).run(request(seconds=1.0)))
        await until(lambda: list(opened.sessions))

        async def away(*asked: Any) -> Any:
            raise client._AwayError("nobody is there")

        monkeypatch.setattr(made.client, "_asked", away)
        async with asyncio.timeout(10):
            assert failure(await running) == (FailureCause.INFRA, "EngineLostError")


async def waits_for_ever(task: Task, base_url: str, api_key: str) -> None:
    await asyncio.Event().wait()


async def test_a_cancelled_rollout_does_not_wait_long_for_a_gateway_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_policy, "CANCELLED_SECONDS", 0.1)
    async with gateway(tmp_path) as opened, policies(opened.base_url) as made:
        begun = asyncio.Event()

        async def agent(task: Task, base_url: str, api_key: str) -> None:
            begun.set()
            await asyncio.Event().wait()

        running = asyncio.create_task(worker(made, agent).run(request()))
        await begun.wait()
        monkeypatch.setattr(made.client, "_asked", lambda *asked: asyncio.Event().wait())
        running.cancel()
        async with asyncio.timeout(5):
            with pytest.raises(asyncio.CancelledError):
                await running
        monkeypatch.undo()


async def test_sessions_whose_creation_was_not_answered_are_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gateway(tmp_path) as opened, policies(opened.base_url) as made:
        real, lost = made.client._http.request, 0

        async def losing(method: str, url: str, **more: Any) -> httpx.Response:
            nonlocal lost
            answer = await real(method, url, **more)
            if answer.status_code == 201 and lost < 2:
                lost += 1
                raise httpx.ReadError("the answer was lost")
            return answer

        monkeypatch.setattr(made.client._http, "request", losing)
        assert isinstance((await worker(made, asks_twice).run(request())).reward, Unscored)
        assert lost == 2
        await until(lambda: len(list(opened.sessions)) == 1)
        (left,) = opened.sessions
        assert left.state is SessionState.COMPLETED


async def test_the_times_of_a_short_rollout_are_exact_at_its_end(tmp_path: Path) -> None:
    """It is over before the gateway is asked for times."""
    async with gateway(tmp_path) as opened:
        address = GatewayAddress(opened.base_url, KEY)
        async with open_remote_policies(address, registration(), beat_seconds=60) as made:
            policy = RemoteSessionPolicy(made, request())
            async with policy.endpoint() as endpoint:
                await asyncio.sleep(0.2)
                await ask(endpoint.base_url, endpoint.api_key)
                await asyncio.sleep(0.1)
                assert policy.times().since_first_call is None
            times = policy.times()
            ran = times.since_first_call or 0.0
            assert ran >= 0.1
            assert times.total - ran >= 0.2


# Restarts.


async def test_a_gateway_that_was_started_again_is_registered_with_again_and_sessions_go_on(tmp_path: Path) -> None:
    door, port = Door(), free_port()
    async with policies_at(tmp_path, door, port) as (made, close):

        async def agent(task: Task, base_url: str, api_key: str) -> None:
            (await ask(base_url, api_key)).raise_for_status()
            await close()
            async with gateway(tmp_path, door, port) as again:
                # The call waits until the run has registered again.
                (await ask(base_url, api_key)).raise_for_status()
                assert again.exchange.offer.name == "tiny"
                restarted.append(again)
                await done.wait()

        restarted: list[Gateway] = []
        done = asyncio.Event()
        policy = RemoteSessionPolicy(made, request())
        async with policy.endpoint() as endpoint:
            running = asyncio.create_task(agent(TASK, endpoint.base_url, endpoint.api_key))
            await until(lambda: restarted or running.done())
        assert policy.fault is None
        assert sum(chain.sampled for chain in policy.episode(()).chains) == 2 * len(odd_ids("Hello."))
        done.set()
        await running


async def test_an_agent_that_met_nobody_is_made_again_and_not_blamed(tmp_path: Path) -> None:
    """Its call came while the gateway was away, and its own error is all that it could say."""
    door, port = Door(), free_port()
    async with policies_at(tmp_path, door, port) as (made, close):
        again: list[Any] = []

        async def agent(task: Task, base_url: str, api_key: str) -> None:
            (await ask(base_url, api_key)).raise_for_status()
            await close()
            try:
                with suppress(httpx.TransportError):
                    await ask(base_url, api_key)
                    raise AssertionError("somebody has answered")
            finally:
                again.append(gateway(tmp_path, door, port))
                await again[0].__aenter__()

        rollout = await worker(made, agent).run(request())
        await again[0].__aexit__(None, None, None)
    assert failure(rollout) == (FailureCause.INFRA, "EngineLostError")


async def test_a_call_without_a_run_waits_and_then_gets_a_503(tmp_path: Path) -> None:
    async with gateway(tmp_path, wait_seconds=0.2) as opened, managing(opened) as http:
        assert (await http.get("/health")).json() == {"status": "ok", "model": None}
        said = (await http.post("/sessions/session-1")).json()
        refused = await ask(f"{opened.base_url}/sessions/session-1/v1", said["key"])
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        told = (await http.get("/sessions/session-1")).json()
        assert told["held_seconds"] >= 0.2, "nobody could be answered"


# Who holds it.


async def test_another_run_is_refused_while_one_holds_the_gateway(tmp_path: Path) -> None:
    async with gateway(tmp_path) as opened:
        async with policies(opened.base_url):
            with pytest.raises(LeaseError, match=f"run {RUN}"):
                async with policies(opened.base_url, registration(OTHER)):
                    raise AssertionError("it was let in")
            async with managing(opened) as http:
                assert (await http.get("/run")).json() == {"run": RUN, "lineage": 0}
                assert (await http.post("/sessions")).status_code == 409, "sessions are the run's"
        async with policies(opened.base_url, registration(OTHER)):
            """The first one has left."""


async def test_a_resumed_run_takes_the_gateway_over_and_earlier_sessions_are_gone(tmp_path: Path) -> None:
    async with gateway(tmp_path) as opened, policies(opened.base_url) as earlier:
        await worker(earlier, asks_twice).run(request(draw=1))
        left = RemoteSessionPolicy(earlier, request(draw=2))
        async with left.endpoint() as endpoint:
            (await ask(endpoint.base_url, endpoint.api_key)).raise_for_status()
            async with policies(opened.base_url, registration(lineage=1)) as resumed:
                assert (await ask(endpoint.base_url, endpoint.api_key)).status_code == 410
                (ended,) = opened.sessions
                assert "-t2-" in ended.id, "the completed one was deleted"
                assert isinstance((await worker(resumed, asks_twice).run(request(draw=2))).reward, Unscored)
                await until(lambda: earlier.lost)
        assert isinstance(left.fault, LeaseError), "the earlier process has to stop"
        with pytest.raises(LeaseError):
            await worker(earlier, asks_twice).run(request(draw=3))
        assert list(opened.sessions) == []


async def test_a_run_without_a_database_is_told_from_the_one_before_by_its_opening(tmp_path: Path) -> None:
    """Both have lineage 0."""
    async with (
        gateway(tmp_path) as opened,
        policies(opened.base_url) as earlier,
        RemoteSessionPolicy(earlier, request()).endpoint() as endpoint,
        httpx.AsyncClient() as http,
    ):
        later = registration(opening="1" * 8)
        await GatewayClient(http, GatewayAddress(opened.base_url, KEY), later).register()
        assert (await ask(endpoint.base_url, endpoint.api_key)).status_code == 410


async def test_only_the_run_that_is_registered_ends_its_registration(tmp_path: Path) -> None:
    """Its lease may have lapsed for a moment. An earlier process of the run comes to its end then."""
    async with gateway(tmp_path) as opened, httpx.AsyncClient() as http:
        body = registration_to_json(registration(lineage=1), 0.01)
        headers = {"authorization": f"Bearer {KEY}"}
        assert (await http.put(f"{opened.base_url}/run", json=body, headers=headers)).is_success
        ids = [f"{registration(run, lineage).prefix}t0-0-0" for run, lineage in ((RUN, 0), (RUN, 1), (OTHER, 0))]
        async with asyncio.timeout(10):
            while (await http.get(f"{opened.base_url}/run", headers=headers)).json()["run"] is not None:
                await asyncio.sleep(0.005)
        for id in ids:
            assert (await http.post(f"{opened.base_url}/sessions/{id}", headers=headers)).is_success
        for other in (registration(), registration(OTHER)):
            await GatewayClient(http, GatewayAddress(opened.base_url, KEY), other).leave()
        assert opened.exchange.offer.name == "tiny"
        assert [session.id for session in opened.sessions] == ids[:2], "the later process may need the earlier session"


async def test_a_session_of_nobody_does_not_go_on_with_another_model(tmp_path: Path) -> None:
    async with gateway(tmp_path) as opened, managing(opened) as http:
        keys = {id: (await http.post(f"/sessions/{id}")).json()["key"] for id in ("session-1", "session-2")}
        async with policies(opened.base_url):
            url = f"{opened.base_url}/sessions/session-1/v1"
            assert (await ask(url, keys["session-1"])).status_code == 200
        async with policies(opened.base_url, registration(OTHER)):
            assert (await ask(url, keys["session-1"])).status_code == 410
            url = f"{opened.base_url}/sessions/session-2/v1"
            assert (await ask(url, keys["session-2"])).status_code == 200, "it has no token yet"


async def test_a_renewal_that_is_not_answered_is_sent_again_before_the_lease_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client, "LEASE_SECONDS", 0.4)
    asked = 0

    async def answer(sent: httpx.Request) -> httpx.Response:
        nonlocal asked
        asked += 1
        if asked == 2:
            await asyncio.Event().wait()
        return httpx.Response(200, json={"sessions": {}, "now": 0.0})

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http, asyncio.timeout(10):
        run = GatewayClient(http, GatewayAddress("http://gateway.example", KEY), registration())
        await run.register()
        await run.register()
    assert asked == 3


async def test_the_lease_is_renewed_while_a_resumed_run_takes_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    renewed, real = 0, GatewayClient.register

    async def counted(self: GatewayClient) -> Any:
        nonlocal renewed
        renewed += 1
        return await real(self)

    async def slow(client: GatewayClient, unfinished: Any) -> EarlierSessions:
        await until(lambda: renewed > 2)
        return EarlierSessions()

    monkeypatch.setattr(GatewayClient, "register", counted)
    monkeypatch.setattr(remote_policy, "take_over", slow)
    async with gateway(tmp_path) as opened, policies(opened.base_url):
        """It was let in."""


async def test_an_answer_that_cannot_be_read_does_not_end_the_heartbeat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gateway(tmp_path) as opened, policies(opened.base_url) as made:
        real, strange = made.client.register, 0

        async def odd() -> Any:
            nonlocal strange
            strange += 1
            return {"sessions": None}

        monkeypatch.setattr(made.client, "register", odd)
        await until(lambda: strange > 1)
        monkeypatch.setattr(made.client, "register", real)
        clock = made.clock
        await until(lambda: made.clock > clock)


async def test_a_model_that_the_gateway_cannot_use_is_told_and_the_gateway_stays_free(tmp_path: Path) -> None:
    door = Door()
    door.error = EngineLostError("the door is shut", remedy="open it")
    async with gateway(tmp_path, door) as opened:
        with pytest.raises(RunError, match=r"the door is shut\. Open it"):
            async with policies(opened.base_url):
                raise AssertionError("it was let in")
        door.error = None
        async with policies(opened.base_url, registration(OTHER)):
            """The first one has no lease."""


async def test_what_is_wrong_with_the_gateway_is_told(tmp_path: Path) -> None:
    async with gateway(tmp_path) as opened:
        with pytest.raises(ConfigError, match="401") as wrong:
            async with policies(opened.base_url, key="another"):
                raise AssertionError("it was let in")
        assert "gateway.key_env" in wrong.value.remedy
    served = Served(Door().engine, renderer(), MAX_CONTEXT, "tiny")
    async with open_gateway(served, MemoryStore(), key=KEY) as alone:
        with pytest.raises(ConfigError, match="has a model of its own") as own:
            async with policies(alone.base_url):
                raise AssertionError("it was let in")
        assert "--for-runs" in own.value.remedy
    with pytest.raises(EngineLostError, match=r"did not answer for 0\.2 s"):
        async with policies(alone.base_url, wait_seconds=0.2):
            raise AssertionError("it was let in")


async def test_a_url_may_have_a_path_and_no_port() -> None:
    seen: list[str] = []

    def answer(asked: httpx.Request) -> httpx.Response:
        seen.append(f"{asked.method} {asked.url}")
        return httpx.Response(200, json={"sessions": {}, "now": 0.0})

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http:
        for url in ("http://gateway.example/loop/", "https://gateway.example"):
            await GatewayClient(http, GatewayAddress(url, KEY), registration()).register()
    assert seen == ["PUT http://gateway.example/loop/run", "PUT https://gateway.example/run"]


# What is said.


def test_a_registration_survives_the_wire_and_shows_no_key() -> None:
    sent = registration(lineage=3)
    assert registration_from_json(registration_to_json(sent, 60.0)) == (sent, 60.0)
    assert DOOR_KEY not in repr(sent)


@pytest.mark.parametrize("change", [{"run": "no-hex"}, {"opening": None}, {"seconds": -1}, {"model": None}])
def test_what_is_no_registration_is_refused_without_its_key(change: dict[str, Any]) -> None:
    with pytest.raises(LoopwrightError) as refused:
        registration_from_json({**registration_to_json(registration(), 60.0), **change})
    assert refused.value.facts["status"] == 400
    assert DOOR_KEY not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("thinking", "much"),
        ("door_url", 7),
        ("door_url", "http://[bad"),
        ("door_url", "http://host:99999"),
        ("door_url", "http://0.0.0.0:1"),
        ("door_key", f"{DOOR_KEY}\r\nhost: another"),
        ("max_context", None),
        ("tokenizer_kind", "os:system"),
        ("tokenizer_kind", "transformers"),
        ("tokenizer_kind", "transformersx:Fast"),
    ],
)
def test_a_model_that_no_run_has_is_refused_without_its_key(name: str, value: Any) -> None:
    body = registration_to_json(registration(), 60.0)
    with pytest.raises(LoopwrightError, match=f"model.{name}") as refused:
        registration_from_json({**body, "model": {**body["model"], name: value}})
    assert refused.value.facts["status"] == 400
    assert DOOR_KEY not in str(refused.value)


async def test_our_own_bug_in_a_registration_keeps_no_other_run_away(tmp_path: Path) -> None:
    door = Door()
    door.error = ZeroDivisionError()
    async with gateway(tmp_path, door) as opened:
        with pytest.raises(EngineLostError, match="status 500"):
            async with policies(opened.base_url, wait_seconds=0.1):
                raise AssertionError("it was let in")
        door.error = None
        async with policies(opened.base_url, registration(OTHER)):
            """The first one has no lease."""


async def test_seconds_without_a_model_are_held_and_the_clock_never_goes_back() -> None:
    offer, held = Offer(wait_seconds=1.0), 500.0
    await asyncio.sleep(0.02)
    first = offer.held_seconds()
    assert 0.02 <= first < 1
    served = Served(Door().engine, renderer(), MAX_CONTEXT, "tiny")
    offer.change(served, lambda: held)
    assert first <= offer.held_seconds() < 1, "what another clock counted before is not ours"
    held += 7
    assert 7 <= offer.held_seconds() < 8
    offer.change(replace(served, source="other"))
    assert 7 <= offer.held_seconds() < 8
    offer.change(None)
    await asyncio.sleep(0.02)
    assert offer.held_seconds() >= 7.02
