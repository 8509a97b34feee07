"""Partial rollouts: an interrupted one keeps its tokens and versions, and goes on as if nothing had been (T1, T4)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loopwright.agents import EnginePolicy, SingleTurn
from loopwright.engines.torch.engine import TorchEngine
from loopwright.errors import EngineError, InterruptionError
from loopwright.models.compute import ComputeThread
from loopwright.models.load import LoadedModel, load_model
from loopwright.ports import Policy
from loopwright.render.chat_template import ChatTemplateRenderer
from loopwright.testing import CharRenderer, ScriptedEngine, UnhurriedForward, encode_chars
from loopwright.types import (
    Episode,
    FinishReason,
    Message,
    PauseMode,
    Sampling,
    StopReason,
    Task,
    TokenChain,
)

ASK: tuple[Message, ...] = ({"role": "user", "content": "hi"},)
TASK = Task.ask("greet", "hi")


def policy_on(
    engine: Any, *, resumable: bool = True, resume_from: Sequence[TokenChain] = (), **sampling: Any
) -> EnginePolicy:
    return EnginePolicy(
        engine, CharRenderer(), Sampling(**sampling), "a/0/0/0", 1000, resumable=resumable, resume_from=resume_from
    )


async def interrupt(engine: ScriptedEngine, call: asyncio.Task[Any], tokens: int) -> None:
    """Pause the engine in the middle of an answer, with new weights after it."""
    for _ in range(tokens + 2):
        await asyncio.sleep(0)
    await engine.pause(PauseMode.ABORT)
    await engine.load(engine.version + 1)
    await asyncio.wait([call])
    await engine.resume()


def writes(text: str) -> Any:
    """An engine that writes `text`, wherever it is asked to go on."""

    def answer(request: Any) -> list[int]:
        done = request.sampled_before
        return list(encode_chars(text))[done:]

    return answer


async def interrupted(engine: ScriptedEngine, tokens: int = 4, **sampling: Any) -> Episode:
    policy = policy_on(engine, **sampling)
    call = asyncio.create_task(SingleTurn().run(TASK, policy))
    await interrupt(engine, call, tokens)
    assert isinstance(call.exception(), InterruptionError)
    assert isinstance(policy.fault, InterruptionError)
    return policy.episode(policy.transcript, StopReason.ABORTED)


async def test_a_partial_episode_keeps_tokens_and_versions_and_claims_no_answer() -> None:
    episode = await interrupted(ScriptedEngine(writes("a long answer"), steps=1))
    (chain,) = episode.chains
    assert 0 < chain.sampled < len("a long answer")
    assert set(chain.versions[chain.mask].tolist()) == {0}
    assert (episode.stop, episode.answer) == (StopReason.ABORTED, "")


async def test_going_on_asks_only_for_the_rest_and_joins_it() -> None:
    engine = ScriptedEngine(writes("a long answer"), steps=1)
    partial = await interrupted(engine, max_new_tokens=100)
    policy = policy_on(engine, resume_from=partial.chains, max_new_tokens=100)
    messages = await SingleTurn().run(TASK, policy)
    (old,), (chain,) = partial.chains, policy.episode(messages).chains
    first, second = engine.requests
    assert messages[-1]["content"] == "a long answer"
    assert second.prompt_ids == tuple(old.ids.tolist()), "T1: the prompt of the rest is all that went before"
    assert second.sampling.max_new_tokens == 100 - old.sampled
    assert second.sampling.seed == first.sampling.seed
    assert second.sampled_before == old.sampled
    versions = chain.versions[chain.mask].tolist()
    assert versions == [0] * old.sampled + [1] * (chain.sampled - old.sampled)


async def test_a_rollout_may_be_interrupted_again_and_again() -> None:
    engine = ScriptedEngine(writes("a long answer"), steps=1)
    partial = await interrupted(engine)
    policy = policy_on(engine, resume_from=partial.chains)
    call = asyncio.create_task(SingleTurn().run(TASK, policy))
    await interrupt(engine, call, 3)
    again = policy.episode(policy.transcript, StopReason.ABORTED)
    last = policy_on(engine, resume_from=again.chains)
    messages = await SingleTurn().run(TASK, last)
    assert messages[-1]["content"] == "a long answer"
    (chain,) = last.episode(messages).chains
    assert sorted(set(chain.versions[chain.mask].tolist())) == [0, 1, 2]


async def test_an_interruption_before_the_first_token_leaves_nothing_to_go_on_from() -> None:
    class Full(ScriptedEngine):
        async def generate(self, request: Any, on_part: Any = None) -> Any:
            self.requests.append(request)
            return (await super().generate(request)).__class__((), (), (), FinishReason.ABORT)

    policy = policy_on(Full(["x"]))
    with pytest.raises(InterruptionError):
        await policy.reply(ASK)
    assert policy.episode(policy.transcript, StopReason.ABORTED).chains == ()


async def test_what_was_whole_is_heard_again_without_the_engine() -> None:
    """A loop of two turns, interrupted in its second: the first is not sampled twice."""

    class TwoTurns:
        resumable = True

        async def run(self, task: Task, policy: Policy) -> Sequence[Message]:
            messages = [*task.messages, (await policy.reply(task.messages)).message]
            messages.append({"role": "user", "content": "more"})
            return [*messages, (await policy.reply(messages)).message]

    first_answer = encode_chars("one")

    def answer(request: Any) -> list[int]:
        text = "one" if "more" not in CharRenderer().text(request.prompt_ids) else "a long answer"
        return list(encode_chars(text))[request.sampled_before :]

    engine = ScriptedEngine(answer, steps=1)
    policy = policy_on(engine)
    call = asyncio.create_task(TwoTurns().run(TASK, policy))
    await interrupt(engine, call, len(first_answer) + 8)
    partial = policy.episode(policy.transcript, StopReason.ABORTED)
    asked = len(engine.requests)
    policy = policy_on(engine, resume_from=partial.chains)
    messages = await TwoTurns().run(TASK, policy)
    assert len(engine.requests) == asked + 1
    assert [m["content"] for m in messages if m["role"] == "assistant"] == ["one", "a long answer"]
    assert len(policy.episode(messages).chains) == 1


async def test_a_loop_that_asks_something_else_starts_afresh() -> None:
    engine = ScriptedEngine(writes("a long answer"), steps=1)
    partial = await interrupted(engine)
    policy = policy_on(engine, resume_from=partial.chains)
    await policy.reply([{"role": "user", "content": "ho"}])
    assert engine.requests[-1].sampled_before == 0
    assert policy.turns[0].versions == (1,) * len(policy.turns[0].ids)


async def test_a_recorded_turn_is_given_out_once() -> None:
    """Equal prompts are two samples, also after an interruption."""
    engine = ScriptedEngine(writes("a long answer"), steps=1)
    partial = await interrupted(engine)
    policy = policy_on(engine, resume_from=partial.chains)
    await policy.reply(ASK)
    await policy.reply(ASK)
    assert [request.sampled_before > 0 for request in engine.requests[-2:]] == [True, False]


async def test_after_an_interruption_nothing_more_is_asked() -> None:
    engine = ScriptedEngine(writes("a long answer"), steps=1)
    policy = policy_on(engine)
    call = asyncio.create_task(policy.reply(ASK))
    await interrupt(engine, call, 3)
    asked = len(engine.requests)
    with pytest.raises(InterruptionError):
        await policy.reply(ASK)
    assert (len(engine.requests), type(policy.fault)) == (asked, InterruptionError)


async def test_a_loop_that_is_not_resumable_is_not_interrupted_but_fails() -> None:
    engine = ScriptedEngine(writes("a long answer"), steps=1)
    policy = policy_on(engine, resumable=False)
    call = asyncio.create_task(policy.reply(ASK))
    await interrupt(engine, call, 3)
    assert type(call.exception()) is EngineError
    assert policy.turns == ()


# With a real model: what is sampled depends on seed and position only, so an interruption changes nothing.


@pytest.fixture(scope="module")
def loaded(tiny_llama_folder: Path) -> LoadedModel:
    model = load_model(str(tiny_llama_folder), cache=tiny_llama_folder)
    return replace(model, forward=UnhurriedForward(model.forward))


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
async def test_under_equal_weights_the_interrupted_answer_equals_the_uninterrupted_one(
    loaded: LoadedModel, temperature: float
) -> None:
    renderer = ChatTemplateRenderer(loaded.tokenizer)
    sampling = Sampling(temperature=temperature, max_new_tokens=400, seed=11)

    def policy(resume_from: Sequence[TokenChain] = ()) -> EnginePolicy:
        return EnginePolicy(engine, renderer, sampling, "a", 1000, resumable=True, resume_from=resume_from)

    with ComputeThread() as compute:
        async with TorchEngine(loaded, compute) as engine:
            whole = policy()
            expected = whole.episode(await SingleTurn().run(TASK, whole))
            chains: tuple[TokenChain, ...] = ()
            for _ in range(3):
                cut = policy(chains)
                call = asyncio.create_task(SingleTurn().run(TASK, cut))
                await asyncio.sleep(0.02)
                await engine.pause(PauseMode.ABORT)
                await asyncio.wait([call])
                await engine.resume()
                if call.exception() is None:
                    break
                chains = cut.episode(cut.transcript, StopReason.ABORTED).chains
            assert chains, "the answer ended before it could be interrupted"
            last = policy(chains)
            got = last.episode(await SingleTurn().run(TASK, last))
    (one,), (other,) = expected.chains, got.chains
    assert other.ids.tolist() == one.ids.tolist()
    assert other.mask.tolist() == one.mask.tolist()
    assert abs(other.logprobs - one.logprobs).max() < 1e-4
    assert got.stop is expected.stop
