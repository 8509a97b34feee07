"""A judger from its section of the config: the same one for training and for the deep check."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path

from loopwright.config import JudgerConfig, NativeJudgerConfig
from loopwright.judgers.integer_answer import IntegerAnswer
from loopwright.judgers.native import NativeJudger
from loopwright.ports import Judger


def make_judger(name: str, config: JudgerConfig | None, base: Path) -> AbstractAsyncContextManager[Judger]:
    """`config` is None for a built-in judger that is named without being declared."""
    if isinstance(config, NativeJudgerConfig):
        return NativeJudger(name, config.path, base, timeout_seconds=config.timeout_seconds, workers=config.workers)
    return nullcontext(IntegerAnswer(name))
