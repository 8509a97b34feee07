"""The gateway of a run, for agents that talk HTTP, and the gateway on its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from loopwright.config import RunConfig
from loopwright.models.load import LoadedModel
from loopwright.ports import StreamingEngine
from loopwright.produce import PolicyFactory, RecordingPolicy
from loopwright.render.choose import make_renderer
from loopwright.types import Sampling, TokenChain


@asynccontextmanager
async def served_policies(
    config: RunConfig, engine: StreamingEngine, model: LoadedModel
) -> AsyncIterator[PolicyFactory]:
    """Policies that are sessions of a gateway on the loopback, which is open meanwhile.

    Its sessions end with the process: what they record is stored as rollouts, like any other.
    """
    from loopwright.gateway.server import Served, open_gateway
    from loopwright.gateway.store import MemoryStore
    from loopwright.serve.keys import new_key

    renderer = make_renderer(model.tokenizer, config.model.renderer, config.gateway.thinking)
    served = Served(engine, renderer, model.max_context, config.model.path)
    async with open_gateway(served, MemoryStore(), key=new_key()) as gateway:

        def policy(
            prefix: str, sampling: Sampling, *, resumable: bool, resume_from: Sequence[TokenChain]
        ) -> RecordingPolicy:
            return gateway.policy(sampling)

        yield policy
