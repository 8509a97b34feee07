"""What a session has recorded, as a value that can be read from a gateway in another process.

The invariant: what `record_from_json` reads equals what `record_to_json` was given, token by token and bit by bit. A
logprob is a float32; JSON holds the float64 of the same value in as many digits as it needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from loopwright.errors import ContextError, EngineError, LoopwrightError, RunError
from loopwright.gateway.session import Session
from loopwright.gateway.wire import error_from_json, error_to_json, message_from_json
from loopwright.render.recording.describing import describe_chains
from loopwright.render.recording.recorder import Recorder
from loopwright.types import (
    ChainStart,
    Episode,
    FinishReason,
    Message,
    RecordedChain,
    StopReason,
    TokenChain,
    Tool,
)


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """The chains with their descriptions, in the same order. `transcript` is the conversation of the latest turn, and
    `tools` are those that it offered. `fault` is what kept the model from answering the last call, or the error that no
    prompt ever fitted."""

    chains: tuple[TokenChain, ...]
    described: tuple[RecordedChain, ...]
    transcript: tuple[Message, ...]
    tools: tuple[Tool, ...]
    last_finish: FinishReason | None
    fault: EngineError | ContextError | None

    def episode(self, messages: Sequence[Message], stop: StopReason | None = None) -> Episode:
        """The rollout's episode with the agent's transcript. `stop` says why the agent stopped; without it, a last
        answer that was cut by length has used up the budget."""
        return Episode(tuple(messages), self.chains, stop or stop_after(self.last_finish), self.tools)


def record_of(session: Session, recorder: Recorder) -> SessionRecord:
    """The record of a session. `recorder` has its turns, also after its end."""
    return SessionRecord(
        chains=recorder.chains(),
        described=describe_chains(recorder),
        transcript=latest_conversation(recorder),
        tools=recorder.tools,
        last_finish=session.last_finish,
        fault=session.last_fault(recorder),
    )


def latest_conversation(recorder: Recorder) -> tuple[Message, ...]:
    return recorder.conversation(len(recorder) - 1) if len(recorder) else ()


def stop_after(finish: FinishReason | None) -> StopReason:
    """Why an agent stopped that did not say so, if its last answer ended in this way."""
    return StopReason.BUDGET if finish is FinishReason.LENGTH else StopReason.DONE


def record_to_json(record: SessionRecord) -> dict[str, Any]:
    return {
        "chains": [chain_to_json(chain) for chain in record.chains],
        "described": [asdict(described) for described in record.described],
        "transcript": record.transcript,
        "tools": record.tools,
        "last_finish": record.last_finish,
        "fault": error_to_json(record.fault),
    }


def record_from_json(body: Mapping[str, Any]) -> SessionRecord:
    """Raises RunError if this is no record."""
    try:
        finish = body["last_finish"]
        return SessionRecord(
            chains=tuple(chain_from_json(chain) for chain in body["chains"]),
            described=tuple(_described(described) for described in body["described"]),
            transcript=_messages(body["transcript"]),
            tools=tuple(body["tools"]),
            last_finish=None if finish is None else FinishReason(finish),
            fault=_fault(body["fault"]),
        )
    except (LoopwrightError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunError(
            f"a session's record cannot be read: {type(error).__name__} {error}",
            remedy="use a gateway of the same version of Loopwright",
        ) from error


def chain_to_json(chain: TokenChain) -> dict[str, Any]:
    return {
        "start": chain.start,
        "ids": chain.ids.tolist(),
        "mask": chain.mask.astype(int).tolist(),
        "logprobs": chain.logprobs.tolist(),
        "versions": chain.versions.tolist(),
        "constrained": chain.constrained,
    }


def chain_from_json(said: Mapping[str, Any]) -> TokenChain:
    streams = said["ids"], said["mask"], said["logprobs"], said["versions"]
    constrained = tuple((begin, end) for begin, end in said.get("constrained", ()))
    return TokenChain(*streams, ChainStart(said["start"]), constrained=constrained)


def _described(said: Mapping[str, Any]) -> RecordedChain:
    read = {"start": ChainStart(said["start"]), "messages": _messages(said["messages"]), "tools": tuple(said["tools"])}
    return RecordedChain(**{**said, **read})


def _messages(said: Sequence[dict[str, Any]]) -> tuple[Message, ...]:
    return tuple(message_from_json(message) for message in said)


def _fault(said: Mapping[str, Any] | None) -> EngineError | ContextError | None:
    if said is None:
        return None
    if said["kind"] == ContextError.__name__:
        return error_from_json(said, ContextError)
    return error_from_json(said, EngineError)
