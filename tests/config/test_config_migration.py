"""Old nested keys move to ours with their source, or say why they cannot; both ways at once must agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from old_settings import FIXED, MOVES

from loopwright.cli import main
from loopwright.config import load, migrate_file
from loopwright.config.fields import options
from loopwright.config.migration.migrate import BY_COMPANY, REMEDIES, ROOTS, RULES
from loopwright.config.migration.values import resolve
from loopwright.config.schema import RunConfig
from loopwright.config.short_form import SHORT_KEYS
from loopwright.errors import ConfigError

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
# What a config needs, and the old settings that give it.
NEEDED = {
    "model.path": (
        "smollm2",
        {"load_from", "actor_rollout_ref.model.path", "rollout_config.model_path", "train_worker_config.load_from"},
    ),
    "trainer.run_dir": ("runs/x", {"work_dir", "trainer.default_local_dir"}),
    "trainer.steps": (10, {"trainer.total_training_steps"}),
    "data.kind": ("jsonl", {"data.train_files"}),
    "data.path": ("tasks.jsonl", {"data.train_files"}),
    "eval.data.kind": ("jsonl", {"data.val_files"}),
    "eval.data.path": ("held_out.jsonl", {"data.val_files"}),
}
AGENT = {"kind": "single_turn", "judger": "integer_answer"}


def nested(settings: dict[str, object]) -> dict[str, object]:
    """Dotted names as sections."""
    values: dict[str, Any] = {}
    for name, value in settings.items():
        *parents, last = name.split(".")
        section = values
        for parent in parents:
            section = section.setdefault(parent, {})
        section[last] = value
    return values


@pytest.fixture
def load_old(load_text):
    """Load old settings, with what a config needs besides them."""

    def load_it(old: dict[str, object]):
        settings = {name: value for name, (value, given_by) in NEEDED.items() if not given_by & set(old)}
        values = nested({**settings, "agent": AGENT, "eval.agent": AGENT, **old})
        return load_text(yaml.safe_dump(values, sort_keys=False))

    return load_it


def test_every_old_key_is_tried_below():
    tried = {name for name, *_ in MOVES} | set(FIXED)
    assert tried == set(RULES)


def test_every_key_of_verl_is_known():
    """`verl_keys.txt`: the names in verl 0.9.1's `_generated_ppo_trainer.yaml`. One is ours, and means the same."""
    names = (Path(__file__).parent / "verl_keys.txt").read_text().splitlines()
    known = {*RULES, *REMEDIES}
    unknown = {name for name in names if not any(name == key or name.startswith(f"{key}.") for key in known)}
    assert unknown == {"data.shuffle"}
    assert len(names) > 800


@pytest.mark.parametrize(("name", "value", "others", "expected"), MOVES)
def test_an_old_key_becomes_ours_and_remains_its_source(load_old, name, value, others, expected):
    loaded = load_old({name: value, **others})
    settings = {setting.name: setting for setting in loaded.settings()}
    for ours, wanted in expected.items():
        assert settings[ours].value == wanted
    (notice,) = [warning for warning in loaded.warnings if warning.startswith(f"{name}: ")]
    moved = any(setting.source.was == name for setting in settings.values())
    assert ("is now " if moved else "is not needed: ") in notice


@pytest.mark.parametrize("name", FIXED)
def test_what_cannot_be_otherwise_is_not_needed_or_a_problem(load_old, problems_of, minimal, name):
    usual, other = FIXED[name]
    (notice,) = [text for text in load_old({name: usual}).warnings if text.startswith(f"{name}: ")]
    assert "is not needed" in notice
    (problem,) = [text for text in problems_of(minimal, f"{name}={other}") if text.startswith(f"{name}: ")]
    assert "which has no equivalent (command line) -> " in problem


@pytest.mark.parametrize("name", REMEDIES)
def test_a_key_or_section_without_equivalent_says_what_to_do(problems_of, minimal, name):
    (problem,) = problems_of(minimal, f"{name}=1")
    assert problem == f"{name}: has no equivalent (command line) -> {REMEDIES[name]}"
    (problem,) = problems_of(minimal, f"{name}.deep.inside=1", f"{name}.deep.too=1")
    assert problem.startswith(f"{name}: has no equivalent"), "a section is reported once"


@pytest.mark.parametrize(
    ("old", "words"),
    [
        ({f"{ACTOR}.ppo_mini_batch_size": 3, "data.train_batch_size": 8}, "does not divide data.train_batch_size (8)"),
        ({f"{ACTOR}.ppo_mini_batch_size": 0, "data.train_batch_size": 8}, "does not divide"),
        ({f"{ACTOR}.ppo_mini_batch_size": 4}, "cannot be converted without data.train_batch_size"),
        ({f"{ACTOR}.optim.lr_warmup_steps_ratio": 0.1}, "cannot be converted without trainer.total_training_steps"),
        ({f"{ACTOR}.loss_agg_mode": "seq-mean-token-sum"}, "set learner.loss.aggregate"),
        ({f"{ACTOR}.policy_loss.loss_mode": "clip_cov"}, "write your own loss"),
        ({f"{ACTOR}.kl_loss_type": "abs", f"{ACTOR}.use_kl_loss": True}, "set learner.kl.kind: k1, k2 or k3"),
        ({"actor_rollout_ref.model": {"lora_rank": 8, "target_modules": "q.*"}}, "learner.lora.targets"),
        ({"actor_rollout_ref.model": {"lora_rank": 8, "exclude_modules": ["q"]}}, "learner.lora.targets"),
        ({"actor_rollout_ref.model": {"lora_rank": "x"}}, "set learner.lora.rank"),
        ({"trainer.nnodes": 2}, "set learner.placement: ray, and learner.ranks to the GPUs of all nodes"),
        ({"trainer.device": "npu"}, "set model.device: auto, cpu or cuda"),
        ({f"{ROLLOUT}.gpu_memory_utilization": 0.6}, "rollout.engine.max_batch bound memory"),
        ({f"{ROLLOUT}.enforce_eager": True, f"{ROLLOUT}.name": "hf"}, "how the model is computed is not a setting"),
        ({f"{ACTOR}.fsdp_config.wrap_policy": {"min_num_params": 3}}, f"{ACTOR}.fsdp_config.wrap_policy: has no"),
        ({f"{ACTOR}.fsdp_config.mixed_precision": {"cast": 1}}, "set model.dtype: the optimiser's weights"),
        ({"trainer.n_gpus_per_node": "all"}, "is 'all', which is no number of GPUs"),
        ({f"{ACTOR}.fsdp_config.fsdp_size": 2, "trainer.n_gpus_per_node": 4}, "sharded over all learner.ranks"),
        ({f"{ACTOR}.fsdp_config.dtype": "float8"}, "set model.dtype: bfloat16 or float32"),
        ({"algorithm.adv_estimator": "gae"}, "needs no critic"),
        ({"algorithm.adv_estimator": "grpo_passk"}, "has no equivalent"),
        ({"algorithm.rollout_correction.rollout_is": "geometric"}, "token or sequence"),
        ({"trainer.total_epochs": 3}, "set trainer.steps: epochs * tasks / data.train_batch_size"),
        ({"trainer.logger": ["console", "swanlab"]}, "names swanlab"),
        ({"data.train_files": ["a.parquet", "b.parquet"]}, "names 2 files"),
        ({"data.train_files": "a.csv"}, "neither Parquet nor JSON lines"),
        ({"data.max_prompt_length": 9}, "cannot be converted without data.max_response_length"),
        ({f"{ROLLOUT}.val_kwargs.temperature": 0.6}, "is 0.6, which has no equivalent"),
        ({f"{ROLLOUT}.val_kwargs.temperature": 1.0, f"{ROLLOUT}.temperature": 0.5}, "eval.sampled is at rollout.temp"),
        ({f"{ROLLOUT}.val_kwargs": {"temperature": 1.0, "do_sample": False}}, "is 1.0, but do_sample is false"),
        ({f"{ROLLOUT}.n": "${nowhere}"}, "refers to nothing"),
        ({f"{ROLLOUT}.temprature": 1}, "did you mean 'actor_rollout_ref.rollout.temperature'?"),
        ({f"{ROLLOUT}.n": "many"}, "rollout.samples_per_task: is 'many', must be a whole number"),
    ],
)
def test_what_cannot_be_converted_is_a_problem_with_a_remedy(load_old, old, words):
    with pytest.raises(ConfigError) as caught:
        load_old(old)
    assert sum(words in problem for problem in caught.value.facts["problems"]) == 1


@pytest.mark.parametrize("off", [-1, 0])
def test_an_evaluation_that_is_off_leaves_nothing_behind(load_text, minimal, off):
    loaded = load_text(minimal, f"trainer.test_freq={off}")
    assert loaded.config.eval is None
    (notice,) = loaded.warnings
    assert "is not needed: without data.val_files nothing is evaluated" in notice


@pytest.mark.parametrize("value", ["null", "[]", "{}", "''", "{a: null, b: {c: []}}", "{enable: false, tool: nsys}"])
def test_what_has_no_equivalent_and_asks_for_nothing_is_not_needed(load_text, minimal, value):
    (notice,) = load_text(minimal, f"{ACTOR}.profiler={value}").warnings
    assert notice.startswith(f"{ACTOR}.profiler: is not needed: it is ")


@pytest.mark.parametrize("value", ["false", "0", "{a: null, b: 1}", "{enable: true}", "{inner: {enable: false}, b: 1}"])
def test_what_has_no_equivalent_and_asks_for_something_is_a_problem(problems_of, minimal, value):
    (problem,) = problems_of(minimal, f"{ACTOR}.profiler={value}")
    assert problem.startswith(f"{ACTOR}.profiler: has no equivalent")


def test_a_section_whose_switch_is_known_and_off_is_not_needed(load_text, minimal):
    notices = load_text(minimal, "algorithm.filter_groups={enable: false, metric: acc}").warnings
    assert any(notice.startswith("algorithm.filter_groups: is not needed: it is off") for notice in notices)


def test_problems_with_one_remedy_are_one_problem(problems_of, minimal):
    """Each with where it is."""
    one, other = problems_of(minimal + "ray_kwargs: 2\n", "trainer.use_v1=true", "trainer.logger=x")
    assert one.startswith("ray_kwargs: has no equivalent (run.yaml:6; likewise trainer.use_v1 (command line)) -> ")
    assert other.startswith("trainer.logger: names x (command line) -> ")


def test_a_setting_that_is_a_section_is_looked_at_as_a_whole(problems_of, load_text, minimal):
    name = f"{ACTOR}.optim.override_optimizer_config"
    (problem,) = problems_of(minimal, f"{name}.eps=1e-6", f"{name}.fused=true")
    assert problem.startswith(f"{name}: is {{'eps': 1e-06, 'fused': True}}, which has no equivalent")
    assert problem.endswith("set learner.eps and learner.betas")
    (notice,) = load_text(minimal, f"{name}={{}}").warnings
    assert notice.startswith(f"{name}: is not needed")


def test_old_keys_work_in_every_layer_and_later_ones_win(load_text, minimal):
    text = minimal + "actor_rollout_ref: {rollout: {n: 2, temperature: 0.5, top_p: 0.5}}\n"
    env = {"LOOPWRIGHT_ACTOR_ROLLOUT_REF__ROLLOUT__N": "4", "LOOPWRIGHT_ACTOR_ROLLOUT_REF__ROLLOUT__TOP_P": "0.6"}
    loaded = load_text(text, "actor_rollout_ref.rollout.n=6", env=env)
    where = {setting.name: (setting.value, str(setting.source)) for setting in loaded.settings()}
    assert where["rollout.samples_per_task"] == (6, "command line, actor_rollout_ref.rollout.n")
    env_source = "env LOOPWRIGHT_ACTOR_ROLLOUT_REF__ROLLOUT__TOP_P, actor_rollout_ref.rollout.top_p"
    assert where["rollout.top_p"] == (0.6, env_source)
    assert where["rollout.temperature"] == (0.5, "run.yaml:6, actor_rollout_ref.rollout.temperature")


def test_a_whole_old_section_may_be_given_from_outside(load_text, minimal):
    loaded = load_text(minimal, "trainer={run_dir: r, total_training_steps: 7}", "data.max_response_length=9")
    assert (loaded.config.trainer.steps, loaded.config.trainer.run_dir) == (7, "r")
    assert loaded.config.rollout.max_new_tokens == 9


@pytest.mark.parametrize(
    ("text", "overrides", "env", "words"),
    [
        (
            "rollout: {samples_per_task: 8}\nactor_rollout_ref: {rollout: {n: 4}}\n",
            (),
            {},
            "rollout.samples_per_task: actor_rollout_ref.rollout.n makes it 4 (run.yaml:7), but it is 8 (run.yaml:6)",
        ),
        (
            "actor_rollout_ref: {rollout: {n: 4}}\n",
            ("rollout.samples_per_task=8",),
            {},
            "makes it 4 (run.yaml:6), but it is 8 (command line)",
        ),
        (
            "actor_rollout_ref: {rollout: {n: 4}}\n",
            (),
            {"LOOPWRIGHT_ROLLOUT__SAMPLES_PER_TASK": "8"},
            "makes it 4 (run.yaml:6), but it is 8 (env LOOPWRIGHT_ROLLOUT__SAMPLES_PER_TASK)",
        ),
        (
            "",
            ("data.max_response_length=5", "actor_rollout_ref.rollout.response_length=6"),
            {},
            "actor_rollout_ref.rollout.response_length",
        ),
        ("learner: {kl: null}\n", ("actor_rollout_ref.actor.use_kl_loss=true", "x=1"), {}, "but it is null"),
        ("learner: {loss: gspo}\n", ("actor_rollout_ref.actor.policy_loss.loss_mode=cispo",), {}, 'but it is "gspo"'),
    ],
)
def test_both_spellings_with_different_values_are_a_conflict_that_names_both(
    problems_of, minimal, text, overrides, env, words
):
    assert any(words in problem for problem in problems_of(minimal + text, *overrides, env=env))


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("rollout.samples_per_task=4", "actor_rollout_ref.rollout.n=4"),
        ("learner.advantage=rloo", "algorithm.adv_estimator=rloo"),
        ("learner.advantage={kind: rloo}", "algorithm.adv_estimator=rloo"),
        ("learner.loss=gspo", "actor_rollout_ref.actor.policy_loss.loss_mode=gspo"),
        ("learner.loss=gspo", "actor_rollout_ref.actor.clip_ratio_low=0.001"),
    ],
)
def test_both_spellings_may_agree_or_complete_each_other(load_text, minimal, ours, theirs):
    load_text(minimal, ours, theirs)


@given(st.integers(1, 64), st.integers(1, 64))
def test_a_conflict_is_found_exactly_when_the_values_differ(tmp_path_factory, ours, theirs):
    file = tmp_path_factory.mktemp("old") / "run.yaml"
    file.write_text(
        "model: {path: smollm2}\ndata: {kind: jsonl, path: t}\nagent: {kind: single_turn, judger: integer_answer}\n"
        f"trainer: {{run_dir: r, steps: 1, groups_per_step: {ours}}}\n"
    )
    migrated = migrate_file(file)
    assert migrated.problems == ()
    file.write_text(file.read_text().replace("{kind: jsonl", f"{{train_batch_size: {theirs}, kind: jsonl"))
    assert bool(migrate_file(file).problems) == (ours != theirs)


def test_references_between_old_keys_are_followed():
    values = {"a.b": 3, "a.c": "${a.b}", "loop": "${loop}"}
    assert resolve("${a.c}", values) == 3
    assert resolve("${oc.select:a.b,9}", values) == 3
    assert resolve("${oc.select:nowhere,9}", values) == 9
    assert resolve("runs/${a.b}/${a.c}", values) == "runs/3/3"
    assert resolve("${nowhere}", values) == "${nowhere}"
    assert "${" in resolve("${loop}", values)
    assert resolve("???", values) is None


def test_no_old_key_is_one_of_ours():
    ours = {option.split(":")[0].split(".")[0] for option in options()} | set(SHORT_KEYS)
    assert not ROOTS & (ours | set(RunConfig.model_fields))
    names = {option.split(": ")[0].replace("task_sets.N.", "") for option in options()}
    flat = {".".join(part.partition("[")[0] for part in name.split(".")) for name in names}
    assert flat & (set(RULES) | set(REMEDIES)) == {".".join(BY_COMPANY)}


def test_the_seed_of_generated_tasks_stays_ours(load_text, minimal):
    data = {"kind": "reasoning_gym", "family": "countdown", "size": 3, "seed": 5}
    for more in ({}, {"train_batch_size": 4}):
        loaded = load_text(yaml.safe_dump({**yaml.safe_load(minimal), "data": {**data, **more}}))
        assert (loaded.config.task_sets[0].data.seed, loaded.config.trainer.seed) == (5, 0)


OLD_FILE = """
actor_rollout_ref:
  model: {path: smollm2}
  actor: {optim: {lr: 1e-6}, ppo_mini_batch_size: 4, fsdp_config: {param_offload: true}}
  rollout: {n: 4, response_length: "${data.max_response_length}"}
data: {train_files: train.parquet, train_batch_size: 8, max_response_length: 64}
algorithm: {adv_estimator: grpo}
trainer: {total_training_steps: 20, default_local_dir: runs/x}
agent: {kind: single_turn, judger: integer_answer}
"""


def test_migrate_prints_a_file_that_loads_to_the_same(tmp_path, capfd):
    file = tmp_path / "old.yaml"
    file.write_text(OLD_FILE)
    with pytest.raises(SystemExit) as caught:
        main(["migrate", str(file)])
    out, err = capfd.readouterr()
    assert caught.value.code == 2, "something is left to do"
    assert "actor_rollout_ref.actor.fsdp_config.param_offload: is True, which has no equivalent (old.yaml:4)" in err
    assert "actor_rollout_ref.rollout.n: is now rollout.samples_per_task (old.yaml:5)" in err
    (tmp_path / "new.yaml").write_text(out)
    file.write_text(OLD_FILE.replace(", fsdp_config: {param_offload: true}", ""))
    new, old = load(tmp_path / "new.yaml"), load(file)
    assert new.config == old.config
    assert new.warnings == ()
    assert list(yaml.safe_load(out))[:3] == ["model", "data", "agent"]
    with pytest.raises(SystemExit) as caught:
        main(["migrate", str(file)])
    assert not caught.value.code
