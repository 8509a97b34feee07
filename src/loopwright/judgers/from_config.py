"""The judgers of a run from the config: each name is one object, whoever uses it, in training and in the deep check."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loopwright.config import (
    BUILT_IN_JUDGERS,
    NO_OBJECTS,
    ComposedJudgerConfig,
    EndpointConfig,
    HttpJudgerConfig,
    IntegerAnswerConfig,
    JudgerConfig,
    LlmJudgerConfig,
    MathAnswerConfig,
    NativeJudgerConfig,
    Objects,
    ProgramJudgerConfig,
    ReasoningGymConfig,
)
from loopwright.config.extras import require_extras
from loopwright.errors import ConfigError
from loopwright.judgers.composed import JudgerBySource, Merge, Part, SeveralJudgers, weighted_sum
from loopwright.judgers.endpoint import JudgeEndpoint, new_client
from loopwright.judgers.http import HttpJudger
from loopwright.judgers.integer_answer import IntegerAnswer
from loopwright.judgers.llm import DEFAULT_PROMPT, LlmJudger, Questionnaire
from loopwright.judgers.native import NativeGroupJudger, NativeJudger
from loopwright.judgers.program import ProgramScores
from loopwright.judgers.verdict import Signature
from loopwright.ports import Judger
from loopwright.workers import UserFunction

if TYPE_CHECKING:
    import httpx

Elsewhere = Callable[[str], AbstractAsyncContextManager[Judger] | None]
"""Opens the judger of a name elsewhere, for example on actors. None if it is to be made here."""


@asynccontextmanager
async def open_judgers(
    names: Iterable[str],
    configs: Mapping[str, JudgerConfig],
    base: Path,
    secrets: Mapping[str, str],
    objects: Objects = NO_OBJECTS,
    elsewhere: Elsewhere = lambda name: None,
) -> AsyncIterator[dict[str, Judger]]:
    """The judgers called `names`, ready for use, and closed at the end with those that they are made of.

    `secrets` holds the environment variables that the config names; files are looked for from `base` on. `objects` are
    those that a Python program gave. Each judger is opened once, here or where `elsewhere` opens it.
    """
    async with AsyncExitStack() as stack:
        workshop = _Workshop(stack, {**BUILT_IN_JUDGERS, **configs}, base, secrets, objects, elsewhere)
        yield {name: await workshop.judger(name) for name in names}


class _Workshop:
    """Makes each judger once, and the judgers that it needs before it."""

    def __init__(
        self,
        stack: AsyncExitStack,
        configs: Mapping[str, JudgerConfig],
        base: Path,
        secrets: Mapping[str, str],
        objects: Objects,
        elsewhere: Elsewhere,
    ) -> None:
        self._stack = stack
        self._configs = configs
        self._base = base
        self._secrets = secrets
        self._objects = objects
        self._elsewhere = elsewhere
        self._made: dict[str, Judger] = {}
        self._client: httpx.AsyncClient | None = None

    async def judger(self, name: str) -> Judger:
        if name not in self._made:
            opening = self._elsewhere(name)
            made = (
                self._make(name, self._configs[name]) if opening is None else self._stack.enter_async_context(opening)
            )
            self._made[name] = await made
        return self._made[name]

    async def _make(self, name: str, config: JudgerConfig) -> Judger:
        enter, base = self._stack.enter_async_context, self._base
        require_extras(config, config.kind)
        match config:
            case IntegerAnswerConfig():
                return IntegerAnswer(name)
            case ProgramJudgerConfig():
                return ProgramScores(name)
            case MathAnswerConfig(timeout_seconds=seconds, workers=workers):
                path = "loopwright.judgers.math_answer:judge"
                return await enter(NativeJudger(name, path, base, seconds, workers))
            case ReasoningGymConfig(timeout_seconds=seconds, workers=workers):
                path = "loopwright.judgers.reasoning_gym:judge"
                return await enter(NativeJudger(name, path, base, seconds, workers))
            case NativeJudgerConfig(path=path, timeout_seconds=seconds, workers=workers, env=env):
                kind = NativeGroupJudger if config.judges_groups else NativeJudger
                named = {variable: self._secrets[variable] for variable in env if variable in self._secrets}
                return await enter(kind(name, path, base, seconds, workers, named, self._given(name, config)))
            case HttpJudgerConfig(url=url):
                signature = Signature(name, url)
                return HttpJudger(signature, await self._endpoint(signature, url, config))
            case LlmJudgerConfig():
                return await self._llm(name, config)
            case ComposedJudgerConfig(parts=parts) if parts:
                return await self._several(name, config)
            case ComposedJudgerConfig():
                return await self._by_source(name, config)

    def _given(self, name: str, config: NativeJudgerConfig) -> Callable[..., Any] | None:
        """The function that a program gave: the object itself, or the method of it that judges."""
        given = self._objects.get(config.path)
        if given is None or callable(given):
            return given
        method = "judge_group" if config.judges_groups else "judge"
        if not callable(found := getattr(given, method, None)):
            raise ConfigError(
                f"judger {name!r} is {config.path!r}, which can neither be called nor has a method `{method}`",
                remedy="give a function `judge(task, episode)`, or an object with such a method",
            )
        function: Callable[..., Any] = found
        return function

    async def _llm(self, name: str, config: LlmJudgerConfig) -> LlmJudger:
        url = f"{config.base_url.rstrip('/')}/chat/completions"
        signature = Signature(name, f"{config.model} at {url}")
        prompt = config.prompt or DEFAULT_PROMPT
        if config.prompt_file is not None:
            prompt = (self._base / config.prompt_file).read_text("utf-8")
            if "{answer}" not in prompt:
                raise ConfigError(
                    f"judger {name!r}: {config.prompt_file} does not show the answer to the judge",
                    remedy="put {answer} where it is to stand",
                )
        asks = Questionnaire(prompt, config.min_score, config.max_score)
        endpoint = await self._endpoint(signature, url, config)
        sampling = {"temperature": config.temperature, "max_tokens": config.max_tokens}
        sent = {setting: value for setting, value in sampling.items() if value is not None}
        return LlmJudger(signature, endpoint, asks, {**config.extra, "model": config.model, **sent})

    async def _several(self, name: str, config: ComposedJudgerConfig) -> SeveralJudgers:
        parts = [Part(part, await self._member(described.judger)) for part, described in config.parts.items()]
        return SeveralJudgers(name, parts, await self._merge(name, config))

    async def _merge(self, name: str, config: ComposedJudgerConfig) -> Merge:
        if config.merge is None:
            return weighted_sum(name, {part: described.weight for part, described in config.parts.items()})
        signature = Signature(name, config.merge)
        function = await self._stack.enter_async_context(UserFunction(signature, self._base, config.timeout_seconds))
        return lambda scores: function.call(signature.scored, scores)

    async def _by_source(self, name: str, config: ComposedJudgerConfig) -> JudgerBySource:
        judgers = {source: await self._member(judger) for source, judger in config.by_source.items()}
        default = await self._member(config.default) if config.default is not None else None
        return JudgerBySource(name, judgers, config.source_key, default)

    async def _member(self, name: str) -> Judger:
        """A judger of single episodes. The config's checks let no other one be a part."""
        judger = await self.judger(name)
        if judger.judges_groups:
            raise ConfigError(f"judger {name!r} judges whole groups", remedy="make no part of a composed judger of it")
        return judger

    async def _endpoint(self, signature: Signature, url: str, config: EndpointConfig) -> JudgeEndpoint:
        if self._client is None:
            self._client = await self._stack.enter_async_context(new_client())
        key = None if config.api_key_env is None else self._secrets.get(config.api_key_env)
        if config.api_key_env is not None and key is None:
            raise ConfigError(
                f"judger {signature.name!r} needs the environment variable {config.api_key_env}, which is not set",
                remedy=f"export {config.api_key_env}, or name another variable as its `api_key_env`",
            )
        return JudgeEndpoint(signature, url, config, self._client, key)
