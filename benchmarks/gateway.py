"""A model call through a proxy that records it: ours beside LiteLLM's, and beside one that only passes bytes on.

Beside ours, the same gateway keeps its sessions in memory: the difference is what the store on disk adds to a call. The
model is a mock that answers at once, so all time is the proxies'. Every prompt is another one, so that nobody gains
by having seen it before.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.figures import Better, Figure, Round
from benchmarks.models import Model
from benchmarks.prompts import Prompts
from benchmarks.setting import Peer, Places, Prepared, Spec

FEW, MANY = 16, 256
ANSWER_TOKENS = 128
MAX_CONTEXT = 8192

LITELLM = Peer("litellm", "benchmarks.workers.litellm_gateway", environment=".peers/litellm")

FIGURES = (
    Figure(f"rate_{FEW}", f"requests per second, {FEW} clients", Better.HIGHER, digits=0),
    Figure(f"rate_{MANY}", f"requests per second, {MANY} clients", Better.HIGHER, digits=0),
    Figure("p50_added_ms", "p50 added, 1 client, ms", Better.LOWER),
    Figure("p99_added_ms", "p99 added, 1 client, ms", Better.LOWER),
    Figure("cpu_ms", f"CPU ms per request, {FEW} clients", Better.LOWER),
    Figure("store_p50_ms", "of p50, added by the store on disk, ms", digits=3),
    Figure("store_cpu_ms", "of CPU ms per request, added by the store on disk", digits=3),
    Figure("limit_share", f"share of the bare proxy's rate, {FEW} clients", digits=3),
    Figure("direct_p50_ms", "p50 of the mock itself, ms"),
    Figure("direct_rate", f"requests per second to the mock itself, {FEW} clients", digits=0),
    Figure("peak_memory_mb", "peak memory of the proxy, MB", Better.LOWER, digits=0),
)


@dataclass(frozen=True, slots=True)
class BarePlan:
    """The limit: a proxy of a few lines that passes bytes on."""

    spec: Spec
    module: str = "benchmarks.workers.bare_gateway"

    def measured(self, answers: Sequence[Mapping[str, Any]]) -> BareLimit:
        rounds = [_own_figures(answer) for answer in answers]
        return BareLimit({key: statistics.median(one[key] for one in rounds) for key in rounds[0]})


@dataclass(frozen=True, slots=True)
class BareLimit:
    pace: Mapping[str, float]

    def as_json(self) -> dict[str, Any]:
        return dict(self.pace)

    @property
    def line(self) -> str:
        bare = self.pace
        return (
            f"a bare reverse proxy on this machine: {bare[f'rate_{FEW}']:,.0f} and {bare[f'rate_{MANY}']:,.0f} "
            f"requests per second, p50 added {bare['p50_added_ms']:.2f} ms, CPU {bare['cpu_ms']:.2f} ms per request"
        )


@dataclass(frozen=True, slots=True)
class GatewayCalls:
    """`seconds` is how long each number of clients asks, `prompts` how many different ones there are."""

    name: str
    what: str
    prompt_tokens: int = 512
    prompts: int = 4096
    seconds: float = 3.0
    threads: int = 1
    rounds: int = 5
    warms_up: bool = True
    alone: bool = False
    module: str = "benchmarks.workers.ours_gateway"
    peer: Peer = LITELLM
    figures: tuple[Figure, ...] = FIGURES

    def prepare(self, folder: Path, places: Places) -> Prepared:
        model = Model.SMOLLM2.folder(folder, places)
        texts = Prompts(model)
        prompts = texts.messages(self.prompts, self.prompt_tokens)
        bodies = folder / "bodies.jsonl"
        bodies.write_text("".join(json.dumps(_body(messages)) + "\n" for messages in prompts), "utf-8")
        answer_ids, answer_pieces = texts.answer(ANSWER_TOKENS)
        upstream = {
            "model": str(model),
            "max_context": MAX_CONTEXT,
            "answer_ids": answer_ids,
            "answer_pieces": answer_pieces,
            "prompt_ids": texts.ids(prompts[0]),
        }
        spec = {
            "folder": str(folder),
            "bodies": str(bodies),
            "upstream": upstream,
            "seconds": self.seconds,
            "clients": (FEW, MANY),
        }
        return Prepared(ours=spec, peer=spec, limit=BarePlan(spec))

    def round(self, answer: Mapping[str, Any], pace: Mapping[str, float]) -> Round:
        own = _own_figures(answer)
        if memory := answer.get("beside"):
            own["store_p50_ms"] = answer["alone_ms"]["p50"] - memory["alone_ms"]["p50"]
            own["store_cpu_ms"] = answer["cpu_ms"] - memory["cpu_ms"]
        return {**own, "limit_share": own[f"rate_{FEW}"] / pace[f"rate_{FEW}"]}


def _own_figures(answer: Mapping[str, Any]) -> dict[str, float]:
    direct, alone = answer["direct_ms"], answer["alone_ms"]
    few, many = answer["rates"]
    return {
        f"rate_{FEW}": few,
        f"rate_{MANY}": many,
        "p50_added_ms": alone["p50"] - direct["p50"],
        "p99_added_ms": alone["p99"] - direct["p99"],
        "cpu_ms": answer["cpu_ms"],
        "direct_p50_ms": direct["p50"],
        "direct_rate": answer["direct_rate"],
        "peak_memory_mb": answer["proxy_memory"] / 1e6,
    }


def _body(messages: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    return {"model": "bench", "messages": messages, "max_tokens": 256, "temperature": 1.0}
