"""Layers merge once, a later one wins, and every field knows who gave it."""

from __future__ import annotations

from pathlib import Path

import yaml
from hypothesis import given
from hypothesis import strategies as st

from loopwright.config import Layer, load
from loopwright.config.layers import Assignment, Layered, Source, leaves

EXAMPLE = Path(__file__).parents[2] / "examples" / "arithmetic.yaml"


def sources(loaded):
    return {setting.name: str(setting.source) for setting in loaded.settings()}


def test_the_example_loads_and_its_files_are_there():
    loaded = load(EXAMPLE, files=True)

    assert loaded.base == EXAMPLE.parent
    assert loaded.warnings == ()
    assert [task_set.name for task_set in loaded.config.task_sets] == ["train"]
    assert loaded.config.eval is not None
    assert [task_set.name for task_set in loaded.config.eval.task_sets] == ["eval"]
    assert loaded.config.rollout.samples_per_task == 8


def test_default_file_environment_and_command_line_in_that_order(load_text, minimal):
    text = minimal + "rollout: {temperature: 0.9, top_k: 0, samples_per_task: 4}\n"
    env = {"LOOPWRIGHT_ROLLOUT__TEMPERATURE": "0.8", "LOOPWRIGHT_ROLLOUT__SAMPLES_PER_TASK": "6", "HOME": "/"}

    loaded = load_text(text, "rollout.temperature=0.7", env=env)

    rollout = loaded.config.rollout
    assert (rollout.temperature, rollout.samples_per_task, rollout.top_k, rollout.top_p) == (0.7, 6, 0, 1.0)
    where = sources(loaded)
    assert where["rollout.temperature"] == "command line"
    assert where["rollout.samples_per_task"] == "env LOOPWRIGHT_ROLLOUT__SAMPLES_PER_TASK"
    assert where["rollout.top_k"] == "run.yaml:6"
    assert where["rollout.top_p"] == "default"


def test_scientific_notation_is_a_number_in_every_layer(load_text, minimal):
    text = minimal + "learner: {lr: 1e-6, eps: 5E-9}\n"
    loaded = load_text(text, "learner.weight_decay=1e-2", env={"LOOPWRIGHT_LEARNER__MAX_GRAD_NORM": "2e0"})

    learner = loaded.config.learner
    assert (learner.lr, learner.eps, learner.weight_decay, learner.max_grad_norm) == (1e-6, 5e-9, 0.01, 2.0)


def test_list_items_and_short_form_are_reached_by_either_spelling(load_text):
    loaded = load_text(
        """
model: {path: smollm2}
data: {kind: python, path: "tasks.py:train", args: {size: 3}}
agent: {kind: single_turn, judger: integer_answer}
trainer: {run_dir: runs/x, steps: 10}
""",
        "data.args.size=5",
        "task_sets.0.agent.system=Be brief.",
        "sampling.max_new_tokens=9",
        "rollout.stop=[a, b]",
        "rollout.stop.1=c",
    )

    (task_set,) = loaded.config.task_sets
    assert task_set.data.args == {"size": 5}
    assert task_set.agent.system == "Be brief."
    assert task_set.sampling.max_new_tokens == 9
    assert loaded.config.rollout.stop == ("a", "c")
    where = sources(loaded)
    assert where["task_sets.0.data.path"] == "run.yaml:3"
    assert where["task_sets.0.data.args.size"] == where["rollout.stop"] == "command line"


def test_eval_can_be_added_and_removed_from_the_command_line(load_text, minimal):
    added = load_text(
        minimal,
        "eval.data={kind: jsonl, path: held_out.jsonl}",
        "eval.agent.kind=single_turn",
        "eval.agent.judger=integer_answer",
    )
    assert added.config.eval is not None
    assert [task_set.name for task_set in added.config.eval.task_sets] == ["eval"]

    removed = load_text(minimal + "eval: {every: 5}\n", "eval=null")
    assert removed.config.eval is None


def test_the_whole_list_of_task_sets_can_replace_the_short_form(load_text, minimal):
    item = "{name: b, data: {kind: jsonl, path: b.jsonl}, agent: {kind: single_turn, judger: integer_answer}}"
    loaded = load_text(minimal, f"task_sets=[{item}]")
    assert [task_set.name for task_set in loaded.config.task_sets] == ["b"]


def test_the_merged_yaml_loads_to_the_same_config(load_text, minimal):
    first = load_text(
        minimal,
        "learner.betas=[0.8, 0.9]",
        "agent.on_agent_error=0.5",
        "eval.data={kind: jsonl, path: x.jsonl}",
        "eval.agent={kind: python, path: 'a.py:b', judger: integer_answer}",
    )
    again = load_text(yaml.safe_dump(first.config.model_dump(mode="json")))
    assert again.config == first.config


def test_anchors_and_merge_keys_work(load_text, minimal):
    text = (
        minimal.replace("agent: {", "agent: &agent {")
        + """
eval:
  data: {kind: jsonl, path: e.jsonl}
  agent:
    <<: *agent
    system: Short.
"""
    )
    (task_set,) = load_text(text).config.eval.task_sets
    assert task_set.agent.judger == "integer_answer"
    assert task_set.agent.system == "Short."


def test_an_environment_variable_that_sets_nothing_is_mentioned(load_text, minimal):
    loaded = load_text(minimal, env={"LOOPWRIGHT_ROLLOUT_TOP_K": "5", "LOOPWRIGHT_CACHE": "x"})
    (warning,) = loaded.warnings
    assert "LOOPWRIGHT_ROLLOUT_TOP_K has no effect" in warning
    assert "did you mean LOOPWRIGHT_ROLLOUT__TOP_K?" in warning


names = st.sampled_from(["a", "b", "c"])
paths = st.lists(names, min_size=1, max_size=4).map(tuple)
assignments = st.lists(st.tuples(paths, st.integers()), max_size=8)


@given(assignments)
def test_every_leaf_has_the_source_of_the_assignment_that_set_it(items):
    layered = Layered({}, {})
    for number, (path, value) in enumerate(items):
        layered.assign(Assignment(path, value, Source(Layer.COMMAND_LINE, f"{number}:{value}")))

    for path, value in leaves(layered.values):
        if path:
            assert layered.sources[path].detail.endswith(f":{value}")


@given(assignments)
def test_the_last_assignment_to_a_path_holds(items):
    layered = Layered({}, {})
    accepted = {
        path: value for path, value in items if layered.assign(Assignment(path, value, Source(Layer.FILE))) is None
    }
    for path, value in leaves(layered.values):
        if path:
            assert accepted[path] == value
