"""Histories that do not simply go on (T6, T7): each starts a chain with its reason, and no token is trained twice.

`House.chains` checks T1 and T7 against what the engine received and sampled.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from gateway_house import ADD, call_text, house

from loopwright.types import ChainStart, GenerateRequest, Message

SYSTEM = {"role": "system", "content": "You work."}
TASK = {"role": "user", "content": "Begin."}
SUMMARY = "So far: the tests were read, and two of them fail."


def numbered(request: GenerateRequest) -> str:
    """An answer that differs from every other."""
    return f"Answer {len(request.prompt_ids)} of {request.sampling.seed % 997}."


def starts(chains: Any) -> list[ChainStart]:
    return [chain.start for chain in chains]


async def test_a_linear_conversation_is_one_chain_however_it_is_echoed() -> None:
    call = "Well. " + call_text("add", '{"b": 1.0, "a": {"x":[1,2]}}')
    async with house([call, " padded ", "done"]) as h:
        session = await h.session()
        reply = await h.chat(session, [SYSTEM, TASK], tools=[ADD])
        echoed = {
            "role": "assistant",
            "content": [{"type": "text", "text": "Well.\n"}],
            "refusal": None,
            "audio": None,
            "provider_specific_fields": {"x": 1},
            "tool_calls": [
                {
                    "id": "another-id",
                    "type": "function",
                    "index": 0,
                    "function": {"name": "add", "arguments": '{ "a" : {"x": [1, 2]}, "b":1 }'},
                }
            ],
        }
        assert reply["content"] == "Well."
        result = {"role": "tool", "tool_call_id": "another-id", "content": [{"type": "text", "text": "2"}]}
        opening: list[Message] = [{"role": "developer", "content": [{"type": "text", "text": "You work."}]}, TASK]
        second = await h.chat(session, [*opening, echoed, result], tools=[{**ADD, "cache_control": {}}])
        trimmed = {"role": "assistant", "content": second["content"].strip(), "tool_calls": None}
        await h.chat(session, [*opening, echoed, result, trimmed, {"role": "user", "content": "And?"}], tools=[ADD])
        assert starts(h.chains()) == [ChainStart.FIRST]


async def test_sub_agents_in_parallel_have_chains_of_their_own() -> None:
    async with house(numbered, steps=3) as h:
        session = await h.session()
        first = await h.chat(session, [SYSTEM, TASK])

        async def sub_agent(number: int) -> None:
            messages: list[dict[str, Any]] = [SYSTEM, {"role": "user", "content": f"Part {number}."}]
            for _ in range(3):
                messages += [await h.chat(session, messages), {"role": "user", "content": "Go on."}]

        await asyncio.gather(*(sub_agent(number) for number in range(4)))
        await h.chat(session, [SYSTEM, TASK, first, {"role": "user", "content": "All done."}])
        chains = h.chains()
        assert starts(chains) == [ChainStart.FIRST] + [ChainStart.SEPARATE] * 4
        assert h.engine.most_live > 1


async def test_equal_prompts_in_parallel_are_two_samples() -> None:
    async with house(numbered, steps=3) as h:
        session = await h.session()
        one, two = await asyncio.gather(h.chat(session, [TASK]), h.chat(session, [TASK]))
        assert one["content"] != two["content"]
        assert starts(h.chains()) == [ChainStart.FIRST, ChainStart.BRANCH]
        for reply in (one, two):
            await h.chat(session, [TASK, reply, {"role": "user", "content": "Go on."}])
        assert len(h.chains()) == 2


async def test_equal_replies_to_equal_prompts_keep_their_own_chains() -> None:
    async with house(["same", "same", "one", "two"]) as h:
        session = await h.session()
        replies = [await h.chat(session, [TASK]) for _ in range(2)]
        for reply in replies:
            await h.chat(session, [TASK, reply, {"role": "user", "content": "Go on."}])
        assert [chain.sampled for chain in h.chains()] == [9, 9]


async def test_two_continuations_of_one_turn_share_it_as_context() -> None:
    async with house(numbered, steps=2) as h:
        session = await h.session()
        reply = await h.chat(session, [TASK])
        ways = [[TASK, reply, {"role": "user", "content": f"Way {number}."}] for number in range(2)]
        await asyncio.gather(*(h.chat(session, way) for way in ways))
        assert starts(h.chains()) == [ChainStart.FIRST, ChainStart.BRANCH]


async def test_compaction_starts_over_from_the_summary() -> None:
    async with house(["I read the tests.", SUMMARY, "Go on then.", "Yes."]) as h:
        session = await h.session()
        first = await h.chat(session, [SYSTEM, TASK], tools=[ADD])
        ask = {"role": "user", "content": "Summarise."}
        await h.chat(session, [SYSTEM, TASK, first, ask])
        compacted = [SYSTEM, TASK, {"role": "user", "content": f"This goes on from a summary:\n{SUMMARY}\nGo on."}]
        third = await h.chat(session, compacted, tools=[ADD])
        await h.chat(session, [*compacted, third, TASK], tools=[ADD])
        assert starts(h.chains()) == [ChainStart.FIRST, ChainStart.TOOLS, ChainStart.COMPACTED]


async def test_changed_tools_start_a_chain() -> None:
    async with house(numbered) as h:
        session = await h.session()
        reply = await h.chat(session, [TASK], tools=[ADD])
        on = [TASK, reply, {"role": "user", "content": "Go on."}]
        again = await h.chat(session, on)
        await h.chat(session, [*on, again, TASK], tools=[])
        assert starts(h.chains()) == [ChainStart.FIRST, ChainStart.TOOLS]


@pytest.mark.parametrize("edited", [0, 1, 2])
async def test_an_edited_history_starts_a_chain(edited: int) -> None:
    async with house(numbered) as h:
        session = await h.session()
        messages = [SYSTEM, TASK]
        messages += [await h.chat(session, messages), {"role": "user", "content": "Go on."}]
        messages += [await h.chat(session, messages), {"role": "user", "content": "Go on."}]
        messages[edited] = {**messages[edited], "content": "Edited."}
        await h.chat(session, messages)
        why = [ChainStart.SEPARATE, ChainStart.SEPARATE, ChainStart.REWRITTEN][edited]
        assert starts(h.chains()) == [ChainStart.FIRST, why]


async def test_a_dropped_turn_goes_back() -> None:
    async with house(numbered) as h:
        session = await h.session()
        await h.chat(session, [SYSTEM, TASK])
        complaint = {"role": "user", "content": "That was no valid action."}
        reply = await h.chat(session, [SYSTEM, TASK, complaint])
        await h.chat(session, [SYSTEM, TASK, complaint, reply, TASK])
        assert starts(h.chains()) == [ChainStart.FIRST, ChainStart.BRANCH]


async def test_two_clients_in_one_session_do_not_disturb_each_other() -> None:
    async with house(numbered, steps=2) as h:
        session = await h.session()

        async def client(name: str) -> None:
            messages: list[dict[str, Any]] = [{"role": "user", "content": f"I am {name}."}]
            for turn in range(4):
                messages += [await h.chat(session, messages), {"role": "user", "content": f"Turn {turn}."}]

        await asyncio.gather(client("one"), client("two"))
        assert len(h.chains()) == 2
        assert len(h.engine.log) == 8


async def test_a_retry_gets_the_committed_turn_again() -> None:
    async with house(numbered) as h:
        session = await h.session()
        body = {"messages": [TASK]}
        path = f"/{session}/v1/chat/completions"
        first = (await h.post(path, body)).json()
        retried = (await h.post(path, body, **{"x-stainless-retry-count": "1"})).json()
        assert retried["choices"] == first["choices"]
        assert retried["id"] == first["id"]
        other = (await h.post(path, body, **{"x-stainless-retry-count": "0"})).json()
        assert other["choices"] != first["choices"]
        assert len(h.engine.log) == 2
        assert len(h.chains()) == 2


async def test_an_idempotency_key_names_one_turn() -> None:
    async with house(numbered) as h:
        session = await h.session()
        body, path = {"messages": [TASK]}, f"/{session}/v1/chat/completions"
        tries = [(await h.post(path, body, **{"idempotency-key": "k1"})).json() for _ in range(3)]
        assert {one["id"] for one in tries} == {tries[0]["id"]}
        assert (await h.post(path, body, **{"idempotency-key": "k2"})).json()["id"] != tries[0]["id"]


async def test_a_retry_waits_for_its_first_try() -> None:
    async with house(numbered, seconds=lambda request: 0.3) as h:
        session = await h.session()
        path = f"/{session}/v1/messages"
        body = {"messages": [TASK], "max_tokens": 50}
        first = asyncio.create_task(h.post(path, body))
        await asyncio.sleep(0.1)
        retried = await h.post(path, body, **{"x-stainless-retry-count": "1"})
        assert retried.json()["content"] == (await first).json()["content"]
        assert len(h.engine.log) == 1


async def test_a_retry_after_the_agent_went_on_is_a_new_sample() -> None:
    async with house(numbered) as h:
        session = await h.session()
        reply = await h.chat(session, [TASK])
        await h.chat(session, [TASK, reply, {"role": "user", "content": "Go on."}])
        path = f"/{session}/v1/chat/completions"
        again = await h.post(path, {"messages": [TASK]}, **{"x-stainless-retry-count": "1"})
        assert again.json()["choices"][0]["message"]["content"] != reply["content"]
        assert len(h.chains()) == 2
