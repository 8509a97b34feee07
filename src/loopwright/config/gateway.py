"""The schema of the gateway of a run, for agents that talk HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from loopwright.config.addresses import advertised_problems
from loopwright.config.base import FromYaml, Text
from loopwright.config.listening import Listening
from loopwright.config.needs import Need, Outside
from loopwright.config.placement import PlacedSection
from loopwright.config.problems import KeyPath, Problem
from loopwright.types import Thinking


class GatewayConfig(Listening, PlacedSection):
    """`thinking`: whether the model sees its earlier thoughts as it sampled them, or as its chat template writes
    them. With `url`, the run serves no gateway of its own: it opens its sessions on the `loopwright gateway --for-runs`
    there. With `relay`, the run dials that gateway, which reaches the run's engines over this connection only. With
    `num_actors` 1, it serves its own on an actor. `key_env` names the variable with that gateway's key."""

    num_actors: Literal[0, 1] = 0
    thinking: FromYaml[Thinking] = Thinking.KEEP
    url: Text | None = None
    key_env: Text | None = None
    relay: bool = False

    def needs(self) -> Iterator[Need]:
        if self.key_env is not None:
            yield Need(Outside.KEY, ("key_env",), self.key_env)
        if self.url is not None:
            yield Need(Outside.EXTRA, ("url",), "serve")

    def problems(self) -> Iterator[Problem]:
        if self.url is None:
            yield from super().problems()
            if self.relay:
                yield Problem(
                    ("relay",),
                    "true, and there is no gateway that the run could dial",
                    "set gateway.url to that of `loopwright gateway --relay`, or leave relay out",
                )
            return
        yield from advertised_problems(("url",), self.url, "gateway.key_env")
        if self.key_env is None:
            yield Problem(
                ("key_env",),
                "missing, and url names a gateway, which has a key",
                "name the environment variable that holds it",
            )

    def idle(self) -> Iterator[tuple[KeyPath, str]]:
        if self.url is None:
            yield ("key_env",), "without gateway.url, the run serves a gateway with a key of its own"
        else:
            for name in ("host", "port", "advertise_url"):
                yield (name,), "the gateway at gateway.url listens where it was told to"
