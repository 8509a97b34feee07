"""The schema of engines: what samples the answers of a run, and the door through which others reach it.

Everything that is known of an engine kind is on its class here. The engines are made in `build/engines.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

from pydantic import Field

from loopwright.config.addresses import address_problems
from loopwright.config.base import Count, CountOrZero, Device, FromYaml, OnOrOff, Positive, Section, Text
from loopwright.config.listening import Listening
from loopwright.config.needs import Need, Outside
from loopwright.config.placement import PlacedSection
from loopwright.config.problems import KeyPath, Problem
from loopwright.config.transport import Transport, transport_to
from loopwright.types import TrainerKind

OWN_VLLM_OPTIONS = {
    "--host": "remove it: a server that is started here has development routes without a key, so it is on loopback",
    "--port": "remove it: a free port is chosen",
    "--dtype": "set model.dtype",
    "--max-model-len": "set model.max_context",
    "--max-num-seqs": "set rollout.engine.max_batch",
    "--logprobs-mode": "remove it: training needs processed_logprobs",
    "--worker-extension-cls": "remove it: weights are updated through Loopwright's own",
    "--structured-outputs-config.backend": "remove it: only `guidance` reads the grammars of constrained answers",
    "--enable-scale-out": "remove it: weights are updated through it",
    "--no-enable-scale-out": "remove it: weights are updated through it",
}
"""What to do instead of giving vLLM an option that Loopwright gives it."""


VLLM_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The largest rank of an adapter that a vLLM server can be started for: one of these."""


class EngineKind(Section):
    """What every kind of engine says about itself."""

    @property
    def embedded(self) -> TorchEngineConfig:
        """The settings of an engine in this process, which `loopwright eval` and `rollout` use."""
        return TorchEngineConfig()

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where engines are that already run."""
        return ()

    @property
    def is_proven(self) -> bool:
        """Whether every update is followed by a proof (W1)."""
        return True

    @property
    def keeps_requests(self) -> bool:
        """Whether a request may go on across a weight update (`in_flight: keep`)."""
        return True

    @property
    def takes_adapters(self) -> bool:
        """Whether an update may be adapters alone. Otherwise it is whole weights, with the adapters merged into
        them."""
        return True

    @property
    def truncates_logprobs(self) -> bool:
        """Whether its logprobs come after top-k and top-p, so that these cannot be used in training (T8)."""
        return False


class TorchEngineConfig(EngineKind, PlacedSection):
    """The embedded engine. `num_engines` of them run in processes of their own; 0 means one in the learner's process,
    on its own parameters. `cache_tokens` limits how many tokens of earlier prompts and answers are cached. `threads`
    and `device` are for an engine in its own process; `device` None is the model's. `native` False decodes with torch
    only."""

    kind: Literal["torch"] = "torch"
    num_engines: CountOrZero | None = None
    max_batch: Count = 64
    cache_tokens: CountOrZero = 32_768
    native: bool = True
    threads: Count | None = None
    device: Device | None = None

    @property
    def embedded(self) -> TorchEngineConfig:
        return self

    def processes(self, trainer: TrainerKind) -> int:
        """How many engines run outside of the learner's process. 0: one in it, on the learner's own parameters."""
        if self.num_actors:
            return self.num_actors
        by_default = 0 if trainer is TrainerKind.COLOCATE else 1
        return by_default if self.num_engines is None else self.num_engines


class ServerConfig(EngineKind, PlacedSection):
    """Inference servers: `num_engines` of them are started here and kept alive, or those at `urls` are used. One that
    goes away is waited for, up to `wait_seconds`. `key_env` names the variable with the key of servers at `urls`.

    Servers that are started here run `executable` with `args` besides ours, and see `env` besides the allow-listed
    part of the environment.
    """

    executable: Text
    num_engines: Count | None = None
    urls: FromYaml[tuple[Text, ...]] = ()
    key_env: Text | None = None
    wait_seconds: Positive = 300.0
    start_seconds: Positive = 600.0
    max_batch: Count = 64
    args: FromYaml[tuple[str, ...]] = ()
    env: dict[str, str] = Field(default_factory=dict)

    @property
    def addresses(self) -> tuple[str, ...]:
        return self.urls

    def processes(self, trainer: TrainerKind) -> int:
        return len(self.urls) or self.num_actors or self.num_engines or 1

    @property
    def keeps_requests(self) -> bool:
        return False

    @property
    def truncates_logprobs(self) -> bool:
        return True

    def needs(self) -> Iterator[Need]:
        yield Need(Outside.EXTRA, (), "serve")
        if not self.urls:
            yield Need(Outside.PROGRAM, ("executable",), self.executable)
        if self.key_env is not None:
            yield Need(Outside.KEY, ("key_env",), self.key_env)

    def problems(self) -> Iterator[Problem]:
        yield from url_problems(self.urls)
        if self.urls and self.num_engines is not None:
            yield Problem(
                ("num_engines",),
                "is set, and so is urls: servers are started here, or they already run",
                "remove one of them",
                also=(("urls",),),
            )


class VllmEngineConfig(ServerConfig):
    """vLLM servers."""

    kind: Literal["vllm"]
    executable: Text = "vllm"

    @property
    def takes_adapters(self) -> bool:
        """A server of others may have no room for adapters, and one on another machine cannot read their folder."""
        return not self.urls and not self.num_actors

    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        for index, argument in enumerate(self.args):
            # vLLM takes both spellings, and every beginning of an option that fits no other. The last of two equal
            # options would win, and that is the user's. In a file that --config names, ours would win.
            name = argument.partition("=")[0].replace("_", "-")
            own = [option for option in OWN_VLLM_OPTIONS if len(name) > len("--") and option.startswith(name)]
            for option in own[:1]:
                short = "" if option == name else f", short for {option}"
                yield Problem(
                    ("args", index), f"is {argument!r}{short}, which Loopwright sets itself", OWN_VLLM_OPTIONS[option]
                )


class SglangEngineConfig(EngineKind):
    """SGLang servers that already run, at `urls`. `key_env` names the variable with their key. One that goes away is
    waited for, up to `wait_seconds`."""

    kind: Literal["sglang"]
    urls: Annotated[FromYaml[tuple[Text, ...]], Field(min_length=1)]
    key_env: Text | None = None
    wait_seconds: Positive = 300.0

    @property
    def addresses(self) -> tuple[str, ...]:
        return self.urls

    def processes(self, trainer: TrainerKind) -> int:
        return len(self.urls)

    @property
    def keeps_requests(self) -> bool:
        return False

    @property
    def takes_adapters(self) -> bool:
        return False

    def needs(self) -> Iterator[Need]:
        yield Need(Outside.EXTRA, (), "serve")
        if self.key_env is not None:
            yield Need(Outside.KEY, ("key_env",), self.key_env)

    def problems(self) -> Iterator[Problem]:
        yield from url_problems(self.urls, takes_broadcasts=False)


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

    @property
    def addresses(self) -> tuple[str, ...]:
        return self.urls

    def processes(self, trainer: TrainerKind) -> int:
        return len(self.urls)

    @property
    def takes_adapters(self) -> bool:
        """The weights there may be those of another run by now, and an adapter would be merged into them."""
        return False

    def needs(self) -> Iterator[Need]:
        if self.key_env is not None:
            yield Need(Outside.KEY, ("key_env",), self.key_env)

    def problems(self) -> Iterator[Problem]:
        yield from url_problems(self.urls)


def url_problems(urls: Sequence[str], *, takes_broadcasts: bool = True) -> Iterator[Problem]:
    """What is wrong with the addresses of engines. On another machine they must take broadcasts of weights."""
    for index, url in enumerate(urls):
        place = ("urls", index)
        wrong = list(address_problems(place, url, "key_env"))
        yield from wrong
        if not wrong and not takes_broadcasts and transport_to(url).transport is Transport.BROADCAST:
            yield Problem(
                place,
                f"{url} is on another machine, and new weights reach engines of this kind through shared memory",
                "start the engine on this machine, and name it as http://127.0.0.1:PORT",
            )
        elif not wrong and url.rstrip("/") in [other.rstrip("/") for other in urls[:index]]:
            yield Problem(place, f"{url} is named twice", "name every engine once")


EngineConfig = Annotated[
    TorchEngineConfig | LoopwrightEngineConfig | VllmEngineConfig | SglangEngineConfig, Field(discriminator="kind")
]


class DoorConfig(Listening):
    """Serves the run's engines to other processes, for sampling only."""

    def needs(self) -> Iterator[Need]:
        yield Need(Outside.EXTRA, (), "serve")

    def unrepeatable(self) -> Iterator[tuple[KeyPath, str]]:
        yield (), "remove it"
