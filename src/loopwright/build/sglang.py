"""The SGLang servers of a run, which somebody else has started."""

from __future__ import annotations

from functools import partial

from loopwright.build.attached import ModelCheck
from loopwright.build.lease_holder import lease_holder
from loopwright.build.sampling import LocalSamplingParts
from loopwright.build.servers import served_source, version_labels
from loopwright.config import SglangEngineConfig
from loopwright.config.extras import require
from loopwright.engines.worker import Launch
from loopwright.trainers.run_folder import RunFolder


def sglang_launches(sampling: LocalSamplingParts, engine: SglangEngineConfig, folder: RunFolder) -> list[Launch]:
    require("serve")
    from loopwright.engines.attached import Attachment, attached_engine
    from loopwright.engines.sglang.engine import SglangEngine

    holder, labels = lease_holder(folder), version_labels(folder)
    key = sampling.loaded.secrets.get(engine.key_env or "")
    check = ModelCheck(served_source(sampling), sampling.model, sampling.cache)
    return [
        partial(
            attached_engine,
            Attachment(url, partial(SglangEngine.connect, url, key, labels=labels), holder, check, engine.wait_seconds),
        )
        for url in engine.urls
    ]
