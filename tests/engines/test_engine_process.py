"""`loopwright engine` as a process of its own: killed, restarted, brought up to date, and never left behind."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from plain_model import PlainModel, Sample, put

from loopwright.engines.controller import RolloutController
from loopwright.engines.http.process import engine_command, engine_process
from loopwright.engines.worker import Worker
from loopwright.errors import BudgetError
from loopwright.models.load import load_model
from loopwright.testing.tiny import tiny_llama
from loopwright.testing.weight_file import weight_file
from loopwright.types import GenerateRequest, Generation, PauseMode, Sampling

pytestmark = pytest.mark.real

TOKENS = 600


@pytest.fixture(scope="module")
def deep_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model of many layers, computed by torch: it takes seconds to answer, and can be met in the middle."""
    return tiny_llama(tmp_path_factory.mktemp("deep"), num_hidden_layers=24, initializer_range=0.2)


class Processes:
    """Launches engines and knows the process of the latest."""

    def __init__(self, model: Path | str, log: Path) -> None:
        self._command = engine_command(str(model), threads=1, max_batch=8, native=False)
        self._log = log
        self.pids: list[int] = []

    @asynccontextmanager
    async def launch(self) -> AsyncIterator[Worker]:
        async with engine_process(self._command, env=os.environ, log=self._log, start_seconds=120) as worker:
            self.pids += [pid for pid in engines() if pid not in self.pids]
            yield worker


def engines() -> list[int]:
    """Those that this process has started. It may have other children: workers that earlier tests left waiting."""
    children = map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())
    return [pid for pid in children if "engine" in command_line(pid).split("\0")]


def command_line(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


def ask(**sampling: float) -> GenerateRequest:
    return GenerateRequest("a/0", (5, 6, 7), Sampling(**({"max_new_tokens": TOKENS} | sampling)))  # type: ignore[arg-type]


async def under_way(controller: RolloutController, call: asyncio.Task[Generation]) -> None:
    before = controller.steps
    async with asyncio.timeout(60):
        while controller.steps < before + 5:
            assert not call.done()
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
async def test_a_killed_engine_costs_no_token(deep_folder: Path, tmp_path: Path, temperature: float) -> None:
    """kill -9 in the middle of an answer: the caller gets what it would have got without."""
    processes, request = Processes(deep_folder, tmp_path / "log"), ask(temperature=temperature, seed=3)
    async with RolloutController.open([processes.launch]) as controller:
        expected = await controller.generate(request)
        call = asyncio.create_task(controller.generate(request))
        await under_way(controller, call)
        os.kill(processes.pids[-1], signal.SIGKILL)
        got = await call
    assert len(processes.pids) == 2
    assert (got.ids, got.finish, got.versions) == (expected.ids, expected.finish, expected.versions)
    assert max(abs(a - b) for a, b in zip(got.logprobs, expected.logprobs, strict=True)) < 1e-4
    assert engines() == []


async def test_tokens_before_and_after_an_update_and_a_death_are_exact_for_their_version(
    deep_folder: Path, tmp_path: Path
) -> None:
    """T4, T8: each compared with transformers' own numbers under the weights that its stamp names."""
    loaded, plain = load_model(str(deep_folder), cache=deep_folder), PlainModel(deep_folder, 2)
    put(loaded.model, plain.versions[1])
    file = weight_file(dict(loaded.model.named_parameters()), tmp_path / "w.safetensors")
    processes, request = Processes(deep_folder, tmp_path / "log"), ask(temperature=0.7, seed=5)
    async with RolloutController.open([processes.launch]) as controller:
        call = asyncio.create_task(controller.generate(request))
        await under_way(controller, call)
        await controller.pause(PauseMode.ABORT)
        await controller.load(1, file)
        await controller.resume()
        await under_way(controller, call)
        os.kill(processes.pids[-1], signal.SIGKILL)
        got = await call
    assert set(got.versions) == {0, 1}
    plain.check([Sample(request, got.ids, got.logprobs, got.versions)])


async def test_an_engine_that_cannot_start_says_why(tmp_path: Path) -> None:
    processes = Processes(tmp_path / "no-model", tmp_path / "log")
    with pytest.raises(BudgetError, match="cannot load the tokenizer"):
        async with RolloutController.open([processes.launch]):
            pass


async def test_the_key_is_on_no_command_line(tiny_llama_folder: Path, tmp_path: Path) -> None:
    launch = partial(
        engine_process,
        engine_command(str(tiny_llama_folder), threads=1, max_batch=1),
        env=os.environ,
        log=tmp_path / "l",
    )
    async with launch() as worker:
        (pid,) = engines()
        headers = worker.engine._connections._headers  # type: ignore[attr-defined]
        key = headers.partition("Bearer ")[2].strip()
        assert key not in command_line(pid)
        assert len(key) > 30
