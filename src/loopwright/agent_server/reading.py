"""Reads submitted trials. What cannot be run is refused with its place, before it gets an id."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import orjson
from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError

from loopwright.config import CommandRunnerConfig, HarborRunnerConfig, ProgramReward
from loopwright.config.base import Section
from loopwright.config.problems import Problem, dotted
from loopwright.config.programs import command_if_unsaid
from loopwright.gateway.reading import text
from loopwright.gateway.refusals import invalid
from loopwright.ports import Endpoint
from loopwright.types import RolloutKey, RolloutRequest, Sampling, Split, Task

MOST_OUTPUT_KB = 1024
LONGEST_TEXT = 4096
LONGEST_LABEL = 200

ServedRunner = Annotated[
    CommandRunnerConfig | HarborRunnerConfig, Field(discriminator="kind"), BeforeValidator(command_if_unsaid)
]

_RUNNER: TypeAdapter[CommandRunnerConfig | HarborRunnerConfig] = TypeAdapter(ServedRunner)
_REWARD: TypeAdapter[ProgramReward] = TypeAdapter(ProgramReward)


@dataclass(frozen=True, slots=True)
class Submission:
    """A trial as it was submitted. `digest` is the same if the same is submitted again."""

    runner: CommandRunnerConfig | HarborRunnerConfig
    reward: ProgramReward | None
    request: RolloutRequest
    endpoint: Endpoint
    variables: Mapping[str, str]
    grades: bool
    grades_failures: bool
    label: str
    digest: str


def submission_from(body: Mapping[str, Any]) -> Submission:
    reward = body.get("reward")
    runner = _validated("runner", _RUNNER.validate_python, body.get("runner"))
    if runner.output_kb > MOST_OUTPUT_KB:
        raise invalid("runner.output_kb", f"may be {MOST_OUTPUT_KB} at most", remedy="keep less of its output")
    how = None if reward is None else _validated("reward", _REWARD.validate_python, reward)
    if how is not None and runner.brings_reward:
        raise invalid("reward", f"the task of a runner of kind {runner.kind} has its own verifier", remedy="omit it")
    for problem in (*_problems("runner", runner), *_problems("reward", how)):
        raise invalid(dotted(problem.path), problem.text, remedy=problem.remedy)
    return Submission(
        runner,
        how,
        _request(_task(body.get("task"))),
        _endpoint(body.get("endpoint")),
        _texts(body.get("variables") or {}, "variables"),
        _flag(body, "grades", True),
        _flag(body, "grades_failures", False),
        text(body.get("label"), "label")[:LONGEST_LABEL],
        _digest(body),
    )


def _flag(body: Mapping[str, Any], name: str, usual: bool) -> bool:
    value = body.get(name, usual)
    if not isinstance(value, bool):
        raise invalid(name, "expected true or false", remedy="correct or omit it")
    return value


def _digest(body: Mapping[str, Any]) -> str:
    try:
        canonical = orjson.dumps(body, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError as error:
        raise invalid("body", "it is nested too deeply", remedy="send less deeply nested values") from error
    return hashlib.blake2b(canonical, digest_size=32).hexdigest()


def _problems(name: str, section: Section | None) -> Iterator[Problem]:
    yield from (problem.below((name,)) for problem in (() if section is None else section.problems()))


def _validated(name: str, read: Any, value: Any) -> Any:
    try:
        return read(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(map(str, (name, *first["loc"])))
        raise invalid(place, first["msg"], remedy="write it as in a config file") from error
    except RecursionError as error:
        raise invalid(name, "it is nested too deeply", remedy="write it as in a config file") from error


def _request(task: Task) -> RolloutRequest:
    """Runners are made for rollouts. Deadlines are the owner's, so there is none here."""
    return RolloutRequest(Split.TRAIN, RolloutKey("trial", 0, 0), task, Sampling(), math.inf)


def _task(value: Any) -> Task:
    match value:
        case {"id": str(id), "messages": list(messages)} if id and all(isinstance(one, dict) for one in messages):
            tools, metadata = value.get("tools") or [], value.get("metadata") or {}
            if isinstance(metadata, dict) and isinstance(tools, list) and all(isinstance(one, dict) for one in tools):
                return Task(id[:LONGEST_TEXT], tuple(messages), value.get("truth"), tuple(tools), metadata)
    raise invalid("task", "it is no task", remedy='send {"id": TEXT, "messages": [{"role": ..., "content": ...}]}')


def _endpoint(value: Any) -> Endpoint:
    given = _texts(value, "endpoint")
    if missing := {"base_url", "api_key", "anthropic_url", "model"} - given.keys():
        raise invalid("endpoint", f"{' and '.join(sorted(missing))} missing", remedy="say where the model is")
    return Endpoint(given["base_url"], given["api_key"], given["anthropic_url"], given["model"])


def _texts(value: Any, name: str) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(one, str) and "\0" not in one for one in value.values()):
        raise invalid(name, "expected an object of texts", remedy="correct it")
    if any(not key or "=" in key or "\0" in key for key in value):
        raise invalid(name, "has a name that no variable can have", remedy="correct it")
    return dict(value)
