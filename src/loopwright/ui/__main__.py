"""The process of a run's own page: `python -m loopwright.ui RUN PORT`, with the key in the run's folder."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
from pathlib import Path

from loopwright.errors import ConfigError
from loopwright.runs.run_folder import RunFolder
from loopwright.serve.keys import read_key
from loopwright.serve.parent import die_with_parent
from loopwright.ui.server import open_page


async def main(folder: RunFolder, port: int) -> None:
    """Serve until SIGTERM. A port that is taken is replaced by a free one."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    key = read_key(folder.ui_key)
    for wanted in (port, 0):
        try:
            async with open_page(folder.path, key=key, port=wanted) as bound:
                print(json.dumps({"port": bound}), flush=True)
                await stop.wait()
                return
        except ConfigError as error:
            if not wanted:
                raise
            logging.warning("%s; another port is used", error.message)


if __name__ == "__main__":
    die_with_parent()
    asyncio.run(main(RunFolder(Path(sys.argv[1])), int(sys.argv[2])))
