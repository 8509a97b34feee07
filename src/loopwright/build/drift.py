"""Recorded conversations, read from a file, and what re-tokenising them would get wrong for a model."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from loopwright.buffer.transcripts import decode_drift
from loopwright.errors import DataError
from loopwright.models.smollm2 import NAME as SMOLLM2
from loopwright.models.smollm2 import smollm2_folder
from loopwright.models.tokenizer import load_tokenizer
from loopwright.ports import Renderer
from loopwright.render.canonical import canonical_messages, canonical_tools
from loopwright.render.choose import make_renderer
from loopwright.render.drift import chain_drift, conversation_drift, readable
from loopwright.runs.export import episode_fields
from loopwright.runs.run_folder import RunFolder
from loopwright.runs.stored_run import StoredRun
from loopwright.types import ChainStart, EpisodeDrift, Thinking


@dataclass(frozen=True, slots=True)
class Measured:
    """One conversation: a line of a file, or a rollout of a run. `forks` counts the chains after the first by their
    reason. `drift` is None if it was not measured during the rollout and cannot be measured now, because there is more
    than one chain, for example."""

    line: int
    chains: int
    forks: Mapping[str, int]
    drift: EpisodeDrift | None
    unspelled: int = 0


def tokenizer_renderer(model: str, cache: Path, choice: str, thinking: Thinking) -> Renderer:
    """The renderer of a model. Only the model's tokenizer is read."""
    source = str(smollm2_folder(cache)) if model == SMOLLM2 else model
    return make_renderer(load_tokenizer(source), choice, thinking)


def measure_file(file: Path, renderer: Renderer) -> Iterator[Measured]:
    """Every line of a JSONL file: a conversation (`messages`, optionally `tools`), or a rollout with its tokens."""
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            where = f"{file.name}:{number}"
            yield _measure(number, _record(line, where), renderer, where)


def measure_run(folder: RunFolder, renderer: Renderer) -> Iterator[Measured]:
    """Every rollout of a run that has an episode."""
    episodes = (one.rollout.episode for one in StoredRun(folder.rollouts).attempts())
    for number, episode in enumerate((one for one in episodes if one is not None), start=1):
        yield _rollout(number, episode_fields(episode), renderer)


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


def _measure(line: int, record: Mapping[str, Any], renderer: Renderer, where: str) -> Measured:
    try:
        if "episode" in record:
            return _rollout(line, record["episode"] or {"chains": (), "messages": ()}, renderer)
        tools = canonical_tools(record.get("tools") or (record.get("task") or {}).get("tools") or ())
        found = conversation_drift(canonical_messages(record["messages"]), renderer, tools)
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{where} has a message of an unknown shape: {type(error).__name__} {error}",
            remedy="use messages with role and content, as OpenAI's chat API has them",
        ) from error
    forks = {ChainStart.TEMPLATE.value: found.forks} if found.forks else {}
    return Measured(line, found.chains, forks, readable(found.drift, renderer), found.unspelled)


def _rollout(line: int, episode: Mapping[str, Any], renderer: Renderer) -> Measured:
    """A recorded rollout, with the drift that was measured during the rollout, or else with what can be measured
    now."""
    starts = Counter(chain["start"] for chain in episode["chains"])
    forks = {start: count for start, count in starts.items() if start != ChainStart.FIRST}
    stored = episode.get("drift")
    drift = decode_drift(stored) if stored else _drift_of_one_chain(episode, renderer)
    return Measured(line, starts.total(), forks, drift)


def _drift_of_one_chain(episode: Mapping[str, Any], renderer: Renderer) -> EpisodeDrift | None:
    """Compare the tokens of the only chain with those of its messages rendered again."""
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
    tools, begin = canonical_tools(episode.get("tools") or ()), int(edges[0])
    found = chain_drift(stream, until, renderer, tools, first_sampled=begin, first_reply=replies[-sampled])
    return readable(found, renderer)
