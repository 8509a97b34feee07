"""Describes a recorder's chains: which belong to the agent's main conversation, and which do not."""

from __future__ import annotations

from collections import Counter

from loopwright.render.recording.recorder import Recorder
from loopwright.types import RecordedChain


def describe_chains(recorder: Recorder) -> tuple[RecordedChain, ...]:
    """One description for each chain, in the order of `recorder.chains()`."""
    main = main_conversation(recorder)
    turns: Counter[int] = Counter()
    tokens: Counter[int] = Counter()
    for turn in recorder.turns:
        chain = recorder.chain_of(turn.number)
        turns[chain] += 1
        tokens[chain] += len(turn.ids)
    return tuple(
        RecordedChain(
            number=chain,
            start=start,
            is_main=recorder.conversation_of(chain) == main,
            conversation=recorder.conversation_of(chain),
            messages=recorder.conversation(span.last),
            tools=recorder.turns[span.last].tools,
            turns=turns[chain],
            sampled_tokens=tokens[chain],
        )
        for chain, (start, span) in enumerate(zip(recorder.starts, recorder.spans(), strict=True))
    )


def main_conversation(recorder: Recorder) -> int:
    """The first conversation with tools, or with several turns. A single question without tools is not the main work:
    it may ask for a title, for example. If there are only such questions, it is the first one."""
    conversations = [recorder.conversation_of(recorder.chain_of(turn.number)) for turn in recorder.turns]
    turns = Counter(conversations)
    at_work = (one for one, turn in zip(conversations, recorder.turns, strict=True) if turn.tools or turns[one] > 1)
    return next(at_work, 0)
