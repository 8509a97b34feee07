"""Sources and filters: what is wrong with them is known before anything starts."""

from __future__ import annotations

import importlib.util

import pytest

DATA = "{kind: %s, path: %s}"


def only(problems):
    (problem,) = problems
    return problem


@pytest.mark.parametrize(
    ("override", "words"),
    [
        (
            "produce.filter=no_signl",
            "produce.filter: there is no filter 'no_signl' (command line) -> did you mean 'no_si",
        ),
        ("produce.filter=mine", "write file.py:name for a function of yours"),
        ("produce.filter_budget=0", "at least 1"),
        (
            "data={kind: reasoning_gym, family: gcd, config: {seed: 3}}",
            "data.config.seed: stands beside data.seed (command line) -> write it as data.seed",
        ),
        ("data={kind: reasoning_gym}", "data.family: missing"),
        ("data={kind: parquett, path: x}", "did you mean 'parquet'?"),
        ("data={kind: jsonl, path: x, columns: {promt: q}}", "did you mean 'prompt'?"),
    ],
)
def test_problems_of_sources_and_filters(problems_of, minimal, override, words):
    assert words in only(problems_of(minimal, override))


def test_no_signal_needs_someone_to_differ_from(problems_of, minimal):
    problem = only(problems_of(minimal, "produce.filter=no_signal", "rollout.samples_per_task=1"))
    assert "a lone member differs from nobody" in problem


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("data={kind: parquet, path: nowhere.parquet}", "there is no file"),
        ("data={kind: parquet, path: '*.parquet'}", "nothing matches"),
        ("data={kind: dataset, path: nowhere}", "there is no folder"),
        ("data={kind: jsonl, path: run.yaml, map: maps.py:row}", "data.map: there is no file"),
        ("produce.filter=filters.py:keep", "produce.filter: there is no file"),
    ],
)
def test_what_is_not_on_disk(problems_of, minimal, override, words):
    text = minimal.replace("tasks.jsonl", "run.yaml")
    assert any(words in problem for problem in problems_of(text, override, files=True))


@pytest.mark.parametrize(
    ("data", "package", "extra"),
    [
        ("{kind: parquet, path: run.yaml}", "pyarrow", "parquet"),
        ("{kind: dataset, path: .}", "datasets", "datasets"),
        ("{kind: reasoning_gym, family: gcd}", "reasoning_gym", "reasoning-gym"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(problems_of, minimal, monkeypatch, data, package, extra):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == package else found(name, *rest)
    )
    problems = problems_of(minimal, f"data={data}", files=True)
    assert any(f"needs the package {package}" in p and f"pip install 'loopwright[{extra}]'" in p for p in problems)


@pytest.mark.parametrize(
    ("judger", "place", "package", "extra"),
    [
        ("judgers.j={kind: http, url: 'http://x'}", "judgers.j.kind", "httpx", "http"),
        ("judgers.j={kind: llm, base_url: 'http://x', model: m}", "judgers.j.kind", "httpx", "http"),
        ("judgers.j={kind: math_answer}", "judgers.j.kind", "math_verify", "math"),
        ("agent.judger=math_answer", "agent.judger", "math_verify", "math"),
        (
            "judgers.j={kind: composed, by_source: {gym: reasoning_gym}}",
            "judgers.j.by_source.gym",
            "reasoning_gym",
            "reasoning-gym",
        ),
    ],
)
def test_so_is_that_of_a_judger(problems_of, minimal, monkeypatch, judger, place, package, extra):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == package else found(name, *rest)
    )
    problem = only(problems_of(minimal.replace("tasks.jsonl", "run.yaml"), judger, files=True))
    assert problem.startswith(f"{place}: needs the package {package}")
    assert problem.split(" -> ")[1].startswith(f"pip install 'loopwright[{extra}]'")


def test_each_task_set_may_have_a_filter_of_its_own(load_text, minimal):
    loaded = load_text(minimal, "produce.filter=no_signal")
    assert (loaded.config.produce.filter, loaded.config.task_sets[0].filter) == ("no_signal", None)
    assert loaded.warnings == ()
