"""What all inference servers of a run have in common: their model, and the names of its weights."""

from __future__ import annotations

import secrets

from loopwright.build import parts
from loopwright.build.lease_holder import lease_holder
from loopwright.build.sampling import LocalSamplingParts
from loopwright.engines.version_labels import VersionLabels
from loopwright.models.smollm2 import NAME as SMOLLM2
from loopwright.models.smollm2 import smollm2_folder
from loopwright.trainers.run_folder import RunFolder


def served_source(sampling: LocalSamplingParts) -> str:
    """The folder or name of the model, as a server can load it."""
    source = parts.model_source(sampling.loaded, sampling.config.model.path)
    return str(smollm2_folder(sampling.cache)) if source == SMOLLM2 else source


def version_labels(folder: RunFolder) -> VersionLabels:
    """Names that no opening of the run had before. A run without a database has the same lineage at every opening."""
    holder = lease_holder(folder)
    return VersionLabels(f"{holder.run}-{secrets.token_hex(4)}", holder.lineage)
