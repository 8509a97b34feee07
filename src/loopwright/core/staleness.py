"""How old a token may be when it is trained. Version v is the weights after train step v."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from loopwright.types import Group, Rollout, TokenChain


def staleness(version: int, step: int) -> int:
    """How many train steps lie between the weights that sampled a token and the step that trains on it. 0 is
    on-policy."""
    return step - version - 1


def horizon(max_staleness: int, sync_interval: int = 1) -> int:
    """Version v may feed train steps v+1 .. v+horizon."""
    return (max_staleness + 1) * sync_interval


def is_too_old(version: int, step: int, horizon: int | None) -> bool:
    """Whether a token of `version` is too old for train step `step`. Without a horizon no token is too old."""
    return horizon is not None and version + horizon < step


def without_stale(group: Group, step: int, horizon: int | None) -> tuple[Group, int]:
    """The group with those tokens masked that are too old for `step`, and how many tokens these are."""
    if horizon is None or group.oldest_version is None or not is_too_old(group.oldest_version, step, horizon):
        return group, 0
    rollouts = tuple(_masked(rollout, step - horizon) for rollout in group.rollouts)
    before, after = (sum(_trained(one) for one in members) for members in (group.rollouts, rollouts))
    return replace(group, rollouts=rollouts), before - after


def _masked(rollout: Rollout, oldest: int) -> Rollout:
    episode = rollout.episode
    if episode is None:
        return rollout
    chains = tuple(_masked_chain(chain, oldest) for chain in episode.chains)
    return replace(rollout, episode=replace(episode, chains=chains))


def _masked_chain(chain: TokenChain, oldest: int) -> TokenChain:
    kept = chain.mask & (chain.versions >= oldest)
    logprobs, versions = np.where(kept, chain.logprobs, np.float32(0.0)), np.where(kept, chain.versions, np.int32(-1))
    return replace(chain, mask=kept, logprobs=logprobs, versions=versions)


def _trained(rollout: Rollout) -> int:
    return rollout.episode.trained_tokens if rollout.episode else 0
