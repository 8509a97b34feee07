"""The schema of agents that are programs: how one is started, what it may use, and where its reward comes from."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from loopwright.config.addresses import address_problems
from loopwright.config.base import Count, FromYaml, Positive, Section, Text
from loopwright.config.needs import Need, Outside
from loopwright.config.problems import KeyPath, Problem, suggest
from loopwright.types import ApiFormat, Isolation, ProgramInput

Words = Annotated[FromYaml[tuple[Text, ...]], Field(min_length=1)]
ExitCode = Annotated[int, Field(ge=0, le=255, strict=False)]
Scores = Annotated[dict[ExitCode, float], Field(min_length=1)]
VariableName = Annotated[str, Field(pattern=r"^[^=\x00]+$")]

FIELD = re.compile(r"\{([a-z_]+(?:\.[A-Za-z0-9_-]+)*)\}")
"""Braces that hold no such name stay as they are: arguments may hold JSON."""
TEMPLATE_FIELDS = ("config", "trial")
VERIFIER_FIELDS = (*TEMPLATE_FIELDS, "folder")
PLAIN_FIELDS = (*VERIFIER_FIELDS, "base_url", "anthropic_url", "model")
TASK_FIELDS = ("task.id", "task.prompt", "task.truth")
FIELDS = (*PLAIN_FIELDS, *TASK_FIELDS, "task.metadata.NAME")
OURS = (
    *("OPENAI_BASE_URL", "OPENAI_API_BASE", "OPENAI_API_KEY", "OPENAI_MODEL"),
    *("ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY", "ANTHROPIC_MODEL", "LOOPWRIGHT_TRIAL"),
)
"""Variables that lead a program to its session. Another value would lead it elsewhere."""


USUAL_SCORES = {0: 1.0, 10: 0.0}
"""What exit codes are worth. 1 is not among them: a Python program that crashes exits with it, and a crash is no
verdict (R2)."""


class FileReward(Section):
    """The program writes its reward into a file of its folder: a number, or JSON with `reward`."""

    kind: Literal["file"] = "file"
    path: Text

    @property
    def label(self) -> str:
        return f"reward from the file {self.path}"

    def problems(self) -> Iterator[Problem]:
        yield from _outside(("path",), self.path)


class ExitCodeReward(Section):
    """The program's exit code stands for its reward. A code without a score is a failure. A program that ran out of its
    time has no exit code: it is worth `out_of_time`."""

    kind: Literal["exit_code"] = "exit_code"
    scores: Scores = Field(default_factory=lambda: dict(USUAL_SCORES))
    out_of_time: float | None = None

    @property
    def label(self) -> str:
        return "reward from its exit code"

    @property
    def late_score(self) -> float:
        """What a program is worth that ran out of its time (R2). By default it gets no more than one that says that it
        has not succeeded."""
        return min(0.0, *self.scores.values()) if self.out_of_time is None else self.out_of_time


class VerifierReward(Section):
    """A command that runs after the program in the same folder. It gets the task as JSON at its standard input. Its
    verdict is its exit code, or the reward in the file `path`."""

    kind: Literal["verifier"] = "verifier"
    command: Words
    path: Text | None = None
    scores: Scores = Field(default_factory=lambda: dict(USUAL_SCORES))
    env: dict[VariableName, str] = Field(default_factory=dict)
    timeout_seconds: Positive = 60.0
    attempts: Count = 2

    @property
    def label(self) -> str:
        return f"reward from the verifier {' '.join(self.command)}"

    def needs(self) -> Iterator[Need]:
        yield from _program(self.command[0])

    def problems(self) -> Iterator[Problem]:
        yield from _unknown_fields(("command",), VERIFIER_FIELDS, *self.command)
        yield from _unknown_fields(("env",), VERIFIER_FIELDS, *self.env.values())
        if self.path is not None:
            yield from _outside(("path",), self.path)

    def idle(self) -> Iterator[tuple[KeyPath, str]]:
        if self.path is not None:
            yield ("scores",), "the reward is read from path"

    def named_values(self) -> Iterator[tuple[str, str]]:
        yield from self.env.items()


ProgramReward = Annotated[FileReward | ExitCodeReward | VerifierReward, Field(discriminator="kind")]


class CommandRunnerConfig(Section):
    """A command that is started for each rollout, in a folder of its own: a copy of `folder`, or an empty one.

    `weight` counts among several runners. `pass_env` names variables of the user's environment that it may see,
    `readable` folders of the user's home that it may read from a sandbox.
    `exit_codes` are those that are no failure. The limits hold for all its processes together.
    """

    brings_reward: ClassVar[bool] = False
    """Whether its rollouts come with their reward, without a setting `reward`."""

    kind: Literal["command"] = "command"
    command: Words
    name: Text | None = None
    weight: Positive = 1.0
    folder: Text | None = None
    stdin: FromYaml[ProgramInput] = ProgramInput.NONE
    instruction_file: Text | None = None
    env: dict[VariableName, str] = Field(default_factory=dict)
    pass_env: FromYaml[tuple[Text, ...]] = ()
    exit_codes: Annotated[FromYaml[tuple[ExitCode, ...]], Field(min_length=1)] = (0,)
    isolate: FromYaml[Isolation] = Isolation.NONE
    readable: FromYaml[tuple[Text, ...]] = ()
    memory_mb: Count = 4096
    processes: Count = 256
    disk_mb: Count = 1024
    output_kb: Count = 64

    @property
    def shown_name(self) -> str:
        """Its name, or that of its program."""
        return self.name or PurePosixPath(self.command[0]).name

    @property
    def what_starts(self) -> str:
        """What a rollout starts, in words."""
        return " ".join(self.command)

    def needs(self) -> Iterator[Need]:
        yield from _program(self.command[0])
        if self.folder is not None and "{" not in self.folder:
            yield Need(Outside.FOLDER, ("folder",), self.folder)
        for index, folder in enumerate(self.readable):
            yield Need(Outside.FOLDER, ("readable", index), folder)
        for index, name in enumerate(self.pass_env):
            yield Need(Outside.VARIABLE, ("pass_env", index), name)

    def problems(self) -> Iterator[Problem]:
        yield from _unknown_fields(("command",), PLAIN_FIELDS, *self.command)
        yield from _unknown_fields(("env",), PLAIN_FIELDS, *self.env.values())
        yield from _unknown_fields(("folder",), TEMPLATE_FIELDS, self.folder or "")
        yield from _variables_of_ours(self.env, self.pass_env)
        if self.instruction_file is not None:
            yield from _outside(("instruction_file",), self.instruction_file)
        if self.isolate is Isolation.BWRAP and shutil.which("bwrap") is None:
            yield Problem(("isolate",), "needs the program bwrap", "install bubblewrap (apt-get install bubblewrap)")

    def idle(self) -> Iterator[tuple[KeyPath, str]]:
        if self.isolate is Isolation.NONE:
            yield ("readable",), "without isolate the program may read all that you may"

    def named_values(self) -> Iterator[tuple[str, str]]:
        yield from self.env.items()


HOST_ENVIRONMENT = "host"
"""Our own environment for Harbor, beside those that Harbor has."""


class HarborRunnerConfig(Section):
    """A trial of Harbor for each rollout, in Harbor's own interpreter `python`. `agent` and `environment` are names
    that Harbor knows, or import paths.

    The task's folder is the task's own `path`, else `<root>/<instance id>`, else `folder`, which may have fields.
    `timeout_multiplier` is for the agent's time that a task sets; None ignores it. `grader_attempts` and
    `grader_seconds` hold for the task's verifier. The limits hold for Harbor and all that it starts on this machine.
    """

    brings_reward: ClassVar[bool] = True

    kind: Literal["harbor"] = "harbor"
    python: Text
    agent: Text
    environment: Text = HOST_ENVIRONMENT
    name: Text | None = None
    weight: Positive = 1.0
    root: Text | None = None
    folder: Text | None = None
    agent_args: dict[str, Any] = Field(default_factory=dict)
    environment_args: dict[str, Any] = Field(default_factory=dict)
    env: dict[VariableName, str] = Field(default_factory=dict)
    pass_env: FromYaml[tuple[Text, ...]] = ()
    model_name: Text | None = None
    api_format: FromYaml[ApiFormat] | None = None
    timeout_multiplier: Positive | None = None
    grader_attempts: Count = 2
    grader_seconds: Positive = 900.0
    memory_mb: Count = 4096
    processes: Count = 256
    disk_mb: Count = 1024
    output_kb: Count = 64

    @property
    def shown_name(self) -> str:
        """Its name, or that of its agent."""
        return self.name or self.agent

    @property
    def what_starts(self) -> str:
        return f"a trial of Harbor with the agent {self.agent}"

    def needs(self) -> Iterator[Need]:
        yield Need(Outside.PROGRAM, ("python",), self.python)
        if self.root is not None:
            yield Need(Outside.FOLDER, ("root",), self.root)
        for index, name in enumerate(self.pass_env):
            yield Need(Outside.VARIABLE, ("pass_env", index), name)

    def problems(self) -> Iterator[Problem]:
        yield from _unknown_fields(("folder",), ("config",), self.folder or "")
        yield from _variables_of_ours(self.env, self.pass_env)

    def named_values(self) -> Iterator[tuple[str, str]]:
        yield from self.env.items()


class CommandElsewhere(CommandRunnerConfig):
    """A command that an agent server starts. Its program and folders are on that server's machine, so they are not
    looked for here."""

    def needs(self) -> Iterator[Need]:
        yield from (need for need in super().needs() if need.what is Outside.VARIABLE)

    def problems(self) -> Iterator[Problem]:
        yield from (problem for problem in super().problems() if problem.path != ("isolate",))


class HarborElsewhere(HarborRunnerConfig):
    """A trial of Harbor that an agent server runs. Harbor and the tasks' folders are on that server's machine."""

    def needs(self) -> Iterator[Need]:
        yield from (need for need in super().needs() if need.what is Outside.VARIABLE)


def command_if_unsaid(value: object) -> object:
    """A runner without a kind is a command."""
    return {"kind": "command", **value} if isinstance(value, dict) and "kind" not in value else value


RunnerElsewhere = Annotated[
    CommandElsewhere | HarborElsewhere, Field(discriminator="kind"), BeforeValidator(command_if_unsaid)
]


class ServerRunnerConfig(Section):
    """Agent servers (`loopwright agent-server`) at `urls`, one of which runs the program of `runner` for each rollout.
    `key_env` names the variable with their key. One that cannot be reached is waited for, up to `wait_seconds`."""

    kind: Literal["server"] = "server"
    urls: Annotated[FromYaml[tuple[Text, ...]], Field(min_length=1)]
    key_env: Text
    runner: RunnerElsewhere
    name: Text | None = None
    weight: Positive = 1.0
    wait_seconds: Positive = 60.0

    @property
    def brings_reward(self) -> bool:
        return self.runner.brings_reward

    @property
    def shown_name(self) -> str:
        """Its name, or that of the program."""
        return self.name or self.runner.shown_name

    @property
    def what_starts(self) -> str:
        return f"{self.runner.what_starts} on one of {len(self.urls)} agent servers"

    def needs(self) -> Iterator[Need]:
        yield Need(Outside.EXTRA, (), "http")
        yield Need(Outside.KEY, ("key_env",), self.key_env)

    def problems(self) -> Iterator[Problem]:
        for index, url in enumerate(self.urls):
            yield from address_problems(("urls", index), url, "key_env")
            if url.rstrip("/") in [other.rstrip("/") for other in self.urls[:index]]:
                yield Problem(("urls", index), f"{url} is named twice", "name every server once")

    def idle(self) -> Iterator[tuple[KeyPath, str]]:
        yield ("runner", "weight"), "the weight of the server's section counts"


RunnerConfig = Annotated[
    CommandRunnerConfig | HarborRunnerConfig | ServerRunnerConfig,
    Field(discriminator="kind"),
    BeforeValidator(command_if_unsaid),
]
"""The kinds of runners. Everything that is known of a kind is on its class here; its runner is made in
`agents/from_config.py`."""


def _variables_of_ours(env: Mapping[str, str], passed: Sequence[str]) -> Iterator[Problem]:
    for name in (*env, *passed):
        if name in OURS:
            place: KeyPath = ("env", name) if name in env else ("pass_env",)
            yield Problem(place, f"{name} is set for each program", "remove it; the program gets its own")


def _program(name: str) -> Iterator[Need]:
    """The need of a command, unless its program is beside the Python that runs us: a runner looks there first."""
    is_ours = "/" not in name and shutil.which(name, path=os.path.dirname(sys.executable)) is not None
    if "{" not in name and not is_ours:
        yield Need(Outside.PROGRAM, ("command",), name)


def _unknown_fields(place: KeyPath, plain: Sequence[str], *texts: str) -> Iterator[Problem]:
    """Fields of ours that do not exist here, where `plain` do. Other words in braces may be meant as they are. What is
    in a task's metadata is known only when it is drawn."""
    known = (*plain, *TASK_FIELDS, "task.metadata.NAME")
    for name in (name for text in texts for name in FIELD.findall(text)):
        is_ours = name.split(".")[0] in ("task", *PLAIN_FIELDS)
        if is_ours and name not in known and not name.startswith("task.metadata."):
            yield Problem(place, f"there is no field {{{name}}}", suggest(name, known, "fields"))


def _outside(place: KeyPath, path: str) -> Iterator[Problem]:
    """A path that leaves the program's folder."""
    if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
        yield Problem(place, f"{path!r} is outside of the program's folder", "name a file inside of it")
