"""An engine that somebody else has started: `loopwright engine`, or an inference server. It is asked, and never
updated."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loopwright.engines.restartable import WAIT_SECONDS, RestartableEngine
from loopwright.models.smollm2 import NAME as SMOLLM2
from loopwright.models.smollm2 import smollm2_folder
from loopwright.models.tokenizer import load_tokenizer
from loopwright.types import ServerKind

if TYPE_CHECKING:
    from loopwright.engines.http.client import HttpEngine
    from loopwright.engines.sglang.engine import SglangEngine
    from loopwright.engines.vllm.engine import VllmEngine


@dataclass(frozen=True, slots=True)
class RemoteEngine:
    """An engine at a URL. `model` names its tokenizer, if the engine does not say which model it serves. If the engine
    goes away, calls wait `wait_seconds` for it."""

    url: str
    key: str | None
    model: str | None
    cache: Path
    wait_seconds: float = WAIT_SECONDS
    kind: ServerKind = ServerKind.LOOPWRIGHT


@dataclass(frozen=True, slots=True)
class RemoteModel:
    """The `ModelSpec` of a model whose weights are elsewhere, and its name there."""

    tokenizer: Any
    max_context: int
    name: str


@asynccontextmanager
async def connected(remote: RemoteEngine) -> AsyncIterator[tuple[RestartableEngine, RemoteModel]]:
    """Connect to the engine. Gives it with the tokenizer and context length of its model."""
    async with remote_client(remote) as engine:
        card = await engine.model()
        tokenizer = tokenizer_of(remote.model or card.source, remote.cache)
        yield RestartableEngine(engine, remote.wait_seconds), RemoteModel(tokenizer, card.max_context, card.source)


def tokenizer_of(source: str, cache: Path) -> Any:
    """The tokenizer of a model that is somewhere else. `source` is a folder here, or a name."""
    return load_tokenizer(str(smollm2_folder(cache)) if source == SMOLLM2 else source)


def remote_client(remote: RemoteEngine) -> AbstractAsyncContextManager[HttpEngine | VllmEngine | SglangEngine]:
    """The engine as it is: a call that loses it fails."""
    from loopwright.engines.http.client import HttpEngine
    from loopwright.engines.sglang.engine import SglangEngine
    from loopwright.engines.vllm.engine import VllmEngine

    match remote.kind:
        case ServerKind.LOOPWRIGHT:
            return HttpEngine.connect(remote.url, remote.key)
        case ServerKind.VLLM:
            return VllmEngine.connect(remote.url, remote.key)
        case ServerKind.SGLANG:
            return SglangEngine.connect(remote.url, remote.key)
