"""Judgers in the config: names, compositions, addresses and keys are checked before anything starts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from loopwright.config import Loaded

Problems = Callable[..., list[str]]
Load = Callable[..., Loaded]

GROUP = "judgers.rank={kind: native, path: 'r.py:rank', per: group}"
HTTP = "judgers.web={kind: http, url: 'http://localhost:1/judge'}"
EVAL = "eval={data: {kind: jsonl, path: e.jsonl}, agent: {kind: single_turn, judger: rank}}"


def composed(name: str, inside: str) -> str:
    return f"judgers.{name}={{kind: composed, {inside}}}"


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ([composed("all", "parts: {right: {judger: integer_anser}}")], "judgers.all.parts.right.judger: there is no"),
        ([composed("all", "by_source: {sums: integer_anser}")], "did you mean 'integer_answer'?"),
        ([composed("all", "by_source: {sums: integer_answer}, default: other")], "judgers.all.default: there is no"),
        ([composed("all", "parts: {}")], "judgers.all: has neither parts nor by_source"),
        (
            [composed("all", "parts: {a: {judger: integer_answer}}, by_source: {b: integer_answer}")],
            "judgers.all: has both parts and by_source",
        ),
        ([composed("all", "parts: {a: {judger: all}}")], "judgers.all: is made of itself"),
        (
            [
                composed("all", "num_actors: 1, parts: {a: {judger: inner}}"),
                composed("inner", "parts: {b: {judger: web}}"),
                "judgers.web={kind: http, url: 'http://localhost:1/judge', num_actors: 2}",
            ],
            "judgers.web.num_actors: 'web' is a part of 'all', whose actors hold their parts themselves",
        ),
        ([GROUP, EVAL], "eval.agent.judger: 'rank' judges whole groups, but evaluation scores each rollout by itself"),
        ([GROUP, composed("all", "parts: {a: {judger: rank}}")], "judgers.all.parts.a.judger: 'rank' judges whole"),
        ([HTTP, "judgers.web.url=localhost:1/judge"], "judgers.web.url: 'localhost:1/judge' is no address"),
        ([HTTP, "judgers.web.url=http://host:port/judge"], "judgers.web.url: 'http://host:port/judge' is no address"),
        ([HTTP, "judgers.web.url=http://host:99999/judge"], "judgers.web.url: 'http://host:99999/judge' is no address"),
        ([HTTP, "judgers.web.url='http://[::1/judge'"], "judgers.web.url: 'http://[::1/judge' is no address"),
        ([HTTP, "judgers.web.url=http://me:secret@host/"], "judgers.web.url: holds a password"),
        (
            ["judgers.llm={kind: llm, base_url: ftp://x, model: m}"],
            "judgers.llm.base_url: 'ftp://x' is no address",
        ),
        (
            ["judgers.llm={kind: llm, base_url: 'http://x', model: m, min_score: 5}"],
            "judgers.llm.min_score: is 5, not below max_score (1)",
        ),
        (
            ["judgers.llm={kind: llm, base_url: 'http://x', model: m, prompt: Is it good}"],
            "judgers.llm.prompt: does not show the answer to the judge",
        ),
        (
            ["judgers.llm={kind: llm, base_url: 'http://x', model: m, prompt: '{answer}', prompt_file: p.txt}"],
            "judgers.llm.prompt: is given, and so is prompt_file",
        ),
        (
            ["judgers.llm={kind: llm, base_url: 'http://x', model: m, extra: {temperature: 1}}"],
            "judgers.llm.extra.temperature: is sent by the judger itself",
        ),
        (
            ["judgers.llm={kind: llm, base_url: 'http://x', model: m, extra: {top_p: .nan}}"],
            "judgers.llm.extra: holds what JSON cannot say",
        ),
        (["judgers.web={kind: htp, url: 'http://x'}"], "did you mean 'http'?"),
    ],
)
def test_one_mistake_is_one_problem_with_a_remedy(
    problems_of: Problems, minimal: str, overrides: list[str], words: str
) -> None:
    (problem,) = problems_of(minimal, *overrides)
    assert words in problem


def test_each_judger_of_a_ring_says_so(problems_of: Problems, minimal: str) -> None:
    ring = [composed(name, f"parts: {{a: {{judger: {below}}}}}") for name, below in ("xy", "yz", "zx")]
    outside = composed("w", "parts: {a: {judger: x}, b: {judger: integer_answer}}")
    found = problems_of(minimal, *ring, outside)
    assert [problem.split(":")[0] for problem in found] == ["judgers.x", "judgers.y", "judgers.z"]


def test_a_diamond_is_no_ring(load_text: Load, minimal: str) -> None:
    sides = [composed(name, "parts: {a: {judger: integer_answer}}") for name in ("left", "right")]
    top = composed("top", "parts: {l: {judger: left}, r: {judger: right}, again: {judger: left}}")
    assert load_text(minimal, *sides, top, "agent.judger=top").warnings == ()


def test_a_group_judger_is_for_training(load_text: Load, minimal: str) -> None:
    assert load_text(minimal, GROUP, "agent.judger=rank").warnings == ()


def test_missing_files_of_judgers_are_found(problems_of: Problems, minimal: str) -> None:
    llm = "judgers.llm={kind: llm, base_url: 'http://x', model: m, prompt_file: prompt.txt}"
    merged = composed("all", "parts: {a: {judger: integer_answer}}, merge: 'm.py:least'")
    found = "\n".join(problems_of(minimal, llm, merged, files=True))
    assert "judgers.llm.prompt_file: there is no file" in found
    assert "judgers.all.merge: there is no file" in found


def test_a_key_is_named_in_the_config_and_read_from_the_environment_alone(load_text: Load, minimal: str) -> None:
    named = [HTTP, "judgers.web.api_key_env=WEB_KEY", "agent.judger=web"]
    loaded = load_text(minimal, *named, env={"WEB_KEY": "s3cret", "OTHER": "x"})
    assert loaded.secrets == {"WEB_KEY": "s3cret"}
    assert "s3cret" not in repr(loaded)
    assert "s3cret" not in "".join(f"{setting}" for setting in loaded.settings())


def test_a_key_that_is_not_set_is_a_problem_of_this_machine(
    problems_of: Problems, load_text: Load, minimal: str
) -> None:
    named = [HTTP, "judgers.web.api_key_env=WEB_KEY", "agent.judger=web"]
    found = "\n".join(problems_of(minimal, *named, env={}, files=True))
    assert "judgers.web.api_key_env: the environment variable WEB_KEY is not set" in found
    assert load_text(minimal, *named, env={}).secrets == {}, "the config itself is sound"


def test_a_variable_that_a_judger_names_must_be_set(problems_of: Problems, load_text: Load, minimal: str) -> None:
    named = ["judgers.own={kind: native, path: 'judger.py:judge', env: [SEARCH_TOKEN]}", "agent.judger=own"]
    found = "\n".join(problems_of(minimal, *named, env={}, files=True))
    assert "judgers.own.env: the environment variable SEARCH_TOKEN is not set" in found
    assert load_text(minimal, *named, env={"SEARCH_TOKEN": "é\n", "X": "y"}).secrets == {"SEARCH_TOKEN": "é\n"}


@pytest.mark.parametrize("key", ["s3crét", "s3cret\n", "\u201cs3cret\u201d"])
def test_a_key_that_no_header_can_carry_is_a_problem_that_does_not_show_it(
    problems_of: Problems, minimal: str, key: str
) -> None:
    named = [HTTP, "judgers.web.api_key_env=WEB_KEY", "agent.judger=web"]
    found = "\n".join(problems_of(minimal, *named, env={"WEB_KEY": key}, files=True))
    assert "judgers.web.api_key_env: the environment variable WEB_KEY holds characters that no HTTP header" in found
    assert "s3cr" not in found
