"""The schema of the tools that an agent may give to its model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from loopwright.config.base import FromYaml, Positive, Section, Text
from loopwright.config.needs import Need, Outside
from loopwright.types import ToolScope


class ToolKind(Section):
    """What every kind of tool says about itself."""

    answers_vary: ClassVar[bool] = False
    """Whether the same call may get another answer in the next run."""


class PythonToolConfig(ToolKind):
    """A function of the user."""

    kind: Literal["python"] = "python"
    path: Text
    timeout_seconds: Positive = 30.0

    def needs(self) -> Iterator[Need]:
        yield Need(Outside.CODE, ("path",), self.path)


class McpToolsConfig(ToolKind):
    """The tools of an MCP server: all, or those in `only`. It is started in the config's folder. `env` is added to the
    small environment that it inherits."""

    answers_vary = True

    kind: Literal["mcp"] = "mcp"
    command: FromYaml[tuple[Text, ...]] = Field(min_length=1)
    env: dict[str, str] = Field(default_factory=dict)
    only: FromYaml[tuple[Text, ...]] | None = None
    per: FromYaml[ToolScope] = ToolScope.ROLLOUT
    timeout_seconds: Positive = 30.0
    start_seconds: Positive = 60.0

    def needs(self) -> Iterator[Need]:
        yield Need(Outside.EXTRA, ("kind",), "mcp")
        yield Need(Outside.PROGRAM, ("command",), self.command[0])

    def named_values(self) -> Iterator[tuple[str, str]]:
        yield from self.env.items()


ToolConfig = Annotated[PythonToolConfig | McpToolsConfig, Field(discriminator="kind")]
