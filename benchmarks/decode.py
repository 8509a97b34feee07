"""Sampling alone: our engine beside transformers' `generate`, in the same environment.

Either every sequence has a prompt of its own, so that nothing is gained by sharing, or they come in groups, as the
rollouts of a training do. Nobody stops early. The time to the first tokens is measured apart: the rest is decoding
proper.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.figures import Better, Figure, Round
from benchmarks.models import Model
from benchmarks.products import ProductsPlan
from benchmarks.setting import Peer, Places, Prepared, read_layers
from benchmarks.work import Pace, Phase, Rows, Work

ORDINARY = range(1000, 40000)
"""Ids in the middle of the vocabulary: no special tokens among them."""

FIGURES = (
    Figure("tokens_per_second", "sampled tokens per second", Better.HIGHER, digits=0),
    Figure("decode_tokens_per_second", "  after the first token", Better.HIGHER, digits=0),
    Figure("seconds", "seconds", Better.LOWER),
    Figure("first_token_seconds", "  of it prompts and first token", Better.LOWER),
    Figure("cpu_seconds", "CPU seconds", Better.LOWER),
    Figure("limit_tokens_per_second", "limit: tokens per second", digits=0),
    Figure("limit_share", "share of the limit", digits=3),
    Figure("limit_decode_tokens_per_second", "limit: after the first token", digits=0),
    Figure("limit_decode_share", "share of the limit after the first", digits=3),
    Figure("peak_memory_mb", "peak memory, MB", Better.LOWER, digits=0),
)


GENERATE = Peer("transformers", "benchmarks.workers.transformers_decode")
VLLM = Peer("vllm", "benchmarks.workers.vllm_decode")
VLLM_EXECUTABLE = ".peers/vllm/bin/vllm"


@dataclass(frozen=True, slots=True)
class Decode:
    """`samples` answers of `new_tokens` to each of so many random `prompts` of `prompt_tokens`."""

    name: str
    what: str
    prompts: int = 64
    samples: int = 1
    prompt_tokens: int = 39
    new_tokens: int = 32
    threads: int = 2
    rounds: int = 5
    warms_up: bool = True
    alone: bool = False
    module: str = "benchmarks.workers.ours_decode"
    peer: Peer = GENERATE
    figures: tuple[Figure, ...] = FIGURES
    beside_vllm: bool = False

    def prepare(self, folder: Path, places: Places) -> Prepared:
        model = Model.SMOLLM2.folder(folder, places)
        choose = random.Random(0).choices
        spec = {
            "model": str(model),
            "folder": str(folder),
            "threads": self.threads,
            "prompts": [choose(ORDINARY, k=self.prompt_tokens) for _ in range(self.prompts)],
            "samples": self.samples,
            "new_tokens": self.new_tokens,
        }
        sequences = self.prompts * self.samples
        rows: Work = {Phase.PREFILL: self._prefill, Phase.DECODE: Rows(sequences, sequences)}
        executable = places.checkout / VLLM_EXECUTABLE
        server = {**spec, "executable": str(executable)}
        others = ((VLLM, server),) if self.beside_vllm and executable.exists() else ()
        limit = ProductsPlan(read_layers(model), rows, self.threads)
        return Prepared(ours=spec, peer=spec, limit=limit, others=others)

    @property
    def _prefill(self) -> Rows:
        """Each prompt once, however many samples it has."""
        return Rows(self.prompts * self.prompt_tokens, self.prompts)

    def round(self, answer: Mapping[str, Any], pace: Pace) -> Round:
        first = answer["first_token_seconds"]
        sequences = self.prompts * self.samples
        tokens, later = sequences * self.new_tokens, sequences * (self.new_tokens - 1)
        decoding = pace.seconds({Phase.DECODE: Rows(later, later)})
        limit = pace.seconds({Phase.PREFILL: self._prefill}) + decoding
        return {
            "tokens_per_second": tokens / answer["seconds"],
            "decode_tokens_per_second": later / (answer["seconds"] - first),
            "seconds": answer["seconds"],
            "first_token_seconds": first,
            "cpu_seconds": answer["cpu_seconds"],
            "limit_tokens_per_second": tokens / limit,
            "limit_share": limit / answer["seconds"],
            "limit_decode_tokens_per_second": later / decoding,
            "limit_decode_share": decoding / (answer["seconds"] - first),
            "peak_memory_mb": answer["peak_memory"] / 1e6,
        }
