"""A run that trains the model behind a program, alone on a loopback: run by `programs.train` in a network namespace of
its own.

The engine is scripted, recorded, and in another process than the run, which is `loopwright train`. It speaks tokens of
SmolLM2 that no tokenizer would choose. Reads a scene from standard input and writes what came of it to standard output,
after the stored chains were checked against what the engine received and sampled.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from client_scene import OddTokens, raise_loopback
from gateway_house import RecordingEngine
from transformers import AutoTokenizer

from loopwright.core.chains import turns_of
from loopwright.engines.http.model_card import ModelCard
from loopwright.runs.run_folder import RunFolder
from loopwright.runs.stored_run import StoredRun
from loopwright.testing.scripted_server import serve_scripted
from loopwright.testing.tiny import tiny_llama
from loopwright.track.jsonl import read_jsonl
from loopwright.types import GenerateRequest, Rollout, Scored

MAX_CONTEXT = 1 << 16
PATIENCE = 300
SMALL = (
    "model.threads=1",
    "produce.kind=async",
    "produce.max_staleness=0",
    "produce.max_attempts=1",
    "produce.failure_budget=1",
    "rollout.samples_per_task=2",
    "rollout.max_new_tokens=1024",
    "trainer.kind=disaggregated",
    "trainer.steps=1",
    "trainer.groups_per_step=1",
    "trainer.export=false",
    "eval=null",
    "track.console=false",
    "track.report=false",
)


class Speaker:
    """Each session has a part of its own, and says its lines one after the other. It is the next one, in the order in
    which they begin; or, of parts with names, the one whose name is in the prompt. To requests that do not hold the
    task it says little: clients ask for titles too."""

    def __init__(self, tokens: OddTokens, task: str, parts: list[list[str]] | dict[str, list[str]]) -> None:
        self._tokens = tokens
        self._task = task
        self._parts = parts
        self._sessions: dict[str, list[str]] = {}

    def answer(self, request: GenerateRequest) -> str:
        prompt = self._tokens.decode(request.prompt_ids)
        if self._task not in prompt:
            return "Nothing."
        session = request.id.partition("/")[0]
        if session not in self._sessions:
            self._sessions[session] = self._chosen(prompt)
        part = self._sessions[session]
        # The prompt holds what was said before, as it was said.
        return next((line for line in part if line not in prompt), part[-1])

    def _chosen(self, prompt: str) -> list[str]:
        if isinstance(self._parts, dict):
            return next(part for name, part in self._parts.items() if name in prompt)
        return self._parts[len(self._sessions) % len(self._parts)]


async def play(scene: dict[str, Any]) -> dict[str, Any]:
    folder = Path(scene["folder"])
    tokenizer = AutoTokenizer.from_pretrained(scene["tokenizer"])
    model = tiny_llama(folder / "model", tokenizer=tokenizer, max_position_embeddings=MAX_CONTEXT)
    tokens = OddTokens(tokenizer)
    engine = RecordingEngine(Speaker(tokens, scene["task"], scene["parts"]).answer, encode=tokens.encode)
    async with serve_scripted(engine, ModelCard(str(model), MAX_CONTEXT)) as url:
        settings = [
            f"model.path={model}",
            f"trainer.run_dir={folder / 'run'}",
            f"rollout.engine={{kind: loopwright, urls: ['{url}'], proof: off}}",
            *SMALL,
            *scene["settings"],
        ]
        trained = await _command(scene, "train", scene["config"], *settings)
        audited = await _command(scene, "audit", str(folder / "run"))
    run = RunFolder(folder / "run")
    rollouts = [attempt.rollout for attempt in StoredRun(run.rollouts).attempts()] if run.rollouts.exists() else []
    _check_tokens(rollouts, engine)
    return {
        "code": trained.returncode,
        "shown": trained.stdout + trained.stderr,
        "audit": [audited.returncode, audited.stdout + audited.stderr],
        "version": engine.version,
        "gradient": max((row.get("learner/grad_norm", 0.0) for row in read_jsonl(run.metrics)), default=0.0),
        "rollouts": [_told(rollout) for rollout in rollouts],
        "asked": [len(request.prompt_ids) for request, _ in engine.log],
    }


def _check_tokens(rollouts: list[Rollout], engine: RecordingEngine) -> None:
    """T1, T2 and T7: what is trained is what the engine sampled after the prompts that it received, each once."""
    chains = [chain for rollout in rollouts if rollout.episode for chain in rollout.episode.chains]
    stored = sorted((turn.prompt_ids, turn.ids) for chain in chains for turn in turns_of(chain))
    assert stored == sorted((request.prompt_ids, generation.ids) for request, generation in engine.log)


def _told(rollout: Rollout) -> dict[str, Any]:
    episode = rollout.episode
    return {
        "reward": rollout.reward.value if isinstance(rollout.reward, Scored) else str(rollout.reward),
        "starts": [chain.start for chain in episode.chains] if episode else [],
        "turns": [len(turns_of(chain)) for chain in episode.chains] if episode else [],
        "output": episode.output.text if episode and episode.output else "",
        "runner": episode.output.runner if episode and episode.output else "",
    }


async def _command(scene: dict[str, Any], *words: str) -> subprocess.CompletedProcess[str]:
    """A command of ours, in another process."""
    return await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "loopwright.cli", *words],
        env={**os.environ, "PATH": scene["path"], "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


if __name__ == "__main__":
    raise_loopback()
    print(json.dumps(asyncio.run(play(json.load(sys.stdin)))))
