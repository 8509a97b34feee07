"""verl's settings of its vLLM engines: arguments of the servers that a run starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from loopwright.config.migration.values import EMPTY, Lost, Moved, Old, Outcome, Rule, Unneeded

ROLLOUT = "actor_rollout_ref.rollout"
MEMORY = "remove it; learner.micro_batch_tokens and rollout.engine.max_batch bound memory"
COMPUTED = "remove it: how the model is computed is not a setting"
ONE_DEVICE = "an engine of ours computes on one device; vLLM takes rollout.engine.args: [--tensor-parallel-size, N]"

Argument = Callable[[Any], str | None]
"""The argument for a value. None: vLLM does that without it."""


def _is(name: str, *, unless: Any = None) -> Argument:
    return lambda value: None if value == unless else f"{name}={value}"


def _switch(on: str | None, off: str | None) -> Argument:
    return lambda value: on if value else off


def _load_format(value: Any) -> str | None:
    """verl starts engines with made-up weights, because it sends them others. Servers here load model.path."""
    return None if value in ("auto", "dummy") else f"--load-format={value}"


ARGUMENTS: dict[str, tuple[Argument, str]] = {
    f"{ROLLOUT}.tensor_model_parallel_size": (_is("--tensor-parallel-size", unless=1), ONE_DEVICE),
    f"{ROLLOUT}.gpu_memory_utilization": (_is("--gpu-memory-utilization"), MEMORY),
    f"{ROLLOUT}.max_num_batched_tokens": (_is("--max-num-batched-tokens"), MEMORY),
    f"{ROLLOUT}.enforce_eager": (_switch("--enforce-eager", None), COMPUTED),
    f"{ROLLOUT}.enable_chunked_prefill": (_switch(None, "--no-enable-chunked-prefill"), COMPUTED),
    f"{ROLLOUT}.load_format": (_load_format, COMPUTED),
}
"""Each with its argument, and with what to do for other engines."""


def _argument(name: str) -> Rule:
    """All arguments are one setting, so each of them gives the whole list."""
    made, remedy = ARGUMENTS[name]

    def rule(value: Any, old: Old) -> Outcome:
        if value is None:
            return EMPTY
        if made(value) is None:
            return Unneeded("it is what happens here anyway")
        if old.get(f"{ROLLOUT}.name") != "vllm":
            return Lost(f"is {value!r}, which has no equivalent", remedy)
        given = ((each, old.get(key)) for key, (each, _) in ARGUMENTS.items())
        found = [each(value) for each, value in given if value is not None]
        return (Moved("rollout.engine.args", [one for one in found if one is not None]),)

    return rule


VLLM_ARGS: dict[str, Rule] = {name: _argument(name) for name in ARGUMENTS}
