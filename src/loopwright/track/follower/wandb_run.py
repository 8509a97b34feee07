"""A run at Weights & Biases. Each opening of a Loopwright run is one, and has all surviving steps; `group` holds them
together. W&B refuses steps that go back, so a run there could not be continued after a kill."""

from __future__ import annotations

from pathlib import Path

import wandb
import yaml

from loopwright.track.follower.settings import FollowerSettings


class WandbRun:
    """Online, or in the folder `wandb` of the run, from where `wandb sync` can send it later."""

    def __init__(self, settings: FollowerSettings) -> None:
        folder = Path(settings.folder)
        self._run = wandb.init(
            project=settings.place,
            entity=settings.owner,
            name=settings.name,
            group=settings.run_id,
            mode="online" if settings.online else "offline",
            dir=str(folder),
            config=yaml.safe_load((folder / "config.yaml").read_text("utf-8")),
            settings=wandb.Settings(console="off", silent=True, disable_git=True, save_code=False),
        )

    def log(self, step: int, time: float, metrics: dict[str, float]) -> None:
        self._run.log({**metrics, "time": time}, step=step)

    def finish(self) -> None:
        self._run.finish()
