"""Attention of a decode step: one new token for each live sequence.

A sequence attends to its prompt, which its siblings share, and to its own tokens. The two parts are computed apart
and merged by their log-sum-exp, which is exact. So the keys of a shared prompt are read once per group instead of
once per member, and grouped-query heads never have to be expanded. With a small model a step is mostly the cost of
calling kernels, thirty times over: what is known before the layers is prepared once, and a layer makes few calls.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import NamedTuple

import torch

from loopwright.engines.torch.cache import Arena
from loopwright.engines.torch.sequence import Sequence
from loopwright.models.attention import BLOCKED


class Partial(NamedTuple):
    """Attention over one part of the keys, and the log-sum-exp of its scores: all that merging needs."""

    output: torch.Tensor
    total: torch.Tensor


class OwnPart:
    """The sampled tokens of the sequences in one arena: packed token i belongs to row i."""

    def __init__(self, arena: Arena, tokens: slice, sequences: Seq[Sequence]) -> None:
        self.arena = arena
        self.tokens = tokens
        self.lengths = torch.tensor([len(s.ids) for s in sequences])
        self.rows = torch.arange(len(sequences))
        self.longest = int(self.lengths.max())
        self.shortest = int(self.lengths.min())

    def advance(self) -> None:
        self.lengths += 1
        self.longest += 1
        self.shortest += 1

    def bias(self, window: int | None) -> torch.Tensor:
        """[rows, 1, keys]. The newest key is at `lengths - 1`, where the query stands too."""
        behind = self.lengths[:, None] - 1 - torch.arange(self.longest)
        return _additive(behind >= 0 if window is None else (behind >= 0) & (behind < window))[:, None]

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        bias: torch.Tensor,
        scaling: float,
    ) -> Partial:
        q, k, v = query[self.tokens], key[self.tokens], value[self.tokens]
        keys, values = self.arena.layer(layer, k[:, :, None], v[:, :, None])
        rows, longest = len(self.rows), self.longest
        if self.shortest == longest:
            # In step, as siblings are until one ends: a plain copy instead of a scatter.
            keys[:rows, :, :, longest - 1] = k
            values[:rows, :, longest - 1] = v
        else:
            newest = self.lengths - 1
            keys[self.rows, :, :, newest] = k
            values[self.rows, :, newest] = v
        return _partial(q, keys[:rows, :, :, :longest], values[:rows, :, :longest], bias, scaling)


class PrefixPart:
    """The prompts in one arena, each with the grid of its live members. Unused cells of the grid repeat token 0."""

    def __init__(self, arena: Arena, sequences: Seq[Sequence], tokens: Seq[int]) -> None:
        self.arena = arena
        # Prompts that join in this very pass come after these, and nobody decodes behind them yet.
        self.prompts = len(arena.rows)
        members: list[list[int]] = [[] for _ in arena.rows]
        for sequence, token in zip(sequences, tokens, strict=True):
            row = sequence.prefix.row
            if row is not None and row.arena is arena:
                members[row.index].append(token)
        self.width = max(map(len, members))
        cells = [m + [0] * (self.width - len(m)) for m in members]
        self.token_of_cell = torch.tensor(cells).flatten()
        self.in_order = _is_in_order(self.token_of_cell, len(sequences))
        self.cell_of_token = {t: r * self.width + c for r, m in enumerate(members) for c, t in enumerate(m)}
        self.lengths = torch.tensor([row.length for row in arena.rows])
        self.longest = int(self.lengths.max())

    def bias(self, positions: torch.Tensor, window: int | None) -> torch.Tensor:
        """[prompts, members or 1, keys]: only a window makes the members differ."""
        key = torch.arange(self.longest)
        present = key < self.lengths[:, None]
        if window is None:
            return _additive(present)[:, None]
        query = positions[self.token_of_cell].view(-1, self.width)
        near = (query[:, :, None] - key) < window
        return _additive(present[:, None] & near)

    def attend(self, layer: int, query: torch.Tensor, bias: torch.Tensor, scaling: float) -> Partial:
        """For every cell of the grid, flattened."""
        keys, values = self.arena.keys[layer], self.arena.values[layer]
        if keys is None or values is None:
            raise RuntimeError("a prompt is attended to before it was computed")
        prompts, (_, heads, group, dim) = self.prompts, query.shape
        cells = query if self.in_order else query[self.token_of_cell]
        grid = cells.view(prompts, self.width, heads, group, dim).transpose(1, 2)
        flat = grid.reshape(prompts, heads, self.width * group, dim)
        seen = keys[:prompts, :, :, : self.longest], values[:prompts, :, : self.longest]
        output, total = _partial(flat, *seen, bias, scaling)
        output = output.view(prompts, heads, self.width, group, -1).transpose(1, 2).flatten(0, 1)
        return Partial(output, total.view(prompts, heads, self.width, group).transpose(1, 2).flatten(0, 1))


class DecodePlan:
    """One step's attention. `sequences` are ordered as `decode_order` gives them: by arena, then by row."""

    def __init__(self, sequences: list[Sequence], own: Seq[Arena], prefixes: Seq[Arena]) -> None:
        self.sequences = sequences
        self.positions = torch.tensor([s.position for s in sequences])
        self.own: list[OwnPart] = []
        start = 0
        for arena in own:
            tokens = slice(start, start + len(arena.rows))
            self.own.append(OwnPart(arena, tokens, sequences[tokens]))
            start = tokens.stop
        order = range(len(sequences))
        self.prefixes = [PrefixPart(arena, sequences, order) for arena in prefixes]
        self.prefixes = [part for part in self.prefixes if part.width]
        offset = 0
        cell_of_token: dict[int, int] = {}
        for part in self.prefixes:
            cell_of_token |= {token: offset + cell for token, cell in part.cell_of_token.items()}
            offset += len(part.token_of_cell)
        self.cell_of_token = torch.tensor([cell_of_token[token] for token in order])
        self.in_order = _is_in_order(self.cell_of_token, offset)
        self._biases: dict[int | None, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}

    def advance(self) -> None:
        """The same sequences in the same rows, each with one token more."""
        self.positions += 1
        for part in self.own:
            part.advance()
        self._biases.clear()

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        scaling: float,
        window: int | None,
    ) -> torch.Tensor:
        heads, kv_heads, tokens = query.shape[1], key.shape[1], query.shape[2]
        q = query[0].transpose(0, 1).reshape(tokens, kv_heads, heads // kv_heads, -1)
        k, v = key[0].transpose(0, 1), value[0].transpose(0, 1)
        own_bias, prefix_bias = self._bias(window, q.shape[1], q.shape[2])
        own = _joined([part.attend(layer, q, k, v, b, scaling) for part, b in zip(self.own, own_bias, strict=True)])
        shared = _joined(
            [part.attend(layer, q, b, scaling) for part, b in zip(self.prefixes, prefix_bias, strict=True)]
        )
        if not self.in_order:
            shared = Partial(*(x[self.cell_of_token] for x in shared))
        return _merge(own, shared).reshape(1, tokens, heads, -1)

    def _bias(self, window: int | None, heads: int, group: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Computed once per step and window, and shared by all layers: [rows * heads, queries or 1, keys]."""
        if window not in self._biases:
            own = [part.bias(window) for part in self.own]
            prefix = [part.bias(self.positions, window) for part in self.prefixes]
            prefix = [b if b.shape[1] == 1 else b.repeat_interleave(group, dim=1) for b in prefix]
            per_head = ([b.repeat_interleave(heads, dim=0) for b in part] for part in (own, prefix))
            self._biases[window] = next(per_head), next(per_head)
        return self._biases[window]


def decode_order(own: Seq[Arena], sequences: Seq[Sequence]) -> list[Sequence]:
    """Live sequences in the order of their rows, so that the packed batch lines up with the cache."""
    rank = {id(row): i for i, row in enumerate(row for arena in own for row in arena.rows)}
    return sorted(sequences, key=lambda s: rank[id(s.row)])


def _partial(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, bias: torch.Tensor, scaling: float
) -> Partial:
    """`query` is [rows, heads, queries, dim], `keys` [rows, heads, dim, tokens], `values` [rows, heads, tokens, dim].

    Plain products, because the kernel behind scaled_dot_product_attention is made for many queries: for three it takes
    three times as long.
    """
    shape = query.shape[:3]
    q, k, v = query.flatten(0, 1), keys.flatten(0, 1), values.flatten(0, 1)
    if q.dtype == torch.float32:
        scores = torch.baddbmm(bias, q, k, alpha=scaling)
    else:
        scores = torch.bmm(q, k).float().mul_(scaling).add_(bias)
    weights = scores.softmax(dim=-1)
    # The log-sum-exp by way of the largest score, whose weight is known: two kernels less than `logsumexp`.
    total = scores.amax(dim=-1) - weights.amax(dim=-1).log_()
    return Partial(torch.bmm(weights.to(v.dtype), v).view(*shape, -1), total.view(shape))


def _merge(one: Partial, other: Partial) -> torch.Tensor:
    share = torch.sigmoid(one.total - other.total).unsqueeze(-1)
    return other.output.lerp(one.output, share.to(one.output.dtype))


def _is_in_order(numbers: torch.Tensor, count: int) -> bool:
    """Whether they are 0, 1, ... count - 1, so that picking by them changes nothing."""
    return len(numbers) == count and bool((numbers == torch.arange(count)).all())


def _joined(parts: list[Partial]) -> Partial:
    return parts[0] if len(parts) == 1 else Partial(*(torch.cat(x) for x in zip(*parts, strict=True)))


def _additive(seen: torch.Tensor) -> torch.Tensor:
    return torch.zeros(seen.shape).masked_fill_(~seen, BLOCKED)
