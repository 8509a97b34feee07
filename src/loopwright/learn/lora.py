"""Trains adapters by peft beside the frozen weights of a model (LoRA).

The learner computes with a model object of its own, which shares all parameters with the loaded one, and has adapters
in its layers. An engine in this process goes on with the loaded model, and its fast forward pass: the weights that have
adapters are its own then, and are filled with W + s·B·A at each update. Engines elsewhere get the adapters and do the
same, or get whole weights if they cannot.

No layer by hand and no lean forward knows of adapters: they refuse peft's layers by type.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from peft import LoraConfig as PeftConfig
from peft import get_peft_model
from peft.tuners.lora import LoraLayer
from torch import nn

from loopwright.core.adapter_names import WEIGHT, A, B
from loopwright.errors import CheckpointError, ConfigError
from loopwright.learn.attention import SharedPrefixPlan
from loopwright.learn.body import Body, body_of
from loopwright.learn.publishing import Named, stream_tensors, stream_weights
from loopwright.learn.samples import Tensors
from loopwright.models.adapter_files import CONFIG, PREFIX, TENSORS, shape_told
from loopwright.models.adapters import AdapterShape, merged
from loopwright.models.forward import ModuleForward
from loopwright.models.linear import Linear, replace_linears
from loopwright.models.load import LoadedModel
from loopwright.models.weight_files import spec_of
from loopwright.ports import WeightSink

T = TypeVar("T")

NAME = "default"
"""What peft calls the only adapter."""


@dataclass(frozen=True, slots=True)
class AdapterUse:
    """Who samples with the adapters. `beside_engine`: an engine of this process computes with the loaded model.
    `merged_for_engines`: engines elsewhere cannot merge adapters, and get whole weights."""

    beside_engine: bool = False
    merged_for_engines: bool = False


class AdaptedModel:
    """A `Trained` whose parameters are the adapters of `loaded`. Their first numbers depend on `seed` only."""

    file = TENSORS

    def __init__(self, loaded: LoadedModel, shape: AdapterShape, seed: int, use: AdapterUse | None = None) -> None:
        use = use or AdapterUse()
        self._plain = loaded
        self._shape = shape
        self._sends_whole_weights = use.merged_for_engines
        twin = _twin(loaded.model)
        self._peft = add_adapters(twin, shape, seed)
        self._loaded = replace(loaded, model=twin, forward=ModuleForward(twin), parts=None)
        self._layers = {name: layer for name, layer in twin.named_modules() if isinstance(layer, LoraLayer)}
        if use.beside_engine:
            for layer in self._layers.values():
                own = layer.base_layer.weight.detach().clone()
                layer.base_layer.weight = nn.Parameter(own, requires_grad=False)
        self.parameters: Mapping[str, torch.Tensor] = {
            f"{PREFIX}{name}{end}": matrix
            for name, layer in self._layers.items()
            for end, matrix in zip((A, B), _matrices(layer), strict=True)
        }

    @property
    def base(self) -> Mapping[str, torch.Tensor]:
        """The weights that have adapters, without them, by the names that they have in the loaded model."""
        return {name + WEIGHT: layer.base_layer.weight.detach() for name, layer in self._layers.items()}

    @property
    def plain(self) -> LoadedModel:
        """The loaded model, without adapters."""
        return self._plain

    def body(self, *, checkpointed: bool) -> Body:
        return body_of(self._loaded, checkpointed=checkpointed)

    def reference(self) -> Body:
        """The model without its adapters: what it was before training."""
        return _WithoutAdapters(self._peft, body_of(self._loaded))

    def publish(self, sink: WeightSink) -> None:
        if not self._sends_whole_weights:
            stream_weights(self._adapters(), sink)
            return
        specs = {name: spec_of(parameter) for name, parameter in self._plain.model.named_parameters()}
        stream_tensors(specs, self._whole_weights(), sink)

    def check(self, folder: Path) -> None:
        try:
            told = shape_told(json.loads((folder / CONFIG).read_text()))
        except FileNotFoundError:
            raise CheckpointError(
                f"checkpoint {folder} holds a whole model, and this run trains adapters (learner.lora)",
                remedy="resume without learner.lora; or start a new run from that model: name the folder as model.path",
            ) from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"checkpoint {folder} cannot be read: {error}",
                remedy="delete that folder to continue from the one before it, or start over with --fresh",
            ) from error
        ours = shape_told(self._peft_config())
        if told != ours:
            raise CheckpointError(
                f"checkpoint {folder} holds other adapters than learner.lora describes: {told} instead of {ours}",
                remedy="resume with the learner.lora that the run was started with, or start over with --fresh",
            )

    def describe(self, folder: Path) -> None:
        # With these files peft can load the checkpoint.
        (folder / CONFIG).write_text(json.dumps(self._peft_config(), indent=2))
        self._plain.tokenizer.save_pretrained(folder)

    def export(self, folder: Path) -> None:
        model = self._plain.model
        whole = dict(self._whole_weights())
        # Tied weights have one parameter and several names.
        state = {name: whole.get(name, tensor) for name, tensor in model.state_dict().items()}
        model.save_pretrained(folder, state_dict=state)
        self._plain.tokenizer.save_pretrained(folder)

    @torch.no_grad()
    def _adapters(self) -> Mapping[str, torch.Tensor]:
        """The adapters as engines get them: the scale is in B."""
        named: dict[str, torch.Tensor] = {}
        for name, layer in self._layers.items():
            a, b = _matrices(layer)
            named |= {name + A: a.detach(), name + B: b.detach() * self._shape.scale}
        return named

    @torch.no_grad()
    def _whole_weights(self) -> Iterator[Named]:
        adapters, base = self._adapters(), self.base
        for name, parameter in self._plain.model.named_parameters():
            if (weight := base.get(name)) is None:
                yield name, parameter.detach()
            else:
                target = name.removesuffix(WEIGHT)
                yield name, merged(weight, adapters[target + A], adapters[target + B])

    def _peft_config(self) -> dict[str, Any]:
        config: dict[str, Any] = self._peft.peft_config[NAME].to_dict()
        return config | {"target_modules": sorted(config["target_modules"]), "inference_mode": True}


class _WithoutAdapters:
    """A `Body` that leaves the adapters out."""

    def __init__(self, peft_model: Any, body: Body) -> None:
        self._peft = peft_model
        self._body = body
        self.name = f"{body.name}, without adapters"

    @property
    def head(self) -> torch.Tensor:
        return self._body.head

    def hidden(self, data: Tensors, plan: SharedPrefixPlan) -> torch.Tensor:
        with self._peft.disable_adapter():
            return self._body.hidden(data, plan)

    def run(self, work: Callable[[], T]) -> T:
        return self._body.run(work)


def add_adapters(model: Any, shape: AdapterShape, seed: int) -> Any:
    """Freeze a model and put adapters into its layers. Gives peft's model around it. The norms must be ours already:
    behind an adapter they are not found."""
    targets = _targets(model, shape.targets)
    _linears_of_torch(model)
    config = PeftConfig(
        r=shape.rank,
        lora_alpha=shape.alpha,
        target_modules=list(targets),
        use_rslora=shape.rslora,
        lora_dropout=0.0,
        bias="none",
        base_model_name_or_path=_lasting(model.name_or_path),
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        adapted = get_peft_model(model, config)
    if model.device.type == "cpu":
        replace_linears(model)
    return adapted.eval()


def _lasting(source: str) -> str:
    """A folder's absolute path: a checkpoint is read from other folders than the one that the run was started in."""
    return str(Path(source).resolve()) if Path(source).is_dir() else source


def _twin(model: Any) -> Any:
    """A model of its own modules, with the same parameters."""
    return copy.deepcopy(model, {id(parameter): parameter for parameter in model.parameters()})


def _linears_of_torch(model: nn.Module) -> None:
    """Undo `replace_linears`: peft knows torch's layers only."""
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if type(child) is Linear:
                outputs, inputs = child.weight.shape
                plain = nn.Linear(inputs, outputs, bias=child.bias is not None, device="meta")
                plain.weight, plain.bias = child.weight, child.bias  # type: ignore[assignment]
                setattr(parent, name, plain)


def _targets(model: Any, wanted: Sequence[str] | None) -> tuple[str, ...]:
    """The ends of the names of the layers that get an adapter. Raises ConfigError if one matches nothing, or what
    cannot have one."""
    outside = {id(model.get_input_embeddings()): "the embeddings", id(model.get_output_embeddings()): "the head"}
    modules = {name: module for name, module in model.named_modules() if name}
    products = [name for name, module in modules.items() if isinstance(module, nn.Linear | Linear)]
    able = [name for name in products if id(modules[name]) not in outside]
    ends = tuple(sorted({name.rpartition(".")[2] for name in able}))
    if wanted is None:
        # Two names of one end: then the whole names tell them apart.
        return ends if len(able) == len([n for n in products if n.rpartition(".")[2] in ends]) else tuple(able)
    for target in wanted:
        matching = [name for name in modules if name == target or name.endswith(f".{target}")]
        for name in matching:
            if (what := outside.get(id(modules[name]))) is not None:
                raise ConfigError(
                    f"learner.lora.targets names {target!r}, which is {what} of the model",
                    remedy="remove it: only linear layers inside the model get adapters. "
                    "A head is often the embeddings too, and would not be one weight with them any more",
                )
        if not matching or not set(matching) <= set(able):
            why = (
                "matches no layer of the model" if not matching else f"matches {matching[0]}, which is no linear layer"
            )
            raise ConfigError(
                f"learner.lora.targets names {target!r}, which {why}",
                remedy=f"choose among {', '.join(ends)}; or leave targets out, for all of them",
            )
    return tuple(sorted(wanted))


def _matrices(layer: Any) -> tuple[nn.Parameter, nn.Parameter]:
    return layer.lora_A[NAME].weight, layer.lora_B[NAME].weight
