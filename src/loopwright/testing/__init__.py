"""Fakes for faults and speed, shipped for your tests too. Models and tokenizers are in `loopwright.testing.tiny`."""

from loopwright.testing.chars import CharRenderer, encode_chars
from loopwright.testing.flaky import FlakyJudger
from loopwright.testing.scripted import ScriptedEngine

__all__ = ["CharRenderer", "FlakyJudger", "ScriptedEngine", "encode_chars"]
