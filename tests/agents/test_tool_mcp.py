"""Tools of MCP servers: started, listed, called, and ended with their owner."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp")

from loopwright.agents import EnginePolicy, McpServer, ToolBudget, ToolLoop
from loopwright.errors import EngineError, ToolServerError
from loopwright.testing import CharRenderer, ScriptedEngine
from loopwright.types import Sampling, Task

HERE = Path(__file__).parent
TASK = Task.ask("t", "Remember!")


def server(*args: str, **options: Any) -> McpServer:
    settings: dict[str, Any] = {"env": {"MOOD": "sunny"}, "only": ["remember"], "shared": False}
    settings |= {"timeout_seconds": 20.0, "start_seconds": 60.0} | options
    return McpServer([sys.executable, "mcp_notes.py", *args], HERE, **settings)


async def said(loop: ToolLoop, *texts: str) -> list[str]:
    calls = [f'<tool_call>{{"name": "remember", "arguments": {{"text": "{text}"}}}}</tool_call>' for text in texts]
    policy = EnginePolicy(ScriptedEngine([*calls, "ok"]), CharRenderer(), Sampling(), "a/0/0/0", max_context=9999)
    messages = await loop.run(TASK, policy)
    return [str(message["content"]) for message in messages if message["role"] == "tool"]


def loop_of(*servers: McpServer) -> ToolLoop:
    return ToolLoop(servers, budget=ToolBudget(8))


async def test_every_rollout_has_a_server_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "ours")
    async with loop_of(server()) as loop:
        assert await said(loop, "a", "bad", "b") == [
            "1 notes, no secret, sunny",
            "error: no bad words",
            "2 notes, no secret, sunny",
        ]
        assert await said(loop, "c") == ["1 notes, no secret, sunny"]


async def test_a_run_may_share_one() -> None:
    async with loop_of(server(shared=True)) as loop:
        assert (await said(loop, "a"))[0].startswith("1 notes")
        assert (await said(loop, "b"))[0].startswith("2 notes")
        async with loop.open(TASK) as belt:
            assert [tool["name"] for tool in belt.offered] == ["remember"]


async def test_a_server_that_dies_is_a_failure_of_infrastructure() -> None:
    async with loop_of(server()) as loop:
        with pytest.raises(ToolServerError, match="was lost while remember ran"):
            await said(loop, "die")
        assert await said(loop, "a"), "the next rollout has a new one"


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loopwright.agents.mcp_shared.FIRST_PAUSE_SECONDS", 0.01)


@pytest.mark.usefixtures("no_pause")
async def test_a_shared_server_that_dies_is_started_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with loop_of(server("--mark", str(tmp_path / "mark"), shared=True)) as loop:
        assert (await said(loop, "a", "die once", "b")) == [f"{n} notes, no secret, sunny" for n in (1, 1, 2)]
        assert (await said(loop, "die afterwards", "c"))[1].startswith("1 notes"), "it died when nobody used it"
        at_once = await asyncio.gather(*(said(loop, text) for text in ("die afterwards", "d", "e")))
        assert all("notes" in text for (text,) in at_once)
    assert caplog.text.count("is started again") == 3
    assert "mcp_notes.py" in caplog.text


@pytest.mark.usefixtures("no_pause")
async def test_a_call_that_kills_its_server_whenever_it_is_made_is_a_tools_error() -> None:
    async with loop_of(server(shared=True)) as loop:
        killed, after = await said(loop, "die", "a")
        assert killed == "error: the server of remember died 2 times while it ran"
        assert after.startswith("1 notes")


@pytest.mark.usefixtures("no_pause")
async def test_neighbours_of_a_call_that_kills_its_server_are_answered() -> None:
    async with loop_of(server(shared=True)) as loop:
        (killed,), *others = await asyncio.gather(*(said(loop, text) for text in ("die", "a", "b", "c", "d")))
    assert killed.startswith("error: the server of remember died")
    assert ["notes" in text for (text,) in others] == [True] * 4, others


@pytest.mark.usefixtures("no_pause")
async def test_a_model_that_kills_its_server_again_and_again_does_not_end_the_run() -> None:
    async with loop_of(server(shared=True)) as loop:
        for _ in range(3):
            (killed,) = await said(loop, "die")
            assert killed.startswith("error: the server of remember died")
        assert (await said(loop, "a"))[0].startswith("1 notes")


@pytest.mark.real
@pytest.mark.usefixtures("no_pause")
async def test_a_call_is_not_charged_for_the_start_of_its_server(tmp_path: Path) -> None:
    slow = server("--mark", str(tmp_path / "mark"), "--slow-again", shared=True, timeout_seconds=0.5)
    async with loop_of(slow) as loop:
        assert (await said(loop, "die afterwards", "a"))[1].startswith("1 notes")
        assert await said(loop, "hang") == ["error: remember took longer than 0.5 s"]


@pytest.mark.usefixtures("no_pause")
async def test_a_server_that_dies_with_every_call_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loopwright.agents.mcp_shared.MAX_BLAMED", 1)
    async with loop_of(server(shared=True)) as loop:
        await said(loop, "die")
        await said(loop, "die")
        with pytest.raises(ToolServerError, match="is given up"):
            await said(loop, "die", "die")


@pytest.mark.usefixtures("no_pause")
async def test_a_shared_server_that_does_not_come_back_fails_every_rollout_with_its_reason(tmp_path: Path) -> None:
    stays_away = server("--mark", str(tmp_path / "mark"), "--start-once", shared=True)
    async with loop_of(stays_away) as loop:
        for _ in range(2):
            with pytest.raises(ToolServerError, match=r"(?s)was lost 4 times .* did not start: .*it said: out of ink"):
                await said(loop, "die")


async def test_a_shared_server_that_never_starts_is_tried_once() -> None:
    with pytest.raises(ToolServerError, match=r"(?s)did not start: .*it said: out of ink"):
        async with loop_of(server("--refuse", shared=True)):
            pass


@pytest.mark.parametrize(
    ("args", "options", "message"),
    [
        (["--refuse"], {}, "did not start: .*it said: out of ink"),
        ([], {"only": ["recall"]}, "it has no tool recall; it has remember, forget"),
    ],
)
async def test_a_server_that_does_not_start_says_why(args: list[str], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ToolServerError, match=f"(?s){message}"):
        await said(loop_of(server(*args, **options)), "a")


async def test_what_passes_a_server_on_its_way_out_keeps_its_shape() -> None:
    """An error of the engine's must stay one: it decides whether the rollout is tried again."""
    policy = EnginePolicy(ScriptedEngine(["x"], faults=[0]), CharRenderer(), Sampling(), "a/0/0/0", max_context=9999)
    with pytest.raises(EngineError, match="scripted fault"):
        await loop_of(server()).run(TASK, policy)
