"""Where a model is computed: which settings of it go together."""

from __future__ import annotations

import pytest

from loopwright.build.parts import engine_device
from loopwright.runs.config_changes import FREE

APART = "rollout.engine.num_engines=1"


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["model.device=tpu"], "a device is auto, cpu, cuda, or cuda:N"),
        (["model.device=cuda:x"], "a device is auto, cpu, cuda, or cuda:N"),
        (["model.device=cuda", "trainer.deterministic=true"], "nobody has seen a GPU repeat a run"),
        (["model.device=cuda:0", "rollout.engine.device=cuda:1"], "the learner's own parameters, on cuda:0"),
    ],
)
def test_what_cannot_work_is_refused(problems_of, minimal, overrides, words):
    (problem,) = problems_of(minimal, *overrides)
    assert words in problem


@pytest.mark.parametrize(
    ("overrides", "engine"),
    [
        ([], "auto"),
        (["model.device=cuda:1"], "cuda:1"),
        (["model.device=cuda:0", "rollout.engine.device=cuda:1", APART], "cuda:1"),
        (["model.device=cpu", "trainer.deterministic=true"], "cpu"),
    ],
)
def test_an_engine_of_its_own_has_the_models_device_unless_it_is_told_another(load_text, minimal, overrides, engine):
    loaded = load_text(minimal, *overrides)
    assert loaded.warnings == ()
    assert engine_device(loaded.config) == engine


def test_a_run_goes_on_elsewhere():
    assert {"model.device", "rollout.engine.device", "learner.checkpoint_activations"} <= set(FREE)
