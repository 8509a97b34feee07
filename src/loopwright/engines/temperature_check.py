"""Refuses a server whose logprobs are those of temperature 1, whatever it samples with (T8)."""

from __future__ import annotations

from loopwright.errors import ModelError
from loopwright.ports import Engine
from loopwright.types import GenerateRequest, Sampling

TOKENS = 8
"""How many tokens the check has as prompt and as answer."""
TEMPERATURE = 0.7
RAW = 1e-3
"""If all logprobs agree so well with those of temperature 1, they are those. At 0.7 tokens differ by far more."""


async def check_temperature(engine: Engine, url: str, remedy: str) -> None:
    """Raises ModelError, with this remedy, if the logprobs of the server at `url` do not know the temperature."""
    prompt = tuple(range(TOKENS, 2 * TOKENS))
    asked = GenerateRequest("temperature", prompt, Sampling(temperature=TEMPERATURE, max_new_tokens=TOKENS))
    sampled = (await engine.probe(asked)).sampled
    scored = await engine.probe(GenerateRequest("scored", (*prompt, *sampled.ids), Sampling(max_new_tokens=1)))
    raw = scored.prompt_logprobs[len(prompt) - 1 :]
    if all(abs(one - other) < RAW for one, other in zip(sampled.logprobs, raw, strict=True)):
        raise ModelError(
            f"the server at {url} gives the logprobs of temperature 1 for tokens sampled at {TEMPERATURE}",
            remedy=remedy,
        )
