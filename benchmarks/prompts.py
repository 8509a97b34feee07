"""Prompts that are all different and all exactly as long, for those who measure what happens to a prompt."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loopwright.errors import BenchError

SYSTEM = "You are a careful assistant. Answer in one short paragraph, and say what you are not sure of."
WORD = re.compile(r"Ġ[a-z]{2,12}")

COMMON_WORDS = 2000
"""Ordinary texts use few words often. Vocabularies are made from the commonest on, so these come first."""


class Prompts:
    """Conversations of a system message and a question, in words that are one token each for a model's tokenizer."""

    def __init__(self, model: Path) -> None:
        from loopwright.models.tokenizer import load_tokenizer
        from loopwright.render.chat_template import ChatTemplateRenderer

        self._tokenizer = tokenizer = load_tokenizer(str(model))
        self._renderer = ChatTemplateRenderer(tokenizer)
        found = ((token, word) for word, token in tokenizer.get_vocab().items() if WORD.fullmatch(word))
        self._words = [word.replace("Ġ", " ") for _, word in sorted(found)[:COMMON_WORDS]]

    def ids(self, messages: Sequence[dict[str, Any]]) -> tuple[int, ...]:
        return self._renderer.render(messages)

    def messages(self, count: int, tokens: int) -> list[list[dict[str, str]]]:
        """`count` conversations of exactly `tokens`, chat template included."""
        drawn = random.Random(0)
        words = tokens - len(self.ids(_conversation(0, "")))
        made = [_conversation(number, "".join(drawn.choices(self._words, k=words))) for number in range(count)]
        for messages in (made[0], made[-1]):
            if (got := len(self.ids(messages))) != tokens:
                raise BenchError(
                    f"a prompt has {got} tokens instead of {tokens}",
                    remedy="use a model whose tokenizer reads words one by one",
                )
        return made

    def answer(self, tokens: int) -> tuple[list[int], list[str]]:
        """An answer that ends by itself: its ids, and the text of each."""
        text = "".join(random.Random(1).choices(self._words, k=tokens - 1))
        (end, *_) = self._renderer.stop_token_ids
        words = self._tokenizer.encode(text, add_special_tokens=False)
        return [*words, end], [*self._renderer.pieces(words), ""]


def _conversation(number: int, words: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": f"Case {number:05}:{words}"}]
