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
from dataclasses import dataclass, field, replace

from loopwright.errors import ProofError
from loopwright.ports import Learner, StreamingEngine
from loopwright.types import GenerateRequest, Sampling

PROMPT_TOKENS = 12
SAMPLED_TOKENS = 2
"""The first comes from the logits of the prompt, the second from a decode step. Few, because each pass reads all
weights: 0.04 s for a model of 135M parameters on two cores, at every update."""
PROMPTS = 3
TOLERANCES = {"float32": 5e-4, "bfloat16": 0.25}
"""How much a logprob may differ, by the type of the weights."""
USUAL_LOGPROB = 32.0
"""A logprob further below 0 than this is the difference of large numbers, and may differ by more in proportion."""


@dataclass(slots=True)
class _Probes:
    """The probes of one version. `expected` is what the learner gave the tokens of a prompt, by the number of the
    prompt. `is_learners`: the learner still has this version, and can be asked."""

    version: int
    is_learners: bool = True
    expected: dict[int, tuple[float, ...]] = field(default_factory=dict)
    differences: dict[str, float] = field(default_factory=dict)


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
        self._probes: dict[int, _Probes] = {}
        """Of the version that was published last, and of a newer one that is being published, or could not be: engines
        may come back with either."""

    @asynccontextmanager
    async def of(self, version: int) -> AsyncIterator[dict[str, float]]:
        """The learner has the weights `version` until the block ends. Gives the metrics of the proofs in it."""
        probes = self._probes[version] = _Probes(version)
        try:
            yield probes.differences
            if not probes.expected:
                prompts = {number: self._prompt(number, version) for number in range(PROMPTS)}
                probes.expected = {number: await self._learner.logprobs(ids) for number, ids in prompts.items()}
        finally:
            probes.is_learners = False
        self._probes = {version: probes}

    async def __call__(self, name: str, engine: StreamingEngine, version: int) -> None:
        """Raises ProofError if the engine `name` does not serve the weights `version`."""
        if not self._probes:
            # Nothing was published yet, and nothing is sampled before.
            return
        probes = self._probes.get(version) or _Probes(version, is_learners=False)
        wrong: ProofError | None = None
        for number in range(PROMPTS):
            if not probes.is_learners and number not in probes.expected:
                continue
            try:
                await self._try(number, name, engine, probes)
            except ProofError as error:
                wrong = error
            else:
                return
        raise wrong or ProofError(
            f"engine {name} cannot be proven: the learner was not asked about the weights of version {version}",
            remedy="publish the weights again",
        )

    async def _try(self, number: int, name: str, engine: StreamingEngine, probes: _Probes) -> None:
        prompt = self._prompt(number, probes.version)
        is_learners = probes.is_learners
        sampling = Sampling(max_new_tokens=SAMPLED_TOKENS, temperature=self._temperature if is_learners else 1.0)
        asked = GenerateRequest(f"proof/{probes.version}/{name}", prompt, sampling)
        answer = await engine.probe(asked)
        if len(answer.sampled.ids) != SAMPLED_TOKENS:
            raise ProofError(
                f"engine {name} sampled {len(answer.sampled.ids)} tokens with the weights of version {probes.version} "
                f"instead of {SAMPLED_TOKENS}",
                remedy="see the engine's log: somebody may have aborted its requests",
            )
        if is_learners:
            own = await self._learners(number, (*prompt, *answer.sampled.ids), probes)
        else:
            again = await engine.probe(replace(asked, prompt_ids=(*prompt, *answer.sampled.ids)))
            own = (*probes.expected[number], *again.prompt_logprobs[len(prompt) - 1 :])
        said = (*answer.prompt_logprobs, *answer.sampled.logprobs)
        self._compare(name, (*prompt, *answer.sampled.ids)[1:], said, own, probes)

    def _prompt(self, number: int, version: int) -> tuple[int, ...]:
        """Other prompts for each version, so that no answer can come from a cache."""
        chosen = random.Random(f"proof {number} of version {version}")
        return tuple(chosen.randrange(self._vocabulary) for _ in range(PROMPT_TOKENS))

    async def _learners(self, number: int, ids: tuple[int, ...], probes: _Probes) -> tuple[float, ...]:
        """What the learner gives the tokens of a prompt and of what was sampled after it."""
        prompt = PROMPT_TOKENS - 1
        own = await self._learner.logprobs(ids)
        if probes.is_learners:
            probes.expected[number] = own[:prompt]
        if self._temperature == 1:
            return own
        return (*own[:prompt], *(await self._learner.logprobs(ids, self._temperature))[prompt:])

    def _compare(
        self, name: str, tokens: Sequence[int], said: Sequence[float], own: Sequence[float], probes: _Probes
    ) -> None:
        if len(said) != len(own) or len(own) != len(tokens):
            raise ProofError(
                f"engine {name} gave {len(said)} logprobs for {len(tokens)} tokens of the weights {probes.version}",
                remedy="see the engine's log: it does not answer as its kind does",
            )
        largest = max((abs(one) for one in own if math.isfinite(one)), default=0.0)
        allowed = self._tolerance * max(1.0, largest / USUAL_LOGPROB)
        apart = [abs(one - other) for one, other in zip(said, own, strict=True)]
        # Written with `not`, so that a NaN counts as a difference too.
        wrong = next((place for place, difference in enumerate(apart) if not difference <= allowed), None)
        probes.differences[f"engine/{name}/proof_max"] = max(apart, key=lambda one: math.inf if one != one else one)
        if wrong is not None:
            raise ProofError(
                f"engine {name} does not serve the weights of version {probes.version}: it gives token {tokens[wrong]} "
                f"(place {wrong + 1} of the probe) the logprob {said[wrong]:.6f}, and the learner {own[wrong]:.6f}; "
                f"{allowed:.2g} is allowed",
                remedy="its update was not done, or it computes with another precision; see the engine's log",
                engine=name,
                version=probes.version,
                place=wrong + 1,
            )
