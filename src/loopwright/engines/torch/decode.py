"""Attention of a decode step: one new token for each live sequence.

A sequence attends to its prompt and to its own tokens. A short prompt is in the sequence's own row, before its tokens.
A long prompt is shared with its siblings; then the two parts are computed separately and merged by their log-sum-exp,
which is exact. So the keys of a long prompt are read once per group instead of once per member, and grouped-query heads
are never expanded. With a small model a step is mostly the cost of calling kernels, layer by layer. So everything that
layers and steps have in common is prepared once.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import NamedTuple

import torch

from loopwright.engines.torch.cache import Arena, Row
from loopwright.engines.torch.cells import cells_of
from loopwright.engines.torch.lists import tensor_of
from loopwright.engines.torch.sequence import Sequence
from loopwright.models.attention import BLOCKED
from loopwright.models.native.cells import Cells
from loopwright.models.workspace import Heads

STRIDE = 16
"""Views cover a number of keys that is a multiple of this, so that one view serves this many steps."""

MANY = 8192
"""If the new keys of a layer have at least this many numbers, indexing writes them faster than `scatter_`: 12,288
numbers in 0.1 ms instead of 0.2. With 2,048 numbers the call itself dominates: 13 us instead of 8."""


class DecodeInputs:
    """The queries, keys and values of a layer, in the layout that decoding needs. The views are made once, for a caller
    that uses the same tensors again."""

    def __init__(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        heads, tokens = key.shape[1], query.shape[2]
        self.query = query
        self._given = query[0].transpose(0, 1).view(tokens, heads, -1, query.shape[-1])
        self.queries = torch.empty(self._given.shape, dtype=query.dtype, device=query.device)
        self.keys = key[0].transpose(0, 1)
        self.values = value[0].transpose(0, 1)

    def read(self) -> None:
        """Lay out the queries as [tokens, KV heads, queries per KV head, dim]."""
        self.queries.copy_(self._given)


class Partial(NamedTuple):
    """Attention over one part of the keys, and the log-sum-exp of its scores. Merging needs both."""

    output: torch.Tensor
    total: torch.Tensor


class _Seen(NamedTuple):
    """One layer's keys and values in an arena: all of them, and views of the used part, head by head."""

    keys: torch.Tensor
    values: torch.Tensor
    near_keys: torch.Tensor
    near_values: torch.Tensor


class OwnPart:
    """The rows of the sequences in one arena. The packed token i of `tokens` belongs to row i."""

    def __init__(self, arena: Arena, tokens: slice, rows: Seq[Row], device: torch.device) -> None:
        self._arena = arena
        self._tokens = tokens
        lengths = [row.length for row in rows]
        self._device = device
        self._newest = tensor_of(lengths, device)[:, None, None, None] - 1
        self._every, self._place = torch.arange(len(lengths), device=device), self._newest.view(-1)
        self._longest = max(lengths)
        self._asked: DecodeInputs | None = None
        self._open: torch.Tensor | None = None
        self._look()

    def advance(self) -> None:
        self._newest += 1
        self._longest += 1
        if self._longest > len(self._places):
            self._look()
        elif self._open is not None:
            self._open.scatter_(3, self._newest.expand(*self._open.shape[:3], 1), 0.0)

    def bias(self, window: int | None, heads: int) -> torch.Tensor:
        """The mask [rows * heads, 1, keys]. The newest key has the query's position."""
        if window is not None:
            far = self._places <= self._newest - window
            return self._bias((self._places > self._newest) | far, heads).flatten(0, 1)
        if self._open is None:
            self._open = self._bias(self._places > self._newest, heads)
        return self._open.flatten(0, 1)

    def _bias(self, blocked: torch.Tensor, heads: int) -> torch.Tensor:
        shape = len(blocked), heads, 1, len(self._places)
        return torch.zeros(shape, device=self._device).masked_fill_(blocked, BLOCKED)

    def attend(self, layer: int, asked: DecodeInputs, bias: torch.Tensor, scaling: float) -> torch.Tensor:
        """Store the newest key and value, and attend: [tokens, KV heads, queries, dim]."""
        seen = self._keep(layer, asked)
        return _attention(self._query, seen.near_keys, seen.near_values, bias, scaling).view(*self._shape, -1)

    def attend_in_part(self, layer: int, asked: DecodeInputs, bias: torch.Tensor, scaling: float) -> Partial:
        """The same, to be merged with the attention to a prompt."""
        seen = self._keep(layer, asked)
        output, total = _partial(self._query, seen.near_keys, seen.near_values, bias, scaling)
        return Partial(output.view(*self._shape, -1), total.view(self._shape))

    def _keep(self, layer: int, asked: DecodeInputs) -> _Seen:
        if asked is not self._asked:
            self._ask(asked)
        seen = self._layers.get(layer) or self._see(layer)
        if self._key.numel() < MANY:
            seen.keys.scatter_(3, self._key_place, self._key)
            seen.values.scatter_(2, self._value_place, self._value)
        else:
            seen.keys[self._every, :, :, self._place] = self._key[..., 0]
            seen.values[self._every, :, self._place] = self._value[:, :, 0]
        return seen

    def _ask(self, asked: DecodeInputs) -> None:
        queries = asked.queries[self._tokens]
        self._asked = asked
        # Values may have another size per head than queries.
        self._shape = queries.shape[:3]
        self._query = queries.flatten(0, 1)
        self._key = asked.keys[self._tokens, :, :, None]
        self._value = asked.values[self._tokens, :, None]
        self._key_place = self._newest.expand(self._key.shape)
        self._value_place = self._newest.expand(self._value.shape)

    def _look(self) -> None:
        """Make views that cover the longest row, and a few keys more."""
        near = min(-(-self._longest // STRIDE) * STRIDE, self._arena.capacity)
        self._places = torch.arange(near, device=self._device)
        self._open = None
        self._layers: dict[int, _Seen] = {}

    def _see(self, layer: int) -> _Seen:
        keys, values = self._arena.layer(layer, self._key.transpose(2, 3), self._value)
        rows, near = len(self._newest), len(self._places)
        keys, values = keys[:rows], values[:rows]
        seen = _Seen(keys, values, keys[..., :near].flatten(0, 1), values[:, :, :near].flatten(0, 1))
        self._layers[layer] = seen
        return seen


class PrefixPart:
    """The shared prompts in one arena, each with a grid of its live members. Unused cells of the grid repeat token 0.
    `sequences` are those that share a prompt; token numbers count only these."""

    def __init__(self, arena: Arena, sequences: Seq[Sequence], device: torch.device) -> None:
        self._arena = arena
        # Prompts that join in this pass come after these. No sequence decodes after them yet.
        self._prompts = len(arena.rows)
        members: list[list[int]] = [[] for _ in arena.rows]
        for token, sequence in enumerate(sequences):
            row = sequence.prefix.row
            if row is not None and row.arena is arena:
                members[row.index].append(token)
        self.width = max(map(len, members))
        cells = [m + [0] * (self.width - len(m)) for m in members]
        tokens = [token for row in cells for token in row]
        self.token_of_cell = torch.tensor(tokens, device=device)
        # If they are in order, indexing with them changes nothing.
        self._in_order = tokens == list(range(len(sequences)))
        self.cell_of_token = {t: r * self.width + c for r, m in enumerate(members) for c, t in enumerate(m)}
        lengths = [row.length for row in arena.rows]
        self._lengths = torch.tensor(lengths, device=device)[:, None, None]
        self._places = torch.arange(max(lengths), device=device)
        self._layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def bias(self, positions: torch.Tensor, window: int | None, heads: int, group: int) -> torch.Tensor:
        """The mask [prompts * heads, members * group or 1, keys]. Members differ only if there is a window."""
        blocked = self._places >= self._lengths
        if window is not None:
            query = positions[self.token_of_cell].view(-1, self.width, 1)
            blocked = (blocked | (query - self._places >= window)).repeat_interleave(group, dim=1)
        return (blocked * BLOCKED).repeat_interleave(heads, dim=0)

    def attend(self, layer: int, queries: torch.Tensor, bias: torch.Tensor, scaling: float) -> Partial:
        """Attention for every cell of the grid, flattened. `queries` are [tokens, KV heads, group, dim]."""
        keys, values = self._layers.get(layer) or self._see(layer)
        _, heads, group, dim = queries.shape
        cells = queries if self._in_order else queries[self.token_of_cell]
        grid = cells.view(self._prompts, self.width, heads, group, dim).transpose(1, 2)
        output, total = _partial(grid.reshape(-1, self.width * group, dim), keys, values, bias, scaling)
        shape = self._prompts, heads, self.width, group
        output = output.view(*shape, -1).transpose(1, 2).flatten(0, 1)
        return Partial(output, total.view(shape).transpose(1, 2).flatten(0, 1))

    def _see(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = self._arena.keys[layer], self._arena.values[layer]
        if keys is None or values is None:
            raise RuntimeError("a prompt is attended to before it was computed")
        prompts, near = self._prompts, len(self._places)
        seen = keys[:prompts, ..., :near].flatten(0, 1), values[:prompts, :, :near].flatten(0, 1)
        self._layers[layer] = seen
        return seen


class DecodePlan:
    """The attention of one step. `sequences` are in the order of `decode_order`: by arena, then by row. Sequences in
    `whole` arenas have their prompts in their own rows; those in `own` arenas share their prompts in `prefixes`.

    Native steps get the places of all keys (`cells`). To `attend` with torch, call `prepare` first.
    """

    def __init__(
        self,
        sequences: list[Sequence],
        whole: Seq[Arena],
        own: Seq[Arena],
        prefixes: Seq[Arena],
        device: torch.device,
    ) -> None:
        self.sequences = sequences
        self.positions = tensor_of([s.position for s in sequences], device)
        self._device = device
        self._rows = [s.row for s in sequences if s.row is not None]
        self._room = min(row.arena.capacity - row.length for row in self._rows)
        self._arenas = whole, own, prefixes
        self._cells: Cells | None = None
        self._parts: _Parts | None = None

    @property
    def is_full(self) -> bool:
        """Whether a row has no room for another token."""
        return self._room == 0

    def advance(self) -> None:
        """Continue with the same sequences in the same rows, each with one more token."""
        for row in self._rows:
            row.length += 1
        self._room -= 1
        self.positions += 1
        if self._cells is not None:
            self._cells.advance()
        if self._parts is not None:
            self._parts.advance()

    def prepare(self) -> None:
        """Make everything that attention with torch needs. Prompts that join later are not included."""
        if self._parts is None:
            self._parts = _Parts(self.sequences, self._rows, *self._arenas, self._device)

    def cells(self, layers: int, heads: Heads) -> Cells:
        """The places of the keys of all sequences, with room for the newest ones."""
        if self._cells is None:
            self._cells = cells_of(self.sequences, layers, heads)
        return self._cells

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
        if self._parts is None:
            raise RuntimeError("a step is computed with torch that was not prepared for it")
        return self._parts.attend(layer, query, key, value, self.positions, scaling=scaling, window=window)


class _Parts:
    """The attention of one step with torch, part by part."""

    def __init__(
        self,
        sequences: Seq[Sequence],
        rows: Seq[Row],
        whole: Seq[Arena],
        own: Seq[Arena],
        prefixes: Seq[Arena],
        device: torch.device,
    ) -> None:
        parts: list[OwnPart] = []
        start = 0
        for arena in (*whole, *own):
            tokens = slice(start, start + len(arena.rows))
            parts.append(OwnPart(arena, tokens, rows[tokens], device))
            start = tokens.stop
        self._whole, self._own = parts[: len(whole)], parts[len(whole) :]
        self._first = sum(len(arena.rows) for arena in whole)
        self._prefixes: list[PrefixPart] = []
        if sharing := sequences[self._first :]:
            self._share(sharing, prefixes, device)
        self._asked: DecodeInputs | None = None
        self._biases: dict[int | None, list[torch.Tensor]] = {}

    def _share(self, sequences: Seq[Sequence], prefixes: Seq[Arena], device: torch.device) -> None:
        """Find the grid cells of the sequences that share their prompts."""
        parts = (PrefixPart(arena, sequences, device) for arena in prefixes)
        self._prefixes = [part for part in parts if part.width]
        offset = 0
        cell_of_token: dict[int, int] = {}
        for part in self._prefixes:
            cell_of_token |= {token: offset + cell for token, cell in part.cell_of_token.items()}
            offset += len(part.token_of_cell)
        cells = [cell_of_token[token] for token in range(len(sequences))]
        self._cell_of_token = torch.tensor(cells, device=device)
        self._in_order = cells == list(range(offset))

    def advance(self) -> None:
        for part in (*self._whole, *self._own):
            part.advance()
        self._biases.clear()

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        positions: torch.Tensor,
        *,
        scaling: float,
        window: int | None,
    ) -> torch.Tensor:
        if self._asked is None or self._asked.query is not query:
            self._asked = DecodeInputs(query, key, value)
        asked = self._asked
        asked.read()
        biases = iter(self._biases.get(window) or self._bias(window, asked, positions))
        outputs = [part.attend(layer, asked, next(biases), scaling) for part in self._whole]
        if self._own:
            own = _joined([part.attend_in_part(layer, asked, next(biases), scaling) for part in self._own])
            queries = asked.queries[self._first :]
            shared = _joined([part.attend(layer, queries, next(biases), scaling) for part in self._prefixes])
            if not self._in_order:
                shared = Partial(*(x[self._cell_of_token] for x in shared))
            outputs.append(_merge(own, shared))
        seen = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        return seen.reshape(1, query.shape[2], query.shape[1], -1)

    def _bias(self, window: int | None, asked: DecodeInputs, positions: torch.Tensor) -> list[torch.Tensor]:
        """The masks of all parts. They are computed once per step and window, and shared by all layers."""
        _, heads, group, _ = asked.queries.shape
        sharing = positions[self._first :]
        own = [part.bias(window, heads) for part in (*self._whole, *self._own)]
        self._biases[window] = own + [part.bias(sharing, window, heads, group) for part in self._prefixes]
        return self._biases[window]


def decode_order(arenas: Seq[Arena], sequences: Seq[Sequence]) -> list[Sequence]:
    """Live sequences in the order of their rows, so that the packed batch has the order of the cache."""
    rank = {id(row): i for i, row in enumerate(row for arena in arenas for row in arena.rows)}
    return sorted(sequences, key=lambda s: rank[id(s.row)])


def _attention(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, bias: torch.Tensor, scaling: float
) -> torch.Tensor:
    """`query` is [heads, queries, dim], `keys` [heads, dim, tokens], `values` [heads, tokens, dim], of all rows."""
    return torch.bmm(_scores(query, keys, bias, scaling).softmax(dim=-1).to(values.dtype), values)


def _partial(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, bias: torch.Tensor, scaling: float
) -> Partial:
    scores = _scores(query, keys, bias, scaling)
    weights = scores.softmax(dim=-1)
    # Compute the log-sum-exp from the largest score, whose weight is known: two kernels less than `logsumexp`.
    total = scores.amax(dim=-1) - weights.amax(dim=-1).log_()
    return Partial(torch.bmm(weights.to(values.dtype), values), total)


def _scores(query: torch.Tensor, keys: torch.Tensor, bias: torch.Tensor, scaling: float) -> torch.Tensor:
    """The scores, by plain matrix products. The kernel behind scaled_dot_product_attention is made for many queries:
    for three queries it takes three times as long."""
    if query.dtype == torch.float32:
        return torch.baddbmm(bias, query, keys, alpha=scaling)
    return torch.bmm(query, keys).float().mul_(scaling).add_(bias)


def _merge(one: Partial, other: Partial) -> torch.Tensor:
    share = torch.sigmoid(one.total - other.total).unsqueeze(-1)
    return other.output.lerp(one.output, share.to(one.output.dtype))


def _joined(parts: list[Partial]) -> Partial:
    return parts[0] if len(parts) == 1 else Partial(*(torch.cat(x) for x in zip(*parts, strict=True)))
