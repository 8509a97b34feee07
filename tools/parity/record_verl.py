"""Record what verl's own functions return for the inputs, in float64. Run it in verl's environment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo import core_algos, rollout_corr_helper
from verl.workers.config import ActorConfig

from tools.parity.recording import INPUTS, SETTINGS, Padded, differentiated, padded, ragged, rows, save

HUGE = 1e30
"""Dual clip cannot be switched off in verl; this bound is never reached."""

ESTIMATORS: dict[str, Callable[..., Any]] = {
    "grpo": core_algos.compute_grpo_outcome_advantage,
    "grpo_no_std": partial(core_algos.compute_grpo_outcome_advantage, norm_adv_by_std_in_grpo=False),
    "rloo": core_algos.compute_rloo_outcome_advantage,
    "opo": core_algos.compute_opo_outcome_advantage,
    "reinforce_plus_plus": core_algos.compute_reinforce_plus_plus_outcome_advantage,
    "reinforce_plus_plus_baseline": core_algos.compute_reinforce_plus_plus_baseline_outcome_advantage,
    "grpo_passk": core_algos.compute_grpo_passk_outcome_advantage,
}
LOSSES: dict[str, tuple[Callable[..., Any], float]] = {
    "vanilla": (core_algos.compute_policy_loss_vanilla, HUGE),
    "vanilla_dual_clip": (core_algos.compute_policy_loss_vanilla, SETTINGS["dual_clip"]),
    "gspo": (core_algos.compute_policy_loss_gspo, HUGE),
    "cispo": (core_algos.compute_policy_loss_cispo, HUGE),
    "gpg": (core_algos.compute_policy_loss_gpg, HUGE),
}
AGGREGATES = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm")
THRESHOLDS = {"truncate": SETTINGS["cap"], "mask": f"{SETTINGS['floor']}_{SETTINGS['cap']}"}


def main() -> None:
    save(
        "verl",
        advantages={
            estimator: {kind: _advantages(estimator, kind) for kind in INPUTS["groups"] if _accepts(estimator, kind)}
            for estimator in ESTIMATORS
        },
        losses={loss: {mode: dict(_losses(loss, mode)) for mode in AGGREGATES} for loss in LOSSES},
        kl={kind: {batch: _kl(kind, padded(batch)) for batch in INPUTS["tokens"]} for kind in ("k1", "k2", "k3")},
        importance={
            f"{level}_{kind}": {batch: _importance(level, threshold, padded(batch)) for batch in INPUTS["tokens"]}
            for level in ("token", "sequence")
            for kind, threshold in THRESHOLDS.items()
        },
    )


def _accepts(estimator: str, kind: str) -> bool:
    """grpo_passk raises for a group of one."""
    return estimator != "grpo_passk" or kind == "plain"


def _advantages(estimator: str, kind: str) -> list[list[float]]:
    groups = INPUTS["groups"][kind]
    lengths = [n for group in groups for n in group["lengths"]]
    mask = rows([[1.0] * n for n in lengths])
    rewards = torch.zeros_like(mask)
    for row, reward in enumerate(r for group in groups for r in group["rewards"]):
        rewards[row, lengths[row] - 1] = reward
    index = np.array([at for at, group in enumerate(groups) for _ in group["rewards"]])
    config = AlgoConfig(gamma=1.0, norm_adv_by_std_in_grpo=False)
    values, _ = ESTIMATORS[estimator](token_level_rewards=rewards, response_mask=mask, index=index, config=config)
    first = iter(values[:, 0].tolist())
    return [[next(first) for _ in group["rewards"]] for group in groups]


def _losses(loss: str, mode: str) -> Iterator[tuple[str, dict[str, Any]]]:
    function, dual_clip = LOSSES[loss]
    config = ActorConfig(
        strategy="fsdp",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        clip_ratio_low=SETTINGS["clip_low"],
        clip_ratio_high=SETTINGS["clip_high"],
        clip_ratio_c=dual_clip,
        global_batch_info={"loss_scale_factor": SETTINGS["constant_length"]},
    )
    for batch in INPUTS["tokens"]:
        data = padded(batch)
        advantages = data.advantages.unsqueeze(1).expand_as(data.mask)
        value, _ = function(data.old, data.logprobs, advantages, data.mask, mode, config)
        yield batch, differentiated(value, data)


def _kl(kind: str, data: Padded) -> dict[str, Any]:
    values = core_algos.kl_penalty(data.logprobs, data.reference, kind)
    summed = differentiated((values * data.mask).sum(), data)
    return {"tokens": ragged(values.detach(), data.lengths), "gradient": summed["gradient"]}


def _importance(level: str, threshold: float | str, data: Padded) -> list[list[float]]:
    log_ratio = data.old - data.sampled
    weights, _ = rollout_corr_helper.compute_rollout_correction_weights(log_ratio, data.mask, level, threshold)
    return ragged(weights, data.lengths)


if __name__ == "__main__":
    main()
