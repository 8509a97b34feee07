"""XTuner's names for the same things, as its trainer's config holds them."""

from __future__ import annotations

from loopwright.config.migration import rules
from loopwright.config.migration.values import Rule, one_of, only, to

RULES: dict[str, Rule] = {
    "load_from": to("model.path"),
    "work_dir": to("trainer.run_dir"),
    "total_epochs": rules.epochs,
    "hf_interval": rules.save_interval,
    "rollout_config.model_path": to("model.path"),
    "rollout_config.rollout_max_batch_size": to("rollout.engine.max_batch"),
    "dataflow_config.prompt_repeat_k": to("rollout.samples_per_task"),
    "dataflow_config.global_batch_size": to("trainer.groups_per_step"),
    "dataflow_config.max_concurrent": to("rollout.concurrency"),
    "dataflow_config.sample_params.max_tokens": to("rollout.max_new_tokens"),
    "dataflow_config.sample_params.temperature": to("rollout.temperature"),
    "dataflow_config.sample_params.top_k": to("rollout.top_k"),
    "dataflow_config.sample_params.top_p": to("rollout.top_p"),
    "dataflow_config.enable_partial_rollout": only(0, False, remedy="remove it: a step waits for its rollouts"),
    "evaluator_config.evaluate_step": to("eval.every"),
    "train_worker_config.load_from": to("model.path"),
    "train_worker_config.optimizer_steps": to("learner.mini_batches"),
    "train_worker_config.pack_max_length": to("learner.micro_batch_tokens"),
    "train_worker_config.optim_cfg.lr": to("learner.lr"),
    "train_worker_config.optim_cfg.weight_decay": to("learner.weight_decay"),
    "train_worker_config.optim_cfg.betas": to("learner.betas"),
    "train_worker_config.optim_cfg.eps": to("learner.eps"),
    "train_worker_config.optim_cfg.max_grad_norm": to("learner.max_grad_norm"),
    "train_worker_config.lr_cfg.lr_type": one_of(
        "learner.schedule", {kind: kind for kind in ("constant", "linear", "cosine")}, "choose a learner.schedule"
    ),
    "train_worker_config.loss_cfg.policy_loss_cfg.cliprange_low": to("learner.loss.clip_low"),
    "train_worker_config.loss_cfg.policy_loss_cfg.cliprange_high": to("learner.loss.clip_high"),
    "train_worker_config.loss_cfg.policy_loss_cfg.loss_type": one_of(
        "learner.loss.kind", rules.LOSSES, "choose a learner.loss.kind, or write your own loss"
    ),
    **rules.kl_term("train_worker_config.loss_cfg"),
}

REMEDIES = {
    **dict.fromkeys(
        ("resources", "rollout_config", "train_worker_config"),
        "remove it: num_actors of each section, rollout.nodes and cluster say what runs where",
    ),
    "judger_config": "declare a judger under judgers, and name it in agent",
    "replay_buffer_config": "name the files under data",
    "evaluator_config": "write an eval section: data and agent",
    "dataflow_config": "remove it; rollout and trainer say how much is sampled",
    "tokenizer_path": "save the tokenizer in the model's folder",
}
