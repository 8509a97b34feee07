"""The reference: what a reader of the papers would write without packing. It shares no code with the learner.

Every chain is a padded row of its own, attention is transformers' eager one, and the loss is spelled out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from made_groups import CAP, CLIP, LENGTH
from transformers import AutoModelForCausalLM

from loopwright.types import Aggregate, Group, Rollout, TokenChain


@dataclass(frozen=True)
class Row:
    """A chain with what its rollout decides about it."""

    chain: TokenChain
    advantage: float
    weight: float
    """Of each sampled token."""


def eager_model(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()


def chains_of(rollout: Rollout) -> tuple[TokenChain, ...]:
    assert rollout.episode is not None
    return rollout.episode.chains


def rows_of(groups: Sequence[Group], aggregate: Aggregate) -> list[Row]:
    """All chains, also those without an advantage."""
    rollouts = []
    for group in groups:
        rewards = np.array([rollout.score for rollout in group.rollouts], dtype=np.float64)
        std = rewards.std(ddof=1) if len(rewards) > 1 else 0.0
        rollouts += [(r, (r.score - rewards.mean()) / (std + 1e-6)) for r in group.rollouts]
    counts = [sum(chain.sampled for chain in chains_of(r)) for r, _ in rollouts]
    rows = []
    for (rollout, advantage), count in zip(rollouts, counts, strict=True):
        weight = {
            Aggregate.SEQUENCE: 1 / (count * len(rollouts)),
            Aggregate.TOKEN: 1 / sum(counts),
            Aggregate.CONSTANT: 1 / (LENGTH * len(rollouts)),
        }[aggregate]
        rows += [Row(chain, advantage, weight) for chain in chains_of(rollout)]
    return rows


def logprobs_of(model: Any, chains: Sequence[TokenChain], temperature: float) -> list[torch.Tensor]:
    """Logprobs of each chain's sampled tokens, from one padded batch."""
    longest = max(len(chain) for chain in chains)
    ids = torch.zeros(len(chains), longest, dtype=torch.long)
    attention = torch.zeros(len(chains), longest, dtype=torch.long)
    for row, chain in enumerate(chains):
        ids[row, : len(chain)] = torch.tensor(chain.ids)
        attention[row, : len(chain)] = 1
    logits = model(input_ids=ids, attention_mask=attention, use_cache=False).logits
    tables = torch.log_softmax(logits / temperature, dim=-1)
    found = []
    for row, chain in enumerate(chains):
        at = torch.tensor(chain.mask.nonzero()[0])
        found.append(tables[row, at - 1, ids[row, at]])
    return found


def loss_of(
    model: Any, rows: Sequence[Row], temperature: float, old: Sequence[torch.Tensor] | None = None
) -> torch.Tensor:
    """The clipped, importance-weighted loss; without `old`, the old logprobs are the current ones."""
    total = torch.zeros(())
    current = logprobs_of(model, [row.chain for row in rows], temperature)
    for number, (row, now) in enumerate(zip(rows, current, strict=True)):
        before = now.detach() if old is None else old[number]
        ratio = torch.exp(now - before)
        bounded = torch.clip(ratio, 1 - CLIP["clip_low"], 1 + CLIP["clip_high"])
        gain = torch.min(ratio * row.advantage, bounded * row.advantage)
        sampled = torch.tensor(row.chain.logprobs[row.chain.mask])
        importance = torch.clip(torch.exp(before - sampled), max=CAP)
        total = total - row.weight * (importance * gain).sum()
    return total


def gradients(model: Any, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    names, parameters = zip(*model.named_parameters(), strict=True)
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    return {name: torch.zeros_like(p) if g is None else g for name, p, g in zip(names, parameters, found, strict=True)}


def difference(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> float:
    """The norm of the difference over the norm, over all parameters together."""
    apart = sum(float((ours[name].double() - g.double()).square().sum()) for name, g in theirs.items())
    size = sum(float(g.double().square().sum()) for g in theirs.values())
    return (apart / size) ** 0.5 if size else float(apart > 0)
