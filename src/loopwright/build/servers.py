"""What all engines have in common that run outside of this process: their model, the names of its weights, and how a
run attaches to those that somebody else has started."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from urllib.parse import urlsplit

from loopwright.build import parts
from loopwright.build.attached import ModelCheck
from loopwright.build.sampling import LocalSamplingParts
from loopwright.config import LoopwrightEngineConfig, SglangEngineConfig, VllmEngineConfig
from loopwright.config.transport import Transport, transport_to
from loopwright.engines.attached import AttachableEngine, Attachment, attached_engine
from loopwright.engines.version_labels import VersionLabels
from loopwright.engines.worker import Launch
from loopwright.models.smollm2 import NAME as SMOLLM2
from loopwright.models.smollm2 import smollm2_folder
from loopwright.ports import StreamingEngine
from loopwright.serve.lease import LeaseHolder

log = logging.getLogger("loopwright")

Connect = Callable[[str, str | None], AbstractAsyncContextManager[AttachableEngine]]
"""Connects to the engine at a URL, with its key."""


def served_source(sampling: LocalSamplingParts) -> str:
    """The folder or name of the model, as a server can load it."""
    source = parts.model_source(sampling.loaded, sampling.config.model.path)
    return str(smollm2_folder(sampling.cache)) if source == SMOLLM2 else source


def version_labels(holder: LeaseHolder) -> VersionLabels:
    """Names that no opening of the run had before. A run without a database has the same lineage at every opening."""
    return VersionLabels(f"{holder.run}-{secrets.token_hex(4)}", holder.lineage)


def attached_launches(
    sampling: LocalSamplingParts,
    engine: LoopwrightEngineConfig | VllmEngineConfig | SglangEngineConfig,
    holder: LeaseHolder,
    connect: Connect,
) -> list[Launch]:
    """The engines at the config's URLs. New weights reach them by the way that fits where they are."""
    key = sampling.loaded.secrets.get(engine.key_env or "")
    check = ModelCheck(served_source(sampling), sampling.model, sampling.cache, engine.is_proven)
    launches: list[Launch] = []
    for url in engine.urls:
        way = transport_to(url)
        log.info("weights reach %s by %s", url, way)
        carry = partial(by_broadcast, url) if way.transport is Transport.BROADCAST else _by_file
        attachment = Attachment(url, partial(connect, url, key), holder, check, engine.wait_seconds, carry=carry)
        launches.append(partial(attached_engine, attachment))
    return launches


def _by_file(engine: AttachableEngine) -> StreamingEngine:
    return engine


def by_broadcast(url: str, engine: AttachableEngine) -> StreamingEngine:
    """The engine at `url`, which gets weights over the network."""
    from loopwright.models.broadcast import own_address
    from loopwright.weights.broadcast import BroadcastEngine, Broadcasting

    parts = urlsplit(url)
    host = own_address(parts.hostname or "", parts.port or 80)
    return BroadcastEngine(engine, Broadcasting(host, workers=engine.workers))
