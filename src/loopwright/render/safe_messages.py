"""Messages as a template may see them: nothing in them can spell a control token (T9)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from loopwright.render.control import ControlTokens
from loopwright.render.hermes import THINK, THINK_END
from loopwright.types import Message

ROLES = frozenset({"system", "user", "assistant", "tool"})
"""They spell nothing; any other role might."""
NOT_WRITTEN = "ids"
"""The field of a recorded reply that no template writes."""


def hidden_messages(messages: Sequence[Message], control: ControlTokens) -> list[Message]:
    """The messages, with placeholders where their texts spell a control token. The arguments of calls are left as they
    are: JSON, which may escape what it spells."""
    return [_hidden(message, control) for message in messages]


def hidden_values(shaped: Sequence[dict[str, Any]], control: ControlTokens) -> Sequence[dict[str, Any]]:
    """Messages in a template's shape, in which the arguments of calls are values: those are hidden too."""
    for message in shaped:
        if "tool_calls" in message:
            message["tool_calls"] = control.hide_in(message["tool_calls"])
    return shaped


def hidden_arguments(messages: Sequence[Message], control: ControlTokens) -> Sequence[Message]:
    """The messages with the arguments of calls hidden, for those who write them as they are spelled."""
    return [
        {**message, "tool_calls": control.hide_in(message["tool_calls"])} if message.get("tool_calls") else message
        for message in messages
    ]


def _hidden(message: Message, control: ControlTokens) -> Message:
    """Most messages stay as they are, and are not copied: this is done for every message of every call."""
    changed: dict[str, Any] = {}
    for key, value in message.items():
        if key == "role" and value in ROLES:
            continue
        if isinstance(value, str):
            hidden = control.hide(value)
            if hidden is not value:
                changed[key] = hidden
        elif key == "tool_calls" and value:
            changed[key] = tuple(_hidden_call(call, control) for call in value)
        elif key != NOT_WRITTEN:
            changed[key] = control.hide_in(value)
    return {**message, **changed} if changed else message


def _hidden_call(call: Mapping[str, Any], control: ControlTokens) -> Mapping[str, Any]:
    return {name: part if name == "arguments" else control.hide_in(part) for name, part in call.items()}


def thought_apart(message: Message, *, opened: bool) -> Message:
    """An assistant's message with its thought in a field, if its content begins with one. For templates that would take
    it from the content themselves: what is hidden in there they cannot find. `opened`: the thought's beginning may be
    missing, because the template wrote it."""
    content = message.get("content")
    if message["role"] != "assistant" or message.get("reasoning") or not isinstance(content, str):
        return message
    thought, end, answer = content.partition(THINK_END)
    begun = thought.lstrip().startswith(THINK)
    if not end or not (begun or opened):
        return message
    thought = thought.lstrip().removeprefix(THINK) if begun else thought
    return {**message, "content": answer.lstrip("\n"), "reasoning": thought.strip("\n")}
