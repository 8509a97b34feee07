"""Every benchmark by its name."""

from __future__ import annotations

from benchmarks.buffer import Buffer
from benchmarks.cluster import ClusterCalls
from benchmarks.decode import Decode
from benchmarks.gateway import GatewayCalls
from benchmarks.grpo import Grpo
from benchmarks.learn import Learn
from benchmarks.learn_ranks import LearnRanks
from benchmarks.makespan import Makespan
from benchmarks.manager import Manager
from benchmarks.models import Model
from benchmarks.neighbour import BesideBusy
from benchmarks.page import LargePage
from benchmarks.pool import PoolRequests
from benchmarks.relay import RelayCalls
from benchmarks.remote import Remote
from benchmarks.setting import Benchmark
from benchmarks.weights import Weights
from loopwright.errors import BenchError

DENSE = Grpo("grpo-dense", "the same with a reward that leaves no group without signal", reward="dense")

BENCHMARKS: tuple[Benchmark, ...] = (
    Grpo("grpo", "a GRPO step: SmolLM2-135M, 8 x 8 samples, <= 16 new tokens, reward 0 or 1, beside TRL"),
    DENSE,
    Grpo(
        "grpo-long",
        "a GRPO step after 1,195-token prompts: SmolLM2-135M, 2 x 8 samples, <= 32 new tokens, beside TRL",
        groups=2,
        max_new_tokens=32,
        prompt_tokens=1195,
        reward="dense",
        rounds=3,
        peer_micro_batch=4,
        alone=True,
    ),
    Grpo(
        "grpo-tiny",
        "a GRPO step of an 87 K-parameter model: 8 x 8 samples, <= 64 new tokens, 1 thread, beside TRL",
        model=Model.TINY,
        max_new_tokens=64,
        reward="dense",
        threads=1,
        rounds=15,
    ),
    # Of steps that all have the same work to do: a quiet one is compared with the next, which is not.
    BesideBusy("busy", "the step of grpo-dense beside a busy process; the other side lets OpenMP spin", DENSE),
    Buffer("buffer", "45 KB samples put and got, one by one and 64 at once: committed to SQLite, beside TransferQueue"),
    GatewayCalls("gateway", "a recorded model call: 512-token prompts, 128-token answers, beside LiteLLM's proxy"),
    Remote("remote", "200 programs of 5 turns, 16 at a time, behind one gateway with a scripted engine"),
    Decode("decode", "sampling: SmolLM2-135M, 64 x 32 tokens after 39-token prompts, beside transformers' generate"),
    Decode(
        "decode-groups",
        "the same in groups: 8 prompts x 8 samples, as the rollouts of a training; vLLM beside it, if it is installed",
        prompts=8,
        samples=8,
        beside_vllm=True,
    ),
    Learn("learn", "a train step of SmolLM2-135M on one group of 1,024 to 8,192 tokens: time and memory, beside TRL"),
    Learn("learn-checkpointed", "the same with layers that keep only their input, on all sides", checkpointed=True),
    Learn("learn-lora", "the same with adapters of rank 16 in all linear layers, beside all weights", adapter_rank=16),
    LearnRanks("learn-ranks", "the same by two ranks (learner.ranks), beside one process"),
    Makespan(
        "makespan",
        "production: 16 groups x 8 on 64 slots, latencies log-normal (sigma 1.2), beside the synchronous schedule",
    ),
    Weights(
        "weights",
        "new weights to an engine, proven: SmolLM2-135M in place, by file, by broadcast, by Ray's store",
    ),
    Manager("manager", "production: what a group costs the manager with 1,000 and 10,000 rollouts in flight"),
    PoolRequests("pool", "what a request costs the controller with 1, 8 and 64 scripted engines, 256 in flight"),
    RelayCalls(
        "relay",
        "a call through a worker of a relay: 512-token prompts, 128-token answers; beside its engine, asked directly",
    ),
    LargePage("page", "the web page on a run of 1,000 steps x 512 rollouts: when views are usable, and what they cost"),
    ClusterCalls("cluster", "what actors of Ray cost: a call, rollouts with 1 to 16 of them, calls through the door"),
)


def find(name: str) -> Benchmark:
    """The benchmark of that name, or an error that lists all."""
    for benchmark in BENCHMARKS:
        if benchmark.name == name:
            return benchmark
    names = ", ".join(benchmark.name for benchmark in BENCHMARKS)
    raise BenchError(f"there is no benchmark {name!r}", remedy=f"choose one of {names}", name=name)
