"""The SDKs' clients that block, in a thread beside the gateway: the same task, one chain each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from anthropic import Anthropic, beta_tool
from gateway_house import ADD, ADD_ANTHROPIC, ADD_RESPONSES, KEY, house
from openai import OpenAI
from two_tool_turns import QUESTION, SCRIPT, check_one_chain, result_of


def chat(base: str, streamed: bool) -> str | None:
    messages: list[Any] = list(QUESTION)
    with OpenAI(base_url=f"{base}/v1", api_key=KEY) as client:
        while True:
            asked: dict[str, Any] = {"model": "any", "messages": messages, "tools": [ADD]}
            if streamed:
                with client.chat.completions.stream(**asked) as stream:
                    message = stream.get_final_completion().choices[0].message
            else:
                message = client.chat.completions.create(**asked).choices[0].message
            messages.append(message)
            if not message.tool_calls:
                return str(message.content)
            for call in message.tool_calls:
                result = result_of(call.function.arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


def responses(base: str, streamed: bool) -> str:
    items: list[Any] = list(QUESTION)
    with OpenAI(base_url=f"{base}/v1", api_key=KEY) as client:
        while True:
            asked: dict[str, Any] = {"model": "any", "input": items, "tools": [ADD_RESPONSES], "store": False}
            if streamed:
                with client.responses.stream(**asked) as stream:
                    response = stream.get_final_response()
            else:
                response = client.responses.create(**asked)
            items += response.output
            calls = [item for item in response.output if item.type == "function_call"]
            if not calls:
                return str(response.output_text)
            items += [
                {"type": "function_call_output", "call_id": call.call_id, "output": result_of(call.arguments)}
                for call in calls
            ]


def messages(base: str, streamed: bool) -> str:
    said: list[Any] = [QUESTION[1]]
    asked: dict[str, Any] = {"model": "any", "max_tokens": 1000, "system": "Use tools.", "tools": [ADD_ANTHROPIC]}
    with Anthropic(base_url=base, api_key=KEY) as client:
        while True:
            if streamed:
                with client.messages.stream(messages=said, **asked) as stream:
                    reply = stream.get_final_message()
            else:
                reply = client.messages.create(messages=said, **asked)
            said.append({"role": "assistant", "content": reply.content})
            calls = [block for block in reply.content if block.type == "tool_use"]
            if not calls:
                return str(reply.content[0].text)
            results = [{"type": "tool_result", "tool_use_id": c.id, "content": result_of(c.input)} for c in calls]
            said.append({"role": "user", "content": results})


def tool_runner(base: str, streamed: bool) -> str:
    @beta_tool  # type: ignore[untyped-decorator]
    def add(a: float, b: float) -> str:
        """Add two numbers."""
        return str(a + b)

    with Anthropic(base_url=base, api_key=KEY) as client:
        runner = client.beta.messages.tool_runner(
            model="any", max_tokens=1000, tools=[add], messages=[QUESTION[1]], stream=streamed
        )
        if not streamed:
            return str(runner.until_done().content[-1].text)
        for stream in runner:
            final = stream.get_final_message()
        return str(final.content[-1].text)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("agent", [chat, responses, messages, tool_runner])
async def test_an_agent_that_blocks_records_one_chain(agent: Callable[[str, bool], str], streamed: bool) -> None:
    async with house(SCRIPT) as h:
        base = f"{h.gateway.base_url}/{await h.session()}"
        assert await asyncio.to_thread(agent, base, streamed) == SCRIPT[-1]
        check_one_chain(h)
