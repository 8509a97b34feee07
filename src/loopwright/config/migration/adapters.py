"""verl's settings of adapters, which count only with a rank above 0."""

from __future__ import annotations

from typing import Any

from loopwright.config.migration.values import EMPTY, Lost, Moved, Old, Outcome, Rule, Unneeded, only, to, whole

MODEL = "actor_rollout_ref.model"
VERLS_ALPHA = 16
"""What verl takes where a config does not name it."""


def adapters_on(old: Old) -> bool:
    return whole(rank := old.get(f"{MODEL}.lora_rank")) and rank > 0


def adapter_rank(value: Any, old: Old) -> Outcome:
    if not value:
        return Unneeded("without learner.lora all weights are trained")
    if not adapters_on(old):
        return Lost(f"is {value!r}, which is no rank", "set learner.lora.rank")
    is_named = old.get(f"{MODEL}.lora_alpha") is not None
    return (Moved("learner.lora.rank", value), *(() if is_named else (Moved("learner.lora.alpha", VERLS_ALPHA),)))


def of_adapters(rule: Rule) -> Rule:
    """A setting that counts only if adapters are trained."""

    def part(value: Any, old: Old) -> Outcome:
        return rule(value, old) if adapters_on(old) else Unneeded(f"{MODEL}.lora_rank is off")

    return part


def adapter_targets(value: Any, old: Old) -> Outcome:
    names = value if isinstance(value, list) else [value]
    if value == "all-linear" or (isinstance(value, list) and all(isinstance(name, str) for name in names)):
        return (Moved("learner.lora.targets", names),)
    return EMPTY if value is None else Lost(f"is {value!r}", "list the ends of the layers' names: learner.lora.targets")


ADAPTERS: dict[str, Rule] = {
    f"{MODEL}.lora_rank": adapter_rank,
    f"{MODEL}.lora_alpha": of_adapters(to("learner.lora.alpha")),
    f"{MODEL}.target_modules": of_adapters(adapter_targets),
    f"{MODEL}.exclude_modules": of_adapters(only([], remedy="list the layers that do get one: learner.lora.targets")),
}
