"""Adapters train as peft and autograd would train them, and what cannot see them serves no model that has some."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from made_groups import Maker, laid_out, load_tiny, recipe, simple_groups, weights_of
from peft import PeftModel
from plain import eager_model, logprobs_of
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from loopwright.core.adapter_names import A, B
from loopwright.engines.torch.weights import EngineWeights
from loopwright.errors import CheckpointError, ConfigError, ModelError
from loopwright.learn.body import LeanBody, ModuleBody, body_of
from loopwright.learn.exporting import write_model
from loopwright.learn.kl import KlTerm
from loopwright.learn.learner import TorchLearner
from loopwright.learn.lora import AdaptedModel, AdapterUse
from loopwright.models.adapters import AdaptedParameters, AdapterShape, has_adapters
from loopwright.models.compute import ComputeThread
from loopwright.models.digest import model_digest
from loopwright.models.forward import ModuleForward
from loopwright.models.lean import LeanForward
from loopwright.models.load import LoadedModel, load_model
from loopwright.models.outline import outline_of
from loopwright.models.probe import Probe, run_probe
from loopwright.models.recognise import fastest_forward
from loopwright.testing.tiny import tiny_llama
from loopwright.types import KlKind

SHAPE = AdapterShape(rank=4, alpha=6)
SEED = 7


def adapted_of(loaded: LoadedModel, shape: AdapterShape = SHAPE, **use: bool) -> AdaptedModel:
    return AdaptedModel(loaded, shape, SEED, AdapterUse(**use))


def learner_of(loaded: LoadedModel, adapted: AdaptedModel, **overrides: Any) -> TorchLearner:
    return TorchLearner(loaded, recipe(lr=1e-2, **overrides), ComputeThread(), adapted)


def test_adapters_are_added_without_a_look_at_the_generators_of_gpus(
    tiny_llama_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch would save that of each GPU, which takes memory on all of them, and warn."""
    asked: list[object] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_rng_state", asked.append)
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: None)
    before = torch.get_rng_state()
    adapted_of(load_tiny(tiny_llama_folder))
    assert asked == []
    assert torch.equal(torch.get_rng_state(), before)


@torch.no_grad()
def shake(adapted: AdaptedModel, seed: int = 0) -> None:
    """Give every adapter an effect: at first B is 0."""
    generator = torch.Generator().manual_seed(seed)
    for matrix in adapted.parameters.values():
        matrix.add_(torch.randn(matrix.shape, generator=generator), alpha=0.1)


def copies(adapted: AdaptedModel) -> dict[str, torch.Tensor]:
    return {name: matrix.detach().clone() for name, matrix in adapted.parameters.items()}


def peft_of(folder: Path, adapter: Path) -> Any:
    """The same adapters by peft alone, on transformers' own model."""
    return PeftModel.from_pretrained(eager_model(folder), str(adapter), is_trainable=True)


def described(learner: TorchLearner, folder: Path) -> Path:
    folder.mkdir()
    learner._save(folder)
    return folder


def chain() -> Any:
    make = Maker(3)
    return make.chain(make.ids(9), [6])


def test_all_linear_layers_but_the_head_get_an_adapter_and_nothing_else_is_trained(model_folder: Path) -> None:
    loaded = load_tiny(model_folder)
    before = weights_of(loaded.model)
    adapted = adapted_of(loaded)
    ends = {name.split(".")[-3] for name in adapted.parameters}
    assert ends == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    learner = learner_of(loaded, adapted)
    for step in range(3):
        learner._step(simple_groups(step))
    assert all(torch.equal(parameter, before[name]) for name, parameter in loaded.model.named_parameters())
    trained = {id(weight) for options in learner._optimizer.param_groups for weight in options["params"]}
    assert trained == {id(matrix) for matrix in adapted.parameters.values()}


def test_after_one_step_every_b_has_moved_and_after_two_every_a(model_folder: Path) -> None:
    loaded = load_tiny(model_folder)
    adapted = adapted_of(loaded)
    learner = learner_of(loaded, adapted)
    start = copies(adapted)
    assert all(bool((matrix == 0).all()) == (".lora_B." in name) for name, matrix in start.items())
    learner._step(simple_groups(0))
    first = copies(adapted)
    moved = {name for name in start if not torch.equal(first[name], start[name])}
    assert moved == {name for name in start if ".lora_B." in name}, "A gets no gradient through a B of zeros"
    learner._step(simple_groups(1))
    assert all(not torch.equal(adapted.parameters[name], first[name]) for name in start)


@pytest.mark.parametrize("shape", [SHAPE, AdapterShape(3, 5, ("q_proj", "down_proj"), rslora=True)])
def test_logprobs_and_gradients_are_those_of_peft_and_autograd(
    model_folder: Path, tmp_path: Path, shape: AdapterShape
) -> None:
    loaded = load_tiny(model_folder)
    adapted = adapted_of(loaded, shape)
    shake(adapted)
    learner = learner_of(loaded, adapted)
    theirs = peft_of(model_folder, described(learner, tmp_path / "saved"))
    ((batch, (micro,)),) = laid_out(learner, simple_groups(0, count=1))
    tokens, _ = learner._executor._shares(micro, _meter())
    tokens.logprobs.sum().backward()

    chains = [sample.chain for sample in batch.samples]
    expected = torch.cat(logprobs_of(theirs, chains, 1.0))
    expected.sum().backward()
    assert torch.allclose(tokens.logprobs.sort().values, expected.sort().values, atol=1e-5)
    gradients = {name.replace(".default", ""): p.grad for name, p in theirs.named_parameters() if p.grad is not None}
    assert gradients.keys() == adapted.parameters.keys()
    for name, matrix in adapted.parameters.items():
        assert matrix.grad is not None
        apart = float((matrix.grad - gradients[name]).norm() / gradients[name].norm())
        assert apart < 1e-4, name


def _meter() -> Any:
    from loopwright.learn.meter import StepMeter

    return StepMeter()


def test_an_engine_beside_the_learner_keeps_its_fast_forward_and_its_own_targets(llama_folder: Path) -> None:
    loaded = load_tiny(llama_folder)
    parameters = dict(loaded.model.named_parameters())
    adapted = adapted_of(loaded, beside_engine=True)
    assert isinstance(loaded.forward, LeanForward)
    assert all(parameters[name].data_ptr() != weight.data_ptr() for name, weight in adapted.base.items())
    shared = dict(adapted._loaded.model.named_parameters())
    others = [name for name in parameters if name not in adapted.base]
    assert others
    assert all(shared[name] is parameters[name] for name in others), "no other weight is there twice"


def test_without_an_engine_beside_it_every_weight_is_shared(llama_folder: Path) -> None:
    loaded = load_tiny(llama_folder)
    adapted = adapted_of(loaded)
    parameters = dict(loaded.model.named_parameters())
    assert all(parameters[name].data_ptr() == weight.data_ptr() for name, weight in adapted.base.items())


@pytest.mark.parametrize("zero", [True, False], ids=["B=0", "B!=0"])
def test_paths_that_would_ignore_an_adapter_refuse_its_layers_by_type(llama_folder: Path, zero: bool) -> None:
    loaded = load_tiny(llama_folder)
    adapted = adapted_of(loaded)
    if not zero:
        shake(adapted)
    model = adapted._loaded.model
    assert has_adapters(model)
    assert not has_adapters(loaded.model)
    proof = run_probe(ModuleForward(model), Probe.of(model, 64))
    assert isinstance(fastest_forward(model, proof), ModuleForward)
    assert loaded.parts is not None
    tricked = LoadedModel(model, loaded.tokenizer, loaded.max_context, loaded.forward, loaded.parts)
    assert isinstance(body_of(tricked), ModuleBody), "also with the parts of the model without adapters"
    assert isinstance(body_of(loaded), LeanBody)


def test_the_reference_is_the_model_without_its_adapters(llama_folder: Path) -> None:
    loaded = load_tiny(llama_folder)
    adapted = adapted_of(loaded)
    term = KlTerm(KlKind.K3, 0.1, adapted.reference())
    learner = learner_of(loaded, adapted, kl=term)
    plain = TorchLearner(load_tiny(llama_folder), recipe(kl=term), ComputeThread())
    shake(adapted)
    ((_, (micro,)),) = laid_out(learner, simple_groups(0, count=1))
    with torch.no_grad():
        own = plain._executor._frozen_logprobs(plain._executor.body, micro.rows, micro.tensors)
        ours = learner._executor._frozen_logprobs(learner._executor.body, micro.rows, micro.tensors)
    assert micro.reference is not None
    assert torch.allclose(micro.reference, own, atol=1e-5)
    assert not torch.allclose(ours, own, atol=1e-2)
    assert all(matrix.requires_grad for matrix in adapted.parameters.values()), "they train on"


def test_first_numbers_depend_on_the_seed_and_leave_torchs_random_state_alone(llama_folder: Path) -> None:
    state = torch.get_rng_state()
    one = copies(adapted_of(load_tiny(llama_folder)))
    torch.rand(3)
    other = copies(adapted_of(load_tiny(llama_folder)))
    third = copies(AdaptedModel(load_tiny(llama_folder), SHAPE, SEED + 1))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert any(not torch.equal(one[name], third[name]) for name in one)
    torch.set_rng_state(state)
    adapted_of(load_tiny(llama_folder))
    assert torch.equal(torch.get_rng_state(), state)


def test_a_learner_that_resumes_goes_on_bit_for_bit_from_adapters_alone(model_folder: Path, tmp_path: Path) -> None:
    def make() -> tuple[TorchLearner, AdaptedModel]:
        loaded = load_tiny(model_folder)
        adapted = adapted_of(loaded)
        return learner_of(loaded, adapted), adapted

    straight, ours = make()
    for step in range(2):
        straight._step(simple_groups(step))
    folder = described(straight, tmp_path / "checkpoint")
    assert not (folder / "model.safetensors").exists()
    assert {file.suffix for file in folder.iterdir()} <= {".safetensors", ".json", ".jinja"}
    resumed, theirs = make()
    resumed._version = resumed._load(folder)
    for step in range(2, 4):
        assert resumed._step(simple_groups(step)) == straight._step(simple_groups(step))
        assert all(torch.equal(theirs.parameters[name], ours.parameters[name]) for name in ours.parameters)


def test_a_run_of_the_other_kind_is_refused_with_the_reason(llama_folder: Path, tmp_path: Path) -> None:
    loaded = load_tiny(llama_folder)
    whole = TorchLearner(load_tiny(llama_folder), recipe(), ComputeThread())
    adapters = learner_of(loaded, adapted_of(loaded))
    of_whole, of_adapters = described(whole, tmp_path / "whole"), described(adapters, tmp_path / "adapters")
    with pytest.raises(CheckpointError, match=r"holds adapters \(learner.lora\), and this run trains all weights"):
        whole._load(of_adapters)
    with pytest.raises(CheckpointError, match="holds a whole model, and this run trains adapters"):
        adapters._load(of_whole)


@pytest.mark.parametrize(
    ("other", "differing"),
    [
        (AdapterShape(4, 8), "alpha 6 instead of 8"),
        (AdapterShape(5, 6), "rank 4 instead of 5"),
        (AdapterShape(4, 6, rslora=True), "rslora False instead of True"),
        (AdapterShape(4, 6, ("q_proj",)), "targets down_proj, .* instead of q_proj"),
    ],
)
def test_a_checkpoint_of_other_adapters_is_refused_and_says_what_differs(
    llama_folder: Path, tmp_path: Path, other: AdapterShape, differing: str
) -> None:
    loaded = load_tiny(llama_folder)
    folder = described(learner_of(loaded, adapted_of(loaded)), tmp_path / "saved")
    again = load_tiny(llama_folder)
    with pytest.raises(CheckpointError, match=rf"other adapters than learner\.lora describes: {differing}") as caught:
        learner_of(again, adapted_of(again, other))._load(folder)
    assert "start a new run" in caught.value.remedy
    assert "loopwright export RUN --merged" in caught.value.remedy


def change_weights(folder: Path) -> None:
    """Put a model of the same shape in place of the one in `folder`."""
    weights = load_file(folder / "model.safetensors")
    save_file({name: 2 * weight for name, weight in weights.items()}, folder / "model.safetensors", {"format": "pt"})


def test_adapters_do_not_go_on_beside_another_base(llama_folder: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(llama_folder, tmp_path / "model"))

    def learner() -> TorchLearner:
        loaded = load_tiny(model)
        return learner_of(loaded, adapted_of(loaded))

    saved = described(learner(), tmp_path / "saved")
    learner()._load(saved)
    change_weights(model)
    with pytest.raises(CheckpointError, match="were trained on another model than") as caught:
        learner()._load(saved)
    with pytest.raises(ModelError, match=r"is not the model that the adapter in .* was trained on"):
        load_model(str(saved), cache=tmp_path)
    with pytest.raises(ModelError, match=r"is not the model that the adapter in .* was trained on"):
        write_model(saved, tmp_path / "export", "float32")
    assert "adapter_base.json" in caught.value.remedy
    (saved / "adapter_base.json").unlink()
    learner()._load(saved)
    load_model(str(saved), cache=tmp_path)


def test_adapters_on_an_adapter_do_not_go_on_when_that_has_changed(llama_folder: Path, tmp_path: Path) -> None:
    loaded = load_tiny(llama_folder)
    first = described(learner_of(loaded, adapted_of(loaded)), tmp_path / "first")
    again = load_model(str(first), cache=tmp_path)
    second = described(learner_of(again, adapted_of(again)), tmp_path / "second")
    load_model(str(second), cache=tmp_path)
    tensors = load_file(first / "adapter_model.safetensors")
    save_file({name: tensor + 0.1 for name, tensor in tensors.items()}, first / "adapter_model.safetensors")
    with pytest.raises(ModelError, match=r"is not the model that the adapter in .*second was trained on"):
        load_model(str(second), cache=tmp_path)
    changed = load_model(str(first), cache=tmp_path)
    with pytest.raises(CheckpointError, match="were trained on another model than"):
        learner_of(changed, adapted_of(changed))._load(second)


def test_the_digest_of_the_base_is_computed_once(
    llama_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Path] = []

    def counted(folder: Path) -> str | None:
        asked.append(folder)
        return model_digest(folder)

    monkeypatch.setattr("loopwright.models.adapter_base.model_digest", counted)
    loaded = load_tiny(llama_folder)
    learner = learner_of(loaded, adapted_of(loaded))
    for number in range(3):
        described(learner, tmp_path / str(number))
    assert asked == [llama_folder]


@pytest.mark.parametrize(
    ("targets", "reason"),
    [
        (("lm_head",), "which is the head"),
        (("embed_tokens",), "which is the embeddings"),
        (("q_proj", "query"), "matches no layer"),
        (("mlp",), "which is no linear layer"),
    ],
)
def test_targets_that_cannot_have_an_adapter_are_refused(
    llama_folder: Path, targets: tuple[str, ...], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        adapted_of(load_tiny(llama_folder), AdapterShape(4, 8, targets))


def test_a_target_may_be_one_layer_of_the_model(llama_folder: Path) -> None:
    adapted = adapted_of(load_tiny(llama_folder), AdapterShape(4, 8, ("layers.1.self_attn.q_proj",)))
    (target,) = adapted.base
    assert target == "model.layers.1.self_attn.q_proj.weight"


def logits_of(model: Any) -> torch.Tensor:
    with torch.no_grad():
        result: torch.Tensor = model(torch.arange(1, 20)[None]).logits
    return result


def test_checkpoint_and_export_say_the_same_to_peft_transformers_and_us(model_folder: Path, tmp_path: Path) -> None:
    loaded = load_tiny(model_folder)
    adapted = adapted_of(loaded, beside_engine=True)
    shake(adapted)
    checkpoint = described(learner_of(loaded, adapted), tmp_path / "checkpoint")
    export = tmp_path / "export"
    export.mkdir()
    adapted.export(export)
    theirs = logits_of(peft_of(model_folder, checkpoint))
    base = logits_of(eager_model(model_folder))
    assert not torch.allclose(theirs, base, atol=1e-2)
    whole = AutoModelForCausalLM.from_pretrained(export, attn_implementation="eager")
    assert torch.allclose(logits_of(whole), theirs, atol=1e-5)
    merged = load_model(str(checkpoint), cache=tmp_path).model
    exported = load_model(str(export), cache=tmp_path).model
    assert all(
        torch.equal(one, other) for one, other in zip(merged.parameters(), exported.parameters(), strict=True)
    ), "merged on load, or before: the same bits"
    merged.set_attn_implementation("eager")
    assert torch.allclose(logits_of(merged), theirs, atol=1e-5)


def test_a_base_whose_generation_settings_transformers_refuses_can_be_exported(
    llama_folder: Path, tmp_path: Path
) -> None:
    base = Path(shutil.copytree(llama_folder, tmp_path / "base"))
    (base / "generation_config.json").write_text(json.dumps({"do_sample": False, "temperature": 0.6}))
    loaded = load_tiny(base)
    adapted = adapted_of(loaded)
    checkpoint, export, written = described(learner_of(loaded, adapted), tmp_path / "c"), tmp_path / "e", tmp_path / "w"
    export.mkdir()
    adapted.export(export)
    write_model(checkpoint, written, "float32")
    for folder in (export, written):
        assert json.loads((folder / "generation_config.json").read_text())["temperature"] == 0.6
        assert load_file(folder / "model.safetensors").keys() == load_file(base / "model.safetensors").keys()


def test_adapters_that_are_trained_on_an_adapter_name_it_as_their_base(llama_folder: Path, tmp_path: Path) -> None:
    loaded = load_tiny(llama_folder)
    adapted = adapted_of(loaded)
    shake(adapted)
    first = described(learner_of(loaded, adapted), tmp_path / "first")
    again = load_model(str(first), cache=tmp_path)
    further = adapted_of(again)
    shake(further, 1)
    second = described(learner_of(again, further), tmp_path / "second")
    export = tmp_path / "export"
    export.mkdir()
    further.export(export)
    merged, exported = (load_model(str(folder), cache=tmp_path).model for folder in (second, export))
    assert all(torch.equal(one, other) for one, other in zip(merged.parameters(), exported.parameters(), strict=True))


def test_a_driver_of_ranks_refuses_an_adapter_and_says_what_to_do(llama_folder: Path, tmp_path: Path) -> None:
    loaded = load_tiny(llama_folder)
    adapter = described(learner_of(loaded, adapted_of(loaded)), tmp_path / "adapter")
    with pytest.raises(ModelError, match="is an adapter, and ranks load whole models") as caught:
        outline_of(str(adapter), cache=tmp_path)
    assert "loopwright export RUN --merged" in caught.value.remedy


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"use_dora": True}, "use_dora is True"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"rank_pattern": {"q_proj": 2}}, "rank_pattern"),
        ({"base_model_name_or_path": None}, "does not say which model"),
        ({"base_model_name_or_path": "/no/such/folder"}, "cannot load the config of model"),
        ({"r": None}, "cannot be read"),
    ],
)
def test_an_adapter_that_is_more_or_less_than_one_is_refused_on_load(
    llama_folder: Path, tmp_path: Path, change: Mapping[str, Any], reason: str
) -> None:
    loaded = load_tiny(llama_folder)
    folder = described(learner_of(loaded, adapted_of(loaded)), tmp_path / "saved")
    told = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(told | change))
    with pytest.raises(ModelError, match=reason):
        load_model(str(folder), cache=tmp_path)


@pytest.mark.parametrize(("known", "reason"), [(True, "is not the model that"), (False, "does not fit its base model")])
def test_an_adapter_of_another_model_is_refused_on_load(
    llama_folder: Path, tmp_path: Path, known: bool, reason: str
) -> None:
    loaded = load_tiny(llama_folder)
    folder = described(learner_of(loaded, adapted_of(loaded)), tmp_path / "saved")
    other = tiny_llama(tmp_path / "other", intermediate_size=48)
    told = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(told | {"base_model_name_or_path": str(other)}))
    if not known:
        (folder / "adapter_base.json").unlink()
    with pytest.raises(ModelError, match=reason):
        load_model(str(folder), cache=tmp_path)


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 8), st.integers(1, 64), st.booleans(), st.integers(0, 10_000))
def test_whole_weights_with_the_adapter_are_what_the_learner_computes(
    llama_folder: Path, rank: int, alpha: int, rslora: bool, seed: int
) -> None:
    loaded = _kept(llama_folder)
    adapted = adapted_of(loaded, AdapterShape(rank, alpha, rslora=rslora))
    shake(adapted, seed)
    with torch.no_grad():
        for name, merged in adapted._whole_weights():
            if (target := name.removesuffix(".weight")) in adapted._adapters.layers:
                layer = adapted._adapters.layers[target]
                expected = layer.base_layer.weight + layer.get_delta_weight("default")
                assert torch.allclose(merged, expected, atol=1e-5, rtol=1e-5)


_LOADED: dict[Path, LoadedModel] = {}


def _kept(folder: Path) -> LoadedModel:
    return _LOADED.setdefault(folder, load_tiny(folder))


class Taken(dict[str, torch.Tensor]):
    """A `WeightSink` that keeps everything."""

    def begin(self, tensors: Mapping[str, Any]) -> None:
        self.announced = list(tensors)

    def take(self, bucket: Mapping[str, torch.Tensor]) -> None:
        self |= {name: tensor.clone() for name, tensor in bucket.items()}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_engine_that_merges_has_the_bits_of_one_that_gets_whole_weights(model_folder: Path, dtype: str) -> None:
    def published(**use: bool) -> tuple[LoadedModel, Taken]:
        loaded, taken = load_model(str(model_folder), cache=model_folder, dtype=dtype), Taken()
        adapted = adapted_of(loaded, SHAPE, **use)
        shake(adapted)
        adapted.publish(taken)
        assert list(taken) == taken.announced
        return loaded, taken

    loaded, adapters = published()
    _, whole = published(merged_for_engines=True)
    assert all(name.endswith((A, B)) for name in adapters)
    EngineWeights(loaded.model).change(adapters)()
    merged = weights_of(loaded.model)
    assert merged.keys() == whole.keys()
    assert all(torch.equal(merged[name], whole[name]) for name in merged)


@torch.no_grad()
def probed(loaded: LoadedModel, probe: Probe) -> torch.Tensor:
    logits = run_probe(loaded.forward, probe).logits.float()
    return logits.log_softmax(-1)


@pytest.mark.parametrize(("dtype", "close"), [("float32", 1e-4), ("bfloat16", 0.25)])
def test_a_trained_model_is_the_same_to_learner_and_engine(model_folder: Path, dtype: str, close: float) -> None:
    loaded = load_model(str(model_folder), cache=model_folder, dtype=dtype)
    probe = Probe.of(loaded.model, 64)
    before = probed(loaded, probe)
    adapted, taken = adapted_of(loaded, beside_engine=True), Taken()
    learner = learner_of(loaded, adapted)
    assert all(matrix.dtype == torch.float32 for matrix in adapted.parameters.values()), "also in half precision"
    shake(adapted)
    for step in range(2):
        learner._step(simple_groups(step))
    adapted.publish(taken)
    AdaptedParameters(dict(loaded.model.named_parameters()), adapted.base).merge(taken)
    after = probed(loaded, probe)
    theirs = probed(adapted._loaded, probe)
    assert float((after - before).abs().max()) > 2 * close, "the adapters have an effect"
    assert float((after - theirs).abs().max()) < close


def test_layers_that_are_computed_again_give_the_same_gradients(model_folder: Path) -> None:
    found = []
    for checkpointed in (False, True):
        loaded = load_tiny(model_folder)
        adapted = adapted_of(loaded)
        shake(adapted)
        learner = learner_of(loaded, adapted, checkpoint_activations=checkpointed)
        learner._step(simple_groups(0))
        found.append({name: matrix.grad for name, matrix in adapted.parameters.items()})
    plain, again = found
    for name, gradient in plain.items():
        other = again[name]
        assert gradient is not None
        assert other is not None
        assert torch.allclose(gradient, other, atol=1e-6), name
