"""Our divergences and importance weights beside those of the peers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import exp, inf

from loopwright.learn.losses import MAX_LOG_RATIO
from loopwright.types import Aggregate, ImportanceKind, KlKind, Level
from tools.parity import ours
from tools.parity.ours import RECORDED, Way, loss_and_gradient
from tools.parity.pairs import Pair, of_loss, of_rows
from tools.parity.rows import MODEST, NO_BOUND, Row, over_batches

VERL, TRL, TORCHRL = (RECORDED[peer] for peer in ("verl", "trl", "torchrl"))
VERL_LEAST_WEIGHT = exp(-20)


def term_rows() -> list[Row]:
    return [*_kl_rows(), *_importance_rows()]


def _kl_rows() -> list[Row]:
    simple = {"k1": KlKind.K1, "k2": KlKind.K2}
    return [
        *(
            over_batches((f"kl: {name}", "verl", f"kl_penalty, {name}"), partial(_verl_kl, kind, None))
            for name, kind in simple.items()
        ),
        over_batches(
            ("kl: k3", "verl", "kl_penalty, k3"),
            partial(_verl_kl, KlKind.K3, 10.0),
            "a token's divergence above 10 counts as 10 and has no gradient",
            partial(_verl_kl, KlKind.K3, None),
        ),
        over_batches(
            ("kl: k3", "torchrl", "GRPOLoss, kl_to_ref_coeff"),
            partial(_torchrl_kl, converted=True),
            f"a mean over the padded batch, padding included; {NO_BOUND}",
            partial(_torchrl_kl, converted=False),
        ),
    ]


def _importance_rows() -> list[Row]:
    return [
        row
        for kind in (ImportanceKind.TRUNCATE, ImportanceKind.MASK)
        for level in Level
        for row in _weighed(kind, level)
    ]


def _weighed(kind: ImportanceKind, level: Level) -> Iterator[Row]:
    name = f"importance: {kind}, {level}"
    threshold = "rollout_is_threshold=cap" if kind is ImportanceKind.TRUNCATE else "rollout_is_threshold=floor_cap"
    verl = (name, "verl", f"compute_rollout_correction_weights, {level}, {threshold}")
    if kind is ImportanceKind.MASK:
        yield over_batches(verl, partial(_verl_weights, kind, level, 0.0))
    else:
        yield over_batches(
            verl,
            partial(_verl_weights, kind, level, VERL_LEAST_WEIGHT),
            "log-ratios below -20 count as -20",
            partial(_verl_weights, kind, level, 0.0),
        )
    yield over_batches(
        (name, "trl", f"GRPOTrainer, {level}_{kind}"), partial(_trl_weights, kind, level), batches=MODEST
    )


def _verl_kl(kind: KlKind, bound: float | None, batch: str) -> Iterator[Pair]:
    values, gradient = ours.kl_and_gradient(kind, batch, bound)
    theirs = VERL["kl"][kind.value][batch]
    yield from of_rows(values, theirs["tokens"])
    yield from of_rows(gradient, theirs["gradient"])


def _torchrl_kl(batch: str, *, converted: bool) -> Iterator[Pair]:
    data = ours.tokens(batch)
    cells = len(data.lengths) * max(data.lengths)
    with ours.bounded(inf if converted else MAX_LOG_RATIO):
        values, gradient = ours.kl_and_gradient(KlKind.K3, batch)
    scale = ours.SETTINGS["kl_coefficient"] / (cells if converted else sum(data.lengths))
    mine = scale * sum(map(sum, values)), [[scale * g for g in row] for row in gradient]
    return of_loss(mine, TORCHRL["kl"]["k3_mean"][batch])


def _verl_weights(kind: ImportanceKind, level: Level, least: float, batch: str) -> Iterator[Pair]:
    data = ours.tokens(batch)
    weights, _ = ours.importance(kind, level).weights(data.batch)
    return of_rows(data.ragged(weights.clamp(min=least)), VERL["importance"][f"{level}_{kind}"][batch])


def _trl_weights(kind: ImportanceKind, level: Level, batch: str) -> Iterator[Pair]:
    """The weights, and the loss that they enter."""
    data, importance = ours.tokens(batch), ours.importance(kind, level)
    theirs = TRL["importance"][f"{level}_{kind}"][batch]
    yield from of_rows(data.ragged(importance.weights(data.batch)[0]), theirs["weights"])
    way = Way(ours.PPO_CLIP, Aggregate.SEQUENCE, importance)
    yield from of_loss(loss_and_gradient(way, batch), theirs)
