"""Continuous batching, step by step. There are no threads and no clock here, so every order of events can be tested.

    submit -> waiting -> (a slot is free) -> prompt computed, once per distinct prompt -> live
           -> one token per step -> finished

Requests join and leave at every step. Each token is stamped with the version of the weights that sampled it (T4).
"""

from __future__ import annotations

import torch

from loopwright.engines.torch.forward import Forward
from loopwright.engines.torch.grammar import GrammarState
from loopwright.engines.torch.next_token import NextToken
from loopwright.engines.torch.sequence import Prefix, Sequence
from loopwright.engines.torch.stopping import Stopping
from loopwright.models.device import CPU, give_back
from loopwright.models.load import LoadedModel
from loopwright.models.memory import memory_of
from loopwright.types import FinishReason, GenerateRequest, ProbeAnswer


class EngineBatch:
    """All requests of one engine."""

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        max_batch: int,
        cache_tokens: int = 0,
        version: int = 0,
        forward: Forward | None = None,
    ) -> None:
        self.version = version
        self._loaded = loaded
        self.waiting: list[Sequence] = []
        self.live: list[Sequence] = []
        device: torch.device = loaded.model.device
        # Named wherever a tensor is made. As the default of a context, every call of torch would pass through Python.
        self._device = device
        self._max_batch = max_batch
        self._cache_tokens = cache_tokens
        self._max_context = loaded.max_context
        self._stopping = Stopping(loaded.tokenizer)
        self._next_token = NextToken(self._stopping, device)
        self._prefixes: dict[tuple[int, ...], Prefix] = {}
        self._ended: list[Sequence] = []
        """The requests that were the last to end before the batch became idle. They keep their rows until the next
        request comes. Only then are their keys and values copied into the cache, because new weights, which make them
        useless, often come first."""
        self._forward = forward or Forward(loaded, cache_tokens=cache_tokens)
        self._gives_back = device.type != CPU

    @property
    def idle(self) -> bool:
        return not (self.waiting or self.live)

    @property
    def room(self) -> str:
        """Where it computes, and what takes memory there, for an error."""
        asked = len(self.live) + len(self.waiting)
        settings = f"rollout.engine.max_batch {self._max_batch}, cache_tokens {self._cache_tokens:,}"
        return f"{memory_of(self._loaded.model.device)} with {asked} requests ({settings})"

    def submit(self, request: GenerateRequest, grammar: GrammarState | None = None) -> Sequence:
        """Queue a request. If another request has the same prompt, they share it. `grammar` is its own state of the
        grammar that its answer keeps."""
        self._keep_ended()
        prefix = self._prefixes.setdefault(request.prompt_ids, Prefix(request.prompt_ids))
        prefix.users += 1
        room = self._max_context - len(request.prompt_ids)
        sequence = Sequence(request, prefix, limit=min(request.sampling.max_new_tokens, room), grammar=grammar)
        self.waiting.append(sequence)
        return sequence

    def _keep_ended(self) -> None:
        ended, self._ended = self._ended, []
        try:
            for sequence in reversed(ended):
                self.drop(sequence)
        except (RuntimeError, MemoryError):
            # There was no memory. No other request is here, so only cached keys and values are lost.
            self.reset()

    @torch.inference_mode()
    def drop(self, sequence: Sequence) -> None:
        """Free everything that a request holds, finished or not. Its keys and values may stay in the cache for
        others."""
        if sequence in self.waiting:
            self.waiting.remove(sequence)
        elif sequence in self.live:
            self.live.remove(sequence)
        self._forward.keep(sequence)
        self._release(sequence)

    def _release(self, sequence: Sequence) -> None:
        self._forward.release(sequence)
        prefix = sequence.prefix
        prefix.users -= 1
        if prefix.users == 0:
            del self._prefixes[prefix.ids]
            self._forward.release(prefix)

    def reset(self) -> None:
        """Forget all requests and the whole cache."""
        self.waiting, self.live, self._ended = [], [], []
        self._prefixes = {}
        self._next_token = NextToken(self._stopping, self._device)
        self._forward.forget()

    @torch.inference_mode()
    def step(self, *, admit: bool = True) -> list[Sequence]:
        """Admit the requests that fit, sample one token for every live sequence, and return the finished ones."""
        going_on = list(self.live)
        joined = self._admit() if admit else []
        self.live += joined
        starting = [s for s in joined if s.limit > 0]
        wanted = {id(s.prefix): s.prefix for s in starting if s.prefix.logits is None}
        ordered, logits = self._forward.advance(going_on, wanted.values())
        first = [s.prefix.logits for s in starting if s.prefix.logits is not None]
        self._sample([*ordered, *starting], [*([logits] if ordered else []), *(x[None] for x in first)])
        finished = [s for s in self.live if s.finish is not None]
        leaving = sorted(finished, key=_place)
        if leaving and len(leaving) == len(self.live) and not self.waiting:
            self.live, self._ended = [], leaving
            return finished
        for sequence in reversed(leaving):
            self.drop(sequence)
        return finished

    @torch.inference_mode()
    def reload(self, version: int) -> None:
        """Continue with other weights: the keys and values of all live sequences are computed again."""
        self.version = version
        while self._ended:
            self._release(self._ended.pop())
        self._forward.recompute(self._prefixes.values(), self.live)

    @torch.inference_mode()
    def probe(self, request: GenerateRequest) -> ProbeAnswer:
        """Score a prompt, and sample after it by the same steps as for every request. It has a batch and a cache of its
        own, so live sequences stand still, and it is computed with the copy of the weights that they use."""
        beside = EngineBatch(self._loaded, max_batch=1, version=self.version, forward=self._forward.beside())
        sequence = beside.submit(request)
        scored = beside._forward.score(sequence.prefix)
        while sequence.finish is None:
            beside.step()
        return ProbeAnswer(tuple(scored.tolist()), sequence.generation())

    @torch.inference_mode()
    def rest(self) -> None:
        """Free memory that can be filled again quickly. To be called when no request is expected for a while.

        On a GPU that includes all keys and values, if no request is live: a colocated learner needs the memory, and
        what is cached is useless after it has trained. On a CPU the pages would only have to be mapped again."""
        self._forward.unpack()
        if not self._gives_back or self.live:
            return
        while self._ended:
            self._release(self._ended.pop())
        for prefix in self._prefixes.values():
            prefix.row, prefix.known, prefix.logits = None, 0, None
        self._forward.forget()
        give_back(self._device)

    def _admit(self) -> list[Sequence]:
        free = self._max_batch - len(self.live)
        joined, self.waiting = self.waiting[:free], self.waiting[free:]
        for sequence in joined:
            if sequence.limit <= 0:
                sequence.finish = FinishReason.LENGTH
        return joined

    def _sample(self, sequences: list[Sequence], logits: list[torch.Tensor]) -> None:
        if sequences:
            self._next_token = self._next_token.of(sequences)
            self._next_token.sample(logits[0] if len(logits) == 1 else torch.cat(logits), self.version)


def halving(max_batch: int) -> str:
    """What halves the keys and values of live requests."""
    return (
        f"set rollout.engine.max_batch to {max(1, max_batch // 2)}, which halves the keys and values of live requests"
    )


def _place(sequence: Sequence) -> int:
    """The index of its row. Remove the last rows first: rows after a removed row have to move."""
    return -1 if sequence.row is None else sequence.row.index
