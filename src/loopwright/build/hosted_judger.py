"""Judgers on actors: what is sent to an actor, and the judger that is opened there by the same code as one here."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from loopwright.build.cluster import judger_role
from loopwright.build.user_files import named_files
from loopwright.config import BUILT_IN_JUDGERS, JudgerConfig, Loaded, Objects
from loopwright.config.base import needs_of
from loopwright.config.judgers import made_of
from loopwright.config.roles import Role
from loopwright.judgers import Elsewhere, open_judgers
from loopwright.ports import Judger

if TYPE_CHECKING:
    from loopwright.cluster.cluster import Cluster


def judgers_on(cluster: Cluster | None, loaded: Loaded) -> Elsewhere:
    """Opens the judgers that the config has on actors on those of `cluster`. Without one, everything is here."""

    def elsewhere(name: str) -> AbstractAsyncContextManager[Judger] | None:
        role = judger_role(loaded.config, name)
        return None if cluster is None or role is None else _on_actors(cluster, loaded, name, role)

    return elsewhere


@asynccontextmanager
async def _on_actors(cluster: Cluster, loaded: Loaded, name: str, role: Role) -> AsyncIterator[Judger]:
    from loopwright.cluster.files import hosted, user_files
    from loopwright.cluster.judger import MAX_SILENCE_SECONDS, RayJudger

    known = {**BUILT_IN_JUDGERS, **loaded.config.judgers}
    # A composed judger has its parts with it, in the same actor.
    configs = {one: known[one] for one in (name, *made_of([name], known))}
    needs = [need for config in configs.values() for need in needs_of(config)]
    # An actor gets no keys and objects but those that its judger needs.
    asked = {need.name for need in needs}
    secrets = {variable: value for variable, value in loaded.secrets.items() if variable in asked}
    objects = {path: given for path, given in loaded.objects.items() if path in asked}
    opening = partial(open_hosted_judger, name, configs, secrets, objects)
    what = _called(name, objects)
    files = await user_files(loaded.base, named_files(needs, loaded.base))
    crew = cluster.crew(role, hosted(opening, files, what), what, max_silence=MAX_SILENCE_SECONDS)
    async with crew as actors:
        yield RayJudger(name, configs[name].judges_groups, actors)


@asynccontextmanager
async def open_hosted_judger(
    name: str, configs: Mapping[str, JudgerConfig], secrets: Mapping[str, str], objects: Objects, base: Path
) -> AsyncIterator[Judger]:
    """Runs on the actor, whose copy of the user's files is in `base`."""
    async with open_judgers([name], configs, base, secrets, objects) as judgers:
        yield judgers[name]


def _called(name: str, objects: Objects) -> str:
    """The judger in errors, with the objects of the user that it is made of."""
    return f"judger {name!r} ({', '.join(objects)})" if objects else f"judger {name!r}"
