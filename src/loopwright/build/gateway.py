"""The gateway of a run, for agents that talk HTTP, and the gateway on its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from loopwright.build.remote import RemoteEngine, connected
from loopwright.build.serving import ServedModel, opened_engine
from loopwright.config import RunConfig
from loopwright.core.redaction import Redactor
from loopwright.models.tokenizer import ModelSpec
from loopwright.ports import PolicyMaker, StreamingEngine
from loopwright.render.choose import make_renderer
from loopwright.track.redacting import redacting
from loopwright.types import Thinking

if TYPE_CHECKING:
    from loopwright.gateway.server import Address, Gateway, Served


@asynccontextmanager
async def served_policies(
    config: RunConfig, engine: StreamingEngine, model: ModelSpec, held: Callable[[], float]
) -> AsyncIterator[PolicyMaker]:
    """Open the run's own gateway, and give policies that are its sessions.

    Its sessions end with the process. What they record is stored as rollouts, like all others.
    """
    from loopwright.gateway.server import Address, Served, open_gateway
    from loopwright.gateway.store import MemoryStore
    from loopwright.serve.keys import new_key

    settings = config.gateway
    address = Address(settings.host, settings.port, settings.advertise_url)
    renderer = make_renderer(model.tokenizer, config.model.renderer, config.gateway.thinking)
    served = Served(engine, renderer, model.max_context, config.model.path)
    async with open_gateway(served, MemoryStore(), key=new_key(), address=address, held=held) as gateway:
        yield gateway.policies()


@asynccontextmanager
async def serve_gateway(
    behind: ServedModel | RemoteEngine, address: Address, *, store: Path, key: str, renderer: str, thinking: Thinking
) -> AsyncIterator[Gateway]:
    """A gateway without a run, in front of a model in this process or an engine elsewhere. `store` keeps its
    sessions."""
    from loopwright.gateway.server import open_gateway
    from loopwright.gateway.session import never_held
    from loopwright.gateway.store import SqliteStore

    redact = Redactor((key, behind.key or "")) if isinstance(behind, RemoteEngine) else Redactor((key,))
    async with AsyncExitStack() as stack:
        stack.enter_context(redacting(redact))
        match behind:
            case RemoteEngine():
                served, held = await stack.enter_async_context(_remote(behind, renderer, thinking))
            case ServedModel():
                served, held = await stack.enter_async_context(_embedded(behind, renderer, thinking)), never_held
        sessions = await stack.enter_async_context(SqliteStore(store, redact))
        yield await stack.enter_async_context(open_gateway(served, sessions, key=key, address=address, held=held))


@asynccontextmanager
async def _embedded(behind: ServedModel, renderer: str, thinking: Thinking) -> AsyncIterator[Served]:
    from loopwright.gateway.server import Served

    async with opened_engine(behind) as (engine, model):
        yield Served(engine, make_renderer(model.tokenizer, renderer, thinking), model.max_context, behind.model)


@asynccontextmanager
async def _remote(
    behind: RemoteEngine, renderer: str, thinking: Thinking
) -> AsyncIterator[tuple[Served, Callable[[], float]]]:
    """The model, and the clock of held seconds: calls that wait for an engine that went away are held."""
    from loopwright.gateway.server import Served

    async with connected(behind) as (engine, model):
        chosen = make_renderer(model.tokenizer, renderer, thinking)
        yield Served(engine, chosen, model.max_context, model.name), engine.held_seconds
