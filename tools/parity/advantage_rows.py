"""Our advantages beside those of the peers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from loopwright.core.advantage import Scores, teaches_nothing
from tools.parity.ours import RECORDED, advantages, groups, rescaled
from tools.parity.pairs import Pair, of_rows
from tools.parity.rows import EPSILON, Row

PLAIN, DEGENERATE = "plain", "degenerate"
VERL, TRL, TORCHRL = (RECORDED[peer]["advantages"] for peer in ("verl", "trl", "torchrl"))

NOISE = "rewards that differ by rounding noise count"
LONE = f"a lone member keeps its reward; {NOISE}"


def advantage_rows() -> list[Row]:
    return [
        _verl("grpo", "compute_grpo_outcome_advantage", "grpo", LONE.replace("its reward", "its reward / (1 + 1e-6)")),
        _rescaled("trl", "GRPOTrainer, scale_rewards=group", TRL["group"], f"epsilon 1e-4, not 1e-6; {NOISE}"),
        _rescaled("torchrl", "MCAdvantage", TORCHRL, f"divides by max(std, 1e-6), adds no epsilon; {NOISE}"),
        _verl("grpo_no_std", "compute_grpo_outcome_advantage, no std", "grpo_no_std", LONE),
        _row("grpo_no_std", "trl", "GRPOTrainer, scale_rewards=none", TRL["none"], NOISE),
        _verl("rloo", "compute_rloo_outcome_advantage", "rloo", LONE),
        _verl("opo", "compute_opo_outcome_advantage", "opo", LONE),
        Row(
            "reinforce_pp",
            "verl",
            "compute_reinforce_plus_plus_outcome_advantage, gamma=1",
            _reinforce_pp,
            "adds 1e-8 to the number of tokens in means",
            _reinforce_pp,
            EPSILON,
        ),
        Row(
            "reinforce_pp_baseline",
            "verl",
            "compute_reinforce_plus_plus_baseline_outcome_advantage",
            partial(_as_is, "reinforce_pp_baseline", VERL["reinforce_plus_plus_baseline"], PLAIN),
            "as above; a lone member keeps its reward before whitening, which moves groups of equals off 0",
            partial(_as_is, "reinforce_pp_baseline", VERL["reinforce_plus_plus_baseline"], DEGENERATE),
            EPSILON,
        ),
        Row(
            "pass_at_k",
            "verl",
            "compute_grpo_passk_outcome_advantage, no std",
            partial(_as_is, "pass_at_k", VERL["grpo_passk"], PLAIN),
            "k is the size of the group, ours any k (apart: k = 2); a lone member is an error",
            lambda: of_rows(advantages("pass_at_k", PLAIN, k=2), VERL["grpo_passk"][PLAIN]),
        ),
    ]


def _reinforce_pp() -> Iterator[Pair]:
    for kind in (PLAIN, DEGENERATE):
        yield from _as_is("reinforce_pp", VERL["reinforce_plus_plus"], kind)


def _verl(name: str, function: str, key: str, definition: str) -> Row:
    return _row(name, "verl", function, VERL[key], definition)


def _row(name: str, peer: str, function: str, theirs: dict[str, Sequence[Sequence[float]]], definition: str) -> Row:
    """A definition that parts where a group teaches nothing, and agrees on all others."""
    return Row(
        name, peer, function, partial(_taught, name, theirs), definition, partial(_as_is, name, theirs, DEGENERATE)
    )


def _rescaled(peer: str, function: str, theirs: dict[str, Sequence[Sequence[float]]], definition: str) -> Row:
    def divisor(std: float) -> float:
        return std + 1e-4 if peer == "trl" else max(std, 1e-6)

    def agree() -> Iterator[Pair]:
        for kind in (PLAIN, DEGENERATE):
            yield from _of_taught(kind, rescaled(kind, divisor), theirs[kind])

    return Row("grpo", peer, function, agree, definition, partial(_as_is, "grpo", theirs, PLAIN))


def _taught(name: str, theirs: dict[str, Sequence[Sequence[float]]]) -> Iterator[Pair]:
    for kind in (PLAIN, DEGENERATE):
        yield from _of_taught(kind, advantages(name, kind), theirs[kind])


def _of_taught(kind: str, ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]) -> Iterator[Pair]:
    for group, mine, other in zip(groups(kind), ours, theirs, strict=True):
        if _all_define_alike(group):
            yield from of_rows([mine], [other])


def _all_define_alike(group: Scores) -> bool:
    """Whether rewards differ, or are exactly equal. One member, or rounding noise, is where definitions part."""
    exactly_equal = len(group.rewards) > 1 and len(set(group.rewards)) == 1
    return exactly_equal or not teaches_nothing(group.rewards)


def _as_is(name: str, theirs: dict[str, Sequence[Sequence[float]]], kind: str) -> Iterator[Pair]:
    return of_rows(advantages(name, kind), theirs[kind])
