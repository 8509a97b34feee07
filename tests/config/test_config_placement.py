"""What may be on actors, what goes together, and which mistakes are found before anything starts."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import pytest

from loopwright.build.cluster import loop_roles, roles_of
from loopwright.config import Loaded, Purpose
from loopwright.config.base import needs_of
from loopwright.config.needs import Outside
from loopwright.config.placement import Strategy
from loopwright.config.purpose import part_for
from loopwright.config.roles import RoleKind
from loopwright.errors import ConfigError
from loopwright.types import Split, TrainerKind

APART = ("trainer.kind=disaggregated", "produce.kind=async")
AT = "cluster.address=10.0.0.5:6379"
LoadText = Callable[..., Loaded]
Problems = Callable[..., list[str]]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("rollout.engine={num_actors: 2, num_engines: 2}",), "is 2, and num_engines is set too"),
        (("rollout.engine={num_actors: 2, num_engines: 0}",), "is 2, and num_engines is set too"),
        (("rollout.engine={kind: vllm, num_actors: 2, num_engines: 2}",), "is 2, and num_engines is set too"),
        (("rollout.engine={kind: vllm, num_actors: 2, urls: ['http://127.0.0.1:1']}",), "is 2, and urls is set too"),
        (("rollout.engine={kind: sglang, num_actors: 2, urls: ['http://127.0.0.1:1']}",), "unknown setting"),
        (("gateway.num_actors=2",), "gateway.num_actors: is 2, must be 0 or 1"),
        (
            ("gateway={num_actors: 1, url: 'http://127.0.0.1:9', key_env: K}",),
            "gateway.num_actors: is 1, and url is set too",
        ),
        (("rollout={nodes: 0, engine: {num_actors: 2}}",), "rollout.nodes: is 0, but trainer.kind is colocate"),
        ((*APART, AT, "rollout.nodes=1"), "rollout.nodes: is 1, but rollout.engine.num_actors is not set"),
        ((*APART, AT, "rollout={nodes: 2, engine: {num_actors: 5}}"), "(2): every node gets the same number"),
        ((*APART, AT, "rollout={nodes: 2, engine: {num_actors: 1}}"), "-> set it to 2"),
        ((*APART, "rollout={nodes: 2, engine: {num_actors: 2}}"), "but cluster.address is not set"),
        (("trainer.deterministic=true", "agent.num_actors=1"), "agent.num_actors: is 1, but trainer.deterministic is"),
        (("trainer.deterministic=true", "rollout.engine.num_actors=1"), "but rollout.engine.num_actors is 1"),
        (("agent={num_actors: 1, num_gpus_per_actor: 1.5}",), "is 1.5: an actor has a part of one GPU, or whole ones"),
        (("agent={num_actors: 1, num_cpus_per_actor: 0.33333}",), "is 0.33333: Ray counts in steps of 0.0001"),
        (("agent={num_actors: 1, num_cpus_per_actor: 0.00001}",), "for example to 0.0001"),
        (("agent.num_actors=1", "cluster.labels.loops={zone: '!'}"), "loops.zone: is '!', which no label can be"),
        (("agent.num_actors=1", "cluster.labels.loops={zone: '!in(a'}"), "write a, !a, in(a, b) or !in(a, b)"),
        (("agent.num_actors=1", "cluster.labels.loops={'a b': c}"), "has the key 'a b', which Ray refuses"),
        (("cluster.address=ray://here:10001", "agent.num_actors=1"), "no address of a cluster"),
        (("cluster.address=local", "agent.num_actors=1"), "no address of a cluster"),
        (("agent.num_actors=-1",), "agent.num_actors: is -1, must be at least 0"),
        (("agent.num_cpus_per_actor=-1",), "must be at least 0"),
    ],
)  # fmt: skip
def test_what_cannot_be_placed_is_refused(
    problems_of: Problems, minimal: str, overrides: tuple[str, ...], words: str
) -> None:
    overrides = tuple(one.replace("agent={", "agent={kind: single_turn, judger: integer_answer, ") for one in overrides)
    (problem,) = problems_of(minimal, *overrides)
    assert words in problem


@pytest.mark.parametrize(
    "overrides",
    [
        ("agent.num_actors=2", "agent.num_cpus_per_actor=0.25", "agent.memory_per_actor=2 GiB"),
        ("agent.num_actors=2", "cluster={num_cpus: 4, strategy: {loops: spread}, labels: {loops: {zone: a}}}"),
        ("agent.num_actors=1", "cluster.labels.loops={ray.io/node-id: '!abc', zone: '!in(a-1, b)', c: 'in(d)'}"),
        (*APART, "rollout={nodes: 0, engine: {num_actors: 3}}"),
        (*APART, AT, "rollout={nodes: 2, engine: {num_actors: 4}}"),
        ("rollout.engine.num_actors=2", "cluster.strategy.engines=pack"),
        ("trainer.deterministic=true", "agent.judger=mine", "judgers={mine: {kind: integer_answer, num_actors: 2}}"),
    ],
)
def test_what_can_be_placed_is_accepted_without_a_word(
    load_text: LoadText, minimal: str, overrides: tuple[str, ...]
) -> None:
    """Also a judger of a deterministic run: wherever it is, it gives a rollout the same score."""
    assert load_text(minimal, *overrides).warnings == ()


def test_a_colocated_trainer_may_have_its_engines_on_actors(load_text: LoadText, minimal: str) -> None:
    """As it may have them in other processes: its weights are published to them after every step."""
    engine = load_text(minimal, "rollout.engine.num_actors=2").config.rollout.engine
    assert engine.processes(TrainerKind.COLOCATE) == 2


@pytest.mark.parametrize(
    ("field", "overrides"),
    [
        ("agent.num_cpus_per_actor", ["agent.num_cpus_per_actor=2"]),
        ("agent.memory_per_actor", ["agent.memory_per_actor=1 GB"]),
        ("rollout.engine.num_gpus_per_actor", ["rollout.engine.num_gpus_per_actor=1"]),
        ("cluster.address", ["cluster.address=auto"]),
        ("cluster.num_cpus", ["cluster.num_cpus=4"]),
        ("cluster.num_cpus", ["cluster={address: auto, num_cpus: 4}", "agent.num_actors=1"]),
        ("cluster.strategy", ["cluster.strategy.loops=spread"]),
        ("cluster.strategy.judgers", ["cluster.strategy.judgers=pack", "agent.num_actors=1"]),
        ("cluster.labels.engines", ["cluster.labels.engines={a: b}", "agent.num_actors=1"]),
        (
            "cluster.strategy.engines",
            [*APART, "rollout={nodes: 0, engine: {num_actors: 1}}", "cluster.strategy.engines=pack"],
        ),
        ("gateway.num_actors", ["gateway.num_actors=1"]),
    ],
)
def test_a_setting_without_effect_is_reported(
    load_text: LoadText, minimal: str, field: str, overrides: list[str]
) -> None:
    (warning,) = load_text(minimal, *overrides).warnings
    assert warning.startswith(f"{field}: has no effect: ")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("2147483648", 2**31),
        ("2 GiB", 2**31),
        ("'2GiB'", 2**31),
        ("1.5 gib", 3 * 2**29),
        ("512 MB", 512 * 10**6),
        ("1 TiB", 2**40),
    ],
)
def test_memory_is_bytes_or_has_a_unit(load_text: LoadText, minimal: str, text: str, size: int) -> None:
    loaded = load_text(minimal, "agent.num_actors=1", f"agent.memory_per_actor={text}")
    assert loaded.config.task_sets[0].agent.memory_per_actor == size


@pytest.mark.parametrize("text", ["2 GX", "lots", "GiB", "1e3 MiB", "'-1 GiB'", "'2'"])
def test_a_bad_size_says_what_a_good_one_is(problems_of: Problems, minimal: str, text: str) -> None:
    (problem,) = problems_of(minimal, "agent.num_actors=1", f"agent.memory_per_actor={text}")
    assert "must be a number of bytes, or one with a unit, as in '2 GiB'" in problem


def test_a_size_below_what_any_process_takes_is_refused(problems_of: Problems, minimal: str) -> None:
    (problem,) = problems_of(minimal, "agent.num_actors=1", "agent.memory_per_actor=2")
    assert "must be at least 67108864" in problem


SECTIONS = [
    ("judgers.j", f"judgers.j={{{settings}}}")
    for settings in (
        "kind: native, path: 'a.py:b'",
        "kind: integer_answer",
        "kind: math_answer",
        "kind: http, url: 'http://x'",
        "kind: llm, base_url: 'http://x', model: m",
        "kind: composed, parts: {p: {judger: integer_answer}}",
    )
]
SECTIONS += [
    ("agent", f"agent={{{settings}}}")
    for settings in (
        "kind: single_turn, judger: integer_answer",
        "kind: python, path: 'a.py:b', judger: integer_answer",
        "kind: callable, path: 'a.py:b', judger: integer_answer",
        "kind: tool, judger: integer_answer, tools: [{kind: python, path: 'a.py:b'}]",
        "kind: remote, runner: {kind: command, command: [x]}, reward: {kind: exit_code}",
    )
]
SECTIONS += [("rollout.engine", f"rollout.engine={{kind: {kind}}}") for kind in ("torch", "vllm")]
SECTIONS += [("gateway", "gateway={}")]


@pytest.mark.parametrize(("place", "section"), SECTIONS)
def test_actors_of_every_kind_of_section_need_ray(
    load_text: LoadText, problems_of: Problems, minimal: str, monkeypatch: pytest.MonkeyPatch, place: str, section: str
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "ray" else found(name, *rest))
    base = minimal.replace("judger: integer_answer", "judger: j") if place == "judgers.j" else minimal
    actors = f"{place}.num_actors=1"
    assert any(
        problem.startswith(f"{place}.num_actors: needs the package ray") and "pip install 'loopwright[ray]'" in problem
        for problem in problems_of(base, section, actors, files=True)
    )
    config = load_text(base, section, actors).config
    for purpose in (Purpose.EVALUATE, Purpose.ROLL_OUT, Purpose.REPLAY):
        assert "ray" not in {need.name for need in needs_of(part_for(config, purpose)) if need.what is Outside.EXTRA}, (
            "only a training has a cluster"
        )


def test_two_judgers_with_one_name_are_refused(load_text: LoadText, minimal: str) -> None:
    twice = "judgers:\n  mine: {kind: integer_answer}\n  mine: {kind: integer_answer, num_actors: 2}\n"
    with pytest.raises(ConfigError, match="the key 'mine' is here twice"):
        load_text(minimal + twice)


def test_task_sets_of_training_have_actors_of_their_own_and_evaluation_uses_them(
    load_text: LoadText, minimal: str
) -> None:
    def task_set(name: str, cpus: float = 1) -> str:
        agent = f"{{kind: single_turn, judger: integer_answer, num_actors: 2, num_cpus_per_actor: {cpus}}}"
        return f"{{name: {name}, data: {{kind: python, path: 'a.py:b'}}, agent: {agent}}}"

    trained = ", ".join(task_set(name) for name in ("x", "eval-x"))
    evaluated = ", ".join([task_set("same"), task_set("x", 0.5), task_set("eval-x", 0.25)])
    lines = [line for line in minimal.splitlines() if not line.startswith(("data", "agent"))]
    config = load_text("\n".join(lines), f"task_sets=[{trained}]", f"eval.task_sets=[{evaluated}]").config
    found = {one.role.name: one.task_sets for one in loop_roles(config)}
    assert found == {
        "x": ((Split.TRAIN, "x"), (Split.EVAL, "same")),
        "eval-x": ((Split.TRAIN, "eval-x"),),
        "eval-eval-x": ((Split.EVAL, "x"),),
        "eval-eval-eval-x": ((Split.EVAL, "eval-x"),),
    }


def test_every_role_has_the_strategy_and_the_labels_of_its_kind(load_text: LoadText, minimal: str) -> None:
    placed = "num_actors: 1"
    overrides = [
        *APART,
        f"agent={{kind: callable, path: 'a.py:b', judger: mine, {placed}}}",
        f"judgers.mine={{kind: integer_answer, {placed}}}",
        f"rollout.engine={{{placed}}}",
        f"gateway={{{placed}}}",
        "learner={ranks: 3, placement: ray, num_cpus_per_rank: 2}",
        "cluster.strategy={loops: spread, judgers: pack, engines: pack, ranks: spread}",
        "cluster.labels={loops: {zone: a}, judgers: {zone: b}, engines: {zone: c}, gateway: {zone: d}}",
        "cluster.labels.ranks={zone: e}",
    ]
    found = {role.kind: (role.strategy, dict(role.labels)) for role in roles_of(load_text(minimal, *overrides).config)}
    assert found == {
        RoleKind.LOOPS: (Strategy.SPREAD, {"zone": "a"}),
        RoleKind.JUDGERS: (Strategy.PACK, {"zone": "b"}),
        RoleKind.ENGINES: (Strategy.PACK, {"zone": "c"}),
        RoleKind.GATEWAY: (Strategy.PACK, {"zone": "d"}),
        RoleKind.RANKS: (Strategy.SPREAD, {"zone": "e"}),
    }


def test_a_judger_that_training_and_evaluation_name_is_one_role(load_text: LoadText, minimal: str) -> None:
    judger = "judgers.mine={kind: integer_answer, num_actors: 1}"
    evaluated = "eval={data: {kind: python, path: 'a.py:b'}, agent: {kind: single_turn, judger: mine}}"
    config = load_text(minimal, judger, "agent.judger=mine", evaluated).config
    assert [(role.kind, role.name) for role in roles_of(config)] == [(RoleKind.JUDGERS, "mine")]
