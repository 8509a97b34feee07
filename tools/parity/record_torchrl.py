"""Record what torchrl's own losses and advantages return for the inputs. Run it in torchrl's environment.

The losses ask an actor for a distribution; this one answers with the given logprobs, so all that follows is torchrl's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDict
from torchrl.objectives.llm import DAPO, CISPOLoss, GRPOLoss, MCAdvantage

from tools.parity.recording import INPUTS, SETTINGS, Padded, differentiated, padded, save

SYMMETRIC = SETTINGS["clip_low"]
HIGHER = (SETTINGS["clip_low"], SETTINGS["clip_high"])
LOSSES = {
    "grpo_token_mean": (GRPOLoss, SYMMETRIC, "token_mean"),
    "grpo_prompt_mean": (GRPOLoss, SYMMETRIC, "prompt_mean"),
    "dapo_token_mean": (DAPO, HIGHER, "token_mean"),
    "cispo_token_mean": (CISPOLoss, HIGHER, "token_mean"),
}


@dataclass(frozen=True)
class GivenLogprobs:
    data: Padded

    @property
    def mask(self) -> torch.Tensor:
        return self.data.mask.bool()

    def log_prob(self, action: torch.Tensor) -> torch.Tensor:
        return self.data.logprobs


class Actor(torch.nn.Module):
    """What a loss needs of a policy: a distribution."""

    in_keys = ()

    def __init__(self, data: Padded) -> None:
        super().__init__()
        self.data = data

    def get_dist(self, tensordict: Any, **_: Any) -> GivenLogprobs:
        return GivenLogprobs(self.data)


def main() -> None:
    losses = {name: {batch: _loss(name, batch, "objective") for batch in INPUTS["tokens"]} for name in LOSSES}
    save(
        "torchrl",
        advantages={kind: [_advantages(g["rewards"]) for g in groups] for kind, groups in INPUTS["groups"].items()},
        losses=losses,
        kl={"k3_mean": {batch: _loss("grpo_token_mean", batch, "kl_to_ref") for batch in INPUTS["tokens"]}},
    )


def _loss(name: str, batch: str, term: str) -> dict[str, Any]:
    kind, clip, aggregation = LOSSES[name]
    data = padded(batch)
    loss = kind(
        Actor(data),
        clip_epsilon=clip,
        aggregation=aggregation,
        entropy_bonus=False,
        kl_to_ref_coeff=SETTINGS["kl_coefficient"] if term == "kl_to_ref" else None,
    )
    asked = {
        "advantage": data.advantages[:, None, None].expand(*data.mask.shape, 1),
        ("tokens", "full"): torch.zeros_like(data.mask, dtype=torch.long),
        ("log_probs", "full"): data.old,
        ("next", "ref_log_probs", "full"): data.reference,
    }
    found = loss(TensorDict(asked, batch_size=[len(data.lengths)]))
    return differentiated(getattr(found, f"loss_{term}").squeeze(), data)


def _advantages(rewards: list[float]) -> list[float] | None:
    """A group of one is refused."""
    if len(rewards) < 2:
        return None
    transform = MCAdvantage(len(rewards), prompt_key="group", trajectory_return="sum")
    found = None
    for reward in rewards:
        step = {
            "group": torch.zeros(1, dtype=torch.long),
            ("next", "reward"): torch.tensor([[reward]], dtype=torch.float64),
            ("next", "done"): torch.ones(1, 1, dtype=torch.bool),
        }
        found = transform.inv(TensorDict(step, batch_size=[1]))
    return [] if found is None else found["advantage"].flatten().tolist()


if __name__ == "__main__":
    main()
