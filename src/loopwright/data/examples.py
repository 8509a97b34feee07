"""SFT examples from a JSONL file. Every line is checked when the file is read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from loopwright.data.jsonl import JsonlSource
from loopwright.errors import DataError
from loopwright.types import Message, Tool


@dataclass(frozen=True, slots=True)
class ExampleConversation:
    """Messages, and the tools that the model is offered. The last message is the answer to learn. `where` is the file
    and the line of the example."""

    messages: tuple[Message, ...]
    where: str
    tools: tuple[Tool, ...] = ()


def read_examples(path: Path) -> tuple[ExampleConversation, ...]:
    """Read one conversation per line, as `{"messages": [...], "tools": [...]}`; `tools` may be missing. The first
    malformed line raises an error that names the line."""
    source = JsonlSource.open(path)
    return tuple(_conversation(source, index) for index in range(len(source)))


def _conversation(source: JsonlSource, index: int) -> ExampleConversation:
    line = int(source.lines[index])
    task, where = source[index], f"{source.path}:{line}"
    messages = task.messages
    answer = messages[-1].get("content")
    if messages[-1]["role"] != "assistant" or not isinstance(answer, str) or not answer:
        raise DataError(
            f"{where}: the last message is not an assistant's text, so there is no answer to learn",
            remedy='end messages with {"role": "assistant", "content": "..."}',
            file=str(source.path),
            line=line,
        )
    if len(messages) == 1:
        raise DataError(
            f"{where}: there is nothing before the answer",
            remedy="begin messages with what is answered",
            file=str(source.path),
            line=line,
        )
    return ExampleConversation(messages, where, task.tools)
