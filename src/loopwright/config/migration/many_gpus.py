"""verl's keys of FSDP and GPUs: ranks of the learner, and what is always so here."""

from __future__ import annotations

from typing import Any

from loopwright.config.migration.values import EMPTY, Lost, Moved, Old, Outcome, Rule, Unneeded, one_of, only, to, whole

ACTOR, ROLLOUT, MODEL = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.model"
FSDP = f"{ACTOR}.fsdp_config"
NODES = "trainer.nnodes"

OFFLOAD = "remove it: nothing is moved off the device; learner.ranks and learner.lora need less memory on each"
ALL_RANKS = "remove it: every weight is sharded over all learner.ranks"
PARALLEL = "remove it: a chain is computed by one rank; learner.checkpoint_activations takes longer ones"
MIXED = f"{FSDP}.mixed_precision"
ON_NODES = "set learner.placement: ray, and learner.ranks to the GPUs of all nodes; rollout.nodes places engines"
SET_DTYPE = "set model.dtype: bfloat16 or float32"
DTYPES = {"bfloat16": "bfloat16", "bf16": "bfloat16", "float32": "float32", "fp32": "float32"}
FLOAT32 = ("fp32", "float32")


def ranks(value: Any, old: Old) -> Outcome:
    """verl trains and samples on the same GPUs, and all of them train."""
    if value is None:
        return EMPTY
    if not whole(value) or value < 1:
        return Lost(f"is {value!r}, which is no number of GPUs", "set learner.ranks: one for each GPU that trains")
    if value == 1:
        return Unneeded("one process trains by default")
    # Ranks need their engine in a process of its own.
    engine = () if old.get(f"{ROLLOUT}.name") == "vllm" else (Moved("rollout.engine.num_engines", 1),)
    return (Moved("learner.ranks", value), *engine)


def sharding(value: Any, old: Old) -> Outcome:
    """-1 means all of them."""
    gpus = old.get("trainer.n_gpus_per_node")
    if value in (None, -1) or value == gpus:
        return Unneeded("every weight is sharded over all ranks")
    return Lost(f"is {value!r}, which has no equivalent", ALL_RANKS)


MANY_GPUS: dict[str, Rule] = {
    "trainer.n_gpus_per_node": ranks,
    NODES: only(1, remedy=ON_NODES),
    f"{ACTOR}.strategy": only("fsdp", "fsdp2", remedy="remove it: ranks use PyTorch's FSDP2"),
    f"{ACTOR}.ulysses_sequence_parallel_size": only(1, remedy=PARALLEL),
    f"{ACTOR}.use_remove_padding": only(True, False, remedy="remove it: rows are packed, without padding"),
    f"{FSDP}.strategy": only("fsdp", "fsdp2", remedy="remove it: ranks use PyTorch's FSDP2"),
    f"{FSDP}.param_offload": only(False, remedy=OFFLOAD),
    f"{FSDP}.optimizer_offload": only(False, remedy=OFFLOAD),
    f"{FSDP}.offload_policy": only(False, remedy=OFFLOAD),
    f"{FSDP}.fsdp_size": sharding,
    f"{FSDP}.reshard_after_forward": only(True, False, remedy="remove it: learner.ranks decides"),
    f"{FSDP}.forward_prefetch": only(False, True, remedy="remove it: learner.ranks decides"),
    f"{FSDP}.model_dtype": only(*FLOAT32, remedy="remove it: the optimiser's weights are float32"),
    f"{FSDP}.dtype": one_of("model.dtype", DTYPES, SET_DTYPE),
    f"{MIXED}.param_dtype": one_of("model.dtype", DTYPES, SET_DTYPE),
    f"{MIXED}.reduce_dtype": only(*FLOAT32, remedy="remove it: gradients are added up in float32"),
    f"{MIXED}.buffer_dtype": only(*FLOAT32, remedy="remove it: buffers are as the model makes them"),
    f"{FSDP}.use_orig_params": only(True, False, remedy="remove it: ranks use PyTorch's FSDP2"),
    "trainer.device": one_of("model.device", {"cuda": "cuda", "cpu": "cpu"}, "set model.device: auto, cpu or cuda"),
    f"{FSDP}.full_determinism": to("trainer.deterministic"),
    f"{FSDP}.ulysses_sequence_parallel_size": only(1, remedy=PARALLEL),
    f"{MODEL}.use_remove_padding": only(True, False, remedy="remove it: rows are packed, without padding"),
    f"{MODEL}.enable_gradient_checkpointing": to("learner.checkpoint_activations"),
    f"{MODEL}.enable_activation_offload": only(
        False, remedy="set learner.checkpoint_activations: nothing is moved off the device"
    ),
}
