"""A real browser for tests of the page. Whatever it complains about, and whatever it asks from elsewhere, is kept."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from page_client import KEY
from playwright.async_api import Browser, ConsoleMessage, Page, async_playwright

from loopwright.ui.server import open_page

CHECKOUT = Path(__file__).parents[2]
AXE = CHECKOUT / ".clients" / "node" / "node_modules" / "axe-core" / "axe.min.js"
SHOTS = CHECKOUT / "artefacts" / "page"
DESK, PHONE = (1280, 900), (390, 800)
WAIT_MS = 20_000
"""For whatever should appear at once; a busy machine takes longer."""
QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
"""Without these, Chromium looks for hosts outside at every start."""


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.skip("there is no Chromium; `make .clients/.chromium` installs it where it can")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=list(QUIET))
        try:
            yield browser
        finally:
            await browser.close()


@dataclass(slots=True)
class Visit:
    """One open page. `root` is the address of its server."""

    page: Page
    root: str
    complaints: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)

    async def go(self, path: str) -> None:
        await self.page.goto(self.root + path)

    async def shot(self, name: str) -> None:
        SHOTS.mkdir(parents=True, exist_ok=True)
        await self.page.screenshot(path=SHOTS / f"{name}.png", animations="disabled")

    async def text(self, chosen: str) -> str:
        return await self.page.locator(chosen).first.inner_text()

    async def is_wider_than_the_window(self) -> bool:
        return bool(await self.page.evaluate("document.documentElement.scrollWidth > innerWidth"))

    async def broken_words(self) -> list[str]:
        """Short words in tables that are broken in their middle: a word in one line has one box."""
        found: list[str] = await self.page.evaluate("""() => {
            const broken = [], texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
            for (let node = texts.nextNode(); node; node = texts.nextNode()) {
                if (!node.parentElement.closest('table, .lanes')) continue;
                for (const word of node.data.matchAll(/(?<![^\\s])[\\w%.]{1,12}(?![^\\s])/g)) {
                    const range = document.createRange();
                    range.setStart(node, word.index);
                    range.setEnd(node, word.index + word[0].length);
                    if (range.getClientRects().length > 1) broken.push(word[0]);
                }
            }
            return broken;
        }""")
        return found

    async def serious_faults(self) -> list[str]:
        """What axe-core finds that keeps people out. Empty if all is well."""
        if not AXE.is_file():
            pytest.skip("there is no axe-core; `make clients` installs it")
        await self.page.evaluate(AXE.read_text("utf-8"))
        found: dict[str, Any] = await self.page.evaluate("axe.run()")
        return [
            f"{fault['id']}: {fault['help']}: {fault['nodes'][0]['html'][:200]}"
            for fault in found["violations"]
            if fault["impact"] in ("serious", "critical")
        ]

    def heard(self, message: ConsoleMessage) -> None:
        # A refused answer is logged by the browser itself; the views tell it too.
        if message.type in ("error", "warning") and "Failed to load resource" not in message.text:
            self.complaints.append(message.text)


@asynccontextmanager
async def visiting(
    browser: Browser, place: Path, *, size: tuple[int, int] = DESK, dark: bool = False
) -> AsyncIterator[Visit]:
    """Serve the runs in `place`, and open them with the key, as the printed link does."""
    async with open_page(place, key=KEY) as port, at_port(browser, port, KEY, size=size, dark=dark) as visit:
        yield visit


@asynccontextmanager
async def at_port(
    browser: Browser, port: int, key: str, *, size: tuple[int, int] = DESK, dark: bool = False
) -> AsyncIterator[Visit]:
    root = f"http://127.0.0.1:{port}"
    theme: Any = "dark" if dark else "light"
    context = await browser.new_context(viewport={"width": size[0], "height": size[1]}, color_scheme=theme)
    try:
        await context.grant_permissions(["clipboard-read", "clipboard-write"], origin=root)
        page = await context.new_page()
        page.set_default_timeout(WAIT_MS)
        page.set_default_navigation_timeout(6 * WAIT_MS)
        visit = Visit(page, root)
        page.on("console", lambda message: visit.heard(message))
        page.on("pageerror", lambda error: visit.complaints.append(str(error)))
        page.on("request", lambda asked: None if asked.url.startswith(root) else visit.foreign.append(asked.url))
        await page.goto(f"{root}/#key={key}")
        await page.locator("main h1").first.wait_for(state="attached")
        assert key not in page.url
        yield visit
        foreign = [url for url in visit.foreign if not url.startswith(("data:", "blob:"))]
        assert not visit.complaints, visit.complaints
        assert not foreign, foreign
    finally:
        await context.close()


def run_path(run: str, rest: str = "") -> str:
    return f"/run/{quote(run, safe='')}{rest}"
