"""Asks a page's app in this process, behind the same guard as on a port."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx

from loopwright.serve.guard import Guard
from loopwright.serve.listen import LOOPBACK_NAMES
from loopwright.ui.access import Access
from loopwright.ui.app import page_app
from loopwright.ui.served import ServedRuns

KEY = "lwk_a-key-for-tests-of-the-page"


class PageClient(httpx.AsyncClient):
    """A browser without scripts. `key` is sent with every question; without it, only the cookie opens."""

    def __init__(self, root: Path, key: str | None = KEY) -> None:
        app: Any = Guard(page_app(ServedRuns(root), Access(KEY)), key=None, hosts=LOOPBACK_NAMES, own_pages=True)
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        super().__init__(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:8080", headers=headers)

    async def json(self, path: str, **asked: Any) -> Any:
        answer = await self.get(path, params=asked)
        assert answer.status_code == 200, answer.text
        assert len(answer.content) <= 2_000_000
        return answer.json()
