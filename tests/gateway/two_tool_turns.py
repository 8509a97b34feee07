"""A task that every SDK is given: two turns with tools, in which the model writes JSON and unicode in its own way."""

from __future__ import annotations

import json
from typing import Any

from gateway_house import House, call_text

from loopwright.types import ChainStart

SCRIPT = (
    "Let me see. " + call_text("add", '{"b":2 , "a": 1.0}'),
    call_text("add", '{"a": 3, "b": 4}') + "\n" + call_text("add", '{"a": 5, "b": 6}'),
    "It is ünïcödé: 3, 7 and 11 🙂.",
)
QUESTION = [{"role": "system", "content": "Use tools."}, {"role": "user", "content": "Add 1 and 2, then more."}]


def result_of(arguments: str | dict[str, Any]) -> str:
    given = json.loads(arguments) if isinstance(arguments, str) else arguments
    return str(given["a"] + given["b"])


def check_one_chain(house: House) -> None:
    (chain,) = house.chains()
    assert chain.start is ChainStart.FIRST
    assert len(house.engine.log) == 3
    assert chain.sampled == sum(len(generation.ids) for _, generation in house.engine.log)
