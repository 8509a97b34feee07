"""Finds the action of a path.

Base URLs differ: those of OpenAI's clients end in `/v1`, those of Anthropic's do not, and some users leave it out or
write it twice. Gemini's clients add `/v1beta`. So a version is ignored in a session's paths. Two slashes, where a base
URL meets a path, count as one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache


class Action(StrEnum):
    """The actions of a gateway."""

    HEALTH = "health"
    METRICS = "metrics"
    OPENAPI = "openapi"
    SESSIONS = "sessions"
    SESSION = "session"
    COMPLETE = "complete"
    CHAINS = "chains"
    RECORD = "record"
    OUTCOME = "outcome"
    RUN = "run"
    BASE = "base"
    MODELS = "models"
    CHAT = "chat"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    RESPONSE = "response"
    INPUT_ITEMS = "input_items"
    INPUT_TOKENS = "input_tokens"
    COMPACT = "compact"
    MESSAGES = "messages"
    COUNT_TOKENS = "count_tokens"
    GENERATE = "generate_content"
    GENERATE_STREAM = "stream_generate_content"
    COUNT_CONTENT = "count_content"


METHODS = {
    Action.HEALTH: ("GET", "HEAD"),
    Action.METRICS: ("GET",),
    Action.OPENAPI: ("GET",),
    Action.SESSIONS: ("GET", "POST"),
    Action.SESSION: ("GET", "POST", "DELETE", "HEAD"),
    Action.COMPLETE: ("POST",),
    Action.CHAINS: ("GET",),
    Action.RECORD: ("GET",),
    Action.OUTCOME: ("PUT",),
    Action.RUN: ("GET", "PUT", "DELETE"),
    Action.BASE: ("GET", "HEAD"),
    Action.MODELS: ("GET", "HEAD"),
    Action.CHAT: ("POST",),
    Action.COMPLETIONS: ("POST",),
    Action.RESPONSES: ("POST",),
    Action.RESPONSE: ("GET", "DELETE"),
    Action.INPUT_ITEMS: ("GET",),
    Action.INPUT_TOKENS: ("POST",),
    Action.COMPACT: ("POST",),
    Action.MESSAGES: ("POST",),
    Action.COUNT_TOKENS: ("POST",),
    Action.GENERATE: ("POST",),
    Action.GENERATE_STREAM: ("POST",),
    Action.COUNT_CONTENT: ("POST",),
}

ALONE = {
    "health": Action.HEALTH,
    "metrics": Action.METRICS,
    "openapi.json": Action.OPENAPI,
    "sessions": Action.SESSIONS,
    "run": Action.RUN,
}
MODEL_CALLS = {
    "chat/completions": Action.CHAT,
    "completions": Action.COMPLETIONS,
    "responses": Action.RESPONSES,
    "responses/input_tokens": Action.INPUT_TOKENS,
    "responses/compact": Action.COMPACT,
    "messages": Action.MESSAGES,
    "messages/count_tokens": Action.COUNT_TOKENS,
    "models": Action.MODELS,
}
ONE_OF_THEM = {"models/": Action.MODELS, "responses/": Action.RESPONSE}
OF_A_MODEL = {
    "generateContent": Action.GENERATE,
    "streamGenerateContent": Action.GENERATE_STREAM,
    "countTokens": Action.COUNT_CONTENT,
}
"""Gemini's actions. They follow the name of a model and a colon."""
VERSIONS = ("v1", "v1beta", "v1alpha")
MANAGEMENT = {
    "": Action.SESSION,
    "complete": Action.COMPLETE,
    "chains": Action.CHAINS,
    "record": Action.RECORD,
    "outcome": Action.OUTCOME,
}


@dataclass(frozen=True, slots=True)
class Target:
    """The action, and its session. `name` is the name of a single model or response."""

    action: Action
    session: str | None = None
    name: str | None = None


@lru_cache(maxsize=256)
def target_of(path: str) -> Target | None:
    """The target of a path, or None if there is none."""
    parts = "/".join(filter(None, path.split("/")))
    if parts in ALONE:
        return Target(ALONE[parts])
    managed = parts.startswith("sessions/")
    session, _, rest = parts.removeprefix("sessions/").partition("/")
    if managed and rest in MANAGEMENT:
        return Target(MANAGEMENT[rest], session)
    while (version := rest.partition("/")[0]) in VERSIONS:
        rest = rest[len(version) + 1 :]
    if rest in MODEL_CALLS:
        return Target(MODEL_CALLS[rest], session)
    model, _, asked = rest.removeprefix("models/").rpartition(":")
    if asked in OF_A_MODEL:
        return Target(OF_A_MODEL[asked], session, model)
    parent, _, part = rest.rpartition("/")
    if part == "input_items" and parent.startswith("responses/"):
        return Target(Action.INPUT_ITEMS, session, parent.removeprefix("responses/"))
    for prefix, action in ONE_OF_THEM.items():
        if rest.startswith(prefix):
            return Target(action, session, rest.removeprefix(prefix))
    return Target(Action.BASE, session) if not rest and session else None
