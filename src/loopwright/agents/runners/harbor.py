"""Runs a task of Harbor as the agent of a rollout: Harbor's own trial, in a process of Harbor's interpreter.

The trial grades itself after its agent has ended, so the program's run is the trial up to that point, and its reward is
the rest. What Harbor reports as exception becomes a typed cause, and never a reward (R2). The trial is told to clean up
before its process is killed, because its sandbox may be elsewhere.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from loopwright.agents.runners.command import model_variables
from loopwright.agents.runners.folders import TrialFolders, made, removed
from loopwright.agents.runners.harbor_paths import task_folder
from loopwright.agents.runners.host import ProgramHost
from loopwright.agents.runners.marks import VARIABLE
from loopwright.agents.runners.output import BoundedOutput
from loopwright.agents.runners.process import Command, TrialProcesses, collected
from loopwright.agents.runners.rewards import finite_numbers
from loopwright.agents.runners.watch import ProgramLimits, TrialWatch
from loopwright.config import HarborRunnerConfig
from loopwright.config.programs import HOST_ENVIRONMENT
from loopwright.core.together import to_its_end
from loopwright.errors import LoopwrightError, ProgramError, SetupError, TrialLostError
from loopwright.ports import Endpoint
from loopwright.serve.marked_processes import ProcessTable
from loopwright.types import Failed, FailureCause, ProgramOutput, RolloutRequest, Scored

KB = 1024
SCRIPT = Path(__file__).parent / "in_harbor" / "trial_process.py"
OUR_ENVIRONMENT = "host_environment:HostEnvironment"
QUIET = {"HARBOR_TELEMETRY": "0", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
IGNORED_SECONDS = 1e9
"""The time of an agent whose task's own limit is ignored."""
STOP_SECONDS = 30.0
"""How long an agent, or a whole trial, may take to end when it is told to."""


class HarborRunner:
    """A `ProgramRunner` for trials of Harbor. Use it as `async with`. Without `grades` a judger scores them. With
    `grades_failures` an agent that raised is graded too."""

    def __init__(
        self, config: HarborRunnerConfig, host: ProgramHost, *, grades: bool = True, grades_failures: bool = False
    ) -> None:
        self.name = config.shown_name
        self._config = config
        self._host = host
        self._grades = grades
        self._grades_failures = grades_failures
        self._table = ProcessTable(VARIABLE)
        self._watch = TrialWatch(ProgramLimits(config.memory_mb, config.processes, config.disk_mb), self._table)

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self._host.clear_left_behind, self._table)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Every trial has removed its own."""

    @asynccontextmanager
    async def prepared(self, request: RolloutRequest) -> AsyncIterator[PreparedTrial]:
        mark = self._host.owner.new_trial()
        folders = TrialFolders(self._host.workspace / mark)
        self._watch.know(mark, folders.root)
        try:
            task = await asyncio.to_thread(task_folder, request.task, self._config, self._host.base)
            try:
                await made(folders, None)
            except OSError as error:
                raise SetupError(f"no folder for a trial: {error}", remedy="see to the space on the disk") from error
            trial = PreparedTrial(
                self._config,
                self._host,
                TrialProcesses(mark, self._table, self._watch),
                folders,
                self._asked(request, task, mark, folders),
                self._grades,
                self._grades_failures,
            )
            try:
                yield trial
            finally:
                await to_its_end(trial.close())
        finally:
            self._watch.forget(mark)
            await removed(folders.root)

    def _asked(self, request: RolloutRequest, task: Path, mark: str, folders: TrialFolders) -> dict[str, Any]:
        """What Harbor is asked for, but for the model."""
        config = self._config
        agent: dict[str, Any] = {"kwargs": dict(config.agent_args), "env": dict(config.env)}
        agent["import_path" if ":" in config.agent else "name"] = config.agent
        if config.timeout_multiplier is None:
            agent["override_timeout_sec"] = IGNORED_SECONDS
        environment: dict[str, Any] = {"kwargs": dict(config.environment_args)}
        if config.environment == HOST_ENVIRONMENT:
            environment["import_path"] = OUR_ENVIRONMENT
        else:
            environment["import_path" if ":" in config.environment else "type"] = config.environment
        trial: dict[str, Any] = {
            "task": {"path": str(task)},
            "trial_name": f"{task.name[:32]}__{mark[-12:]}",
            "trials_dir": str(folders.work),
            "agent": agent,
            "environment": environment,
            "verifier": {"disable": not self._grades},
        }
        if config.timeout_multiplier is not None:
            trial["agent_timeout_multiplier"] = config.timeout_multiplier
        return {
            "trial": trial,
            "folders": [str(self._host.base)],
            "grade_failures": self._grades_failures,
            "attempts": config.grader_attempts,
        }


@dataclass(slots=True)
class PreparedTrial:
    """A `PreparedProgram`: one trial of Harbor."""

    config: HarborRunnerConfig
    host: ProgramHost
    processes: TrialProcesses
    folders: TrialFolders
    asked: Mapping[str, Any]
    grades: bool
    grades_failures: bool
    _text: BoundedOutput | None = None
    _work: asyncio.Task[None] | None = None
    _control: int | None = None
    _begun: Callable[[], None] = lambda: None
    _heard: bytes = b""
    _agent_over: asyncio.Event = field(default_factory=asyncio.Event)
    _over: asyncio.Event = field(default_factory=asyncio.Event)
    _agent_error: Mapping[str, Any] | None = None
    _ended: Mapping[str, Any] | None = None
    _code: int | None = None

    @property
    def output(self) -> ProgramOutput:
        verified = str((self._ended or {}).get("verifier", ""))
        return ProgramOutput(self.config.shown_name, self._text.text if self._text else "", self._code, verified)

    async def run(self, endpoint: Endpoint, begun: Callable[[], None] = lambda: None) -> None:
        self._begun = begun
        self._text = BoundedOutput(self.config.output_kb * KB)
        request = {**self.asked, "model": self._model(endpoint)}
        self._work = asyncio.create_task(self._attended(json.dumps(request).encode(), model_variables(endpoint)))
        try:
            await self._agent_over.wait()
        except asyncio.CancelledError:
            self._tell("stop")
            with suppress(TimeoutError):
                await to_its_end(_within(STOP_SECONDS, self._agent_over))
            raise
        if self._work.done() and (broken := self._work.exception()) is not None:
            raise broken
        self._raise_failure()

    async def reward(self, *, out_of_time: bool = False) -> Scored | Failed | None:
        try:
            await _within(self.config.grader_seconds, self._over)
        except TimeoutError:
            return self._failed(f"the trial was not graded within {self.config.grader_seconds:g} s")
        ended = self._ended
        if ended is None:
            return self._failed(f"Harbor's process ended before the trial was graded{self._last_words()}")
        if not self.grades:
            return None
        failure, rewards = ended.get("failure"), ended.get("rewards") or {}
        of_agent = failure is not None and failure["phase"] == "agent"
        if not (ended.get("reward_valid") or (of_agent and self.grades_failures)):
            return self._failed(_words(failure) if failure else "the verifier gave no reward")
        return self._scored(rewards)

    async def close(self) -> None:
        """End the trial: let it clean up, and then kill what is left."""
        if self._work is None:
            return
        self._tell("cancel")
        await asyncio.wait({self._work}, timeout=STOP_SECONDS)
        self._work.cancel()
        await asyncio.wait({self._work})
        if not self._work.cancelled():
            # Whoever waited for it has seen it.
            self._work.exception()

    async def _attended(self, request: bytes, variables: Mapping[str, str]) -> None:
        """Run the process to its end, and hear what it tells."""
        try:
            async with collected(self._hear) as telling:
                with telling, self._told_what_to_do() as obeyed:
                    command = Command(
                        [self.host.found(self.config.python), "-u", str(SCRIPT), str(obeyed), str(telling.fileno())],
                        self.folders.work,
                        {**self._environment(), **variables},
                        request,
                        (obeyed, telling.fileno()),
                    )
                    self._code = await self.processes.run(command, self._text or BoundedOutput(KB))
        except OSError as error:
            words = f"Harbor's interpreter cannot be started: {error}"
            raise SetupError(words, remedy="see the runner's python") from error
        finally:
            self._agent_over.set()
            self._over.set()

    @contextmanager
    def _told_what_to_do(self) -> Iterator[int]:
        """The reading end of a pipe, to which `_tell` writes."""
        reading, self._control = os.pipe()
        try:
            yield reading
        finally:
            control, self._control = self._control, None
            os.close(control)
            os.close(reading)

    def _hear(self, chunk: bytes) -> None:
        *lines, self._heard = (self._heard + chunk).split(b"\n")
        for told in map(json.loads, lines):
            match told["event"]:
                case "agent_started":
                    self._begun()
                case "agent_ended":
                    self._agent_error = told["error"]
                    self._agent_over.set()
                case "ended":
                    self._ended = told
                    self._agent_over.set()
                    self._over.set()

    def _tell(self, operation: str) -> None:
        if self._control is not None:
            with suppress(OSError):
                os.write(self._control, json.dumps({"op": operation}).encode() + b"\n")

    def _model(self, endpoint: Endpoint) -> dict[str, Any]:
        return {
            "base_url": endpoint.base_url,
            "anthropic_url": endpoint.anthropic_url,
            "served": endpoint.model,
            "name": self.config.model_name,
            "format": self.config.api_format,
            "variables": model_variables(endpoint),
        }

    def _environment(self) -> dict[str, str]:
        own = {"HOME": str(self.folders.home), "TMPDIR": str(self.folders.tmp), **QUIET}
        return {**self.host.env(self.config.pass_env), **own}

    def _raise_failure(self) -> None:
        """Raise if the agent failed, or never began."""
        failure = self._agent_error or (self._ended or {}).get("failure")
        if failure is None and self._ended is None and self._over.is_set():
            raise SetupError(
                f"Harbor's process ended before its trial{self._last_words()}", remedy="see the runner's python"
            )
        if failure is not None and failure["phase"] != "verifier":
            raise _error(failure)

    def _failed(self, words: str) -> Failed:
        return Failed(FailureCause.VERIFIER, "VerifierError", f"{self.asked['trial']['task']['path']}: {words}")

    def _scored(self, rewards: Mapping[str, Any]) -> Scored | Failed:
        numbers = finite_numbers(rewards)
        if "reward" not in numbers:
            return self._failed(f"its verifier gave {dict(rewards)!r:.200}, and no finite number called reward")
        return Scored(numbers.pop("reward"), numbers)

    def _last_words(self) -> str:
        words = self._text.last_lines() if self._text else ""
        return f"; its last output: {words}" if words else ""


def _error(failure: Mapping[str, Any]) -> LoopwrightError:
    """Our error for an exception that Harbor reported outside of grading."""
    words, phase, cause = _words(failure), failure["phase"], failure["cause"]
    if phase == "setup":
        return SetupError(words, remedy="see the task's folder and the runner's environment")
    if cause in ("sandbox_failed", "cancelled") or (cause == "model_provider_failed" and failure.get("retry")):
        return TrialLostError(words, remedy="see the environment that the trial ran in")
    return ProgramError(words, remedy="`loopwright show` has its output")


def _words(failure: Mapping[str, Any]) -> str:
    return f"{failure['type']}: {failure['message']}"


async def _within(seconds: float, event: asyncio.Event) -> None:
    async with asyncio.timeout(seconds):
        await event.wait()
