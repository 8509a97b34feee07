"""Runs one trial of Harbor in Harbor's own interpreter, for Loopwright's `harbor` runner.

    python trial_process.py CONTROL EVENTS < request.json

CONTROL and EVENTS are numbers of inherited pipes, with one JSON object per line. The request is one object:

    {"trial": TrialConfig, "folders": [...], "model": {...} or null, "grade_failures": bool, "attempts": int}

We read {"op": "stop"} (the agent's time is up: end it, and grade what it has done; before it has begun, this is a
cancel) and {"op": "cancel"} (end everything). The end of the pipe is a cancel too, so a trial does not outlive a run
that was killed.

We write {"event": "agent_started"}, {"event": "agent_ended", "error": ...} and at last {"event": "ended", ...}.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import traceback
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

LONGEST_MESSAGE = 4000
LONGEST_NAME = 200
MOST_NUMBERS = 100
RETRY_SECONDS = 0.5
FORMATS = ("openai_chat_completions", "anthropic_messages", "openai_responses")
"""How an agent may talk to the model, the best first."""

Emit = Callable[..., None]


class WatchedTrial:
    """One trial, and in which phase it is. `stop` ends the agent; what it has done is graded."""

    def __init__(self, request: Mapping[str, Any], emit: Emit) -> None:
        self._request = request
        self._emit = emit
        self._stop = asyncio.Event()
        self._phase = "setup"
        self._agent_error: dict[str, Any] | None = None
        self._ran_out = False

    def stop(self) -> bool:
        """End the agent. False: it has not begun, so there is nothing to grade."""
        self._stop.set()
        return self._phase != "setup"

    async def run(self) -> None:
        """Run it to its end, and tell how it ended. Raises nothing but CancelledError."""
        try:
            trial = await self._created()
        except Exception as error:
            traceback.print_exc()
            self._emit("ended", failure=self._failure(type(error).__name__, str(error)))
            return
        result = await trial.run()
        failure = None
        if (told := next(iter(result._recorded_exceptions()), None)) is not None:
            print(told.exception_traceback, file=sys.stderr)
            failure = self._failure(told.exception_type, told.exception_message)
        rewards = result.verifier_result.rewards if result.verifier_result is not None else None
        self._emit(
            "ended",
            rewards=numbers_of(rewards),
            reward_valid=result.reward_valid or (self._ran_out and bool(rewards)),
            failure=None if self._ran_out and rewards else self._agent_error or failure,
            verifier=_tail(trial.paths.test_stdout_path),
        )

    async def _created(self) -> Any:
        from harbor.agents.factory import AgentFactory
        from harbor.models.trial.config import TrialConfig
        from harbor.trial.hooks import TrialEvent
        from harbor.trial.trial import Trial

        config = TrialConfig.model_validate(self._request["trial"])
        if (model := self._request["model"]) is not None:
            kind = AgentFactory.get_agent_class_from_config(config.agent)
            config.agent = config.agent.model_copy(update=connection(kind, config.agent, model))
        retry_verifier(config.verifier, self._request["attempts"])
        trial = await Trial.create(config)
        for name in ("run", "load", "resume"):
            setattr(trial.agent, name, self._guarded(getattr(trial.agent, name), trial.task.has_steps))

        async def grading(_: Any) -> None:
            self._phase = "verifier"

        trial.add_hook(TrialEvent.VERIFICATION_START, grading)
        return trial

    def _guarded(self, run: Callable[..., Awaitable[None]], has_steps: bool) -> Callable[..., Awaitable[None]]:
        """The agent's own method, which can be stopped, and whose end is told. An agent of a task with steps is called
        for each of them, so there only the trial's end is told."""

        async def guarded(**arguments: Any) -> None:
            from harbor.agents.installed.base import NonZeroAgentExitCodeError
            from harbor.models.trial.error_policy import policy_for

            self._phase = "agent"
            self._emit("agent_started")
            error: dict[str, Any] | None = None
            try:
                await self._until_stopped(run(**arguments))
                self._phase = "verifier"
            except TimeoutError:
                self._phase = "verifier"
                raise
            except Exception as raised:
                traceback.print_exc()
                # An agent that ran out of its context is graded, like one that ran out of its time.
                self._ran_out = policy_for(type(raised).__name__).reward_valid
                if not self._ran_out:
                    error = self._agent_error = self._failure(type(raised).__name__, str(raised))
                if self._ran_out or self._request["grade_failures"]:
                    # Of all exceptions of an agent, Harbor grades after this one only.
                    self._phase = "verifier"
                    raise NonZeroAgentExitCodeError(str(raised)) from raised
                raise
            finally:
                if not has_steps:
                    self._emit("agent_ended", error=error)

        return guarded

    async def _until_stopped(self, work: Awaitable[None]) -> None:
        running, stopped = asyncio.ensure_future(work), asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait({running, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                raise TimeoutError("the agent was stopped")
            running.result()
        finally:
            for task in (running, stopped):
                task.cancel()
            await asyncio.wait({running, stopped})

    def _failure(self, kind: str, message: str) -> dict[str, Any]:
        try:
            from harbor.models.trial.error_policy import policy_for

            policy = policy_for(kind)
            cause, retry = policy.cause.value, policy.retry
        except ImportError:
            cause, retry = "harbor_failed", False
        told = {"type": kind, "message": message[:LONGEST_MESSAGE], "cause": cause, "retry": retry}
        return {**told, "phase": self._phase}


def numbers_of(rewards: Any) -> dict[str, float] | None:
    """The numbers that a verifier gave, and not more than anybody looks at."""
    if rewards is None:
        return None
    named = rewards if isinstance(rewards, dict) else {"reward": rewards}
    numbers = [(str(name)[:LONGEST_NAME], value) for name, value in named.items() if isinstance(value, int | float)]
    # The one that counts comes first.
    return dict(sorted(numbers, key=lambda number: number[0] != "reward")[:MOST_NUMBERS])


def connection(kind: Any, agent: Any, model: Mapping[str, Any]) -> dict[str, Any]:
    """The settings by which an agent of this kind finds the model. An agent that takes none has its environment."""
    spec = kind.MODEL_CONNECTION
    wished = str(model["format"]) if model["format"] else None
    known = [str(one) for one in getattr(spec, "supported_api_formats", None) or ()]
    chosen = wished or next((one for one in FORMATS if one in known), FORMATS[0])
    is_anthropic = chosen == "anthropic_messages"
    key = "ANTHROPIC_API_KEY" if is_anthropic else "OPENAI_API_KEY"
    name = model["name"] or f"{'anthropic' if is_anthropic else 'openai'}/{model['served']}"
    settings: dict[str, Any] = {"model_name": name, "env": {**agent.env, **model["variables"]}}
    if spec is not None and kind.capabilities.base_url:
        url = model["anthropic_url"] if is_anthropic else model["base_url"]
        settings |= {"base_url": url, "model_api_key_name": key}
        if chosen in known:
            from harbor.models.model_api_format import ModelApiFormat

            settings["model_api_format"] = ModelApiFormat(chosen)
    return settings


def retry_verifier(config: Any, attempts: int) -> None:
    """Let the verifier try several times: one that cannot be reached is no verdict. All attempts together have the
    verifier's time."""
    from harbor.utils.import_path import import_class
    from harbor.verifier.verifier import Verifier

    kind = Verifier if config.import_path is None else import_class(config.import_path, label="verifier")
    verify = kind.verify

    async def tried(self: Any) -> Any:
        for attempt in range(1, attempts):
            try:
                return await verify(self)
            except Exception:
                traceback.print_exc()
                await asyncio.sleep(RETRY_SECONDS * attempt)
        return await verify(self)

    kind.verify = tried


async def attended(request: Mapping[str, Any], control: int, emit: Emit) -> None:
    """Run the trial, and do meanwhile what the other side says."""
    trial = WatchedTrial(request, emit)
    work = asyncio.ensure_future(trial.run())
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, work.cancel)
    stream = asyncio.StreamReader()
    pipe, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(control, "rb", buffering=0)
    )

    async def listen() -> None:
        while line := await stream.readline():
            if json.loads(line)["op"] != "stop" or not trial.stop():
                break
        work.cancel()

    listening = asyncio.ensure_future(listen())
    try:
        await work
    except asyncio.CancelledError:
        emit("ended", failure={"type": "CancelledError", "message": "", "cause": "cancelled", "phase": "cancelled"})
    finally:
        listening.cancel()
        pipe.close()


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - LONGEST_MESSAGE))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def _main() -> None:
    control, events = int(sys.argv[1]), int(sys.argv[2])
    os.set_inheritable(control, False)
    os.set_inheritable(events, False)
    request = json.load(sys.stdin)
    sys.path += request["folders"]
    with os.fdopen(events, "w", buffering=1, encoding="utf-8") as out:

        def emit(event: str, **facts: Any) -> None:
            out.write(json.dumps({"event": event, **facts}) + "\n")

        asyncio.run(attended(request, control, emit))


if __name__ == "__main__":
    _main()
