"""Small conversations that are used to find out what a template or a model family writes."""

from __future__ import annotations

from loopwright.types import Message, Tool

ASKED: Message = {"role": "user", "content": "loopwright-question"}
ANSWERED: Message = {"role": "assistant", "content": "loopwright-answer"}
THOUGHT: Message = {"role": "assistant", "content": "loopwright-answer", "reasoning": "loopwright-thought"}
THOUGHT_IN_TEXT: Message = {
    "role": "assistant",
    "content": "<think>\nloopwright-thought\n</think>\n\nloopwright-answer",
}
CALLED: Message = {
    "role": "assistant",
    "content": "",
    "tool_calls": ({"id": "call00000", "name": "loopwright_tool", "arguments": '{"text": "loopwright-argument"}'},),
}
RESULT: Message = {
    "role": "tool",
    "content": "loopwright-result",
    "tool_call_id": "call00000",
    "name": "loopwright_tool",
}
TOOL: Tool = {
    "name": "loopwright_tool",
    "description": "loopwright-description",
    "parameters": {"type": "object", "properties": {"text": {"type": "string"}}},
}
