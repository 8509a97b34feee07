"""A trial as it travels between a run and an agent server: what is submitted, and what the server says of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from loopwright.errors import (
    AgentServerError,
    LoopwrightError,
    ProgramError,
    ProgramLimitError,
    SetupError,
    TrialLostError,
)
from loopwright.ports import Endpoint
from loopwright.serve.errors import error_body, read_error
from loopwright.types import Failed, FailureCause, ProgramOutput, Scored, Task

TRIAL_ID = re.compile(r"[A-Za-z0-9_-]{8,64}")
ERRORS: Mapping[str, type[LoopwrightError]] = {
    kind.__name__: kind for kind in (SetupError, ProgramError, ProgramLimitError, TrialLostError, AgentServerError)
}
SEE_SERVER = "see the agent server's log"


class TrialState(StrEnum):
    """Where a trial is. The first four come in this order; the others are its end."""

    QUEUED = "queued"
    SET_UP = "set-up"
    RUN = "run"
    GRADE = "grade"
    DONE = "done"
    """It was run, and has a reward, an error, or both."""
    CANCELLED = "cancelled"
    """Its owner cancelled it, perhaps before it was submitted."""
    ABANDONED = "abandoned"
    """Nobody asked for it for a while, so the server ended it."""
    LOST = "lost"
    """The server was ended while it had the trial. It is never run again."""

    @property
    def is_over(self) -> bool:
        return self in OVER

    @property
    def has_run(self) -> bool:
        """Whether its program has ended, or will never start."""
        return self.is_over or self is TrialState.GRADE


OVER = frozenset({TrialState.DONE, TrialState.CANCELLED, TrialState.ABANDONED, TrialState.LOST})


@dataclass(frozen=True, slots=True)
class Trial:
    """What is run: a runner's config and the reward's, as the config file has them; the task; and the model's address.

    `variables` are the values of the variables that the runner's `pass_env` names. Without `grades`, a runner that
    brings a reward of its own does not grade: a judger scores the trial. With `grades_failures`, a program that failed
    is graded too. `label` says whose trial it is.
    """

    runner: Mapping[str, Any]
    task: Task
    endpoint: Endpoint
    reward: Mapping[str, Any] | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    grades: bool = True
    grades_failures: bool = False
    label: str = ""


def trial_to_json(trial: Trial) -> dict[str, Any]:
    return asdict(trial)


@dataclass(frozen=True, slots=True)
class TrialStatus:
    """What a server says of a trial. `stage` is the last of the first four states that it was in. `reward` is None
    before its end, and if a judger scores it. `seconds` tells how long each stage took."""

    id: str
    state: TrialState
    stage: TrialState = TrialState.QUEUED
    label: str = ""
    reward: Scored | Failed | None = None
    error: LoopwrightError | None = None
    output: ProgramOutput | None = None
    out_of_time: bool = False
    seconds: Mapping[str, float] = field(default_factory=dict)


def status_to_json(status: TrialStatus) -> dict[str, Any]:
    return {
        "id": status.id,
        "state": status.state.value,
        "stage": status.stage.value,
        "label": status.label,
        "reward": _reward_to_json(status.reward),
        "error": None if status.error is None else error_body(status.error)["error"],
        "output": None if status.output is None else asdict(status.output),
        "out_of_time": status.out_of_time,
        "seconds": dict(status.seconds),
    }


def status_from_json(said: Any) -> TrialStatus:
    """What `status_to_json` wrote. Raises AgentServerError if it did not."""
    try:
        error, output = said["error"], said["output"]
        return TrialStatus(
            id=str(said["id"]),
            state=TrialState(said["state"]),
            stage=TrialState(said["stage"]),
            label=str(said["label"]),
            reward=_reward_from_json(said["reward"]),
            error=None if error is None else read_error({"error": error}, ERRORS, AgentServerError),
            output=None if output is None else ProgramOutput(**output),
            out_of_time=bool(said["out_of_time"]),
            seconds={str(stage): float(seconds) for stage, seconds in said["seconds"].items()},
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise AgentServerError(f"the agent server's answer is no trial: {error!r}", remedy=SEE_SERVER) from error


def _reward_to_json(reward: Scored | Failed | None) -> dict[str, Any] | None:
    match reward:
        case Scored(value, parts, answer, evidence):
            told = {"parts": dict(parts), "answer": answer, "evidence": evidence}
            return {"kind": "scored", "value": value, **told}
        case Failed(cause, error, detail):
            return {"kind": "failed", "cause": cause.value, "error": error, "detail": detail}
    return None


def _reward_from_json(said: Any) -> Scored | Failed | None:
    match said:
        case None:
            return None
        case {"kind": "scored", "value": float() | int() as value, "parts": dict(parts), "answer": answer}:
            return Scored(float(value), parts, answer, said.get("evidence"))
        case {"kind": "failed", "cause": str(cause), "error": str(error), "detail": str(detail)}:
            return Failed(FailureCause(cause), error, detail)
    raise ValueError(f"{said!r:.100} is no reward")
