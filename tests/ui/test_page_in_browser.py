"""The page in Chromium, on a finished run: what a person clicks, points at and reads is what the run has stored."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import tarfile
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from browser import PHONE, at_port, run_path, visiting
from page_client import KEY
from planted_run import (
    BRANCHED,
    ENGINE_DIES,
    HOSTILE,
    HOSTILE_STEP,
    JUDGE_FAILS,
    NO_SIGNAL,
    SETTINGS,
    STEP_SECONDS,
    STEPS,
)
from playwright.async_api import Browser, Route, expect

from loopwright.buffer.token_numbers import decode_numbers
from loopwright.runs.run_folder import RunFolder
from loopwright.runs.stored_run import StoredRun
from loopwright.types import RolloutKey
from loopwright.ui import run_view
from loopwright.ui.app import STATIC
from loopwright.ui.server import open_page

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="session")]

ROLLOUT = f"/rollout/{BRANCHED.task_set}/{BRANCHED.draw}/{BRANCHED.member}/{BRANCHED.attempt}"
VIEWS = {
    "runs": None,
    "curves": "",
    "steps": "/steps",
    "step": f"/step/{HOSTILE_STEP}",
    "conversation": ROLLOUT,
    "tokens": f"{ROLLOUT}?view=tokens",
    "timeline": f"/timeline?to={ENGINE_DIES}",
    "health": "/health",
    "config": "/config",
}
READY = "main h1:not(:text('Loading'))"


def pushes(run: RunFolder, chain: int) -> dict[int, float]:
    """The share of the step's loss of each trained token of a chain, straight from the database."""
    with closing(sqlite3.connect(run.rollouts)) as db:
        ours, total = (
            db.execute(f"SELECT {what} FROM trained JOIN groups USING (task_set, draw, round) WHERE {where}").fetchone()
            for what, where in (
                ("numbers", f"(task_set, draw, member) = ('{BRANCHED.task_set}', {BRANCHED.draw}, {BRANCHED.member})"),
                ("sum(loss_terms)", f"step = {HOSTILE_STEP}"),
            )
        )
    found = decode_numbers(ours[0])[chain]
    return {int(at): float(loss) / total[0] for at, loss in zip(found.positions, found.losses, strict=True)}


def address(run: RunFolder, view: str) -> str:
    rest = VIEWS[view]
    return "/" if rest is None else run_path(run.path.name, rest)


async def test_a_point_of_a_token_is_what_the_database_has(browser: Browser, planted_run: RunFolder) -> None:
    stored = StoredRun(planted_run.rollouts).find(BRANCHED)
    assert stored is not None
    assert stored.episode is not None
    async with visiting(browser, planted_run.path.parent) as visit:
        await visit.page.get_by_role("link", name=planted_run.path.name).click()
        await visit.page.get_by_role("link", name="Steps", exact=True).click()
        await visit.page.get_by_role("link", name=f"step {HOSTILE_STEP}", exact=True).click()
        await (
            visit.page.locator(".group", has_text=f"{BRANCHED.task_set}/{BRANCHED.draw}")
            .get_by_role("link")
            .nth(BRANCHED.member)
            .click()
        )
        await visit.page.get_by_role("button", name="Tokens", exact=True).click()
        for number, chain in enumerate(stored.episode.chains):
            if number:
                await visit.page.locator(f"[data-chain='{number}']").click()
            await expect(visit.page.locator(".tokens span")).to_have_count(len(chain))
            for place in (0, len(chain) - 2):
                await visit.page.locator(f".tokens span[data-i='{place}']").hover()
                assert await visit.text("[data-field=id]") == str(chain.ids[place])
                if chain.mask[place]:
                    assert float(await visit.text("[data-field=logprob]")) == pytest.approx(
                        float(chain.logprobs[place]), rel=1e-3
                    )
                    assert float(await visit.text("[data-field=mismatch]")) == pytest.approx(0.25, rel=1e-2)
                    push = await visit.text("[data-field=push]")
                    assert float(push) == pytest.approx(pushes(planted_run, number)[place], rel=1e-2)
        await expect(visit.page.locator(".tree")).to_contain_text("leaves chain 1 at token")
        await visit.page.get_by_role("button", name="Copy as JSON").click()
        await expect(visit.page.locator("#notice")).to_contain_text("Copied")
        copied = json.loads(await visit.page.evaluate("navigator.clipboard.readText()"))
        assert [one["ids"] for one in copied["chains"]] == [chain.ids.tolist() for chain in stored.episode.chains]
        # A link to what is shown opens the same, and has no key.
        here = visit.page.url
        await visit.page.goto("about:blank")
        await visit.page.goto(here)
        await expect(visit.page.locator(".tokens span")).to_have_count(len(stored.episode.chains[-1]))


STATUS: Mapping[str, Any] = {
    "format": 1,
    "ranks": [
        {"rank": 0, "alive": True, "heard": 1.0, "tokens_per_second": 1234.5},
        {"rank": 1, "alive": False, "heard": None, "tokens_per_second": None},
    ],
    "sessions": {"open": 5, "waiting": 3, "completed": 40, "heard": 1.0, "restarts": 1, "lost": HOSTILE},
    "crews": [{"role": HOSTILE, "actors": 3, "alive": 2, "calls": 7, "restarts": 4, "given_up": HOSTILE}],
    "production": {"task_sets": {"sums": {"open": 1, "next_group": None}}},
}
RANKS = [
    {"name": "compute", "who": f"rank {rank}", "step": STEPS + 1, "start": 1e9 + rank, "end": 1e9 + 5}
    for rank in (0, 1)
]


async def test_health_names_ranks_sessions_and_actors(browser: Browser, planted_run: RunFolder, tmp_path: Path) -> None:
    shutil.copytree(planted_run.path, tmp_path / "live")
    live = RunFolder(tmp_path / "live")
    with live.events.open("a") as events:
        events.writelines(json.dumps(one) + "\n" for one in RANKS)
    with RunFolder.open(live.path, SETTINGS):
        async with visiting(browser, live.path) as visit:
            live.status.write_text(json.dumps({**STATUS, "at": time.time()}))
            await visit.go(run_path("live", "/health"))
            shown = visit.page.locator("main")
            await expect(shown.get_by_label("Ranks now")).to_contain_text("alive")
            await expect(shown.get_by_label("Ranks now")).to_contain_text("1,235")
            await expect(shown.get_by_label("Ranks now").locator(".bad")).to_have_text("lost")
            await expect(shown).to_contain_text("Sessions at the gateway now")
            await expect(shown.locator("dl", has_text="wait for the model")).to_contain_text("3")
            await expect(shown.get_by_label("Actors now")).to_contain_text("2 of 3")
            await expect(shown.get_by_label("Actors now")).to_contain_text(HOSTILE)
            await expect(shown.get_by_text("open 1", exact=True)).to_be_visible()
            assert not await visit.is_wider_than_the_window()
            await visit.go(run_path("live", "/timeline?count=1"))
            await expect(shown.locator(".lanes")).to_contain_text("rank 0")
            await expect(shown.locator(".lanes")).to_contain_text("rank 1")
            await expect(visit.page.get_by_role("button", name=f"compute, step {STEPS + 1}")).to_have_count(2)


async def test_an_open_page_notices_that_a_run_stands_still(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_view, "KEPT_SECONDS", 0.0)
    monkeypatch.setattr(run_view, "KEPT_TIMES", 0)
    with RunFolder.open(tmp_path / "young", SETTINGS) as young:
        async with visiting(browser, young.path) as visit:
            await visit.page.clock.install()
            await visit.go(run_path("young", "/health"))
            await expect(visit.page.locator("main")).to_contain_text("No alarm.")
            os.utime(young.lock, (time.time() - 3600,) * 2)
            await visit.page.clock.fast_forward(61_000)
            await expect(visit.page.locator(".alarm")).to_contain_text("The run stands still")


async def test_what_was_drawn_stands_beside_where_it_stands(
    browser: Browser, planted_run: RunFolder, tmp_path: Path
) -> None:
    shutil.copytree(planted_run.path, tmp_path / "torn")
    with closing(sqlite3.connect(tmp_path / "torn" / "rollouts.sqlite")) as db, db:
        (drawn,) = db.execute("SELECT count(*) FROM groups WHERE task_set = 'facts'").fetchone()
        for table in ("rollouts", "groups"):
            db.execute(f"DELETE FROM {table} WHERE (task_set, draw) = ('facts', {drawn - 1})")
    async with visiting(browser, planted_run.path) as visit:
        await visit.go(run_path(planted_run.path.name, "/health"))
        await expect(visit.page.locator("main")).to_contain_text("stands somewhere, once")
    async with visiting(browser, tmp_path / "torn") as visit:
        await visit.go(run_path("torn", "/health"))
        row = visit.page.get_by_label("Where every group stands").get_by_role("row", name="facts")
        await expect(row).to_contain_text(f"{drawn - 1}, not {drawn}")
        await expect(visit.page.locator("main")).to_contain_text("`loopwright audit` says which groups")


LOST = {"step": 3, "why": f"its file is missing {HOSTILE}"}


async def test_a_search_goes_on_and_begins_again_after_a_resume(
    browser: Browser, planted_run: RunFolder, tmp_path: Path
) -> None:
    shutil.copytree(planted_run.path, tmp_path / "copy")
    # It waits for somebody after each answer, instead of after 200 hits.
    script = (STATIC / "js" / "views" / "steps.js").read_text().replace("ENOUGH = 200", "ENOUGH = 1")
    async with visiting(browser, tmp_path / "copy") as visit:
        rows, state = visit.page.locator("main section td a"), visit.page.locator("main section [role=status]")
        more = visit.page.get_by_role("button", name="More", exact=True)
        await visit.page.route(
            "**/views/steps.js", lambda route: route.fulfill(body=script, content_type="text/javascript")
        )
        await visit.go(run_path("copy", "/steps?q=Question"))
        await expect(state).to_contain_text("100 found")
        await more.click()
        await expect(state).to_contain_text("which is all")
        await expect(more).to_be_hidden()
        total, links = await rows.count(), {await one.get_attribute("href") for one in await rows.all()}
        assert total == len(links) > 100

        await visit.page.reload()
        await expect(state).to_contain_text("100 found")
        with closing(sqlite3.connect(tmp_path / "copy" / "rollouts.sqlite")) as db, db:
            db.execute("INSERT INTO lineages VALUES (7, 3, 'mask', NULL, 1, 0)")
        await more.click()
        await expect(visit.page.locator("#notice")).to_contain_text("begun again")
        await more.click()
        await expect(state).to_contain_text("which is all")
        await expect(rows).to_have_count(total)

        async def one_lost(route: Route) -> None:
            answer = await route.fetch()
            await route.fulfill(response=answer, json={**await answer.json(), "unsearched": [LOST]})

        await visit.page.route("**/search?*", one_lost)
        await visit.page.reload()
        await expect(state).to_contain_text(f"1 step could not be searched (step 3: {LOST['why']}).")
        await more.click()
        await expect(state).to_contain_text("which is all that could be read. 1 step could not")


PPO: Mapping[str, Any] = {"loss": {"kind": "ppo_clip"}, "kl": None, "mini_batches": 1}


@pytest.mark.parametrize(
    ("learner", "below", "above"),
    [
        (PPO, "towards likelier", "not certain"),
        ({**PPO, "mini_batches": 4}, "towards likelier, if not clipped", "not certain"),
        ({**PPO, "loss": {"kind": "reinforce"}}, "not certain", "towards likelier"),
        ({**PPO, "kl": {"kind": "k3"}}, "not certain", "not certain"),
        ({**PPO, "loss": {"kind": "python"}}, "not certain", "not certain"),
    ],
    ids=["one mini-batch", "may be clipped", "reinforce", "kl", "own loss"],
)
async def test_a_token_says_where_its_term_pulls_only_if_that_is_certain(
    browser: Browser, planted_run: RunFolder, tmp_path: Path, learner: Any, below: str, above: str
) -> None:
    """All planted tokens have an advantage above zero, and shares of both signs: one of them comes from elsewhere."""
    copy = RunFolder(Path(shutil.copytree(planted_run.path, tmp_path / "copy")))
    head = copy.config.read_text().splitlines()[0]
    copy.config.write_text(f"{head}\n{json.dumps({**SETTINGS, 'learner': learner})}\n")
    shares = pushes(planted_run, 0)
    places = [
        next(at for at, share in shares.items() if is_wanted(share)) for is_wanted in (lambda s: s < 0, lambda s: s > 0)
    ]
    async with visiting(browser, copy.path) as visit:
        await visit.go(run_path("copy", f"{ROLLOUT}?view=tokens"))
        await visit.page.get_by_label("colour").select_option("push")
        for place, said in zip(places, (below, above), strict=True):
            await visit.page.locator(f".tokens span[data-i='{place}']").hover()
            await expect(visit.page.locator("[data-field=pulls]")).to_have_text(said)
        legend = await visit.text(".legend ul")
        assert ("pulls towards likelier" in legend) is (below != above)


async def test_failures_and_rewards_are_filters(browser: Browser, planted_run: RunFolder, tmp_path: Path) -> None:
    run = RunFolder(Path(shutil.copytree(planted_run.path, tmp_path / "failing")))
    async with visiting(browser, run.path) as visit:
        await visit.go(run_path("failing", f"/step/{JUDGE_FAILS}"))
        await visit.page.get_by_label("groups").select_option("failed")
        await expect(visit.page.locator(".chip.failed")).to_have_count(4)
        await visit.page.locator(".chip.failed").first.click()
        await expect(visit.page.locator("main")).to_contain_text("facts.py:12")
        # Groups are also trained without the members that failed.
        with closing(sqlite3.connect(run.rollouts)) as db, db:
            db.execute(
                "UPDATE rollouts SET reward = (SELECT reward FROM rollouts WHERE reward LIKE '%KeyError%' LIMIT 1)"
                " WHERE (task_set, draw, member) = ('sums', 1, 3)"
            )
            db.execute("DELETE FROM trained WHERE (task_set, draw, member) = ('sums', 1, 3)")
        await visit.go(run_path("failing", "/rollout/sums/1/3/0"))
        await expect(visit.page.locator("aside dl").first).to_contain_text("advantagedid not train")
        await visit.go(run_path("failing", f"/step/{NO_SIGNAL}"))
        await visit.page.get_by_label("groups").select_option("filtered")
        await expect(visit.page.locator(".group")).to_have_count(3)
        await visit.go(run_path("failing", "/step/2"))
        bar = visit.page.locator(".histogram button").last
        await bar.click()
        await expect(visit.page.locator(".histogram button[aria-pressed=true]")).to_have_count(1)
        assert "low=1" in visit.page.url
        await visit.page.get_by_role("button", name="Side by side").first.click()
        await expect(visit.page.locator(".sides article")).to_have_count(4)


async def test_only_a_visible_tab_has_a_stream_and_a_hidden_one_catches_up(
    browser: Browser, planted_run: RunFolder, tmp_path: Path
) -> None:
    """A browser allows six connections to one server, for all its tabs together: the seventh tab would hang."""
    run = RunFolder(Path(shutil.copytree(planted_run.path, tmp_path / "many")))
    lines = run.metrics.read_text().splitlines(keepends=True)
    run.metrics.write_text("".join(lines[:-1]))
    async with visiting(browser, run.path) as visit:
        # A driven browser takes all its tabs for visible.
        await visit.page.add_init_script("""
            Object.defineProperty(document, 'hidden', {get: () => Boolean(window.away)});
            window.streams = [];
            window.EventSource = class extends EventSource { constructor(at) { super(at); streams.push(this); } };""")
        show = "away => { window.away = away; document.dispatchEvent(new Event('visibilitychange')); }"
        are_open = "streams.filter((one) => one.readyState !== EventSource.CLOSED).length"
        await visit.page.reload()
        await expect(visit.page.locator("[data-rows]")).to_have_attribute("data-rows", str(STEPS - 1))
        await visit.page.wait_for_function(f"{are_open} === 1")
        await visit.page.evaluate(show, arg=True)
        assert await visit.page.evaluate(are_open) == 0
        run.metrics.write_text("".join(lines))
        await visit.page.evaluate(show, arg=False)
        await expect(visit.page.locator("[data-rows]")).to_have_attribute("data-rows", str(STEPS))
        assert await visit.page.evaluate(are_open) == 1


async def test_a_server_that_comes_back_with_another_key_is_asked_for_it(
    browser: Browser, planted_run: RunFolder
) -> None:
    runs, other = planted_run.path.parent, f"{KEY}-other"
    async with AsyncExitStack() as first:
        port = await first.enter_async_context(open_page(runs, key=KEY))
        async with at_port(browser, port, KEY) as visit:
            title, notice = visit.page.locator("h1"), visit.page.locator("#notice")
            await visit.go(address(planted_run, "health"))
            await expect(visit.page.locator("#live")).to_have_text("not running")
            await first.aclose()
            await expect(notice).to_contain_text("does not answer")
            async with open_page(runs, key=other, port=port):
                await expect(title).to_have_text("The key of this server")
                await expect(notice).to_be_hidden()
                await visit.page.get_by_label("Key", exact=True).fill(other)
                await visit.page.get_by_role("button", name="Open").click()
                await expect(title).to_have_text("Health")
                await expect(visit.page.locator("#live")).to_have_text("not running")
                await visit.page.clock.install()
                await visit.go("/")
                await expect(title).to_contain_text("Runs in")
            # The list of runs has no stream: it asks again.
            await visit.page.clock.fast_forward(11_000)
            await expect(notice).to_contain_text("does not answer")


async def test_the_first_view_says_how_the_run_ended(browser: Browser, planted_run: RunFolder, tmp_path: Path) -> None:
    run = RunFolder(Path(shutil.copytree(planted_run.path, tmp_path / "short")))
    run.metrics.write_text("".join(run.metrics.read_text().splitlines(keepends=True)[: JUDGE_FAILS - 1]))
    told: dict[str, Any] = {}

    async def overview(route: Route) -> None:
        answer = await route.fetch()
        await route.fulfill(response=answer, json={**await answer.json(), **told})

    with closing(sqlite3.connect(run.rollouts)) as db, db:
        db.execute("UPDATE trail SET at = 1e9 + ? * coalesce(step, 0)", (STEP_SECONDS,))
    error = f"JudgeError: 16 groups in a row failed {HOSTILE}"
    async with visiting(browser, run.path) as visit:
        state = visit.page.locator("dl").first
        await expect(state).to_contain_text("statenot running")
        # All that lies between the ends of two steps, of which 54 s are told as parts.
        await expect(state).to_contain_text("time per step1 min 00 s, the mean of the last 10")
        # A share that was always 0 has an axis of shares.
        shares = "document.querySelector('[aria-label^=Truncated]').chart.plot.scales.y"
        assert await visit.page.evaluate(f"[{shares}.min, {shares}.max]") == [0, 1]
        await visit.page.route("**/api/runs/short", overview)
        for ended, said in (
            (None, "statenot running"),
            ({"how": "stopped", "error": None, "at": 1.0}, "statestopped"),
            ({"how": "error", "error": error, "at": 1.0}, f"stateended with an error: {error}"),
        ):
            told["ended"] = ended
            await visit.page.reload()
            await expect(state).to_contain_text(said)
        await visit.go(run_path("short", "/health"))
        await expect(state).to_contain_text(said)


async def test_what_cannot_be_looked_at_is_said(browser: Browser, planted_run: RunFolder, tmp_path: Path) -> None:
    run = RunFolder(Path(shutil.copytree(planted_run.path, tmp_path / "damaged")))
    run.rollouts.write_bytes(b"no database" * 100)
    async with visiting(browser, run.path) as visit:
        alarms = visit.page.locator("main > div > [role=status]")
        await expect(alarms).to_contain_text("database")
        told = {"alarms": [], "problem": f"the database cannot be read {HOSTILE}"}
        await visit.page.route("**/alarms", lambda route: route.fulfill(json=told))
        await visit.page.reload()
        await expect(alarms).to_contain_text(f"Not all alarms could be looked for: {told['problem']}")


async def test_small_things_say_what_is_so(browser: Browser, planted_run: RunFolder, tmp_path: Path) -> None:
    run = RunFolder(Path(shutil.copytree(planted_run.path, tmp_path / "small")))
    vague = {"kind": "no_signal", "title": "Groups teach nothing", "numbers": "5 of 5, since step 10 or earlier"}
    engine = {"kind": "engines", "title": "An engine was lost", "numbers": "once", "since": ENGINE_DIES}
    rest: dict[str, Any] = {"severe": False, "rule": "", "since": None, "links": []}
    told = {"alarms": [{**rest, **one} for one in (vague, engine, engine, engine, engine)]}
    async with visiting(browser, run.path) as visit:
        page, shown = visit.page, visit.page.locator("main")
        await page.route("**/alarms", lambda route: route.fulfill(json=told))
        await page.reload()
        await expect(page.locator(".alarm.line")).to_contain_text("Groups teach nothing since step 10 or earlier")
        await expect(page.locator(".alarm.line")).to_contain_text("and 1 more")
        causes = page.locator(".chart", has_text="Failures by cause").locator(".legend li")
        await expect(causes).to_have_count(1)
        await page.get_by_role("link", name="5 alarms").click()
        lost = page.locator(".alarm", has_text="An engine was lost").get_by_role("link", name=f"step {ENGINE_DIES}")
        await lost.last.click()
        await expect(page.locator("h2").first).to_contain_text(f"Step {ENGINE_DIES}")
        assert f"timeline?to={ENGINE_DIES}&count=1" in page.url
        await visit.go(run_path("small", "/step/19"))
        await expect(shown).to_contain_text("truncated50 %")
        await page.get_by_role("link", name="← step 18").click()
        await expect(page.locator("h1")).to_have_text("Step 18")
        await visit.go(run_path("small", "/step/999999"))
        await expect(page.locator("h1")).to_have_text("There is no step 999999")
        await visit.go(run_path("small", "/steps?q=Question"))
        await expect(page.locator("section [role=status]")).to_contain_text("found in")
        await page.locator("section tbody a").first.wait_for()
        await page.keyboard.press("j")
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/rollout/**")


async def test_two_runs_are_compared_and_their_configs_told_apart(
    browser: Browser, planted_run: RunFolder, tmp_path: Path
) -> None:
    for name, rate in (("slow", "1e-05"), ("fast", "0.5")):
        shutil.copytree(planted_run.path, tmp_path / name)
        config = tmp_path / name / "config.yaml"
        config.write_text(config.read_text().replace("1.0e-05", rate).replace("1e-05", rate))
    async with visiting(browser, tmp_path) as visit:
        for name in ("slow", "fast"):
            await visit.page.get_by_label(f"Compare {name}").check()
        await visit.page.get_by_role("button", name="Compare", exact=True).click()
        await expect(visit.page.locator("main")).to_contain_text("2 runs side by side")
        await expect(visit.page.locator("table")).to_contain_text("learner.lr")
        await expect(visit.page.locator("table")).to_contain_text("0.5")
        assert await visit.page.locator(".chart canvas").count() >= 5
        await visit.shot("compare-light")


async def test_all_of_it_by_keyboard(browser: Browser, planted_run: RunFolder) -> None:
    async with visiting(browser, planted_run.path.parent) as visit:
        press, page = visit.page.keyboard.press, visit.page
        await expect(page.locator("tbody")).to_contain_text("finished")
        await press("j")
        await press("Enter")
        await page.wait_for_url("**/run/*")
        await press("2")
        await page.wait_for_url("**/steps")
        await page.locator("tbody tr").first.wait_for()
        await press("j")
        await press("Enter")
        await page.wait_for_url(f"**/step/{STEPS}")
        await page.locator(".group").first.wait_for()
        await press("k")
        await page.wait_for_url(f"**/step/{STEPS - 1}")
        await page.locator(".group").first.wait_for()
        await press("ArrowRight")
        await press("Enter")
        await page.wait_for_url("**/rollout/**")
        await page.locator(".message").first.wait_for()
        await press("t")
        await page.locator(".tokens span").first.wait_for()
        await press("ArrowRight")
        await press("ArrowRight")
        await expect(page.locator("[data-field=id]")).to_be_visible()
        await press("4")
        await page.wait_for_url("**/health")
        await page.locator("main h1").wait_for()
        await press("?")
        await expect(page.get_by_role("dialog")).to_be_visible()
        await press("Escape")
        await expect(page.get_by_role("dialog")).to_be_hidden()
        await press("g")
        await page.wait_for_url(f"{visit.root}/")


async def test_what_a_model_wrote_is_shown_as_text(browser: Browser, planted_run: RunFolder) -> None:
    async with visiting(browser, planted_run.path.parent) as visit:
        for view in VIEWS:
            await visit.go(address(planted_run, view))
            await visit.page.locator(READY).first.wait_for(state="attached")
            await visit.page.wait_for_load_state(
                "networkidle"
            ) if view == "runs" else await visit.page.wait_for_timeout(150)
            assert await visit.page.evaluate("window.hit") is None, view
            assert await visit.page.locator("main img, main script").count() == 0, view
        for view, places in (("conversation", 5), ("config", 1), ("health", 1), ("step", 2)):
            await visit.go(address(planted_run, view))
            await expect(visit.page.locator("main")).to_contain_text(HOSTILE[:40])
            text = await visit.page.locator("main").text_content() or ""
            assert text.count(HOSTILE) >= places, view


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
async def test_nobody_is_kept_out(browser: Browser, planted_run: RunFolder, dark: bool) -> None:
    async with visiting(browser, planted_run.path.parent, dark=dark) as visit:
        for view in VIEWS:
            await visit.go(address(planted_run, view))
            await visit.page.locator(READY).first.wait_for(state="attached")
            await visit.page.wait_for_timeout(150)
            assert await visit.serious_faults() == [], view
            await visit.shot(f"{view}-{'dark' if dark else 'light'}")


async def test_no_view_is_wider_than_a_phone(browser: Browser, planted_run: RunFolder) -> None:
    async with visiting(browser, planted_run.path.parent, size=PHONE) as visit:
        for view in VIEWS:
            await visit.go(address(planted_run, view))
            await visit.page.locator(READY).first.wait_for(state="attached")
            await visit.page.wait_for_timeout(150)
            assert not await visit.is_wider_than_the_window(), view
            assert await visit.broken_words() == [], view
            await visit.shot(f"{view}-phone")


async def test_a_run_of_the_first_release_opens(browser: Browser, tmp_path: Path) -> None:
    with tarfile.open(sorted((Path(__file__).parents[1] / "compat" / "0.1.0").glob("*.tar.xz"))[0]) as packed:
        packed.extractall(tmp_path, filter="data")
    async with visiting(browser, tmp_path / "run") as visit:
        await visit.page.locator(".chart canvas").first.wait_for()
        await visit.page.keyboard.press("2")
        await visit.page.locator("tbody a").last.click()
        await visit.page.locator(".group .chip").first.click()
        await visit.page.get_by_role("button", name="Tokens", exact=True).click()
        await visit.page.locator(".tokens span[data-s='1']").first.hover()
        await expect(visit.page.locator("[data-field=push]")).to_have_text("not stored")
        for key in "345":
            await visit.page.keyboard.press(key)
            await visit.page.locator(READY).first.wait_for(state="attached")


async def test_a_stored_key_of_a_rollout_with_slashes_opens(browser: Browser, planted_run: RunFolder) -> None:
    """The address of a rollout is made of its key, whatever it is called."""
    assert RolloutKey("a/b", 1, 2).task_set == "a/b"
    async with visiting(browser, planted_run.path) as visit:
        await visit.go(run_path(planted_run.path.name, "/rollout/no%2Fsuch/1/0/0"))
        await expect(visit.page.locator("h1")).to_contain_text("There is no rollout no/such/")
