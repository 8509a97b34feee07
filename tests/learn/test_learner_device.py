"""A learner on another device than the CPU: its numbers, its memory, and what it says where there is too little."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from emulated_gpu import DEVICE, Gpu, MixedDevicesError, NoDeviceForgotten
from made_groups import Maker, group_of, learner_of, load_tiny, simple_groups
from plain import difference

from loopwright.errors import LearnerError
from loopwright.learn.body import LeanBody, ModuleBody, body_of
from loopwright.learn.custom import custom_loss
from loopwright.learn.kl import KlTerm
from loopwright.learn.learner import TorchLearner
from loopwright.learn.meter import StepMeter
from loopwright.learn.sft import Example, SftTerm
from loopwright.models.live_memory import LiveMemory
from loopwright.models.load import LoadedModel, load_model
from loopwright.types import Group, KlKind

FREE: dict[str, Any] = {"lr": 1e-3, "max_grad_norm": None}


@pytest.fixture
def gpu() -> Iterator[Gpu]:
    with Gpu() as entered:
        yield entered


def on_gpu(folder: Path, dtype: str = "float32") -> LoadedModel:
    return load_model(str(folder), cache=folder, device=DEVICE, dtype=dtype)


def long_groups(tokens: int = 400) -> list[Group]:
    """Rows that are too long for a mask."""
    make = Maker(5)
    prompt = make.ids(tokens)
    return [group_of([(float(i), [make.chain(prompt, [20, 4, 9 + i])]) for i in range(3)])]


def gradients_of(learner: TorchLearner, groups: list[Group]) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
    """The metrics of a step, and the gradients that it used."""
    report = learner._step(groups)
    named = learner._model.named_parameters()
    return dict(report.metrics), {name: p.grad.detach().cpu().clone() for name, p in named}


@pytest.mark.parametrize("groups", [simple_groups(), long_groups()], ids=["short", "long"])
def test_a_step_gives_the_numbers_of_the_cpu(model_folder: Path, gpu: Gpu, groups: list[Group]) -> None:
    here, expected = gradients_of(learner_of(load_tiny(model_folder), **FREE), groups)
    learner = learner_of(on_gpu(model_folder), **FREE)
    before = gpu.operations
    with NoDeviceForgotten():
        there, found = gradients_of(learner, groups)
    assert gpu.operations > before + 100, "it was not computed there"
    assert difference(found, expected) < 1e-5
    assert there.keys() == here.keys()
    assert all(there[name] == pytest.approx(here[name], rel=1e-4, abs=1e-4) for name in here)


def everything(folder: Path, loaded: LoadedModel, device: str) -> dict[str, Any]:
    """All terms of a recipe at once: several mini-batches, a reference, examples, clipping and a temperature."""
    reference = load_model(str(folder), cache=folder, device=device)
    reference.model.requires_grad_(False)
    example = Example.of([5, 6, 7], [8, 9])
    return {
        "mini_batches": 2,
        "temperature": 0.7,
        "max_grad_norm": 0.1,
        "micro_batch_tokens": 30,
        "kl": KlTerm(KlKind.K3, 0.1, body_of(reference)),
        "sft": SftTerm((example, example), 0.5, 2, 0),
        "lr": 1e-3,
    }


def test_all_terms_of_a_step_work_there(llama_folder: Path, gpu: Gpu) -> None:
    groups = simple_groups(count=4)
    loaded = load_tiny(llama_folder)
    here = learner_of(loaded, **everything(llama_folder, loaded, "cpu"))._step(groups).metrics
    loaded = on_gpu(llama_folder)
    learner = learner_of(loaded, **everything(llama_folder, loaded, DEVICE))
    with NoDeviceForgotten():
        there = learner._step(groups).metrics
    # The second mini-batch comes after an update, which turns the last bits of small gradients into steps.
    assert all(there[name] == pytest.approx(here[name], rel=1e-2, abs=1e-2) for name in here)


def test_a_tensor_on_the_wrong_device_is_caught(llama_folder: Path, gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """The emulated device must notice what a GPU would refuse."""
    learner = learner_of(on_gpu(llama_folder))
    monkeypatch.setattr("loopwright.learn.execute.credit_of", _credit_on_the_cpu)
    with pytest.raises(MixedDevicesError, match="got tensors of gpu:0 and of cpu"):
        learner._step(simple_groups())


def _credit_on_the_cpu(rows: Any, samples: Any, device: torch.device) -> Any:
    from loopwright.learn.samples import credit_of

    return credit_of(rows, samples, torch.device("cpu"))


def test_a_forgotten_device_is_caught(llama_folder: Path, gpu: Gpu) -> None:
    def forgetful(batch: Any) -> torch.Tensor:
        factor = torch.ones(len(batch.logprobs)).to(batch.logprobs.device)
        losses: torch.Tensor = -factor * batch.logprobs
        return losses

    learner = learner_of(on_gpu(llama_folder), loss=forgetful)
    with NoDeviceForgotten(), pytest.raises(MixedDevicesError, match=r"torch.ones is called without a device"):
        learner._step(simple_groups())


def test_a_checkpoint_goes_from_device_to_device(llama_folder: Path, gpu: Gpu, tmp_path: Path) -> None:
    first = learner_of(on_gpu(llama_folder), **FREE)
    first._step(simple_groups())
    first._save(tmp_path)
    here, there = learner_of(load_tiny(llama_folder), **FREE), learner_of(on_gpu(llama_folder), **FREE)
    for learner in (here, there):
        learner._version = learner._load(tmp_path)
        learner._step(simple_groups(1))
    first._step(simple_groups(1))
    weights, again, on_cpu = (
        {name: p.detach().cpu() for name, p in learner._model.named_parameters()} for learner in (first, there, here)
    )
    assert all(torch.equal(weights[name], again[name]) for name in weights)
    assert difference(on_cpu, weights) < 1e-2


def test_half_precision_keeps_its_masters_there(llama_folder: Path, gpu: Gpu) -> None:
    learner = learner_of(on_gpu(llama_folder, "bfloat16"), **FREE)
    with NoDeviceForgotten():
        learner._step(long_groups())
    named = learner._weights.named.values()
    assert {(weight.dtype, str(weight.device)) for weight in named} == {(torch.float32, DEVICE)}


@pytest.mark.parametrize("lends", [True, False])
def test_memory_is_given_back_to_engines_on_the_same_device(
    llama_folder: Path, gpu: Gpu, monkeypatch: pytest.MonkeyPatch, lends: bool
) -> None:
    given_back: list[torch.device] = []
    monkeypatch.setattr("loopwright.learn.execute.give_back", given_back.append)
    learner = learner_of(on_gpu(llama_folder), lends_device=lends, **FREE)
    learner._step(simple_groups())
    kept = [weight.grad for weight in learner._weights.named.values() if weight.grad is not None]
    assert (bool(kept), [str(one) for one in given_back]) == (not lends, [DEVICE] * lends)


def test_which_path_a_learner_takes(llama_folder: Path, gpu: Gpu) -> None:
    by_hand = learner_of(load_tiny(llama_folder))
    assert isinstance(by_hand._executor.body, LeanBody)
    assert by_hand.describes == "float32 on cpu, by layers by hand"
    modules = learner_of(on_gpu(llama_folder))
    assert isinstance(modules._executor.body, ModuleBody)
    assert modules.describes.startswith("float32 on gpu:0, by the model's own modules (")
    half = learner_of(load_model(str(llama_folder), cache=llama_folder, dtype="bfloat16"))
    assert half.describes.startswith("bfloat16 on cpu, by the model's own modules (")


def test_a_learner_does_not_follow_the_engine(llama_folder: Path) -> None:
    from dataclasses import replace

    from loopwright.models.forward import ModuleForward

    loaded = load_tiny(llama_folder)
    assert isinstance(body_of(replace(loaded, forward=ModuleForward(loaded.model))), LeanBody)


@pytest.mark.parametrize("body", ["by hand", "modules"])
def test_checkpointed_activations_change_no_bit(model_folder: Path, body: str) -> None:
    found = []
    for checkpointed in (False, True):
        learner = learner_of(load_tiny(model_folder), checkpoint_activations=checkpointed, **FREE)
        if body == "modules":
            learner._executor.body = ModuleBody(learner._model, checkpointed=checkpointed)
        found.append(gradients_of(learner, [*simple_groups(), *long_groups()]))
    (metrics, plain), (again, checkpointed_ones) = found
    assert metrics == again
    assert all(torch.equal(plain[name], checkpointed_ones[name]) for name in plain)


def peak_of(folder: Path, **overrides: Any) -> int:
    """How many bytes a step takes at most, besides what was there before."""
    learner = learner_of(load_tiny(folder), **FREE, **overrides)
    memory = LiveMemory()
    with memory:
        learner._step(long_groups())
    return memory.peak


def test_checkpointed_activations_need_less_memory(deep_folder: Path) -> None:
    assert peak_of(deep_folder, checkpoint_activations=True) < 0.6 * peak_of(deep_folder)


@pytest.fixture(scope="module")
def deep_folder(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Path:
    from loopwright.testing.tiny import tiny_llama

    return tiny_llama(tmp_path_factory.mktemp("deep"), num_hidden_layers=8)


def test_too_little_memory_says_which_setting_halves_it(llama_folder: Path) -> None:
    groups = [group for seed in range(6) for group in simple_groups(seed)]
    with Gpu() as gpu:
        learner = learner_of(on_gpu(llama_folder), **FREE)
        gpu.limit = gpu.used + 200_000
        with pytest.raises(LearnerError, match=r"out of memory on gpu:0 in a micro-batch of \d+ tokens") as caught:
            learner._step(groups)
    assert "set learner.micro_batch_tokens to" in caught.value.remedy
    assert "learner.checkpoint_activations" in caught.value.remedy
    assert "never split" not in caught.value.remedy


def test_a_chain_that_is_too_long_is_not_halved_by_smaller_batches(llama_folder: Path) -> None:
    with Gpu() as gpu:
        learner = learner_of(on_gpu(llama_folder), checkpoint_activations=True, **FREE)
        gpu.limit = gpu.used + 200_000
        with pytest.raises(LearnerError, match="out of memory") as caught:
            learner._step(long_groups())
    assert "micro_batch_tokens" not in caught.value.remedy
    assert "a chain is never split" in caught.value.remedy


def test_memory_that_the_cpu_lacks_is_named_too(llama_folder: Path) -> None:
    def greedy(batch: Any) -> torch.Tensor:
        losses: torch.Tensor = torch.empty(1 << 50) + batch.logprobs
        return losses

    with pytest.raises(LearnerError, match=r"out of memory on the cpu \([\d.]+ GiB free now\) in a micro-batch of"):
        learner_of(load_tiny(llama_folder), loss=greedy)._step(simple_groups())


def test_a_loss_of_the_user_s_own_that_runs_out_of_memory_is_not_to_blame(llama_folder: Path) -> None:
    def greedy(batch: Any) -> torch.Tensor:
        losses: torch.Tensor = torch.empty(1 << 50) + batch.logprobs
        return losses

    with pytest.raises(LearnerError, match="out of memory on the cpu") as caught:
        learner_of(load_tiny(llama_folder), loss=custom_loss("mine.py:greedy", greedy, {}))._step(simple_groups())
    assert "learner.checkpoint_activations" in caught.value.remedy


def test_another_error_stays_what_it_is(llama_folder: Path) -> None:
    def broken(batch: Any) -> torch.Tensor:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match=r"^no$"):
        learner_of(load_tiny(llama_folder), loss=broken)._step(simple_groups())


def test_masters_that_find_no_memory_say_how_much_they_want(llama_folder: Path) -> None:
    with Gpu() as gpu:
        loaded = on_gpu(llama_folder, "bfloat16")
        gpu.limit = gpu.used + 50_000
        with pytest.raises(LearnerError, match=r"out of memory on gpu:0 for 0\.00 GiB of weights in float32") as caught:
            learner_of(loaded)
    assert "choose a smaller model" in caught.value.remedy


@pytest.mark.parametrize("place", ["clip_grads_with_norm_", "zeros_like", "update_copies"])
def test_everything_of_an_update_may_find_no_memory(
    llama_folder: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    def greedy(*_: object, **__: object) -> None:
        torch.empty(1 << 50)

    learner = learner_of(load_tiny(llama_folder), max_grad_norm=1e-6)
    learner._weights.forget_gradients()
    learner._executor._passes = 0
    if place != "zeros_like":
        for weight in learner._weights.named.values():
            weight.grad = torch.ones_like(weight)
    owner = {"clip_grads_with_norm_": "torch.nn.utils", "zeros_like": "torch"}
    monkeypatch.setattr(f"{owner.get(place, 'loopwright.learn.master.MasterWeights')}.{place}", greedy)
    with pytest.raises(LearnerError, match=r"out of memory on the cpu .* in the update of [\d,]+ parameters"):
        learner._executor._update(1, StepMeter())


def test_moments_of_a_checkpoint_may_find_no_memory(
    llama_folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    learner = learner_of(load_tiny(llama_folder))
    learner._step(simple_groups())
    learner._save(tmp_path)
    monkeypatch.setattr("loopwright.learn.state.load_state", lambda *_: torch.empty(1 << 50))
    with pytest.raises(LearnerError, match=r"out of memory on the cpu .* of a checkpoint's moments of AdamW"):
        learner._load(tmp_path)
