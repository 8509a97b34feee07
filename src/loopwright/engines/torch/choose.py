"""Chooses the next tokens.

One uniform number per token, computed from (seed, position), picks an id from the cumulative distribution: first a
block of the vocabulary by the sums of the blocks, then an id inside the block. One random number per vocabulary entry
would cost many times the rest of the choice (64 x 49,152: 94 ms for the exponentials alone), and a cumulative sum over
the whole vocabulary four times as much. What a request samples depends neither on its batch nor on interruptions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq

import numpy as np
import numpy.typing as npt
import torch

from loopwright.engines.torch.grammar import Legal
from loopwright.engines.torch.lists import tensor_of
from loopwright.errors import EngineError
from loopwright.types import Sampling

BLOCK = 256
SMALL = 8 * BLOCK
"""A vocabulary up to this size is searched as a whole: blocks would cost more calls than they save."""

AHEAD = 16
"""For how many positions random numbers are made at once."""


class Chooser:
    """Chooses tokens for the same requests again and again. Their settings are prepared once."""

    def __init__(
        self,
        samplings: Seq[Sampling],
        positions: Seq[int],
        device: torch.device,
        numbers: torch.Tensor | None = None,
    ) -> None:
        """`positions` are those of the next tokens. `numbers` [tokens, rows, 1] are their random numbers, if known."""
        self._samplings = samplings
        self._device = device
        temperatures = [s.temperature for s in samplings]
        self._all_greedy = not any(temperatures)
        self._greedy = None if all(temperatures) else torch.tensor([t == 0 for t in temperatures], device=device)
        scale = any(t not in (0, 1) for t in temperatures)
        divisors = [t or 1.0 for t in temperatures]
        self._temperature = torch.tensor(divisors, device=device)[:, None] if scale else None
        self._cuts = [(i, s.top_k, s.top_p) for i, s in enumerate(samplings) if s.top_k > 0 or s.top_p < 1]
        self._positions = positions
        self._chosen = 0
        self._numbers = numbers
        self._drawn = 0

    def only(self, rows: Seq[int]) -> Chooser:
        """A chooser for some of its requests, in this order. Their random numbers are not made again."""
        ahead = None if self._numbers is None else self._numbers[self._drawn :]
        return Chooser(
            [self._samplings[row] for row in rows],
            [self._positions[row] + self._chosen for row in rows],
            self._device,
            None if ahead is None else ahead.index_select(1, tensor_of(rows, self._device)),
        )

    def choose(self, logits: torch.Tensor, legal: Legal | None = None) -> tuple[list[int], list[float]]:
        """The next id of each row of `logits` [rows, vocabulary], and its logprob (T8). `legal` limits the choice in
        some rows; nothing changes in the others."""
        scaled = logits.float()
        if self._temperature is not None:
            scaled = scaled / self._temperature
        # This is one kernel, which processes a row while it is in the cache.
        weights = scaled.softmax(dim=-1)
        peaks = scaled if legal is None else legal.peaks(scaled)
        chances = weights if legal is None else legal.chances(weights, peaks)
        ids = peaks.argmax(dim=-1) if self._all_greedy else self._draw(chances)
        if self._greedy is not None and not self._all_greedy:
            ids = torch.where(self._greedy, peaks.argmax(dim=-1), ids)
        if legal is not None:
            ids = legal.sound(ids, peaks)
        self._chosen += 1
        logprobs: list[float] = weights.gather(1, ids[:, None]).log_().flatten().tolist()
        if legal is not None:
            for row, logprob in zip(legal.rows.tolist(), legal.logprobs(scaled, ids), strict=True):
                logprobs[row] = logprob
        if math.isnan(sum(logprobs)):
            raise EngineError(
                "the model's logits are not numbers",
                remedy="its weights are damaged, or training diverged: lower learner.lr",
            )
        return ids.tolist(), logprobs

    def likeliest(self, logits: torch.Tensor, rows: Seq[int], most: int) -> list[list[tuple[int, float]]]:
        """The likeliest ids of some rows with their logprobs (T8), the likeliest first: over the whole vocabulary, also
        where something limits the choice."""
        picked = tensor_of(rows, logits.device)
        scaled = logits[picked].float()
        if self._temperature is not None:
            scaled = scaled / self._temperature[picked]
        odds, ids = scaled.log_softmax(dim=-1).topk(min(most, logits.shape[1]), dim=-1)
        return [list(zip(*row, strict=True)) for row in zip(ids.tolist(), odds.tolist(), strict=True)]

    def _draw(self, weights: torch.Tensor) -> torch.Tensor:
        if self._numbers is None or self._drawn == len(self._numbers):
            made = uniforms([s.seed for s in self._samplings], [p + self._chosen for p in self._positions])
            self._numbers, self._drawn = torch.from_numpy(made).to(self._device)[:, :, None], 0
        numbers = self._numbers[self._drawn]
        self._drawn += 1
        return _picked(_truncated(weights, self._cuts), numbers)


def _picked(weights: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """The id at each row's number [rows, 1], if each id is an interval as long as its weight."""
    last = weights.shape[1] - 1
    if last < SMALL:
        cumulative = weights.cumsum(dim=-1, dtype=torch.double)
        return _passed(cumulative, uniform * cumulative[:, -1:])[:, 0]
    sums = _block_sums(weights)
    cumulative = sums.cumsum(dim=-1)
    target = uniform * cumulative[:, -1:]
    block = _passed(cumulative, target)
    rest = target - (cumulative - sums).gather(1, block)
    columns = block * BLOCK + torch.arange(BLOCK, device=weights.device)
    inside = weights.gather(1, columns.clamp(max=last)).double().masked_fill_(columns > last, 0).cumsum(dim=-1)
    # The sum of the block was rounded, so the rest of the number may be larger than the block.
    nothing = torch.zeros((), dtype=torch.double, device=weights.device)
    rest = torch.minimum(rest, torch.nextafter(inside[:, -1:], nothing))
    return (block * BLOCK + _passed(inside, rest))[:, 0].clamp_(max=last)


def _passed(cumulative: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The column in which the cumulative sum passes `target` [rows, 1]. The last column if there are NaNs."""
    return torch.searchsorted(cumulative, target, right=True).clamp_(max=cumulative.shape[1] - 1)


def _block_sums(weights: torch.Tensor) -> torch.Tensor:
    """The sums of blocks of BLOCK columns, [rows, blocks], in double precision: rounding must not favour any block."""
    whole = weights.shape[1] // BLOCK * BLOCK
    sums = weights[:, :whole].view(len(weights), -1, BLOCK).sum(dim=-1)
    rest = weights[:, whole:].sum(dim=-1, keepdim=True)
    return torch.cat([sums, rest], dim=1).double()


def uniforms(seeds: Seq[int], positions: Seq[int]) -> npt.NDArray[np.float64]:
    """[AHEAD, rows]: a number in [0, 1) for each seed and for AHEAD positions from the given one on, by the SplitMix64
    mixer. It has 52 bits, so that its product with any sum stays below that sum after rounding: a number near 1 never
    picks an id after the last one that has weight."""
    x = np.array(positions, np.uint64) + np.arange(AHEAD, dtype=np.uint64)[:, None]
    x *= np.uint64(0x9E3779B97F4A7C15)
    x += np.array([s % 2**64 for s in seeds], np.uint64)
    for _ in range(2):
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x = x ^ (x >> np.uint64(31))
    return (x >> np.uint64(12)).astype(np.float64) * 2.0**-52


def _truncated(weights: torch.Tensor, cuts: Seq[tuple[int, int, float]]) -> torch.Tensor:
    """Set the weights that top-k and top-p exclude to 0, in the rows that use them."""
    if not cuts:
        return weights
    weights = weights.clone()
    for row, top_k, top_p in cuts:
        ordered, order = weights[row].sort(descending=True, stable=True)
        ordered[top_k or len(ordered) :] = 0
        before = ordered.cumsum(0) - ordered
        ordered[before >= top_p * ordered.sum()] = 0
        weights[row] = torch.zeros_like(ordered).scatter_(0, order, ordered)
    return weights
