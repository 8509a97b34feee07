"""A real vLLM server below its guard, with our extension in its workers."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

import loopwright.engines.vllm
from loopwright.core.environment import child_environment
from loopwright.engines.vllm.leftovers import shared_files
from loopwright.serve.marked_processes import pids

VLLM = Path(__file__).parents[2] / ".peers" / "vllm" / "bin" / "vllm"
EXTENSION = Path(loopwright.engines.vllm.__file__).parent / "extension"
FLAGS = "--dtype float32 --max-model-len 1024 --max-num-seqs 16 --enforce-eager --enable-scale-out"
START_SECONDS = 900.0
GONE_SECONDS = 30.0
"""After a kill, nothing may be left when this is over."""
CLOSE = 5e-4
"""How far a logprob may be from the model's own. A forgotten update of any layer moves the largest one by more."""
PROMPT = [9042, 338, 11, 40121, 7, 2500, 31337, 88, 19, 4711, 23, 30003]
"""Tokens that surprise the model: their logprobs move with every weight."""


@dataclass(frozen=True)
class GuardedVllm:
    """A server that is ready."""

    guard: subprocess.Popen[str]
    url: str
    pid: int
    state: Path

    def call(self, method: str, argument: object) -> dict[str, Any]:
        """Call a method of the extension. There is one worker."""
        body = {"method": method, "args": [argument if isinstance(argument, str) else json.dumps(argument)]}
        answer = httpx.post(f"{self.url}/collective_rpc", json=body, timeout=300, trust_env=False)
        (result,) = answer.raise_for_status().json()["results"]
        found: dict[str, Any] = result
        return found

    def scores(self, ids: list[int]) -> list[float]:
        """The logprob of each token but the first. These requests read no cache."""
        answer = self.generate(ids, max_tokens=1, prompt_logprobs=0)
        return [one[str(token)]["logprob"] for one, token in zip(answer["prompt_logprobs"][1:], ids[1:], strict=True)]

    def sample(self, ids: list[int], count: int) -> tuple[list[int], list[float]]:
        """Tokens and their logprobs. The cache of older weights is not read, because of its salt."""
        salt = os.urandom(8).hex()
        answer = self.generate(ids, salt, max_tokens=count, temperature=1.0, logprobs=1, ignore_eos=True)
        (choice,) = answer["choices"]
        return choice["token_ids"], [one["logprob"] for one in choice["logprobs"]["content"]]

    def generate(self, ids: list[int], salt: str | None = None, **sampling: Any) -> dict[str, Any]:
        body = {"token_ids": ids, "sampling_params": sampling, "return_token_ids": True}
        body |= {} if salt is None else {"cache_salt": salt}
        answer = httpx.post(f"{self.url}/inference/v1/generate", json=body, timeout=300, trust_env=False)
        found: dict[str, Any] = answer.raise_for_status().json()
        return found

    def known(self) -> dict[str, Any]:
        """What the guard has seen of it: `processes`, `files` and its `folder`."""
        said: dict[str, Any] = json.loads(self.state.read_text())
        return said

    def serves(self, model: Any) -> None:
        """Its logprobs are those of `model`: of a prompt, and of tokens that it samples."""
        tokens, sampled = self.sample(PROMPT, 4)
        prompt = worst(self.scores(PROMPT), logprobs(model, PROMPT))
        answer = worst(sampled, logprobs(model, [*PROMPT, *tokens])[-4:])
        print(f"off by {prompt:.1e} (prompt), {answer:.1e} (sampled)")
        assert max(prompt, answer) < CLOSE, f"off by {prompt:.1e} (prompt), {answer:.1e} (sampled)"


def worst(found: list[float], expected: list[float]) -> float:
    return max(abs(one - other) for one, other in zip(found, expected, strict=True))


@torch.no_grad()
def logprobs(model: Any, ids: list[int]) -> list[float]:
    """Of each token but the first, given those before it."""
    logits = model(torch.tensor([ids])).logits[0, :-1]
    found: list[float] = logits.log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()
    return found


@contextmanager
def guarded_vllm(model: Path, folder: Path, *flags: str) -> Iterator[GuardedVllm]:
    """Start a server, and see that nothing of it is left in the end."""
    if not VLLM.exists():
        pytest.fail(f"{VLLM} is not there: run `make .peers/vllm/.ready`")
    state, log, shared = folder / "state", folder / "log", shared_memory()
    serve = [str(VLLM), "serve", str(model), *FLAGS.split(), *flags, "--logprobs-mode", "processed_logprobs"]
    serve += ["--structured-outputs-config.backend=guidance"]
    serve += ["--host", "127.0.0.1", "--port", "{port}", "--worker-extension-cls", "loopwright_vllm.WeightLoader"]
    guard = [sys.executable, "-m", "loopwright.engines.vllm.guard", "--state", str(state), "--log", str(log)]
    env = child_environment(dict(os.environ)) | {
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "PYTHONPATH": str(EXTENSION),
    }
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [*guard, "--start-seconds", str(START_SECONDS), "--", *serve],
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        text=True,
        env=env,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        assert select.select([process.stdout], [], [], START_SECONDS + GONE_SECONDS)[0]
        if not (line := process.stdout.readline()):
            pytest.fail(f"vLLM did not start: {process.communicate()[1]}")
        said = json.loads(line)
        yield GuardedVllm(process, f"http://127.0.0.1:{said['port']}", said["pid"], state)
    finally:
        # The pipe ends, and with it the server.
        process.communicate(timeout=GONE_SECONDS)
    assert leaked(shared) == set()


def shared_memory() -> set[str]:
    return {f"/dev/shm/{name}" for name in os.listdir("/dev/shm") if name.startswith(("psm_", "sem."))}


def leaked(before: set[str]) -> set[str]:
    """New files that no process has open. Another server may have started meanwhile, and its files are in use."""
    new = shared_memory() - before
    return new - {file.path for pid in pids() for file in shared_files(pid)}


def nothing_left(known: dict[str, Any], seconds: float = GONE_SECONDS) -> None:
    """Wait until all that the guard had seen is gone."""
    deadline = time.monotonic() + seconds
    while left := [
        *[pid for pid, started in known["processes"] if _lives(pid, started)],
        *[path for path in [known["folder"], *(file[0] for file in known["files"])] if os.path.exists(path)],
    ]:
        assert time.monotonic() < deadline, f"left: {left}"
        time.sleep(0.1)


def _lives(pid: int, started: str) -> bool:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[0] not in "ZX" and fields[19] == started
