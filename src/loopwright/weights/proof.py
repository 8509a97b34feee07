"""Proves that an engine serves the learner's weights (W1).

An engine may answer that it has loaded an update, and compute with something else: a layer that was not rebuilt, an
adapter that never arrived, a file of another version. So after every update each engine is asked about a prompt of
tokens that make no sense together, and samples a few tokens after it. The logprobs of all of them are compared with the
learner's, by their largest difference. On such a prompt one small train step changes a logprob by 0.03, and two right
engines differ by 0.00005. About one prompt of thirty is so badly conditioned that rounding alone moves a logprob by
0.0005 (measured with SmolLM2 in float32). So a second and a third prompt are tried: wrong weights fail on all of them.

An engine may also come back when the learner has newer weights already. Then the prompt's logprobs are compared with
those that the learner had, and the sampled ones with the engine's own for the same tokens as a prompt: what scores a
prompt rightly and agrees with itself samples rightly.
"""

from __future__ import annotations

import math
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from loopwright.errors import ProofError
from loopwright.ports import Learner, StreamingEngine
from loopwright.types import GenerateRequest, ProbeAnswer, Sampling

PROMPT_TOKENS = 12
SAMPLED_TOKENS = 3
"""Few, because on a CPU each takes 10 ms of a model of 135M parameters, at every update."""
PROMPTS = 3
TOLERANCES = {"float32": 5e-4, "bfloat16": 0.25}
"""How much a logprob may differ, by the type of the weights."""
USUAL_LOGPROB = 32.0
"""A logprob further below 0 than this is the difference of large numbers, and may differ by more in proportion."""


class WeightProof:
    """Proves engines to serve the weights of `learner`.

    `vocabulary` is the number of tokens that may be asked about. `temperature` is that of the run: tokens are sampled
    with it.
    """

    def __init__(self, learner: Learner, vocabulary: int, *, temperature: float = 1.0, dtype: str = "float32") -> None:
        self._learner = learner
        self._vocabulary = vocabulary
        self._temperature = temperature
        self._tolerance = TOLERANCES[dtype]
        self._version: int | None = None
        self._expected: dict[int, tuple[float, ...]] = {}
        """What the learner gave the tokens of a prompt, by the number of the prompt."""
        self._is_learners = False
        self._differences: dict[str, float] = {}

    @asynccontextmanager
    async def of(self, version: int) -> AsyncIterator[dict[str, float]]:
        """The learner has the weights `version` until the block ends. Gives the metrics of the proofs in it."""
        self._version, self._expected, self._is_learners, self._differences = version, {}, True, {}
        try:
            yield self._differences
        finally:
            self._is_learners = False
        if not self._expected:
            self._expected = {number: await self._learner.logprobs(self._prompt(number)) for number in range(PROMPTS)}

    async def __call__(self, name: str, engine: StreamingEngine, version: int) -> None:
        """Raises ProofError if the engine `name` does not serve the weights `version`."""
        if version != self._version:
            return
        numbers = range(PROMPTS) if self._is_learners else tuple(self._expected)
        for number in numbers:
            try:
                await self._try(number, name, engine, version)
            except ProofError:
                if number == numbers[-1]:
                    raise
            else:
                return

    async def _try(self, number: int, name: str, engine: StreamingEngine, version: int) -> None:
        prompt = self._prompt(number)
        sampling = Sampling(max_new_tokens=SAMPLED_TOKENS, temperature=self._temperature if self._is_learners else 1.0)
        asked = GenerateRequest(f"proof/{version}/{name}", prompt, sampling)
        answer = await engine.probe(asked)
        own = await self._own(number, engine, asked, answer)
        said = (*answer.prompt_logprobs, *answer.sampled.logprobs)
        self._compare(name, (*prompt, *answer.sampled.ids)[1:], said, own)

    def _prompt(self, number: int) -> tuple[int, ...]:
        """Other prompts for each version, so that no answer can come from a cache."""
        chosen = random.Random(f"proof {number} of version {self._version}")
        return tuple(chosen.randrange(self._vocabulary) for _ in range(PROMPT_TOKENS))

    async def _own(
        self, number: int, engine: StreamingEngine, asked: GenerateRequest, answer: ProbeAnswer
    ) -> tuple[float, ...]:
        """What the logprobs must be."""
        ids, prompt = (*asked.prompt_ids, *answer.sampled.ids), len(asked.prompt_ids) - 1
        if not self._is_learners:
            again = await engine.probe(replace(asked, prompt_ids=ids))
            return (*self._expected[number], *again.prompt_logprobs[prompt:])
        own = await self._learner.logprobs(ids)
        self._expected[number] = own[:prompt]
        if self._temperature == 1:
            return own
        return (*own[:prompt], *(await self._learner.logprobs(ids, self._temperature))[prompt:])

    def _compare(self, name: str, tokens: Sequence[int], said: Sequence[float], own: Sequence[float]) -> None:
        if len(said) != len(own) or len(own) != len(tokens):
            raise ProofError(
                f"engine {name} gave {len(said)} logprobs for {len(tokens)} tokens of the weights {self._version}",
                remedy="see the engine's log: it does not answer as its kind does",
            )
        allowed = self._tolerance * max(1.0, max(map(abs, own)) / USUAL_LOGPROB)
        apart = [abs(one - other) for one, other in zip(said, own, strict=True)]
        # Written with `not`, so that a NaN counts as a difference too.
        wrong = next((place for place, difference in enumerate(apart) if not difference <= allowed), None)
        self._differences[f"engine/{name}/proof_max"] = max(apart, key=lambda one: math.inf if one != one else one)
        if wrong is not None:
            raise ProofError(
                f"engine {name} does not serve the weights of version {self._version}: it gives token {tokens[wrong]} "
                f"(place {wrong + 1} of the probe) the logprob {said[wrong]:.6f}, and the learner {own[wrong]:.6f}; "
                f"{allowed:.2g} is allowed",
                remedy="its update was not done, or it computes with another precision; see the engine's log",
                engine=name,
                version=self._version,
                place=wrong + 1,
            )
