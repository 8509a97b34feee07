"""A command ends when its work has ended, also if an agent cannot be cancelled (R4)."""

from __future__ import annotations

import asyncio
import gc
import resource
import subprocess
import sys

import pytest

from loopwright.cli.event_loop import run_async, run_server, settle_down

SCRIPT = """
import asyncio
from loopwright.cli import event_loop

event_loop.LAST_SECONDS = 0.2

async def stubborn():
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass

async def owner():
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(stubborn())

async def main():
    left = asyncio.create_task(owner())
    await asyncio.sleep(0.1)
    raise SystemExit("the run's own error")

event_loop.run_async(main())
"""


def test_an_agent_that_cannot_be_cancelled_does_not_keep_the_process() -> None:
    ended = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert ended.stderr.strip() == "the run's own error"


def test_what_is_left_gets_time_to_clean_up() -> None:
    log = []

    async def cleans_up() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            log.append("clean")

    async def main() -> str:
        asyncio.get_running_loop().create_task(cleans_up())
        await asyncio.sleep(0)
        return "result"

    assert run_async(main()) == "result"
    assert log == ["clean"]


def test_what_the_work_raises_is_raised_as_it_is() -> None:
    async def main() -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        run_async(main())


def test_a_server_runs_on_uvloop_and_may_open_as_many_files_as_the_system_permits() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, hard), hard))
    try:

        async def look() -> tuple[str, int]:
            return type(asyncio.get_running_loop()).__module__, resource.getrlimit(resource.RLIMIT_NOFILE)[0]

        assert run_server(look()) == ("uvloop", hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_what_a_server_is_made_of_is_no_garbage() -> None:
    before = gc.get_threshold()
    try:
        settle_down()
        assert gc.get_freeze_count() > 0
        assert gc.get_threshold()[0] > before[0]
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)


def test_a_system_that_refuses_to_have_no_limit_is_asked_for_less(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []

    def like_macos(_: int, limits: tuple[int, int]) -> None:
        asked.append(limits)
        if limits[0] == 2**63 - 1:
            raise ValueError("current limit exceeds maximum limit")

    async def nothing() -> None: ...

    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 2**63 - 1))
    monkeypatch.setattr(resource, "setrlimit", like_macos)
    run_server(nothing())
    assert asked[-1] == (10_240, 2**63 - 1)
