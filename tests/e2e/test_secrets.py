"""No key reaches what a run stores or shows (S3): its database, its events, the log and the terminal."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from loopwright.buffer.reader import StoredRun
from loopwright.cli import main
from loopwright.core.redaction import MARK, OWN_KEY_PREFIX
from loopwright.testing import JudgeReply, JudgeRequest, JudgeServer
from loopwright.types import Failed

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


def test_a_judge_that_repeats_its_key_tells_it_to_nobody(
    write_config: WriteConfig,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("JUDGE_KEY", KEY)
    with JudgeServer(echoes) as server:
        judger = {"kind": "http", "url": f"{server.url}/judge", "api_key_env": "JUDGE_KEY", "retries": 0}
        file = write_config(judgers={"vowels": judger}, eval=None, produce__failure_budget=1)
        assert command("train", str(file)) == 1
        shown = capfd.readouterr()
        assert command("check", "--deep", str(file)) == 2
    checked = capfd.readouterr()
    attempts = list(StoredRun(file.parent / "run" / "rollouts.sqlite").attempts())
    details = {a.rollout.reward.detail for a in attempts if isinstance(a.rollout.reward, Failed)}
    assert len(details) == 1
    assert MARK in details.pop()
    assert "answered with status 401" in caplog.text
    assert "answered with status 401" in shown.err
    assert "answered with status 401" in checked.err
    everything = f"{caplog.text}{shown}{checked}{stored_bytes(file.parent / 'run')!r}"
    assert KEY[:12] not in everything


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
