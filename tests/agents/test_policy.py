"""The recording policy: what the engine saw and sampled, and nothing else (T1, T4, T5, T6, S5)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopwright.agents import EnginePolicies, EnginePolicy
from loopwright.errors import AgentError, ContextError, EngineError
from loopwright.render.chat_template import ChatTemplateRenderer
from loopwright.testing import CharRenderer, ScriptedEngine
from loopwright.testing.tiny import tiny_tokenizer
from loopwright.types import (
    ChainStart,
    FinishReason,
    GenerateRequest,
    Generation,
    Message,
    RolloutKey,
    RolloutRequest,
    Sampling,
    Split,
    StopReason,
    Task,
)

ASK: tuple[Message, ...] = ({"role": "user", "content": "hi"},)
CHATML = ChatTemplateRenderer(tiny_tokenizer())


def policy_on(engine: ScriptedEngine, *, max_context: int = 1000, **sampling: int) -> EnginePolicy:
    return EnginePolicy(engine, CharRenderer(), Sampling(**sampling), "a/000000/00/0", max_context)  # type: ignore[arg-type]


def user(text: str) -> Message:
    return {"role": "user", "content": text}


async def test_a_longer_conversation_continues_the_sampled_stream() -> None:
    engine = ScriptedEngine(["one", "two"], version=4)
    policy = policy_on(engine)
    messages = [*ASK, (await policy.reply(ASK)).message, user("more")]
    await policy.reply(messages)
    first, second = engine.requests
    stream = (*first.prompt_ids, *policy.turns[0].ids)
    assert second.prompt_ids[: len(stream)] == stream
    (chain,) = policy.episode(messages).chains
    assert chain.sampled == len("one") + len("two") + 2
    assert set(chain.versions[chain.mask]) == {4}


@given(st.lists(st.lists(st.integers(3, 200), min_size=1, max_size=6), min_size=1, max_size=4))
async def test_tokens_no_tokenizer_would_choose_are_trained_as_sampled(samples: list[list[int]]) -> None:
    """T1: the prompt of every turn is the chain up to it, id for id, whatever the sampled text would encode to."""
    engine = ScriptedEngine([[*sample, *CHATML.stop_token_ids] for sample in samples])
    policy = EnginePolicy(engine, CHATML, Sampling(), "a", 4000)
    messages = list(ASK)
    for _ in samples:
        messages += [(await policy.reply(messages)).message, user("go on")]
    (chain,) = policy.episode(messages).chains
    sampled = [token for sample in samples for token in (*sample, *CHATML.stop_token_ids)]
    assert list(chain.ids[chain.mask]) == sampled
    for turn in policy.turns:
        length = len(turn.prompt_ids)
        assert tuple(chain.ids[:length]) == turn.prompt_ids
        assert tuple(chain.ids[length : length + len(turn.ids)]) == turn.ids


async def test_an_edited_reply_starts_a_new_chain() -> None:
    policy = policy_on(ScriptedEngine(["one", "two"]))
    await policy.reply(ASK)
    await policy.reply([*ASK, {"role": "assistant", "content": "ONE"}, user("more")])
    chains = policy.episode(ASK).chains
    assert [chain.start for chain in chains] == [ChainStart.FIRST, ChainStart.REWRITTEN]


async def test_messages_that_the_agent_changes_in_place_are_noticed() -> None:
    policy = policy_on(ScriptedEngine(["one", "two"]))
    messages = [dict(ASK[0])]
    reply = await policy.reply(messages)
    messages[0]["content"] = "ho"
    await policy.reply([*messages, reply.message, user("more")])
    assert len(policy.episode(messages).chains) == 2


async def test_a_sub_agent_in_between_does_not_break_the_main_chain() -> None:
    policy = policy_on(ScriptedEngine(["one", "sub", "two"]))
    main = [*ASK, (await policy.reply(ASK)).message]
    await policy.reply([user("something else")])
    await policy.reply([*main, user("more")])
    assert [chain.sampled for chain in policy.episode(main).chains] == [8, 4]


async def test_requests_have_ordered_ids_their_own_seeds_and_all_stop_tokens() -> None:
    engine = ScriptedEngine(["one"])
    policy = policy_on(engine, seed=7)
    for _ in range(2):
        await policy.reply(ASK)
    first, second = engine.requests
    assert (first.id, second.id) == ("a/000000/00/0/0", "a/000000/00/0/1")
    assert first.sampling.seed != second.sampling.seed
    assert first.sampling.stop_token_ids == CharRenderer.stop_token_ids


@pytest.mark.parametrize(("wish", "expected"), [(None, 20), (5, 5), (100, 20)])
async def test_an_agent_may_ask_for_less_than_the_run_allows_but_not_for_more(wish: int | None, expected: int) -> None:
    engine = ScriptedEngine(["one"])
    await policy_on(engine, max_new_tokens=20).reply(ASK, max_new_tokens=wish)
    assert engine.requests[0].sampling.max_new_tokens == expected


async def test_max_new_tokens_is_clamped_to_the_context() -> None:
    engine = ScriptedEngine(["a long answer"])
    prompt = len(CharRenderer().render(ASK))
    policy = policy_on(engine, max_context=prompt + 3)
    reply = await policy.reply(ASK)
    assert (reply.text, reply.finish) == ("a l", FinishReason.LENGTH)
    assert policy.episode([*ASK, reply.message]).stop is StopReason.BUDGET


async def test_without_room_nothing_is_asked_of_the_engine() -> None:
    engine = ScriptedEngine(["answer"])
    policy = policy_on(engine, max_context=len(CharRenderer().render(ASK)))
    reply = await policy.reply(ASK)
    assert (reply.text, reply.finish) == ("", FinishReason.LENGTH)
    assert engine.requests == []
    episode = policy.episode([*ASK, reply.message])
    assert (episode.stop, episode.chains) == (StopReason.BUDGET, ())


async def test_a_first_prompt_without_room_is_a_fault_until_a_shorter_one_is_answered() -> None:
    prompt = len(CharRenderer().render(ASK))
    policy = policy_on(ScriptedEngine(["ok"]), max_context=prompt + 1)
    long = [user("hi there")]
    await policy.reply(long)
    tokens = len(CharRenderer().render(long))
    fault = policy.fault
    assert isinstance(fault, ContextError)
    assert f"a prompt of {tokens} tokens does not fit model.max_context {prompt + 1}" in fault.message
    await policy.reply(ASK)
    assert policy.fault is None
    await policy.reply(long)
    assert policy.fault is None, "a later turn without room is the agent's own budget"


async def test_calls_may_overlap() -> None:
    policy = policy_on(ScriptedEngine(lambda request: CharRenderer().text(request.prompt_ids)[6:8], steps=3))
    replies = await asyncio.gather(*(policy.reply([user(text)]) for text in ("aa", "bb", "cc")))
    assert [reply.text for reply in replies] == ["aa", "bb", "cc"]
    assert [CharRenderer().text(turn.ids) for turn in policy.turns] == ["aa", "bb", "cc"]


async def test_an_aborted_request_is_an_engine_error() -> None:
    engine = ScriptedEngine(["a long answer"], steps=1)
    policy = policy_on(engine)
    call = asyncio.create_task(policy.reply(ASK))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await engine.abort("a/000000/00/0/0")
    with pytest.raises(EngineError, match="aborted"):
        await call
    assert policy.turns == ()
    assert isinstance(policy.fault, EngineError)


async def test_a_fault_is_forgotten_after_a_good_reply() -> None:
    policy = policy_on(ScriptedEngine(["one"], faults={0}))
    with pytest.raises(EngineError):
        await policy.reply(ASK)
    assert policy.fault is not None
    await policy.reply(ASK)
    assert policy.fault is None


async def test_only_a_call_made_after_a_fault_makes_it_good() -> None:
    """A sub-agent that was under way when its sibling failed says nothing about that sibling."""
    policy = policy_on(ScriptedEngine(["a long answer", "", "one"], steps=2, faults={1}))
    slow = asyncio.create_task(policy.reply([user("slow")]))
    await asyncio.sleep(0)
    with pytest.raises(EngineError):
        await policy.reply([user("unlucky")])
    fault = policy.fault
    await slow
    assert policy.fault is fault is not None
    await policy.reply(ASK)
    assert policy.fault is None


class Misaligned(ScriptedEngine):
    async def generate(self, request: GenerateRequest, on_part: Any = None) -> Generation:
        return Generation((1, 2), (-0.5,), (0, 0), FinishReason.STOP)


async def test_misaligned_streams_are_refused() -> None:
    with pytest.raises(EngineError, match="2 tokens, 1 logprobs"):
        await policy_on(Misaligned([])).reply(ASK)


async def test_all_requests_of_a_group_have_its_affinity_and_no_other_group_has_it() -> None:
    engine = ScriptedEngine(["one"])
    policies = EnginePolicies(engine, CharRenderer(), 1000)

    async def asked(split: Split, key: RolloutKey) -> str:
        request = RolloutRequest(split, key, Task.ask("t", "hi"), Sampling(), 60.0)
        await policies.policy(request, resumable=False).reply(ASK)
        return engine.requests[-1].affinity

    group = await asked(Split.TRAIN, RolloutKey("a", 7, 0))
    assert group == await asked(Split.TRAIN, RolloutKey("a", 7, 3, attempt=1)) != ""
    others = [(Split.TRAIN, "a", 8), (Split.TRAIN, "b", 7), (Split.EVAL, "a", 7)]
    assert group not in [await asked(split, RolloutKey(name, draw, 0)) for split, name, draw in others]


@pytest.mark.parametrize("transcript", [None, "19", [1], 5, [{"content": "no role"}]])
async def test_a_return_value_that_is_no_transcript_is_the_agents_error(transcript: Sequence[Message]) -> None:
    with pytest.raises(AgentError, match="no transcript"):
        policy_on(ScriptedEngine([])).episode(transcript)


CIRCULAR: list[object] = []
CIRCULAR.append(CIRCULAR)


@pytest.mark.parametrize("content", [{1, 2}, Decimal("1.5"), object(), b"raw", float("nan"), {(1, 2): 3}, CIRCULAR])
async def test_a_message_that_json_cannot_hold_is_the_agents_error(content: object) -> None:
    policy = policy_on(ScriptedEngine(["one"]))
    await policy.reply(ASK)
    odd = [*ASK, {"role": "tool", "content": content}]
    with pytest.raises(AgentError, match=r"returned message 1 \(tool\), which cannot be stored as JSON"):
        policy.episode(odd)
    with pytest.raises(AgentError, match=r"asked with message 1 \(tool\)"):
        await policy.reply(odd)
    assert policy.transcript[0] == ASK[0], "what was refused is not the conversation"
