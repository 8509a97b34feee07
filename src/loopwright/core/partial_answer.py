"""An answer that comes in parts. If it is cut short, it continues from the tokens that have arrived.

The invariant: each token is sampled once, keeps its logprob and its version (T4), and is reported to the listener once,
in order. It holds no matter what cuts the answer short: a pause, an engine that dies, or an interrupted rollout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate, chain

from loopwright.errors import EngineError
from loopwright.types import NOTHING_YET, FinishReason, GenerateRequest, Generation
from loopwright.types.spans import Spans, joined_spans, shifted_spans


class PartialAnswer:
    """The answer to a request so far.

    Ask an engine for `rest()`, pass `hear` to it for its tokens, and pass what it returns to `add`. If the engine dies,
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
        """The answer so far in one piece. Parts are joined only here: joining them one by one would take quadratic
        time."""
        if len(self._parts) > 1:
            self._parts = [joined(self._parts)]
        return self._parts[0]

    def rest(self) -> GenerateRequest:
        """The request for what is missing. Take a new one for each engine that is asked."""
        self._asked_at = self.tokens
        return self.request.after(self.so_far) if self.tokens else self.request

    @property
    def is_full(self) -> bool:
        """Whether no token is left to ask for. Only the engine's message that the answer ended may be missing."""
        return 0 < self.tokens >= self.request.sampling.max_new_tokens

    def hear(self, part: Generation) -> None:
        """Take tokens that an engine has just sampled."""
        self._parts.append(part)
        self.tokens += len(part.ids)
        if self._on_part is not None:
            self._on_part(part)

    def add(self, returned: Generation) -> Generation:
        """Take what the engine returned for `rest()`: tokens that `hear` already got, and the others, which are
        reported to the listener now. Returns the answer so far. If heard tokens are missing, nothing is taken, and
        EngineError is raised."""
        heard = self.tokens - self._asked_at
        if len(returned.ids) < heard:
            raise EngineError(
                f"an engine streamed {heard} tokens, and its whole answer has {len(returned.ids)}",
                remedy="see its log: an answer repeats all tokens that were streamed",
            )
        new = returned.since(heard) if heard else returned
        self._parts = [new] if not self.tokens else [*self._parts, new]
        self.tokens += len(new.ids)
        if self._on_part is not None and new.ids:
            self._on_part(replace(new, finish=FinishReason.ABORT, held=None))
        return self.so_far

    def cut_by_length(self) -> Generation:
        """The answer, if no token is left to ask for."""
        return replace(self.so_far, finish=FinishReason.LENGTH, held=None)


def joined(parts: Sequence[Generation]) -> Generation:
    """One generation made of several. Its finish reason is that of the last one."""
    return Generation(
        tuple(chain.from_iterable([part.ids for part in parts])),
        tuple(chain.from_iterable([part.logprobs for part in parts])),
        tuple(chain.from_iterable([part.versions for part in parts])),
        parts[-1].finish if parts else FinishReason.ABORT,
        constrained=_constrained(parts),
        alternatives=tuple(chain.from_iterable([part.alternatives for part in parts])),
    )


def _constrained(parts: Sequence[Generation]) -> Spans:
    if not any(part.constrained for part in parts):
        return ()
    begins = accumulate([len(part.ids) for part in parts], initial=0)
    return joined_spans(
        span for part, begin in zip(parts, begins, strict=False) for span in shifted_spans(part.constrained, begin)
    )
