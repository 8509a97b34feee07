"""The judger contract for judgers on actors."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from judger_contract import USER_JUDGERS, Configs, JudgerContract, Place
from judgers_on_actors import opened_judgers, placed

from loopwright.cluster.judger import RayJudger
from loopwright.ports import Judger

if TYPE_CHECKING:
    from loopwright.cluster.cluster import Cluster


@pytest.mark.real
class TestJudgersOnActors(JudgerContract):
    @pytest.fixture
    def place(self, cluster: Cluster) -> Place:
        @asynccontextmanager
        async def there(name: str, configs: Configs, secrets: Mapping[str, str] = {}) -> AsyncIterator[Judger]:
            on_actors = {**configs, name: placed(configs[name])}
            async with opened_judgers(cluster, [name], on_actors, USER_JUDGERS, secrets) as judgers:
                assert isinstance(judgers[name], RayJudger)
                yield judgers[name]

        return there
