"""Our losses beside those of the peers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from math import inf

from loopwright.learn.losses import MAX_LOG_RATIO, TokenLoss, reinforce
from loopwright.types import Aggregate, KlKind, Level
from tools.parity import ours
from tools.parity.ours import RECORDED, Way, loss_and_gradient
from tools.parity.pairs import Pair, of_loss, of_rows
from tools.parity.rows import FLOAT32, MODEST, NO_BOUND, Row, over_batches

VERL, TRL, TORCHRL = (RECORDED[peer] for peer in ("verl", "trl", "torchrl"))
VERL_LOWEST = -20.0

AGGREGATES = {
    Aggregate.TOKEN: "token-mean",
    Aggregate.SEQUENCE: "seq-mean-token-mean",
    Aggregate.CONSTANT: "seq-mean-token-sum-norm",
}
EXACT_AGGREGATES = (Aggregate.TOKEN, Aggregate.CONSTANT)
VERL_LOSSES: dict[str, TokenLoss] = {
    "vanilla": ours.PPO_CLIP,
    "vanilla_dual_clip": ours.DUAL_CLIP,
    "gspo": ours.GSPO,
    "cispo": ours.CISPO,
    "gpg": reinforce,
}


def loss_rows() -> list[Row]:
    return [*_verl_rows(), *_trl_rows(), *_torchrl_rows()]


def _verl_rows() -> list[Row]:
    return [
        over_batches(
            ("ppo_clip", "verl", "compute_policy_loss_vanilla, no dual clip"),
            partial(_verl, "vanilla", Way(ours.PPO_CLIP, smallest_log_ratio=VERL_LOWEST)),
            "log-ratios below -20 count as -20 and have no gradient",
            partial(_verl, "vanilla", Way(ours.PPO_CLIP)),
        ),
        over_batches(
            ("ppo_clip, dual_clip", "verl", "compute_policy_loss_vanilla"),
            partial(_verl, "vanilla_dual_clip", Way(ours.DUAL_CLIP, smallest_log_ratio=VERL_LOWEST)),
            "as above",
            partial(_verl, "vanilla_dual_clip", Way(ours.DUAL_CLIP)),
        ),
        over_batches(
            ("gspo", "verl", "compute_policy_loss_gspo"),
            partial(_verl, "gspo", Way(ours.GSPO, largest_log_ratio=10.0)),
            f"a sequence's log-ratio above 10 counts as 10; our bound is {MAX_LOG_RATIO:.0f}",
            partial(_verl, "gspo", Way(ours.GSPO)),
        ),
        over_batches(("cispo", "verl", "compute_policy_loss_cispo"), partial(_verl, "cispo", Way(ours.CISPO))),
        over_batches(("reinforce", "verl", "compute_policy_loss_gpg"), partial(_verl, "gpg", Way(reinforce))),
        over_batches(
            ("aggregate: sequence", "verl", "agg_loss, seq-mean-token-mean"),
            partial(_verl_sequences, 1e-8),
            "adds 1e-8 to the length of a sequence",
            partial(_verl_sequences, 0.0),
            MODEST,
        ),
    ]


def _trl_rows() -> list[Row]:
    kinds = {
        "grpo": Aggregate.SEQUENCE,
        "bnpo": Aggregate.TOKEN,
        "dapo": Aggregate.TOKEN,
        "dr_grpo": Aggregate.CONSTANT,
    }
    plain = {kind: Way(ours.PPO_CLIP, aggregate) for kind, aggregate in kinds.items()}
    with_kl = Way(ours.PPO_CLIP, Aggregate.SEQUENCE, kl=ours.kl_term(KlKind.K3))
    weighted_kl = Way(ours.ppo_clip_with_weighted_kl, Aggregate.SEQUENCE, largest_log_ratio=inf)
    gspo = {"gspo": Way(ours.GSPO, Aggregate.SEQUENCE)}
    two_sided = {"grpo_two_sided": Way(ours.DUAL_CLIP, Aggregate.SEQUENCE)}
    function = "GRPOTrainer, loss_type={}".format
    return [
        _unbounded("ppo_clip", function("grpo, bnpo, dapo, dr_grpo"), plain),
        over_batches(("ppo_clip, dual_clip", "trl", function("grpo, delta")), partial(_trl, two_sided)),
        _unbounded(
            "ppo_clip, kl: k3", function("grpo, beta, use_bias_correction_kl=False"), {"grpo_plain_kl": with_kl}
        ),
        over_batches(
            ("ppo_clip, kl: k3", "trl", function("grpo, beta")),
            partial(_trl, {"grpo_kl": weighted_kl}),
            f"multiplies the divergence by the ratio, whose gradient counts; {NO_BOUND}",
            partial(_trl, {"grpo_kl": with_kl}),
        ),
        _unbounded("gspo", function("grpo, importance_sampling_level=sequence"), gspo),
        over_batches(
            ("cispo", "trl", function("cispo")),
            partial(_trl, {"cispo": Way(ours.UPPER_CISPO)}),
            "clips above only (ours: clip_low: 1), and epsilon_high is the bound itself",
            partial(_trl, {"cispo": Way(ours.CISPO)}),
        ),
    ]


def _torchrl_rows() -> list[Row]:
    ways = {
        "grpo_token_mean": Way(ours.SYMMETRIC),
        "grpo_prompt_mean": Way(ours.SYMMETRIC, Aggregate.SEQUENCE),
        "dapo_token_mean": Way(ours.PPO_CLIP),
    }
    return [
        over_batches(
            ("ppo_clip", "torchrl", "GRPOLoss, DAPO"),
            partial(_torchrl, {name: replace(way, largest_log_ratio=inf) for name, way in ways.items()}),
            f"{NO_BOUND}; clip bounds are float32",
            partial(_torchrl, ways),
            tolerance=FLOAT32,
        ),
        over_batches(
            ("cispo", "torchrl", "CISPOLoss"),
            _torchrl_cispo,
            "the clipped ratio itself is the loss: clipped tokens have no gradient, ours go on learning",
            partial(_torchrl, {"cispo_token_mean": Way(ours.CISPO)}),
            tolerance=FLOAT32,
        ),
    ]


def _unbounded(name: str, function: str, ways: dict[str, Way]) -> Row:
    unbounded = {key: replace(way, largest_log_ratio=inf) for key, way in ways.items()}
    return over_batches((name, "trl", function), partial(_trl, unbounded), NO_BOUND, partial(_trl, ways))


def _verl(loss: str, way: Way, batch: str) -> Iterator[Pair]:
    for aggregate in EXACT_AGGREGATES:
        theirs = VERL["losses"][loss][AGGREGATES[aggregate]][batch]
        yield from of_loss(loss_and_gradient(replace(way, aggregate=aggregate), batch), theirs)


def _verl_sequences(extra_length: float, batch: str) -> Iterator[Pair]:
    for name, loss in VERL_LOSSES.items():
        way = Way(loss, Aggregate.SEQUENCE, extra_length=extra_length)
        yield from of_loss(loss_and_gradient(way, batch), VERL["losses"][name]["seq-mean-token-mean"][batch])


def _trl(ways: dict[str, Way], batch: str) -> Iterator[Pair]:
    for name, way in ways.items():
        yield from of_loss(loss_and_gradient(way, batch), TRL["losses"][name][batch])


def _torchrl(ways: dict[str, Way], batch: str) -> Iterator[Pair]:
    for name, way in ways.items():
        yield from of_loss(loss_and_gradient(way, batch), TORCHRL["losses"][name][batch])


def _torchrl_cispo(batch: str) -> Iterator[Pair]:
    """Our gradients add up to torchrl's loss, and are its gradients where the ratio is within the bounds."""
    theirs = TORCHRL["losses"]["cispo_token_mean"][batch]
    _, gradient = loss_and_gradient(Way(ours.CISPO), batch)
    yield sum(map(sum, gradient)), theirs["loss"]
    data = ours.tokens(batch)
    inside = data.ragged((data.batch.ratio(Level.TOKEN) - 1).detach())
    followed = [
        [g if -ours.LOW < r < ours.HIGH else 0.0 for g, r in zip(row, ratios, strict=True)]
        for row, ratios in zip(gradient, inside, strict=True)
    ]
    yield from of_rows(followed, theirs["gradient"])
