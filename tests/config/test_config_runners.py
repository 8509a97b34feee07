"""Agents that are programs: what cannot work is told before anything starts."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from loopwright.config import ExitCodeReward, RemoteAgent
from loopwright.config.base import sections

RUNNER: dict[str, Any] = {"command": ["python", "a.py"]}
SCORED: dict[str, Any] = {"kind": "exit_code"}


def told(**settings: Any) -> list[str]:
    agent = RemoteAgent(**{"reward": SCORED, **settings})
    return [problem.text for _, section in sections(agent) for problem in section.problems()]


def test_several_runners_have_several_names() -> None:
    other = {"command": ["/usr/bin/python", "b.py"]}
    assert told(runners=[RUNNER, other]) == ["has several that are named 'python'"]
    assert told(runners=[RUNNER, {**other, "name": "b"}]) == []


def test_fields_are_known_only_where_they_are_filled_in() -> None:
    assert told(runner={"command": ["python", "{base_url}", "{model}", "{folder}"]}) == []
    assert told(runner={**RUNNER, "folder": "{config}/{folder}"}) == ["there is no field {folder}"]
    verifier = {"kind": "verifier", "command": ["check", "{folder}", "{base_url}"], "env": {"M": "{model}"}}
    assert told(runner=RUNNER, reward=verifier) == ["there is no field {base_url}", "there is no field {model}"]


@pytest.mark.parametrize("name", ["OPENAI_MODEL", "ANTHROPIC_MODEL", "OPENAI_API_BASE", "LOOPWRIGHT_TRIAL"])
def test_variables_that_every_program_gets_cannot_be_set(name: str) -> None:
    assert told(runner={**RUNNER, "env": {name: "x"}}) == [f"{name} is set for each program"]


@pytest.mark.parametrize(
    "settings",
    [
        {"reward": {"kind": "exit_code", "scores": {}}},
        {"reward": {"kind": "exit_code", "scores": {0: float("nan")}}},
        {"reward": {"kind": "exit_code", "out_of_time": float("nan")}},
        {"runner": {**RUNNER, "exit_codes": []}},
        {"runner": {**RUNNER, "env": {"A=B": "x"}}},
    ],
)
def test_what_no_program_can_use_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        told(**{"runner": RUNNER, **settings})


@pytest.mark.parametrize(
    ("settings", "score"),
    [
        ({}, 0.0),
        ({"scores": {0: 1.0}}, 0.0),
        ({"scores": {0: 1.0, 10: -1.0}}, -1.0),
        ({"scores": {0: 1.0, 10: -1.0}, "out_of_time": -0.5}, -0.5),
    ],
)
def test_a_program_out_of_time_gets_no_more_than_one_that_says_that_it_failed(
    settings: dict[str, Any], score: float
) -> None:
    assert ExitCodeReward(**settings).late_score == score


@pytest.mark.parametrize(
    ("reward", "words"),
    [
        ({"kind": "file", "path": "r.txt"}, "reward from the file r.txt"),
        ({"kind": "exit_code"}, "reward from its exit code"),
        ({"kind": "verifier", "command": ["python", "check.py"]}, "reward from the verifier python check.py"),
    ],
)
def test_a_reward_is_named_by_where_it_comes_from(reward: dict[str, Any], words: str) -> None:
    agent = RemoteAgent.model_validate({"runner": RUNNER, "reward": reward})
    assert (agent.own_reward, agent.brings_reward) == (words, True)
    judged = RemoteAgent.model_validate({"runner": RUNNER, "reward": reward, "judger": "mine"})
    assert (judged.own_reward, judged.brings_reward) == (None, False)
