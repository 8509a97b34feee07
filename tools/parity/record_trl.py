"""Record what TRL's GRPOTrainer computes for the inputs. Run it in TRL's environment.

Two methods are replaced: generating, which returns the given answers, and the forward pass, which returns the given
logprobs. Advantages, importance weights and losses are then TRL's own, in float64.
"""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

from tools.parity.recording import INPUTS, SETTINGS, Padded, differentiated, padded, ragged, save

TOKEN = 3
HIGHER = {"epsilon": SETTINGS["clip_low"], "epsilon_high": SETTINGS["clip_high"]}
LOSSES: dict[str, dict[str, Any]] = {
    "grpo": {"loss_type": "grpo", **HIGHER},
    "bnpo": {"loss_type": "bnpo", **HIGHER},
    "dapo": {"loss_type": "dapo", **HIGHER},
    "dr_grpo": {"loss_type": "dr_grpo", **HIGHER},
    "grpo_two_sided": {"loss_type": "grpo", "delta": SETTINGS["dual_clip"], **HIGHER},
    "grpo_kl": {"loss_type": "grpo", "beta": SETTINGS["kl_coefficient"], **HIGHER},
    "grpo_plain_kl": {
        "loss_type": "grpo",
        "beta": SETTINGS["kl_coefficient"],
        "use_bias_correction_kl": False,
        **HIGHER,
    },
    "gspo": {"loss_type": "grpo", "importance_sampling_level": "sequence", **HIGHER},
    "cispo": {"loss_type": "cispo", "epsilon_high": 1 + SETTINGS["clip_high"]},
}
MODES = ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")


class Given(GRPOTrainer):
    """TRL's trainer over given answers and logprobs."""

    answers: list[list[int]]
    sampled: list[list[float]] | None
    forward: torch.Tensor

    def _generate(self, prompts: list[str]) -> tuple[Any, ...]:
        return [[TOKEN] for _ in prompts], self.answers, None, ["" for _ in prompts], self.sampled, {}, None, None

    def _get_per_token_logps_and_entropies(self, *_: Any, **__: Any) -> tuple[torch.Tensor, torch.Tensor, None]:
        return self.forward, torch.zeros_like(self.forward), None


def main() -> None:
    torch.set_default_dtype(torch.float64)
    with tempfile.TemporaryDirectory() as folder:
        save(
            "trl",
            advantages={
                scale: {kind: [_advantages(folder, scale, g) for g in groups] for kind, groups in _groups().items()}
                for scale in ("group", "none")
            },
            losses={name: {batch: _loss(folder, name, batch) for batch in INPUTS["tokens"]} for name in LOSSES},
            importance={mode: {batch: _corrected(folder, mode, batch) for batch in INPUTS["tokens"]} for mode in MODES},
        )


def _groups() -> dict[str, list[dict[str, Any]]]:
    return INPUTS["groups"]


def _trainer(folder: str, **options: Any) -> Given:
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"<pad>": 0, "<eos>": 1, "<unk>": 2, "a": TOKEN}, "<unk>")),
        pad_token="<pad>",
        eos_token="<eos>",
    )
    shape = {"vocab_size": 4, "hidden_size": 4, "intermediate_size": 4, "num_hidden_layers": 1}
    model = LlamaForCausalLM(LlamaConfig(**shape, num_attention_heads=1, num_key_value_heads=1))
    beta = options.pop("beta", 0.0)
    config = GRPOConfig(
        output_dir=folder,
        use_cpu=True,
        bf16=False,
        report_to="none",
        num_generations=2,
        per_device_train_batch_size=2,
        max_completion_length=SETTINGS["constant_length"],
        **options,
    )
    tasks = Dataset.from_list([{"prompt": "a"}] * 2)
    trainer = Given(model, _given_reward, config, tasks, processing_class=tokenizer)
    trainer.beta = beta  # afterwards: the constructor would fetch a reference model by the name of this one
    trainer.current_gradient_accumulation_steps = 1
    return trainer


def _given_reward(reward: list[float], **_: Any) -> list[float]:
    return reward


def _advantages(folder: str, scale: str, group: dict[str, Any]) -> list[float]:
    trainer = _trainer(folder, scale_rewards=scale)
    trainer.num_generations = len(group["rewards"])
    trainer.answers, trainer.sampled = [[TOKEN] * n for n in group["lengths"]], None
    trainer.forward = torch.zeros(len(group["lengths"]), max(group["lengths"]))
    scored = trainer._generate_and_score_completions([{"prompt": "a", "reward": r} for r in group["rewards"]])
    return scored["advantages"].tolist()


def _loss(folder: str, name: str, batch: str) -> dict[str, Any]:
    data = padded(batch)
    return differentiated(_computed(_trainer(folder, **LOSSES[name]), data), data)


def _computed(trainer: Given, data: Padded, **more: torch.Tensor) -> torch.Tensor:
    trainer.forward = data.logprobs
    ones = torch.ones(len(data.lengths), 1, dtype=torch.long)
    inputs = {
        "prompt_ids": ones * TOKEN,
        "prompt_mask": ones,
        "completion_ids": data.mask.long() * TOKEN,
        "completion_mask": data.mask.long(),
        "advantages": data.advantages,
        "old_per_token_logps": data.old,
        "ref_per_token_logps": data.reference,
        "num_items_in_batch": data.mask.sum(),
    }
    return trainer._compute_loss(trainer.model, {**inputs, **more})


def _corrected(folder: str, mode: str, batch: str) -> dict[str, Any]:
    """The importance weights, and the loss that they enter."""
    data = padded(batch)
    masked = mode.endswith("mask")
    trainer = _trainer(folder, **LOSSES["grpo"], vllm_importance_sampling_mode=mode)
    trainer.vllm_importance_sampling_clip_min = SETTINGS["floor"] if masked else None
    trainer.vllm_importance_sampling_clip_max = SETTINGS["cap"]
    trainer.use_vllm = True  # afterwards: vLLM itself is not needed to weigh what it would have sampled
    trainer.num_generations = len(data.lengths)
    trainer.answers = [[TOKEN] * n for n in data.lengths]
    trainer.sampled = ragged(data.sampled, data.lengths)
    trainer.forward = data.old
    weights = trainer._generate_and_score_completions([{"prompt": "a", "reward": 0.0}] * len(data.lengths))[
        "importance_sampling_ratio"
    ]
    loss = _computed(trainer, data, importance_sampling_ratio=weights)
    return {"weights": ragged(weights.expand_as(data.mask), data.lengths), **differentiated(loss, data)}


if __name__ == "__main__":
    main()
