"""No key reaches what a run stores or shows (S3): its database, its events, the log and the terminal."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from loopwright.build import RemoteEngine, ServedModel, open_run, serve_engine, serve_gateway
from loopwright.build.session import open_session
from loopwright.cli import main
from loopwright.config import load
from loopwright.core.redaction import MARK, OWN_KEY_PREFIX
from loopwright.errors import EngineError
from loopwright.gateway.server import Address
from loopwright.runs.stored_run import StoredRun
from loopwright.testing import JudgeReply, JudgeRequest, JudgeServer
from loopwright.track.jsonl import EVENTS, read_jsonl
from loopwright.types import Failed, Thinking

WriteConfig = Callable[..., Path]
KEY = "sk-judge-0123456789-abcdefghij"


@pytest.fixture(autouse=True)
def own_signals() -> Iterator[None]:
    """`train` takes SIGINT and SIGTERM for itself; pytest wants them back."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


def command(*arguments: str) -> int:
    with pytest.raises(SystemExit) as left:
        main(list(arguments))
    return int(left.value.code or 0)


def stored_bytes(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in folder.rglob("*") if file.is_file() and "model" not in file.name)


def echoes(request: JudgeRequest) -> JudgeReply:
    """As some services do. The second spelling is cut off where the error is shortened."""
    key = request.headers["authorization"].removeprefix("Bearer ")
    return JudgeReply({"error": f"wrong key {key}, not {key}"}, 401)


@pytest.mark.parametrize(("command_line", "folder"), [("train", "run"), ("rollout", "run/samples/tiny")])
def test_a_judge_that_repeats_its_key_tells_it_to_nobody(
    command_line: str,
    folder: str,
    write_config: WriteConfig,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("JUDGE_KEY", KEY)
    with JudgeServer(echoes) as server:
        judger = {"kind": "http", "url": f"{server.url}/judge", "api_key_env": "JUDGE_KEY", "retries": 0}
        file = write_config(judgers={"vowels": judger}, eval=None, produce__failure_budget=1)
        assert command(command_line, str(file)) == 1
        shown = capfd.readouterr()
        assert command("check", "--deep", str(file)) == 2
    checked = capfd.readouterr()
    attempts = list(StoredRun(file.parent / folder / "rollouts.sqlite").attempts())
    details = {a.rollout.reward.detail for a in attempts if isinstance(a.rollout.reward, Failed)}
    assert len(details) == 1
    assert MARK in details.pop()
    assert "answered with status 401" in caplog.text
    assert "answered with status 401" in shown.err
    assert "answered with status 401" in checked.err
    everything = f"{caplog.text}{shown}{checked}{stored_bytes(file.parent / 'run')!r}"
    assert KEY[:12] not in everything


METRIC = """
import os

async def tells(tasks):
    raise ValueError(f"the key is {os.environ['JUDGE_KEY']}")
"""


@pytest.mark.parametrize("arguments", [("train",), ("eval",), ("eval", "--json")])
def test_a_metric_that_raises_with_a_key_tells_it_to_nobody(
    arguments: Sequence[str],
    write_config: WriteConfig,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("JUDGE_KEY", KEY)
    (tmp_path / "mine.py").write_text(METRIC)
    settings = {"eval__metrics": ["mine.py:tells"], "eval__greedy": False, "trainer__steps": 1}
    file = write_config(judgers__vowels__env=["JUDGE_KEY"], **settings)
    command(*arguments, str(file))
    everything = f"{caplog.text}{capfd.readouterr()}"
    assert f"metric 'tells' raised ValueError: the key is {MARK}" in everything
    assert KEY[:12] not in everything


async def refuses(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """An engine that does not like its key, as some services say it."""
    _, _, key = (await reader.readuntil(b"\r\n\r\n")).decode().partition("Bearer ")
    body = json.dumps({"error": {"message": f"wrong key {key.split()[0]}"}}).encode()
    writer.write(b"HTTP/1.1 401 Unauthorized\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
    writer.close()


async def test_an_engine_that_repeats_its_key_tells_it_to_nobody(write_config: WriteConfig, tmp_path: Path) -> None:
    async with await asyncio.start_server(refuses, "127.0.0.1") as server:
        host, port = server.sockets[0].getsockname()
        engine = RemoteEngine(f"http://{host}:{port}", KEY, None, tmp_path)
        session = open_session(
            load(write_config()), cache=tmp_path, version=0, fresh=False, console=None, remote=engine
        )
        gateway = serve_gateway(
            engine, Address(), store=tmp_path / "g.sqlite", key="k", renderer="auto", thinking=Thinking.KEEP
        )
        contexts: list[AbstractAsyncContextManager[Any]] = [session, gateway]
        for context in contexts:
            with pytest.raises(EngineError) as caught:
                async with context:
                    pass
            assert caught.value.message == f"wrong key {MARK}"


async def test_the_log_of_an_engine_holds_no_key(
    tiny_model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = ServedModel(str(tiny_model), tmp_path, "float32", None, None, 64, 0)
    async with serve_engine(model, host="127.0.0.1", port=0, key=KEY):
        logging.getLogger("loopwright").warning("the key is %s", KEY)
    assert f"the key is {MARK}" in caplog.text


async def test_the_events_of_runs_and_sessions_hold_no_key(write_config: WriteConfig, tmp_path: Path) -> None:
    """A run's engine that dies is an event, with its last words."""
    loaded = load(write_config(judgers__vowels__env=["JUDGE_KEY"]), env={"JUDGE_KEY": KEY}, files=True)
    opened: list[AbstractAsyncContextManager[Any]] = [
        open_run(loaded, cache=tmp_path, stop=asyncio.Event()),
        open_session(loaded, cache=tmp_path, version=0, fresh=True, console=None),
    ]
    for context in opened:
        async with context as one:
            with one.tracker.span("engine_lost", step=0, last_words=f"the key is {KEY}"):
                pass
            assert read_jsonl(one.folder.path / EVENTS)[-1]["facts"] == {"last_words": f"the key is {MARK}"}


AGENT = """
import json, os
from loopwright import Task

async def agent(task, base_url, api_key):
    import httpx
    async with httpx.AsyncClient(verify=False) as http:
        messages = list(task.messages)
        headers = {"authorization": f"Bearer {api_key}"}
        reply = await http.post(f"{base_url}/chat/completions", headers=headers, json={"messages": messages})
        messages.append(reply.json()["choices"][0]["message"])
    told = {"OPENAI_API_KEY": api_key, "JUDGE_KEY": os.environ["JUDGE_KEY"]}
    if task.id == "t3":
        raise ValueError(f"the environment is {told}")
    return [*messages, {"role": "tool", "content": json.dumps(told)}, {"role": "assistant", "content": "aeiou"}]
"""


def test_an_agent_that_shows_its_environment_stores_no_key(
    write_config: WriteConfig,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("JUDGE_KEY", KEY)
    monkeypatch.setattr("loopwright.judgers.endpoint.FIRST_PAUSE_SECONDS", 0.01)
    (tmp_path / "agent.py").write_text(AGENT)
    with JudgeServer(lambda request: JudgeReply({"score": len(request.body["answer"]), "answer": KEY})) as server:
        judger = {"kind": "http", "url": f"{server.url}/judge", "api_key_env": "JUDGE_KEY"}
        agent = {"kind": "callable", "path": "agent.py:agent", "judger": "vowels"}
        changes: dict[str, Any] = {"agent": agent, "trainer__steps": 1, "trainer__groups_per_step": 12}
        changes["rollout__samples_per_task"] = 2
        file = write_config(judgers={"vowels": judger}, eval=None, produce__min_members=1, **changes)
        command("train", str(file))
        sent = json.dumps([request.body for request in server.requests])
    attempts = [a.rollout for a in StoredRun(file.parent / "run" / "rollouts.sqlite").attempts()]
    episodes = [rollout.episode for rollout in attempts if rollout.episode is not None]
    assert len(episodes) >= 20
    for episode in episodes:
        assert json.loads(episode.messages[-2]["content"]) == {"OPENAI_API_KEY": MARK, "JUDGE_KEY": MARK}
    assert "the environment is" in caplog.text
    everything = f"{caplog.text}{sent}{stored_bytes(file.parent / 'run')!r}"
    assert KEY[:12] not in everything
    assert OWN_KEY_PREFIX not in everything
