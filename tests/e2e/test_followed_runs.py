"""A whole run whose metrics go to W&B and MLflow too, by the real packages."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from test_kill import start

from loopwright.track.jsonl import read_jsonl

WriteConfig = Callable[..., Path]


@pytest.mark.real
@pytest.mark.timeout(600)
def test_a_run_and_the_run_that_goes_on_send_all_their_metrics(write_config: WriteConfig) -> None:
    followed = {"track": {"console": False, "wandb": {}, "mlflow": {"experiment": "vowels"}}}
    for steps in (1, 2):
        assert start(write_config(**followed, trainer__steps=steps)).wait(timeout=280) == 0
    run = write_config(**followed).parent / "run"
    expected = {
        (record["step"], name, value)
        for record in read_jsonl(run / "metrics.jsonl")
        for name, value in record.items()
        if name not in ("step", "time") and value is not None
    }
    with closing(sqlite3.connect(run / "mlflow.db")) as db:
        runs = db.execute("SELECT run_uuid, name FROM runs ORDER BY start_time").fetchall()
        found = db.execute("SELECT step, key, value FROM metrics WHERE run_uuid = ?", (runs[-1][0],)).fetchall()
    assert [name for _, name in runs] == ["run", "run"], "each opening is a run of its own"
    assert set(found) == expected, (run / "followers.log").read_text()
    assert len(list(run.glob("wandb/offline-run-*/*.wandb"))) == 2
