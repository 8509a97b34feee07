"""What a learner of several ranks does not go together with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from loopwright.build.cluster import roles_of
from loopwright.cluster.nodes import ClusterNode, Resources
from loopwright.cluster.plan import make_plan
from loopwright.config import Loaded
from loopwright.config.loading import load_from_python
from loopwright.errors import ConfigError

TEXT = """
model: {path: smollm2}
data: {kind: jsonl, path: tasks.jsonl}
agent: {kind: single_turn, judger: integer_answer}
trainer: {run_dir: runs/x, steps: 10}
learner: {ranks: 2}
"""
APART = "rollout.engine.num_engines=1"


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ([], "set rollout.engine.num_engines: 1 for an engine in a process of its own"),
        ([APART, "trainer.deterministic=true"], "switch trainer.deterministic off"),
        ([APART, "model.device=cuda:1"], "rank r takes the r-th GPU"),
        ([APART, "model.device=cuda", "learner.placement=ray"], "an actor sees the GPUs that it reserves"),
        ([APART, "model.device=cuda:0", "learner.placement=ray"], "an actor sees the GPUs that it reserves"),
        ([APART, "learner.num_gpus_per_rank=0.5", "learner.placement=ray"], "a rank computes on one GPU of its own"),
        ([APART, "learner.num_gpus_per_rank=2", "learner.placement=ray"], "a rank computes on one GPU of its own"),
    ],
)
def test_what_ranks_cannot_do_is_refused(
    problems_of: Callable[..., list[str]], overrides: list[str], words: str
) -> None:
    assert any(words in problem for problem in problems_of(TEXT, *overrides))


def test_ranks_with_an_engine_of_its_own_are_fine(load_text: Callable[..., Loaded]) -> None:
    assert load_text(TEXT, APART).config.learner.ranks == 2
    assert load_text(TEXT, "trainer.kind=disaggregated", "produce.kind=async").config.learner.ranks == 2


def test_ranks_on_actors_are_one_role_that_needs_ray(load_text: Callable[..., Loaded]) -> None:
    config = load_text(TEXT, APART, "learner.placement=ray", "learner.num_cpus_per_rank=2").config
    (role,) = roles_of(config)
    assert (role.title, role.count, role.cpus) == ("ranks", 2, 2.0)
    assert ("learner", "placement") in {need.place for need in config.needs()}
    with pytest.raises(ConfigError, match=r"2 ranks x 2 CPUs = 4 CPUs; the cluster has 3, its largest node 3"):
        make_plan([role], [ClusterNode("1", "a", Resources(3), Resources(3))])


def test_a_loss_that_ranks_cannot_import_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_text('{"id": "a", "messages": [{"role": "user", "content": "1?"}]}\n')
    config = {
        "model": {"path": "smollm2"},
        "data": {"kind": "jsonl", "path": str(tmp_path / "tasks.jsonl")},
        "agent": {"kind": "single_turn", "judger": "integer_answer"},
        "rollout": {"engine": {"num_engines": 1}},
        "trainer": {"run_dir": str(tmp_path / "run"), "steps": 1},
        "learner": {"loss": lambda batch: -batch.logprobs},
    }
    assert load_from_python(config).config.learner.ranks == 1
    with pytest.raises(ConfigError, match="put the loss into a file or a module"):
        load_from_python(config, {"learner.ranks": 2})


def test_where_one_rank_is_has_no_effect(load_text: Callable[..., Loaded]) -> None:
    assert load_text(TEXT, "learner.ranks=1").warnings == ()
    (warning,) = load_text(TEXT, "learner.ranks=1", "learner.max_restarts=5").warnings
    assert "learner.max_restarts" in warning
    assert "has no effect: one rank is in the driver" in warning
    assert load_text(TEXT, APART, "learner.max_restarts=5").warnings == ()
