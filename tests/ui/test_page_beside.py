"""The page that a run opens beside itself: a real process."""

from __future__ import annotations

import asyncio
import json
import os
import stat

import httpx
import pytest

from loopwright.runs.run_folder import RunFolder
from loopwright.serve.keys import read_key
from loopwright.ui.beside import page_beside

pytestmark = pytest.mark.real


async def opened(folder: RunFolder, port: int = 0) -> str:
    """Open it, ask it, close it. Its URL."""
    told: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    async with page_beside(folder, port, os.environ, told.set_result):
        url = await asyncio.wait_for(told, 120)
        async with httpx.AsyncClient(base_url=url) as client:
            assert (await client.get("/api/runs")).status_code == 401
            answer = await client.get("/api/runs", headers={"authorization": f"Bearer {read_key(folder.ui_key)}"})
            assert [run["name"] for run in answer.json()["runs"]] == ["adding"]
    async with httpx.AsyncClient(base_url=url) as client:
        with pytest.raises(httpx.ConnectError):
            await client.get("/health")
    return url


async def test_it_ends_with_the_run_and_comes_back_where_it_was(made_up_run: RunFolder) -> None:
    first = await opened(made_up_run)
    key = made_up_run.ui_key.read_text()
    assert stat.S_IMODE(made_up_run.ui_key.stat().st_mode) == 0o600
    assert json.loads(made_up_run.ui.read_text())["url"] == first
    assert await opened(made_up_run) == first
    assert made_up_run.ui_key.read_text() == key


async def test_a_port_that_is_taken_is_replaced(made_up_run: RunFolder) -> None:
    async with await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0) as taken:
        port = taken.sockets[0].getsockname()[1]
        assert f":{port}/" not in await opened(made_up_run, port)
