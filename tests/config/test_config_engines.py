"""Engines that already run, and the door: what can be set, and which mistakes are found before anything starts."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from loopwright.config import Loaded, LoopwrightEngineConfig, Purpose, TorchEngineConfig, VllmEngineConfig
from loopwright.config.base import needs_of
from loopwright.config.needs import Outside
from loopwright.config.purpose import part_for
from loopwright.errors import ConfigError
from loopwright.types import TrainerKind

APART = ("trainer.kind=disaggregated", "produce.kind=async")
VLLM = "rollout.engine={kind: vllm}"
LoadText = Callable[..., Loaded]


def attached(*urls: str) -> str:
    return f"rollout.engine={{kind: loopwright, urls: {json.dumps(urls)}}}"


@pytest.fixture
def problems(load_text: LoadText, minimal: str) -> Callable[..., str]:
    def report(*overrides: str) -> str:
        with pytest.raises(ConfigError) as error:
            load_text(minimal, *overrides)
        return str(error.value)

    return report


def test_an_engine_without_a_kind_is_the_embedded_one(load_text: LoadText, minimal: str) -> None:
    engine = load_text(minimal, "rollout.engine.max_batch=5").config.rollout.engine
    assert engine == TorchEngineConfig(max_batch=5)
    assert engine.embedded is engine


def test_engines_that_already_run_are_named_by_their_urls(load_text: LoadText, minimal: str) -> None:
    config = load_text(minimal, *APART, attached("http://127.0.0.1:1", "http://localhost", "http://[::1]:2")).config
    assert config.rollout.engine == LoopwrightEngineConfig(
        urls=("http://127.0.0.1:1", "http://localhost", "http://[::1]:2")
    )
    assert config.rollout.engine.embedded == TorchEngineConfig(), "evaluations compute in their own process"


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (
            (*APART, "rollout.engine.num_engines=0"),
            "num_engines: is 0, but trainer.kind is disaggregated",
        ),
        (("trainer.deterministic=true", VLLM), "is on, but rollout.engine.kind is vllm"),
        (("trainer.deterministic=true", "rollout.engine.num_engines=1"), "is on, but rollout.engine.num_engines is 1"),
        ((*APART, "rollout.engine=loopwright"), "rollout.engine.urls: missing"),
        (
            (*APART, "rollout.engine={kind: vllm, args: [--enforce-eager, --host, 0.0.0.0]}"),
            "rollout.engine.args.1: is '--host'",
        ),
        ((*APART, "rollout.engine={kind: vllm, args: ['--max_model_len=7']}"), "args.0: is '--max_model_len=7'"),
        ((*APART, "rollout.engine={kind: vllm, args: ['--hos=::']}"), "args.0: is '--hos=::', short for --host"),
        ((*APART, "rollout.engine={kind: vllm, args: [--logprobs_m, raw_logprobs]}"), "short for --logprobs-mode"),
        (
            (*APART, "rollout.engine={kind: vllm, args: [--structured-outputs-config.backend=xgrammar]}"),
            "only `guidance` reads the grammars",
        ),
        (
            (*APART, """rollout.engine={kind: vllm, args: ['--structured-outputs-config={"backend": "xgrammar"}']}"""),
            "short for --structured-outputs-config.backend",
        ),
        ((*APART, "rollout.engine={kind: vllm, args: [--no_enable_scale_out]}"), "args.0: is '--no_enable_scale_out'"),
        ((*APART, attached()), "rollout.engine.urls: "),
        ((*APART, attached("127.0.0.1:8000")), "rollout.engine.urls.0: '127.0.0.1:8000' is no address"),
        (
            (*APART, "rollout.engine={kind: sglang, urls: ['http://10.0.0.7:1']}"),
            "http://10.0.0.7:1 is on another machine",
        ),
        ((*APART, attached("http://me:pw@localhost")), "name that as key_env"),
        ((*APART, attached("http://localhost:1", "http://localhost:1/")), "rollout.engine.urls.1"),
        (("rollout.engine={kind: vlm}",), "unknown kind 'vlm'"),
        ((*APART, "rollout.engine={kind: vllm, num_engines: 0}"), "rollout.engine.num_engines"),
        (
            (*APART, "rollout.engine={kind: vllm, num_engines: 2, urls: ['http://localhost:1']}"),
            "rollout.engine.num_engines: is set, and so is urls",
        ),
        ((*APART, "rollout.engine={kind: sglang}"), "rollout.engine.urls"),
        (
            (*APART, "rollout.engine={kind: sglang, urls: ['http://localhost:1']}", "produce.in_flight=keep"),
            "produce.in_flight: is keep, but rollout.engine.kind is sglang",
        ),
        ((*APART, VLLM, "produce.in_flight=keep"), "produce.in_flight: is keep, but rollout.engine.kind is vllm"),
        ((*APART, VLLM, "rollout.top_k=5"), "rollout.top_k: is 5: the logprobs of vllm come after it"),
        ((*APART, VLLM, "sampling.top_p=0.9"), "top_p: is 0.9: the logprobs of vllm come after it"),
        (("rollout.door.port=70000",), "rollout.door.port: is 70000, must be at most 65535"),
        (("rollout.door.advertise_url=http://0.0.0.0:80",), "'http://0.0.0.0:80' is no address that others can ask"),
        (("rollout.door.advertise_url=http://[::]:80",), "is no address that others can ask"),
        (("rollout.door.advertise_url=gateway",), "rollout.door.advertise_url: 'gateway' is no address"),
        (("rollout.door.advertise_url=http://host/?a=1",), "is no address to which others can add a path"),
        (("rollout.door.host='0'",), "rollout.door.advertise_url: missing, and host is 0"),
        (("rollout.door.host=0.0.0.0",), "rollout.door.advertise_url: missing, and host is 0.0.0.0"),
    ],
)
def test_mistakes_are_reported_with_their_place(problems: Any, overrides: tuple[str, ...], words: str) -> None:
    assert words in problems(*overrides)


def test_engines_on_other_machines_get_their_weights_by_broadcast(load_text: LoadText, minimal: str) -> None:
    for engine in (attached("http://10.0.0.7:1"), "rollout.engine={kind: vllm, urls: ['http://10.0.0.7:1']}"):
        assert load_text(minimal, *APART, engine).config.rollout.engine.processes(TrainerKind.DISAGGREGATED) == 1


@pytest.mark.parametrize(
    ("overrides", "processes"),
    [
        ((), 0),
        (APART, 1),
        ((*APART, "rollout.engine.num_engines=3"), 3),
        (("rollout.engine.num_engines=1",), 1),
        ((VLLM,), 1),
        ((*APART, attached("http://localhost:1", "http://localhost:2")), 2),
    ],
)
def test_an_engine_is_in_the_learners_process_only_if_they_take_turns(
    load_text: LoadText, minimal: str, overrides: tuple[str, ...], processes: int
) -> None:
    config = load_text(minimal, *overrides).config
    assert config.rollout.engine.processes(config.trainer.kind) == processes


def test_servers_are_started_unless_they_are_named(load_text: LoadText, minimal: str) -> None:
    args = ("--enforce-eager", "--max-num-batched-tokens=64", "--config", "-", "--", "")
    started = f"rollout.engine={{kind: vllm, num_engines: 2, args: {json.dumps(args)}}}"
    config = load_text(minimal, *APART, started).config
    assert config.rollout.engine == VllmEngineConfig(kind="vllm", num_engines=2, args=args)
    assert config.rollout.engine.embedded == TorchEngineConfig(), "evaluations compute in their own process"


def test_the_program_of_a_server_must_be_there(problems_of: Callable[..., list[str]], minimal: str) -> None:
    found = problems_of(minimal, *APART, "rollout.engine={kind: vllm, executable: no/such/vllm}", files=True)
    assert any("rollout.engine.executable" in problem for problem in found)
    named = "rollout.engine={kind: vllm, executable: no/such/vllm, urls: ['http://localhost:1']}"
    assert not any("executable" in problem for problem in problems_of(minimal, *APART, named, files=True))


def test_the_key_of_engines_is_a_variable_that_must_be_set(problems_of: Callable[..., list[str]], minimal: str) -> None:
    engine = "rollout.engine={kind: loopwright, urls: ['http://localhost:1'], key_env: NO_SUCH_KEY}"
    found = problems_of(minimal, *APART, engine, files=True)
    missing = "rollout.engine.key_env: the environment variable NO_SUCH_KEY is not set"
    assert any(problem.startswith(missing) for problem in found)


@pytest.mark.parametrize(
    "door", ["{}", "{host: 0.0.0.0, advertise_url: 'http://run.example'}", "{advertise_url: 'https://run.example'}"]
)
def test_a_door_needs_no_port(load_text: LoadText, minimal: str, door: str) -> None:
    config = load_text(minimal, f"rollout.door={door}").config
    assert config.rollout.door is not None
    assert config.rollout.door.port == 0


def test_who_does_not_train_needs_neither_engines_nor_a_door(load_text: LoadText, minimal: str) -> None:
    engine = "rollout.engine={kind: loopwright, urls: ['http://localhost:1'], key_env: NO_SUCH_KEY}"
    config = load_text(minimal, *APART, engine, "rollout.door={}").config
    assert Outside.KEY in {need.what for need in needs_of(config)}
    part = part_for(config, Purpose.ROLL_OUT)
    assert Outside.KEY not in {need.what for need in needs_of(part)}
    assert part.rollout.door is None
