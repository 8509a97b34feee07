"""The schema of what a run shows and where its metrics go, besides its metrics file."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from loopwright.config.base import FromYaml, Section, Text
from loopwright.config.needs import Need, Outside
from loopwright.config.problems import KeyPath


class WandbConfig(Section):
    """Weights & Biases: in the folder `wandb` of the run, for `wandb sync`, or online with the key in `key_env`."""

    project: Text = "loopwright"
    entity: Text | None = None
    name: Text | None = None
    online: bool = False
    key_env: Text = "WANDB_API_KEY"

    def needs(self) -> Iterator[Need]:
        yield Need(Outside.EXTRA, (), "wandb")
        if self.online:
            yield Need(Outside.KEY, ("key_env",), self.key_env)

    def idle(self) -> Iterator[tuple[KeyPath, str]]:
        if not self.online:
            yield ("entity",), "online is false"
            yield ("key_env",), "online is false"


class MlflowConfig(Section):
    """MLflow: in the file `mlflow.db` of the run, or at the server `uri`. `env` names the variables that it needs."""

    experiment: Text = "loopwright"
    name: Text | None = None
    uri: Text | None = None
    env: FromYaml[tuple[Text, ...]] = ()

    def needs(self) -> Iterator[Need]:
        yield Need(Outside.EXTRA, (), "mlflow")
        for number, variable in enumerate(self.env):
            yield Need(Outside.VARIABLE, ("env", number), variable)


class TrackConfig(Section):
    """What a run shows besides its metrics file."""

    console: bool = True
    report: bool = True
    tensorboard: bool = False
    tokens: bool = True
    """Store the loss and the mismatch of each trained token."""
    wandb: WandbConfig | None = None
    mlflow: MlflowConfig | None = None
    ui: bool = False
    """The web page of the run, beside it."""
    ui_port: int = Field(default=0, ge=0, le=65535)

    def idle(self) -> Iterator[tuple[KeyPath, str]]:
        if not self.ui:
            yield ("ui_port",), "ui is false"

    def needs(self) -> Iterator[Need]:
        if self.ui:
            yield Need(Outside.EXTRA, ("ui",), "ui")
        if self.tensorboard:
            yield Need(Outside.EXTRA, ("tensorboard",), "tensorboard")
