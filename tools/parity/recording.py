"""What the three recorders share: the inputs as padded float64 tensors, and the file that a peer's values go to."""

from __future__ import annotations

import json
import platform
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import torch

from tools.parity.inputs import DATA

INPUTS = json.loads((DATA / "inputs.json").read_text())
SETTINGS = INPUTS["settings"]


@dataclass(frozen=True)
class Padded:
    """Sequences as rows of one width, with a mask of 1 on their tokens. `logprobs` takes a gradient."""

    lengths: list[int]
    mask: torch.Tensor
    advantages: torch.Tensor
    logprobs: torch.Tensor
    old: torch.Tensor
    sampled: torch.Tensor
    reference: torch.Tensor


def padded(batch: str) -> Padded:
    sequences = INPUTS["tokens"][batch]
    lengths = [len(s["logprobs"]) for s in sequences]
    streams = {key: rows([s[key] for s in sequences]) for key in ("logprobs", "old", "sampled", "reference")}
    streams["logprobs"].requires_grad_()
    advantages = torch.tensor([s["advantage"] for s in sequences], dtype=torch.float64)
    return Padded(lengths, rows([[1.0] * n for n in lengths]), advantages, **streams)


def rows(ragged: list[list[float]]) -> torch.Tensor:
    width = max(map(len, ragged))
    return torch.tensor([[*row, *[0.0] * (width - len(row))] for row in ragged], dtype=torch.float64)


def ragged(values: torch.Tensor, lengths: list[int]) -> list[list[float]]:
    return [row[:n] for row, n in zip(values.tolist(), lengths, strict=True)]


def differentiated(loss: torch.Tensor, data: Padded) -> dict[str, Any]:
    """A loss with its gradient, token by token."""
    (gradient,) = torch.autograd.grad(loss, data.logprobs)
    return {"loss": loss.item(), "gradient": ragged(gradient, data.lengths)}


def save(peer: str, **values: Any) -> None:
    versions = {"python": platform.python_version(), "torch": torch.__version__, peer: version(peer)}
    text = json.dumps({"versions": versions, **values}, separators=(",", ":"))
    (DATA / f"{peer}.json").write_text(text + "\n")
