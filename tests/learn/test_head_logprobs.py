"""The head and the table of embeddings: values, entropies and gradients are those of the plain formula."""

from __future__ import annotations

import pytest
import torch
from emulated_gpu import DEVICE, Gpu
from torch import nn

from loopwright.learn import logprobs as module
from loopwright.learn.embedding import embed
from loopwright.learn.logprobs import head_logprobs

TOKENS, DIM, VOCABULARY = 150, 8, 300


def made(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("kept", ["all", "some", "none"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("has_gradient", [True, False])
def test_chunks_kept_or_computed_again_give_the_plain_result(
    monkeypatch: pytest.MonkeyPatch, kept: str, temperature: float, has_gradient: bool
) -> None:
    """Three chunks of at most 64 rows; rows may be asked for twice, or not at all, in any order."""
    monkeypatch.setattr(module, "CHUNK", 1)
    monkeypatch.setattr(module, "KEPT", {"all": 2**27, "some": 64 * VOCABULARY, "none": 0}[kept])
    hidden, head = made(1, TOKENS, DIM).requires_grad_(), nn.Parameter(made(2, VOCABULARY, DIM))
    before = made(3, VOCABULARY, DIM)
    head.grad = before.clone() if has_gradient else None
    generator = torch.Generator().manual_seed(4)
    rows = torch.randint(TOKENS, (200,), generator=generator)
    targets = torch.randint(VOCABULARY, (200,), generator=generator)
    grad = made(5, 200)

    logprobs, entropy = head_logprobs(hidden, head, rows, targets, temperature)
    logprobs.backward(grad)

    x, w = hidden.detach().double().requires_grad_(), head.detach().double().requires_grad_()
    all_logprobs = (x @ w.t() / temperature).log_softmax(-1)
    all_logprobs[rows, targets].backward(grad.double())
    assert torch.allclose(logprobs.double(), all_logprobs[rows, targets], atol=1e-5)
    assert torch.allclose(entropy.double(), -(all_logprobs.exp() * all_logprobs).sum(-1), atol=1e-5)
    assert not entropy.requires_grad
    assert w.grad is not None
    for ours, exact in ((hidden.grad, x.grad), (head.grad, w.grad + before * has_gradient)):
        assert ours is not None
        assert exact is not None
        assert torch.allclose(ours.double(), exact, atol=1e-4)


def test_half_precision_sums_the_head_s_gradient_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is rounded once, not once for each of 40 chunks."""
    monkeypatch.setattr(module, "CHUNK", 1)
    tokens = 40 * 64
    hidden, head = made(1, tokens, DIM).bfloat16().requires_grad_(), nn.Parameter(made(2, VOCABULARY, DIM).bfloat16())
    at = torch.arange(tokens)
    head_logprobs(hidden, head, at, at % VOCABULARY)[0].sum().backward()

    x, w = hidden.detach().double(), head.detach().double().requires_grad_()
    (x @ w.t()).log_softmax(-1)[at, at % VOCABULARY].sum().backward()
    assert head.grad is not None
    assert w.grad is not None
    assert head.grad.dtype == torch.bfloat16
    assert (head.grad.double() - w.grad).norm() < 3e-3 * w.grad.norm()


def test_a_chunk_is_larger_where_no_cache_has_to_hold_it() -> None:
    head = torch.empty(150_000, 1, device="meta")
    assert (module._span_size(head, "cpu"), module._span_size(head, "cuda")) == (64, 447)


def test_nothing_is_kept_that_nobody_needs() -> None:
    """The softmax weights are half a gigabyte: gone after backward, and never kept without gradients."""
    hidden, head = made(1, 4, DIM).requires_grad_(), nn.Parameter(made(2, VOCABULARY, DIM))
    loss = head_logprobs(hidden, head, torch.arange(4), torch.arange(4))[0].sum()
    kept = loss.grad_fn.next_functions[0][0].kept  # type: ignore[union-attr]
    assert [weights for weights in kept if weights is not None]
    loss.backward()
    assert not kept
    with torch.no_grad():
        assert not head_logprobs(hidden, head, torch.arange(4), torch.arange(4))[0].requires_grad


def test_a_frozen_head_gets_no_gradient() -> None:
    hidden, head = made(1, 4, DIM).requires_grad_(), made(2, VOCABULARY, DIM)
    head_logprobs(hidden, head, torch.arange(4), torch.arange(4))[0].sum().backward()
    assert head.grad is None
    assert hidden.grad is not None


@pytest.mark.parametrize("padding", [None, 3])
def test_the_table_gets_the_gradient_that_torch_would_give_it(padding: int | None) -> None:
    mine = nn.Embedding(12, DIM, padding_idx=padding)
    theirs = nn.Embedding(12, DIM, padding_idx=padding)
    theirs.load_state_dict(mine.state_dict())
    ids = torch.tensor([[1, 3, 3, 7, 1]])
    mine.weight.grad = torch.ones(12, DIM)
    for _ in range(2):
        for embedded in (embed(mine, ids), theirs(ids)):
            assert torch.equal(embedded, theirs.weight[ids])
            embedded.backward(made(6, 1, 5, DIM))
    assert theirs.weight.grad is not None
    assert torch.allclose(mine.weight.grad, theirs.weight.grad + 1)


@pytest.mark.parametrize("device", ["cpu", DEVICE])
def test_half_precision_sums_the_gradients_of_equal_ids_in_float32(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a GPU would not: it rounds after each of them, which this stands for."""
    monkeypatch.setattr(torch.Tensor, "index_add_", _rounding_each)
    grad = made(6, 800, DIM).bfloat16() + 1
    ids = (torch.arange(800) * 7) % 2 + 3
    with Gpu():
        table = nn.Embedding(VOCABULARY, DIM, dtype=torch.bfloat16).to(device)
        embed(table, ids.to(device)).backward(grad.to(device))
        assert table.weight.grad is not None
        found = table.weight.grad.cpu()
    exact = torch.zeros(VOCABULARY, DIM, dtype=torch.float64)
    for one, row in zip(ids.tolist(), grad.double(), strict=True):
        exact[one] += row
    assert (found.double() - exact).norm() < 3e-3 * exact.norm()
    assert int((found != 0).any(dim=1).sum()) == 2


def test_ids_that_are_all_ignored_have_no_gradient() -> None:
    """A rank without work computes one token with id 0, which some models pad with."""
    table = nn.Embedding(VOCABULARY, DIM, padding_idx=0, dtype=torch.bfloat16)
    embed(table, torch.tensor([0])).backward(torch.ones(1, DIM, dtype=torch.bfloat16))
    assert table.weight.grad is not None
    assert not table.weight.grad.any()


def _rounding_each(self: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    for place, row in zip(index.tolist(), source.unbind(dim), strict=True):
        self[place] += row
    return self


def test_a_table_of_another_kind_is_left_to_itself() -> None:
    class Scaled(nn.Embedding):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(ids)

    table = Scaled(5, 2)
    assert torch.equal(embed(table, torch.tensor([4])), 2 * table.weight[4:5])
