"""Sessions over HTTP (S1, S3, S5): who may do what, when a session is over, and what its budgets allow."""

from __future__ import annotations

import asyncio
from typing import Any

import anthropic
import openai
import pytest
from gateway_house import ADD, call_text, house

from loopwright.errors import ConfigError
from loopwright.gateway.server import Address
from loopwright.gateway.session import SessionState
from loopwright.types import PauseMode, Sampling

HI = [{"role": "user", "content": "Hi"}]
MODEL_PATHS = ("v1/chat/completions", "v1/responses", "v1/messages", "v1/messages/count_tokens")


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def test_a_session_lives_from_create_to_delete() -> None:
    async with house(["Hello.", "Bye."]) as h:
        made = await h.post("/sessions/my_session-1", {"ttl_seconds": 60})
        assert made.status_code == 201
        urls, key = made.json()["base_urls"], made.json()["key"]
        assert urls == {
            "openai": f"{h.gateway.base_url}/sessions/my_session-1/v1",
            "anthropic": f"{h.gateway.base_url}/sessions/my_session-1",
            "gemini": f"{h.gateway.base_url}/sessions/my_session-1",
        }
        assert (await h.post("/sessions/my_session-1", {})).status_code == 409
        async with openai.AsyncOpenAI(base_url=urls["openai"], api_key=key) as client:
            assert (await client.models.list()).data[0].id == "tiny"
            await client.chat.completions.create(model="gpt-9", messages=HI)
            status = (await h.http.get("/sessions/my_session-1")).json()
            assert (status["state"], status["turns"], status["starts"]) == ("open", 1, {"first": 1})
            done = await h.http.post("/sessions/my_session-1/complete")
            assert done.json()["state"] == "completed"
            with pytest.raises(openai.APIStatusError) as over:
                await client.chat.completions.create(model="gpt-9", messages=HI)
            assert over.value.status_code == 410
            assert over.value.response.headers["x-should-retry"] == "false"
            assert len(h.engine.requests) == 1
        assert (await h.http.delete("/sessions/my_session-1")).json()["deleted"]
        assert (await h.http.get("/sessions/my_session-1")).status_code == 404
        assert (await h.post("/sessions/my_session-1", {})).status_code == 201


async def test_the_chains_can_be_fetched() -> None:
    async with house(["Hello."]) as h:
        session = await h.session()
        await h.chat(session, HI)
        (chain,) = (await h.http.get(f"/sessions/{session}/chains")).json()["chains"]
        (kept,) = h.chains()
        assert chain["ids"] == kept.ids.tolist()
        assert sum(chain["mask"]) == kept.sampled == len("Hello.") + 1
        assert chain["start"] == "first"


@pytest.mark.parametrize("id", ["short", "sessions", "with space", "way-too-long-" * 8, "ümläute-x", "a.b.c.d.e.f"])
async def test_odd_ids_are_refused(id: str) -> None:
    async with house([]) as h:
        response = await h.post(f"/sessions/{id}", {})
        assert response.status_code == 400
        assert "cannot name a session" in response.json()["error"]["message"]


async def test_an_id_is_made_when_none_is_given() -> None:
    async with house([]) as h:
        made = (await h.http.post("/sessions")).json()
        assert [one["id"] for one in (await h.http.get("/sessions")).json()["sessions"]] == [made["id"]]


@pytest.mark.parametrize("path", MODEL_PATHS)
async def test_keys_open_what_they_are_for(path: str) -> None:
    async with house(["Hello."]) as h:
        keys = [(await h.post(f"/sessions/session-{n}", {})).json()["key"] for n in range(2)]
        body: dict[str, Any] = {"messages": HI, "input": "Hi", "max_tokens": 5}

        async def ask(session: str, **headers: str) -> int:
            async with h.http.stream("POST", f"/{session}/{path}", json=body, headers=headers) as response:
                return response.status_code

        assert await ask("session-0", authorization=f"Bearer {keys[0]}") == 200
        assert await ask("session-0", **{"authorization": "", "x-api-key": keys[0]}) == 200
        assert await ask("session-0", authorization="Bearer wrong") == 401
        assert await ask("session-0", authorization="") == 401
        assert await ask("session-1", authorization=f"Bearer {keys[0]}") == 403
        assert await ask("no-such-session") == 404
        await h.http.post("/sessions/session-0/complete")
        assert await ask("session-0", authorization=f"Bearer {keys[0]}") == 410


@pytest.mark.parametrize("path", [*MODEL_PATHS, "v1/models", "v1/models/m", "v1/responses/resp_1", ""])
async def test_without_its_key_a_session_cannot_be_told_from_one_that_is_not_there(path: str) -> None:
    async with house([]) as h:
        keys = {n: (await h.post(f"/sessions/session-{n}", {})).json()["key"] for n in range(3)}
        await h.http.post("/sessions/session-1/complete")
        others = ("GET",) if "resp_1" in path else ("GET", "HEAD")
        methods = ("POST",) if path in MODEL_PATHS else others
        for method in methods:
            for key, status in (("", 401), ("wrong", 401), (keys[0], 403)):
                seen = set()
                for session in ("session-1", "session-2", "no-such-session"):
                    headers = bearer(key) if key else {"authorization": ""}
                    answer = await h.http.request(method, f"/sessions/{session}/{path}", headers=headers)
                    seen.add((answer.status_code, answer.text.replace(session, "")))
                assert len(seen) == 1, (method, key)
                # Whoever asks whether the base URL is there is told so, for any session.
                assert seen.pop()[0] == (200 if (method, path) == ("HEAD", "") else status)


async def test_a_sessions_key_manages_nothing() -> None:
    async with house([]) as h:
        key = (await h.post("/sessions/session-1", {})).json()["key"]
        h.http.headers.update(bearer(key))
        assert (await h.http.get("/sessions/session-1")).status_code == 200
        for method, path in (
            ("GET", "/sessions"),
            ("POST", "/sessions/session-2"),
            ("POST", "/sessions/session-1/complete"),
            ("GET", "/sessions/session-1/chains"),
            ("GET", "/sessions/session-1/record"),
            ("DELETE", "/sessions/session-1"),
            ("GET", "/metrics"),
        ):
            assert (await h.http.request(method, path)).status_code == 403


async def test_errors_speak_the_callers_dialect() -> None:
    async with house([]) as h:
        chat = (await h.post("/no-session/v1/chat/completions", {})).json()["error"]
        assert chat["type"] == "invalid_request_error"
        assert chat["code"] == "not_found"
        messages = (await h.post("/no-session/v1/messages", {})).json()
        assert messages["type"] == "error"
        assert messages["error"]["type"] == "not_found_error"
        nowhere = await h.http.get("/no-session/v1/nothing", headers={"anthropic-version": "2023-06-01"})
        assert (nowhere.status_code, nowhere.json()["type"]) == (404, "error")
        assert (await h.http.get("/no-session/v1/messages")).status_code == 405


async def test_strange_hosts_and_web_pages_are_refused() -> None:
    async with house([]) as h:
        assert (await h.http.get("/health", headers={"host": "evil.example"})).status_code == 403
        assert (await h.http.get("/sessions", headers={"origin": "http://127.0.0.1"})).status_code == 403


async def test_what_needs_no_key() -> None:
    async with house([]) as h:
        h.http.headers.pop("authorization")
        assert (await h.http.get("/health")).json()["status"] == "ok"
        assert (await h.http.head("/session-1")).status_code == 200
        assert (await h.http.head("/sessions/session-1")).status_code == 200
        document = (await h.http.get("/openapi.json")).json()
        assert "/sessions/{session}/v1/messages" in document["paths"]
        names = [
            parameter["name"] for parameter in document["paths"]["/sessions/{session}/record"]["get"]["parameters"]
        ]
        assert names == ["session", "version"]
        assert (await h.http.get("/metrics")).status_code == 401


async def test_the_metrics_tell_what_happened() -> None:
    async with house(["Hello.", "Ho."]) as h:
        session = await h.session()
        await h.chat(session, HI)
        await h.chat(session, [{"role": "user", "content": "Other"}])
        text = (await h.http.get("/metrics")).text
        for line in (
            'loopwright_gateway_sessions{state="open"} 1',
            'loopwright_gateway_chains_total{start="first"} 1',
            'loopwright_gateway_chains_total{start="separate"} 1',
            "loopwright_gateway_sampled_tokens_total 11",
            'loopwright_gateway_requests_total{route="chat",status="200"} 2',
        ):
            assert line in text


async def test_unused_sessions_expire() -> None:
    async with house(["Hello."], seconds=lambda request: 0.2) as h:
        await h.session(ttl_seconds=0.1)
        response = await h.post("/session-1/v1/messages", {"messages": HI, "max_tokens": 20})
        assert response.status_code == 200
        await asyncio.sleep(0.15)
        assert (await h.post("/session-1/v1/messages", {"messages": HI})).status_code == 410
        await h.session("session-2", ttl_seconds=0.01)
        await asyncio.sleep(0.05)
        h.gateway.sessions.end_idle()
        assert h.gateway.sessions.find("session-2").state is SessionState.EXPIRED


async def test_completing_a_session_ends_its_calls() -> None:
    async with house(["Hello."], seconds=lambda request: 30) as h:
        await h.session()
        asked = asyncio.create_task(h.post("/session-1/v1/chat/completions", {"messages": HI}))
        while not h.engine.requests:
            await asyncio.sleep(0.01)
        await h.http.post("/sessions/session-1/complete")
        assert (await asked).status_code == 410
        assert h.engine.log == []


async def test_training_sessions_override_what_the_agent_wishes() -> None:
    async with house(["Hello."] * 3) as h:
        await h.session(sampling=Sampling(temperature=0.7, top_k=5, max_new_tokens=50), seed=3)
        wish = {"temperature": 0.1, "top_p": 0.5, "seed": 1, "max_tokens": 20, "stop": ["x"], "response_format": {}}
        await h.chat("session-1", HI, **wish)
        await h.chat("session-1", HI)
        sampled = [request.sampling for request in h.engine.requests]
        assert [(one.temperature, one.top_k, one.top_p) for one in sampled] == [(0.7, 5, 1.0)] * 2
        assert [(one.max_new_tokens, one.stop) for one in sampled] == [(20, ("x",)), (50, ())]
        assert sampled[0].seed != sampled[1].seed
        recorded = h.recorder().turns[0].wishes
        assert (recorded["temperature"], recorded["seed"]) == (0.1, 1)
        assert (await h.http.get("/sessions/session-1")).json()["wishes"][0]["top_p"] == 0.5


async def test_open_sessions_grant_wishes() -> None:
    async with house(["Hello."] * 2) as h:
        await h.session()
        await h.chat("session-1", HI, temperature=0, top_p=0.5, max_completion_tokens=7)
        sampling = h.engine.requests[0].sampling
        assert (sampling.temperature, sampling.top_p, sampling.max_new_tokens) == (0.0, 0.5, 7)


async def test_a_prompt_that_does_not_fit_is_a_400_in_every_dialect() -> None:
    async with house([], max_context=40) as h:
        session = await h.session()
        long = [{"role": "user", "content": "x" * 50}]
        async with h.openai(session) as client:
            with pytest.raises(openai.BadRequestError) as chat:
                await client.chat.completions.create(model="m", messages=long)
            assert chat.value.code == "context_length_exceeded"
            with pytest.raises(openai.BadRequestError) as responses:
                await client.responses.create(model="m", input=long)
            assert responses.value.code == "context_length_exceeded"
        async with h.anthropic(session) as other:
            with pytest.raises(anthropic.BadRequestError) as messages:
                await other.messages.create(model="m", messages=long, max_tokens=5)
            assert "prompt is too long" in messages.value.message
            counted = await other.messages.count_tokens(model="m", messages=long)
            assert counted.input_tokens > 40
        assert h.engine.requests == []


async def test_max_tokens_is_clamped_and_an_empty_budget_asks_nobody() -> None:
    async with house(["A long answer that never ends."] * 9, max_context=200) as h:
        session = await h.session(max_tokens=20)
        path = f"/{session}/v1/chat/completions"
        first = (await h.post(path, {"messages": HI, "max_tokens": 10**30})).json()["choices"][0]
        assert first["finish_reason"] == "length"
        assert h.engine.requests[0].sampling.max_new_tokens == 20
        second = await h.post(path, {"messages": HI})
        assert second.json()["choices"][0]["finish_reason"] == "length"
        assert second.json()["choices"][0]["message"]["content"] == ""
        streamed = await h.post(f"/{session}/v1/messages", {"messages": HI, "max_tokens": 5, "stream": True})
        assert '"stop_reason":"max_tokens"' in streamed.text
        assert len(h.engine.requests) == 1
        assert len(h.chains()) == 1


async def test_calls_wait_while_weights_are_updated() -> None:
    async with house(["Hello there."], seconds=lambda request: 0.1) as h:
        await h.session()
        asked = asyncio.create_task(h.chat("session-1", HI))
        while not h.engine.requests:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.03)
        await h.engine.pause(PauseMode.ABORT)
        await h.engine.load(1)
        await h.engine.resume()
        assert (await asked)["content"] == "Hello there."
        turn = h.recorder().turns[0]
        assert set(turn.versions.tolist()) == {0, 1}
        assert turn.ids.tolist() == [token for _, part in h.engine.log for token in part.ids]


async def test_a_call_without_tools_reads_tool_calls_as_text() -> None:
    text = call_text("add", "{}")
    async with house([text, text]) as h:
        await h.session()
        assert (await h.chat("session-1", HI))["content"].strip() == text
        with_tools = await h.chat("session-1", HI, tools=[ADD])
        assert with_tools["tool_calls"][0]["function"] == {"name": "add", "arguments": "{}"}


@pytest.mark.parametrize(
    "url",
    [
        "http://0.0.0.0:80",
        "gateway.example",
        "ftp://x",
        "http://",
        "http://x/?a=1",
        "http://x:y",
        "http://x:0",
        "http://[",
        "http://0:80",
        "http://[0:0:0:0:0:0:0:0]:80",
        "http://a host",
        "http://x\n:80",
    ],
)
def test_unusable_advertised_urls_are_refused(url: str) -> None:
    with pytest.raises(ConfigError):
        Address(advertise_url=url)


async def test_the_advertised_name_is_answered_to() -> None:
    async with house([], address=Address(advertise_url="http://Gateway.Example:8080")) as h:
        url = f"http://127.0.0.1:{h.gateway.port}/health"
        for host in ("gateway.example:8080", "Gateway.example", "127.0.0.1", "localhost:1"):
            assert (await h.http.get(url, headers={"host": host})).status_code == 200, host
        assert (await h.http.get(url, headers={"host": "evil.example"})).status_code == 403


async def test_an_advertised_address_is_answered_to() -> None:
    async with house([], address=Address(advertise_url="http://[fd00::1]:8080")) as h:
        url = f"http://127.0.0.1:{h.gateway.port}/health"
        assert (await h.http.get(url, headers={"host": "[fd00::1]:8080"})).status_code == 200


@pytest.mark.parametrize(
    ("model", "told"),
    [("/home/alice/models/Small-1B", "Small-1B"), ("models/small/", "small"), ("Qwen/Qwen3-0.6B", "Qwen3-0.6B")],
)
async def test_agents_are_not_told_where_the_model_is(model: str, told: str) -> None:
    async with house([], name=model) as h:
        made = (await h.post("/sessions/session-1", {})).json()
        listed = (await h.http.get("/session-1/v1/models", headers=bearer(made["key"]))).json()
        health = (await h.http.get("/health")).json()
        assert (made["model"], listed["data"][0]["id"], health["model"]) == (told, told, told)
        assert "alice" not in f"{made}{listed}{health}"


def test_an_advertised_url_may_lack_a_port() -> None:
    assert Address(advertise_url="https://gateway.example/llm/").advertise_url == "https://gateway.example/llm"


async def test_a_completed_session_tells_its_drift() -> None:
    async with house(["The answer is 19.", "The answer is 19."]) as h:
        session = await h.session()
        reply = await h.chat(session, HI)
        await h.chat(session, [*HI, reply, *HI])
        sampled = h.recorder().sampled_tokens
        drift = (await h.http.post(f"/sessions/{session}/complete")).json()["drift"]
        # The model wrote letter by letter; a tokenizer would not.
        assert 0 < drift["wrong"] <= sampled
        assert drift["first"]["recorded"] != drift["first"]["naive"]
        assert f"loopwright_gateway_drift_tokens_total {drift['wrong']}" in (await h.http.get("/metrics")).text
        assert (await h.http.post(f"/sessions/{session}/complete")).json()["state"] == "completed"
