"""What a train step costs with longer and longer rows: time, and memory besides what was resident before.

A row is one group: a quarter of its tokens is the prompt, the rest are 8 answers. Memory must grow with the row, not
with its square. The gradients are memory of the step, on all sides: they are forgotten before it begins.

TRL trains on the same tokens: one answer at a time, as it needs least memory, and the whole group at once. No side
may allocate more than two thirds of the memory that is available, and a row that needs more is out of memory. Adapters
are compared with the whole model, which is the other side then.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.figures import Better, Figure, Round
from benchmarks.models import Model
from benchmarks.setting import Peer, Places, Prepared, Spec
from loopwright.core.advantage import ADVANTAGES, Scores
from loopwright.testing.made_groups import ANSWERS, LOGPROB, row_of

LENGTHS = (1024, 2048, 4096, 8192)

FIRST = 32
"""Tokens of the row of the first step, which makes the moments. It is short, so that it leaves nothing else behind."""

LR = 1e-5

OUT_OF_MEMORY = "out of memory"


def seconds_figure(tokens: int) -> Figure:
    return Figure(f"seconds_{tokens}", f"seconds, row of {tokens:,} tokens", Better.LOWER, absent=OUT_OF_MEMORY)


def memory_figure(tokens: int) -> Figure:
    label = f"memory of the step, MB, row of {tokens:,} tokens"
    return Figure(f"mb_{tokens}", label, Better.LOWER, digits=0, absent=OUT_OF_MEMORY)


GROWTH = Figure("growth", "memory per token, longest row that fits in terms of the shortest")
LONGEST = Figure("longest", "longest row that fits, tokens", Better.HIGHER, digits=0)
RESIDENT = Figure("resident_mb", "resident before, MB: weights, moments", Better.LOWER, digits=0)

FIGURES = (*map(seconds_figure, LENGTHS), *map(memory_figure, LENGTHS), GROWTH, LONGEST, RESIDENT)

OURS = "benchmarks.workers.ours_learn"
WHOLE = Peer("all-weights", OURS)
TRL = Peer("trl", "benchmarks.workers.trl_learn", ".peers/trl")
TRL_AT_ONCE = Peer("trl-at-once", TRL.module, TRL.environment)


@dataclass(frozen=True, slots=True)
class Learn:
    """One step for each of `LENGTHS`. With `checkpointed`, layers keep only their input. With `adapter_rank` above 0,
    adapters of that rank are trained, and not the weights."""

    name: str
    what: str
    model: Model = Model.SMOLLM2
    checkpointed: bool = False
    adapter_rank: int = 0
    lengths: tuple[int, ...] = LENGTHS
    threads: int = 2
    rounds: int = 1
    warms_up: bool = False
    alone: bool = True
    module: str = OURS
    figures: tuple[Figure, ...] = FIGURES

    @property
    def peer(self) -> Peer:
        return WHOLE if self.adapter_rank else TRL

    def prepare(self, folder: Path, places: Places) -> Prepared:
        model = self.model.folder(folder, places)
        spec = {
            "model": str(model),
            "folder": str(folder),
            "threads": self.threads,
            "checkpointed": self.checkpointed,
            "first": FIRST,
            "lengths": self.lengths,
            "most_bytes": most_memory(),
        }
        ours = {**spec, "adapter_rank": self.adapter_rank}
        if self.adapter_rank:
            return Prepared(ours, peer={**spec, "adapter_rank": 0})
        vocabulary = json.loads((model / "config.json").read_text("utf-8"))["vocab_size"]
        trl = {
            **spec,
            "rows": [_row(tokens, vocabulary) for tokens in (FIRST, *self.lengths)],
            "groups": 1,
            "samples": ANSWERS,
            "max_new_tokens": max(self.lengths),
            "lr": LR,
            "sampled_logprob": LOGPROB,
        }
        return Prepared(
            ours,
            peer={**trl, "peer_micro_batch": 1},
            others=((TRL_AT_ONCE, {**trl, "peer_micro_batch": ANSWERS}),),
        )

    def round(self, answer: Mapping[str, Any], pace: None) -> Round:
        steps = answer["steps"]
        return {
            **{f"seconds_{step['tokens']}": step["seconds"] for step in steps},
            **{f"mb_{step['tokens']}": step["bytes"] / 1e6 for step in steps},
            **linearity({step["tokens"]: step["bytes"] for step in steps}),
            "resident_mb": answer["resident"] / 1e6,
        }


def linearity(memory: Mapping[int, float]) -> dict[str, float]:
    """The longest row that fits, and how its memory per token compares with that of the shortest. `memory` is that of
    each row that fits, by its tokens."""
    if not memory:
        return {"longest": 0}
    shortest, longest = min(memory), max(memory)
    return {"longest": longest, "growth": memory[longest] / longest / (memory[shortest] / shortest)}


def most_memory() -> int:
    """The bytes that a side may allocate: two thirds of what is available, so that nobody else runs out of memory."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    available = next(line for line in lines if line.startswith("MemAvailable:"))
    return int(available.split()[1]) * 1024 * 2 // 3


def _row(tokens: int, vocabulary: int) -> Spec:
    """Of the group that is a row of so many tokens, what a peer is told: ids and advantages."""
    group = row_of(tokens, vocabulary=vocabulary)
    chains = [rollout.episode.chains[0] for rollout in group.rollouts if rollout.episode is not None]
    answers = [chain.ids[chain.mask].tolist() for chain in chains]
    (advantages,) = ADVANTAGES["grpo"]([Scores(group.rewards, tuple(map(len, answers)))])
    prompt = chains[0].ids[~chains[0].mask].tolist()
    return {"tokens": tokens, "prompt": prompt, "answers": answers, "advantages": list(advantages)}
