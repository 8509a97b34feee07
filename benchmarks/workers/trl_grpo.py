"""TRL's GRPO step, at its best honest settings for a CPU. Runs in TRL's own environment.

- float32 without mixed precision: bfloat16 is slower on CPUs without working AMX, and Loopwright uses float32 too.
- No gradient checkpointing (TRL's default): it computes the forward pass twice, and memory is not short here.
- The whole batch in one micro-batch where memory allows. `grpo-long` needs micro-batches of 4: in 16, all the logits
  together run out of 24 GiB.
- One generation batch per optimiser step and one iteration over it: then TRL takes the old logprobs from the training
  pass itself, as Loopwright does, instead of computing them apart.
- transformers' plain generate: its continuous batching, which TRL can use too, is slower on a CPU (74 against 196
  tokens/s on a machine of this kind).
- No KL (beta 0), so no reference model. No dropout, logging, saving, progress bar or evaluation.
- A constant learning rate, no weight decay, gradients clipped at 1, group-scaled advantages and a per-sequence mean: as
  Loopwright's defaults.

A round lasts from TRL's `on_step_begin` to its `on_step_end`: generation, rewards, loss, gradients, optimiser.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.rewards import REWARDS
from benchmarks.workers.port import Port, Stopwatch

ENDLESS = 1_000_000
"""More steps than anyone asks for: the harness decides when to stop."""


def main(port: Port) -> None:
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    spec = port.spec
    torch.set_num_threads(spec["threads"])
    tokenizer = AutoTokenizer.from_pretrained(spec["model"])
    seen = Seen(REWARDS[spec["reward"]])

    class Timed(GRPOTrainer):  # type: ignore[misc]
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            started = time.perf_counter()
            batch = super()._generate_and_score_completions(inputs)
            seen.rollout_seconds += time.perf_counter() - started
            return batch

    class OneStepPerRound(TrainerCallback):  # type: ignore[misc]
        watch: Stopwatch

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            watch = port.next_round()
            if watch is None:
                sys.exit()
            self.watch = watch
            seen.clear()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            taken = self.watch.stop()
            port.answer(taken, **seen.facts(taken["seconds"], tokenizer, spec["samples"]))

    trainer = Timed(
        model=AutoModelForCausalLM.from_pretrained(spec["model"], dtype=torch.float32),
        reward_funcs=seen.reward,
        args=GRPOConfig(**options(spec)),
        train_dataset=Dataset.from_list(_rows(Path(spec["tasks"]))),
        processing_class=tokenizer,
        callbacks=[OneStepPerRound()],
    )
    port.ready("trl", "torch", "transformers")
    trainer.train()


def options(spec: dict[str, Any]) -> dict[str, Any]:
    """The settings of TRL's trainer."""
    batch = spec["groups"] * spec["samples"]
    micro = spec["peer_micro_batch"]
    return {
        "output_dir": spec["folder"],
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "per_device_train_batch_size": micro,
        "gradient_accumulation_steps": batch // micro,
        "num_generations": spec["samples"],
        "max_completion_length": spec["max_new_tokens"],
        "temperature": 1.0,
        "beta": 0.0,
        "learning_rate": spec["lr"],
        "lr_scheduler_type": "constant",
        "loss_type": "grpo",
        "disable_dropout": True,
        "shuffle_dataset": False,
        "max_steps": ENDLESS,
        "logging_strategy": "no",
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "seed": 0,
    }


def _rows(tasks: Path) -> list[dict[str, Any]]:
    records = (json.loads(line) for line in tasks.read_text("utf-8").splitlines())
    return [{"prompt": record["messages"], "truth": record["truth"]} for record in records]


class Seen:
    """What one step did, as its reward function saw it."""

    def __init__(self, reward: Any) -> None:
        self._reward = reward
        self.clear()

    def clear(self) -> None:
        self.rollout_seconds = 0.0
        self._prompts: list[Any] = []
        self._sampled: list[int] = []
        self._rewards: list[float] = []

    def reward(self, *, prompts: Any, completions: Any, completion_ids: Any, truth: list[int], **_: Any) -> list[float]:
        answers = [completion[0]["content"] for completion in completions]
        rewards = [self._reward(answer, right) for answer, right in zip(answers, truth, strict=True)]
        self._prompts += prompts
        self._sampled += [len(ids) for ids in completion_ids]
        self._rewards += rewards
        return rewards

    def facts(self, seconds: float, tokenizer: Any, samples: int) -> dict[str, Any]:
        groups = [
            {
                "prompt_tokens": self._prompt_tokens(tokenizer, start),
                "sampled": self._sampled[start : start + samples],
                "rewards": self._rewards[start : start + samples],
            }
            for start in range(0, len(self._sampled), samples)
        ]
        return {
            "rollout_seconds": self.rollout_seconds,
            "train_seconds": seconds - self.rollout_seconds,
            "trained_tokens": sum(self._sampled),
            "groups": groups,
        }

    def _prompt_tokens(self, tokenizer: Any, index: int) -> int:
        text = tokenizer.apply_chat_template(self._prompts[index], add_generation_prompt=True, tokenize=False)
        return len(tokenizer(text, add_special_tokens=False)["input_ids"])


if __name__ == "__main__":
    main(Port())
