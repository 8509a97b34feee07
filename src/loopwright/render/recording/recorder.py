"""The turns of one session, as a tree of token streams (T1, T6, T7).

A call is prepared, then sampled elsewhere, then recorded or not. Preparing changes nothing. A turn whose prompt
continues the end of a chain extends that chain. Any other turn begins a new chain, with its reason; tokens that it
shares with other chains are context there. So each sampled token has mask 1 in exactly one chain, no matter in which
order calls end.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from loopwright.errors import ChainError
from loopwright.ports import Renderer
from loopwright.render.recording.fingerprint import EMPTY, TEXT, chained, prefix_digests, same_thoughts, tools_digest
from loopwright.render.recording.likeliest import packed_likeliest
from loopwright.render.recording.matching import History, Index, quoted, why_new
from loopwright.render.recording.prepared import Placed, Prepared
from loopwright.render.recording.recorded import Recorded
from loopwright.types import ChainStart, Generation, Message, TokenChain, Tool, Turn
from loopwright.types.spans import joined_spans, shifted_spans

RECENT = 8
"""How many of the latest replies are searched for the one that a compacted history quotes."""


@dataclass(frozen=True, slots=True)
class Said:
    """The result of a prepared call: the tokens, and the reply that was read from them. `answer` is its id."""

    generation: Generation
    reply: Message
    answer: str
    created: int = 0
    stop: str | None = None
    wishes: Mapping[str, Any] | None = None
    draws: int = 0


@dataclass(frozen=True, slots=True)
class Span:
    """A chain: its last turn, the position of its first own token, the number of that token's message, and how that
    message began before it."""

    last: int
    first_sampled: int
    first_reply: int
    begun: str = ""


class Recorder:
    """Everything that one session has recorded. It does no I/O and never waits."""

    def __init__(self) -> None:
        self._turns: list[Recorded] = []
        self._chain_of: list[int] = []
        self._last_of: list[int] = []
        self._conversation_of: list[int] = []
        self._conversations = 0
        self._after: list[bytes] = []
        self._length: list[int] = []
        self._by_answer: dict[str, int] = {}
        self._recent: deque[str] = deque(maxlen=RECENT)
        self._index = Index()
        self.sampled_tokens = 0
        self.undelivered: set[int] = set()

    def __len__(self) -> int:
        return len(self._turns)

    @property
    def turns(self) -> Sequence[Recorded]:
        return self._turns

    @property
    def starts(self) -> list[ChainStart]:
        """Why each chain began."""
        return [turn.start for turn in self._turns if turn.start is not None]

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The tools that the model was offered in the latest turn."""
        return self._turns[-1].tools if self._turns else ()

    # Before a turn.

    def history(self, messages: tuple[Message, ...], tools: Sequence[Tool], begun: str = "") -> History:
        return History(messages, tuple(prefix_digests(messages)), tools_digest(tools), begun)

    def asked(self, history: History) -> list[int]:
        """The turns that answered exactly this history and that no other turn continues."""
        alike = [number for number in self._index.asked(history) if self._turns[number].begun == history.begun]
        return [number for number in alike if not self._went_on(number)]

    def number_of(self, answer: str) -> int | None:
        """The number of the turn with this answer id."""
        return self._by_answer.get(answer)

    def tools_of(self, answer: str) -> tuple[Tool, ...]:
        """The tools that the model was offered when it gave this answer."""
        number = self.number_of(answer)
        return () if number is None else self._turns[number].tools

    def conversation_after(self, answer: str) -> tuple[Message, ...] | None:
        """The messages up to an answer, which a request that continues from it inherits. None if there is no such
        answer."""
        number = self.number_of(answer)
        if number is None:
            return None
        messages = self.conversation(number)
        return messages[1:] if self._turns[number].preamble else messages

    def prepare(self, history: History, tools: tuple[Tool, ...], renderer: Renderer, *, preamble: bool) -> Prepared:
        """Find the chain that the history continues, and encode only what is new (T5)."""
        return self.place(history, tools, preamble=preamble).prepare(renderer)

    def place(self, history: History, tools: tuple[Tool, ...], *, preamble: bool) -> Placed:
        """Find the chain that the history continues."""
        parent = self._continued(history)
        if parent is None:
            return Placed(history, tools, preamble, why_new(history, self._index, self._recent))
        stream, conversation = self.stream(parent), self.conversation(parent)
        return Placed(history, tools, preamble, ChainStart.BRANCH, parent, stream, conversation)

    def _continued(self, history: History) -> int | None:
        last = history.messages[-1]
        if last["role"] == TEXT and (after := last.get("after")) is not None:
            return self._unused(self._alike(after))
        for _, turns in self._index.continued(history):
            fitting = [number for number in turns if self._same_thoughts(number, history.messages)]
            if fitting:
                return self._unused(fitting)
        return None

    def _unused(self, fitting: Sequence[int]) -> int:
        """Among equal replies to equal prompts, prefer one that nothing continues yet: so each keeps its chain."""
        free = [number for number in fitting if not self._went_on(number)]
        return (free or fitting)[-1]

    def _alike(self, number: int) -> list[int]:
        """The turns that answered the same with the same ids."""
        stream = self.stream(number)
        return [one for one in self._index.replies[self._after[number]] if self.stream(one) == stream]

    def _same_thoughts(self, number: int, messages: Sequence[Message]) -> bool:
        return all(same_thoughts(messages[self._length[n] - 1], self._turns[n].reply) for n in self._numbers(number))

    # A turn.

    def plan(self, prepared: Prepared, said: Said, sample: int = 0) -> Recorded:
        """The turn as it would be recorded now. `sample` is the number of samples of the same call before it. Nothing
        changes before `add`."""
        goes_on = not sample and prepared.parent is not None and not self._went_on(prepared.parent)
        start = None if goes_on else ChainStart.BRANCH if sample else self._why_now(prepared)
        sampled = said.generation
        Turn(
            prepared.prompt, sampled.ids, sampled.logprobs, sampled.versions, sampled.finish
        )  # refuses odd lengths (T3)
        return Recorded(
            number=len(self._turns) + sample,
            parent=prepared.parent,
            start=start,
            added=prepared.history.messages[prepared.shared_messages :],
            reply=_with_beginning(prepared.history.begun, said.reply),
            tools=prepared.tools if prepared.parent is None else self._turns[prepared.parent].tools,
            context=_packed(prepared.prompt[prepared.shared_tokens :], "i"),
            ids=_packed(sampled.ids, "i"),
            logprobs=_packed(sampled.logprobs, "f"),
            versions=_packed(sampled.versions, "i"),
            finish=sampled.finish,
            answer=said.answer,
            created=said.created,
            stop=said.stop,
            preamble=prepared.preamble,
            wishes=said.wishes or {},
            draws=said.draws,
            begun=prepared.history.begun,
            constrained=sampled.constrained,
            alternatives=packed_likeliest(sampled.alternatives),
        )

    def _why_now(self, prepared: Prepared) -> ChainStart:
        """Why a chain begins. It is decided again now, because a call that ran at the same time may have been the
        first."""
        if prepared.why is ChainStart.FIRST:
            return why_new(prepared.history, self._index, self._recent)
        return prepared.why

    def add(self, turn: Recorded, history: History | None = None) -> None:
        """Record a turn that `plan` made, with its history, or a turn that was recorded before a restart."""
        if turn.number != len(self._turns):
            raise ChainError(
                f"turn {turn.number} cannot follow {len(self._turns)} others", remedy="add turns in their order"
            )
        before = EMPTY if turn.parent is None else self._after[turn.parent]
        digests: Sequence[bytes]
        if history is None:
            digests, tools = prefix_digests(turn.added, before), tools_digest(turn.tools)
        else:
            digests, tools = history.digests[len(history.digests) - len(turn.added) :], history.tools
        prompt = digests[-1] if digests else before
        reply = chained(prompt, turn.reply)
        origin = None if turn.start is None else self._origin(turn, digests)
        self._index.add(turn.number, tools, prompt, reply, digests)
        self._turns.append(turn)
        self.sampled_tokens += len(turn.ids)
        self._recent.append(str(turn.reply["content"]).strip())
        self._after.append(reply)
        self._length.append(len(turn.added) + 1 + (0 if turn.parent is None else self._length[turn.parent]))
        self._by_answer[turn.answer] = turn.number
        self.undelivered.add(turn.number)
        if turn.start is None and turn.parent is not None:
            self._chain_of.append(self._chain_of[turn.parent])
            self._last_of[self._chain_of[turn.parent]] = turn.number
        else:
            new = self._conversations
            self._conversation_of.append(new if origin is None else self._conversation_of[self._chain_of[origin]])
            self._conversations += origin is None
            self._chain_of.append(len(self._last_of))
            self._last_of.append(turn.number)

    def _origin(self, turn: Recorded, digests: Sequence[bytes]) -> int | None:
        """A turn of the conversation that a new chain belongs to. None if it begins a conversation."""
        if turn.start in (ChainStart.FIRST, ChainStart.SEPARATE):
            return None
        if turn.parent is not None:
            return turn.parent
        if turn.start is ChainStart.COMPACTED:
            place = quoted(turn.added, self._recent)
            return None if place is None else len(self._turns) - len(self._recent) + place
        return next((self._index.seen[digest] for digest in reversed(digests) if digest in self._index.seen), None)

    def _went_on(self, number: int) -> bool:
        """Whether a turn is no longer the end of its chain."""
        return self._last_of[self._chain_of[number]] != number

    def mark_delivered(self, answers: Sequence[str]) -> list[int]:
        """Record that the client has these answers. Returns the turns that were not marked before."""
        news = []
        for answer in answers:
            number = self._by_answer.get(answer)
            if number in self.undelivered:
                self.undelivered.remove(number)
                news.append(number)
        return news

    # After it.

    def stream(self, number: int) -> tuple[int, ...]:
        """All ids up to the end of a turn, as the engine had them."""
        return tuple(
            np.concatenate([part for turn in self._path(number) for part in (turn.context, turn.ids)]).tolist()
        )

    def prompt(self, number: int) -> tuple[int, ...]:
        """The ids that the engine received for a turn."""
        stream = self.stream(number)
        return stream[: len(stream) - len(self._turns[number].ids)]

    def prompt_tokens(self, number: int) -> tuple[int, int]:
        """The number of ids in a turn's prompt, and how many of them were its parent's stream."""
        shared = sum(len(turn.context) + len(turn.ids) for turn in self._path(number)) - len(self._turns[number].ids)
        own = len(self._turns[number].context)
        return shared, shared - own

    def conversation(self, number: int) -> tuple[Message, ...]:
        """The messages up to and with a turn's reply, as they were when it was recorded."""
        return tuple(message for turn in self._path(number) for message in (*turn.added, turn.reply))

    def as_turns(self) -> tuple[Turn, ...]:
        """The turns as the engine saw them."""
        return tuple(self._as_turn(number) for number in range(len(self._turns)))

    def _as_turn(self, number: int) -> Turn:
        turn = self._turns[number]
        return Turn(self.prompt(number), *_tuples(turn), turn.finish)

    def chain_of(self, number: int) -> int:
        """The chain that a turn belongs to."""
        return self._chain_of[number]

    def conversation_of(self, chain: int) -> int:
        """The conversation that a chain belongs to: the one that it grew from, or a new one."""
        return self._conversation_of[chain]

    def spans(self) -> list[Span]:
        """For each chain, where its own tokens begin, and its last turn."""
        firsts = [turn.number for turn in self._turns if turn.start is not None]
        return [
            Span(last, self.prompt_tokens(first)[0], self._length[first] - 1, self._turns[first].begun)
            for first, last in zip(firsts, self._last_of, strict=True)
        ]

    def chains(self) -> tuple[TokenChain, ...]:
        """One linear sequence for each chain. Tokens that it shares with an earlier chain are context in it."""
        return tuple(self._chain(chain, last) for chain, last in enumerate(self._last_of))

    def _chain(self, chain: int, last: int) -> TokenChain:
        turns = list(self._path(last))
        ids = np.concatenate([part for turn in turns for part in (turn.context, turn.ids)])
        mask, logprobs = np.zeros(len(ids), np.bool_), np.zeros(len(ids), np.float32)
        versions = np.empty(len(ids), np.int32)
        versions.fill(-1)
        start, end = ChainStart.FIRST, 0
        constrained: list[tuple[int, int]] = []
        for turn in turns:
            begin = end + len(turn.context)
            end = begin + len(turn.ids)
            if self._chain_of[turn.number] == chain:
                start = turn.start or start
                mask[begin:end] = True
                logprobs[begin:end] = turn.logprobs
                versions[begin:end] = turn.versions
                constrained += shifted_spans(turn.constrained, begin)
        return TokenChain(ids, mask, logprobs, versions, start, constrained=joined_spans(constrained))

    def _path(self, number: int) -> Iterator[Recorded]:
        """The turns from the first of the conversation to this one."""
        return (self._turns[n] for n in reversed(self._numbers(number)))

    def _numbers(self, number: int) -> list[int]:
        numbers: list[int] = []
        at: int | None = number
        while at is not None:
            numbers.append(at)
            at = self._turns[at].parent
        return numbers


def _with_beginning(begun: str, reply: Message) -> Message:
    return {**reply, "content": begun + reply["content"]} if begun else reply


def _packed(values: Sequence[float], kind: str) -> np.ndarray[Any, Any]:
    """An array of int32 ("i") or float32 ("f"). `np.array` takes twice as long, to find out what the values are."""
    return np.frombuffer(struct.pack(f"{len(values)}{kind}", *values), kind)


def _tuples(turn: Recorded) -> tuple[tuple[int, ...], tuple[float, ...], tuple[int, ...]]:
    return tuple(turn.ids.tolist()), tuple(turn.logprobs.tolist()), tuple(turn.versions.tolist())
