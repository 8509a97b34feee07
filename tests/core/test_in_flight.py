"""A call is known to be of a rollout in flight, however it came; what was sampled for the rollout is counted."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from loopwright.core.in_flight import RolloutsInFlight, Stage, session_name
from loopwright.types import GenerateRequest, RolloutKey, Sampling, Split

KEY = RolloutKey("a/set", 12, 3, 1)


@dataclass
class Answer:
    tokens: int = 0


def call(session: str, affinity: str = "train/a/set/000012") -> GenerateRequest:
    return GenerateRequest(f"{session}/7", (1, 2), Sampling(), affinity=affinity)


SESSIONS = [
    str(KEY),
    f"door/{KEY}",
    session_name(Split.TRAIN, KEY, "0123abcd"),
    f"door/run-7_{session_name(Split.TRAIN, KEY, '0123abcd')}",
]


@pytest.mark.parametrize("session", SESSIONS)
def test_a_call_is_told_by_its_names(session: str) -> None:
    flying = RolloutsInFlight()
    assert flying.of(call(session)) is None
    with flying.stage(Stage.AGENT, Split.TRAIN, KEY) as one:
        assert flying.of(call(session)) is one
        assert flying.of(call(session)) is one
    assert flying.of(call(session)) is None, "its sessions are forgotten with it"


def test_calls_of_others_are_nobodys() -> None:
    flying = RolloutsInFlight()
    with flying.stage(Stage.AGENT, Split.TRAIN, KEY):
        for session, affinity in (
            (str(KEY), "eval/a/set/000012"),
            (str(KEY), ""),
            ("a/set/000012/03/0", "train/a/set/000012"),
            ("proof/3", "train/a/set/000012"),
            ("t13-3-1-0123abcd", "train/a/set/000012"),
            ("a/set/000012/x/y", "train/a/set/000012"),
            ("", "train/a/set/x"),
        ):
            assert flying.of(call(session, affinity)) is None


def test_turns_tokens_and_engines_are_counted() -> None:
    flying, first, second = RolloutsInFlight(), Answer(), Answer()
    with flying.stage(Stage.AGENT, Split.TRAIN, KEY) as one:
        one.began(first)
        one.began(second)
        first.tokens, second.tokens = 5, 2
        assert (one.turns, one.tokens) == (0, 7)
        for name in ("1", "0", "1"):
            one.asked(name)
        one.ended(first)
        assert (one.turns, one.tokens, one.engines) == (1, 7, ["1", "0"])
        with flying.stage(Stage.JUDGE, Split.EVAL, KEY):
            assert [(each.split, each.stage) for each in flying.oldest(5)] == [("train", "agent"), ("eval", "judge")]
            assert (flying.count(Stage.AGENT), flying.count(Stage.JUDGE), len(flying)) == (1, 1, 2)
    assert (len(flying), flying.finished) == (0, 1)
