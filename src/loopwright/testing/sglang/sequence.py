"""One request in the scheduler: its tokens, their logprobs, and when it ends."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from loopwright.testing.sglang.asks import GenerateAsk
from loopwright.testing.sglang.model import KvContext, KvModel
from loopwright.testing.sglang.radix import RadixTree
from loopwright.testing.sglang.sample import TokenLogprobs, pick, row

UNARY_INTERVAL = 50
"""A request that is not streamed reports its tokens only so often, and at its end."""
TAIL_TOKENS = 32
"""How many of the last tokens are decoded to look for a stop string."""

Finish = Mapping[str, Any]
ABORTED: Finish = {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}


@dataclass(frozen=True, slots=True)
class Output:
    """News of a request: the tokens and logprobs since the last news."""

    rid: str
    ids: list[int]
    rows: list[TokenLogprobs]
    input_rows: list[TokenLogprobs] | None
    finish: Finish | None
    prompt_tokens: int
    cached_tokens: int
    retractions: int


@dataclass(frozen=True, slots=True)
class TakenFromQueue:
    """A request was aborted before it ran, or after it was moved back to the queue."""

    rid: str


@dataclass(slots=True, eq=False)
class SampledRequest:
    """`limit`: the new tokens that it may have."""

    ask: GenerateAsk
    limit: int
    output_ids: list[int] = field(default_factory=list)
    rows: list[TokenLogprobs] = field(default_factory=list)
    input_rows: list[TokenLogprobs] | None = None
    context: KvContext | None = None
    cached_tokens: int = 0
    retractions: int = 0
    to_finish: Finish | None = None
    """Set by an abort. The request ends with the next token."""
    finish: Finish | None = None
    told: int = 0
    told_rows: int = 0

    @property
    def start(self) -> int:
        """The position of the first prompt token whose logprob is told."""
        given, prompt = self.ask.logprob_start_len, len(self.ask.ids)
        return prompt if given == -1 or not self.ask.return_logprob else given

    def step(self, model: KvModel, tree: RadixTree, random: torch.Generator, *, raw: bool) -> None:
        """Compute the next token: from all tokens, or from the last one if the others are in the context. `raw`: its
        logprob is that of temperature 1."""
        logits = (
            self._prefill(model, tree) if self.context is None else model.extend(self.context, self.output_ids[-1:])
        )
        token = pick(logits[-1], self.ask.sampling, random)
        self.output_ids.append(token)
        self.rows.append(row(logits[-1], 1.0 if raw else self.ask.sampling.temperature, token, self.ask))

    def _prefill(self, model: KvModel, tree: RadixTree) -> torch.Tensor:
        ids = [*self.ask.ids, *self.output_ids]
        # At least one token is computed, and so is every one whose logits are asked for.
        most = len(ids) - 1 if not self.ask.return_logprob else min(len(ids) - 1, self.start)
        cells = tree.match(self.ask.key, ids[:most])
        self.cached_tokens += len(cells)
        self.context = KvContext(cells)
        logits = model.extend(self.context, ids[len(cells) :])
        if self.ask.return_logprob and self.input_rows is None:
            after = logits[self.start - len(cells) : -1]
            # Logprobs of the prompt are those of temperature 1, and the first token that is told has none.
            told = [row(at, 1.0, ids[self.start + 1 + i], self.ask) for i, at in enumerate(after)]
            self.input_rows = [
                TokenLogprobs([None, token, None], [], []) for token in ids[self.start : self.start + 1]
            ] + told
        tree.insert(self.ask.key, ids, self.context.cells())
        return logits

    def release(self, tree: RadixTree) -> None:
        """Leave the keys and values to the tree. The last token has none."""
        if self.context is not None:
            tree.insert(self.ask.key, [*self.ask.ids, *self.output_ids], self.context.cells())
            self.context = None

    def retract(self) -> None:
        """Free the request's own keys and values. What the tree has of its prompt stays there."""
        self.context = None
        self.retractions += 1

    def check_end(self, eos: Collection[int], tokenizer: Any) -> None:
        sampling, last = self.ask.sampling, self.output_ids[-1]
        tail = tokenizer.decode(self.output_ids[-TAIL_TOKENS:]) if sampling.stops else ""
        matched = next((stop for stop in sampling.stops if stop in tail), None)
        if self.to_finish is not None:
            self.finish = self.to_finish
        elif matched is not None:
            self.finish = {"type": "stop", "matched": matched}
        elif not sampling.ignore_eos and (last in eos or last in (sampling.stop_token_ids or ())):
            # `ignore_eos` also switches the request's own stop tokens off.
            self.finish = {"type": "stop", "matched": last}
        elif len(self.output_ids) >= self.limit:
            self.finish = {"type": "length", "length": self.limit}

    def news(self) -> Output | None:
        """What is to be told after a token, if anything."""
        tokens, every = len(self.output_ids), self.ask.sampling.stream_interval or 1
        due = tokens % every == (1 if every > 1 else 0) if self.ask.stream else tokens % UNARY_INTERVAL == 0
        if not due and self.finish is None:
            return None
        # With room for no token, one is computed all the same: its logprob is told, its id is not.
        ids, rows = self.output_ids[: self.limit][self.told :], self.rows[self.told_rows :]
        self.told, self.told_rows = self.told + len(ids), self.told_rows + len(rows)
        return Output(
            self.ask.rid,
            ids,
            rows,
            self.input_rows,
            self.finish,
            len(self.ask.ids),
            self.cached_tokens,
            self.retractions,
        )
