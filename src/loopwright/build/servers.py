"""What all inference servers of a run have in common: their model, the names of its weights, and how a run attaches to
those that already run."""

from __future__ import annotations

import secrets
from functools import partial
from typing import TYPE_CHECKING

from loopwright.build import parts
from loopwright.build.attached import ModelCheck
from loopwright.build.lease_holder import lease_holder
from loopwright.build.sampling import LocalSamplingParts
from loopwright.config import SglangEngineConfig, VllmEngineConfig
from loopwright.config.extras import require
from loopwright.engines.version_labels import VersionLabels
from loopwright.engines.worker import Launch
from loopwright.models.smollm2 import NAME as SMOLLM2
from loopwright.models.smollm2 import smollm2_folder
from loopwright.trainers.run_folder import RunFolder

if TYPE_CHECKING:
    from loopwright.engines.attached_server import Connect


def server_launches(
    sampling: LocalSamplingParts, engine: VllmEngineConfig | SglangEngineConfig, connect: Connect, labels: VersionLabels
) -> list[Launch]:
    """Attach to the servers at `urls`."""
    from loopwright.engines.attached_server import ServerAttachment, attached_server

    key = sampling.loaded.secrets.get(engine.key_env or "")
    check = ModelCheck(served_source(sampling), sampling.model, sampling.cache)
    return [
        partial(attached_server, ServerAttachment(connect, url, key, labels, check, engine.wait_seconds))
        for url in engine.urls
    ]


def sglang_launches(sampling: LocalSamplingParts, engine: SglangEngineConfig, folder: RunFolder) -> list[Launch]:
    require("serve")
    from loopwright.engines.sglang.engine import SglangEngine

    return server_launches(sampling, engine, SglangEngine.connect, version_labels(folder))


def served_source(sampling: LocalSamplingParts) -> str:
    """The folder or name of the model, as a server can load it."""
    source = parts.model_source(sampling.loaded, sampling.config.model.path)
    return str(smollm2_folder(sampling.cache)) if source == SMOLLM2 else source


def version_labels(folder: RunFolder) -> VersionLabels:
    """Names that no opening of the run had before. A run without a database has the same lineage at every opening."""
    holder = lease_holder(folder)
    return VersionLabels(f"{holder.run}-{secrets.token_hex(4)}", holder.lineage)
