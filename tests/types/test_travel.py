"""Every value that crosses a port can go to another process: it comes back equal, and can still not be changed.

The types are found by walking `types/` and `ports/`, so a new one without a sample here fails.

Mappings inside of values (messages, tools, a task's metadata, the parts of a score) come from callers, from JSON or
from a user's code. They stay the plain dicts that they are: a read-only view of a dict can neither be pickled nor
written as JSON. For them, the test asks for equality only.
"""

from __future__ import annotations

import copy
import dataclasses
import importlib
import inspect
import pickle
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, FrozenInstanceError, fields, is_dataclass
from enum import Enum
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from loopwright import errors, ports, types
from loopwright.errors import LoopwrightError
from loopwright.ports.agent_loop import AgentResult, Reply
from loopwright.ports.buffer import StartedGroup
from loopwright.ports.learner import StepReport
from loopwright.ports.sessions import Endpoint, SessionTimes
from loopwright.ports.storage import GroupRow, HeldGroup, MemberRow, ResumePlan, StalePolicy
from loopwright.types import (
    AnswerForm,
    BroadcastBackend,
    ChainStart,
    Constraint,
    ContentDelta,
    EngineCapacity,
    Episode,
    EpisodeDrift,
    Failed,
    FailureCause,
    FinishReason,
    GenerateRequest,
    Generation,
    GrammarKind,
    Group,
    GroupStatus,
    InPlace,
    Parsed,
    ProbeAnswer,
    ProgramOutput,
    ReasoningDelta,
    RecordedChain,
    Rollout,
    RolloutKey,
    RolloutRequest,
    Sampling,
    Scored,
    Split,
    Stale,
    StopReason,
    Task,
    TaskResult,
    TensorSpec,
    Timing,
    TokenChain,
    TokenDiff,
    ToolCall,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    TrainedChain,
    TrainedRollout,
    Turn,
    Unscored,
    WeightBroadcast,
    WeightFile,
)

TOOL = {
    "name": "add",
    "description": "Adds.",
    "parameters": {"type": "object", "properties": {"a": {"type": "number"}}},
}
CALL = ToolCall("add", '{"a": 1}', "call-1")
MESSAGES = ({"role": "user", "content": "12+7?"}, Parsed("19", "easy", (CALL,)).message)
TASK = Task("sum", MESSAGES, {"answer": [19]}, (TOOL,), {"level": 2, "tags": ["a"]})
CHAIN = TokenChain(
    np.array([5, 6, 7]),
    np.array([False, True, True]),
    np.array([0.0, -0.5, -1.25]),
    np.array([-1, 3, 4]),
    ChainStart.BRANCH,
    trained=False,
    constrained=((1, 2),),
)
CONSTRAINT = Constraint(GrammarKind.LARK, 'start: "yes" | "no"')
DIFF = TokenDiff(3, ("a",), ("b", "c"), ("bc",))
OUTPUT = ProgramOutput("agent", "said", 3, "checked", 0.5, 2.5)
EPISODE = Episode(MESSAGES, (CHAIN,), StopReason.BUDGET, (TOOL,), EpisodeDrift(9, 2, 1, DIFF), OUTPUT)
KEY = RolloutKey("sums", 7, 2, 1)
TRAINED = TrainedChain(1, np.array([1, 2]), np.array([-0.5, -1.25]), np.array([0.25, -0.5]))
TIMING = Timing(1.5, 2.5, 0.5, 0.25, 4.5)
ROLLOUT = Rollout(KEY, TASK, EPISODE, Scored(0.5, {"format": 1.0}, "19", "it is right"), TIMING, "loop 1", ("0", "1"))
SAMPLING = Sampling(0.7, 99, 40, 0.9, (2, 3), ("END",), 11)
ROW = GroupRow("sums", 7, 1, TASK, 3, GroupStatus.CONSUMED, 4, 2)
MEMBER = MemberRow(2, 1, 1, 2, 3, True)

FILE = WeightFile("weights.safetensors", 96, "c0ffee", {"head": TensorSpec("F32", (2, 3))})

SAMPLES: tuple[Any, ...] = (
    CALL,
    TASK,
    CHAIN,
    DIFF,
    EPISODE,
    KEY,
    TIMING,
    ROLLOUT,
    SAMPLING,
    ROW,
    EngineCapacity(kv_tokens=4096, sequences=8),
    MEMBER,
    Rollout(KEY, TASK, None, Failed(FailureCause.INFRA, "EngineError", "gone"), TIMING),
    Rollout(KEY, TASK, EPISODE, Unscored(), TIMING),
    Scored(0.5, {"format": 1.0}, "19", "it is right"),
    Failed(FailureCause.AGENT, "ValueError", "no"),
    Unscored(),
    EpisodeDrift(9, 2, 1, DIFF),
    TaskResult(TASK, (ROLLOUT,)),
    Group("sums", 7, TASK, (ROLLOUT, ROLLOUT)),
    Parsed("19", "easy", (CALL,)),
    ContentDelta("19"),
    ReasoningDelta("easy"),
    ToolCallStart(1, "add", "call-1"),
    ToolCallArguments(1, '{"a"'),
    ToolCallEnd(1),
    RecordedChain(1, ChainStart.TOOLS, True, 2, MESSAGES, (TOOL,), 3, 40),
    AnswerForm({"type": "object"}, (TOOL,), True, "response_format"),
    CONSTRAINT,
    GenerateRequest("r-1", (5, 6), SAMPLING, True, 1, 7, 2.5, "sums/7", CONSTRAINT, 2),
    Generation(
        (7, 8),
        (-0.5, -1.25),
        (3, 4),
        FinishReason.STOP,
        (0.5, 1.5),
        ((1, 2),),
        (((7, -0.5),), ((9, -0.25), (8, -1.25))),
    ),
    RolloutRequest(Split.EVAL, KEY, TASK, SAMPLING, 60.0, ROLLOUT),
    Turn((5, 6), (7, 8), (-0.5, -1.25), (3, 4), FinishReason.LENGTH),
    TensorSpec("F32", (2, 3)),
    FILE,
    WeightBroadcast(FILE, "127.0.0.1", 9, "update-3", 2, BroadcastBackend.GLOO, 60.0, 2**26),
    InPlace(),
    ProbeAnswer((-0.5,), Generation((7,), (-0.5,), (3,), FinishReason.LENGTH)),
    Reply("19", FinishReason.STOP, "easy", (CALL,), 12),
    StartedGroup(ROW, (ROLLOUT,), {2: 1}),
    TRAINED,
    TrainedRollout(KEY, 0.5, 0.125, (TRAINED,)),
    StepReport(4, {"loss": 0.25}, (TrainedRollout(KEY, 0.0, 0.125),)),
    Endpoint("http://127.0.0.1:1/s/v1", "key", "http://127.0.0.1:1/s", "tiny"),
    SessionTimes(2.0, 1.0),
    OUTPUT,
    AgentResult(MESSAGES, Scored(0.5), StopReason.BUDGET, OUTPUT),
    StalePolicy(Stale.RETRY, 3, 2),
    HeldGroup(ROW, (MEMBER,)),
    ResumePlan((HeldGroup(ROW, (MEMBER,)),), (5, 6), 8, 2),
)


def classes_of(package: ModuleType) -> Iterator[type]:
    """All classes that the package's modules define, but no protocols: a protocol has no values of its own."""
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        module = importlib.import_module(found.name)
        for _, kind in inspect.getmembers(module, inspect.isclass):
            if kind.__module__ == found.name and not getattr(kind, "_is_protocol", False):
                yield kind


KINDS = [*classes_of(types), *classes_of(ports)]
VALUES = [kind for kind in KINDS if not issubclass(kind, Enum | BaseException)]
ENUMS = [kind for kind in KINDS if issubclass(kind, Enum)]
ERRORS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, BaseException)]
ERRORS += [kind for kind in KINDS if issubclass(kind, BaseException)]

Trip = Callable[[Any], Any]


def pickled(value: Any, protocol: int) -> Any:
    return pickle.loads(pickle.dumps(value, protocol))


def out_of_band(value: Any) -> Any:
    """Arrays beside the pickle, in memory that the receiver can write to, as Ray and multiprocessing may send them."""
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(value, 5, buffer_callback=buffers.append)
    return pickle.loads(data, buffers=[bytearray(buffer.raw()) for buffer in buffers])


TRIPS: Mapping[str, Trip] = {
    "protocol 4": partial(pickled, protocol=4),
    "protocol 5": partial(pickled, protocol=5),
    "out of band": out_of_band,
    "deepcopy": copy.deepcopy,
}
trips = pytest.mark.parametrize("trip", TRIPS.values(), ids=TRIPS)


def writeable_parts(value: Any, path: str) -> Iterator[str]:
    """Where a value could be changed, other than in the mappings of callers."""
    if isinstance(value, np.ndarray):
        if value.flags.writeable:
            yield path
    elif isinstance(value, tuple):
        for number, part in enumerate(value):
            yield from writeable_parts(part, f"{path}[{number}]")
    elif is_dataclass(value):
        for field in fields(value):
            held = getattr(value, field.name)
            try:
                setattr(value, field.name, held)
            except FrozenInstanceError:
                yield from writeable_parts(held, f"{path}.{field.name}")
            else:
                yield f"{path}.{field.name}"
    elif not isinstance(value, Mapping | Enum | str | bytes | int | float | None):
        yield f"{path}, a {type(value).__name__}"


@pytest.mark.parametrize("kind", VALUES, ids=lambda kind: kind.__name__)
def test_every_value_type_is_a_dataclass_with_a_whole_sample(kind: type) -> None:
    """A field that is as it is by default says nothing: it would come back so if it were lost."""
    assert is_dataclass(kind), f"{kind.__qualname__} is no dataclass: teach this test how to compare it"
    samples = [sample for sample in SAMPLES if type(sample) is kind]
    assert samples, f"add a sample of {kind.__qualname__} to SAMPLES"
    for field in fields(kind):
        default = field.default_factory() if field.default_factory is not MISSING else field.default
        if default is not MISSING:
            values = [getattr(sample, field.name) for sample in samples]
            assert any(value != default for value in values), f"in SAMPLES, {field.name} is only what it is by default"


@trips
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: type(sample).__name__)
def test_a_value_comes_back_equal_and_read_only(sample: Any, trip: Trip) -> None:
    arrived = trip(sample)
    assert type(arrived) is type(sample)
    assert arrived == sample
    assert repr(arrived) == repr(sample), "also in fields that are not compared"
    assert list(writeable_parts(arrived, type(sample).__name__)) == []


@trips
@pytest.mark.parametrize("kind", ENUMS, ids=lambda kind: kind.__name__)
def test_a_member_of_a_closed_set_comes_back_as_itself(kind: type[Enum], trip: Trip) -> None:
    assert all(trip(member) is member for member in kind)


@trips
@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_an_error_comes_back_with_all_its_fields(kind: type[LoopwrightError], trip: Trip) -> None:
    error = kind("line 3 is no JSON", remedy="mend it", file="tasks.jsonl", line=3, problems=["one", "two"])
    error.add_note("besides, the disk is full")
    arrived = trip(error)
    assert type(arrived) is kind
    assert (arrived.args, str(arrived)) == (error.args, str(error))
    assert vars(arrived) == vars(error)
    assert (arrived.remedy, arrived.facts["line"]) == ("mend it", 3)
    assert arrived.__notes__ == ["besides, the disk is full"]


@pytest.mark.parametrize("name", [field.name for field in fields(TokenChain) if field.init])
def test_chains_that_differ_in_one_stream_are_not_equal(name: str) -> None:
    changes: Mapping[str, Any] = {
        "ids": {"ids": [5, 6, 8]},
        "mask": {"mask": [False, True, False], "logprobs": [0.0, -0.5, 0.0], "versions": [-1, 3, -1]},
        "logprobs": {"logprobs": [0.0, -0.5, -1.5]},
        "versions": {"versions": [-1, 3, 3]},
        "start": {"start": ChainStart.FIRST},
        "trained": {"trained": True},
        "constrained": {"constrained": ()},
    }
    other = dataclasses.replace(CHAIN, **changes[name])
    assert other != CHAIN
    assert dataclasses.replace(CHAIN) == CHAIN
    assert CHAIN.ids.tolist() != CHAIN


def test_a_damaged_chain_does_not_arrive() -> None:
    """What another process sends is checked like what is built here."""
    rebuild, streams = CHAIN.__reduce__()
    with pytest.raises(errors.ChainError, match="must align"):
        rebuild(streams[0][:2], *streams[1:])
