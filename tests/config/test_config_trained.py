"""`agent.train` in the config: what it may say, and where it says nothing."""

from __future__ import annotations

import pytest

AGENT = "agent={kind: %s, path: 'agents.py:run', judger: integer_answer, train: '%s'}"


@pytest.mark.parametrize("kind", ["python", "callable"])
def test_a_choice_that_nobody_knows_is_refused(minimal, problems_of, kind):
    (problem,) = problems_of(minimal, AGENT % (kind, "mian"))
    assert problem.startswith("agent.train: there is no choice of chains 'mian'")
    assert "main" in problem


@pytest.mark.parametrize("choice", ["all", "main", "choices.py:longest"])
def test_known_choices_and_functions_are_taken(load_text, minimal, choice):
    assert load_text(minimal, AGENT % ("callable", choice)).config.task_sets[0].agent.train == choice


def test_the_function_must_be_there(minimal, problems_of, tmp_path):
    (tmp_path / "tasks.jsonl").write_text('{"prompt": "?"}\n')
    (tmp_path / "agents.py").write_text("def run(task, url, key): ...\n")
    (problem,) = problems_of(minimal, AGENT % ("callable", "choices.py:longest"), files=True)
    assert problem.startswith("agent.train: ")


def test_a_function_of_chains_has_the_deadline_of_filters(load_text, minimal):
    overrides = (AGENT % ("callable", "choices.py:longest"), "produce.filter_timeout_seconds=3")
    assert load_text(minimal, *overrides).warnings == ()
    (warning,) = load_text(minimal, AGENT % ("callable", "main"), "produce.filter_timeout_seconds=3").warnings
    assert "produce.filter_timeout_seconds: has no effect" in warning


def test_an_evaluation_trains_nothing(load_text, minimal):
    agent = "{kind: callable, path: 'a.py:b', judger: integer_answer, train: main}"
    warnings = load_text(minimal, f"eval={{data: {{kind: jsonl, path: held.jsonl}}, agent: {agent}}}").warnings
    assert any("eval.agent.train: has no effect" in warning for warning in warnings)
