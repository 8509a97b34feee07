"""Tools for models whose chat template has no tools. They are written in the Hermes format into plain messages, which
every template can write.

The tools are at the end of the system message. A call is in `<tool_call>` at the end of the assistant's message.
Results are in `<tool_response>`, all results of one turn in one message.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from loopwright.render.hermes import CALL, CALL_END
from loopwright.types import Message, Tool

INTRODUCTION = "You have tools. Their signatures are within <tools></tools>, one JSON object per line:"

HOW_TO_CALL = (
    "To call a tool, write a JSON object with its name and its arguments within <tool_call></tool_call>:\n"
    f'{CALL}\n{{"name": "the tool\'s name", "arguments": {{"the parameter\'s name": "its value"}}}}\n{CALL_END}\n'
    "Its result comes back within <tool_response></tool_response>."
)


def plain_messages(messages: Sequence[Message], tools: Sequence[Tool], result_role: str) -> list[Message]:
    """The conversation as messages with text only. Results get the role `result_role`."""
    plain: list[Message] = []
    was_result = False
    for message in _with_tools(messages, tools):
        is_result = message["role"] == "tool"
        if is_result:
            result = _result(message)
            if was_result:
                result = f"{plain.pop()['content']}\n{result}"
            plain.append({"role": result_role, "content": result})
        else:
            plain.append(_with_calls(message) if message.get("tool_calls") else message)
        was_result = is_result
    return plain


def call_text(name: str, arguments: str) -> str:
    """A call as a model writes it. The arguments are already JSON."""
    return f'{CALL}\n{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": {arguments}}}\n{CALL_END}'


def _with_tools(messages: Sequence[Message], tools: Sequence[Tool]) -> Sequence[Message]:
    if not tools:
        return messages
    listed = "\n".join(json.dumps({"type": "function", "function": dict(tool)}, ensure_ascii=False) for tool in tools)
    block = f"{INTRODUCTION}\n<tools>\n{listed}\n</tools>\n{HOW_TO_CALL}"
    if messages and messages[0]["role"] == "system":
        first, *rest = messages
        return [{**first, "content": f"{first.get('content') or ''}\n\n{block}".lstrip()}, *rest]
    return [{"role": "system", "content": block}, *messages]


def _with_calls(message: Message) -> Message:
    calls = [call_text(call["name"], call["arguments"]) for call in message["tool_calls"]]
    content = "\n".join([*([message["content"]] if message.get("content") else []), *calls])
    return {**{key: value for key, value in message.items() if key != "tool_calls"}, "content": content}


def _result(message: Message) -> str:
    return f"<tool_response>\n{message.get('content') or ''}\n</tool_response>"
