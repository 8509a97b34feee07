"""Where converted models are cached."""

from __future__ import annotations

import os
from pathlib import Path

from loopwright.core import caches


def models_folder() -> Path:
    return caches.models_folder(os.environ)
