"""The schema of the gateway of a run, for agents that talk HTTP."""

from __future__ import annotations

from loopwright.config.base import FromYaml
from loopwright.config.listening import Listening
from loopwright.types import Thinking


class GatewayConfig(Listening):
    """`thinking`: whether the model sees its earlier thoughts as it sampled them, or as its chat template writes
    them."""

    thinking: FromYaml[Thinking] = Thinking.KEEP
