"""The same conversation in every dialect gives the same chains, token for token."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

from gateway_house import ADD, ADD_ANTHROPIC, ADD_GEMINI, ADD_RESPONSES, Desk, call_text, checked_chains
from hypothesis import given, settings
from hypothesis import strategies as st

words = st.text(st.characters(codec="utf-8", exclude_characters="\r<>|", exclude_categories=("Cs", "Cc")), max_size=12)
numbers = st.integers(-(10**6), 10**6) | st.floats(-1e6, 1e6, allow_nan=False)
arguments = st.dictionaries(words, numbers | words | st.lists(numbers, max_size=2), max_size=2)
spacing = st.sampled_from([(",", ":"), (", ", ": "), (" , ", " :  ")])


@st.composite
def written_call(draw: st.DrawFn) -> str:
    given = draw(arguments)
    written = json.dumps(given, separators=draw(spacing), ensure_ascii=draw(st.booleans()))
    return call_text("add", written)


@dataclass(frozen=True)
class Turn:
    """What the model writes, and what it hears next: the results of its calls, and maybe more from the user."""

    said: str
    results: tuple[str, ...]
    user: str


@st.composite
def turns(draw: st.DrawFn) -> Turn:
    calls = draw(st.lists(written_call(), max_size=2))
    results = tuple(draw(words) for _ in calls)
    user = draw(words) if not calls or draw(st.booleans()) else ""
    return Turn("\n".join([draw(words), *calls]), results, user if calls else user or "Go on.")


conversations = st.tuples(words, words, st.lists(turns(), min_size=1, max_size=4))


class ChatAgent:
    path = "v1/chat/completions"

    def __init__(self, system: str, task: str) -> None:
        self.history: list[Any] = [{"role": "system", "content": system}, {"role": "user", "content": task}]

    def body(self, streamed: bool) -> dict[str, Any]:
        return {"messages": self.history, "tools": [ADD]}

    def hear(self, reply: dict[str, Any], turn: Turn) -> None:
        message = reply["choices"][0]["message"]
        self.history.append(message)
        for call, result in zip(message.get("tool_calls", ()), turn.results, strict=True):
            self.history.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        if turn.user:
            self.history.append({"role": "user", "content": turn.user})


class AnthropicAgent:
    path = "v1/messages"

    def __init__(self, system: str, task: str) -> None:
        self.system = system
        self.history: list[Any] = [{"role": "user", "content": [{"type": "text", "text": task}]}]

    def body(self, streamed: bool) -> dict[str, Any]:
        cached = [{"type": "text", "text": self.system, "cache_control": {"type": "ephemeral"}}]
        return {"system": cached, "messages": self.history, "tools": [ADD_ANTHROPIC], "max_tokens": 4000}

    def hear(self, reply: dict[str, Any], turn: Turn) -> None:
        self.history.append({"role": "assistant", "content": reply["content"]})
        calls = [block for block in reply["content"] if block["type"] == "tool_use"]
        said: list[Any] = [
            {"type": "tool_result", "tool_use_id": call["id"], "content": [{"type": "text", "text": result}]}
            for call, result in zip(calls, turn.results, strict=True)
        ]
        said += [{"type": "text", "text": turn.user}] if turn.user else []
        self.history.append({"role": "user", "content": said})


class ResponsesAgent:
    path = "v1/responses"

    def __init__(self, system: str, task: str) -> None:
        self.history: list[Any] = [{"role": "developer", "content": system}, {"role": "user", "content": task}]

    def body(self, streamed: bool) -> dict[str, Any]:
        return {"input": self.history, "tools": [ADD_RESPONSES], "store": False}

    def hear(self, reply: dict[str, Any], turn: Turn) -> None:
        self.history += [{**item, "status": None, "content": item.get("content")} for item in reply["output"]]
        calls = [item for item in reply["output"] if item["type"] == "function_call"]
        self.history += [
            {"type": "function_call_output", "call_id": call["call_id"], "output": result}
            for call, result in zip(calls, turn.results, strict=True)
        ]
        if turn.user:
            self.history.append({"type": "message", "role": "user", "content": turn.user})


class GeminiAgent:
    path = "v1beta/models/any:generateContent"

    def __init__(self, system: str, task: str) -> None:
        self.system = system
        self.history: list[Any] = [{"role": "user", "parts": [{"text": task}]}]

    def body(self, streamed: bool) -> dict[str, Any]:
        system = {"parts": [{"text": self.system}]}
        return {
            "systemInstruction": system,
            "contents": self.history,
            "tools": [{"functionDeclarations": [ADD_GEMINI]}],
        }

    def hear(self, reply: dict[str, Any], turn: Turn) -> None:
        content = reply["candidates"][0]["content"]
        self.history.append(
            {"role": "model", "parts": [{**part, "thoughtSignature": "x"} for part in content["parts"]]}
        )
        calls = [part["functionCall"] for part in content["parts"] if "functionCall" in part]
        said: list[Any] = [
            {"functionResponse": {"id": call["id"], "name": call["name"], "response": {"output": result}}}
            for call, result in zip(calls, turn.results, strict=True)
        ]
        said += [{"text": turn.user}] if turn.user else []
        self.history.append({"role": "user", "parts": said})


class ThreadedAgent(ResponsesAgent):
    """Sends only what is new, and the id of the last response."""

    previous: str | None = None
    sent = 0

    def body(self, streamed: bool) -> dict[str, Any]:
        new = [item for item in self.history[self.sent :] if "role" in item and item["role"] != "assistant"]
        new += [item for item in self.history[self.sent :] if item.get("type") == "function_call_output"]
        ordered = [item for item in self.history[self.sent :] if item in new]
        self.sent = len(self.history)
        return {"input": ordered, "tools": [ADD_RESPONSES], "previous_response_id": self.previous}

    def hear(self, reply: dict[str, Any], turn: Turn) -> None:
        self.previous = reply["id"]
        super().hear(reply, turn)


async def talk(agent: Any, script: list[Turn]) -> list[tuple[list[int], list[bool]]]:
    desk = await Desk([turn.said for turn in script]).open()
    for turn in script:
        status, answer = await desk.ask(f"/session-1/{agent.path}", json.dumps(agent.body(False)).encode())
        assert status == 200, answer
        agent.hear(json.loads(answer), turn)
    chains = checked_chains(desk.sessions.find("session-1").recorder, desk.engine, "session-1")
    return [(chain.ids.tolist(), chain.mask.tolist()) for chain in chains]


@settings(max_examples=60)
@given(conversations)
def test_all_dialects_give_the_same_single_chain(conversation: tuple[str, str, list[Turn]]) -> None:
    system, task, script = conversation
    kinds = (ChatAgent, AnthropicAgent, ResponsesAgent, ThreadedAgent, GeminiAgent)
    recorded = [asyncio.run(talk(kind(system or "S", task), script)) for kind in kinds]
    assert len(recorded[0]) == 1
    assert all(one == recorded[0] for one in recorded[1:])
