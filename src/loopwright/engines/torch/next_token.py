"""A token for each sequence of a batch, and whether it was its last.

Most steps sample for the sequences of the step before: what they ask for is prepared once, and each of them is looked
at only when one may have ended.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch

from loopwright.engines.torch.choose import Chooser
from loopwright.engines.torch.sequence import Sequence
from loopwright.engines.torch.stopping import Stopping
from loopwright.types import FinishReason


class NextToken:
    """Samples for the same sequences token after token."""

    def __init__(self, stopping: Stopping, sequences: Seq[Sequence] = (), chooser: Chooser | None = None) -> None:
        samplings = [s.request.sampling for s in sequences]
        self._stopping = stopping
        self._sequences = sequences
        self._chooser = chooser or Chooser(samplings, [s.position + 1 for s in sequences])
        self._stop_ids = {token for sampling in samplings for token in sampling.stop_token_ids}
        self._has_stop_strings = any(sampling.stop for sampling in samplings)
        self._sure = min((s.limit - len(s.ids) for s in sequences), default=0)
        """Tokens that every sequence has room for."""

    def of(self, sequences: Seq[Sequence]) -> NextToken:
        """That for these sequences, which are mostly those of this one, or some of them."""
        if sequences == self._sequences:
            return self
        place = {id(s): i for i, s in enumerate(self._sequences)}
        known = [place[id(s)] for s in sequences if id(s) in place]
        chooser = self._chooser.only(known) if len(known) == len(sequences) else None
        return NextToken(self._stopping, sequences, chooser)

    def sample(self, logits: torch.Tensor, version: int) -> None:
        """Give each sequence the token that its row of `logits` chooses, stamped with the version."""
        ids, logprobs = self._chooser.choose(logits)
        for sequence, token, logprob in zip(self._sequences, ids, logprobs, strict=True):
            sequence.ids.append(token)
            sequence.logprobs.append(logprob)
            sequence.versions.append(version)
        self._sure -= 1
        if self._sure <= 0 or self._has_stop_strings or not self._stop_ids.isdisjoint(ids):
            self._end()

    def _end(self) -> None:
        for sequence in self._sequences:
            if self._stopping.reached(sequence.request, sequence.ids):
                sequence.finish = FinishReason.STOP
            elif len(sequence.ids) >= sequence.limit:
                sequence.finish = FinishReason.LENGTH
