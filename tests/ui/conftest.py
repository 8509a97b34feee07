"""The browser, opened once for all tests of the page."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from browser import chromium
from planted_run import make_planted_run
from playwright.async_api import Browser

from loopwright.runs.run_folder import RunFolder


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as opened:
        yield opened


@pytest.fixture(scope="session")
def planted_run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """Nobody changes it. Its name would be markup if it were not text."""
    return make_planted_run(tmp_path_factory.mktemp("planted") / "<b>run")
