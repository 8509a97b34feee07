"""Makes messages safe for a template: nothing in them spells a control token (T9)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from loopwright.render.control import ControlTokens
from loopwright.render.hermes import THINK, THINK_END
from loopwright.types import Message

ROLES = frozenset({"system", "user", "assistant", "tool"})
"""Roles that spell no control token. Any other role might."""
NOT_WRITTEN = "ids"
"""A field of a recorded reply that no template writes."""


def hidden_messages(messages: Sequence[Message], control: ControlTokens) -> list[Message]:
    """The messages, with placeholders where their texts spell a control token. The arguments of calls are not changed:
    they are JSON, which may escape what it spells."""
    return [_hidden(message, control) for message in messages]


def hidden_values(shaped: Sequence[dict[str, Any]], control: ControlTokens) -> Sequence[dict[str, Any]]:
    """Messages in a template's form, in which the arguments of calls are values. These values are hidden too."""
    for message in shaped:
        if "tool_calls" in message:
            message["tool_calls"] = control.hide_in(message["tool_calls"])
    return shaped


def hidden_arguments(messages: Sequence[Message], control: ControlTokens) -> Sequence[Message]:
    """The messages with the arguments of calls hidden, for renderers that write them as they are."""
    return [
        {**message, "tool_calls": control.hide_in(message["tool_calls"])} if message.get("tool_calls") else message
        for message in messages
    ]


def _hidden(message: Message, control: ControlTokens) -> Message:
    """The message with its texts hidden. Most messages need no change and are not copied, because this runs for every
    message of every call."""
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
    """An assistant's message with its thought in its own field, if its content begins with a thought. This is for
    templates that would take the thought from the content themselves: they cannot find it when its marks are hidden.
    `opened`: the thought's opening mark may be missing, because the template wrote it."""
    content = message.get("content")
    if message["role"] != "assistant" or message.get("reasoning") or not isinstance(content, str):
        return message
    thought, end, answer = content.partition(THINK_END)
    begun = thought.lstrip().startswith(THINK)
    if not end or not (begun or opened):
        return message
    thought = thought.lstrip().removeprefix(THINK) if begun else thought
    return {**message, "content": answer.lstrip("\n"), "reasoning": thought.strip("\n")}
