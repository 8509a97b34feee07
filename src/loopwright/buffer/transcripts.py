"""An episode without its tokens, as JSON: its messages, and other facts about it.

Earlier versions wrote a list of messages. A list is still written if there is nothing else, so all stored transcripts,
old and new, are read in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, NamedTuple

from loopwright.buffer.codec import as_dicts, from_json, to_json, unreadable
from loopwright.types import Episode, EpisodeDrift, Message, ProgramOutput, TokenDiff, Tool


class Transcript(NamedTuple):
    """The stored part of an episode, without its tokens and its stop reason."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    drift: EpisodeDrift | None = None
    output: ProgramOutput | None = None


def encode_transcript(episode: Episode) -> str:
    fields = transcript_fields(episode)
    messages = fields.pop("messages")
    more = {name: value for name, value in fields.items() if value}
    return to_json({"messages": messages, **more} if more else messages, "a rollout's transcript")


def transcript_fields(episode: Episode) -> dict[str, Any]:
    """All fields of the transcript, by name."""
    return {
        "messages": as_dicts(episode.messages),
        "tools": as_dicts(episode.tools),
        "drift": asdict(episode.drift) if episode.drift else None,
        "output": asdict(episode.output) if episode.output else None,
    }


def decode_transcript(text: str) -> Transcript:
    stored: Any = from_json(text, "transcript")
    if isinstance(stored, list):
        return Transcript(tuple(stored))
    if not isinstance(stored, dict) or "messages" not in stored:
        raise unreadable("transcript", text)
    drift, output = stored.get("drift"), stored.get("output")
    return Transcript(
        tuple(stored["messages"]),
        tuple(stored.get("tools", ())),
        decode_drift(drift) if drift else None,
        ProgramOutput(**output) if output else None,
    )


def decode_drift(fields: Mapping[str, Any]) -> EpisodeDrift:
    first = fields["first"]
    if first is not None:
        first = TokenDiff(first["place"], *(tuple(first[side]) for side in ("before", "recorded", "naive")))
    return EpisodeDrift(fields["tokens"], fields["lost"], fields["invented"], first)
