"""Judgers: built-in ones, the user's own functions and services, judge models, and judgers made of judgers."""

from loopwright.judgers.from_config import Elsewhere, open_judgers
from loopwright.judgers.integer_answer import IntegerAnswer
from loopwright.judgers.native import NativeGroupJudger, NativeJudger
from loopwright.judgers.one_by_one import MemberJudger

__all__ = ["Elsewhere", "IntegerAnswer", "MemberJudger", "NativeGroupJudger", "NativeJudger", "open_judgers"]
