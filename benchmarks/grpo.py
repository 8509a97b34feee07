"""Whole GRPO steps, rollouts and training, beside TRL's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from benchmarks.figures import Better, Figure, Round
from benchmarks.models import Model, prompt_counter
from benchmarks.products import ProductsPlan
from benchmarks.setting import Peer, Places, Prepared, Spec, read_layers
from benchmarks.tasks import addition, lengthened, write_tasks
from benchmarks.work import GroupCounts, Pace, Phase, Rows, Work, total

MICRO_BATCH_TOKENS = 4096
"""Loopwright's default: more rows than this never meet in one of its products."""

ENDLESS = 1_000_000
"""More steps than anyone asks for: the harness decides when to stop."""

FIGURES = (
    Figure("seconds", "seconds per step", Better.LOWER),
    Figure("rollout_seconds", "  of it rollouts", Better.LOWER),
    Figure("train_seconds", "  of it training", Better.LOWER),
    Figure("cpu_seconds", "CPU seconds per step", Better.LOWER),
    Figure("samples_per_second", "samples per second", Better.HIGHER),
    Figure("ms_per_sampled_token", "ms per sampled token", Better.LOWER),
    Figure("limit_seconds", "limit: seconds of matrix products"),
    Figure("limit_share", "share of the limit", digits=3),
    Figure("peak_memory_mb", "peak memory, MB", Better.LOWER, digits=0),
    Figure("answer_tokens", "mean answer, tokens"),
    Figure("trained_tokens", "trained tokens", digits=0),
    Figure("groups_with_signal", "groups with unequal rewards", digits=0),
    Figure("reward", "mean reward", digits=3),
)


TRL = Peer("trl", "benchmarks.workers.trl_grpo", ".peers/trl")


@dataclass(frozen=True, slots=True)
class Grpo:
    """`prompt_tokens` makes every prompt exactly so long; `peer_micro_batch` is how many samples TRL trains at once."""

    name: str
    what: str
    model: Model = Model.SMOLLM2
    groups: int = 8
    samples: int = 8
    max_new_tokens: int = 16
    prompt_tokens: int | None = None
    reward: str = "exact"
    lr: float = 1e-5
    threads: int = 2
    rounds: int = 5
    peer_micro_batch: int = 64
    warms_up: bool = True
    alone: bool = False
    module: str = "benchmarks.workers.ours_grpo"
    peer: Peer = TRL
    figures: tuple[Figure, ...] = FIGURES

    def prepare(self, folder: Path, places: Places) -> Prepared:
        model = self.model.folder(folder, places)
        count, file = prompt_counter(model), folder / "tasks.jsonl"
        tasks = addition(places.checkout)
        if self.prompt_tokens is not None:
            tasks = lengthened(tasks, self.prompt_tokens, count)
        write_tasks(tasks, file)
        config = folder / "run.yaml"
        config.write_text(yaml.safe_dump(self._config(model, file, folder / "run")), "utf-8")
        return Prepared(
            ours={"config": str(config), "cache": str(places.cache)},
            peer=self._peer_spec(model, file, folder),
            limit=ProductsPlan(
                read_layers(model), self.rows(count(str(tasks[0].messages[0]["content"]))), self.threads
            ),
        )

    def rows(self, prompt_tokens: int) -> Work:
        """Rows of the matrix products when every answer is as long as it may be."""
        prompts, sequences = self.groups * prompt_tokens, self.groups * self.samples
        fed = sequences * (self.max_new_tokens - 1)
        packed = min(MICRO_BATCH_TOKENS, prompts + fed)
        return {
            Phase.PREFILL: Rows(min(MICRO_BATCH_TOKENS, prompts), self.groups),
            Phase.DECODE: Rows(sequences, sequences),
            Phase.TRAIN: Rows(packed, min(packed, self.groups + fed)),
        }

    def round(self, answer: Mapping[str, Any], pace: Pace) -> Round:
        groups = [GroupCounts.of(group) for group in answer["groups"]]
        samples = sum(len(group.sampled) for group in groups)
        sampled = sum(sum(group.sampled) for group in groups)
        limit = pace.seconds(total(group.work for group in groups))
        return {
            **{key: answer[key] for key in ("seconds", "rollout_seconds", "train_seconds", "cpu_seconds")},
            "samples_per_second": samples / answer["seconds"],
            "ms_per_sampled_token": 1000 * answer["seconds"] / sampled,
            "limit_seconds": limit,
            "limit_share": limit / answer["seconds"],
            "peak_memory_mb": answer["peak_memory"] / 1e6,
            "answer_tokens": sampled / samples,
            "trained_tokens": answer["trained_tokens"],
            "groups_with_signal": sum(group.has_signal for group in groups),
            "reward": fmean(reward for group in groups for reward in group.rewards),
        }

    def _config(self, model: Path, tasks: Path, run_dir: Path) -> dict[str, Any]:
        """What a user would write, but for the tasks' order, which is TRL's too."""
        return {
            "model": {"path": str(model), "threads": self.threads},
            "data": {"kind": "jsonl", "path": str(tasks), "shuffle": False},
            "agent": {"kind": "single_turn", "judger": "reward"},
            "judgers": {"reward": {"kind": "native", "path": f"benchmarks.workers.judgers:{self.reward}"}},
            "rollout": {
                "samples_per_task": self.samples,
                "temperature": 1.0,
                "max_new_tokens": self.max_new_tokens,
                "engine": {"max_batch": self.groups * self.samples},
            },
            "learner": {"lr": self.lr},
            "trainer": {
                "run_dir": str(run_dir),
                "steps": ENDLESS,
                "groups_per_step": self.groups,
                "checkpoint_every": ENDLESS,
            },
            "track": {"console": False},
        }

    def _peer_spec(self, model: Path, tasks: Path, folder: Path) -> Spec:
        return {
            "model": str(model),
            "tasks": str(tasks),
            "folder": str(folder / "peer"),
            "groups": self.groups,
            "samples": self.samples,
            "max_new_tokens": self.max_new_tokens,
            "reward": self.reward,
            "lr": self.lr,
            "threads": self.threads,
            "peer_micro_batch": min(self.peer_micro_batch, self.groups * self.samples),
        }
