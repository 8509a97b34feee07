"""Wrong configs never start: every problem at once, with its path, its line and its remedy."""

from __future__ import annotations

import pickle

import pytest

from loopwright.config import load
from loopwright.errors import ConfigError

TWO_JUDGERS = """
judgers:
  exact: {kind: native, path: "judge.py:exact"}
  close: {kind: native, path: "judge.py:close"}
"""


def only(problems):
    (problem,) = problems
    return problem


@pytest.mark.parametrize(
    ("path", "suggestion"),
    [
        ("rollout.temprature", "temperature"),
        ("rolout", "rollout"),
        ("rollout.engine.max_bach", "max_batch"),
        ("learner.loss.clip_hgh", "clip_high"),
        ("data.shufle", "shuffle"),
        ("agent.sytem", "system"),
        ("judgers.close.worker", "workers"),
        ("agnt", "agent"),
        ("sampling.stopp", "stop"),
    ],
)
def test_an_unknown_key_is_named_in_full_with_the_nearest_one(problems_of, minimal, path, suggestion):
    problem = only(problems_of(minimal + TWO_JUDGERS, f"{path}=1"))
    assert problem == f"{path}: unknown setting (command line) -> did you mean {suggestion!r}?"


def test_an_unknown_key_in_the_file_has_its_line(problems_of, minimal):
    problem = only(problems_of(minimal + "learner:\n  lr: 1e-5\n  warmup_step: 3\n"))
    assert problem == "learner.warmup_step: unknown setting (run.yaml:8) -> did you mean 'warmup_steps'?"


def test_an_unknown_environment_setting_names_the_variable(problems_of, minimal):
    problem = only(problems_of(minimal, env={"LOOPWRIGHT_ROLLOUT__TEMPRATURE": "1"}))
    assert "env LOOPWRIGHT_ROLLOUT__TEMPRATURE" in problem
    assert "did you mean 'temperature'?" in problem


def test_a_key_like_no_other_lists_what_there_is(problems_of, minimal):
    assert "known here: console, report" in only(problems_of(minimal, "track.zzz=1"))


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("rollout.temperature=hot", "rollout.temperature: is 'hot', must be a number"),
        ("rollout.temperature='0.7'", "make it a number, without quotes"),
        ("rollout.temperature=0", "rollout.temperature: is 0, must be above 0"),
        ("rollout.temperature=.inf", "must be a finite number"),
        ("rollout.temperature=true", "rollout.temperature: is true, must be a number"),
        ("rollout.samples_per_task=2.5", "must be a whole number"),
        ("rollout.samples_per_task=true", "must be a whole number"),
        ("rollout.stop=abc", "rollout.stop: is 'abc', must be a list"),
        ("rollout.stop=[1]", "rollout.stop.0: is 1, must be text"),
        ("rollout.top_p=1.5", "must be at most 1"),
        ("rollout=null", "rollout: is empty, must be a section with fields"),
        ("rollout.engine.kind=vlm", "rollout.engine.kind: unknown kind 'vlm'"),
        ("model.path=''", "text that is not empty"),
        ("model.dtype=float23", "did you mean 'float32'?"),
        ("learner.schedule=cosin", "did you mean 'cosine'?"),
        ("learner.betas=[0.9]", "learner.betas: has too few items"),
        ("learner.betas=[0.9, 0.9, 0.9]", "a list of at most 2"),
        ("learner.betas=[0.9, 1.0]", "learner.betas.1: is 1.0, must be below 1"),
        ("trainer.steps=-1", "must be at least 1"),
        ("trainer.deterministic=yep", "true or false"),
        ("data.kind=jsnl", "data.kind: unknown kind 'jsnl'"),
        ("data.kind=jsnl", "did you mean 'jsonl'?"),
        ("judgers.x={path: a}", "judgers.x.kind: missing (command line) -> add kind: native or integer_answer"),
        ("judgers.x.kind=native", "judgers.x.path: missing"),
        ("agent.on_agent_error=skip", "must be 'fail' or 'grade' or a number"),
        ("data.args={}", "data.args: unknown setting"),
    ],
)
def test_a_wrong_value_is_shown_with_what_is_expected(problems_of, minimal, override, words):
    problem = only(problems_of(minimal, override))
    assert words in problem
    assert "pydantic" not in problem
    assert "Input should" not in problem


def test_what_is_missing_is_named(problems_of):
    problems = problems_of("rollout: {temperature: 1.0}\n")
    assert [problem.split(" -> ")[0] for problem in problems] == [
        "model: missing",
        "task_sets: missing",
        "trainer: missing",
    ]
    assert "add data and agent" in problems[1]


def test_the_short_form_is_named_as_the_user_wrote_it(problems_of, minimal):
    problem = only(problems_of(minimal.replace("agent:", "#agent:")))
    assert problem.startswith("agent: missing")
    problem = only(
        problems_of(minimal + "eval: {data: {kind: jsonl}, agent: {kind: single_turn, judger: integer_answer}}\n")
    )
    assert problem.startswith("eval.data.path: missing (run.yaml:6)")


def test_both_forms_at_once_are_refused_in_file_and_override(problems_of, minimal):
    assert "beside task_sets" in only(problems_of(minimal + "task_sets: []\n")[:1])
    long_form = """
model: {path: smollm2}
task_sets: [{name: a, data: {kind: jsonl, path: a}, agent: {kind: single_turn, judger: integer_answer}}]
trainer: {run_dir: r, steps: 1}
"""
    problem = only(problems_of(long_form, "data.path=b.jsonl"))
    assert problem.startswith("data: data beside task_sets")


def test_malformed_overrides_are_problems(problems_of, minimal):
    problems = problems_of(minimal, "rollout", "task_sets.7.weight=2", "rollout.stop=[", "trainer.run_dir.x.y=1")
    text = "\n".join(problems)
    assert "'rollout' sets nothing (command line)" in text
    assert "task_sets has no place for 7" in text
    assert "rollout.stop: '[' is not valid YAML" in text
    assert "trainer.run_dir has no place for 'x'" in text


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("agent.judger=exat", "agent.judger: there is no judger 'exat' (command line) -> did you mean 'exact'?"),
        ("agent.judger=zzz", "known judgers: close, exact, integer_answer"),
        ("produce.min_members=9", "produce.min_members: is 9, more than rollout.samples_per_task (8)"),
        ("learner.mini_batches=9", "is 9, more than trainer.groups_per_step (8)"),
        ("learner.warmup_steps=11", "is 11, more than trainer.steps (10)"),
        ("eval.every=5", "eval.every: is 5, but there is nothing to evaluate on"),
        ("sampling.temperature=0.5", "sampling.temperature: is 0.5, but rollout.temperature is 1.0"),
        ("model.max_context=256", "leaves no room for a prompt in model.max_context 256"),
        ("task_sets=[]", "task_sets: empty"),
    ],
)
def test_fields_that_do_not_fit_together(problems_of, minimal, override, words):
    assert words in only(problems_of(minimal + TWO_JUDGERS, override))


def test_two_task_sets_of_one_name(problems_of):
    item = "{name: a, data: {kind: jsonl, path: a}, agent: {kind: single_turn, judger: integer_answer}}"
    text = f"model: {{path: smollm2}}\ntask_sets: [{item}, {item}]\ntrainer: {{run_dir: r, steps: 1}}\n"
    assert "2 are named 'a'" in only(problems_of(text))
    separate = text.replace(f"[{item}, {item}]", f"[{item}]") + f"eval: {{task_sets: [{item}, {item}]}}\n"
    assert only(problems_of(separate)).startswith("eval.task_sets: 2 are named 'a'")


def test_an_evaluation_that_does_nothing(problems_of, minimal):
    text = (
        minimal
        + """
eval:
  greedy: false
  sampled: false
  data: {kind: jsonl, path: e}
  agent: {kind: single_turn, judger: integer_answer}
"""
    )
    assert "eval.greedy: is off, and so is eval.sampled" in only(problems_of(text))


def test_typos_wrong_types_misfits_and_missing_files_come_together(problems_of, minimal):
    problems = problems_of(
        minimal, "rollout.temprature=1", "track.console=7", "learner.warmup_steps=99", "agent.judger=nobody", files=True
    )
    starts = {problem.split(":")[0] for problem in problems}
    assert starts == {"rollout.temprature", "track.console", "learner.warmup_steps", "agent.judger", "data.path"}


def test_a_typo_does_not_make_its_neighbours_look_wrong(problems_of, minimal):
    problem = only(problems_of(minimal, "rollout.samples_per_tsk=16", "produce.min_members=12"))
    assert problem.startswith("rollout.samples_per_tsk")


def test_problems_are_numbered_and_survive_pickling(load_text, minimal):
    with pytest.raises(ConfigError) as caught:
        load_text(minimal, "a=1", "b=2")
    error = pickle.loads(pickle.dumps(caught.value))
    assert "run.yaml has 2 problems:" in str(error)
    assert "  1. a: unknown" in str(error)
    assert "  2. b: unknown" in str(error)
    assert len(error.facts["problems"]) == 2


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("model:\n  path: [a\n", "run.yaml:3:1", "not valid YAML"),
        ("model: {path: a}\nmodel: {path: b}\n", "run.yaml:2:1", "'model' is here twice"),
        ("judgers:\n  a: {kind: program}\n  a: {kind: program}\n", "run.yaml:3:3", "'a' is here twice"),
        ("a: &x [*x]\n", "run.yaml:1:4", "nested too deeply"),
        ("? [a]\n: b\n", "run.yaml:1:3", "a key must be text"),
    ],
)
def test_malformed_yaml_has_line_and_column(load_text, text, place, words):
    with pytest.raises(ConfigError) as caught:
        load_text(text)
    assert place in caught.value.message
    assert words in caught.value.message


@pytest.mark.parametrize("text", ["", "just text", "- a\n- b\n"])
def test_a_file_that_is_no_mapping(problems_of, text):
    assert "not a mapping" in only(problems_of(text))


def test_a_missing_config_file_suggests_its_neighbour(tmp_path):
    (tmp_path / "arithmetic.yaml").write_text("")
    with pytest.raises(ConfigError, match=r"did you mean .*arithmetic\.yaml"):
        load(tmp_path / "arithmetc.yaml")


def test_a_binary_config_file(tmp_path):
    (tmp_path / "x.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path / "x.yaml")
