"""The machine's limit: every linear layer of the model as a plain product, at the numbers of rows that occur.

Forward it is the fastest of four: `torch.mm`, the same turned round, MKL's own with weights that were packed
beforehand, at no cost here, and our own with weights in panels, if there is a compiler. Each layer has weights of its
own, as in the model, so that they are read from memory and not from a cache that happens to hold the only one.
Attention, norms, activations, the embedding and the optimiser count nothing: no real step can reach the limit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from benchmarks.workers.port import Port
from loopwright.models.linear import Linear
from loopwright.models.native.library import Library, library
from loopwright.models.native.panels import Panels

SHORTEST = 0.3
"""A product is repeated for at least so many seconds."""


class Buffers:
    """Activations and gradients of a linear layer; all layers of one shape share them."""

    def __init__(self, outputs: int, inputs: int, *, rows: int) -> None:
        self.x, self.y = torch.randn(rows, inputs), torch.randn(rows, outputs)
        self.to_x, self.to_y = torch.empty(rows, inputs), torch.empty(rows, outputs)
        self.to_weight = torch.empty(outputs, inputs)


class Products:
    """The matrix products of a stack of layers for a number of rows, without allocations of our own."""

    def __init__(self, weights: Sequence[torch.Tensor], rows: int) -> None:
        buffers = {weight.shape: Buffers(*weight.shape, rows=rows) for weight in weights}
        self._rows = rows
        self._layers = [(weight, buffers[weight.shape]) for weight in weights]

    def ways_forward(self) -> list[Callable[[], None]]:
        has_mkl = torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
        ways = [self.forward, self._turned_round(), *([self._prepacked()] if has_mkl else [])]
        compiled = library()
        return [*ways, self._by_panels(compiled)] if isinstance(compiled, Library) else ways

    def forward(self) -> None:
        for weight, buffer in self._layers:
            torch.mm(buffer.x, weight.t(), out=buffer.to_y)

    def _turned_round(self) -> Callable[[], None]:
        shapes = {weight.shape: buffer for weight, buffer in self._layers}
        columns = {shape: (one.x.t().contiguous(), one.to_y.t().contiguous()) for shape, one in shapes.items()}

        def run() -> None:
            for weight, _ in self._layers:
                x, to_y = columns[weight.shape]
                torch.mm(weight, x, out=to_y)

        return run

    def _prepacked(self) -> Callable[[], None]:
        packs = [torch.ops.mkl._mkl_reorder_linear_weight(weight, self._rows) for weight, _ in self._layers]

        def run() -> None:
            for (weight, buffer), packed in zip(self._layers, packs, strict=True):
                torch.ops.mkl._mkl_linear(buffer.x, packed, weight, None, self._rows)

        return run

    def _by_panels(self, compiled: Library) -> Callable[[], None]:
        panels = [Panels([Linear(nn.Parameter(weight), None)], compiled) for weight, _ in self._layers]

        def run() -> None:
            for one, (_, buffer) in zip(panels, self._layers, strict=True):
                one.into(buffer.to_y, buffer.x)

        return run

    def forward_and_backward(self) -> None:
        self.forward()
        for weight, buffer in self._layers:
            torch.mm(buffer.y, weight, out=buffer.to_x)
            torch.mm(buffer.y.t(), buffer.x, out=buffer.to_weight)


def main(port: Port) -> None:
    spec = port.spec
    torch.set_num_threads(spec["threads"])
    torch.set_grad_enabled(False)
    stacks = {
        name: [torch.randn(outputs, inputs) for inputs, outputs in spec["layers"][name]] for name in spec["layers"]
    }
    port.ready("torch")
    for watch in port.rounds():
        seconds = {
            phase: {stack: _seconds(stacks[stack], rows, trains=phase == "train") for stack, rows in counts.items()}
            for phase, counts in spec["rows"].items()
        }
        port.answer(watch.stop(), phases=seconds)


def _seconds(weights: Sequence[torch.Tensor], rows: int, *, trains: bool) -> float:
    """Of one pass."""
    products = Products(weights, rows)
    return min(map(_mean_seconds, [products.forward_and_backward] if trains else products.ways_forward()))


def _mean_seconds(run: Callable[[], Any]) -> float:
    run()
    started, passes = time.perf_counter(), 0
    while (spent := time.perf_counter() - started) < SHORTEST:
        run()
        passes += 1
    return spent / passes


if __name__ == "__main__":
    main(Port())
