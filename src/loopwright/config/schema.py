"""The whole schema of a run, one section per room. A field is here only if it has an effect."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from loopwright.config.base import (
    Count,
    CountOrZero,
    Device,
    FromYaml,
    NotNegative,
    OffIsAWord,
    Positive,
    Section,
    Share,
    Text,
    sections,
)
from loopwright.config.engines import DoorConfig, EngineConfig, TorchEngineConfig
from loopwright.config.evaluation import EvalConfig
from loopwright.config.gateway import GatewayConfig
from loopwright.config.judgers import JudgerConfig
from loopwright.config.learner import LearnerConfig
from loopwright.config.needs import Need, Outside, code_if_own
from loopwright.config.placement import ClusterConfig, PlacedSection
from loopwright.config.problems import KeyPath
from loopwright.config.task_sets import TaskSetConfig
from loopwright.config.tracking import TrackConfig
from loopwright.types import BufferKind, PauseMode, ProduceKind, Stale, SyncKind, TrainerKind


class Dtype(StrEnum):
    """The numbers that weights are stored in."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


class ModelConfig(Section):
    """`path` is `smollm2`, a folder, or a Hugging Face name. `renderer` is `auto`, `template` (the model's own chat
    template) or a family of models. A deterministic run takes the CPU if `device` is `auto`."""

    path: Text
    renderer: Text = "auto"
    device: Device = "auto"
    dtype: FromYaml[Dtype] = Dtype.FLOAT32
    threads: Count | None = None
    max_context: Count | None = None

    def needs(self) -> Iterator[Need]:
        yield Need(Outside.MODEL, ("path",), self.path)
        if self.renderer not in ("auto", "template"):
            yield Need(Outside.EXTRA, ("renderer",), "renderers")


class RolloutConfig(Section):
    """How answers are sampled. `concurrency` counts rollouts in flight; `auto` is what the engines can hold. A worker
    that is silent for `worker_silence_seconds` is lost: its rollouts are made again. With `door`, other processes can
    sample with the run's engines."""

    engine: EngineConfig = TorchEngineConfig()
    samples_per_task: Count = 8
    temperature: Positive = 1.0
    max_new_tokens: Count = 256
    top_k: CountOrZero = 0
    top_p: Share = 1.0
    stop: FromYaml[tuple[str, ...]] = ()
    concurrency: Literal["auto"] | Count = 256
    worker_silence_seconds: Positive = 60.0
    door: DoorConfig | None = None
    nodes: CountOrZero | None = None


class ProduceConfig(Section):
    """How groups are made, which of them are trained, how old they may be (R5), and how many may fail (R2, R4).

    `filter` is one of FILTERS, or the path of the user's function.
    """

    kind: FromYaml[ProduceKind] = ProduceKind.SYNC
    max_staleness: CountOrZero = 1
    stale: FromYaml[Stale] = Stale.MASK
    max_expiries: Count = 2
    in_flight: FromYaml[PauseMode] = PauseMode.ABORT
    over_sample: NotNegative = 0.0
    tail_batch: Annotated[Literal["off", "immediate"] | Count, OffIsAWord] = "immediate"
    max_attempts: Count = 3
    judge_attempts: Count = 2
    min_members: Count | None = None
    failure_budget: Count = 16
    filter: Text = "none"
    filter_budget: Count = 256
    filter_timeout_seconds: Positive = 10.0
    agent_timeout_seconds: Positive = 600.0

    def needs(self) -> Iterator[Need]:
        yield from code_if_own("filter", self.filter)


class BufferConfig(Section):
    """Where groups are kept until they are trained, and afterwards."""

    kind: FromYaml[BufferKind] = BufferKind.SQLITE
    archive: bool = True


class TrainerConfig(Section):
    """The run itself. `run_dir` is relative to the current directory, not to the config file."""

    kind: FromYaml[TrainerKind] = TrainerKind.COLOCATE
    run_dir: Text
    steps: Count
    groups_per_step: Count = 8
    seed: CountOrZero = 0
    deterministic: bool = False
    checkpoint_every: Count = 10
    keep_checkpoints: Count = 2
    export: bool = True
    sync_interval: Count = 1
    sync: FromYaml[SyncKind] = SyncKind.INTERVAL
    stall_seconds: Positive = 900.0

    def needs(self) -> Iterator[Need]:
        if self.kind is TrainerKind.DISAGGREGATED:
            yield Need(Outside.EXTRA, ("kind",), "serve")


class RunConfig(Section):
    """One run. The short form `data` + `agent` has become `task_sets` before this is built."""

    model: ModelConfig
    task_sets: FromYaml[tuple[TaskSetConfig, ...]]
    judgers: dict[str, JudgerConfig] = Field(default_factory=dict)
    rollout: RolloutConfig = RolloutConfig()
    produce: ProduceConfig = ProduceConfig()
    buffer: BufferConfig = BufferConfig()
    gateway: GatewayConfig = GatewayConfig()
    learner: LearnerConfig = LearnerConfig()
    trainer: TrainerConfig
    eval: EvalConfig | None = None
    track: TrackConfig = TrackConfig()
    cluster: ClusterConfig = ClusterConfig()

    def needs(self) -> Iterator[Need]:
        """Actors need Ray, whatever section asks for them. All but judgers and ranks also reach the engines over
        HTTP."""
        if self.learner.is_on_actors:
            yield Need(Outside.EXTRA, ("learner", "placement"), "ray")
        for place, section in sections(self):
            if isinstance(section, PlacedSection) and section.num_actors:
                yield Need(Outside.EXTRA, (*place, "num_actors"), "ray")
                if place[0] != "judgers":
                    yield Need(Outside.EXTRA, (*place, "num_actors"), "serve")

    def all_task_sets(self) -> Iterator[tuple[KeyPath, TaskSetConfig]]:
        """The task sets of training and of evaluation, with their places in the config."""
        for index, task_set in enumerate(self.task_sets):
            yield ("task_sets", index), task_set
        for index, task_set in enumerate(self.eval.task_sets if self.eval else ()):
            yield ("eval", "task_sets", index), task_set

    def named_judgers(self) -> Iterator[tuple[KeyPath, str]]:
        """Every place where a judger is named, with the name."""
        for place, task_set in self.all_task_sets():
            yield (*place, "agent", "judger"), task_set.agent.judger
        for whole, judger in self.judgers.items():
            yield from ((("judgers", whole, *place), name) for place, name in judger.names())
