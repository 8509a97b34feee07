"""The gateway on its own: over a model in this process, over an engine elsewhere, and killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI
from typer.testing import CliRunner

from loopwright.build import RemoteEngine, ServedModel, serve_engine, serve_gateway
from loopwright.build.remote import connected
from loopwright.cli.app import app
from loopwright.cli.gateway import KEY_VARIABLE
from loopwright.cli.server_key import given_key, own_key
from loopwright.core.chains import turns_of
from loopwright.core.partial_answer import PartialAnswer
from loopwright.engines.http.process import KEY_VARIABLE as ENGINE_KEY_VARIABLE
from loopwright.engines.restartable import RestartableEngine
from loopwright.errors import ConfigError, EngineLostError
from loopwright.gateway.server import Address
from loopwright.gateway.store import DELIVERED_SECONDS
from loopwright.types import GenerateRequest, Generation, Sampling, Thinking

KEY = "a-key"
OPTIONS: dict[str, Any] = {"key": KEY, "renderer": "auto", "thinking": Thinking.KEEP}
TASK: list[Any] = [{"role": "user", "content": "Tell me."}]


def tiny(folder: Path, cache: Path) -> ServedModel:
    return ServedModel(str(folder), cache, dtype="float32", max_context=None, threads=1, max_batch=4, cache_tokens=4096)


async def talk(url: str, turns: int = 2) -> list[Any]:
    """A streamed conversation; gives each turn's chunks."""
    async with httpx.AsyncClient(base_url=url, headers={"authorization": f"Bearer {KEY}"}) as http:
        made = (await http.post("/sessions", json={"sampling": {"max_new_tokens": 12}})).json()
    messages, heard = list(TASK), []
    async with AsyncOpenAI(base_url=made["base_urls"]["openai"], api_key=made["key"]) as client:
        for _ in range(turns):
            stream = await client.chat.completions.create(model="m", messages=messages, stream=True)
            heard.append([chunk async for chunk in stream])
            said = "".join(chunk.choices[0].delta.content or "" for chunk in heard[-1] if chunk.choices)
            messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "Go on."}]
    return [made["id"], *heard]


async def test_it_serves_a_model_of_its_own(tiny_llama_folder: Path, tmp_path: Path) -> None:
    served = serve_gateway(tiny(tiny_llama_folder, tmp_path), Address(), store=tmp_path / "g.sqlite", **OPTIONS)
    async with served as gateway:
        session, *heard = await talk(gateway.base_url)
        assert max(len(chunks) for chunks in heard) > 4, "text comes token by token"
        (chain,) = gateway.sessions.find(session).recorder.chains()
        assert len(turns_of(chain)) == 2


async def test_it_serves_an_engine_elsewhere(tiny_llama_folder: Path, tmp_path: Path) -> None:
    async with serve_engine(tiny(tiny_llama_folder, tmp_path), host="127.0.0.1", port=0, key="engines-key") as port:
        behind = RemoteEngine(f"http://127.0.0.1:{port}", "engines-key", None, tmp_path)
        async with serve_gateway(behind, Address(), store=tmp_path / "g.sqlite", **OPTIONS) as gateway:
            session, *heard = await talk(gateway.base_url)
            assert max(len(chunks) for chunks in heard) > 4
            (chain,) = gateway.sessions.find(session).recorder.chains()
            assert len(turns_of(chain)) == 2


async def test_a_call_waits_for_an_engine_that_is_started_again(tiny_llama_folder: Path, tmp_path: Path) -> None:
    model, request = tiny(tiny_llama_folder, tmp_path), GenerateRequest("a", (1, 2), Sampling(max_new_tokens=4))
    async with AsyncExitStack() as stack:
        async with serve_engine(model, host="127.0.0.1", port=0, key=None) as port:
            patient, hasty = [
                (await stack.enter_async_context(connected(RemoteEngine(f"http://127.0.0.1:{port}", *rest))))[0]
                for rest in ((None, None, tmp_path), (None, None, tmp_path, 0.0))
            ]
        async with asyncio.timeout(20):
            with pytest.raises(EngineLostError):
                await hasty.generate(request)
            waiting = asyncio.create_task(patient.generate(request))
            async with serve_engine(model, host="127.0.0.1", port=port, key=None):
                assert len((await waiting).ids) == 4


def test_how_long_calls_wait_for_an_engine_can_be_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    behind: list[RemoteEngine] = []

    async def serve(engine: RemoteEngine, *others: object) -> None:
        behind.append(engine)

    monkeypatch.setattr("loopwright.cli.gateway._serve", serve)
    arguments = [
        "gateway",
        "--engine",
        "http://127.0.0.1:9",
        "--store",
        str(tmp_path / "g.sqlite"),
        "--engine-wait",
        "7",
    ]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert [engine.wait_seconds for engine in behind] == [7.0]


async def test_its_store_keeps_no_key_of_any_server(tiny_llama_folder: Path, tmp_path: Path) -> None:
    keys = {"engine": "the-engines-own-key", "gateway": "the-gateways-own-key"}
    file, options = tmp_path / "g.sqlite", OPTIONS | {"key": keys["gateway"]}
    async with serve_engine(tiny(tiny_llama_folder, tmp_path), host="127.0.0.1", port=0, key=keys["engine"]) as port:
        behind = RemoteEngine(f"http://127.0.0.1:{port}", keys["engine"], None, tmp_path)
        async with (
            serve_gateway(behind, Address(), store=file, **options) as gateway,
            httpx.AsyncClient(
                base_url=gateway.base_url, headers={"authorization": f"Bearer {keys['gateway']}"}
            ) as http,
        ):
            await http.post("/sessions/session-1", json={"sampling": {"max_new_tokens": 2}})
            said = {"messages": [{"role": "user", "content": f"My keys: {json.dumps(keys)}"}]}
            assert (await http.post("/session-1/v1/chat/completions", json=said)).status_code == 200
            await http.post("/sessions/session-1/complete")
    stored = file.read_text("latin-1")
    assert "My keys" in stored
    assert not any(key in stored for key in keys.values())


def test_keys_come_from_files_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    key, made = own_key(None, KEY_VARIABLE, tmp_path / "g.sqlite")
    assert made == tmp_path / "g.key"
    assert made.stat().st_mode & 0o777 == 0o600
    assert own_key(None, KEY_VARIABLE, tmp_path / "g.sqlite") == (key, made), "a restarted gateway has the same key"
    monkeypatch.setenv(KEY_VARIABLE, "from-the-environment")
    assert own_key(None, KEY_VARIABLE, tmp_path / "g.sqlite") == ("from-the-environment", None)
    monkeypatch.setenv(ENGINE_KEY_VARIABLE, "the-engines")
    assert given_key(None, ENGINE_KEY_VARIABLE) == "the-engines"
    assert not {KEY_VARIABLE, ENGINE_KEY_VARIABLE} & set(os.environ), "agents' programs would see them"
    open_file = tmp_path / "open.key"
    open_file.write_text("secret")
    open_file.chmod(0o644)
    with pytest.raises(ConfigError, match="open to other users"):
        own_key(open_file, KEY_VARIABLE, tmp_path / "g.sqlite")


def test_what_it_makes_stays_out_of_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, state = tmp_path / "here", tmp_path / "state"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    made: dict[str, Path] = {}
    for model in ("no/such-model", "no-such/model"):
        result = CliRunner().invoke(app, ["gateway", "--model", model])
        assert result.exit_code != 0
        (made[model],) = set((state / "loopwright" / "gateway").glob("*.key")) - set(made.values())
    assert list(here.iterdir()) == []
    for key in made.values():
        assert key.stat().st_mode & 0o777 == 0o600
        assert key.parent.stat().st_mode & 0o777 == 0o700
    kept = made["no/such-model"].read_text()
    CliRunner().invoke(app, ["gateway", "--model", "no/such-model"])
    assert made["no/such-model"].read_text() == kept, "the same command again has the same key"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "nothing to serve"),
        (["--for-runs", "--model", "x"], "--for-runs has no model of its own"),
        (["--model", "x", "--advertise-url", "http://0.0.0.0:1"], "every address"),
    ],
)
def test_what_cannot_be_served_is_said(arguments: list[str], words: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["gateway", "--store", str(tmp_path / "g.sqlite"), *arguments])
    assert result.exit_code != 0
    assert words in str(result.exception)
    assert list(tmp_path.iterdir()) == []


def start(folder: Path, model: Path) -> tuple[subprocess.Popen[str], dict[str, Any]]:
    command = [sys.executable, "-m", "loopwright.cli", "gateway", "--model", str(model), "--threads", "1"]
    process = subprocess.Popen(
        [*command, "--store", str(folder / "g.sqlite")],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, KEY_VARIABLE: KEY},
    )
    assert process.stdout is not None
    return process, json.loads(process.stdout.readline())


@pytest.mark.real
def test_a_killed_gateway_comes_back_with_its_sessions(tiny_llama_folder: Path, tmp_path: Path) -> None:
    headers = {"authorization": f"Bearer {KEY}"}
    process, where = start(tmp_path, tiny_llama_folder)
    with process, httpx.Client(headers=headers, base_url=where["url"], timeout=60) as http:
        made = http.post("/sessions/session-1", json={"sampling": {"max_new_tokens": 10}}).json()
        body = {"messages": TASK}
        first = http.post("/session-1/v1/chat/completions", json=body).json()["choices"][0]["message"]
        other = {"messages": [{"role": "user", "content": "Something else."}]}
        delivered = http.post("/session-1/v1/chat/completions", json=other).json()["id"]
        # That it was delivered is written down a moment later.
        time.sleep(20 * DELIVERED_SECONDS)
        process.send_signal(signal.SIGKILL)
        process.wait()
    process, where = start(tmp_path, tiny_llama_folder)
    with process, httpx.Client(headers={"x-api-key": made["key"]}, base_url=where["url"], timeout=60) as http:
        on = {"messages": [*TASK, first, {"role": "user", "content": "Go on."}]}
        assert http.post("/session-1/v1/chat/completions", json=on).status_code == 200
        chains = http.get("/sessions/session-1/chains", headers=headers).json()["chains"]
        assert [chain["start"] for chain in chains] == ["first", "separate"]
        assert http.post("/session-1/v1/chat/completions", json=other).json()["id"] != delivered
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0


class EngineProcess:
    """`loopwright engine`, which can be killed and started again at the same port."""

    def __init__(self, model: Path) -> None:
        self._model = model
        self.port = 0
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "loopwright.cli", "engine", "--model", str(self._model), "--threads", "1"]
        # Slowly, so that it can be killed before it has sent its whole answer.
        command += ["--no-native"]
        environment = {**os.environ, ENGINE_KEY_VARIABLE: KEY}
        self._process = subprocess.Popen(
            [*command, "--port", str(self.port)], stdout=subprocess.PIPE, text=True, env=environment
        )
        assert self._process.stdout is not None
        self.port = int(json.loads(self._process.stdout.readline())["port"])

    def end(self, number: signal.Signals = signal.SIGKILL) -> None:
        with self._process as process:
            process.send_signal(number)


@pytest.mark.real
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_an_answer_outlives_the_engine_that_began_it(
    tiny_llama_folder: Path, tmp_path: Path, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine dies in the middle of a stream, and somebody starts it again: the client sees one slower answer."""
    heard, go_on = list[int](), RestartableEngine._go_on

    async def noted(self: RestartableEngine, answer: PartialAnswer, *rest: Any) -> Generation:
        heard.append(answer.tokens)
        return await go_on(self, answer, *rest)

    monkeypatch.setattr(RestartableEngine, "_go_on", noted)
    async with AsyncExitStack() as stack:
        engine = EngineProcess(tiny_llama_folder)
        stack.callback(engine.end)
        behind = RemoteEngine(f"http://127.0.0.1:{engine.port}", KEY, None, tmp_path)
        served = serve_gateway(behind, Address(), store=tmp_path / "g.sqlite", **OPTIONS)
        gateway = await stack.enter_async_context(served)
        headers = {"authorization": f"Bearer {KEY}"}
        http = httpx.AsyncClient(base_url=gateway.base_url, headers=headers, timeout=60)
        await stack.enter_async_context(http)
        await http.post("/sessions/session-1", json={"sampling": {"temperature": 0.0, "max_new_tokens": 400}})
        path, lines = "/session-1/v1/chat/completions", list[str]()
        body = {"messages": [{"role": "user", "content": "What?"}]}
        async with http.stream("POST", path, json=body | {"stream": True}) as answer:
            async for line in answer.aiter_lines():
                lines += [line] if line.startswith("data: ") else []
                if len(lines) == 10 and line is lines[-1]:
                    await asyncio.to_thread(engine.end, number)
                    await asyncio.to_thread(engine.start)
        assert lines[-1] == "data: [DONE]"
        assert '"error"' not in lines[-2]
        assert (await http.post(path, json=body)).status_code == 200
        cut, whole = gateway.sessions.find("session-1").recorder.turns
        # An engine that is asked to end finishes what takes less than a second.
        assert heard or number is signal.SIGTERM
        assert all(0 < tokens < len(cut.ids) for tokens in heard)
        assert (cut.ids.tolist(), cut.finish) == (whole.ids.tolist(), whole.finish)
