"""Whether an engine that somebody else has started serves the run's model."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from pathlib import Path

from loopwright.engines.http.model_card import ModelCard
from loopwright.errors import ModelError
from loopwright.models.smollm2 import NAME as SMOLLM2
from loopwright.models.smollm2 import smollm2_folder
from loopwright.models.tokenizer import ModelSpec, load_tokenizer

log = logging.getLogger("loopwright")


@dataclass(frozen=True, slots=True)
class ModelCheck:
    """Compares the model of an engine with the run's: `source` is its folder or name. The weights need no check: the
    run loads its own, and proves them if the engine `is_proven`."""

    source: str
    model: ModelSpec
    cache: Path
    is_proven: bool = True

    async def __call__(self, url: str, card: ModelCard) -> None:
        """Raises ModelError if context length or vocabulary differ, or if nobody can prove which weights it has."""
        if card.computes != self.is_proven:
            raise _cannot_be_proven(url) if self.is_proven else _must_be_proven(url)
        if card.max_context != self.model.max_context:
            raise ModelError(
                f"the engine at {url} has a context of {card.max_context:,} tokens, and the run's model "
                f"{self.model.max_context:,}",
                remedy=f"start it with --max-context {self.model.max_context}, or set model.max_context",
            )
        if _same_source(card.source, self.source):
            return
        try:
            tokenizer = await asyncio.to_thread(load_tokenizer, self._found(card.source))
        except ModelError:
            log.warning("the engine at %s serves %s, whose tokenizer cannot be compared here", url, card.source)
            return
        if tokenizer.get_vocab() != self.model.tokenizer.get_vocab():
            raise ModelError(
                f"the engine at {url} serves {card.source}, whose vocabulary is not that of the run's {self.source}",
                remedy="start it with the run's model, or name another engine",
            )

    def _found(self, source: str) -> str:
        return str(smollm2_folder(self.cache)) if source == SMOLLM2 else source


def _cannot_be_proven(url: str) -> ModelError:
    return ModelError(
        f"the engine at {url} computes nothing: nobody can prove that it serves the learner's weights",
        remedy="if that is meant, as with scripted answers, set rollout.engine.proof to off",
    )


def _must_be_proven(url: str) -> ModelError:
    return ModelError(
        f"rollout.engine.proof is off, but the engine at {url} computes",
        remedy="remove rollout.engine.proof: only engines with scripted answers go without a proof",
    )


def _same_source(one: str, other: str) -> bool:
    return one == other or Path(one).resolve() == Path(other).resolve()
