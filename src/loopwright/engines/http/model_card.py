"""Which model an engine serves, in the form of vLLM's list of models. It is enough to find the tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loopwright.errors import EngineError

MODELS = "/v1/models"


@dataclass(frozen=True, slots=True)
class ModelCard:
    """`source` is a folder or a name; `max_context` counts tokens. An engine with scripted answers does not
    `compute`: nobody can prove which weights it has."""

    source: str
    max_context: int
    computes: bool = True


def cards_to_json(cards: Sequence[ModelCard]) -> Mapping[str, Any]:
    return {"object": "list", "data": [_card_to_json(card) for card in cards]}


def _card_to_json(card: ModelCard) -> Mapping[str, Any]:
    listed = {"id": card.source, "object": "model", "root": card.source, "max_model_len": card.max_context}
    return listed if card.computes else {**listed, "computes": False}


def card_from_json(body: Any) -> ModelCard:
    match body:
        case {"data": [{"root": str(source), "max_model_len": int(max_context), **others}, *_]}:
            return ModelCard(source, max_context, others.get("computes") is not False)
    raise EngineError(
        f"the engine does not say which model it serves: {str(body)[:200]}",
        remedy="name the model, whose tokenizer is needed, with --model",
    )
