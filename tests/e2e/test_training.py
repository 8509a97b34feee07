"""Whole runs, in this process: what a user gets from `loopwright train`."""

from __future__ import annotations

import asyncio
import gc
import io
import logging
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import rich.console
import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

from loopwright.build import open_chat, open_run, run_renderer
from loopwright.config import load
from loopwright.errors import BudgetError, CheckpointError, ConfigChangedError, ConfigError, RunLockedError
from loopwright.runs.run_folder import RunFolder
from loopwright.runs.stored_run import StoredRun
from loopwright.testing.tiny import tiny_qwen3
from loopwright.track.console import Console
from loopwright.track.jsonl import read_jsonl
from loopwright.types import Failed, GroupStatus

WriteConfig = Callable[..., Path]
EXAMPLES = Path(__file__).parents[2] / "examples"


async def run(file: Path, *, stop: asyncio.Event | None = None, **options: Any) -> RunFolder:
    async with open_run(load(file), cache=file.parent, stop=stop or asyncio.Event(), **options) as opened:
        await opened.train()
        return opened.folder


def metrics(folder: RunFolder, name: str) -> dict[int, float]:
    return {record["step"]: record[name] for record in read_jsonl(folder.metrics) if name in record}


def groups(folder: RunFolder) -> dict[str, dict[GroupStatus, int]]:
    """The conservation table, without its zeros."""
    counts = StoredRun(folder.rollouts).counts()
    return {name: {status: n for status, n in row.items() if n} for name, row in counts.items()}


async def test_as_many_rollouts_are_in_flight_as_the_engine_holds_and_the_number_is_shown(
    write_config: WriteConfig,
) -> None:
    file, out = write_config(rollout__concurrency="auto", rollout__engine={"max_batch": 3}), io.StringIO()
    console = Console(steps=3, title="x", out=rich.console.Console(file=out, width=200))
    async with open_run(load(file), cache=file.parent, stop=asyncio.Event(), console=console) as opened:
        assert opened._lineages.present.runner._concurrency == 3
    assert "rollout.concurrency: 3 rollouts at a time" in out.getvalue()


async def test_a_run_leaves_metrics_rollouts_evaluations_checkpoint_export_and_report(
    write_config: WriteConfig,
) -> None:
    folder = await run(write_config())

    assert set(metrics(folder, "reward/mean")) == {1, 2, 3}
    assert set(metrics(folder, "learner/mismatch_max")) <= {1, 2, 3}
    assert max(metrics(folder, "learner/mismatch_max").values()) < 1e-4
    assert set(metrics(folder, "eval/eval/greedy/reward")) == {0, 3}
    assert set(metrics(folder, "eval/eval/sampled/reward")) == {0, 3}
    stored = StoredRun(folder.rollouts)
    assert groups(folder) == {"train": {GroupStatus.CONSUMED: 9}}
    assert [len(stored.rollouts(step)) for step in stored.steps()] == [12, 12, 12]
    episodes = [rollout.episode for rollout in stored.rollouts(3)]
    assert {v for one in episodes if one is not None for v in one.chains[0].versions if v >= 0} == {2}
    assert sorted(path.name for path in folder.checkpoints.iterdir()) == ["step-000002", "step-000003"]
    assert "<svg" in folder.report.read_text()
    spans = {record["name"] for record in read_jsonl(folder.events)}
    assert {"rollout", "train", "sync", "evaluate", "checkpoint", "export"} <= spans

    exported = AutoModelForCausalLM.from_pretrained(folder.export)
    checkpoint = AutoModelForCausalLM.from_pretrained(folder.checkpoints / "step-000003")
    ids = AutoTokenizer.from_pretrained(folder.export)("What is 1+1?", return_tensors="pt").input_ids
    assert torch.equal(exported(ids).logits, checkpoint(ids).logits)


async def test_training_raises_the_reward(write_config: WriteConfig) -> None:
    folder = await run(write_config(trainer__steps=25, rollout__samples_per_task=8, learner__lr=1e-2))
    rewards = list(metrics(folder, "reward/mean").values())
    assert sum(rewards[-5:]) > 2 * sum(rewards[:5])
    before, after = metrics(folder, "eval/eval/sampled/reward").values()
    assert after > before


async def test_another_architecture_trains_with_the_same_config(write_config: WriteConfig, tmp_path: Path) -> None:
    qwen = tiny_qwen3(tmp_path / "qwen", initializer_range=0.3)
    folder = await run(write_config(model__path=str(qwen)))
    assert set(metrics(folder, "learner/loss")) == {1, 2, 3}


async def test_a_stopped_run_goes_on_with_the_same_command(write_config: WriteConfig) -> None:
    file, stop = write_config(trainer__steps=4), asyncio.Event()

    async def stop_after_two() -> None:
        while max(metrics(folder, "reward/mean"), default=0) < 2:
            await asyncio.sleep(0.005)
        stop.set()

    folder = RunFolder(Path(load(file).config.trainer.run_dir))
    watcher = asyncio.create_task(stop_after_two())
    await run(file, stop=stop)
    await watcher
    reached = max(metrics(folder, "reward/mean"))
    assert 2 <= reached < 4
    assert (folder.checkpoints / f"step-{reached:06d}").exists()
    assert not folder.export.exists()
    before = metrics(folder, "reward/mean")

    await run(file)
    after = metrics(folder, "reward/mean")
    assert list(after) == [1, 2, 3, 4]
    assert {step: after[step] for step in before} == before
    assert folder.export.exists()
    assert groups(folder) == {"train": {GroupStatus.CONSUMED: 12}}


async def test_a_finished_run_is_left_alone_and_fresh_starts_over(write_config: WriteConfig) -> None:
    file = write_config()
    folder = await run(file)
    first = folder.metrics.read_bytes()
    await run(file)
    assert folder.metrics.read_bytes() == first
    await run(file, fresh=True)
    assert folder.metrics.read_bytes() != first
    assert list(metrics(folder, "reward/mean")) == [1, 2, 3]


async def test_more_steps_are_added_and_other_changes_are_refused(write_config: WriteConfig) -> None:
    folder = await run(write_config())
    with pytest.raises(ConfigChangedError, match=r"learner\.lr"):
        await run(write_config(learner__lr=1e-3, trainer__steps=4))
    exported = (folder.export / "model.safetensors").read_bytes()
    await run(write_config(trainer__steps=4))
    assert list(metrics(folder, "reward/mean")) == [1, 2, 3, 4]
    assert (folder.export / "model.safetensors").read_bytes() != exported


async def test_an_evaluation_that_was_stopped_is_made_when_the_run_goes_on(
    write_config: WriteConfig, tmp_path: Path
) -> None:
    file, stop = write_config(), asyncio.Event()

    class StopInTheLastEvaluation:
        """Sets `stop` when the evaluation after step 3 begins."""

        def __init__(self) -> None:
            self.said: list[str] = []

        def __enter__(self) -> None: ...
        def __exit__(self, *_: object) -> None: ...
        def say(self, line: str) -> None:
            self.said.append(line)

        def log(self, step: int, metrics: Any) -> None: ...
        def on_rollout(self, rollout: Any) -> None: ...

        def span(self, name: str, *, step: int, **facts: Any) -> Any:
            if (name, step) == ("evaluate", 3):
                stop.set()
            return nullcontext()

    console = StopInTheLastEvaluation()
    folder = await run(file, stop=stop, console=console)
    assert console.said == ["training in float32 on cpu, by layers by hand"]
    assert set(metrics(folder, "eval/eval/greedy/reward")) == {0}
    assert (folder.checkpoints / "step-000003").exists()
    for _ in range(2):
        await run(file)
        evaluated = [r["step"] for r in read_jsonl(folder.metrics) if "eval/eval/greedy/reward" in r]
        assert evaluated == [0, 3], "made when the run goes on, and only once"


async def test_a_mistake_costs_the_run_in_the_folder_nothing(write_config: WriteConfig, tmp_path: Path) -> None:
    folder = await run(write_config())
    kept = {path: path.read_bytes() for path in (folder.config, folder.metrics, folder.export / "model.safetensors")}
    (tmp_path / "broken.py").write_text("import no_such_module\n")
    with pytest.raises(ConfigError, match="no_such_module"):
        await run(write_config(judgers__vowels__path="broken.py:judge"), fresh=True)
    other = tiny_qwen3(tmp_path / "qwen")
    with pytest.raises(CheckpointError, match="another model"):
        await run(write_config(model__path=str(other)), allow_config_change=True)
    assert {path: path.read_bytes() for path in kept} == kept


async def test_the_collector_leaves_alone_what_a_run_was_built_of(write_config: WriteConfig) -> None:
    file = write_config()
    async with open_run(load(file), cache=file.parent, stop=asyncio.Event()):
        assert gc.get_freeze_count() > 0
    assert gc.get_freeze_count() == 0


async def test_a_second_run_on_the_same_folder_is_refused(write_config: WriteConfig) -> None:
    file = write_config()
    async with open_run(load(file), cache=file.parent, stop=asyncio.Event()):
        with pytest.raises(RunLockedError):
            await run(file)


@pytest.mark.parametrize(
    ("body", "words"),
    [("return 'seven'", "seven"), ("raise KeyError('no such truth')", "no such truth")],
    ids=["returns a string", "raises"],
)
async def test_a_broken_judger_is_named_and_its_rollouts_are_failures_not_zeros(
    write_config: WriteConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture, body: str, words: str
) -> None:
    file = write_config(produce__failure_budget=2, produce__max_attempts=1)
    (tmp_path / "judger.py").write_text(f"def judge(task, episode):\n    {body}\n")
    with caplog.at_level(logging.WARNING), pytest.raises(BudgetError, match="vowels") as stopped:
        await run(file)
    assert words in str(stopped.value)
    first = caplog.messages[0]
    assert first.startswith("rollout eval/"), "it is named at its first call, in the evaluation before training"
    assert words in first
    found = set(groups(RunFolder(tmp_path / "run"))["train"])
    # What was under way when the budget was spent goes on if the run does.
    assert found - {GroupStatus.ABORTED} == {GroupStatus.FAILED}
    async with open_run(load(file), cache=file.parent, stop=asyncio.Event()) as opened:
        assert metrics(opened.folder, "reward/mean") == {}


async def test_a_run_can_be_read_and_talked_to(write_config: WriteConfig, tmp_path: Path) -> None:
    folder = await run(write_config())
    episode = StoredRun(folder.rollouts).rollouts(1)[0].episode
    assert episode is not None
    assert "".join(run_renderer(folder).pieces(episode.chains[0].ids.tolist())).startswith("<|im_start|>user")
    async with open_chat(folder, cache=tmp_path) as model:
        messages = [{"role": "user", "content": "Hello"}]
        reply = await model.reply(messages, temperature=0.0, max_new_tokens=4)
        again = await model.reply(messages, temperature=0.0, max_new_tokens=4)
    assert reply == again


async def test_two_task_sets_share_a_batch_by_weight(write_config: WriteConfig) -> None:
    sets = [
        {"name": name, "weight": weight, "data": {"kind": "python", "path": "tasks.py:train"}, "agent": agent}
        for name, weight, agent in (
            ("many", 2, {"kind": "single_turn", "judger": "vowels"}),
            ("few", 1, {"kind": "single_turn", "judger": "vowels"}),
        )
    ]
    file = write_config(task_sets=sets, eval=None)
    config = yaml.safe_load(file.read_text())
    del config["data"], config["agent"]
    file.write_text(yaml.safe_dump(config))
    folder = await run(file)
    assert groups(folder) == {"many": {GroupStatus.CONSUMED: 6}, "few": {GroupStatus.CONSUMED: 3}}


async def test_the_examples_of_custom_parts_train(write_config: WriteConfig) -> None:
    file = write_config(
        data={"kind": "python", "path": str(EXAMPLES / "arithmetic.py:train_tasks")},
        agent={"kind": "python", "path": str(EXAMPLES / "custom_agent.py:AskTwice"), "judger": "close"},
        judgers={"close": {"kind": "native", "path": str(EXAMPLES / "custom_judger.py:closeness")}},
        eval=None,
        trainer__steps=1,
    )
    folder = await run(file)
    rollouts = StoredRun(folder.rollouts).rollouts(1)
    assert len(rollouts) == 12
    assert not any(isinstance(rollout.reward, Failed) for rollout in rollouts)
    episodes = [rollout.episode for rollout in rollouts if rollout.episode is not None]
    assert any(len(episode.messages) == 4 for episode in episodes), "the agent never asked again"
    assert [len(episode.chains) for episode in episodes] == [1] * 12, "a linear chat is one chain"
