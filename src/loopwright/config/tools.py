"""The schema of the tools that an agent may give to its model."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from loopwright.config.base import FromYaml, Positive, Section, Text
from loopwright.types import ToolScope


class PythonToolConfig(Section):
    """A function of the user's."""

    kind: Literal["python"] = "python"
    path: Text
    timeout_seconds: Positive = 30.0


class McpToolsConfig(Section):
    """The tools of an MCP server, or `only` those of them. It is started in the config's folder; `env` is added to the
    little that it inherits."""

    kind: Literal["mcp"] = "mcp"
    command: FromYaml[tuple[Text, ...]] = Field(min_length=1)
    env: dict[str, str] = Field(default_factory=dict)
    only: FromYaml[tuple[Text, ...]] | None = None
    per: FromYaml[ToolScope] = ToolScope.ROLLOUT
    timeout_seconds: Positive = 30.0
    start_seconds: Positive = 60.0


ToolConfig = Annotated[PythonToolConfig | McpToolsConfig, Field(discriminator="kind")]
