"""What an answer must look like: as an agent asks for it, and as an engine keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from loopwright.types.parsed import Tool


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """The form of answer that an agent asks for, independent of how a model writes it.

    With `schema`, the answer is JSON that fits this JSON schema. With `tools`, it calls one of them; if there is a
    `schema` too, it does one or the other. `one_call`: it makes no more than one call. `asked_by` names the fields of
    the request that ask for it.
    """

    schema: Mapping[str, Any] | None = None
    tools: tuple[Tool, ...] = ()
    one_call: bool = False
    asked_by: str = ""


class GrammarKind(StrEnum):
    """How the text of a constraint is to be read. The values are vLLM's names."""

    JSON_SCHEMA = "json"
    """A JSON schema. The answer is JSON that fits it."""
    LARK = "grammar"
    """A grammar in llguidance's dialect of Lark, which may contain JSON schemas and token ids."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """A grammar that an answer keeps from its first token to the end of the turn, as plain data.

    The answer is sampled among the tokens that the grammar allows; its logprobs are still those of the whole vocabulary
    where the engine can tell them (T8).
    """

    kind: GrammarKind
    text: str
