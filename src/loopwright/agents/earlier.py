"""What an interrupted rollout had sampled, for the policy that goes on with it.

A recorded turn is given out once, to a call that asks exactly what was asked then. So a loop that is run again hears
again what it heard, and where the recording ends, the engine goes on. A call that asks something else finds nothing
here, and is sampled afresh: nothing is ever joined that was not one context (T1).
"""

from __future__ import annotations

from collections.abc import Sequence

from loopwright.core.chains import turns_of
from loopwright.ports import Renderer
from loopwright.types import FinishReason, GenerateRequest, Generation, Sampling, TokenChain


class Earlier:
    """The turns behind the chains of an interrupted rollout."""

    def __init__(self, chains: Sequence[TokenChain], renderer: Renderer) -> None:
        self._turns = [turn for chain in chains for turn in turns_of(chain)]
        self._renderer = renderer

    def take(self, request: GenerateRequest) -> Generation | None:
        """What was sampled for this request: to its end, or as far as it came (`finish = abort`)."""
        for turn in self._turns:
            if turn.prompt_ids == request.prompt_ids:
                self._turns.remove(turn)
                finish = self._finish(turn.ids, request.sampling)
                return Generation(turn.ids, turn.logprobs, turn.versions, finish)
        return None

    def _finish(self, ids: Sequence[int], sampling: Sampling) -> FinishReason:
        if ids[-1] in sampling.stop_token_ids:
            return FinishReason.STOP
        text = self._renderer.text(ids) if sampling.stop else ""
        if any(stop in text for stop in sampling.stop):
            return FinishReason.STOP
        return FinishReason.LENGTH if len(ids) >= sampling.max_new_tokens else FinishReason.ABORT
