"""A transformers model with real keys and values, kept token by token.

A prefix that was cached under other weights is used as it is, as in SGLang. So the logprobs after it are those of no
version of the weights, and whoever compares them with the learner's sees it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, DynamicCache

Tensors = Iterable[tuple[str, torch.Tensor]]
LOADING = Lock()
"""transformers changes functions of torch while it loads a model. Two threads that load would leave them changed."""


@dataclass(frozen=True, slots=True)
class Cell:
    """The keys and values of one token in all layers, and the number of the weights that computed them."""

    tensors: torch.Tensor
    weights: int


class KvContext:
    """The keys and values of a sequence, beginning with cells of a cached prefix."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self.cache = DynamicCache()
        self.weights = [cell.weights for cell in cells]
        """Which weights computed each token."""
        if cells:
            whole = torch.stack([cell.tensors for cell in cells], dim=-2)
            for layer, (keys, values) in enumerate(whole):
                self.cache.update(keys[None], values[None], layer)

    def cells(self) -> list[Cell]:
        whole = torch.stack([torch.stack((layer.keys[0], layer.values[0])) for layer in self.cache.layers])
        return [Cell(whole[..., i, :].clone(), weights) for i, weights in enumerate(self.weights)]


class KvModel:
    """The model of a folder. `weights` counts the updates that it has got."""

    def __init__(self, folder: str) -> None:
        with LOADING:
            self._model: Any = AutoModelForCausalLM.from_pretrained(
                folder, dtype=torch.float32, attn_implementation="sdpa", local_files_only=True
            ).eval()
        self.config = self._model.config
        self.weights = 0

    @torch.no_grad()
    def extend(self, context: KvContext, ids: Sequence[int]) -> torch.Tensor:
        """Append `ids` to the context. Returns the logits after each of them, [tokens, vocabulary]."""
        logits: torch.Tensor = self._model(torch.tensor([list(ids)]), past_key_values=context.cache).logits[0]
        context.weights += [self.weights] * len(ids)
        return logits

    @torch.no_grad()
    def put(self, tensors: Tensors, *, direct: bool = False) -> None:
        """Copy the tensors into the parameters. An unknown name is skipped, as SGLang's loaders do, unless `direct`; a
        wrong shape raises after the tensors before it were copied."""
        self.weights += 1
        parameters = dict(self._model.named_parameters(remove_duplicate=False))
        for name, tensor in tensors:
            if name not in parameters and not direct:
                continue
            if parameters[name].shape != tensor.shape:
                raise ValueError(f"{name} has shape {list(tensor.shape)}, not {list(parameters[name].shape)}")
            parameters[name].copy_(tensor)

    @torch.no_grad()
    def spoil(self) -> None:
        """Overwrite the weights, as when the memory that held them was given away."""
        self.weights += 1
        for parameter in self._model.parameters():
            parameter.fill_(0.01)

    def tensor(self, name: str) -> torch.Tensor | None:
        return dict(self._model.named_parameters(remove_duplicate=False)).get(name)

    def named(self) -> list[tuple[str, torch.Tensor]]:
        return [(name, parameter.detach()) for name, parameter in self._model.named_parameters()]


def tensors_in(folder: str) -> list[Path]:
    """The weight files of a folder; a config is not needed beside them."""
    files = sorted(Path(folder).glob("*.safetensors")) if Path(folder).is_dir() else []
    if not files:
        raise RuntimeError(f"Cannot find any model weights with `{folder}`")
    return files


def read_tensors(files: Iterable[Path]) -> Tensors:
    for file in files:
        yield from load_file(file).items()
