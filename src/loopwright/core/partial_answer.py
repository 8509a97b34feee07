"""An answer that comes in parts. If it is cut short, it goes on from the tokens that are here.

The invariant: each token is sampled once, keeps its logprob and its version (T4), and is told to the listener once, in
order, whoever cuts the answer short: a pause, an engine that dies, or an interrupted rollout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

from loopwright.types import NOTHING_YET, FinishReason, GenerateRequest, Generation


class PartialAnswer:
    """What there is of the answer to a request.

    Ask an engine for `rest()`, let it show its tokens to `hear`, and give what it returns to `add`. If the engine dies,
    ask another one for `rest()`. `on_part` is the listener. `so_far` is what was sampled before.
    """

    __slots__ = ("_asked_at", "_on_part", "_parts", "request", "tokens")

    def __init__(
        self,
        request: GenerateRequest,
        on_part: Callable[[Generation], object] | None = None,
        so_far: Generation = NOTHING_YET,
    ) -> None:
        self.request = request
        self.tokens = len(so_far.ids)
        self._on_part = on_part
        self._parts = [so_far]
        self._asked_at = 0

    @property
    def so_far(self) -> Generation:
        """All of it in one piece. Parts are joined only here: to join them one by one would take quadratic time."""
        if len(self._parts) > 1:
            self._parts = [joined(self._parts)]
        return self._parts[0]

    def rest(self) -> GenerateRequest:
        """The request for what is missing. Take a new one for each engine that is asked."""
        self._asked_at = self.tokens
        return self.request.after(self.so_far) if self.tokens else self.request

    @property
    def is_full(self) -> bool:
        """Whether no token is left to ask for. Only the engine's word that it ended may be missing."""
        return 0 < self.tokens >= self.request.sampling.max_new_tokens

    def hear(self, part: Generation) -> None:
        """An engine shows tokens that it has just sampled."""
        self._parts.append(part)
        self.tokens += len(part.ids)
        if self._on_part is not None:
            self._on_part(part)

    def add(self, returned: Generation) -> Generation:
        """What the engine returned for `rest()`: the tokens that were heard of it, and the others, which the listener
        hears now. Gives the answer so far."""
        heard = self.tokens - self._asked_at
        new = returned.since(heard) if heard else returned
        self._parts = [new] if not self.tokens else [*self._parts, new]
        self.tokens += len(new.ids)
        if self._on_part is not None and new.ids:
            self._on_part(Generation(new.ids, new.logprobs, new.versions, FinishReason.ABORT))
        return self.so_far

    def cut_by_length(self) -> Generation:
        """The answer, if no token is left to ask for."""
        so_far = self.so_far
        return Generation(so_far.ids, so_far.logprobs, so_far.versions, FinishReason.LENGTH)


def joined(parts: Sequence[Generation]) -> Generation:
    """One generation of several, which ended as the last of them did."""
    return Generation(
        tuple(chain.from_iterable([part.ids for part in parts])),
        tuple(chain.from_iterable([part.logprobs for part in parts])),
        tuple(chain.from_iterable([part.versions for part in parts])),
        parts[-1].finish if parts else FinishReason.ABORT,
    )
