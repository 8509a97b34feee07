"""Judgers: built-in ones and the user's own functions."""

from loopwright.judgers.from_config import make_judger
from loopwright.judgers.integer_answer import IntegerAnswer
from loopwright.judgers.native import NativeJudger

__all__ = ["IntegerAnswer", "NativeJudger", "make_judger"]
