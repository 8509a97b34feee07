"""The table of verl's keys (its version 0.9) that mean something here, each with what becomes of its value."""

from __future__ import annotations

from loopwright.config.migration import rules
from loopwright.config.migration.adapters import ADAPTERS
from loopwright.config.migration.many_gpus import MANY_GPUS
from loopwright.config.migration.values import Rule, one_of, only, to
from loopwright.config.migration.vllm_args import VLLM_ARGS

SCHEDULE = one_of("learner.schedule", {"constant": "constant", "cosine": "cosine"}, "choose a learner.schedule")
NOT_TWICE = "a batch is trained on once; raise learner.mini_batches for more optimiser steps"
NODES = "set rollout.nodes and rollout.engine.num_actors, and trainer.kind to disaggregated"
NO_CODE = "remove it: code from a model's folder is never run"

ACTOR: dict[str, Rule] = {
    "actor_rollout_ref.model.path": to("model.path"),
    **ADAPTERS,
    "actor_rollout_ref.model.trust_remote_code": only(False, remedy=NO_CODE),
    "actor_rollout_ref.actor.optim.lr": to("learner.lr"),
    "actor_rollout_ref.actor.optim.weight_decay": to("learner.weight_decay"),
    "actor_rollout_ref.actor.optim.betas": to("learner.betas"),
    "actor_rollout_ref.actor.optim.clip_grad": to("learner.max_grad_norm"),
    "actor_rollout_ref.actor.optim.lr_warmup_steps": rules.warmup_steps,
    "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio": rules.warmup_ratio,
    "actor_rollout_ref.actor.optim.lr_scheduler_type": SCHEDULE,
    "actor_rollout_ref.actor.optim.warmup_style": SCHEDULE,
    "actor_rollout_ref.actor.optim.min_lr_ratio": only(0, remedy="remove it: schedules end at 0"),
    "actor_rollout_ref.actor.optim.num_cycles": only(0.5, remedy="remove it: the cosine schedule is half a wave"),
    "actor_rollout_ref.actor.optim.total_training_steps": only(-1, remedy="set trainer.steps"),
    "actor_rollout_ref.actor.optim.optimizer": only("AdamW", remedy="remove it: AdamW is the optimiser"),
    "actor_rollout_ref.actor.optim.optimizer_impl": only("torch.optim", remedy="remove it: AdamW is the optimiser"),
    "actor_rollout_ref.actor.optim.zero_indexed_step": only(True, False, remedy="remove it"),
    "actor_rollout_ref.actor.optim.override_optimizer_config": only({}, remedy="set learner.eps and learner.betas"),
    "actor_rollout_ref.actor.grad_clip": to("learner.max_grad_norm"),
    "actor_rollout_ref.actor.ppo_mini_batch_size": rules.mini_batch_size,
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": rules.micro_batch_tokens,
    "actor_rollout_ref.actor.use_dynamic_bsz": only(True, False, remedy="remove it"),
    "actor_rollout_ref.actor.ppo_epochs": only(1, remedy=NOT_TWICE),
    "actor_rollout_ref.actor.shuffle": only(False, remedy="remove it: the order within a batch is fixed"),
    "actor_rollout_ref.actor.clip_ratio": rules.clip_ratio,
    "actor_rollout_ref.actor.clip_ratio_low": to("learner.loss.clip_low"),
    "actor_rollout_ref.actor.clip_ratio_high": to("learner.loss.clip_high"),
    "actor_rollout_ref.actor.clip_ratio_c": rules.dual_clip,
    "actor_rollout_ref.actor.policy_loss.loss_mode": one_of(
        "learner.loss.kind", rules.LOSSES, "choose a learner.loss.kind, or write your own loss"
    ),
    "actor_rollout_ref.actor.loss_agg_mode": one_of(
        "learner.loss.aggregate", rules.AGGREGATES, "set learner.loss.aggregate: token, sequence or constant"
    ),
    "actor_rollout_ref.actor.loss_scale_factor": to("learner.loss.constant_length"),
    "actor_rollout_ref.actor.entropy_coeff": only(0, remedy="write your own loss: there is no entropy bonus"),
    "actor_rollout_ref.actor.calculate_entropy": only(True, False, remedy="remove it"),
    **rules.kl_term("actor_rollout_ref.actor"),
}

ROLLOUT: dict[str, Rule] = {
    "actor_rollout_ref.rollout.n": to("rollout.samples_per_task"),
    "actor_rollout_ref.rollout.temperature": to("rollout.temperature"),
    "actor_rollout_ref.rollout.top_k": to("rollout.top_k", by=rules.off_at_minus_one),
    "actor_rollout_ref.rollout.top_p": to("rollout.top_p"),
    "actor_rollout_ref.rollout.response_length": to("rollout.max_new_tokens"),
    "actor_rollout_ref.rollout.prompt_length": rules.context,
    "actor_rollout_ref.rollout.max_model_len": to("model.max_context"),
    "actor_rollout_ref.rollout.max_num_seqs": to("rollout.engine.max_batch"),
    "actor_rollout_ref.rollout.name": to("rollout.engine.kind", by=lambda name: "torch" if name == "hf" else name),
    "actor_rollout_ref.rollout.agent.num_workers": to("agent.num_actors"),
    "actor_rollout_ref.rollout.nnodes": only(0, remedy=NODES),
    "actor_rollout_ref.rollout.seed": to("trainer.seed"),
    "actor_rollout_ref.rollout.full_determinism": to("trainer.deterministic"),
    "actor_rollout_ref.rollout.do_sample": only(True, remedy="remove it: training always samples"),
    "actor_rollout_ref.rollout.ignore_eos": only(False, remedy="remove it: an answer ends where the model ends it"),
    "actor_rollout_ref.rollout.calculate_log_probs": only(True, False, remedy="remove it"),
    "actor_rollout_ref.rollout.over_sample_rate": only(0, remedy="remove it: a step samples what it needs"),
    "actor_rollout_ref.rollout.val_kwargs.n": to("eval.samples"),
    "actor_rollout_ref.rollout.val_kwargs.do_sample": rules.sampled_evaluation,
    "actor_rollout_ref.rollout.val_kwargs.temperature": rules.evaluation_temperature,
    "actor_rollout_ref.rollout.val_kwargs.top_k": only(-1, 0, remedy="set eval.sampling.top_k"),
    "actor_rollout_ref.rollout.val_kwargs.top_p": only(1, remedy="set eval.sampling.top_p"),
    "actor_rollout_ref.rollout.multi_turn.enable": only(False, remedy="write an agent loop: agent.kind python"),
}

REST: dict[str, Rule] = {
    "ray_kwargs.ray_init.num_cpus": to("cluster.num_cpus"),
    "algorithm.adv_estimator": rules.advantage,
    "algorithm.norm_adv_by_std_in_grpo": rules.divided_by_std,
    "algorithm.use_kl_in_reward": only(False, remedy="put the KL term into the loss: learner.kl"),
    "algorithm.gamma": only(1, remedy="remove it: a rollout has one reward, at its end"),
    "algorithm.lam": only(1, remedy="remove it: a rollout has one reward, at its end"),
    "algorithm.use_pf_ppo": only(False, remedy="write your own advantage"),
    "algorithm.rollout_correction.rollout_is": rules.importance,
    "algorithm.rollout_correction.rollout_is_threshold": rules.importance_cap,
    "algorithm.rollout_correction.rollout_rs": only(remedy="set learner.importance.kind: mask"),
    "algorithm.rollout_correction.rollout_is_batch_normalize": only(False, remedy="remove it"),
    "algorithm.rollout_correction.bypass_mode": only(False, remedy="remove it: the learner computes old logprobs"),
    "algorithm.filter_groups.enable": rules.group_filter,
    "data.seed": to("trainer.seed"),
    "data.train_files": rules.files(""),
    "data.val_files": rules.files("eval."),
    "data.prompt_key": rules.prompt_column,
    "data.train_batch_size": to("trainer.groups_per_step"),
    "data.max_response_length": to("rollout.max_new_tokens"),
    "data.max_prompt_length": rules.context,
    "data.reward_fn_key": only("data_source", remedy="name it as source_key of a composed judger"),
    "data.train_max_samples": only(-1, remedy="cut the file"),
    "data.val_max_samples": only(-1, remedy="cut the file"),
    "data.truncation": only("error", remedy="remove it: prompts are never cut"),
    "data.validation_shuffle": only(False, remedy="remove it: evaluation runs every task"),
    "data.trust_remote_code": only(False, remedy=NO_CODE),
    "trainer.total_training_steps": to("trainer.steps"),
    "trainer.total_epochs": rules.epochs,
    "trainer.save_freq": rules.save_interval,
    "trainer.test_freq": rules.evaluation_interval,
    "trainer.default_local_dir": to("trainer.run_dir"),
    "trainer.max_actor_ckpt_to_keep": to("trainer.keep_checkpoints"),
    "trainer.logger": rules.trackers,
    "trainer.val_before_train": only(True, remedy="remove it: evaluation starts before training"),
    "trainer.val_only": only(False, remedy="use `loopwright eval`"),
    "trainer.resume_mode": only("auto", remedy="remove it: the same command resumes, and --fresh starts over"),
    "trainer.critic_warmup": only(0, remedy="remove it: there is no critic"),
    "critic.enable": only(False, remedy="remove it: advantages come from groups, without a critic"),
}

RULES = {**ACTOR, **ROLLOUT, **MANY_GPUS, **VLLM_ARGS, **REST}
