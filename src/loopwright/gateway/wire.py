"""Converts sessions and turns to rows and back. What is read equals what was written."""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

import numpy as np
import orjson

from loopwright import errors
from loopwright.errors import ContextError, EngineError, LoopwrightError, RunError
from loopwright.gateway.session import FirstCall, Session, SessionSettings, SessionState
from loopwright.render.recording.recorded import Recorded
from loopwright.types import ChainStart, FinishReason, Sampling


def session_row(session: Session) -> tuple[Any, ...]:
    settings = orjson.dumps(asdict(session.settings)).decode()
    return session.id, session.key_digest, settings, session.created, session.state.value, session_facts(session)


def session_facts(session: Session) -> str:
    """What changes in a session besides its turns, as JSON."""
    first = session.first_call
    facts = {
        "first_call": first and (first.time, first.held_seconds),
        "held_seconds": session.held_seconds,
        "turns": len(session.recorder),
        "draws": session.calls,
        "last_finish": session.last_finish,
        "fault": error_to_json(session.fault),
        "unfit": error_to_json(session.unfit),
        "version": session.version,
        "quiet_since_restart": session.quiet_since_restart,
        "outcome": session.outcome,
        "deleted": sorted(session.deleted),
    }
    return orjson.dumps(facts).decode()


def session_from_row(row: Sequence[Any]) -> Session:
    """The session without its turns. Its held seconds stand still."""
    id, key_digest, settings, created, state, facts = row
    fields = orjson.loads(settings)
    if fields["sampling"] is not None:
        sampling = fields["sampling"]
        stops = {"stop": tuple(sampling["stop"]), "stop_token_ids": tuple(sampling["stop_token_ids"])}
        fields["sampling"] = Sampling(**(sampling | stops))
    session = Session(id, key_digest, SessionSettings(**fields), created, state=SessionState(state))
    _restore_facts(session, orjson.loads(facts))
    return session


def _restore_facts(session: Session, facts: Mapping[str, Any]) -> None:
    """An older gateway has stored no facts."""
    if first := facts.get("first_call"):
        at, held = first
        session.first_call = FirstCall(at, time.monotonic() - (time.time() - at), held)
    session.noted_held = facts.get("held_seconds", 0.0)
    session.held_from = -session.noted_held
    session.noted_turns = facts.get("turns", 0)
    session.calls = facts.get("draws", 0)
    finish, fault, unfit = (facts.get(name) for name in ("last_finish", "fault", "unfit"))
    session.last_finish = None if finish is None else FinishReason(finish)
    session.fault = None if fault is None else error_from_json(fault, EngineError)
    session.unfit = None if unfit is None else error_from_json(unfit, ContextError)
    session.version = facts.get("version")
    session.quiet_since_restart = facts.get("quiet_since_restart", False)
    session.outcome = facts.get("outcome")
    session.deleted = set(facts.get("deleted", ()))


def error_to_json(error: LoopwrightError | None) -> dict[str, Any] | None:
    if error is None:
        return None
    facts = orjson.loads(orjson.dumps(error.facts, default=str, option=orjson.OPT_NON_STR_KEYS))
    return {"kind": type(error).__name__, "message": error.message, "remedy": error.remedy, "facts": facts}


E = TypeVar("E", bound=LoopwrightError)


def error_from_json(said: Mapping[str, Any], base: type[E]) -> E:
    """The error, with its own type. A type that is no `base`, or that this version does not know, becomes `base`."""
    kind = getattr(errors, said["kind"], base)
    known = kind if isinstance(kind, type) and issubclass(kind, base) else base
    return known(said["message"], remedy=said["remedy"], **said["facts"])


def version_of(session: Session, turns: Sequence[Recorded]) -> str:
    """A digest of everything that a session has recorded. A later session with the same id has another key, so it has
    another version."""
    digest = hashlib.blake2b(session.key_digest.encode(), digest_size=16)
    for turn in turns:
        for part in turn_row(turn):
            digest.update(part)
    ending = (session.last_finish, error_to_json(session.fault), error_to_json(session.unfit))
    digest.update(orjson.dumps(ending))
    return digest.hexdigest()


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
        # Only if there are any: a turn without them has the same digest as it had in earlier versions.
        **({"constrained": turn.constrained} if turn.constrained else {}),
    }
    if turn.begun:
        facts["begun"] = turn.begun
    if turn.alternatives:
        facts["alternatives"] = base64.b64encode(turn.alternatives).decode()
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
        added=tuple(message_from_json(message) for message in said["added"]),
        reply=message_from_json(said["reply"]),
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
        begun=said.get("begun", ""),
        constrained=tuple((begin, end) for begin, end in said.get("constrained", ())),
        alternatives=base64.b64decode(said.get("alternatives", "")),
    )


def _layout(context: int, sampled: int) -> list[tuple[str, int, int]]:
    """Kind, length and byte offset of each stream."""
    return [
        ("<i4", context, 0),
        ("<i4", sampled, 4 * context),
        ("<f4", sampled, 4 * (context + sampled)),
        ("<i4", sampled, 4 * (context + 2 * sampled)),
    ]


def message_from_json(message: dict[str, Any]) -> dict[str, Any]:
    """What a dialect reads as tuples is a tuple again."""
    tuples = {name: tuple(message[name]) for name in ("tool_calls", "omitted", "ids") if name in message}
    return message | tuples if tuples else message
