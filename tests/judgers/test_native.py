"""The user's function as a judger: a score or a JudgeError that names it, never anything else (R2)."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from loopwright.config import NativeJudgerConfig
from loopwright.errors import ConfigError, JudgeError
from loopwright.judgers import NativeJudger, open_judgers
from loopwright.testing import score_one
from loopwright.types import Episode, Scored, Task, TokenChain

HERE = Path(__file__).parent
TASK = Task.ask("t", "say something")


def judger(function: str, timeout_seconds: float = 30.0, workers: int = 1) -> NativeJudger:
    return NativeJudger(function, f"user_judgers.py:{function}", HERE, timeout_seconds, workers)


def episode(answer: str = "{}") -> Episode:
    chain = TokenChain([1, 2, 3], [False, False, True], [0.0, 0.0, -0.5], [-1, -1, 0])  # type: ignore[arg-type]
    return Episode(({"role": "assistant", "content": answer},), (chain,))


async def test_a_sync_function_runs_in_another_process_without_torch() -> None:
    async with judger("where") as where:
        scored = await where.judge(TASK, episode("four"))
    assert scored.value == 4.0
    assert scored.parts["pid"] != os.getpid()
    assert not scored.parts["knows_torch"], "the worker imported torch"


async def test_a_worker_sees_no_secrets_but_those_that_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = ("JUDGE_KEY", "AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "DATABASE_URL")
    for name in (*hidden, "PYTHONHASHSEED", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, "1")
    config = NativeJudgerConfig(path="user_judgers.py:environment", timeout_seconds=30.0, env=("SEARCH_TOKEN",))
    secrets = {"SEARCH_TOKEN": "2", "JUDGE_KEY": "of another judger"}
    async with open_judgers(["environment"], {"environment": config}, HERE, secrets) as opened:
        scored = await score_one(opened["environment"], TASK, episode())
    seen = json.loads(scored.answer or "")
    assert not set(hidden) & set(seen)
    assert {"PATH", "PYTHONHASHSEED", "OMP_NUM_THREADS", "SEARCH_TOKEN"} <= set(seen)


async def test_an_async_function_runs_in_the_event_loop() -> None:
    async with judger("length_async") as length:
        assert await length.judge(TASK, episode("four")) == Scored(4.0)


async def test_parts_are_kept_and_a_bool_is_a_number() -> None:
    async with judger("with_parts") as parts:
        assert await parts.judge(TASK, episode()) == Scored(1.0, {"value": 2.0, "format": 0.5})


async def test_wrong_returns_and_raises_name_judger_path_and_value() -> None:
    async def error_of(bad: NativeJudger, answer: str) -> JudgeError:
        with pytest.raises(JudgeError) as caught:
            await bad.judge(TASK, episode(answer))
        assert f"judger {bad.name!r} (user_judgers.py:{bad.name})" in caught.value.message
        return caught.value

    async with judger("wrong") as wrong, judger("raises_async") as raises_async:
        names = ["string", "none", "nan", "nan_part", "raises", "leaves", "gives_up", "huge"]
        errors = {name: await error_of(wrong, name) for name in names}
        errors["raises_async"] = await error_of(raises_async, "")
    assert "returned '0.5' of type str" in errors["string"].message
    assert "returned None of type NoneType" in errors["none"].message
    assert "returned nan of type float" in errors["nan"].message
    assert errors["nan_part"].facts["error"] == "WrongReturn"
    assert "raised KeyError: 'score' (user_judgers.py:" in errors["raises"].message
    assert errors["raises"].message.endswith("in raises)")
    assert errors["raises"].facts["error"] == "KeyError"
    assert "raised SystemExit: enough" in errors["leaves"].message
    assert "raised TimeoutError: the grader's own" in errors["raises_async"].message
    assert "gives no score: the sandbox is gone" in errors["gives_up"].message
    assert (errors["gives_up"].remedy, errors["gives_up"].facts["error"]) == ("start it", "NoSandbox")
    assert "returned 1000000000" in errors["huge"].message


async def test_whatever_else_the_users_code_raises_is_its_own_failure() -> None:
    """A cancellation among it: taken for the run's own, it would end the run and name nobody."""
    async with judger("wrong") as wrong, judger("cancels_async") as cancels_async:
        said = {}
        for name in ("cancels", "speechless", "unreadable"):
            with pytest.raises(JudgeError) as caught:
                await wrong.judge(TASK, episode(name))
            said[name] = caught.value.message
        with pytest.raises(JudgeError, match="raised CancelledError"):
            await cancels_async.judge(TASK, episode())
    assert "raised CancelledError" in said["cancels"]
    assert "raised SpeechlessError: its message cannot be shown" in said["speechless"]
    assert "raised ValueError: no number" in said["unreadable"]


async def test_cancelling_an_async_judger_is_no_failure_of_its_own() -> None:
    async with judger("hangs_async") as hangs:
        call = asyncio.create_task(hangs.judge(TASK, episode()))
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call


@pytest.mark.real
async def test_a_function_past_its_deadline_is_killed_and_the_judger_goes_on() -> None:
    async with judger("hangs", timeout_seconds=1.0) as hangs:
        assert await hangs.judge(TASK, episode("quick")) == Scored(1.0)
        with pytest.raises(JudgeError, match=r"no score within 1 s"):
            await hangs.judge(TASK, episode("slow"))
        assert await hangs.judge(TASK, episode("quick")) == Scored(1.0)


async def test_an_async_function_has_a_deadline_too() -> None:
    async with judger("hangs_async", timeout_seconds=0.05) as hangs:
        with pytest.raises(JudgeError, match=r"no score within 0\.05 s"):
            await hangs.judge(TASK, episode())


async def test_a_worker_that_dies_is_a_judge_error_and_the_judger_goes_on() -> None:
    async with judger("dies") as dies:
        with pytest.raises(JudgeError, match="took its worker process down"):
            await dies.judge(TASK, episode("die"))
        assert await dies.judge(TASK, episode("quick")) == Scored(1.0)


@pytest.mark.real
async def test_a_worker_that_is_killed_while_idle_is_replaced() -> None:
    async with judger("pid") as pid:
        os.kill(int((await pid.judge(TASK, episode())).value), signal.SIGKILL)
        await asyncio.sleep(0.5)
        assert (await pid.judge(TASK, episode())).value > 0


async def test_cancelling_a_call_frees_its_worker() -> None:
    async with judger("hangs", timeout_seconds=50, workers=1) as hangs:
        assert await hangs.judge(TASK, episode("quick")) == Scored(1.0)
        call = asyncio.create_task(hangs.judge(TASK, episode("slow")))
        await asyncio.sleep(0.3)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        started = time.monotonic()
        assert await hangs.judge(TASK, episode("quick")) == Scored(1.0)
        assert time.monotonic() - started < 30


async def test_a_path_that_is_no_function_fails_before_the_first_call() -> None:
    with pytest.raises(ConfigError, match="cannot be called"):
        async with judger("NOT_A_FUNCTION"):
            pass


PARENT = """
import asyncio, sys
from pathlib import Path
from loopwright.judgers import NativeJudger
from loopwright.types import Episode, Task

if __name__ == "__main__":
    judger = NativeJudger("j", "user_judgers.py:hangs_loudly", Path(sys.argv[1]), 60)
    asyncio.run(judger.judge(Task.ask("t", "?"), Episode((), ())))
"""


@pytest.mark.real
def test_a_hanging_judge_dies_with_a_killed_run(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    with subprocess.Popen(
        [sys.executable, str(script), str(HERE)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        parent.kill()
    deadline = time.monotonic() + 20
    while _alive(worker):
        assert time.monotonic() < deadline, "the worker outlived its run"
        time.sleep(0.05)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
