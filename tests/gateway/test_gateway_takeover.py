"""What a resumed run takes over from its earlier process on a gateway (D1), and what is made again."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from run_house import (
    TASK,
    Door,
    ask,
    asks_twice,
    free_port,
    gateway,
    managing,
    policies,
    registration,
    request,
    until,
    worker,
)

from loopwright.core.redaction import Redactor
from loopwright.errors import RunError
from loopwright.gateway.outcome import outcome_from_json, outcome_to_json
from loopwright.gateway.record import SessionRecord, chain_from_json
from loopwright.gateway.remote_policy import RemoteSessionPolicy
from loopwright.gateway.takeover import Unfinished, key_of, label_of
from loopwright.ports import GroupRow, HeldGroup, MemberRow, ResumePlan
from loopwright.types import (
    ChainStart,
    Episode,
    EpisodeDrift,
    Failed,
    FailureCause,
    FinishReason,
    GroupStatus,
    Message,
    ProgramOutput,
    Rollout,
    RolloutKey,
    Scored,
    Split,
    StopReason,
    Task,
    Timing,
    TokenDiff,
    Unscored,
)

LATER = registration(lineage=1)
KEY_1 = RolloutKey("train", 1, 0)


def unfinished(*opened_at: int, stored: dict[int, int] | None = None) -> Unfinished:
    """Draw 1 is unfinished."""
    return Unfinished({("train", 1): stored or {}}, opened_at)


async def never(task: Task, base_url: str, api_key: str) -> None:
    raise AssertionError("the rollout was made already")


@pytest.mark.parametrize("restarted", [False, True], ids=["same gateway", "gateway started again"])
async def test_a_rollout_that_was_completed_and_not_stored_is_kept(tmp_path: Path, *, restarted: bool) -> None:
    port = free_port()
    async with AsyncExitStack() as stack:
        async with gateway(tmp_path, port=port) as opened:
            earlier = await stack.enter_async_context(policies(opened.base_url))
            made = await worker(earlier, asks_twice).run(request(draw=1))
            if not restarted:
                await _is_kept(opened, made)
        if restarted:
            async with gateway(tmp_path, port=port) as again:
                await _is_kept(again, made)


async def _is_kept(opened: Any, made: Rollout) -> None:
    assert isinstance(made.reward, Unscored)
    async with policies(opened.base_url, LATER, unfinished(0, 0)) as resumed:
        assert resumed.first_attempt(Split.TRAIN, KEY_1) == 0, "the attempt that was out"
        kept = await worker(resumed, never).run(request(draw=1))
        assert kept == made
        (session,) = opened.sessions
        resumed.stored(Split.TRAIN, KEY_1)
        await until(lambda: list(opened.sessions) == [])
        assert resumed.first_attempt(Split.TRAIN, KEY_1) == 1, "it is kept once"
        assert session.outcome is not None


async def test_tokens_of_weights_that_the_checkpoint_lacks_are_rolled_back(tmp_path: Path) -> None:
    door = Door()
    await door.engine.load(2)
    async with gateway(tmp_path, door) as opened, policies(opened.base_url) as earlier:
        await worker(earlier, asks_twice).run(request(draw=1))
        async with policies(opened.base_url, LATER, unfinished(0, 1)) as resumed:
            assert list(opened.sessions) == [], "it is deleted before the run goes on"
            assert resumed.first_attempt(Split.TRAIN, KEY_1) == 1
            again = replace(request(draw=1), key=replace(KEY_1, attempt=1))
            assert isinstance((await worker(resumed, asks_twice).run(again)).reward, Unscored)


async def test_tokens_of_weights_that_the_checkpoint_has_are_kept(tmp_path: Path) -> None:
    door = Door()
    await door.engine.load(2)
    async with gateway(tmp_path, door) as opened, policies(opened.base_url) as earlier:
        made = await worker(earlier, asks_twice).run(request(draw=1))
        async with policies(opened.base_url, LATER, unfinished(0, 2)) as resumed:
            assert await worker(resumed, never).run(request(draw=1)) == made


async def test_a_session_that_was_open_ends_and_its_member_has_another_attempt(tmp_path: Path) -> None:
    async with gateway(tmp_path) as opened, policies(opened.base_url) as earlier:
        left = RemoteSessionPolicy(earlier, request(draw=1))
        async with left.endpoint() as endpoint:
            (await ask(endpoint.base_url, endpoint.api_key)).raise_for_status()
            async with policies(opened.base_url, LATER, unfinished(0, 0)) as resumed:
                late = await ask(endpoint.base_url, endpoint.api_key)
                assert (late.status_code, late.headers["x-should-retry"]) == (410, "false")
                assert resumed.completed(request(draw=1)) is None
                assert resumed.first_attempt(Split.TRAIN, KEY_1) == 1
                assert resumed.first_attempt(Split.TRAIN, replace(KEY_1, attempt=2)) == 2
                assert resumed.first_attempt(Split.TRAIN, replace(KEY_1, member=1)) == 0
                assert resumed.first_attempt(Split.EVAL, KEY_1) == 0


async def test_a_session_that_was_completed_without_an_outcome_is_made_again(tmp_path: Path) -> None:
    """The run was killed while the verifier ran: the folder of the program is gone."""
    async with gateway(tmp_path) as opened, policies(opened.base_url) as earlier:
        async with RemoteSessionPolicy(earlier, request(draw=1)).endpoint() as endpoint:
            (await ask(endpoint.base_url, endpoint.api_key)).raise_for_status()
        async with policies(opened.base_url, LATER, unfinished(0, 0)) as resumed:
            assert resumed.completed(request(draw=1)) is None
            assert list(opened.sessions) == []


@pytest.mark.parametrize(
    "ledger",
    [
        pytest.param(Unfinished({}, (0, 0)), id="the group is finished, or is drawn again"),
        pytest.param(unfinished(0, 0, stored={0: 0}), id="the rollout is stored"),
        pytest.param(unfinished(0, 0, stored={0: 3}), id="a later attempt is stored"),
    ],
)
async def test_what_the_ledger_does_not_lack_is_deleted(tmp_path: Path, ledger: Unfinished) -> None:
    async with gateway(tmp_path) as opened, policies(opened.base_url) as earlier:
        await worker(earlier, asks_twice).run(request(draw=1))
        async with policies(opened.base_url, LATER, ledger) as resumed:
            assert list(opened.sessions) == []
            assert resumed.completed(request(draw=1)) is None
            assert resumed.first_attempt(Split.TRAIN, KEY_1) == 0


async def test_a_failed_rollout_and_one_of_an_evaluation_are_not_kept(tmp_path: Path) -> None:
    async def raises(task: Task, base_url: str, api_key: str) -> None:
        await asks_twice(task, base_url, api_key)
        raise ValueError("no")

    async with gateway(tmp_path) as opened, policies(opened.base_url) as earlier:
        assert isinstance((await worker(earlier, raises).run(request(draw=1))).reward, Failed)
        evaluated = RemoteSessionPolicy(earlier, replace(request(draw=1), split=Split.EVAL))
        async with evaluated.endpoint() as endpoint:
            await ask(endpoint.base_url, endpoint.api_key)
        await evaluated.keep(rollout(Scored(1.0)))
        assert [session.outcome for session in opened.sessions] == [None, None]


async def test_an_outcome_belongs_to_a_completed_session_at_its_version(tmp_path: Path) -> None:
    async with gateway(tmp_path) as opened, managing(opened) as http:
        await http.post("/sessions/session-1", json={"label": "mine"})
        assert (await http.put("/sessions/session-1/outcome", json={"a": 1})).status_code == 409
        opened.sessions.end(opened.sessions.find("session-1"))
        version = opened.sessions.find("session-1").version
        assert (await http.put("/sessions/session-1/outcome?version=other", json={"a": 1})).status_code == 409
        (listed,) = (await http.get("/sessions")).json()["sessions"]
        assert (listed["label"], listed["has_outcome"]) == ("mine", False)
        assert (await http.put(f"/sessions/session-1/outcome?version={version}", json={"a": 1})).is_success
        assert (await http.get("/sessions")).json()["sessions"][0]["has_outcome"]
        assert (await http.put("/sessions/session-2/outcome", json={})).status_code == 404
        assert (await http.put("/sessions/session-1/outcome", json=[1])).status_code == 400


async def test_secrets_of_the_run_do_not_reach_the_gateway_with_an_outcome(tmp_path: Path) -> None:
    async def tells(task: Task, base_url: str, api_key: str) -> list[Message]:
        await asks_twice(task, base_url, api_key)
        return [*task.messages, {"role": "assistant", "content": "the password is hunter2hunter2"}]

    async with gateway(tmp_path) as opened, policies(opened.base_url) as earlier:
        earlier.redact = Redactor(["hunter2hunter2"])
        await worker(earlier, tells).run(request(draw=1))
        (session,) = opened.sessions
        assert session.outcome is not None
        assert session.outcome["messages"][-1]["content"] == "the password is [redacted]"


async def test_an_outcome_that_cannot_be_read_is_made_again(tmp_path: Path) -> None:
    async with gateway(tmp_path) as opened, policies(opened.base_url) as earlier:
        await worker(earlier, asks_twice).run(request(draw=1))
        (session,) = opened.sessions
        opened.sessions.note_outcome(session, {"of": "another version"})
        async with policies(opened.base_url, LATER, unfinished(0, 0)) as resumed:
            assert list(opened.sessions) == []
            assert resumed.first_attempt(Split.TRAIN, KEY_1) == 1


# What the parts say.


def test_a_version_counts_only_if_every_later_lineage_has_kept_it() -> None:
    """Lineage 1 went back to step 1: what lineage 0 called version 2 is lost, although lineage 1 made a version 2."""
    opened_at = Unfinished({}, (0, 1, 4))
    assert [opened_at.newest_version(lineage) for lineage in (0, 1, 2)] == [1, 4, -1]


def test_only_groups_that_were_being_made_are_unfinished() -> None:
    def held(draw: int, status: GroupStatus) -> HeldGroup:
        return HeldGroup(GroupRow("train", draw, 0, TASK, 0, status), (MemberRow(2, 1, 0, 0, 0, True),))

    plan = ResumePlan((held(0, GroupStatus.COMPLETED), held(1, GroupStatus.ABORTED), held(2, GroupStatus.EXPIRED)))
    ledger = Unfinished.of({"train": plan}, (0, 0))
    assert ledger.stored == {("train", 1): {2: 1}}
    asked = [RolloutKey("train", 1, 2, attempt) for attempt in range(3)]
    assert [ledger.lacks(key) for key in asked] == [False, False, True]
    assert not ledger.lacks(RolloutKey("other", 1, 2, 2))


def test_a_label_names_a_rollout_for_training() -> None:
    key = RolloutKey('a "set", with ü', 12, 3, 4)
    assert key_of(label_of(Split.TRAIN, key)) == key
    assert key_of(label_of(Split.EVAL, key)) is None
    assert [key_of(label) for label in ("", "{", "[]", '["train", 1, 2, 3, 4]')] == [None] * 4


CHAIN = chain_from_json(
    {"ids": [1, 2], "mask": [0, 1], "logprobs": [0.0, -0.5], "versions": [-1, 3], "start": ChainStart.FIRST}
)


def rollout(reward: Scored | Failed | Unscored, **changed: Any) -> Rollout:
    chains = CHAIN, replace(CHAIN, trained=False)
    diff = TokenDiff(1, ("a",), ("b", "c"), ("bc",))
    output = ProgramOutput("mini", "text", None, "verdict", 1.5, 2.5)
    episode = Episode(
        ({"role": "user", "content": "Hi"},), chains, StopReason.BUDGET, (), EpisodeDrift(4, 1, 2, diff), output
    )
    return Rollout(KEY_1, TASK, replace(episode, **changed), reward, Timing(5.0, 6.0))


RECORD = SessionRecord(
    chains=(CHAIN, CHAIN),
    described=(),
    transcript=({"role": "user", "content": "Hi"},),
    tools=(),
    last_finish=FinishReason.STOP,
    fault=None,
)


@pytest.mark.parametrize("reward", [Unscored(), Scored(0.5, {"a": 1.0}, "42")])
@pytest.mark.parametrize(
    "changed", [{}, {"messages": ({"role": "user", "content": "Other"},)}, {"drift": None, "output": None}]
)
def test_an_outcome_and_a_record_give_the_rollout(reward: Scored | Unscored, changed: dict[str, Any]) -> None:
    import orjson

    made = rollout(reward, **changed)
    said = outcome_to_json(made, RECORD.transcript)
    assert said is not None
    assert (said["messages"] is None) == ("messages" not in changed), "the record has them already"
    read = outcome_from_json(orjson.loads(orjson.dumps(said)), RECORD)
    assert read.rollout(request(draw=1)) == made


def test_a_rollout_that_failed_or_is_partial_has_no_outcome() -> None:
    assert outcome_to_json(rollout(Failed(FailureCause.VERIFIER, "VerifierError", "")), ()) is None
    assert outcome_to_json(rollout(Unscored(), stop=StopReason.ABORTED), ()) is None


def test_an_outcome_of_another_record_is_refused() -> None:
    said = outcome_to_json(rollout(Unscored()), RECORD.transcript)
    assert said is not None
    with pytest.raises(RunError, match="cannot be read"):
        outcome_from_json(said, replace(RECORD, chains=()))
