"""An agent as you may have it already: written against the openai SDK, and nothing of Loopwright's but the task.

It gives the model a calculator, does the calculation that the model asks for, and stops at the first answer without a
call. A small model needs worked examples to write a call at all: three of them stand in the prompt, all of them in the
words "What is 347 plus 218?". A third of the tasks use other words, which no example shows.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from itertools import islice
from operator import add, mul, sub
from typing import Any

from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from loopwright import Task

MAX_TURNS = 2
TRAINED, HELD_OUT = 600, 100

SHOWN = {"+": "What is {a} plus {b}?", "-": "What is {a} minus {b}?", "*": "What is {a} times {b}?"}
OTHER = {"+": "Add {b} to {a}.", "-": "Take {b} from {a}.", "*": "{a} boxes of {b} pens: how many pens?"}
CALCULATION = re.compile(r"\s*(\d{1,9})\s*([-+*])\s*(\d{1,9})\s*")
CALCULATE = {"+": add, "-": sub, "*": mul}

CALCULATOR: Any = {
    "type": "function",
    "function": {"name": "calc", "parameters": {"type": "object", "properties": {"x": {"type": "string"}}}},
}


async def agent(task: Task, base_url: str, api_key: str) -> None:
    """Answer one question. What the model sampled is recorded at `base_url`; nothing has to be returned."""
    messages: list[Any] = [*examples(), *task.messages]
    # The gateway is on this machine: reading the world's certificates for every rollout would only take time.
    http = DefaultAsyncHttpxClient(verify=False)
    async with AsyncOpenAI(base_url=base_url, api_key=api_key, http_client=http) as client:
        for _ in range(MAX_TURNS):
            reply = await client.chat.completions.create(model="policy", messages=messages, tools=[CALCULATOR])
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
    if name != "calc":
        return f"error: there is no tool {name}"
    try:
        return str(calculate(json.loads(arguments)["x"]))
    except (ValueError, KeyError, TypeError) as error:
        return f"error: {error!r}"


def calculate(text: str) -> int:
    found = CALCULATION.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not two numbers with +, - or * between them")
    a, sign, b = found.groups()
    return int(CALCULATE[sign](int(a), int(b)))


def examples() -> Iterator[dict[str, Any]]:
    """Three questions, each with the call, its result and the answer."""
    for a, sign, b in ((347, "+", 218), (926, "-", 455), (724, "*", 183)):
        result = str(calculate(f"{a} {sign} {b}"))
        call = {"name": "calc", "arguments": json.dumps({"x": f"{a} {sign} {b}"})}
        yield {"role": "user", "content": SHOWN[sign].format(a=a, b=b)}
        yield {"role": "assistant", "tool_calls": [{"id": result, "type": "function", "function": call}]}
        yield {"role": "tool", "tool_call_id": result, "content": result}
        yield {"role": "assistant", "content": result}


def tasks() -> Iterator[Task]:
    return _drawn(0, TRAINED)


def held_out() -> Iterator[Task]:
    """The same kinds of questions with other numbers: no calculation is in both."""
    return _drawn(TRAINED, TRAINED + HELD_OUT)


def a_few_held_out() -> Iterator[Task]:
    return _drawn(TRAINED, TRAINED + 8)


def _drawn(begin: int, end: int) -> Iterator[Task]:
    draw = random.Random(11)
    all_draws = ((draw.randint(500, 999), draw.choice("+-*"), draw.randint(100, 499)) for _ in range(1000))
    for number, (a, sign, b) in islice(enumerate(dict.fromkeys(all_draws)), begin, end):
        wording = OTHER if number % 3 == 2 else SHOWN
        yield Task.ask(f"{a}{sign}{b}", wording[sign].format(a=a, b=b), truth=calculate(f"{a} {sign} {b}"))
