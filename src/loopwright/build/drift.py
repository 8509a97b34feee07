"""Recorded conversations, read from a file, and what re-tokenising them would get wrong for a model."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from loopwright.buffer.export import to_line
from loopwright.buffer.reader import StoredRun
from loopwright.errors import DataError
from loopwright.models.load import load_tokenizer
from loopwright.models.smollm2 import NAME as SMOLLM2
from loopwright.models.smollm2 import smollm2_folder
from loopwright.ports import Renderer
from loopwright.render.canonical import canonical_messages, canonical_tools
from loopwright.render.choose import make_renderer
from loopwright.render.drift import ConversationDrift, chain_drift, conversation_drift
from loopwright.trainers.run_folder import RunFolder
from loopwright.types import Thinking


@dataclass(frozen=True, slots=True)
class Measured:
    """One line of a transcript file. `result` None: a rollout whose chains and messages are no single conversation."""

    line: int
    result: ConversationDrift | None


def tokenizer_renderer(model: str, cache: Path, choice: str, thinking: Thinking) -> Renderer:
    """The renderer of a model, of which only the tokenizer is read."""
    source = str(smollm2_folder(cache)) if model == SMOLLM2 else model
    return make_renderer(load_tokenizer(source), choice, thinking)


def measure_drift(place: Path, renderer: Renderer) -> Iterator[Measured]:
    """Every line of a JSONL file: a conversation (`messages`, optionally `tools`), or a rollout with its tokens. Of a
    run's folder, every rollout."""
    for number, record in enumerate(_rollouts(place) if place.is_dir() else _lines(place), start=1):
        yield Measured(number, _measure(record, renderer, f"{place.name}:{number}"))


def _rollouts(folder: Path) -> Iterator[Mapping[str, Any]]:
    for attempt in StoredRun(RunFolder(folder).rollouts).attempts():
        yield json.loads(to_line(attempt))


def _lines(file: Path) -> Iterator[Mapping[str, Any]]:
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            yield _record(line, f"{file.name}:{number}")


def _record(line: str, where: str) -> Mapping[str, Any]:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise DataError(f"{where} is not JSON: {error}", remedy="write one JSON object per line") from error
    if isinstance(record, list):
        return {"messages": record}
    if not isinstance(record, dict) or not ({"messages", "episode"} & record.keys()):
        raise DataError(
            f"{where} is no conversation",
            remedy='write {"messages": [...], "tools": [...]}, or lines of `loopwright rollout --jsonl`',
        )
    return record


def _measure(record: Mapping[str, Any], renderer: Renderer, where: str) -> ConversationDrift | None:
    try:
        tools = canonical_tools(record.get("tools") or (record.get("task") or {}).get("tools") or ())
        if "episode" not in record:
            return conversation_drift(canonical_messages(record["messages"]), renderer, tools)
        return _rollout(record["episode"] or {"chains": (), "messages": ()}, renderer)
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{where} has a message of an unknown shape: {type(error).__name__} {error}",
            remedy="use messages with role and content, as OpenAI's chat API has them",
        ) from error


def _rollout(episode: Mapping[str, Any], renderer: Renderer) -> ConversationDrift | None:
    """A stored rollout: the tokens of its one chain against its messages, of which the last replies were sampled."""
    messages, chains = canonical_messages(episode["messages"]), episode["chains"]
    replies = [place for place, message in enumerate(messages) if place and message["role"] == "assistant"]
    if len(chains) != 1:
        return None
    mask = np.asarray(chains[0]["mask"], dtype=bool)
    edges = np.flatnonzero(np.diff(mask, prepend=False, append=False))
    sampled = len(edges) // 2
    if not 0 < sampled <= len(replies):
        return None
    stream, until = chains[0]["ids"][: int(edges[-1])], messages[: replies[-1] + 1]
    drift = chain_drift(stream, until, renderer, first_sampled=int(edges[0]), first_reply=replies[-sampled])
    return ConversationDrift(1, 0, drift)
