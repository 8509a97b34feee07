"""Whole runs whose judges are services, rankings and compositions, through `loopwright train`."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from loopwright.cli import main
from loopwright.runs.stored_run import StoredRun
from loopwright.testing import JudgeReply, JudgeRequest, JudgeServer
from loopwright.track.jsonl import read_jsonl
from loopwright.types import GroupStatus, Rollout, Scored

WriteConfig = Callable[..., Path]

RANKING = """
def judge_group(task, episodes):
    lengths = [len(episode.answer) for episode in episodes]
    return [sum(length > other for other in lengths) / len(lengths) for length in lengths]

def least(scores):
    return min(scored.value for scored in scores.values())
"""


@pytest.fixture(autouse=True)
def own_signals() -> Iterator[None]:
    """`train` takes SIGINT and SIGTERM for itself; pytest wants them back."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


def train(file: Path) -> int:
    with pytest.raises(SystemExit) as left:
        main(["train", str(file)])
    return int(left.value.code or 0)


def stored(file: Path) -> dict[tuple[int, int], Rollout]:
    """Every train rollout by draw and member; none was attempted twice."""
    attempts = list(StoredRun(file.parent / "run" / "rollouts.sqlite").attempts())
    rollouts = {(a.rollout.key.draw, a.rollout.key.member): a.rollout for a in attempts}
    assert len(rollouts) == len(attempts)
    return rollouts


def counts(file: Path) -> dict[GroupStatus, int]:
    row = StoredRun(file.parent / "run" / "rollouts.sqlite").counts()["train"]
    return {status: count for status, count in row.items() if count}


def metrics(file: Path, name: str) -> list[float]:
    return [record[name] for record in read_jsonl(file.parent / "run" / "metrics.jsonl") if name in record]


def vowels(request: JudgeRequest) -> JudgeReply:
    return JudgeReply({"score": sum(letter in "aeiou" for letter in request.body["answer"]) / 4})


@pytest.mark.real
def test_a_run_whose_judge_went_away_goes_on_from_its_stored_episodes(
    write_config: WriteConfig, capfd: pytest.CaptureFixture[str]
) -> None:
    first_step = 12  # rollouts

    def goes_away(request: JudgeRequest) -> JudgeReply:
        return vowels(request) if len(server.requests) <= first_step else JudgeReply("deploying", 503)

    with JudgeServer(goes_away) as server:
        judger = {"kind": "http", "url": f"{server.url}/judge", "retries": 0, "timeout_seconds": 5}
        file = write_config(
            judgers={"vowels": judger}, eval=None, produce__failure_budget=3, trainer__checkpoint_every=1000
        )
        assert train(file) == 1
    said = capfd.readouterr().err
    assert "step 2, task set 'train', judger 'vowels': 3 groups in a row failed (12 x judge Status503)" in said
    assert f"judger 'vowels' ({server.url}/judge) answered with status 503: b'\"deploying\"'" in said
    at_first = counts(file)
    assert at_first.pop(GroupStatus.CONSUMED) == 3
    assert at_first.pop(GroupStatus.FAILED) >= 3, "those that took their places may have failed by then, too"
    assert set(at_first) <= {GroupStatus.ABORTED}, "what was in flight goes on later"
    before = {place: rollout for place, rollout in stored(file).items() if place[0] < 6}
    assert len(before) == 24
    assert sum(rollout.score is not None for rollout in before.values()) == first_step, "nothing became 0"

    assert train(file) == 1, "it is still away"
    assert "ConnectError" in capfd.readouterr().err
    still = {place: rollout.timing.started for place, rollout in stored(file).items() if place[0] < 6}
    assert still == {place: rollout.timing.started for place, rollout in before.items()}, "none was sampled again"

    with JudgeServer(vowels, port=server.port) as back:
        assert train(file) == 0
    after = stored(file)
    assert counts(file)[GroupStatus.CONSUMED] == 9
    scored = sum(rollout.score is not None for rollout in after.values())
    assert len(back.requests) == scored - first_step, "each is judged once"
    assert scored >= 36, "two more steps: one judged from storage, one sampled"
    for place, rollout in before.items():
        now = after[place]
        assert now.timing.started == rollout.timing.started, "the episode is the one that was stored"
        assert now.episode is not None
        assert rollout.episode is not None
        assert now.episode.messages == rollout.episode.messages
        assert isinstance(now.reward, Scored)
    assert metrics(file, "reward/mean")[1:2] == [pytest.approx(_mean(after, range(3, 6)))]


def _mean(rollouts: dict[tuple[int, int], Rollout], draws: range) -> float:
    scores = [rollout.score for (draw, _), rollout in rollouts.items() if draw in draws]
    return sum(score for score in scores if score is not None) / len(scores)


@pytest.mark.real
def test_rankings_train_and_repeat_bit_for_bit(write_config: WriteConfig) -> None:
    def course(name: str, **more: Any) -> list[float]:
        file = write_config(
            judgers={"vowels": {"kind": "native", "path": "ranking.py:judge_group", "per": "group"}},
            eval=None,
            trainer__deterministic=True,
            trainer__run_dir=str(file_folder / name),
            **more,
        )
        (file.parent / "ranking.py").write_text(RANKING)
        assert train(file) == 0
        return [record["learner/loss"] for record in read_jsonl(file_folder / name / "metrics.jsonl")]

    file_folder = write_config().parent
    assert course("once") == course("twice")


def test_a_composed_judger_reports_its_parts_in_training_and_shares_them_with_evaluation(
    write_config: WriteConfig,
) -> None:
    with JudgeServer(vowels) as server:
        judgers = {
            "vowels": {
                "kind": "composed",
                "parts": {"sound": {"judger": "http"}, "sum": {"judger": "by_source"}},
                "merge": "ranking.py:least",
                "timeout_seconds": 60,
            },
            "http": {"kind": "http", "url": server.url},
            "by_source": {"kind": "composed", "by_source": {"sums": "http"}, "default": "integer_answer"},
        }
        file = write_config(judgers=judgers, trainer__steps=1)
        (file.parent / "ranking.py").write_text(RANKING)
        assert train(file) == 0
    assert metrics(file, "reward/parts/sum/integer_answer") == metrics(file, "reward/parts/sum") == [0.0]
    assert metrics(file, "reward/parts/sound")[0] > metrics(file, "reward/mean")[0] == 0.0
    assert metrics(file, "eval/eval/greedy/reward") == [0.0, 0.0]
    assert len(server.requests) == 12 + 2 * 2 * 5
