"""The judger contract for judgers of the driver's own process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest
from judger_contract import USER_JUDGERS, Configs, JudgerContract, Place

from loopwright.judgers import open_judgers
from loopwright.ports import Judger


@pytest.mark.real
class TestJudgersHere(JudgerContract):
    @pytest.fixture
    def place(self) -> Place:
        @asynccontextmanager
        async def here(name: str, configs: Configs, secrets: Mapping[str, str] = {}) -> AsyncIterator[Judger]:
            async with open_judgers([name], configs, USER_JUDGERS, secrets) as judgers:
                yield judgers[name]

        return here
