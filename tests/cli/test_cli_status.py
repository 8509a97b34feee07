"""`loopwright status` says on one screen what a run does."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from loopwright.cli import main
from loopwright.runs.run_folder import RunFolder

TOLD: dict[str, Any] = {
    "format": 1,
    "now": [{"what": "wait", "step": 4, "since": 0.0}],
    "waits": [{"who": "the trainer", "for": "a batch for step 4", "since": 0.0}],
    "engines": [
        {"name": "0", "serves": True, "version": 3, "proof": {"version": 3, "at": 0.0}, "calls": 7, "away_since": None},
        {"name": "1", "serves": False, "away_since": 0.0, "last_words": "out of \x1b[31mmemory", "proof": None},
    ],
    "proof": "on",
    "ranks": [
        {"rank": 0, "alive": True, "heard": 0.0, "tokens_per_second": 1234.5},
        {"rank": 1, "alive": False, "heard": None, "tokens_per_second": None},
    ],
    "sessions": {"open": 5, "waiting": 3, "completed": 40, "heard": 0.0, "restarts": 1, "lost": None},
    "crews": [{"role": "agents", "actors": 3, "alive": 2, "calls": 7, "restarts": 4, "given_up": "no \x1b[31mroom"}],
    "in_flight": {
        "agents": 2,
        "judged": 1,
        "oldest": [
            {"rollout": "train/000007/01/0", "stage": "agent", "turn": 3, "tokens": 512, "since": 0.0},
            {"rollout": "train/000006/00/0", "stage": "judge", "turn": 1, "tokens": 9, "since": 0.0},
        ],
    },
}


def status(capfd: pytest.CaptureFixture[str], folder: RunFolder, *more: str) -> str:
    with pytest.raises(SystemExit) as caught:
        main(["status", str(folder.path), *more])
    out, err = capfd.readouterr()
    assert (caught.value.code or 0, err) == (0, "")
    return out


def test_a_run_that_ended_says_how_far_it_came(made_up_run: RunFolder, capfd: pytest.CaptureFixture[str]) -> None:
    out = status(capfd, made_up_run)
    assert "adding, not running" in out
    assert "step        3 of ?" in out
    assert "reward      1.000 (first 0.000)" in out
    assert "heldout/greedy: 1.000 after step 3, 0.500 after step 0" in out
    assert "train: 6 consumed" in out
    assert json.loads(status(capfd, made_up_run, "--json"))["state"] == "not running"


@pytest.mark.parametrize(
    ("ended", "says"),
    [
        ({"how": "stopped", "error": None, "at": 1.0}, "adding, stopped; the same train command goes on"),
        ({"how": "error", "error": "16 groups\x1b[31m failed", "at": 1.0}, "error       16 groups␛[31m failed ("),
    ],
)
def test_a_run_that_ended_says_how(
    made_up_run: RunFolder, capfd: pytest.CaptureFixture[str], ended: dict[str, Any], says: str
) -> None:
    made_up_run.status.write_text(json.dumps({"format": 1, "at": 1.0, "ended": ended}))
    out = status(capfd, made_up_run)
    assert says in out
    assert ("adding, ended with an error" in out) is (ended["how"] == "error")
    assert json.loads(status(capfd, made_up_run, "--json"))["ended"]["how"] == ended["how"]


def test_a_live_run_says_who_waits_for_whom(
    made_up_run: RunFolder, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loopwright.runs.run_status.lock_holder", lambda lock: 42)
    now = time.time()

    def moved(value: Any) -> Any:
        if isinstance(value, dict):
            times = ("since", "at", "away_since", "heard")
            return {key: now - 90 if key in times and one == 0.0 else moved(one) for key, one in value.items()}
        return [moved(one) for one in value] if isinstance(value, list) else value

    made_up_run.status.write_text(json.dumps({**moved(TOLD), "at": now}))
    out = status(capfd, made_up_run)
    assert "running (process 42)" in out
    assert "the trainer waits for a batch for step 4, for 1 min 30 s" in out
    assert "0: weights 3, proven 1 min 30 s ago, 7 calls" in out
    assert "1: serves nothing for 1 min 30 s; its last words: out of ␛[31mmemory" in out
    assert "0: alive, heard 1 min 30 s ago, 1,234 tokens/s in the last step" in out
    assert "rank        1: lost\n" in out
    assert "5 open, 3 wait for the model, 40 completed, heard 1 min 30 s ago, started again 1 times" in out
    assert "agents: 2 of 3 alive, 7 calls, started again 4 times; given up: no ␛[31mroom" in out
    assert "2 rollouts, 1 being judged" in out
    assert "train/000007/01/0: turn 3, 512 tokens, for 1 min 30 s" in out
    assert "train/000006/00/0: is judged" in out
