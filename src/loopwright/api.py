"""The Python door: `open_run` with a config from a file, a mapping or the typed schema.

An entry point, like the command line: what it is not told it takes from the environment of this process.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loopwright.config import ConfigLike, load_from_python
from loopwright.core.caches import models_folder
from loopwright.errors import ModelError

if TYPE_CHECKING:
    from loopwright.build import RunOpening

log = logging.getLogger("loopwright")


def open_run(
    config: ConfigLike,
    overrides: Mapping[str, Any] | Sequence[str] = (),
    *,
    base: str | os.PathLike[str] | None = None,
    fresh: bool = False,
    allow_config_change: bool = False,
    env: Mapping[str, str] | None = None,
    cache: str | os.PathLike[str] | None = None,
) -> RunOpening:
    """Open a run: `async with open_run(config) as run:`, or `run = await open_run(config)` and later `run.close()`.

    `config` is the path of a config file, a mapping of its sections, or a `loopwright.config.RunConfig`. `overrides`
    are settings by dotted name, `{"rollout.temperature": 0.7}`, or texts as on the command line. Where a config names
    your code, a mapping and overrides may hold the function, class or object itself.

    Relative paths of data, code and models start from `base`; without it, from the file's folder, or else from the
    current one. `trainer.run_dir` starts from the current one. A run that is in its folder already goes on, unless
    `fresh` deletes it; `allow_config_change` lets it go on although the config differs. `env` are environment
    variables, those of this process unless given. `cache` is where converted models are kept.
    """
    env = os.environ if env is None else env
    loaded = load_from_python(config, overrides, env, base=None if base is None else Path(base).absolute())
    for warning in loaded.warnings:
        log.warning("%s", warning)
    # Heavy imports wait until the config is known to be sound.
    try:
        from loopwright.build import open_run as open_loaded
    except ModuleNotFoundError as error:
        remedy = "pip install 'loopwright[torch]'"
        raise ModelError(f"opening a run needs the package {error.name}", remedy=remedy) from error

    return open_loaded(
        loaded,
        cache=models_folder(env) if cache is None else Path(cache),
        stop=asyncio.Event(),
        fresh=fresh,
        allow_config_change=allow_config_change,
        env=env,
    )
