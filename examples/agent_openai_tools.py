"""An agent as you may have it already: written against the openai SDK, and nothing of Loopwright's but the task.

It gives the model one tool, calls it when asked to, and stops at the first answer without a call. A small model needs
worked examples to write tool calls at all: four of them stand in the prompt.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from loopwright import Task

MAX_TURNS = 3

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two whole numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}

SYSTEM = "You add numbers with the tool add. Call it first; when you have its result, say that number and nothing else."


def examples() -> list[dict[str, Any]]:
    """Four calls, each with its result and the answer."""
    messages: list[dict[str, Any]] = []
    for number, (a, b) in enumerate([(21, 132), (64, 318), (35, 704), (17, 925)]):
        call = {"name": "add", "arguments": json.dumps({"a": a, "b": b})}
        messages += [
            {"role": "user", "content": f"What is {a} + {b}?"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": f"example-{number}", "type": "function", "function": call}],
            },
            {"role": "tool", "tool_call_id": f"example-{number}", "content": str(a + b)},
            {"role": "assistant", "content": str(a + b)},
        ]
    return messages


async def agent(task: Task, base_url: str, api_key: str) -> None:
    """Answer one question. What the model sampled is recorded at `base_url`; nothing has to be returned."""
    messages: list[Any] = [{"role": "system", "content": SYSTEM}, *examples(), *task.messages]
    # The gateway is on this machine: reading the world's certificates for every rollout would only take time.
    http = DefaultAsyncHttpxClient(verify=False)
    async with AsyncOpenAI(base_url=base_url, api_key=api_key, http_client=http) as client:
        for _ in range(MAX_TURNS):
            reply = await client.chat.completions.create(model="policy", messages=messages, tools=[ADD])  # type: ignore[list-item]
            message = reply.choices[0].message
            messages.append(message)
            if not message.tool_calls:
                return
            for call in message.tool_calls:
                if call.type == "function":
                    result = use(call.function.name, call.function.arguments)
                    messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


def use(name: str, arguments: str) -> str:
    """What the tool says; a mistake is said to the model, too."""
    try:
        given = json.loads(arguments)
        return str(int(given["a"]) + int(given["b"])) if name == "add" else f"error: there is no tool {name}"
    except (ValueError, KeyError, TypeError) as error:
        return f"error: {error!r}"


def tasks(split: str = "train") -> Iterator[Task]:
    """Sums of numbers with two and three digits. The splits share no task."""
    draw = random.Random(11)
    every = {f"{a}+{b}": (a, b) for a, b in ((draw.randint(12, 99), draw.randint(100, 999)) for _ in range(600))}
    chosen = list(every.items())[:400] if split == "train" else list(every.items())[400:500]
    for name, (a, b) in chosen:
        yield Task.ask(name, f"What is {a} + {b}?", truth=a + b)


def held_out() -> Iterator[Task]:
    return tasks("held out")
