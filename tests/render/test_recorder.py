"""What is recorded are the chains that the engine really saw, whatever an agent asks (T1, T2, T3, T6, T7)."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from loopwright.core.chains import turns_of
from loopwright.render.recording.describing import describe_chains
from loopwright.render.recording.prepared import Prepared
from loopwright.render.recording.recorder import Recorder, Said
from loopwright.testing import CharRenderer, encode_chars
from loopwright.types import ChainStart, FinishReason, Generation, Message, RecordedChain, Tool

RENDERER = CharRenderer()
ADD: Tool = {"name": "add", "description": "Adds.", "parameters": {}}
SUMMARY = "so far we have added one and two"


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def said(text: str) -> Message:
    return {"role": "assistant", "content": text}


class Talk:
    """Asks a recorder, and remembers what an engine would have been asked."""

    def __init__(self) -> None:
        self.recorder = Recorder()
        self.restored = Recorder()
        self.engine: list[tuple[tuple[int, ...], tuple[int, ...]]] = []

    def prepare(self, *messages: Message, tools: tuple[Tool, ...] = ()) -> Prepared:
        history = self.recorder.history(messages, tools)
        return self.recorder.prepare(history, tools, RENDERER, preamble=False)

    def answer(self, prepared: Prepared, text: str) -> None:
        number, ids = len(self.engine), encode_chars(text)
        # Versions and logprobs name turn and position, so that each sampled token can be told apart.
        logprobs = tuple(-float(100 * number + place) for place in range(len(ids)))
        sampled = Generation(ids, logprobs, (number,) * len(ids), FinishReason.STOP)
        turn = self.recorder.plan(prepared, Said(sampled, said(text), f"a{number}"))
        self.recorder.add(turn, prepared.history)
        self.restored.add(turn)
        self.engine.append((prepared.prompt, ids))

    def ask(self, *messages: Message, text: str, tools: tuple[Tool, ...] = ()) -> None:
        self.answer(self.prepare(*messages, tools=tools), text)

    def starts(self) -> list[ChainStart]:
        return [chain.start for chain in self.recorder.chains()]

    def mains(self) -> list[bool]:
        return [chain.is_main for chain in describe_chains(self.recorder)]


def check(talk: Talk) -> None:
    """T1, T2, T3, T7: every sampled token once, after exactly what the engine had before it."""
    chains = talk.recorder.chains()
    turns = [turn for chain in chains for turn in turns_of(chain)]
    assert Counter((turn.prompt_ids, turn.ids) for turn in turns) == Counter(talk.engine)
    marks = [mark for chain in chains for mark in chain.logprobs[chain.mask].tolist()]
    assert len(marks) == len(set(marks)) == sum(len(ids) for _, ids in talk.engine)
    for chain in chains:
        assert (chain.versions[~chain.mask] == -1).all()
        assert (chain.logprobs[~chain.mask] == 0).all()
    assert [(turn.prompt_ids, turn.ids) for turn in talk.recorder.as_turns()] == talk.engine
    # One that was restored from the turns alone has looked up nothing, and finds the same.
    assert talk.restored._index == talk.recorder._index
    assert talk.restored._conversation_of == talk.recorder._conversation_of
    assert talk.restored.sampled_tokens == sum(len(ids) for _, ids in talk.engine)


texts = st.sampled_from(["a", "b", "", "é", "a b"])


@st.composite
def histories(draw: st.DrawFn, talk: Talk) -> tuple[tuple[Message, ...], tuple[Tool, ...]]:
    """One that goes on from a recorded reply, goes back into a conversation, rewrites it or begins anew."""
    known: list[tuple[Message, ...]] = [()]
    known += [talk.recorder.conversation(number) for number in range(len(talk.recorder))]
    before = list(draw(st.sampled_from(known)))
    before = before[: draw(st.one_of(st.just(len(before)), st.integers(0, len(before))))]
    if before and draw(st.integers(0, 3)) == 0:
        place = draw(st.integers(0, len(before) - 1))
        before[place] = {**before[place], "content": draw(texts)}
    return (*before, user(draw(texts))), draw(st.sampled_from([(), (ADD,)]))


@given(st.data())
def test_every_sampled_token_is_trained_once_on_what_the_engine_saw(data: st.DataObject) -> None:
    talk = Talk()
    waiting: list[Prepared] = []
    for _ in range(data.draw(st.integers(0, 7))):
        messages, tools = data.draw(histories(talk))
        waiting.append(talk.prepare(*messages, tools=tools))
        # Some calls are under way while others are asked, and they end in any order.
        while len(waiting) > 0 and data.draw(st.booleans()):
            talk.answer(waiting.pop(data.draw(st.integers(0, len(waiting) - 1))), data.draw(texts))
    check(talk)
    starts = talk.starts()
    assert starts.count(ChainStart.FIRST) == (1 if talk.engine else 0)
    found = describe_chains(talk.recorder)
    assert [chain.start for chain in found] == starts
    assert sum(chain.turns for chain in found) == len(talk.engine)
    assert [chain.sampled_tokens for chain in found] == [chain.sampled for chain in talk.recorder.chains()]
    assert not found or any(chain.is_main for chain in found)


def test_half_a_surrogate_pair_is_a_message_like_any_other() -> None:
    talk = Talk()
    odd = user("\ud83d")
    talk.ask(odd, text="a")
    talk.ask(odd, said("a"), user("b"), text="c")
    assert talk.starts() == [ChainStart.FIRST]
    talk.ask(user("\ud83e"), said("a"), user("b"), text="c")
    assert talk.starts() == [ChainStart.FIRST, ChainStart.SEPARATE]


def test_a_question_beside_the_work_and_a_sub_agent_are_not_the_main_conversation() -> None:
    talk = Talk()
    talk.ask(user("a title for this?"), text="adding")
    talk.ask(user("add"), text="asking", tools=(ADD,))
    talk.ask(user("you are a sub-agent"), text="yes", tools=(ADD,))
    talk.ask(user("add"), said("asking"), user("more"), text="done", tools=(ADD,))
    assert talk.starts() == [ChainStart.FIRST, ChainStart.SEPARATE, ChainStart.SEPARATE]
    assert talk.mains() == [False, True, False]
    short = Talk()
    short.ask(user("a title for this?"), text="adding")
    short.ask(user("add"), text="19", tools=(ADD,))
    assert short.mains() == [False, True], "tools are work, also in a single turn"


def test_without_tools_the_first_conversation_of_several_turns_is_the_main_one() -> None:
    talk = Talk()
    talk.ask(user("title"), text="t")
    talk.ask(user("plan"), text="p")
    talk.ask(user("plan"), said("p"), user("go"), text="q")
    assert talk.mains() == [False, True]
    lone = Talk()
    lone.ask(user("plan"), text="p")
    lone.ask(user("solve"), text="s")
    assert lone.mains() == [True, False]


def test_what_grew_from_the_main_conversation_belongs_to_it() -> None:
    talk = Talk()
    start = (user("add"), said("one"))
    talk.ask(user("add"), text="one", tools=(ADD,))
    talk.ask(user("elsewhere"), text="sub", tools=(ADD,))
    talk.ask(*start, user("sum up"), text=SUMMARY)
    talk.ask(user(f"before: {SUMMARY}"), text="on", tools=(ADD,))
    talk.ask(user("add"), user("dropped a turn"), text="two", tools=(ADD,))
    talk.ask(user("elsewhere"), said("SUB"), user("x"), text="sub", tools=(ADD,))
    assert [(chain.start, chain.conversation) for chain in describe_chains(talk.recorder)] == [
        (ChainStart.FIRST, 0),
        (ChainStart.SEPARATE, 1),
        (ChainStart.TOOLS, 0),
        (ChainStart.COMPACTED, 0),
        (ChainStart.BRANCH, 0),
        (ChainStart.REWRITTEN, 1),
    ]
    assert talk.mains() == [True, False, True, True, True, False]
    check(talk)


def test_a_description_says_what_the_chain_is_about() -> None:
    talk = Talk()
    talk.ask(user("add"), text="one", tools=(ADD,))
    talk.ask(user("add"), said("one"), user("more"), text="two", tools=(ADD,))
    facts: dict[str, Any] = {"number": 0, "start": ChainStart.FIRST, "is_main": True, "conversation": 0}
    messages = (user("add"), said("one"), user("more"), said("two"))
    assert describe_chains(talk.recorder) == (
        RecordedChain(**facts, messages=messages, tools=(ADD,), turns=2, sampled_tokens=8),
    )
    assert talk.recorder.tools == (ADD,)
