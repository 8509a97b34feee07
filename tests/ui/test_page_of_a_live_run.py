"""The page beside a run that trains: it grows, and tells when an engine dies and when the run is killed, resumed or
deleted."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import httpx
import pytest
from browser import Visit, at_port, visiting
from live_run import DEADLINE, end, engine_of, training, until, write_live_run
from playwright.async_api import Browser, expect

from loopwright.runs.run_folder import RunFolder
from loopwright.runs.stored_run import StoredRun
from loopwright.serve.keys import read_key
from loopwright.types import RolloutKey

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="session")]

LONG = 1000.0 * DEADLINE


async def points(visit: Visit) -> int:
    return int(await visit.page.locator("main [data-rows]").get_attribute("data-rows") or 0)


async def more_points(visit: Visit) -> None:
    """Wait until a point has appeared without any click."""
    before = await points(visit)
    await visit.page.wait_for_function(
        "before => Number(document.querySelector('main [data-rows]')?.dataset.rows) > before", arg=before, timeout=LONG
    )


async def test_a_run_is_watched_killed_resumed_and_deleted(browser: Browser, tmp_path: Path) -> None:
    file, folder = write_live_run(tmp_path), RunFolder(tmp_path / "runs" / "live")
    with training(file) as process:
        await until(folder.metrics.is_file, process, file)
        async with visiting(browser, tmp_path / "runs") as visit:
            await visit.page.get_by_role("link", name="live").click()
            await visit.page.locator(".chart canvas").first.wait_for(timeout=LONG)
            await expect(visit.page.locator("#live")).to_contain_text("step", timeout=LONG)
            await more_points(visit)
            await look_at_a_token(visit, folder)
            await watch_an_engine_die(visit, end_of=engine_of(process))
            await visit.go("/run/live")
            await visit.page.locator(".chart canvas").first.wait_for(timeout=LONG)
            end(process.pid)
            await expect(visit.page.locator("#notice")).to_contain_text("has ended or was killed", timeout=LONG)
            with training(file) as again:
                await expect(visit.page.locator("#notice")).to_contain_text("was resumed", timeout=LONG)
                await more_points(visit)
                await look_at_the_own_page(browser, folder)
                end(again.pid)
                again.wait(DEADLINE)
            shutil.rmtree(folder.path)
            await expect(visit.page.locator("#notice")).to_contain_text("is gone", timeout=LONG)
            await expect(visit.page.locator(".chart canvas").first).to_be_visible()
            await visit.page.get_by_role("link", name="Loopwright").click()
            await expect(visit.page.locator("main")).to_contain_text("There is no run directly in this folder")


async def look_at_a_token(visit: Visit, folder: RunFolder) -> None:
    """Steps, a trajectory, its tokens: the id and the logprob under the pointer are those in the database."""
    await visit.page.get_by_role("link", name="Steps", exact=True).click()
    await visit.page.locator("tbody a").last.click()
    await visit.page.locator(".group .chip").first.click()
    await visit.page.wait_for_url("**/rollout/**")
    task_set, *numbers = visit.page.url.rsplit("/rollout/")[1].partition("?")[0].split("/")
    stored = StoredRun(folder.rollouts).find(RolloutKey(task_set, *map(int, numbers)))
    assert stored is not None
    assert stored.episode is not None
    (chain,) = stored.episode.chains
    await visit.page.get_by_role("button", name="Tokens", exact=True).click()
    place = len(chain) - 1
    await visit.page.locator(f".tokens span[data-i='{place}']").hover()
    assert await visit.text("[data-field=id]") == str(chain.ids[place])
    told = float(await visit.text("[data-field=logprob]"))
    assert told == pytest.approx(float(chain.logprobs[place]), abs=1e-4)
    await visit.shot("live-tokens")


async def watch_an_engine_die(visit: Visit, end_of: int) -> None:
    await visit.page.get_by_role("link", name="Health", exact=True).click()
    await visit.page.locator("main h2").first.wait_for()
    for told in ("What goes on", "Engines now", "serves", "In flight now"):
        await expect(visit.page.locator("main")).to_contain_text(told, timeout=LONG)
    end(end_of)
    await expect(visit.page.locator("main")).to_contain_text("engine lost", timeout=LONG)
    await expect(visit.page.locator("main")).to_contain_text("SIGKILL")
    await visit.shot("live-engine-lost")
    await expect(visit.page.locator("main")).to_contain_text("engine back", timeout=LONG)
    await visit.page.get_by_role("link", name="Timeline", exact=True).click()
    await expect(visit.page.locator(".lanes")).to_contain_text("engine 0", timeout=LONG)
    await visit.shot("live-timeline")
    await visit.page.get_by_role("link", name="Curves", exact=True).click()
    await visit.page.locator(".chart canvas").first.wait_for(timeout=LONG)
    await more_points(visit)


async def look_at_the_own_page(browser: Browser, folder: RunFolder) -> None:
    """The page that the run has opened itself shows the same."""
    port = json.loads(folder.ui.read_text("ascii"))["port"]
    async with asyncio.timeout(DEADLINE), httpx.AsyncClient(timeout=DEADLINE) as client:
        while not await answers(client, f"http://127.0.0.1:{port}/health"):
            await asyncio.sleep(0.1)
    async with at_port(browser, port, read_key(folder.ui_key)) as own:
        await own.page.locator(".chart canvas").first.wait_for(timeout=LONG)
        await expect(own.page.locator("#live")).to_contain_text("step", timeout=LONG)


async def answers(client: httpx.AsyncClient, url: str) -> bool:
    try:
        return (await client.get(url)).status_code == 200
    except httpx.ConnectError:
        return False
