"""TRL's train step for each length of a row, with its settings of `trl_grpo`. Runs in TRL's own environment.

It is TRL's own loop from `on_step_begin` to `on_step_end`: loss, gradients, clipping, optimiser. Only the sampling is
left out: the trainer is given the tokens and advantages that it would have sampled and computed. All answers have the
same length, so nothing is padded, and transformers calls its attention kernel without a mask.

A step that may not have the memory that it needs is given up, and longer rows are not tried.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from benchmarks.workers.port import Port, Stopwatch, limit_memory, peak_memory, resting_memory
from benchmarks.workers.trl_grpo import options

NO_MEMORY = "not enough memory", "can't allocate memory", "could not create a memory"
"""What torch and oneDNN say then."""


class Step:
    """One train step on a row. What it took is known when it has ended."""

    def __init__(self, row: dict[str, Any]) -> None:
        self.row = row
        self.ran_out = False
        self.facts: dict[str, Any] = {}

    def begin(self) -> None:
        self._before, self._watch = resting_memory(), Stopwatch()

    def end(self) -> None:
        self.facts = {"tokens": self.row["tokens"], "bytes": peak_memory() - self._before, **self._watch.stop()}


def main(port: Port) -> None:
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    spec = port.spec
    torch.set_num_threads(spec["threads"])
    limit_memory(spec["most_bytes"])
    steps = Steps(port)

    class OnGivenTokens(GRPOTrainer):  # type: ignore[misc]
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            return _batch(steps.now.row, spec["sampled_logprob"])

        def training_step(self, *args: Any, **kwargs: Any) -> Any:
            if not steps.now.ran_out:
                try:
                    return super().training_step(*args, **kwargs)
                except (RuntimeError, MemoryError) as error:
                    if isinstance(error, RuntimeError) and not any(words in str(error) for words in NO_MEMORY):
                        raise
                    steps.now.ran_out = True
                    self.model.zero_grad()
            # As the trainer does after each micro-batch, to know which one is next.
            self._step += 1
            return torch.zeros(())

    class OneRowPerStep(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            steps.begin()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            steps.now.end()

    trainer = OnGivenTokens(
        model=AutoModelForCausalLM.from_pretrained(spec["model"], dtype=torch.float32),
        reward_funcs=_never_asked,
        args=GRPOConfig(**{**options(spec), "gradient_checkpointing": spec["checkpointed"]}),
        train_dataset=Dataset.from_list([{"prompt": "It is not rendered."}]),
        processing_class=AutoTokenizer.from_pretrained(spec["model"]),
        callbacks=[OneRowPerStep()],
    )
    trainer.train()


class Steps:
    """The steps that the trainer makes, one after the other: one that makes the moments, then those of each round."""

    def __init__(self, port: Port) -> None:
        self._port = port
        self._coming = self._all()

    def begin(self) -> None:
        """The trainer begins a step. The process ends if no round is asked for."""
        step = next(self._coming, None)
        if step is None:
            sys.exit()
        self.now = step
        step.begin()

    def _all(self) -> Iterator[Step]:
        first, *rows = self._port.spec["rows"]
        yield Step(first)
        self._port.ready("trl", "torch", "transformers")
        for watch in self._port.rounds():
            resident, steps = resting_memory(), []
            for row in rows:
                step = Step(row)
                yield step
                if step.ran_out:
                    break
                steps.append(step.facts)
            self._port.answer(watch.stop(), steps=steps, resident=resident)


def _batch(row: dict[str, Any], sampled_logprob: float) -> dict[str, Any]:
    """What TRL's trainer makes of a group that it has sampled."""
    import torch

    answers = torch.tensor(row["answers"])
    prompts = torch.tensor([row["prompt"]] * len(answers))
    return {
        "prompt_ids": prompts,
        "prompt_mask": torch.ones_like(prompts),
        "completion_ids": answers,
        "completion_mask": torch.ones_like(answers),
        "advantages": torch.tensor(row["advantages"]),
        "num_items_in_batch": torch.tensor(answers.numel()),
        "old_per_token_logps": torch.full(answers.shape, sampled_logprob),
    }


def _never_asked(**_: Any) -> list[float]:
    raise RuntimeError("nothing is sampled here, so nothing is scored")


if __name__ == "__main__":
    main(Port())
