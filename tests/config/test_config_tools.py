"""Agents with tools in the config: what cannot work, and what has no effect."""

from __future__ import annotations

import pytest

AGENT = "agent={kind: tool, judger: integer_answer, tools: [{kind: python, path: 'tools.py:add'}], %s}"
MCP = "agent={kind: tool, judger: integer_answer, tools: [{kind: mcp, command: [%s]}]}"


def test_an_agent_without_tools_is_refused(minimal, problems_of):
    (problem,) = problems_of(minimal, "agent={kind: tool, judger: integer_answer, tools: []}")
    assert problem.startswith("agent.tools: has no tools")


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ((AGENT % "max_seconds: 900",), "agent.max_seconds: has no effect"),
        ((AGENT % "max_seconds: 5, turn_seconds: 9",), "agent.turn_seconds: has no effect"),
        ((AGENT % "max_turns: 2, max_tokens: 600",), "agent.max_tokens: has no effect"),
        ((AGENT % "max_seconds: 5", "trainer.deterministic=true"), "agent.max_seconds: may differ between runs"),
        ((MCP % "python", "trainer.deterministic=true"), "agent.tools: may differ between runs"),
    ],
)
def test_one_odd_setting_gives_one_warning(load_text, minimal, overrides, words):
    (warning,) = load_text(minimal, *overrides).warnings
    assert words in warning


def test_budgets_that_can_be_reached_are_no_warning(load_text, minimal):
    budgets = "max_turns: 4, max_tokens: 600, max_seconds: 60, turn_seconds: 20"
    assert load_text(minimal, AGENT % budgets).warnings == ()


def test_what_a_tool_names_must_be_there(minimal, problems_of, tmp_path):
    (tmp_path / "tasks.jsonl").write_text('{"prompt": "?"}\n')
    (tmp_path / "tools.py").write_text("def sub(): ...\n")
    (problem,) = problems_of(minimal, AGENT % "max_turns: 2", files=True)
    assert "agent.tools.0.path: tools.py has no 'add'" in problem
    (problem,) = problems_of(minimal, MCP % "no-such-program", files=True)
    assert "agent.tools.0.command: there is no program 'no-such-program'" in problem


@pytest.mark.parametrize(
    ("overrides", "package"), [((MCP % "python",), "mcp"), (("model.renderer=qwen3",), "renderers")]
)
def test_a_missing_extra_is_named(minimal, problems_of, tmp_path, monkeypatch, overrides, package):
    (tmp_path / "tasks.jsonl").write_text('{"prompt": "?"}\n')
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == package else real(name))
    (problem,) = problems_of(minimal, *overrides, files=True)
    assert f"needs the package {package}" in problem
    assert f"loopwright[{package}]" in problem
