"""Tokens that a constraint left no choice about, or whose logprobs are not those of the whole vocabulary.

They stay in their chains as sampled tokens with logprob and version. They do not train: they are masked when their
group is taken, as tokens that are too old are.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from loopwright.types import Group, Rollout, TokenChain


def without_constrained(group: Group) -> tuple[Group, int]:
    """The group with constrained tokens masked, and how many of them would have been trained otherwise."""
    if not any(chain.constrained for rollout in group.rollouts for chain in _chains(rollout)):
        return group, 0
    rollouts = tuple(_masked(rollout) for rollout in group.rollouts)
    before, after = (sum(_trained(rollout) for rollout in members) for members in (group.rollouts, rollouts))
    return replace(group, rollouts=rollouts), before - after


def constrained_numbers(groups: Iterable[Group], constrained: int, too_old: int) -> dict[str, float]:
    """The share of constrained tokens among the sampled tokens of a batch, from which `constrained` tokens and those
    that are `too_old` were masked. A batch without tokens has no such metric."""
    left = sum(_trained(rollout) for group in groups for rollout in group.rollouts)
    total = left + constrained + too_old
    return {"response/constrained": constrained / total} if total else {}


def _chains(rollout: Rollout) -> tuple[TokenChain, ...]:
    return rollout.episode.chains if rollout.episode else ()


def _masked(rollout: Rollout) -> Rollout:
    if rollout.episode is None:
        return rollout
    chains = tuple(_masked_chain(chain) if chain.constrained else chain for chain in rollout.episode.chains)
    return replace(rollout, episode=replace(rollout.episode, chains=chains))


def _masked_chain(chain: TokenChain) -> TokenChain:
    kept = chain.mask & ~chain.constrained_mask
    logprobs, versions = np.where(kept, chain.logprobs, np.float32(0.0)), np.where(kept, chain.versions, np.int32(-1))
    return replace(chain, mask=kept, logprobs=logprobs, versions=versions, constrained=())


def _trained(rollout: Rollout) -> int:
    return rollout.episode.trained_tokens if rollout.episode else 0
