"""The SDKs that agents are written with, over the wire: two tool turns each, one chain each, no token invented."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from anthropic import beta_async_tool
from gateway_house import ADD, ADD_ANTHROPIC, ADD_RESPONSES, house
from two_tool_turns import QUESTION, SCRIPT, check_one_chain, result_of


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_chat_agent_records_one_chain(streamed: bool) -> None:
    async with house(SCRIPT) as h, h.openai(await h.session()) as client:
        messages: list[Any] = list(QUESTION)
        while True:
            if streamed:
                async with client.chat.completions.stream(model="any", messages=messages, tools=[ADD]) as stream:
                    choice = (await stream.get_final_completion()).choices[0]
            else:
                choice = (await client.chat.completions.create(model="any", messages=messages, tools=[ADD])).choices[0]
            messages.append(choice.message)
            if choice.finish_reason == "stop":
                break
            assert choice.finish_reason == "tool_calls"
            for call in choice.message.tool_calls or ():
                result = result_of(call.function.arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        assert choice.message.content == SCRIPT[-1]
        assert [m["content"] for m in messages if isinstance(m, dict) and m["role"] == "tool"] == ["3.0", "7", "11"]
        check_one_chain(h)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("stored", [False, True])
async def test_a_responses_agent_records_one_chain(streamed: bool, stored: bool) -> None:
    async with house(SCRIPT) as h, h.openai(await h.session()) as client:
        history: list[Any] = []
        new: list[Any] = list(QUESTION)
        previous: str | openai.Omit = openai.omit
        while True:
            asked: dict[str, Any] = {"model": "any", "tools": [ADD_RESPONSES], "store": stored}
            asked |= {"input": new, "previous_response_id": previous} if stored else {"input": history + new}
            if streamed:
                async with client.responses.stream(**asked) as stream:
                    response = await stream.get_final_response()
            else:
                response = await client.responses.create(**asked)
            assert response.status == "completed"
            previous, history = response.id, [*history, *new, *response.output]
            calls = [item for item in response.output if item.type == "function_call"]
            if not calls:
                break
            new = [
                {"type": "function_call_output", "call_id": call.call_id, "output": result_of(call.arguments)}
                for call in calls
            ]
        assert response.output_text == SCRIPT[-1]
        check_one_chain(h)


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_anthropic_agent_records_one_chain(streamed: bool) -> None:
    async with house(SCRIPT) as h, h.anthropic(await h.session()) as client:
        messages: list[Any] = [QUESTION[1]]
        asked: dict[str, Any] = {"model": "any", "max_tokens": 1000, "system": "Use tools.", "tools": [ADD_ANTHROPIC]}
        while True:
            if streamed:
                async with client.messages.stream(messages=messages, **asked) as stream:
                    reply = await stream.get_final_message()
            else:
                reply = await client.messages.create(messages=messages, **asked)
            messages.append({"role": "assistant", "content": reply.content})
            if reply.stop_reason == "end_turn":
                break
            assert reply.stop_reason == "tool_use"
            results = [
                {"type": "tool_result", "tool_use_id": block.id, "content": result_of(block.input)}
                for block in reply.content
                if block.type == "tool_use"
            ]
            messages.append({"role": "user", "content": results})
        assert reply.content[0].text == SCRIPT[-1]
        assert reply.usage.cache_read_input_tokens
        check_one_chain(h)


async def test_anthropics_tool_runner_goes_on_without_threads() -> None:
    @beta_async_tool  # type: ignore[untyped-decorator]
    async def add(a: float, b: float) -> str:
        """Add two numbers."""
        return str(a + b)

    async with house(SCRIPT) as h, h.anthropic(await h.session()) as client:
        runner = client.beta.messages.tool_runner(
            model="any", max_tokens=1000, tools=[add], messages=[{"role": "user", "content": "Add 1 and 2."}]
        )
        final = await runner.until_done()
        assert final.content[-1].text == SCRIPT[-1]
        check_one_chain(h)


async def test_several_samples_logprobs_stops_and_usage() -> None:
    async with house(["One. STOP two", "Three."], steps=1) as h, h.openai(await h.session()) as client:
        asked: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "stop": ["STOP"]}
        several = await client.chat.completions.create(**asked, n=2, logprobs=True)
        assert sorted(choice.message.content or "" for choice in several.choices) == ["One. ", "Three."]
        tokens = several.choices[0].logprobs
        assert tokens is not None
        assert tokens.content is not None
        assert {entry.logprob for entry in tokens.content} == {-0.5}
        assert several.usage is not None
        assert several.usage.completion_tokens == sum(len(generation.ids) for _, generation in h.engine.log)
        stream = await client.chat.completions.create(**asked, n=2, stream=True, stream_options={"include_usage": True})
        chunks = [chunk async for chunk in stream]
        assert chunks[-1].choices == []
        assert chunks[-1].usage is not None
        said = {0: "", 1: ""}
        for chunk in chunks[:-1]:
            said[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
        assert sorted(said.values()) == ["One. ", "Three."]
        assert len(h.chains()) == 4


async def test_text_arrives_while_it_is_sampled() -> None:
    async with house(["abcdefgh"], seconds=lambda request: 0.4) as h, h.anthropic(await h.session()) as client:
        async with client.messages.stream(
            model="m", max_tokens=99, messages=[{"role": "user", "content": "Hi"}]
        ) as stream:
            pieces = []
            async for text in stream.text_stream:
                pieces.append((text, len(h.engine.log)))
        assert "".join(text for text, _ in pieces) == "abcdefgh"
        assert len(pieces) > 3
        assert pieces[0][1] == 0
