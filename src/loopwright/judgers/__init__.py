"""Judgers: built-in ones, the user's own functions and services, judge models, and judgers made of judgers."""

from loopwright.judgers.from_config import open_judgers
from loopwright.judgers.integer_answer import IntegerAnswer
from loopwright.judgers.native import NativeGroupJudger, NativeJudger

__all__ = ["IntegerAnswer", "NativeGroupJudger", "NativeJudger", "open_judgers"]
