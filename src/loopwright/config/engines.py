"""The schema of engines: what samples the answers of a run, and the door through which others reach it.

Everything that is known of an engine kind is on its class here. The engines are made in `build/engines.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field

from loopwright.config.addresses import address_problems, is_loopback
from loopwright.config.base import Count, CountOrZero, FromYaml, OnOrOff, Positive, Section, Text
from loopwright.config.listening import Listening
from loopwright.config.needs import Need, Outside
from loopwright.config.problems import KeyPath, Problem


class EngineKind(Section):
    """What every kind of engine says about itself."""

    @property
    def embedded(self) -> TorchEngineConfig:
        """The settings of an engine in this process, which `loopwright eval` and `rollout` use."""
        return TorchEngineConfig()

    @property
    def runs_apart(self) -> bool:
        """Whether it runs beside the learner, and never in its process."""
        return True

    @property
    def is_proven(self) -> bool:
        """Whether every update is followed by a proof (W1)."""
        return True


class TorchEngineConfig(EngineKind):
    """The embedded engine. `cache_tokens` limits how many tokens of earlier prompts and answers are cached. `threads`
    is for the engine's own process in a disaggregated run. `native` False decodes with torch only."""

    kind: Literal["torch"] = "torch"
    max_batch: Count = 64
    cache_tokens: CountOrZero = 32_768
    native: bool = True
    threads: Count | None = None

    @property
    def embedded(self) -> TorchEngineConfig:
        return self

    @property
    def runs_apart(self) -> bool:
        return False


class LoopwrightEngineConfig(EngineKind):
    """Engines that already run (`loopwright engine`), at `urls`. `key_env` names the variable with their key. One that
    goes away is waited for, up to `wait_seconds`. `proof` is `off` only for engines that compute nothing."""

    kind: Literal["loopwright"] = "loopwright"
    urls: Annotated[FromYaml[tuple[Text, ...]], Field(min_length=1)]
    key_env: Text | None = None
    wait_seconds: Positive = 300.0
    proof: Annotated[Literal["on", "off"], OnOrOff] = "on"

    @property
    def is_proven(self) -> bool:
        return self.proof == "on"

    def needs(self) -> Iterator[Need]:
        if self.key_env is not None:
            yield Need(Outside.KEY, ("key_env",), self.key_env)

    def problems(self) -> Iterator[Problem]:
        for index, url in enumerate(self.urls):
            place = ("urls", index)
            wrong = list(address_problems(place, url, "key_env"))
            yield from wrong
            if not wrong and not is_loopback(urlsplit(url).hostname or ""):
                yield Problem(
                    place,
                    f"{url} is on another machine, and new weights reach engines through shared memory",
                    "start the engine on this machine, and name it as http://127.0.0.1:PORT",
                )
            elif not wrong and url.rstrip("/") in [other.rstrip("/") for other in self.urls[:index]]:
                yield Problem(place, f"{url} is named twice", "name every engine once")


EngineConfig = Annotated[TorchEngineConfig | LoopwrightEngineConfig, Field(discriminator="kind")]


class DoorConfig(Listening):
    """Serves the run's engines to other processes, for sampling only."""

    def needs(self) -> Iterator[Need]:
        yield Need(Outside.EXTRA, (), "serve")

    def unrepeatable(self) -> Iterator[tuple[KeyPath, str]]:
        yield (), "remove it"
