"""The adapters in a model: peft's layers, their names in checkpoints and for engines, and their first numbers.

Nothing here needs the whole of a tensor, so ranks use it too.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import torch
from peft import LoraConfig as PeftConfig
from peft import get_peft_model
from peft.tuners.lora import Linear as AdaptedLinear
from peft.tuners.lora import LoraLayer
from torch import nn

from loopwright.core.adapter_names import A, B
from loopwright.core.seeds import derive_seed
from loopwright.errors import CheckpointError, ConfigError
from loopwright.learn.attention import SharedPrefixPlan
from loopwright.learn.body import Body
from loopwright.learn.samples import Tensors
from loopwright.models.adapter_base import base_digest
from loopwright.models.adapter_files import BASE, CONFIG, FOR_PEFT, PREFIX, base_digest_in, shape_told
from loopwright.models.adapters import AdapterShape
from loopwright.models.linear import Linear, replace_linears

T = TypeVar("T")

NAME = "default"
"""What peft calls the only adapter."""
INSERTED = ".base_layer."
"""What peft puts into the name of a weight that has an adapter."""
TARGETS_REMEDY = (
    "name the linear layers of its attention as learner.lora.targets, such as [q_proj, k_proj, v_proj, o_proj]; the "
    "experts of a mixture have no adapters"
)


class ModelAdapters:
    """The adapters in `model`, around which `peft_model` is. `scale` is that of all of them. `base` is the model's
    source."""

    def __init__(self, model: Any, peft_model: Any, scale: float, base: str) -> None:
        self._model = model
        self._peft = peft_model
        # Now and not at the first checkpoint: what cannot be written must not cost a train step.
        self._config = _config_text(peft_model.peft_config[NAME])
        self._base, self._base_digest = base, base_digest(base)
        self.scale = scale
        self.layers: Mapping[str, Any] = {
            name: layer for name, layer in model.named_modules() if isinstance(layer, LoraLayer)
        }

    @property
    def parameters(self) -> Mapping[str, torch.Tensor]:
        """The matrices by the names that peft gives them in its files."""
        return {
            f"{PREFIX}{name}{end}": matrix
            for name, layer in self.layers.items()
            for end, matrix in zip((A, B), matrices_of(layer), strict=True)
        }

    @property
    def frozen(self) -> Mapping[str, torch.Tensor]:
        """All other parameters, by the names that they have in the model without adapters."""
        own = {id(matrix) for layer in self.layers.values() for matrix in matrices_of(layer)}
        named = self._model.named_parameters()
        return {name.replace(INSERTED, "."): parameter for name, parameter in named if id(parameter) not in own}

    def modules_of(self, parts: Sequence[nn.Module]) -> Iterator[list[nn.Module]]:
        """The modules of the matrices in each of these parts, without those of an earlier part."""
        found: set[nn.Module] = set()
        for part in parts:
            layers = [module for module in part.modules() if isinstance(module, LoraLayer) and module not in found]
            found.update(layers)
            if layers:
                yield [matrix for layer in layers for matrix in (layer.lora_A[NAME], layer.lora_B[NAME])]

    def start(self, seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Each matrix with the numbers that it begins with: as peft's, but they depend on nothing but the seed and the
        layer's name."""
        for name, layer in self.layers.items():
            a, b = matrices_of(layer)
            bound = 1 / math.sqrt(a.shape[1])
            random = torch.Generator().manual_seed(derive_seed(seed, name))
            yield a, torch.empty(a.shape).uniform_(-bound, bound, generator=random)
            yield b, torch.zeros(b.shape)

    def for_engines(self, whole: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
        """The matrices as engines get them: the scale is in B. `whole` gives the whole of one."""
        for name, layer in self.layers.items():
            a, b = matrices_of(layer)
            yield name + A, whole(a)
            yield name + B, whole(b) * self.scale

    def without(self, body: Body) -> Body:
        """A body of this model that leaves the adapters out."""
        return _WithoutAdapters(self._peft, body)

    def check(self, folder: Path) -> None:
        """Raises CheckpointError if the checkpoint in `folder` has no adapters, or others."""
        try:
            told = shape_told(json.loads((folder / CONFIG).read_text()))
            trained_on = base_digest_in(folder)
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
        ours = shape_told(json.loads(self._config))
        if told != ours:
            differing = [
                f"{name} {_short(theirs)} instead of {_short(own)}"
                for name, theirs in asdict(told).items()
                if theirs != (own := getattr(ours, name))
            ]
            raise CheckpointError(
                f"checkpoint {folder} holds other adapters than learner.lora describes: {', '.join(differing)}",
                remedy="resume with the learner.lora that the run was started with; or start a new run from the "
                "trained model: loopwright export RUN --merged --out DIR, and name that folder as model.path",
            )
        if None not in (trained_on, self._base_digest) and trained_on != self._base_digest:
            raise CheckpointError(
                f"the adapters in checkpoint {folder} were trained on another model than {self._base}: its weights or "
                "its config have changed, or model.path has",
                remedy="resume with the model that the run was started with, or start over with --fresh; if it is the "
                f"same model in other files, delete {BASE} in that folder",
            )

    def describe(self, folder: Path) -> None:
        """Write what peft needs to load the checkpoint, and which model it was trained on."""
        (folder / CONFIG).write_text(self._config)
        if self._base_digest is not None:
            (folder / BASE).write_text(json.dumps({"digest": self._base_digest}))


def _short(setting: Any) -> str:
    if isinstance(setting, tuple):
        return ", ".join(setting)
    return f"{setting:g}" if isinstance(setting, float) else str(setting)


def _config_text(config: PeftConfig) -> str:
    """The adapter's config as peft writes it, the same in every process: sets have no order."""
    told = {name: sorted(value) if isinstance(value, set) else value for name, value in config.to_dict().items()}
    return json.dumps(told | FOR_PEFT, indent=2)


class _WithoutAdapters:
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


def add_adapters(model: Any, shape: AdapterShape, base: str) -> ModelAdapters:
    """Freeze a model and put adapters into its layers, whose numbers are those of `start` or of a checkpoint. `base` is
    its source. The norms must be ours already: behind an adapter they are not found."""
    targets = _targets(model, shape.targets)
    _linears_of_torch(model)
    config = PeftConfig(
        r=shape.rank,
        lora_alpha=shape.alpha,
        target_modules=list(targets),
        use_rslora=shape.rslora,
        lora_dropout=0.0,
        bias="none",
    )
    try:
        # peft draws numbers that are replaced, on the CPU. By default the generators of all GPUs would be saved.
        with torch.random.fork_rng(devices=[]):
            adapted = get_peft_model(model, config)
    except ValueError as error:
        raise ConfigError(f"peft cannot put adapters into this model: {error}", remedy=TARGETS_REMEDY) from error
    # peft has set it to what the model is loaded from, which may be a path that another folder does not know.
    adapted.peft_config[NAME].base_model_name_or_path = _lasting(base)
    _check_layers(model, adapted.peft_config[NAME])
    if model.device.type == "cpu":
        replace_linears(model)
    return ModelAdapters(model, adapted.eval(), shape.scale, base)


def _check_layers(model: nn.Module, config: PeftConfig) -> None:
    """Raises ConfigError if peft has put in more than adapters of linear layers: it takes the names of some layers for
    those of a mixture's experts, whose weights are one tensor."""
    for name, layer in model.named_modules():
        if isinstance(layer, LoraLayer) and type(layer) is not AdaptedLinear:
            raise ConfigError(
                f"peft would train {name} of this model, which is no linear layer, in place of layers of its targets "
                f"({', '.join(sorted(config.target_modules))})",
                remedy=TARGETS_REMEDY,
            )
    if config.target_parameters:
        raise ConfigError(
            f"peft would train {min(config.target_parameters)} of this model, which is no linear layer",
            remedy=TARGETS_REMEDY,
        )


def _lasting(source: str) -> str:
    """A folder's absolute path: a checkpoint is read from other folders than the one that the run was started in."""
    return str(Path(source).resolve()) if Path(source).is_dir() else source


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
    if not able:
        raise ConfigError(
            f"no layer of a {model.config.model_type} model can have an adapter: it has no linear layers but the head",
            remedy="remove learner.lora, which trains all weights; or choose a model with linear layers",
        )
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


def matrices_of(layer: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """A and B."""
    return layer.lora_A[NAME].weight, layer.lora_B[NAME].weight
