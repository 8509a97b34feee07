"""The learner's terms: kinds alone or with their settings, from every layer, and what does not fit together."""

from __future__ import annotations

import pytest

from loopwright.config import Layer


def sources(loaded, prefix):
    """Every field under `prefix` with its value and who gave it."""
    return {
        s.name.removeprefix(prefix): (s.value, s.source.layer) for s in loaded.settings() if s.name.startswith(prefix)
    }


def test_a_kind_alone_stands_for_its_section(load_text, minimal):
    loaded = load_text(minimal + "learner: {advantage: rloo, loss: gspo}\n")
    assert sources(loaded, "learner.advantage.") == {"kind": ("rloo", Layer.FILE)}
    assert sources(loaded, "learner.loss.")["kind"] == ("gspo", Layer.FILE)
    assert loaded.config.learner.loss.clip_high == 4e-4


def test_the_command_line_replaces_a_kind_with_its_settings(load_text, minimal):
    text = minimal + "learner: {advantage: {kind: pass_at_k, k: 4}, loss: {kind: cispo, clip_high: 2.0}}\n"
    loaded = load_text(text, "learner.advantage=opo", "learner.loss=reinforce")
    assert sources(loaded, "learner.advantage.") == {"kind": ("opo", Layer.COMMAND_LINE)}
    assert loaded.config.learner.loss.kind == "reinforce"


def test_a_setting_goes_into_a_kind_that_another_layer_gave(load_text, minimal):
    env = {"LOOPWRIGHT_LEARNER__LOSS": "gspo", "LOOPWRIGHT_LEARNER__MINI_BATCHES": "2"}
    loaded = load_text(minimal, "learner.loss.clip_high=0.1", env=env)
    found = sources(loaded, "learner.loss.")
    assert found["kind"] == ("gspo", Layer.ENVIRONMENT)
    assert found["clip_high"] == (0.1, Layer.COMMAND_LINE)
    assert found["clip_low"] == (0.0003, Layer.DEFAULT)


def test_a_kind_can_be_changed_under_its_settings(load_text, minimal):
    loaded = load_text(minimal + "learner: {loss: {aggregate: token}}\n", "learner.loss.kind=gspo")
    assert (loaded.config.learner.loss.kind, loaded.config.learner.loss.aggregate) == ("gspo", "token")


def test_a_loss_without_a_kind_is_the_usual_one(load_text, minimal):
    loaded = load_text(minimal, "learner.loss.clip_low=0.1", "learner.mini_batches=2")
    assert sources(loaded, "learner.loss.")["kind"] == ("ppo_clip", Layer.DEFAULT)
    assert loaded.config.learner.loss.clip_low == 0.1


@pytest.mark.parametrize(
    ("override", "words"),
    [
        (
            "learner.advantage=gprp",
            "learner.advantage.kind: unknown kind 'gprp' (command line) -> did you mean 'grpo'?",
        ),
        ("learner.advantage={kind: grpo, k: 4}", "learner.advantage.k: unknown setting"),
        ("learner.advantage.k=4", "learner.advantage.kind: missing"),
        ("learner.advantage=pass_at_k", "learner.advantage.k: missing"),
        ("learner.advantage={kind: pass_at_k, k: 1}", "must be at least 2"),
        (
            "learner.advantage={kind: pass_at_k, k: 9}",
            "learner.advantage.k: is 9, more than rollout.samples_per_task (8)",
        ),
        ("learner.loss={kind: gspo, dual_clip: 3}", "learner.loss.dual_clip: unknown setting"),
        ("learner.loss.dual_clip=1.0", "must be above 1"),
        ("learner.loss=vanilla", "learner.loss.kind: unknown kind 'vanilla'"),
        ("learner.importance={floor: 3.0}", "learner.importance.floor: is 3.0, more than learner.importance.cap (2.0)"),
        ("learner.importance.kind=drop", "must be 'truncate', 'mask' or 'off'"),
        ("learner.importance_cap=2", "learner.importance_cap: unknown setting"),
        ("learner.kl.kind=k3", "learner.kl.coefficient: missing"),
        ("learner.sft={path: e.jsonl, coefficient: 0}", "must be above 0"),
    ],
)
def test_what_does_not_fit_is_named(problems_of, minimal, override, words):
    (problem,) = problems_of(minimal, override)
    assert words in problem


def test_fewer_examples_than_mini_batches(problems_of, minimal):
    sft = "learner.sft={path: e.jsonl, coefficient: 0.1, examples_per_step: 2}"
    (problem,) = problems_of(minimal, sft, "learner.mini_batches=4")
    assert "learner.mini_batches: is 4, more than learner.sft.examples_per_step (2)" in problem


@pytest.mark.parametrize("off", ["off", "'off'", "false"])
def test_off_is_a_word_even_to_yaml(load_text, minimal, off):
    assert load_text(minimal, f"learner.importance.kind={off}").config.learner.importance.kind == "off"


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["learner.kl={kind: k1, coefficient: 0.1}"], "its gradient is zero on average"),
        (["learner.loss.clip_high=0.3"], "with one mini-batch the ratio is exactly 1"),
        (["learner.loss.constant_length=100"], "learner.loss.constant_length: has no effect"),
        (["learner.importance={kind: off, cap: 3.0}"], "learner.importance.cap: has no effect"),
        (["rollout.samples_per_task=1", "learner.advantage=rloo"], "rloo compares the members of a group"),
    ],
)
def test_what_has_no_effect_is_a_warning(load_text, minimal, overrides, words):
    (warning,) = load_text(minimal, *overrides).warnings
    assert words in warning


def test_an_advantage_over_the_batch_may_have_groups_of_one(load_text, minimal):
    assert load_text(minimal, "rollout.samples_per_task=1", "learner.advantage=reinforce_pp").warnings == ()


def test_files_of_the_learner_are_looked_for(problems_of, minimal, tmp_path):
    (tmp_path / "tasks.jsonl").write_text('{"prompt": "2+2?"}\n')
    (tmp_path / "mine.py").write_text("def ranks(groups): return groups\n")
    found = problems_of(
        minimal,
        "learner.advantage={kind: python, path: 'mine.py:rank'}",
        "learner.loss={kind: python, path: 'nowhere.py:gate'}",
        "learner.kl={coefficient: 0.1, reference: ./missing}",
        "learner.sft={path: e.jsonl, coefficient: 0.1}",
        files=True,
    )
    assert [problem.split(": ")[0] for problem in found] == [
        "learner.advantage.path",
        "learner.loss.path",
        "learner.kl.reference",
        "learner.sft.path",
    ]
    assert "did you mean 'ranks'?" in found[0]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("dropout: 0.1", "there is no dropout here: dropout would make the learner's logprobs differ"),
        ("lora_dropout: 0.1", "there is no lora_dropout here"),
        ("use_dora: true", "there is no use_dora here: DoRA scales whole weights"),
        ("bias: all", "there is no bias here: only the matrices"),
        ("modules_to_save: [lm_head]", "there is no modules_to_save here: a module that is trained whole"),
        ("targets: []", "targets names no layer, so nothing would be trained"),
        ("ranks: 8", "learner.lora.ranks: unknown setting"),
    ],
)
def test_adapters_are_refused_what_would_make_them_more_than_that(problems_of, minimal, given, reason):
    (problem, *_) = problems_of(minimal, f"learner.lora={{{given}}}")
    assert reason in problem
    assert "Value error" not in problem


def test_targets_of_adapters_are_all_linear_layers_or_a_list(load_text, minimal):
    assert load_text(minimal).config.learner.lora is None
    assert load_text(minimal, "learner.lora={}").config.learner.lora.targets == ("all-linear",)
    assert load_text(minimal, "learner.lora={targets: all-linear}").config.learner.lora.targets == ("all-linear",)
    named = load_text(minimal, "learner.lora={targets: [q_proj, v_proj], rank: 8}").config.learner.lora
    assert (named.rank, named.targets) == (8, ("q_proj", "v_proj"))
