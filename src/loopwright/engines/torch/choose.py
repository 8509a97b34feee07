"""Choosing the next tokens.

One uniform number per token, drawn from (seed, position), picks from the cumulative distribution: first a block of the
vocabulary by the blocks' sums, then an id inside it. A random number per vocabulary entry would cost many times the
rest of the choice (64 x 49,152: 94 ms for the exponentials alone), and a cumulative sum over all of it four times as
much. What a request samples depends neither on its batch nor on having been interrupted.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np
import numpy.typing as npt
import torch

from loopwright.errors import EngineError
from loopwright.types import Sampling

BLOCK = 256
SMALL = 8 * BLOCK
"""A vocabulary that is searched as a whole: the calls would cost more than they save."""


def choose(logits: torch.Tensor, samplings: Seq[Sampling], positions: Seq[int]) -> tuple[list[int], list[float]]:
    """The next id of each row of `logits` [rows, vocabulary], and its logprob (T8)."""
    greedy = [s.temperature == 0 for s in samplings]
    scaled = logits.float()
    if any(s.temperature not in (0, 1) for s in samplings):
        scaled = scaled / torch.tensor([s.temperature or 1.0 for s in samplings])[:, None]
    # One kernel, which goes over a row while it is in the cache.
    weights = scaled.softmax(dim=-1)
    if weights[:, 0].isnan().any():
        raise EngineError(
            "the model's logits are not numbers",
            remedy="its weights are damaged, or training diverged: lower learner.lr",
        )
    if all(greedy):
        ids = scaled.argmax(dim=-1)
    else:
        ids = _draw(_truncated(weights, samplings), samplings, positions)
        if any(greedy):
            ids = torch.where(torch.tensor(greedy), scaled.argmax(dim=-1), ids)
    logprobs = weights.gather(1, ids[:, None]).squeeze(1).log_()
    return ids.tolist(), logprobs.tolist()


def _draw(weights: torch.Tensor, samplings: Seq[Sampling], positions: Seq[int]) -> torch.Tensor:
    uniform = torch.from_numpy(uniforms([s.seed for s in samplings], positions)).to(weights.device)
    if weights.shape[1] <= SMALL:
        cumulative = weights.cumsum(dim=-1, dtype=torch.double)
        return _passed(cumulative, uniform * cumulative[:, -1])
    sums = _block_sums(weights)
    cumulative = sums.cumsum(dim=-1)
    target = uniform * cumulative[:, -1]
    block = _passed(cumulative, target)
    rest = target - (cumulative - sums).gather(1, block[:, None]).squeeze(1)
    columns = block[:, None] * BLOCK + torch.arange(BLOCK)
    inside = weights.gather(1, columns.clamp(max=weights.shape[1] - 1)).double()
    inside[columns >= weights.shape[1]] = 0
    return block * BLOCK + _passed(inside.cumsum(dim=-1), rest)


def _block_sums(weights: torch.Tensor) -> torch.Tensor:
    """The sum of every BLOCK columns, [rows, blocks], in double: rounding must not favour any block."""
    whole = weights.shape[1] // BLOCK * BLOCK
    sums = weights[:, :whole].view(len(weights), -1, BLOCK).sum(dim=-1)
    rest = weights[:, whole:].sum(dim=-1, keepdim=True)
    return torch.cat([sums, rest], dim=1).double()


def _passed(cumulative: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The column in which the cumulative sum passes `target`."""
    # Strictly below the total: otherwise rounding could pick a column behind the last one that has any weight.
    target = torch.minimum(target, torch.nextafter(cumulative[:, -1], torch.zeros((), dtype=torch.double)))
    return torch.searchsorted(cumulative, target[:, None], right=True).squeeze(1)


def uniforms(seeds: Seq[int], positions: Seq[int]) -> npt.NDArray[np.float64]:
    """A number in [0, 1) for each (seed, position), by the SplitMix64 mixer."""
    x = np.array([s % 2**64 for s in seeds], np.uint64)
    x += np.array(positions, np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for _ in range(2):
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x = x ^ (x >> np.uint64(31))
    return (x >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _truncated(weights: torch.Tensor, samplings: Seq[Sampling]) -> torch.Tensor:
    """Zero what top-k and top-p exclude, in the rows that ask for it."""
    rows = [i for i, s in enumerate(samplings) if s.top_k > 0 or s.top_p < 1]
    if not rows:
        return weights
    weights = weights.clone()
    for i in rows:
        ordered, order = weights[i].sort(descending=True, stable=True)
        k = samplings[i].top_k or len(ordered)
        ordered[k:] = 0
        before = ordered.cumsum(0) - ordered
        ordered[before >= samplings[i].top_p * ordered.sum()] = 0
        weights[i] = torch.zeros_like(ordered).scatter_(0, order, ordered)
    return weights
