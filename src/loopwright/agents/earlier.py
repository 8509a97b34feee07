"""What an interrupted rollout had sampled, for the policy that continues it.

A recorded turn is returned once, to a call with exactly the same prompt. So a loop that runs again gets the same
replies again, and where the recording ends, the engine continues. A call with another prompt finds nothing here and is
sampled anew: tokens that were not one context are never joined (T1).
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
        """What was sampled for this request: the whole answer, or a part of it (`finish = abort`)."""
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
