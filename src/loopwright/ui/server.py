"""The page on a port: who may reach it, and the link with which it is opened."""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from threading import Thread

from loopwright.serve.listen import listening
from loopwright.ui.access import Access
from loopwright.ui.app import page_app
from loopwright.ui.served import ServedRuns


@asynccontextmanager
async def open_page(
    root: Path, *, key: str, host: str = "127.0.0.1", port: int = 0, names: tuple[str, ...] = ()
) -> AsyncIterator[int]:
    """Serve the run in `root`, or the runs directly below it, and give the port."""
    app = page_app(ServedRuns(root), Access(key))
    # The first trajectory that somebody opens would wait for these imports.
    Thread(target=_import_readers, name="imports of the page", daemon=True).start()
    async with listening(app, host=host, port=port, names=names, key=key, own_keys=True, own_pages=True) as bound:
        yield bound


def _import_readers() -> None:
    for package in ("pyarrow.parquet", "pyarrow.compute", "tokenizers"):
        with suppress(ImportError):
            importlib.import_module(package)


def page_url(host: str, port: int) -> str:
    shown = "127.0.0.1" if host in ("0.0.0.0", "::") else host
    return f"http://[{shown}]:{port}/" if ":" in shown else f"http://{shown}:{port}/"
