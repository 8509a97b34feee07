"""What a learner trains of a model, and what others get of it: all of its parameters, or adapters beside them
(`learn.lora`)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch

from loopwright.errors import CheckpointError
from loopwright.learn import state
from loopwright.learn.body import Body, body_of
from loopwright.learn.publishing import stream_weights
from loopwright.models.adapter_files import TENSORS
from loopwright.models.load import LoadedModel
from loopwright.ports import WeightSink


class Trained(Protocol):
    """All of it is called in the thread that computes."""

    @property
    def parameters(self) -> Mapping[str, torch.Tensor]:
        """What the optimiser changes, by the names in checkpoints."""
        ...

    @property
    def file(self) -> str:
        """The file of a checkpoint that holds them."""
        ...

    def body(self, *, checkpointed: bool) -> Body: ...

    def publish(self, sink: WeightSink) -> None:
        """Give what engines need to `sink`."""
        ...

    def check(self, folder: Path) -> None:
        """Raises CheckpointError if the checkpoint in `folder` is of another kind."""
        ...

    def describe(self, folder: Path) -> None:
        """Write beside the weights what other tools need to read them."""
        ...

    def export(self, folder: Path) -> None:
        """Write the trained model and its tokenizer, as `save_pretrained` does."""
        ...


def refuse_adapters(folder: Path) -> None:
    """Raises CheckpointError if the checkpoint in `folder` holds adapters."""
    if (folder / TENSORS).exists():
        raise CheckpointError(
            f"checkpoint {folder} holds adapters (learner.lora), and this run trains all weights",
            remedy="resume with the learner.lora that the run was started with; or start a new run from the "
            "trained model: loopwright export RUN --merged --out DIR, and name that folder as model.path",
        )


class WholeModel:
    """All parameters of a model."""

    file = state.MODEL

    def __init__(self, loaded: LoadedModel) -> None:
        self._loaded = loaded
        self._model: Any = loaded.model
        self.parameters: Mapping[str, torch.Tensor] = dict(self._model.named_parameters())

    def body(self, *, checkpointed: bool) -> Body:
        return body_of(self._loaded, checkpointed=checkpointed)

    def publish(self, sink: WeightSink) -> None:
        stream_weights(self.parameters, sink)

    def check(self, folder: Path) -> None:
        refuse_adapters(folder)

    def describe(self, folder: Path) -> None:
        # With the tokenizer the checkpoint is also a model folder that transformers can load.
        state.describe_model(self._model, folder)
        self._loaded.tokenizer.save_pretrained(folder)

    def export(self, folder: Path) -> None:
        state.save_model(self._model, folder)
        self._loaded.tokenizer.save_pretrained(folder)
