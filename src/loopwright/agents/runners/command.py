"""Runs a command of the user as the agent of a rollout: in a folder of its own, with a small environment and within
limits. Its reward comes from that folder, or from a judger."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path, PurePath
from types import TracebackType
from typing import Self

from loopwright.agents.runners.confine import Confinement
from loopwright.agents.runners.fields import filled, instruction_of
from loopwright.agents.runners.folders import TrialFolders, made, removed
from loopwright.agents.runners.host import ProgramHost
from loopwright.agents.runners.marks import VARIABLE
from loopwright.agents.runners.output import BoundedOutput
from loopwright.agents.runners.process import Command, TrialProcesses
from loopwright.agents.runners.rewards import inside, reward_in_file, reward_of_code, spelled_code
from loopwright.agents.runners.watch import ProgramLimits, TrialWatch
from loopwright.config import (
    CommandRunnerConfig,
    ExitCodeReward,
    FileReward,
    ProgramReward,
    VerifierReward,
)
from loopwright.core.together import to_its_end
from loopwright.errors import ConfigError, ProgramError, SetupError, VerifierError
from loopwright.ports import Endpoint
from loopwright.serve.marked_processes import ProcessTable
from loopwright.types import Failed, FailureCause, Isolation, ProgramInput, ProgramOutput, RolloutRequest, Scored, Task

KB = 1024
VERIFIER_OUTPUT_KB = 16


class CommandRunner:
    """A `ProgramRunner` for one command. Use it as `async with`."""

    def __init__(self, config: CommandRunnerConfig, reward: ProgramReward | None, host: ProgramHost) -> None:
        self.name = config.shown_name
        self._config = config
        self._reward = reward
        self._host = host
        self._table = ProcessTable(VARIABLE)
        limits = ProgramLimits(config.memory_mb, config.processes, config.disk_mb)
        self._watch = TrialWatch(limits, self._table)
        if config.isolate is Isolation.BWRAP and host.home_is_in(host.base.resolve()):
            raise ConfigError(
                f"the config is in {host.base}, which holds your home: a sandbox hides that from programs",
                remedy="move the config and its programs into a folder of their own",
            )
        readable = host.readable(_programs(config, reward), config.readable)
        self._confinement = Confinement(config.isolate, limits, host.home, readable, host.hidden)

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self._host.clear_left_behind, self._table)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Every trial has removed its own."""

    @asynccontextmanager
    async def prepared(self, request: RolloutRequest) -> AsyncIterator[PreparedCommand]:
        mark = self._host.owner.new_trial()
        folders = TrialFolders(self._host.workspace / mark)
        self._watch.know(mark, folders.root)
        try:
            await self._set_up(request.task, mark, folders)
            processes = TrialProcesses(mark, self._table, self._watch)
            yield PreparedCommand(
                self._config, self._reward, self._host, self._confinement, request, folders, processes
            )
        finally:
            self._watch.forget(mark)
            await removed(folders.root)

    async def _set_up(self, task: Task, mark: str, folders: TrialFolders) -> None:
        try:
            await made(folders, self._template(task, mark), self._host.hidden)
            if (name := self._config.instruction_file) is not None:
                await to_its_end(asyncio.to_thread(_write, folders.work, name, instruction_of(task)))
        except (OSError, ValueError) as error:
            raise SetupError(
                f"task {task.id!r}: the folder of its program cannot be set up: {error}",
                remedy="see to the runner's `folder` and to the space on the disk",
            ) from error

    def _template(self, task: Task, mark: str) -> Path | None:
        """The folder that the program gets a copy of. A task may choose among folders, but not climb out of them."""
        if self._config.folder is None:
            return None
        named, values = self._config.folder, {"config": str(self._host.base), "trial": mark}
        chosen = filled(named, task, {**values, "config": "."})
        if PurePath(chosen).parts.count("..") > PurePath(named).parts.count(".."):
            raise ValueError(f"{chosen!r} leads out of the folder that the config names")
        return self._host.base / filled(named, task, values)


@dataclass(slots=True)
class PreparedCommand:
    """A `PreparedProgram`: one trial of a command."""

    config: CommandRunnerConfig
    how: ProgramReward | None
    host: ProgramHost
    confinement: Confinement
    request: RolloutRequest
    folders: TrialFolders
    processes: TrialProcesses
    _text: BoundedOutput | None = None
    _code: int | None = None
    _verified: str = ""

    @property
    def output(self) -> ProgramOutput:
        return ProgramOutput(self.config.shown_name, self._text.text if self._text else "", self._code, self._verified)

    async def run(self, endpoint: Endpoint, begun: Callable[[], None] = lambda: None) -> None:
        begun()
        task = self.request.task
        values = self._values() | {
            "base_url": endpoint.base_url,
            "anthropic_url": endpoint.anthropic_url,
            "model": endpoint.model,
        }
        env = self._environment(self.config.env, values) | model_variables(endpoint)
        stdin = instruction_of(task) if self.config.stdin is ProgramInput.INSTRUCTION else ""
        self._text = BoundedOutput(self.config.output_kb * KB)
        try:
            self._code = await self._run(self.config.command, values, env, stdin.encode(), self._text)
        except ProgramError as error:
            error.message += self._last_words()
            raise
        if not isinstance(self.how, ExitCodeReward) and self._code not in self.config.exit_codes:
            raise ProgramError(
                f"the program ended with {spelled_code(self._code)}{self._last_words()}",
                remedy="`loopwright show` has its output; exit codes that are no failure go into its exit_codes",
            )

    async def reward(self, *, out_of_time: bool = False) -> Scored | Failed | None:
        try:
            match self.how:
                case None:
                    return None
                case FileReward(path=path):
                    return await asyncio.to_thread(reward_in_file, self.folders.work, path)
                case ExitCodeReward() if out_of_time and self._code is None:
                    return Scored(self.how.late_score)
                case ExitCodeReward(scores=scores):
                    return reward_of_code(_ended(self._code), scores, "the program")
                case VerifierReward():
                    return await self._verify(self.how)
        except VerifierError as error:
            detail = f"task {self.request.task.id!r}: {error.message}"
            return Failed(FailureCause.VERIFIER, type(error).__name__, detail)

    async def _verify(self, how: VerifierReward) -> Scored:
        for _ in range(how.attempts - 1):
            with suppress(VerifierError):
                return await self._verify_once(how)
        return await self._verify_once(how)

    async def _verify_once(self, how: VerifierReward) -> Scored:
        written, values = BoundedOutput(VERIFIER_OUTPUT_KB * KB), self._values()
        stdin = json.dumps(asdict(self.request.task), separators=(",", ":")).encode()
        try:
            await to_its_end(asyncio.to_thread(self._clear, how.path))
            async with asyncio.timeout(how.timeout_seconds):
                code = await self._run(how.command, values, self._environment(how.env, values), stdin, written)
            if how.path is None:
                return reward_of_code(code, how.scores, "the verifier")
            if code:
                raise VerifierError(f"the verifier ended with {spelled_code(code)}", remedy="see its output")
            return await asyncio.to_thread(reward_in_file, self.folders.work, how.path)
        except TimeoutError as error:
            raise VerifierError(
                f"the verifier took longer than {how.timeout_seconds:g} s", remedy="raise its timeout_seconds"
            ) from error
        except (ProgramError, SetupError, VerifierError) as error:
            words = written.last_lines()
            message = f"{error.message}; its last output: {words}" if words else error.message
            raise VerifierError(message, remedy=error.remedy) from error
        finally:
            self._verified = written.text

    def _clear(self, verdict: str | None) -> None:
        """What the agent wrote to the verifier's file is no verdict, and what it left in its home (settings of git,
        modules of Python) must not run in the verifier."""
        try:
            self.folders.renew()
            if verdict is not None:
                with suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
                    inside(self.folders.work, verdict).unlink()
        except OSError as error:
            raise VerifierError(f"the verifier's place cannot be made: {error}", remedy="see its program") from error

    async def _run(
        self,
        command: tuple[str, ...],
        values: Mapping[str, str],
        env: Mapping[str, str],
        stdin: bytes,
        to: BoundedOutput,
    ) -> int:
        words = [filled(word, self.request.task, values) for word in command]
        words[0] = self.host.found(words[0])
        try:
            with tempfile.TemporaryFile() as status:
                confined = self.confinement.command(words, self.folders, status.fileno())
                passed = (status.fileno(),) if self.confinement.hides_tmp else ()
                code = await self.processes.run(Command(confined, self.folders.work, env, stdin, passed), to)
                if code > 0 and not self.confinement.was_started(status):
                    raise OSError(f"its sandbox cannot be made: {to.last_lines()}")
        except OSError as error:
            raise SetupError(
                f"the program {words[0]!r} cannot be run: {error}", remedy="see whether it starts by hand"
            ) from error
        return code

    def _values(self) -> dict[str, str]:
        return {"config": str(self.host.base), "folder": str(self.folders.work), "trial": self.folders.root.name}

    def _environment(self, own: Mapping[str, str], values: Mapping[str, str]) -> dict[str, str]:
        given = {name: filled(value, self.request.task, values) for name, value in own.items()}
        tmp = "/tmp" if self.confinement.hides_tmp else str(self.folders.tmp)
        return {**self.host.env(self.config.pass_env), "HOME": str(self.folders.home), "TMPDIR": tmp, **given}

    def _last_words(self) -> str:
        words = self._text.last_lines() if self._text else ""
        return f"; its last output: {words}" if words else ", without any output"


def model_variables(endpoint: Endpoint) -> dict[str, str]:
    """The variables by which SDKs and agents find their model."""
    return {
        "OPENAI_BASE_URL": endpoint.base_url,
        "OPENAI_API_BASE": endpoint.base_url,
        "OPENAI_API_KEY": endpoint.api_key,
        "OPENAI_MODEL": endpoint.model,
        "ANTHROPIC_BASE_URL": endpoint.anthropic_url,
        "ANTHROPIC_API_KEY": endpoint.api_key,
        "ANTHROPIC_MODEL": endpoint.model,
    }


def _ended(code: int | None) -> int:
    if code is None:
        raise VerifierError("the program was ended by a limit, so it has no exit code", remedy="raise that limit")
    return code


def _programs(config: CommandRunnerConfig, reward: ProgramReward | None) -> Iterator[str]:
    yield config.command[0]
    if isinstance(reward, VerifierReward):
        yield reward.command[0]


def _write(folder: Path, name: str, text: str) -> None:
    """Write a file. If the template has a link there, it is replaced: what it leads to is the user's."""
    path = folder / name
    inside(folder, name).parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_text(text, "utf-8")
