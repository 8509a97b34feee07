"""Sampling settings that no engine could follow cannot be built."""

from __future__ import annotations

from typing import Any

import pytest

from loopwright.errors import ConfigError
from loopwright.types import Sampling


@pytest.mark.parametrize(
    "setting",
    [{"temperature": -0.1}, {"max_new_tokens": -1}, {"top_k": -1}, {"top_p": 0.0}, {"top_p": 1.1}, {"stop": ("",)}],
)
def test_impossible_settings_are_refused(setting: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="cannot be sampled with"):
        Sampling(**setting)
