"""/generate of the fake SGLang: ids in, ids and logprobs out, streams, refusals, aborts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from sglang_scene import CLOSE, LONG, PROMPT, Scene, asking, sglang_scene, until

from loopwright.testing.sglang_server import Options


@pytest.fixture
async def scene(tiny_llama_folder: Path, tmp_path: Path) -> AsyncIterator[Scene]:
    async with sglang_scene(tiny_llama_folder, tmp_path) as made:
        yield made


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.7}, {"top_k": 3, "temperature": 0.7}, {"top_p": 0.4}])
async def test_logprobs_are_the_models_after_temperature_and_not_after_top_k(
    scene: Scene, sampling: dict[str, Any]
) -> None:
    answer = await scene.ask(12, sampling=sampling)
    assert len(answer["output_ids"]) == 12
    assert scene.truth.error(0, PROMPT, answer, sampling.get("temperature", 1.0)) < CLOSE
    assert all(text is None for _, _, text in answer["meta_info"]["output_token_logprobs"])
    assert answer["meta_info"]["input_token_logprobs"] == []


async def test_greedy_logprobs_are_those_of_temperature_1(scene: Scene) -> None:
    answer = await scene.ask(6, sampling={"temperature": 0.0})
    assert scene.truth.error(0, PROMPT, answer) < CLOSE
    best = scene.truth.logprobs(0, [*PROMPT, *answer["output_ids"]])[len(PROMPT) - 1 : -1].argmax(-1)
    assert best.tolist() == answer["output_ids"]


async def test_logprobs_of_the_prompt_have_temperature_1_and_begin_with_none(scene: Scene) -> None:
    await scene.ask()
    answer = await scene.ask(1, sampling={"temperature": 0.5}, logprob_start_len=4, top_logprobs_num=2)
    first, *rest = answer["meta_info"]["input_token_logprobs"]
    assert first == [None, PROMPT[4], None]
    assert [token for _, token, _ in rest] == list(PROMPT[5:])
    rows = scene.truth.logprobs(0, PROMPT)[4:]
    assert max(abs(float(rows[i, token]) - value) for i, (value, token, _) in enumerate(rest)) < CLOSE
    assert [top and len(top) for top in answer["meta_info"]["input_top_logprobs"]] == [None, *[2] * len(rest)]
    # What is to be told is computed again, although all of the prompt is in the cache.
    assert answer["meta_info"]["cached_tokens"] == 4
    assert (await scene.ask(1))["meta_info"]["cached_tokens"] == len(PROMPT) - 1


async def test_an_answer_holds_the_stop_token_and_its_text_does_not(scene: Scene) -> None:
    free = await scene.ask(20, sampling={"temperature": 0.0})
    stop = free["output_ids"][3]
    answer = await scene.ask(20, sampling={"temperature": 0.0, "ignore_eos": False, "stop_token_ids": [stop]})
    assert answer["output_ids"] == free["output_ids"][:4]
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}
    assert len(answer["meta_info"]["output_token_logprobs"]) == 4
    assert answer["text"] == scene.server.scheduler._tokenizer.decode(free["output_ids"][:3], skip_special_tokens=True)
    deaf = await scene.ask(20, sampling={"temperature": 0.0, "ignore_eos": True, "stop_token_ids": [stop]})
    assert deaf["output_ids"] == free["output_ids"]


async def test_a_limit_of_no_token_gives_one_logprob_and_no_id(scene: Scene) -> None:
    answer = await scene.ask(0)
    assert (answer["output_ids"], len(answer["meta_info"]["output_token_logprobs"])) == ([], 1)
    assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": 0}


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        ({"sampling_params": {"max_tokens": 3}}, 500, "max_tokens"),
        ({"sampling_params": {"top_k": 0}}, 400, '{"error":{"message":"top_k must be -1'),
        ({"sampling_params": {"repetition_penalty": 1.1}}, 501, "does not compute"),
        ({"input_ids": []}, 400, "cannot be empty"),
        ({"input_ids": "x"}, 400, '"object":"error"'),
        ({"stream": "yes"}, 400, '"type":"Bad Request"'),
        ({"logprob_start_len": 41}, 400, "smaller logprob_start_len"),
        ({"input_ids": [1] * 1024}, 400, "longer than the model's context"),
        ({"input_ids": [1] * 1000, "sampling_params": {"max_new_tokens": 25}}, 400, "maximum context length"),
    ],
)
async def test_a_wrong_request_is_refused_in_sglangs_way(
    scene: Scene, change: dict[str, Any], status: int, words: str
) -> None:
    response = await scene.post("/generate", asking(4) | change)
    assert (response.status_code, words in response.text) == (status, True), response.text
    assert len((await scene.ask(4, unknown_field=1))["output_ids"]) == 4


async def test_a_stream_repeats_itself_and_an_incremental_one_does_not(scene: Scene, tiny_llama_folder: Path) -> None:
    events = await scene.events(5, sampling={"temperature": 0.0})
    assert [len(event["output_ids"]) for event in events] == [1, 2, 3, 4, 5]
    assert [len(event["meta_info"]["output_token_logprobs"]) for event in events] == [1, 2, 3, 4, 5]
    assert [event["meta_info"]["finish_reason"] is None for event in events] == [True] * 4 + [False]
    wide = await scene.events(9, sampling={"stream_interval": 4})
    assert [len(event["output_ids"]) for event in wide] == [1, 5, 9]
    options = Options(incremental_streaming_output=True)
    async with sglang_scene(tiny_llama_folder, scene.folder, options) as other:
        parts = await other.events(5, sampling={"temperature": 0.0})
    assert [token for part in parts for token in part["output_ids"]] == events[-1]["output_ids"]
    assert sum(len(part["meta_info"]["output_token_logprobs"]) for part in parts) == 5
    assert parts[-1]["meta_info"]["completion_tokens"] == parts[-1]["meta_info"]["output_token_logprobs_length"] == 5


async def test_a_streamed_refusal_has_status_200(scene: Scene) -> None:
    [event] = await scene.events(4, prompt=[1] * 1024)
    assert event["error"] | {"message": ""} == {
        "message": "",
        "type": "invalid_request_error",
        "code": 400,
        "retryable": False,
    }


async def test_a_batch_is_answered_by_a_list_and_names_are_unique(scene: Scene) -> None:
    body = asking(3) | {"input_ids": [[5, 6], [7, 8]], "rid": "both"}
    answers = (await scene.post("/generate", body)).json()
    assert [answer["meta_info"]["id"] for answer in answers] == ["both_0", "both_1"]
    [task] = await scene.running(scene.ask(LONG, rid="taken"))
    again = await scene.post("/generate", asking(3, rid="taken"))
    assert (again.status_code, again.json()["error"]["message"]) == (400, "Duplicate request ID detected: taken")
    await scene.post("/abort_request", {"rid": "taken"})
    await task


async def test_an_abort_gives_what_was_sampled_and_takes_all_names_that_begin_so(scene: Scene) -> None:
    one, other = await scene.running(scene.ask(LONG, rid="a"), scene.ask(LONG, rid="ab"))
    for nobody in ({"rid": "nobody"}, {"rid": ""}, {}):
        response = await scene.post("/abort_request", nobody)
        assert (response.status_code, response.content) == (200, b"")
    assert not one.done()
    await scene.post("/abort_request", {"rid": "a"})
    for answer in (await one, await other):
        assert answer["meta_info"]["finish_reason"] == {
            "type": "abort",
            "message": "Aborted",
            "status_code": None,
            "err_type": None,
        }
        assert 0 < len(answer["output_ids"]) < LONG
        assert scene.truth.error(0, PROMPT, answer) < CLOSE


async def test_the_name_of_a_stream_that_has_ended_is_aborted_a_little_later(scene: Scene) -> None:
    await scene.events(2, rid="again")
    answer = await scene.ask(LONG, rid="again")
    assert answer["meta_info"]["finish_reason"]["type"] == "abort"


async def test_a_stream_whose_reader_leaves_runs_on(scene: Scene) -> None:
    async with scene.client.stream("POST", "/generate", json=asking(300, stream=True, rid="left")) as response:
        await anext(response.aiter_lines())
    await until(lambda: not scene.server.scheduler.running)
    assert scene.server.scheduler.sampled == 300


async def test_a_whole_answer_whose_reader_leaves_is_aborted(scene: Scene) -> None:
    [task] = await scene.running(scene.ask(LONG))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: not scene.server.scheduler.running)
    assert scene.server.scheduler.sampled < LONG


@pytest.mark.parametrize(
    ("key", "admin_key", "sent", "statuses"),
    [
        ("k", None, "k", (200, 200)),
        ("k", None, "x", (401, 401)),
        (None, "a", "x", (200, 401)),
        (None, "a", "a", (200, 200)),
        ("k", "a", "k", (200, 401)),
        ("k", "a", "a", (401, 200)),
    ],
)
async def test_keys(
    tiny_llama_folder: Path,
    tmp_path: Path,
    key: str | None,
    admin_key: str | None,
    sent: str,
    statuses: tuple[int, int],
) -> None:
    options = Options(api_key=key, admin_api_key=admin_key)
    async with sglang_scene(tiny_llama_folder, tmp_path, options, authorization=f"Bearer {sent}") as scene:
        normal, control = await scene.client.get("/model_info"), await scene.client.get("/flush_cache")
        assert (normal.status_code, control.status_code) == statuses
        if 401 in statuses:
            assert {"error": "Unauthorized"} in [r.json() for r in (normal, control) if r.status_code == 401]
        assert (await scene.client.get("/health")).status_code == 200
