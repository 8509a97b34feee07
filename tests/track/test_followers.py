"""W&B and MLflow, the real packages: every metric arrives, and nothing that happens to them disturbs the run."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sqlite3
import struct
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from loopwright.track import followers
from loopwright.track.follower.growing import GrowingLines
from loopwright.track.follower.settings import FollowerSettings, Service
from loopwright.track.followers import following
from loopwright.track.jsonl import JsonlTracker, read_jsonl

pytestmark = pytest.mark.real

STEPS = 3


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.yaml").write_text("model: {path: smollm2}\ntask_sets: [{name: train}]\n")
    JsonlTracker(tmp_path).log(0, {"eval/reward": 0.25, "learner/loss": float("nan")})
    return tmp_path


def settings(service: Service, folder: Path, **more: Any) -> FollowerSettings:
    return FollowerSettings(service, str(folder), "a-run", 2, "adding", "arithmetic", **more)


async def follow(folder: Path, *services: FollowerSettings, env: Mapping[str, str] = os.environ) -> None:
    """A run of three steps."""
    async with following([(one, {}) for one in services], env, folder / "followers.log"):
        for step in range(1, STEPS + 1):
            JsonlTracker(folder).log(step, {"reward/mean": step / 10, "learner/loss": -step})
            await asyncio.sleep(0)


async def test_mlflow_has_every_metric_and_the_config(folder: Path) -> None:
    await follow(folder, settings(Service.MLFLOW, folder))
    with sqlite3.connect(folder / "mlflow.db") as db:
        found = db.execute("SELECT key, step, value FROM metrics ORDER BY step, key").fetchall()
        params = dict(db.execute("SELECT key, value FROM params"))
        ((name, status),) = db.execute("SELECT name, status FROM runs")
        tags = dict(db.execute("SELECT key, value FROM tags"))
    db.close()
    expected = [("eval/reward", 0, 0.25)]
    for step in range(1, STEPS + 1):
        expected += [("learner/loss", step, -float(step)), ("reward/mean", step, step / 10)]
    assert found == expected, (folder / "followers.log").read_text()
    assert params == {"model.path": "smollm2", "task_sets.0.name": "train"}
    assert (name, status) == ("adding", "FINISHED")
    assert (tags["loopwright.run"], tags["loopwright.lineage"]) == ("a-run", "2")


async def test_wandb_has_every_metric_and_the_config_offline(folder: Path) -> None:
    await follow(folder, settings(Service.WANDB, folder))
    history, run = wandb_records(next(folder.glob("wandb/offline-run-*/*.wandb")))  # noqa: ASYNC240
    assert history == [
        {"_step": 0, "eval/reward": 0.25},
        *({"_step": step, "reward/mean": step / 10, "learner/loss": -step} for step in range(1, STEPS + 1)),
    ]
    assert (run.project, run.display_name, run.run_group) == ("arithmetic", "adding", "a-run")


def wandb_records(file: Path) -> tuple[list[dict[str, float]], Any]:
    """The steps and the run in a file of W&B: LevelDB's log format with protobuf records, after seven bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    history, run = [], None
    for data in log_records(file.read_bytes()):
        record = Record()
        record.ParseFromString(data)
        if record.HasField("history"):
            items = {("/".join(one.nested_key) or one.key): json.loads(one.value_json) for one in record.history.item}
            own = {"time", "_timestamp", "_runtime", "_wandb"}
            history.append({name: value for name, value in items.items() if name not in own})
        elif record.HasField("run"):
            run = record.run
    return history, run


def log_records(data: bytes) -> Iterator[bytes]:
    header, block, position, parts = struct.Struct("<IHB"), 32768, 7, b""
    while position + header.size <= len(data):
        if block - position % block < header.size:
            position += block - position % block
            continue
        _, length, kind = header.unpack_from(data, position)
        position += header.size
        parts += data[position : position + length]
        position += length
        if kind in (1, 4):  # a whole record, or the last part of one
            yield parts
            parts = b""


@pytest.fixture
def broken(folder: Path) -> dict[str, str]:
    """An environment in which the package of W&B is what a test writes."""
    place = folder / "packages"
    place.mkdir()
    return {**os.environ, "PYTHONPATH": str(place)}


@pytest.mark.parametrize("code", ["raise ImportError('broken')", "import os; os._exit(3)"])
async def test_one_that_fails_is_reported_once_and_the_run_goes_on(folder, broken, caplog, code):
    (folder / "packages" / "wandb.py").write_text(code)
    with caplog.at_level(logging.WARNING):
        async with following([(settings(Service.WANDB, folder), {})], broken, folder / "followers.log"):
            async with asyncio.timeout(60):
                while not caplog.records:
                    await asyncio.sleep(0.05)
    (record,) = caplog.records
    assert "metrics no longer go to wandb" in record.getMessage()
    assert "metrics.jsonl has them all" in record.getMessage()


async def test_one_that_hangs_holds_nobody_for_long(folder, broken, monkeypatch):
    monkeypatch.setattr(followers, "GRACE_SECONDS", 0.5)
    hangs = "import pathlib, time\npathlib.Path(__file__).with_name('hangs').touch()\ntime.sleep(100)\n"
    (folder / "packages" / "wandb.py").write_text(hangs)
    async with following([(settings(Service.WANDB, folder), {})], broken, folder / "followers.log"):
        async with asyncio.timeout(60):
            while not (folder / "packages" / "hangs").exists():
                await asyncio.sleep(0.05)
        leaving = time.monotonic()
    assert time.monotonic() - leaving < 10


async def test_a_follower_sees_only_the_secrets_that_it_is_given(folder, broken, monkeypatch):
    (folder / "packages" / "wandb.py").write_text(
        "import json, os, pathlib\npathlib.Path(__file__).with_name('seen').write_text(json.dumps(dict(os.environ)))\n"
        "os._exit(0)\n"
    )
    env = {**broken, "OPENAI_API_KEY": "sk-of-another"}
    seen = folder / "packages" / "seen"
    async with following([(settings(Service.WANDB, folder), {"WANDB_API_KEY": "its-own"})], env, folder / "log"):
        async with asyncio.timeout(60):
            while not seen.exists() or not seen.read_text():
                await asyncio.sleep(0.05)
    assert "its-own" in seen.read_text()
    assert "sk-of-another" not in seen.read_text()


def test_a_growing_file_is_read_line_by_line_as_lines_become_complete(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    lines = GrowingLines(file)
    assert list(lines.new()) == []
    file.write_text('{"step": 1}\n{"st')
    assert list(lines.new()) == [{"step": 1}]
    with file.open("a") as more:
        more.write('ep": 2}\n{"step": 3}\n')
    assert list(lines.new()) == [{"step": 2}, {"step": 3}] == read_jsonl(file)[1:]
    assert list(lines.new()) == []
