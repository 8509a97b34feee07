"""Fakes that fail on purpose or run fast, shipped for your tests too. Tiny models and tokenizers are in
`loopwright.testing.tiny`."""

from loopwright.testing.chars import CharRenderer, encode_chars
from loopwright.testing.elsewhere import WorkerElsewhere
from loopwright.testing.flaky import FlakyJudger, score_one
from loopwright.testing.judge_server import JudgeReply, JudgeRequest, JudgeServer, chat_reply
from loopwright.testing.scripted import ScriptedEngine
from loopwright.testing.unhurried import UnhurriedForward
from loopwright.testing.virtual_time import VirtualTimeLoop, run_virtually

__all__ = [
    "CharRenderer",
    "FlakyJudger",
    "JudgeReply",
    "JudgeRequest",
    "JudgeServer",
    "ScriptedEngine",
    "UnhurriedForward",
    "VirtualTimeLoop",
    "WorkerElsewhere",
    "chat_reply",
    "encode_chars",
    "run_virtually",
    "score_one",
]
