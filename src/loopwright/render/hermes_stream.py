"""Reads a completion in the Hermes format as its ids arrive."""

from __future__ import annotations

from collections.abc import Sequence

from loopwright.render.detokenize import Detokenizer
from loopwright.render.hermes import HermesParser, Syntax
from loopwright.types import Delta


class HermesStream:
    """A `StreamParser` that turns ids into text, and text into deltas."""

    def __init__(self, detokenizer: Detokenizer, syntax: Syntax) -> None:
        self._detokenizer = detokenizer
        self._parser = HermesParser(syntax)

    def feed(self, ids: Sequence[int]) -> list[Delta]:
        return self._parser.feed(self._detokenizer.feed(ids))

    def finish(self) -> list[Delta]:
        return [*self._parser.feed(self._detokenizer.finish()), *self._parser.finish()]
