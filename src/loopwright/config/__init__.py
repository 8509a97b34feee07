"""The schema of a run, its layers with their provenance, and the checks across fields. Torch-free."""

from loopwright.config.data import DataConfig, JsonlData, PythonData
from loopwright.config.evaluation import BuiltInMetric, CustomMetric, EvalConfig, MetricSpec
from loopwright.config.files import BUNDLED_MODEL, model_folder
from loopwright.config.imports import load_symbol, user_line
from loopwright.config.judgers import (
    BUILT_IN_JUDGERS,
    ComposedJudgerConfig,
    EndpointConfig,
    HttpJudgerConfig,
    IntegerAnswerConfig,
    JudgePer,
    JudgerConfig,
    LlmJudgerConfig,
    MathAnswerConfig,
    NativeJudgerConfig,
)
from loopwright.config.layers import Layer, Source
from loopwright.config.learner import AdvantageKind, LearnerConfig, PpoClipConfig
from loopwright.config.loading import Loaded, Setting, load
from loopwright.config.schema import (
    Dtype,
    ModelConfig,
    ProduceConfig,
    RolloutConfig,
    RunConfig,
    TorchEngineConfig,
    TrackConfig,
    TrainerConfig,
)
from loopwright.config.task_sets import AgentConfig, PythonAgent, SamplingOverrides, SingleTurnAgent, TaskSetConfig

__all__ = [
    "BUILT_IN_JUDGERS",
    "BUNDLED_MODEL",
    "AdvantageKind",
    "AgentConfig",
    "BuiltInMetric",
    "ComposedJudgerConfig",
    "CustomMetric",
    "DataConfig",
    "Dtype",
    "EndpointConfig",
    "EvalConfig",
    "HttpJudgerConfig",
    "IntegerAnswerConfig",
    "JsonlData",
    "JudgePer",
    "JudgerConfig",
    "Layer",
    "LearnerConfig",
    "LlmJudgerConfig",
    "Loaded",
    "MathAnswerConfig",
    "MetricSpec",
    "ModelConfig",
    "NativeJudgerConfig",
    "PpoClipConfig",
    "ProduceConfig",
    "PythonAgent",
    "PythonData",
    "RolloutConfig",
    "RunConfig",
    "SamplingOverrides",
    "Setting",
    "SingleTurnAgent",
    "Source",
    "TaskSetConfig",
    "TorchEngineConfig",
    "TrackConfig",
    "TrainerConfig",
    "load",
    "load_symbol",
    "model_folder",
    "user_line",
]
