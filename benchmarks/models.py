"""The models that are measured, as folders that both sides load."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path

from benchmarks.setting import Places

TINY_SHAPE = {"hidden_size": 64, "intermediate_size": 112}
"""With the tiny tokenizer's vocabulary: 87 thousand parameters."""


class Model(StrEnum):
    """Which one."""

    SMOLLM2 = "smollm2"
    """SmolLM2-135M-Instruct, a real chat model."""
    TINY = "tiny"
    """A random Llama of 87 K parameters: what is measured is everything but matrix products."""

    def folder(self, work: Path, places: Places) -> Path:
        if self is Model.SMOLLM2:
            from loopwright.models.smollm2 import smollm2_folder

            return smollm2_folder(places.cache)
        from transformers.utils.logging import disable_progress_bar

        from loopwright.testing.tiny import tiny_llama

        disable_progress_bar()
        return tiny_llama(work / "model", **TINY_SHAPE)


def prompt_counter(model: Path) -> Callable[[str], int]:
    """Counts the tokens of a prompt, chat template included."""
    from loopwright.models.tokenizer import load_tokenizer
    from loopwright.render.chat_template import ChatTemplateRenderer

    renderer = ChatTemplateRenderer(load_tokenizer(str(model)))
    return lambda text: len(renderer.render([{"role": "user", "content": text}]))
