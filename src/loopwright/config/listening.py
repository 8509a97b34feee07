"""The schema of a server of ours that others reach: where it listens, and what they are told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from loopwright.config.addresses import advertised_problems, is_everywhere
from loopwright.config.base import Section, Text
from loopwright.config.problems import Problem


class Listening(Section):
    """`port` 0 is any free one. `advertise_url` is the server's address as others see it, if it differs from host and
    port: programs may run in containers and on other machines."""

    host: Text = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 0
    advertise_url: Text | None = None

    def problems(self) -> Iterator[Problem]:
        if self.advertise_url is not None:
            yield from advertised_problems(("advertise_url",), self.advertise_url)
        elif is_everywhere(self.host):
            yield Problem(
                ("advertise_url",),
                f"missing, and host is {self.host}, which is no address that others can ask",
                "add advertise_url, for example http://NAME-OF-THIS-MACHINE:PORT",
            )
