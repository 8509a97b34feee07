"""The head and the table of embeddings: values, entropies and gradients are those of the plain formula."""

from __future__ import annotations

import pytest
import torch
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


def test_a_table_of_another_kind_is_left_to_itself() -> None:
    class Scaled(nn.Embedding):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(ids)

    table = Scaled(5, 2)
    assert torch.equal(embed(table, torch.tensor([4])), 2 * table.weight[4:5])
