"""What a run tells a gateway of its own when it registers: who it is, and where its model is.

The invariant: what `registration_from_json` reads equals what `registration_to_json` was given.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from loopwright.config.addresses import advertised_problems
from loopwright.errors import ConfigError
from loopwright.gateway.reading import count, text
from loopwright.gateway.refusals import invalid
from loopwright.serve.keys import check_key
from loopwright.serve.lease import LeaseHolder, lease_from_json, lease_to_json
from loopwright.types import Thinking

RUN_SESSION = re.compile(r"(?P<run>[0-9a-f]{16})-(?P<lineage>[0-9]+)-[0-9a-f]{8}-.+")
"""The ids of sessions that runs have opened."""
TOKENIZER_KIND = re.compile(r"transformers(\.\w+)*:\w+")
"""A class of tokenizers: its module and its name."""


@dataclass(frozen=True, slots=True)
class DoorAddress:
    """A door that listens at `url`."""

    url: str
    key: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class RelayedDoor:
    """A door that listens nowhere: the run has dialled the gateway, as the worker of that name."""

    worker: str


@dataclass(frozen=True, slots=True)
class RunModel:
    """The model of a run: the door to its engines, and what is needed to write and read its messages. `tokenizer` is a
    folder or a name, and `tokenizer_kind` its class, if that is known. `source` is what the run's config names."""

    door: DoorAddress | RelayedDoor
    source: str
    tokenizer: str
    tokenizer_kind: str | None
    max_context: int
    renderer: str
    thinking: Thinking


@dataclass(frozen=True, slots=True)
class Registration:
    """A run that uses a gateway. `opening` is random: it tells this process from every other one that had the run
    open, also where all have the same lineage."""

    holder: LeaseHolder
    opening: str
    model: RunModel

    @property
    def prefix(self) -> str:
        """What the ids of its sessions begin with."""
        return f"{self.holder.run}-{self.holder.lineage}-{self.opening}-"


def registration_to_json(registration: Registration, seconds: float) -> dict[str, Any]:
    """Also asks for the lease, for so many seconds."""
    return {
        **lease_to_json(registration.holder, seconds),
        "opening": registration.opening,
        "model": _model_to_json(registration.model),
    }


def registration_from_json(body: Mapping[str, Any]) -> tuple[Registration, float]:
    # Not the whole body: an error shows what it was given, and the model has a key.
    holder, seconds = lease_from_json({name: body.get(name) for name in ("run", "lineage", "seconds")})
    opening, model = text(body.get("opening"), "opening"), body.get("model")
    if RUN_SESSION.fullmatch(f"{holder.run}-{holder.lineage}-{opening}-1") is None:
        raise invalid("run", "run and opening are no names of ours", remedy="send 16 and 8 hexadecimal digits")
    if not isinstance(model, dict):
        raise invalid("model", "expected an object", remedy=f"send {', '.join(one.name for one in fields(RunModel))}")
    return Registration(holder, opening, _model(model)), seconds


def _model_to_json(model: RunModel) -> dict[str, Any]:
    match model.door:
        case DoorAddress(url, key):
            door = {"door_url": url, "door_key": key}
        case RelayedDoor(worker):
            door = {"door_worker": worker}
    return {**door, **{one.name: getattr(model, one.name) for one in fields(RunModel) if one.name != "door"}}


def _door(said: Mapping[str, Any], named: Callable[[str], str]) -> DoorAddress | RelayedDoor:
    if said.get("door_worker") is not None:
        return RelayedDoor(named("door_worker"))
    door_url = named("door_url")
    for problem in advertised_problems(("model", "door_url"), door_url):
        raise invalid("model.door_url", problem.text, remedy=problem.remedy)
    try:
        return DoorAddress(door_url, check_key(named("door_key"), "it"))
    except ConfigError as error:
        raise invalid("model.door_key", error.message, remedy=error.remedy) from error


def _model(said: Mapping[str, Any]) -> RunModel:
    def named(name: str) -> str:
        if not (value := text(said.get(name), f"model.{name}")):
            raise invalid(f"model.{name}", "missing", remedy="use a run of the same version of Loopwright")
        return value

    thinking, door = named("thinking"), _door(said, named)
    if (most := count({"model.max_context": said.get("max_context")}, "model.max_context")) is None:
        raise invalid("model.max_context", "missing", remedy="use a run of the same version of Loopwright")
    kind = text(said.get("tokenizer_kind"), "model.tokenizer_kind") or None
    if kind is not None and TOKENIZER_KIND.fullmatch(kind) is None:
        # Its module is imported here: whoever has the gateway's key must not choose any module.
        raise invalid("model.tokenizer_kind", f"{kind!r:.80} is no class of transformers", remedy="omit it")
    if thinking not in list(Thinking):
        raise invalid("model.thinking", f"{thinking!r:.40} is unknown", remedy=f"send one of {', '.join(Thinking)}")
    return RunModel(
        door=door,
        source=named("source"),
        tokenizer=named("tokenizer"),
        tokenizer_kind=kind,
        max_context=most,
        renderer=named("renderer"),
        thinking=Thinking(thinking),
    )
