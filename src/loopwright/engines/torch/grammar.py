"""Grammars that answers keep: which tokens may come next, by llguidance.

A grammar is compiled once, outside the compute thread, and every sequence gets a state of its own. A state that goes on
with an answer first reads the tokens that the answer has. The library tokenizes text that the grammar spells out as the
tokenizer would, so such text has one legal token at each place.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Sequence as Seq
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from loopwright.errors import ConstraintError
from loopwright.render.grammar import WRITING
from loopwright.types import Constraint, GenerateRequest, GrammarKind

MOST_KEPT = 64
"""How many compiled grammars are kept. Agents send the same few schemas again and again."""
WORD = 32
"""Masks have a bit for each token, in words of so many."""


class GrammarState:
    """One answer's place in its grammar."""

    def __init__(self, matcher: Any, tokenizer_ends: Seq[int], stop_ids: Seq[int]) -> None:
        self._matcher = matcher
        self._tokenizer_ends = tokenizer_ends
        self._stop_ids = stop_ids

    @property
    def has_ended(self) -> bool:
        """Whether nothing more may come, and there is no token to say so."""
        return not self._stop_ids and bool(self._matcher.is_stopped())

    @property
    def error(self) -> str:
        """What went wrong, or nothing. After an error no mask is right."""
        return str(self._matcher.get_error()) if self._matcher.is_error() else ""

    def fill(self, masks: npt.NDArray[np.int32], row: int) -> None:
        """Write a bit for each token that may come next into a row of `masks`. Where the answer may end, these are also
        the request's own stop tokens."""
        mask = masks[row]
        self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        may_end = bool(self._matcher.is_accepting())
        bits = mask.view(np.uint32)
        for token in self._tokenizer_ends:
            bits[token // WORD] &= ~np.uint32(1 << token % WORD)
        for token in self._stop_ids if may_end else ():
            bits[token // WORD] |= np.uint32(1 << token % WORD)

    def only_ends(self, allowed: npt.NDArray[np.uint8]) -> bool:
        """Whether all that is allowed are tokens that end the answer."""
        ends = sum(int(allowed[token]) for token in set(self._stop_ids))
        return ends > 0 and ends == int(allowed.sum())

    def read(self, token: int) -> None:
        """Go on with a token that was sampled from the mask."""
        if token not in self._stop_ids:
            self._matcher.consume_token(token)


class Grammars:
    """The grammars of one engine. Any thread may ask for states."""

    def __init__(self, tokenizer: Any, vocabulary: int) -> None:
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._lock = threading.Lock()
        self._library: Any = None
        self._known: Any = None
        self._compiled: dict[Constraint, Any] = {}

    def state(self, request: GenerateRequest, constraint: Constraint) -> GrammarState:
        """The state of a new answer, or of one that goes on. Raises ConstraintError if the grammar is wrong, or is not
        one that the library can take."""
        with self._lock:
            matcher = self._matcher(constraint).deep_copy()
            ends = tuple(self._known.eos_tokens)
        before = list(request.prompt_ids[len(request.prompt_ids) - request.sampled_before :])
        if before and not matcher.consume_tokens(before):
            raise ConstraintError(
                f"the answer cannot go on: its first {len(before)} tokens do not keep its grammar",
                remedy="ask for the whole answer again",
            )
        stop_ids = [token for token in request.sampling.stop_token_ids if 0 <= token < self._vocabulary]
        return GrammarState(matcher, ends, stop_ids)

    def _matcher(self, constraint: Constraint) -> Any:
        if constraint not in self._compiled:
            if len(self._compiled) >= MOST_KEPT:
                del self._compiled[next(iter(self._compiled))]
            self._compiled[constraint] = self._compile(constraint)
        return self._compiled[constraint]

    def _compile(self, constraint: Constraint) -> Any:
        self._prepare()
        matchers = self._library.LLMatcher
        try:
            if constraint.kind is GrammarKind.JSON_SCHEMA:
                grammar = matchers.grammar_from_json_schema(constraint.text, defaults=dict(WRITING))
            else:
                grammar = matchers.grammar_from_lark(constraint.text)
        except ValueError as error:
            raise _unfit(str(error)) from error
        matcher = matchers(self._known, grammar, log_level=0)
        if matcher.is_error():
            raise _unfit(matcher.get_error())
        return matcher

    def _prepare(self) -> None:
        """Load the library and tell it the vocabulary. This takes a second with a large one, so only who needs it
        waits."""
        if self._known is not None:
            return
        try:
            self._library = importlib.import_module("llguidance")
        except ImportError as error:
            raise ConstraintError(
                "this engine cannot constrain answers: the package llguidance is not installed",
                remedy="pip install 'loopwright[torch]' where the engine runs, or ask without a schema",
            ) from error
        core: Any = getattr(self._tokenizer, "backend_tokenizer", None)
        if core is None:
            kind = type(self._tokenizer).__name__
            raise ConstraintError(
                f"answers of this model cannot be constrained: llguidance cannot read a {kind}",
                remedy="use a model with a fast tokenizer (tokenizer.json), or ask without a schema",
            )
        try:
            self._known = self._library.LLTokenizer(
                core.to_str(), n_vocab=self._vocabulary, eos_token=self._tokenizer.eos_token_id
            )
        except ValueError as error:
            raise ConstraintError(
                f"answers of this model cannot be constrained: llguidance cannot read its tokenizer: {error}",
                remedy="use a model with another tokenizer, or ask without a schema",
            ) from error


class Legal:
    """Which tokens may come next in some rows of a batch."""

    def __init__(self, states: Seq[tuple[int, GrammarState]], vocabulary: int, device: torch.device) -> None:
        """`states` are pairs of a row and its state."""
        masks = np.zeros((len(states), -(-vocabulary // WORD)), np.int32)
        for place, (_, state) in enumerate(states):
            state.fill(masks, place)
        bits = np.unpackbits(masks.view(np.uint8), axis=1, count=vocabulary, bitorder="little")
        self.counts: list[int] = bits.sum(axis=1, dtype=np.int64).tolist()
        """How many choices each of the rows has."""
        for place, (_, state) in enumerate(states):
            if not self.counts[place]:
                bits[place] = 1
            elif state.only_ends(bits[place]):
                # Several tokens that end the answer are one choice: to end it.
                self.counts[place] = 1
        self.rows = torch.tensor([row for row, _ in states], device=device)
        self.allowed = torch.from_numpy(bits.view(np.bool_)).to(device)

    def peaks(self, scaled: torch.Tensor) -> torch.Tensor:
        """The logits with those of illegal tokens at minus infinity. Other rows keep every bit."""
        return scaled.index_copy(0, self.rows, scaled[self.rows].masked_fill(~self.allowed, -torch.inf))

    def chances(self, weights: torch.Tensor, peaks: torch.Tensor) -> torch.Tensor:
        """The weights with those of the constrained rows replaced by what is legal. Other rows keep every bit."""
        return weights.index_copy(0, self.rows, peaks[self.rows].softmax(dim=-1))

    def sound(self, ids: torch.Tensor, peaks: torch.Tensor) -> torch.Tensor:
        """The chosen ids, with the likeliest legal token where rounding has led to an illegal one."""
        mine = ids[self.rows]
        legal = self.allowed.gather(1, mine[:, None])[:, 0]
        return ids.index_copy(0, self.rows, torch.where(legal, mine, peaks[self.rows].argmax(dim=-1)))

    def logprobs(self, scaled: torch.Tensor, ids: torch.Tensor) -> list[float]:
        """The logprobs of the constrained rows over the whole vocabulary (T8). They are finite, also for a token that
        the model would never choose."""
        rows = scaled[self.rows].log_softmax(dim=-1)
        found: list[float] = rows.gather(1, ids[self.rows][:, None]).flatten().tolist()
        return found


def _unfit(why: str) -> ConstraintError:
    return ConstraintError(
        f"no answer can be constrained by it: {why}",
        remedy="correct the schema, or leave out what is not supported",
    )
