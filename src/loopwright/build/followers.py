"""The processes that send a run's metrics elsewhere, from the config."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import replace

from loopwright.config import Loaded
from loopwright.runs.run_folder import RunFolder
from loopwright.track.follower.settings import FollowerSettings, Service
from loopwright.track.followers import following

Follower = tuple[FollowerSettings, Mapping[str, str]]


def open_followers(
    loaded: Loaded, folder: RunFolder, lineage: int, env: Mapping[str, str]
) -> AbstractAsyncContextManager[None]:
    """A context that keeps them running. `env` is the run's environment. Each sees the secrets of its own section.

    Each lineage is a run of its own at the service: none of them takes steps that go back."""
    return following(list(_followers(loaded, folder, lineage)), env, folder.follower_log)


def _followers(loaded: Loaded, folder: RunFolder, lineage: int) -> Iterator[Follower]:
    track, secrets = loaded.config.track, loaded.secrets
    if (wandb := track.wandb) is not None:
        key = {"WANDB_API_KEY": secrets[wandb.key_env]} if wandb.online else {}
        begun = _settings(folder, lineage, Service.WANDB, wandb.project, wandb.name)
        yield replace(begun, owner=wandb.entity, online=wandb.online), key
    if (mlflow := track.mlflow) is not None:
        named = {name: secrets[name] for name in mlflow.env}
        yield (
            replace(_settings(folder, lineage, Service.MLFLOW, mlflow.experiment, mlflow.name), server=mlflow.uri),
            named,
        )


def _settings(folder: RunFolder, lineage: int, service: Service, place: str, name: str | None) -> FollowerSettings:
    path = folder.path.absolute()
    return FollowerSettings(service, str(path), folder.stored_id(), lineage, name or path.name, place)
