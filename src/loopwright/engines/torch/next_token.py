"""Samples a token for each sequence of a batch, and finds out whether it was the last one.

Most steps sample for the same sequences as the step before. So their settings are prepared once, and the sequences are
checked one by one only if one may have ended.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch

from loopwright.engines.torch.choose import Chooser
from loopwright.engines.torch.grammar import Legal
from loopwright.engines.torch.sequence import Sequence
from loopwright.engines.torch.stopping import Stopping
from loopwright.types import FinishReason


class NextToken:
    """Samples tokens for the same sequences again and again."""

    def __init__(
        self,
        stopping: Stopping,
        device: torch.device,
        sequences: Seq[Sequence] = (),
        chooser: Chooser | None = None,
    ) -> None:
        samplings = [s.request.sampling for s in sequences]
        self._stopping = stopping
        self._device = device
        self._sequences = sequences
        self._chooser = chooser or Chooser(samplings, [s.position + 1 for s in sequences], device)
        self._stop_ids = {token for sampling in samplings for token in sampling.stop_token_ids}
        self._has_stop_strings = any(sampling.stop for sampling in samplings)
        self._constrained = [(row, s.grammar, s) for row, s in enumerate(sequences) if s.grammar is not None]
        self._telling = [(row, s) for row, s in enumerate(sequences) if s.request.alternatives]
        self._sure = min((s.limit - len(s.ids) for s in sequences), default=0)
        """How many more tokens every sequence has room for."""

    def of(self, sequences: Seq[Sequence]) -> NextToken:
        """The sampler for these sequences. They are usually the same as here, or some of them."""
        if sequences == self._sequences:
            return self
        place = {id(s): i for i, s in enumerate(self._sequences)}
        known = [place[id(s)] for s in sequences if id(s) in place]
        chooser = self._chooser.only(known) if len(known) == len(sequences) else None
        return NextToken(self._stopping, self._device, sequences, chooser)

    def sample(self, logits: torch.Tensor, version: int) -> None:
        """Sample a token for each sequence from its row of `logits`, and stamp it with the version."""
        legal = self._legal(logits.shape[1]) if self._constrained else None
        ids, logprobs = self._chooser.choose(logits, legal)
        for sequence, token, logprob in zip(self._sequences, ids, logprobs, strict=True):
            sequence.ids.append(token)
            sequence.logprobs.append(logprob)
            sequence.versions.append(version)
        if self._telling:
            self._tell_alternatives(logits)
        if legal is not None:
            self._advance(legal.counts)
        self._sure -= 1
        if self._sure <= 0 or self._has_stop_strings or not self._stop_ids.isdisjoint(ids):
            self._end()

    def _tell_alternatives(self, logits: torch.Tensor) -> None:
        """Keep the likeliest tokens for those who ask. A sampled token among them has the logprob that is recorded."""
        most = max(sequence.request.alternatives for _, sequence in self._telling)
        rows = self._chooser.likeliest(logits, [row for row, _ in self._telling], most)
        for (_, sequence), row in zip(self._telling, rows, strict=True):
            own, logprob = sequence.ids[-1], sequence.logprobs[-1]
            told = row[: sequence.request.alternatives]
            sequence.alternatives.append(tuple((token, logprob if token == own else odds) for token, odds in told))

    def _legal(self, vocabulary: int) -> Legal:
        return Legal([(row, grammar) for row, grammar, _ in self._constrained], vocabulary, self._device)

    def _advance(self, counts: Seq[int]) -> None:
        """Let the grammars read the new tokens. `counts` says how many choices there were."""
        for (_, grammar, sequence), count in zip(self._constrained, counts, strict=True):
            if count == 1:
                sequence.constrain_last()
            if not count or grammar.error:
                sequence.fail(grammar.error or "no token of the vocabulary goes on with it")
                continue
            grammar.read(sequence.ids[-1])
            if grammar.has_ended:
                sequence.finish = FinishReason.STOP

    def _end(self) -> None:
        for sequence in self._sequences:
            if sequence.finish is not None:
                continue
            if self._stopping.reached(sequence.request, sequence.ids):
                sequence.finish = FinishReason.STOP
            elif len(sequence.ids) >= sequence.limit:
                sequence.finish = FinishReason.LENGTH
