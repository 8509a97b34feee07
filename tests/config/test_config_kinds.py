"""What is known of a kind stands on its config class: a new kind of agent, judger, data or tool needs no new check."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args

import pytest

import loopwright
from loopwright.build.choices import make_chain_choice
from loopwright.config import AgentConfig, DataConfig, JudgerConfig, Loaded, RunConfig, ToolConfig, checks
from loopwright.config.base import needs_of
from loopwright.config.extras import EXTRAS
from loopwright.config.files import file_problems
from loopwright.config.needs import Need, Outside
from loopwright.config.problems import Problem
from loopwright.config.task_sets import AgentKind

SOURCES = Path(loopwright.__file__).parent
KINDS = {
    kind.__name__
    for union in (AgentConfig, JudgerConfig, DataConfig, ToolConfig)
    for kind in get_args(get_args(union)[0])
}
MAY_ASK = {"agents/from_config.py", "judgers/from_config.py", "data/sources.py"}
"""Each makes the part that a kind's config describes. The config classes themselves may compare themselves too."""


def asked_kinds(file: Path) -> Iterator[str]:
    """The kinds that a file tells apart, by `isinstance` or by a pattern."""
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
            yield from (each.id for each in ast.walk(node.args[1]) if isinstance(each, ast.Name))
        elif isinstance(node, ast.MatchClass) and isinstance(node.cls, ast.Name):
            yield node.cls.id


def test_only_those_who_make_a_part_ask_for_its_kind() -> None:
    found = {
        file.relative_to(SOURCES).as_posix(): kinds
        for file in SOURCES.rglob("*.py")
        if (kinds := KINDS & set(asked_kinds(file)))
    }
    schema = {f"config/{name}.py" for name in ("data", "judgers", "task_sets", "tools")}
    assert {file: kinds for file, kinds in found.items() if file not in MAY_ASK | schema} == {}
    assert set(found) >= MAY_ASK
    assert set().union(*(found[file] for file in MAY_ASK)) == KINDS


class RemoteAgent(AgentKind):
    """A kind that no module has heard of: a program that talks to the gateway."""

    served = True

    kind: Literal["remote"] = "remote"
    judger: str = "integer_answer"
    command: str = "no-such-program"
    max_seconds: float | None = None
    max_tokens: int | None = None
    train: str = "all"

    @property
    def chain_choice(self) -> str:
        return self.train

    def needs(self) -> Iterator[Need]:
        yield Need(Outside.PROGRAM, ("command",), self.command)
        yield from super().needs()


@pytest.fixture
def with_agent(load_text: Callable[..., Loaded], minimal: str) -> Callable[..., RunConfig]:
    """A config whose agent was not validated: its kind is not in the schema."""

    def change(agent: AgentKind, *overrides: str) -> RunConfig:
        config = load_text(minimal, *overrides).config
        task_set = config.task_sets[0].model_copy(update={"agent": agent})
        return config.model_copy(update={"task_sets": (task_set,)})

    return change


def spelled(problems: Iterator[Problem]) -> list[str]:
    return [str(problem) for problem in problems]


def test_a_new_kind_of_agent_is_checked_as_any_other(with_agent: Any) -> None:
    agent = RemoteAgent(train="mian")
    (problem,) = spelled(checks.problems(with_agent(agent)))
    assert problem.startswith("task_sets.0.agent.train: there is no choice of chains 'mian'")
    (problem,) = spelled(checks.problems(with_agent(RemoteAgent(), "trainer.deterministic=true")))
    assert problem.startswith("task_sets.0.agent.kind: is remote: when its calls arrive depends on timing")
    (warning,) = spelled(
        checks.warnings(with_agent(RemoteAgent(max_seconds=1e4, max_tokens=9), "gateway.thinking=template"))
    )
    assert warning.startswith("task_sets.0.agent.max_seconds: has no effect")


def test_what_a_new_kind_of_agent_needs_is_looked_for(
    with_agent: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "tasks.jsonl").write_text('{"prompt": "?"}\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("loopwright.config.files.missing", lambda name: EXTRAS[name] if name == "serve" else None)
    program, package, choice = spelled(file_problems(with_agent(RemoteAgent(train="own.py:main")), tmp_path))
    assert program.startswith("task_sets.0.agent.command: there is no program 'no-such-program'")
    assert package.startswith("task_sets.0.agent.kind: needs the package uvicorn")
    assert choice.startswith("task_sets.0.agent.train: there is no file")


def test_a_new_kind_of_agent_may_choose_its_chains(with_agent: Any, tmp_path: Path) -> None:
    config = with_agent(RemoteAgent(train="main"))
    chosen = make_chain_choice(Loaded(config, tmp_path, {}), config.task_sets[0])
    assert type(chosen).__name__ == "MainChains"


def test_every_extra_that_a_kind_needs_is_known(load_text: Callable[..., Loaded], minimal: str) -> None:
    overrides = (
        "agent={kind: tool, judger: all, tools: [{kind: mcp, command: [x]}]}",
        "data={kind: parquet, path: x}",
        "judgers.all={kind: composed, parts: {h: {judger: h}, l: {judger: l}, m: {judger: m}, g: {judger: g}}}",
        "judgers.h={kind: http, url: 'http://x'}",
        "judgers.l={kind: llm, base_url: 'http://x', model: m}",
        "judgers.m={kind: math_answer}",
        "judgers.g={kind: reasoning_gym}",
        "eval={data: {kind: dataset, path: x}, agent: {kind: callable, path: 'a:b', judger: m}}",
        "judgers.m.num_actors=1",
        "model.renderer=qwen3",
        "learner.lora={rank: 8}",
        "track={tensorboard: true, wandb: {}, mlflow: {}, ui: true}",
    )
    config = load_text(minimal, *overrides).config
    extras = {need.name for need in needs_of(config) if need.what is Outside.EXTRA}
    assert extras == set(EXTRAS)
