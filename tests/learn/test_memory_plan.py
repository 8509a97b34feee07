"""A step on a model without weights takes the memory that it takes with them."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from emulated_gpu import DEVICE, Gpu
from made_groups import Maker, group_of, learner_of
from transformers import AutoConfig, AutoModelForCausalLM, Qwen3MoeConfig

from loopwright.core.packing import Packed
from loopwright.learn import products
from loopwright.learn.attention import SharedPrefixPlan
from loopwright.learn.body import LeanBody, ModuleBody, body_of
from loopwright.learn.learner import TorchLearner
from loopwright.learn.memory_plan import StepShape, TrainedState, step_memory
from loopwright.learn.trained import WholeModel
from loopwright.models.live_memory import LiveMemory
from loopwright.models.load import load_model
from loopwright.models.shapes import META, model_shape
from loopwright.types import Group

NEAR = 0.16
"""Targets, credit and metrics are not planned."""


def groups_of(step: StepShape) -> list[Group]:
    make = Maker(3)
    return [
        group_of([(float(i * i), [make.chain(prompt, [step.answer])]) for i in range(step.samples)])
        for prompt in (make.ids(step.prompt) for _ in range(step.groups))
    ]


def second_step(learner: TorchLearner, groups: list[Group], memory: LiveMemory) -> int:
    """What the second step takes at most. The first one makes what stays."""
    learner._step(groups)
    learner._weights.forget_gradients()
    before = memory.used
    memory.peak = before
    learner._step(groups)
    return memory.peak - before


SHORT, LONG = StepShape(2, 3, 20, 9), StepShape(1, 3, 300, 40)


def compare(folder: Path, step: StepShape, limit: int, checkpointed: bool, dtype: str) -> None:
    settings: dict[str, Any] = {"micro_batch_tokens": limit, "checkpoint_activations": checkpointed}
    learner = learner_of(load_model(str(folder), cache=folder, dtype=dtype), **settings)
    memory = LiveMemory()
    with memory:
        found = second_step(learner, groups_of(step), memory)
    with model_shape(str(folder), cache=folder, dtype=dtype) as shape:
        planned = step_memory(
            shape, WholeModel(shape.loaded), step, micro_batch_tokens=limit, checkpointed=checkpointed
        )
    assert planned.peak == pytest.approx(found, rel=NEAR)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_plan_of_a_step_is_its_memory(model_folder: Path, dtype: str) -> None:
    compare(model_folder, LONG, 4096, checkpointed=False, dtype=dtype)


@pytest.mark.parametrize(
    ("step", "limit", "checkpointed"),
    [(SHORT, 4096, False), (SHORT, 40, False), (LONG, 4096, True), (StepShape(1, 4, 100, 100), 250, False)],
    ids=["short rows", "several micro-batches", "checkpointed", "a row that is cut"],
)
def test_settings_change_the_plan_as_they_change_the_step(
    llama_folder: Path, step: StepShape, limit: int, checkpointed: bool
) -> None:
    compare(llama_folder, step, limit, checkpointed, "float32")


def test_the_plan_holds_on_another_device(llama_folder: Path) -> None:
    with Gpu() as gpu:
        learner = learner_of(load_model(str(llama_folder), cache=llama_folder, device=DEVICE))
        found = second_step(learner, groups_of(LONG), gpu)
    with model_shape(str(llama_folder), cache=llama_folder, dtype="float32", device_type="cuda") as shape:
        planned = step_memory(shape, WholeModel(shape.loaded), LONG, micro_batch_tokens=4096, checkpointed=False)
    assert planned.peak == pytest.approx(found, rel=NEAR)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_state_is_what_a_learner_keeps(llama_folder: Path, dtype: str) -> None:
    learner = learner_of(load_model(str(llama_folder), cache=llama_folder, dtype=dtype))
    learner._step(groups_of(StepShape(1, 2, 9, 5)))
    with model_shape(str(llama_folder), cache=llama_folder, dtype=dtype) as shape:
        state = TrainedState.of(shape.parameters, shape.size)
    named = learner._weights.named.values()
    moments = [x for one in learner._optimizer.state.values() for name, x in one.items() if name != "step"]
    assert state.weights == sum(p.nbytes for p in learner._model.parameters())
    assert state.masters == (0 if dtype == "float32" else sum(weight.nbytes for weight in named))
    assert state.gradients == sum(weight.grad.nbytes for weight in named if weight.grad is not None)
    assert state.moments == sum(x.nbytes for x in moments)


def test_a_shape_has_no_weights_and_takes_the_learner_s_path(llama_folder: Path) -> None:
    shape_of = partial(model_shape, str(llama_folder), cache=llama_folder)
    (llama_folder / "model.safetensors").rename(llama_folder / "elsewhere")
    try:
        with shape_of(dtype="float32") as shape:
            assert {p.device.type for p in shape.parameters.values()} == {"cpu"}
            assert isinstance(body_of(shape.loaded), LeanBody)
        with shape_of(dtype="bfloat16") as shape:
            assert isinstance(body_of(shape.loaded), ModuleBody)
        with shape_of(dtype="float32", device_type="cuda") as shape:
            assert {p.device.type for p in shape.parameters.values()} == {META}
    finally:
        (llama_folder / "elsewhere").rename(llama_folder / "model.safetensors")


def test_memory_is_counted_while_it_lives() -> None:
    memory = LiveMemory()
    there = torch.zeros(100)
    with memory:
        first = torch.zeros(10)
        assert [x.numel() for x in (first.view(2, 5), there.view(10, 10), there.add_(1))] == [10, 100, 100]
        assert memory.used == 40
        second = first + 1
        del first
    assert (memory.used, memory.peak) == (40, 80)
    del second
    assert memory.used == 0


@pytest.mark.parametrize("tokens", [410, 333, 60], ids=["equal pieces", "a small last piece", "few pieces"])
@pytest.mark.parametrize("window", [None, 100])
def test_what_is_alike_is_planned_once(monkeypatch: pytest.MonkeyPatch, tokens: int, window: int | None) -> None:
    """A long row on another device than the CPU is computed in hundreds of pieces, of which the last are the
    largest."""
    monkeypatch.setattr(products, "QUERIES", 20)
    monkeypatch.setattr("loopwright.learn.layout.SHORT", 0)
    peaks, calls = [], []
    for device in (META, "no device"):
        monkeypatch.setattr(products, "META", device)
        q, k, v = (torch.empty(tokens, heads, 8, device=META) for heads in (4, 2, 2))
        memory = CallsCounted()
        with memory:
            plan = SharedPrefixPlan([Packed(tokens - 30, (0, 1), (15, 15))], torch.device(META))
            output, total = plan.compute(q, k, v, 0.3, window)
            plan.gradients(torch.empty_like(output), q, k, v, output, total, 0.3, window)
        peaks.append(memory.peak)
        calls.append(memory.calls)
    assert peaks[0] == peaks[1]
    assert window is not None or tokens == 60 or calls[0] < calls[1] / 2


class CallsCounted(LiveMemory):
    calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += 1
        return super().__torch_dispatch__(func, types, args, kwargs)


@pytest.fixture(scope="module")
def mixture_folder(tmp_path_factory: pytest.TempPathFactory, llama_folder: Path) -> Path:
    """A mixture of experts."""
    folder = tmp_path_factory.mktemp("mixture")
    shutil.copytree(llama_folder, folder, dirs_exist_ok=True)
    old = AutoConfig.from_pretrained(llama_folder)
    config = Qwen3MoeConfig(
        vocab_size=old.vocab_size,
        hidden_size=32,
        intermediate_size=64,
        moe_intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        num_experts=4,
        num_experts_per_tok=2,
        max_position_embeddings=1024,
        eos_token_id=old.eos_token_id,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_mixture_of_experts_is_planned_in_every_precision(mixture_folder: Path, dtype: str) -> None:
    compare(mixture_folder, LONG, 4096, checkpointed=False, dtype=dtype)
