"""However a real vLLM server ends, nothing of it is left; and weights that are not tied."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from guarded_vllm import GONE_SECONDS, GuardedVllm, guarded_vllm, logprobs, nothing_left
from transformers import AutoModelForCausalLM

from loopwright.engines.vllm.leftovers import sweep
from loopwright.models.smollm2 import smollm2_folder
from loopwright.testing.tiny import tiny_llama
from loopwright.testing.weight_file import weight_file

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]

LONG = 900
"""So many tokens take longer than a test waits."""
CLOSE = 1e-4


@pytest.fixture
def server(tmp_path: Path) -> Iterator[GuardedVllm]:
    with guarded_vllm(smollm2_folder(Path.home() / ".cache" / "loopwright" / "models"), tmp_path) as started:
        yield started


@pytest.fixture
def busy(server: GuardedVllm) -> Iterator[Future[dict[str, Any]]]:
    """A request that is being answered."""
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(server.generate, [5, 6, 7], max_tokens=LONG, temperature=1.0, ignore_eos=True)
        deadline = time.monotonic() + 120
        while "vllm:num_requests_running{" not in (text := metrics(server)) or running(text) == 0:
            assert time.monotonic() < deadline
            assert not answer.done()
        yield answer


def metrics(server: GuardedVllm) -> str:
    return httpx.get(f"{server.url}/metrics", timeout=60, trust_env=False).text


def running(text: str) -> float:
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith("vllm:num_requests_running{"))


def test_sigterm_with_a_request_in_flight(server: GuardedVllm, busy: Future[dict[str, Any]]) -> None:
    known = server.known()
    server.guard.terminate()
    assert busy.result(GONE_SECONDS)["choices"][0]["finish_reason"] == "abort"
    assert server.guard.wait(GONE_SECONDS) == 0
    nothing_left(known, 0)


def test_weights_that_are_not_tied_are_loaded(tmp_path: Path) -> None:
    untied = tiny_llama(tmp_path / "untied", initializer_range=0.4, tie_word_embeddings=False, head_dim=32)
    model = AutoModelForCausalLM.from_pretrained(untied, dtype=torch.float32).eval()
    ids, random = [5, 6, 7, 200, 31, 77, 250], torch.Generator().manual_seed(0)
    with guarded_vllm(untied, tmp_path) as server:
        assert server.scores(ids) == pytest.approx(logprobs(model, ids), abs=CLOSE)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1 + 0.1 * torch.randn(parameter.shape, generator=random))
        file = asdict(weight_file(dict(model.named_parameters()), tmp_path / "weights.safetensors"))
        assert not server.call("loopwright_about", "{}")["tied"]
        assert server.call("loopwright_load_weights", {"file": file})["status"] == "loaded"
        assert server.scores(ids) == pytest.approx(logprobs(model, ids), abs=CLOSE)


def test_a_killed_first_process_leaves_nothing(server: GuardedVllm, busy: Future[dict[str, Any]]) -> None:
    known = server.known()
    assert len(known["processes"]) >= 3
    os.kill(server.pid, signal.SIGKILL)
    with suppress(httpx.HTTPError):
        busy.result(GONE_SECONDS)
    assert server.guard.wait(GONE_SECONDS) == 1
    nothing_left(known, 0)
    assert server.guard.stderr is not None
    assert "the server was killed by SIGKILL" in server.guard.stderr.read()


def test_a_killed_guard_is_swept_up_after(server: GuardedVllm, busy: Future[dict[str, Any]]) -> None:
    known = server.known()
    server.guard.kill()
    server.guard.wait(GONE_SECONDS)
    assert sweep(server.state) >= 3
    nothing_left(known, 0)
    with suppress(httpx.HTTPError):
        busy.result(GONE_SECONDS)


def test_a_closed_pipe_with_a_request_in_flight(server: GuardedVllm, busy: Future[dict[str, Any]]) -> None:
    """As when the supervisor is killed."""
    known = server.known()
    assert server.guard.stdin is not None
    server.guard.stdin.close()
    server.guard.stdin = None
    assert server.guard.wait(GONE_SECONDS) == 0
    nothing_left(known, 0)
    assert busy.result(GONE_SECONDS)["choices"][0]["finish_reason"] == "abort"
