"""The schema of the gateway inside a run, for agents that talk HTTP."""

from __future__ import annotations

from loopwright.config.base import FromYaml, Section
from loopwright.types import Thinking


class GatewayConfig(Section):
    """`thinking`: whether the model sees its earlier thoughts as it sampled them, or as its chat template writes
    them."""

    thinking: FromYaml[Thinking] = Thinking.KEEP
