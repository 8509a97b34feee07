"""Converts sessions and turns to rows and back. What is read equals what was written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import orjson

from loopwright.errors import RunError
from loopwright.gateway.session import Session, SessionSettings, SessionState
from loopwright.render.recording.recorded import Recorded
from loopwright.types import ChainStart, FinishReason, Sampling


def session_row(session: Session) -> tuple[Any, ...]:
    settings = orjson.dumps(asdict(session.settings)).decode()
    return session.id, session.key_digest, settings, session.created, session.state.value


def session_from_row(row: Sequence[Any]) -> Session:
    id, key_digest, settings, created, state = row
    fields = orjson.loads(settings)
    if fields["sampling"] is not None:
        sampling = fields["sampling"]
        stops = {"stop": tuple(sampling["stop"]), "stop_token_ids": tuple(sampling["stop_token_ids"])}
        fields["sampling"] = Sampling(**(sampling | stops))
    return Session(id, key_digest, SessionSettings(**fields), created, state=SessionState(state))


def turn_row(turn: Recorded) -> tuple[bytes, bytes]:
    """The messages and facts as JSON, and the four token streams as bytes. Tools are stored where a conversation
    begins."""
    facts = {
        "parent": turn.parent,
        "start": turn.start,
        "added": turn.added,
        "reply": turn.reply,
        "tools": turn.tools if turn.parent is None else None,
        "context": len(turn.context),
        "finish": turn.finish,
        "answer": turn.answer,
        "created": turn.created,
        "stop": turn.stop,
        "preamble": turn.preamble,
        "wishes": turn.wishes,
        "draws": turn.draws,
    }
    tokens = b"".join(
        stream.astype(kind, copy=False).tobytes()
        for stream, kind in ((turn.context, "<i4"), (turn.ids, "<i4"), (turn.logprobs, "<f4"), (turn.versions, "<i4"))
    )
    return orjson.dumps(facts), tokens


def turn_from_row(number: int, facts: bytes, tokens: bytes, earlier: Sequence[Recorded]) -> Recorded:
    """`earlier` are the session's turns before this one."""
    said = orjson.loads(facts)
    context, sampled = said["context"], (len(tokens) // 4 - said["context"]) // 3
    if len(tokens) != 4 * (context + 3 * sampled):
        raise RunError(f"turn {number} is damaged", remedy="restore a copy of the file, or start over with another one")
    parts = (np.frombuffer(tokens, kind, size, at) for kind, size, at in _layout(context, sampled))
    ids_before, ids, logprobs, versions = parts
    parent = said["parent"]
    return Recorded(
        number=number,
        parent=parent,
        start=None if said["start"] is None else ChainStart(said["start"]),
        added=tuple(_message(message) for message in said["added"]),
        reply=_message(said["reply"]),
        tools=tuple(said["tools"]) if parent is None else earlier[parent].tools,
        context=ids_before,
        ids=ids,
        logprobs=logprobs,
        versions=versions,
        finish=FinishReason(said["finish"]),
        answer=said["answer"],
        created=said["created"],
        stop=said["stop"],
        preamble=said["preamble"],
        wishes=said["wishes"],
        draws=said.get("draws", 0),
    )


def _layout(context: int, sampled: int) -> list[tuple[str, int, int]]:
    """Kind, length and byte offset of each stream."""
    return [
        ("<i4", context, 0),
        ("<i4", sampled, 4 * context),
        ("<f4", sampled, 4 * (context + sampled)),
        ("<i4", sampled, 4 * (context + 2 * sampled)),
    ]


def _message(message: dict[str, Any]) -> dict[str, Any]:
    return message | {"tool_calls": tuple(message["tool_calls"])} if "tool_calls" in message else message
