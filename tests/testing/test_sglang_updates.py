"""The fake SGLang when its weights change: pauses, labels, caches, and what ends it."""

from __future__ import annotations

import asyncio
import base64
import pickle
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from sglang_scene import APART, CLOSE, LONG, PROMPT, Scene, sglang_scene, until

from loopwright.testing.sglang_server import Options


@pytest.fixture
async def scene(tiny_llama_folder: Path, tmp_path: Path) -> AsyncIterator[Scene]:
    async with sglang_scene(tiny_llama_folder, tmp_path) as made:
        yield made


def fits_none(scene: Scene, answer: Any, prompt: Any = PROMPT) -> bool:
    return min(scene.truth.error(version, prompt, answer) for version in range(3)) > APART


async def test_the_safe_recipe_gives_exact_logprobs_and_the_label(scene: Scene) -> None:
    tasks = await scene.running(scene.ask(LONG), scene.ask(LONG))
    await scene.safe_update(1)
    for task in tasks:
        before = await task
        assert (before["meta_info"]["weight_version"], before["meta_info"]["finish_reason"]["type"]) == (
            "default",
            "abort",
        )
        assert scene.truth.error(0, PROMPT, before) < CLOSE
    going_on = [*PROMPT, *before["output_ids"]]
    after = await scene.ask(prompt=going_on)
    assert scene.truth.error(1, going_on, after) < CLOSE
    assert (after["meta_info"]["weight_version"], after["meta_info"]["cached_tokens"]) == ("v1", 0)


async def test_without_a_flush_old_keys_are_mixed_with_new_weights_unless_another_key_is_asked_for(
    scene: Scene,
) -> None:
    await scene.ask(extra_key="v0")
    response = await scene.update(1, flush_cache=False, weight_version="v1")
    assert response.json() == {
        "success": True,
        "message": "Succeeded to update model weights. Weight version updated to v1.",
        "num_paused_requests": 0,
    }
    stale = await scene.ask(extra_key="v0")
    assert stale["meta_info"]["weight_version"] == "v1"
    assert stale["meta_info"]["cached_tokens"] == len(PROMPT) - 1
    assert fits_none(scene, stale)
    assert scene.truth.error(1, PROMPT, await scene.ask(extra_key="v1")) < CLOSE
    assert scene.truth.error(1, PROMPT, await scene.ask(extra_key="v0", cache_salt="v1")) < CLOSE


async def test_an_update_flushes_by_default(scene: Scene) -> None:
    await scene.ask()
    assert (await scene.update(1)).json()["success"]
    assert scene.truth.error(1, PROMPT, await scene.ask()) < CLOSE
    assert (await scene.client.get("/model_info")).json()["weight_version"] == "default"


async def test_in_place_goes_on_with_old_keys_and_tells_only_the_new_label(scene: Scene) -> None:
    [task] = await scene.running(scene.ask(200))
    await scene.post("/pause_generation", {"mode": "in_place"})
    assert (await scene.update(1, flush_cache=False, weight_version="v1")).json()["success"]
    assert (await scene.post("/flush_cache")).text == "Flush cache failed.\n"
    assert (await scene.post("/flush_cache?timeout=0.01")).text == "Timed out waiting for idle state."
    await scene.post("/continue_generation")
    answer = await task
    assert len(answer["output_ids"]) == 200
    assert answer["meta_info"]["weight_version"] == "v1"
    assert fits_none(scene, answer)
    # Even its last token, long after the update, is none of the new weights'.
    assert min(_last_error(scene, version, answer) for version in (0, 1)) > CLOSE


def _last_error(scene: Scene, version: int, answer: Any) -> float:
    logprob, token, _ = answer["meta_info"]["output_token_logprobs"][-1]
    rows = scene.truth.logprobs(version, [*PROMPT, *answer["output_ids"]])
    return abs(float(rows[-2, token]) - float(logprob))


@pytest.mark.parametrize("radix", [True, False])
async def test_retract_is_exact_only_without_a_tree_of_prefixes(
    tiny_llama_folder: Path, tmp_path: Path, radix: bool
) -> None:
    async with sglang_scene(tiny_llama_folder, tmp_path, Options(disable_radix_cache=not radix)) as scene:
        [task] = await scene.running(scene.ask(200))
        await scene.post("/pause_generation", {"mode": "retract"})
        assert (await scene.update(1, flush_cache=False, weight_version="v1")).json()["success"]
        assert (await scene.post("/flush_cache")).status_code == 400
        await scene.post("/continue_generation")
        answer = await task
        assert answer["meta_info"]["num_retractions"] == 1
        assert _last_error(scene, 1, answer) < CLOSE if not radix else _last_error(scene, 1, answer) > CLOSE


async def test_a_retracted_request_that_is_aborted_loses_tokens(scene: Scene) -> None:
    [whole] = await scene.running(scene.ask(LONG, rid="whole"), tokens=60)
    events = asyncio.ensure_future(scene.events(LONG, rid="streamed"))
    await until(lambda: any(s.ask.stream and len(s.output_ids) > 3 for s in scene.server.scheduler.running))
    await scene.post("/pause_generation", {"mode": "retract"})
    await until(lambda: len(scene.server.scheduler.waiting) == 2)
    await scene.post("/abort_request", {"abort_all": True})
    answer = await whole
    assert answer["meta_info"]["finish_reason"] == {"type": "abort", "message": "Abort in waiting queue"}
    assert len(answer["output_ids"]) % 50 == 0
    assert "prompt_tokens" not in answer["meta_info"]
    last = (await events)[-1]
    assert len(last["output_ids"]) == 1 < last["meta_info"]["completion_tokens"]


async def test_an_update_that_flushes_after_retract_ends_the_server(scene: Scene) -> None:
    await scene.running(scene.ask(LONG))
    await scene.post("/pause_generation", {"mode": "retract"})
    await scene.dies(scene.update(1))


async def test_a_pause_needs_a_body_and_parks_new_requests(scene: Scene) -> None:
    assert (await scene.client.post("/pause_generation")).status_code == 400
    assert (await scene.post("/pause_generation", {"mode": "keep"})).status_code == 400
    response = await scene.post("/pause_generation")
    assert response.json() == {"message": "Generation paused successfully.", "status": "ok"}
    parked = asyncio.ensure_future(scene.ask(rid="parked"))
    await until(lambda: "parked" in scene.server.names)
    await scene.post("/abort_request", {"rid": "parked"})
    [load] = (await scene.client.get("/v1/loads")).json()["loads"]
    assert (load["num_running_reqs"], load["num_waiting_reqs"]) == (0, 0)
    assert (await scene.client.get("/health")).status_code == 503
    assert not parked.done()
    assert (await scene.client.post("/continue_generation")).status_code == 400
    await scene.post("/continue_generation")
    assert len((await parked)["output_ids"]) == 8


async def test_abort_after_in_place_never_ends(scene: Scene) -> None:
    [task] = await scene.running(scene.ask(LONG))
    await scene.post("/pause_generation", {"mode": "in_place"})
    stuck = asyncio.ensure_future(scene.post("/pause_generation"))
    await until(lambda: any(s.to_finish for s in scene.server.scheduler.running))
    going_on = asyncio.ensure_future(scene.post("/continue_generation"))
    await asyncio.sleep(0.1)
    assert not stuck.done()
    assert not going_on.done()
    for one in (stuck, going_on, task):
        one.cancel()


async def test_an_update_without_a_pause_waits_for_those_who_run_and_holds_the_new_ones_back(scene: Scene) -> None:
    [task] = await scene.running(scene.ask(100))
    updating = asyncio.ensure_future(scene.update(1, weight_version="v1"))
    assert scene.truth.error(0, PROMPT, await task) < CLOSE
    await updating
    assert scene.truth.error(1, PROMPT, await scene.ask()) < CLOSE


async def test_a_new_label_alone_aborts_all_and_the_aborted_carry_it(scene: Scene) -> None:
    [task] = await scene.running(scene.ask(LONG))
    response = await scene.post("/update_weight_version", {"new_version": "x"})
    assert response.json() == {"success": True, "message": "Weight version updated to x", "new_version": "x"}
    answer = await task
    assert (answer["meta_info"]["finish_reason"]["type"], answer["meta_info"]["weight_version"]) == ("abort", "x")


async def test_what_the_server_tells_of_itself(scene: Scene) -> None:
    await scene.update(1, weight_version="v1")
    told = (await scene.client.get("/model_info")).json()
    assert told["weight_version"] == "v1"
    assert told["model_path"] == told["served_model_name"] == str(scene.folder / "v1")
    assert (await scene.client.get("/server_info")).json()["weight_version"] == "default"
    assert [(await scene.client.get(f"/{path}")).status_code for path in ("weight_version", "get_weight_version")] == [
        404,
        404,
    ]


async def test_unknown_names_are_a_success_that_changes_nothing(scene: Scene) -> None:
    folder = scene.folder / "unknown"
    folder.mkdir()
    save_file({f"x.{name}": tensor for name, tensor in scene.truth.versions[1].items()}, folder / "x.safetensors")
    response = await scene.post("/update_weights_from_disk", {"model_path": str(folder), "weight_version": "v1"})
    assert response.json()["success"]
    answer = await scene.ask()
    assert answer["meta_info"]["weight_version"] == "v1"
    assert scene.truth.error(0, PROMPT, answer) < CLOSE


async def test_a_folder_without_weights_is_refused_and_one_with_a_wrong_shape_ends_the_server(scene: Scene) -> None:
    response = await scene.post("/update_weights_from_disk", {"model_path": str(scene.folder / "none")})
    assert (response.status_code, response.json()["success"]) == (400, False)
    assert "Failed to get weights iterator" in response.json()["message"]
    folder = scene.folder / "wrong"
    folder.mkdir()
    save_file({"model.norm.weight": torch.ones(3)}, folder / "model.safetensors")
    await scene.dies(scene.post("/update_weights_from_disk", {"model_path": str(folder)}))


async def test_pickled_tensors_are_loaded_and_a_wrong_shape_ends_the_server(scene: Scene) -> None:
    tensors = pickle.dumps(list(scene.truth.versions[2].items()))
    body = {"serialized_named_tensors": [base64.b64encode(tensors).decode()], "weight_version": "v2"}
    response = await scene.post("/update_weights_from_tensor", body)
    assert response.json() == {"success": True, "message": "Success Weight version updated to v2."}
    assert scene.truth.error(2, PROMPT, await scene.ask()) < CLOSE
    wrong = base64.b64encode(pickle.dumps([("model.norm.weight", torch.ones(3))])).decode()
    await scene.dies(scene.post("/update_weights_from_tensor", {"serialized_named_tensors": [wrong]}))


async def test_groups_for_broadcasts(scene: Scene) -> None:
    join = {"master_address": "127.0.0.1", "master_port": 1, "rank_offset": 1, "world_size": 2}
    assert (await scene.post("/init_weights_update_group", {"group_name": "x"})).status_code == 400
    refused = await scene.post("/init_weights_update_group", join | {"backend": "none"})
    assert (refused.status_code, refused.json()["success"]) == (400, False)
    gone = await scene.post("/destroy_weights_update_group", {"group_name": "x"})
    assert gone.json() == {"success": False, "message": "The group to be destroyed does not exist."}
    body: dict[str, list[str]] = {"names": [], "dtypes": [], "shapes": []}
    await scene.dies(scene.post("/update_weights_from_distributed", body))


async def test_memory_that_is_given_away_takes_the_weights_with_it(tiny_llama_folder: Path, tmp_path: Path) -> None:
    async with sglang_scene(tiny_llama_folder, tmp_path, Options(enable_memory_saver=True)) as scene:
        response = await scene.post("/release_memory_occupation", {"tags": ["kv_cache", "weights"]})
        assert (response.status_code, response.json()) == (200, None)
        await scene.post("/resume_memory_occupation", {"tags": ["weights"]})
        assert fits_none(scene, await scene.ask())
        await scene.update(1)
        await scene.post("/resume_memory_occupation", {"tags": ["kv_cache"]})
        assert scene.truth.error(1, PROMPT, await scene.ask()) < CLOSE
        await scene.dies(scene.post("/resume_memory_occupation", {"tags": ["kv_cache"]}))


async def test_memory_released_while_busy_ends_the_server(scene: Scene) -> None:
    await scene.running(scene.ask(LONG))
    await scene.dies(scene.post("/release_memory_occupation"))


@pytest.mark.parametrize(
    ("fault", "status", "label", "version"),
    [
        ({"refuse_updates": True}, 400, "default", 0),
        ({"ignore_updates": True}, 200, "v1", 0),
        ({"half_updates": True}, 200, "v1", None),
        ({}, 200, "v1", 1),
    ],
)
async def test_updates_that_go_wrong(
    scene: Scene, fault: dict[str, Any], status: int, label: str, version: int | None
) -> None:
    assert (await scene.post("/fake/faults", fault)).status_code == 200
    assert (await scene.update(1, weight_version="v1")).status_code == status
    answer = await scene.ask()
    assert answer["meta_info"]["weight_version"] == label
    assert fits_none(scene, answer) if version is None else scene.truth.error(version, PROMPT, answer) < CLOSE


async def test_other_faults(scene: Scene) -> None:
    faults = scene.server.faults
    faults.wrong_logprobs = -1
    assert len((await scene.ask(4))["meta_info"]["output_token_logprobs"]) == 3
    faults.wrong_logprobs, faults.wrong_label = 0, "other"
    assert (await scene.ask(4))["meta_info"]["weight_version"] == "other"
    faults.keep_cache = True
    assert (await scene.post("/flush_cache")).status_code == 200
    assert (await scene.ask(4))["meta_info"]["cached_tokens"] > 0
    faults.refuse_flush = True
    assert (await scene.post("/flush_cache?timeout=1")).status_code == 400
    faults.hang = True
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await scene.ask(1)
    faults.hang, faults.die_in_update = False, True
    await scene.dies(scene.update(1))


async def test_a_server_dies_in_the_middle_of_an_answer(scene: Scene) -> None:
    scene.server.faults.die_after_tokens = 5
    await scene.dies(scene.ask(LONG))
