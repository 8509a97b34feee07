"""verl's keys, and whole sections, that nothing here corresponds to, by what to do about them."""

from __future__ import annotations

BY_REMEDY = {
    "remove it: num_actors of each section, rollout.nodes and cluster say what runs where": """
        actor_rollout_ref.hybrid_engine actor_rollout_ref.nccl_timeout
        actor_rollout_ref.actor.megatron
        actor_rollout_ref.rollout.mode actor_rollout_ref.rollout.n_gpus_per_node
        actor_rollout_ref.rollout.data_parallel_size
        actor_rollout_ref.rollout.expert_parallel_size actor_rollout_ref.rollout.pipeline_model_parallel_size
        actor_rollout_ref.rollout.checkpoint_engine actor_rollout_ref.rollout.disaggregation
        actor_rollout_ref.rollout.update_weights_bucket_megabytes actor_rollout_ref.rollout.multi_stage_wake_up
        actor_rollout_ref.rollout.layered_summon actor_rollout_ref.rollout.router_config_path
        trainer.balance_batch trainer.use_legacy_worker_impl
        trainer.use_v1 trainer.v1 trainer.esi_redundant_time trainer.ray_wait_register_center_timeout
        trainer.default_hdfs_dir trainer.del_local_ckpt_after_load trainer.checkpoint_callback_class
        ray_kwargs transfer_queue
    """,
    "remove it; learner.micro_batch_tokens and rollout.engine.max_batch bound memory": """
        actor_rollout_ref.actor.ppo_micro_batch_size actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu
        actor_rollout_ref.rollout.free_cache_engine actor_rollout_ref.rollout.log_prob_micro_batch_size
        actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu actor_rollout_ref.rollout.log_prob_use_dynamic_bsz
        actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu
    """,
    "remove it: how the model is computed is not a setting": """
        actor_rollout_ref.actor.use_torch_compile actor_rollout_ref.actor.use_fused_kernels
        actor_rollout_ref.actor.use_prefix_grouper
        actor_rollout_ref.actor.pad_to_length actor_rollout_ref.actor.entropy_from_logits_with_chunking
        actor_rollout_ref.actor.entropy_from_logits_chunk_size actor_rollout_ref.actor.entropy_checkpointing
        actor_rollout_ref.actor.calculate_sum_pi_squared actor_rollout_ref.actor.router_replay
        actor_rollout_ref.actor.qat actor_rollout_ref.actor.freeze_vision_tower
        actor_rollout_ref.model.hf_config_path actor_rollout_ref.model.use_shm actor_rollout_ref.model.external_lib
        actor_rollout_ref.model.override_config
        actor_rollout_ref.model.use_liger actor_rollout_ref.model.tiled_mlp
        actor_rollout_ref.model.use_fused_kernels actor_rollout_ref.model.fused_kernel_options
        actor_rollout_ref.model.mtp
        actor_rollout_ref.rollout.cudagraph_capture_sizes
        actor_rollout_ref.rollout.logprobs_mode actor_rollout_ref.rollout.scheduling_policy
        actor_rollout_ref.rollout.engine_kwargs
        actor_rollout_ref.actor.fsdp_config.use_torch_compile actor_rollout_ref.actor.fsdp_config.forward_only
        actor_rollout_ref.actor.fsdp_config.entropy_from_logits_with_chunking
        actor_rollout_ref.actor.fsdp_config.entropy_from_logits_chunk_size
        actor_rollout_ref.actor.fsdp_config.entropy_checkpointing actor_rollout_ref.actor.fsdp_config.qat
        actor_rollout_ref.actor.fsdp_config.pad_to_length actor_rollout_ref.actor.fsdp_config.pad_to_length_bucket
        actor_rollout_ref.rollout.skip_tokenizer_init actor_rollout_ref.rollout.enable_rollout_routing_replay
        actor_rollout_ref.rollout.moe_load_balance_metrics_interval actor_rollout_ref.rollout.quantization
        actor_rollout_ref.rollout.quantization_config_file actor_rollout_ref.rollout.mtp actor_rollout_ref.rollout.qat
    """,
    "remove it; rollout.engine.cache_tokens says how much is kept, and 0 is off": """
        actor_rollout_ref.rollout.enable_prefix_caching
    """,
    "remove it: the reference model is loaded as the trained one is; learner.kl.reference names another": """
        actor_rollout_ref.ref
    """,
    "remove it: a run has no settings for debugging": """
        actor_rollout_ref.actor.profiler actor_rollout_ref.rollout.profiler actor_rollout_ref.rollout.trace
        actor_rollout_ref.rollout.disable_log_stats actor_rollout_ref.rollout.skip_rollout
        actor_rollout_ref.rollout.skip_dump_dir actor_rollout_ref.rollout.skip actor_rollout_ref.rollout.prometheus
        global_profiler skip
    """,
    "remove it: it belongs to a loss that is not here": """
        actor_rollout_ref.actor.policy_loss actor_rollout_ref.actor.tau_pos actor_rollout_ref.actor.tau_neg
        distillation
    """,
    "remove it: advantages come from groups, without a critic": "critic trainer.max_critic_ckpt_to_keep",
    "write your own advantage": "algorithm.pf_ppo",
    "remove it: the KL term is in the loss, learner.kl": "algorithm.kl_penalty algorithm.kl_ctrl",
    "remove it; learner.importance corrects for differences between sampling and training": """
        algorithm.rollout_correction
    """,
    "remove it; produce.filter looks at the rewards": "algorithm.filter_groups",
    "remove it: rollout.samples_per_task says it": "actor_rollout_ref.actor.rollout_n",
    "remove it: trainer.seed is for everything": """
        actor_rollout_ref.actor.data_loader_seed actor_rollout_ref.actor.fsdp_config.seed
    """,
    "remove it: each layer is sharded over all learner.ranks, and there is nothing to set": """
        actor_rollout_ref.actor.fsdp_config actor_rollout_ref.actor.fsdp_config.wrap_policy
        actor_rollout_ref.actor.fsdp_config.use_no_sync_for_gradient_accumulation
        actor_rollout_ref.actor.fsdp_config.turbo_config
    """,
    "set model.dtype: the optimiser's weights and the sums of gradients are float32": """
        actor_rollout_ref.actor.fsdp_config.mixed_precision
    """,
    "remove it: model.dtype is for training and sampling alike": "actor_rollout_ref.rollout.dtype",
    "remove it: a checkpoint is always complete": "actor_rollout_ref.actor.checkpoint",
    "write an agent loop: agent.kind python": """
        actor_rollout_ref.rollout.multi_turn actor_rollout_ref.rollout.agent
        data.tool_config_path data.function_tool_path
    """,
    "save template and tokenizer in the model's folder": """
        actor_rollout_ref.model.custom_chat_template actor_rollout_ref.model.tokenizer_path data.tokenizer
        data.apply_chat_template_kwargs
    """,
    "set learner.lora: rank, alpha and targets; these are the settings for Megatron": "actor_rollout_ref.model.lora",
    "merge the adapter into the model first": "actor_rollout_ref.model.lora_adapter_path",
    "write a judger, `def judge(task, episode)`: the answer is episode.answer, the truth task.truth": """
        custom_reward_function reward_model reward sandbox_fusion
    """,
    "make the tasks with your own function: data.kind python": "data.custom_cls data.datagen data.sampler",
    "remove it: a task that does not fit model.max_context fails by itself, with its cause": """
        data.filter_overlong_prompts data.filter_overlong_prompts_workers
    """,
    "remove it: a step samples what it needs, and rollout.concurrency bounds how much at once": """
        data.gen_batch_size data.val_batch_size
    """,
    "remove it: models are text only": """
        data.image_key data.video_key data.audio_key data.image_patch_size data.return_multi_modal_inputs
        data.mm_processor_kwargs
    """,
    "remove it: data is read as it is needed": """
        data.use_shm data.dataloader_num_workers data.return_raw_input_ids data.return_raw_chat data.return_full_prompt
    """,
    "name the run by its folder: trainer.run_dir": """
        trainer.project_name trainer.experiment_name trainer.resume_from_path
    """,
    "remove it: all rollouts and evaluations are kept in the run's folder": """
        trainer.log_val_generations trainer.rollout_data_dir trainer.validation_data_dir
    """,
}

REMEDIES = {name: remedy for remedy, names in BY_REMEDY.items() for name in names.split()}
