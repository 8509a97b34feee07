"""Logprobs of given tokens, computed from hidden states without two copies of all logits.

We do this ourselves because autograd, going through the head's product, `gather` and `logsumexp`, makes several
[tokens, vocabulary] tensors that nobody needs, and a new tensor for the head's gradient before it is added. Here the
head is applied chunk by chunk. A chunk's softmax weights are kept for backward as long as all kept ones fit into
`KEPT`; others are computed again. So memory is bounded, no matter how many tokens are trained.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from loopwright.learn.accumulate import ProductSum
from loopwright.learn.master import HALF
from loopwright.models.device import CPU

CHUNK = 2**23
"""How many logits a CPU computes at a time: few enough to stay in a cache, enough for the full speed of the product."""

ROWS = 512
"""How many rows of logits a CPU computes at a time, at most. With a small vocabulary they stay in the core's own
cache."""

CHUNK_ELSEWHERE = 2**26
"""How many logits another device computes at a time. Each chunk reads the whole head, so there should be few."""

KEPT = 2**27
"""How many softmax weights are kept for backward in total: half a gigabyte."""


class _Softmax(NamedTuple):
    """exp(logits - the row's maximum) for some rows, and the sum of each row."""

    weights: torch.Tensor
    total: torch.Tensor


class _HeadLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        head: torch.Tensor,
        rows: torch.Tensor,
        targets: torch.Tensor,
        temperature: float,
        room: int,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        entropy = torch.empty(len(hidden), dtype=torch.float32, device=hidden.device)
        logprobs = torch.empty(len(targets), dtype=torch.float32, device=hidden.device)
        kept: list[_Softmax | None] = []
        for span in _spans(hidden, head):
            shifted, softmax = _apply(hidden[span], head, temperature)
            mine, local = _targets_of(span, rows)
            log_total = softmax.total.log()
            logprobs[mine] = shifted[local, targets[mine]] - log_total[local]
            entropy[span] = log_total - torch.linalg.vecdot(softmax.weights, shifted) / softmax.total
            room -= softmax.weights.numel()
            kept.append(softmax if room >= 0 else None)
        ctx.save_for_backward(hidden, rows, targets)
        ctx.head, ctx.temperature, ctx.kept = head, temperature, kept
        ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None, None, None, None]:
        hidden, rows, targets = ctx.saved_tensors
        head, grad = ctx.head, grads[0] / ctx.temperature
        by_row = torch.zeros(len(hidden), dtype=grad.dtype, device=grad.device).index_add_(0, rows, grad)
        dhidden = torch.empty_like(hidden)
        kept: list[_Softmax | None] = ctx.kept
        of_head = ProductSum(head)
        for span in _spans(hidden, head):
            # Pop each chunk, so that it is freed after its use. Otherwise whoever holds the loss would keep them all.
            weights, total = kept.pop(0) or _apply(hidden[span], head, ctx.temperature)[1]
            mine, local = _targets_of(span, rows)
            # Done in place: the weights are used once, and are the largest tensors of the step.
            dlogits = weights.mul_((-by_row[span] / total)[:, None])
            dlogits.index_put_((local, targets[mine]), grad[mine], accumulate=True)
            dlogits = dlogits.to(head.dtype)
            dhidden[span] = dlogits @ head
            of_head.add(dlogits.t(), hidden[span])
        of_head.finish()
        return dhidden, None, None, None, None, None


def _spans(hidden: torch.Tensor, head: torch.Tensor) -> Iterator[slice]:
    size = _span_size(head, head.device.type)
    return (slice(start, min(start + size, len(hidden))) for start in range(0, len(hidden), size))


def _span_size(head: torch.Tensor, device_type: str) -> int:
    if device_type == CPU:
        return min(ROWS, max(64, CHUNK // len(head)))
    return max(64, CHUNK_ELSEWHERE // len(head))


def _apply(hidden: torch.Tensor, head: torch.Tensor, temperature: float) -> tuple[torch.Tensor, _Softmax]:
    """Logits minus the maximum of their row, and their softmax."""
    logits = (hidden @ head.t()).float()
    if temperature != 1:
        logits /= temperature
    shifted = logits.sub_(logits.amax(dim=-1, keepdim=True))
    weights = shifted.exp()
    return shifted, _Softmax(weights, weights.sum(dim=-1))


def _targets_of(span: slice, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The targets whose logits are in the span: their indices, and their rows within the span."""
    mine = ((rows >= span.start) & (rows < span.stop)).nonzero().squeeze(1)
    return mine, rows[mine] - span.start


def head_memory(positions: int, head: torch.Tensor, device_type: str) -> int:
    """The bytes that the logits of so many positions take at most, while they are trained: the softmax weights that are
    kept, and those of one piece with their logits, which are rounded to the head's precision first. In half precision,
    the sum of the head's gradient is float32. `head` may have no device."""
    piece = _span_size(head, device_type) * len(head)
    kept = min(positions * len(head), KEPT)
    summed = head.numel() * (4 + head.element_size()) if head.requires_grad and head.dtype in HALF else 0
    return 4 * kept + (4 + head.element_size()) * min(piece, positions * len(head)) + summed


def head_logprobs(
    hidden: torch.Tensor, head: torch.Tensor, rows: torch.Tensor, targets: torch.Tensor, temperature: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """`log_softmax(hidden @ head.T / temperature)[rows, targets]`, and the entropy of every row (without gradient).

    The head's gradient is added to `head.grad` during backward, which may run only once.
    """
    room = KEPT if torch.is_grad_enabled() else 0
    result: tuple[torch.Tensor, torch.Tensor] = _HeadLogprobs.apply(hidden, head, rows, targets, temperature, room)  # type: ignore[no-untyped-call]
    return result
