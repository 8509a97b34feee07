"""What the page is told about a run, and that it is what the run has stored."""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
import tarfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from page_client import PageClient

from loopwright.buffer.payload_file import read_piece
from loopwright.buffer.storage.sqlite import SqliteStorage
from loopwright.ports import StalePolicy
from loopwright.runs.auditing.audit import audit
from loopwright.runs.run_folder import RunFolder
from loopwright.runs.stored_run import StoredRun
from loopwright.types import Failed, FailureCause, GroupStatus, Rollout, RolloutKey, Task, Timing

HERE = Path(__file__).parent
OLD = sorted((HERE.parent / "compat" / "0.1.0").glob("*.tar.xz"))
RUN = "/api/runs/adding"


async def test_runs_are_listed_with_what_a_person_chooses_by(made_up_run: RunFolder) -> None:
    async with PageClient(made_up_run.path.parent) as page:
        listed = await page.json("/api/runs")
    (run,) = listed["runs"]
    assert (run["name"], run["step"], run["reward/mean"], run["alive"]) == ("adding", 3, 1.0, False)
    assert run["spark"] == [0.0, 0.5, 1.0]
    assert listed["single"] is None


async def test_metrics_come_by_name_and_from_where_the_page_is(made_up_run: RunFolder) -> None:
    async with PageClient(made_up_run.path) as page:
        whole = await page.json(f"{RUN}/metrics", name=["reward/mean", "learner/entropy", "none such"])
        rest = await page.json(f"{RUN}/metrics", name="reward/mean", since=whole["rows"] - 1)
    rewards = [value for value in whole["values"]["reward/mean"] if value is not None]
    assert rewards == [0.0, 0.5, 1.0]
    assert "learner/entropy" not in whole["values"], "what was never a number has no column"
    assert (rest["first"], rest["edition"]) == (whole["rows"] - 1, whole["edition"])
    assert rest["values"]["reward/mean"] == [1.0]


async def test_a_step_shows_its_groups_and_filters_them(made_up_run: RunFolder) -> None:
    async with PageClient(made_up_run.path) as page:
        step = await page.json(f"{RUN}/step", step=2)
        only = await page.json(f"{RUN}/step", step=2, low=0.5)
        none = await page.json(f"{RUN}/step", step=3, high=0.5)
        small = await page.json(f"{RUN}/step", step=2, most=1, offset=1)
    assert [[member["reward"] for member in group["members"]] for group in step["groups"]] == [[0.0, 1.0], [0.0, 1.0]]
    assert step["histogram"] == [{"low": 0.0, "high": 0.0, "members": 2}, {"low": 1.0, "high": 1.0, "members": 2}]
    assert only["total"] == 2
    assert none["total"] == 0
    assert [group["draw"] for group in small["groups"]] == [3]


async def test_a_step_that_never_was_is_said_to_be_none(made_up_run: RunFolder) -> None:
    async with PageClient(made_up_run.path) as page:
        under_way = await page.json(f"{RUN}/step", step=4)
        missing = [await page.get(f"{RUN}/step", params={"step": step}) for step in (0, 5, 999_999)]
    assert under_way["groups"] == []
    assert [one.status_code for one in missing] == [404] * 3
    assert "there is no such step: 999999" in missing[2].text


@pytest.mark.parametrize("config", ["", "model: ["], ids=["empty", "torn"])
async def test_a_run_whose_config_is_lost_is_listed_with_its_problem(made_up_run: RunFolder, config: str) -> None:
    made_up_run.config.write_text(config)
    stranger = made_up_run.path.parent / "stranger"
    stranger.mkdir()
    (stranger / "config.yaml").touch()
    async with PageClient(made_up_run.path.parent) as page:
        (row,) = (await page.json("/api/runs"))["runs"]
        refused = await page.get(RUN)
    assert (row["name"], "config.yaml" in row["problem"]) == ("adding", True)
    assert (refused.status_code, "config.yaml" in refused.text) == (404, True)


async def test_only_rewards_that_are_there_can_be_equal(made_up_run: RunFolder) -> None:
    async with SqliteStorage(made_up_run.rollouts) as storage:
        task = Task.ask("x", "What is x?")
        row = await storage.draw("train", 6, task, 3)
        for member in (0, 1):
            failure = Failed(FailureCause.JUDGE, "KeyError", "no truth")
            await storage.put(row, Rollout(RolloutKey("train", 6, member), task, None, failure, Timing(1.0)))
        await storage.mark([("train", 6)], GroupStatus.FAILED)
    async with PageClient(made_up_run.path) as page:
        (failed,) = (await page.json(f"{RUN}/step", step=4, status="failed"))["groups"]
        equal = (await page.json(f"{RUN}/step", step=1))["groups"]
    assert (failed["mean"], failed["has_signal"]) == (None, True)
    assert [group["has_signal"] for group in equal] == [False, False]


async def test_a_rollout_and_its_tokens_are_those_of_the_database(made_up_run: RunFolder) -> None:
    key = RolloutKey("train", 2, 1)
    stored = StoredRun(made_up_run.rollouts).find(key)
    assert stored is not None
    assert stored.episode is not None
    async with PageClient(made_up_run.path) as page:
        shown = await page.json(f"{RUN}/rollout", key=str(key))
        tokens = await page.json(f"{RUN}/tokens", key=str(key), chain=0)
        part = await page.json(f"{RUN}/tokens", key=str(key), **{"from": 3, "count": 2})
        copied = await page.json(f"{RUN}/copy", key=str(key))
    (chain,) = stored.episode.chains
    assert shown["reward"]["value"] == stored.score == 1.0
    assert [message["content"] for message in shown["messages"]] == [one["content"] for one in stored.episode.messages]
    assert (shown["step"], [one["member"] for one in shown["members"]]) == (2, [0, 1])
    assert tokens["ids"] == chain.ids.tolist() == copied["chains"][0]["ids"]
    assert tokens["sampled"] == chain.mask.astype(int).tolist()
    assert tokens["logprobs"] == pytest.approx(chain.logprobs.tolist())
    assert part["ids"] == chain.ids[3:5].tolist()
    assert part["total"] == len(chain)


async def test_members_side_by_side_cost_one_reading_of_the_archive(
    made_up_run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with SqliteStorage(made_up_run.rollouts) as storage:
        await storage.archive(3)
    loads = list[str]()

    def counted(path: Path, piece: int) -> Any:
        loads.append(path.name)
        time.sleep(0.05)
        return read_piece(path, piece)

    monkeypatch.setattr("loopwright.buffer.archive.read_piece", counted)
    async with PageClient(made_up_run.path) as page:
        asked = [page.json(f"{RUN}/rollout", key=f"train/{draw}/{member}/0") for draw in (2, 3) for member in (0, 1)]
        shown = await asyncio.gather(*asked)
    assert all(one["messages"] for one in shown)
    assert loads == ["step-000002.parquet"]


async def test_a_text_is_found_in_the_latest_steps_first(made_up_run: RunFolder) -> None:
    async with PageClient(made_up_run.path) as page:
        found = await page.json(f"{RUN}/search", q="NO</B> IDEA")
        nothing = await page.json(f"{RUN}/search", q="%")
        fields = [await page.json(f"{RUN}/search", q=text) for text in ("content", "assistant", '": "')]
    assert [hit["step"] for hit in found["hits"]] == [2, 2, 1, 1, 1, 1]
    assert "<b>no</b> idea" in found["hits"][0]["excerpt"]
    assert found["next"] is None
    assert nothing["hits"] == []
    assert [one["hits"] for one in fields] == [[], [], []], "these are in no text, but in how texts are stored"


async def test_cursors_say_start_again_after_a_resume(made_up_run: RunFolder) -> None:
    async with PageClient(made_up_run.path) as page:
        steps = await page.json(f"{RUN}/steps", most=2)
        rest = await page.json(f"{RUN}/steps", cursor=steps["next"])
        async with SqliteStorage(made_up_run.rollouts) as storage:
            await storage.resume(["train"], step=2, next_draws=None, policy=StalePolicy())
        moved = [await page.json(f"{RUN}/{end}", q="idea", cursor=steps["next"]) for end in ("steps", "search")]
        again = await page.json(f"{RUN}/steps")
    assert ([one["step"] for one in steps["steps"]], [one["step"] for one in rest["steps"]]) == ([3, 2], [1])
    assert [one["again"] for one in (steps, rest, *moved, again)] == [False, False, True, True, False]
    assert again["edition"] != steps["edition"]


async def test_the_timeline_has_the_latest_steps(made_up_run: RunFolder) -> None:
    async with PageClient(made_up_run.path) as page:
        told = await page.json(f"{RUN}/timeline", count=2)
    assert told["steps"] == [2, 3]
    assert {span["name"] for span in told["spans"]} >= {"rollout", "evaluate"}


async def test_every_group_stands_somewhere(made_up_run: RunFolder) -> None:
    async with PageClient(made_up_run.path) as page:
        told = await page.json(f"{RUN}/health")
    both = {"groups": 6, "members": 12}
    assert told["conservation"] == {"train": {"sampled": both, "total": both, "standing": {"consumed": both}}}


async def test_a_group_that_is_gone_is_missing_on_one_side(made_up_run: RunFolder) -> None:
    with closing(sqlite3.connect(made_up_run.rollouts)) as db, db:
        db.execute("DELETE FROM rollouts WHERE draw = 3 AND member = 1")
        db.execute("DELETE FROM trained WHERE draw = 4")
        db.execute("DELETE FROM rollouts WHERE draw = 4")
        db.execute("DELETE FROM groups WHERE draw = 4")
    async with PageClient(made_up_run.path) as page:
        told = (await page.json(f"{RUN}/health"))["conservation"]["train"]
    assert told["sampled"] == {"groups": 6, "members": 12}
    assert told["total"] == {"groups": 5, "members": 9}
    audited = audit(made_up_run.rollouts).task_sets["train"]
    assert (audited.sampled._asdict(), audited.total._asdict()) == (told["sampled"], told["total"])


@pytest.mark.parametrize(
    ("question", "asked"),
    [
        ("step", {"step": "one"}),
        ("step", {"step": "9" * 40}),
        ("step", {"low": "nan"}),
        ("step", {"cause": "bad luck"}),
        ("rollout", {"key": "train/1"}),
        ("rollout", {"key": "train/x/0/0"}),
        ("rollout", {}),
        ("search", {}),
        ("search", {"q": "a", "cursor": "3"}),
        ("steps", {"cursor": "a-b-1.2.x"}),
        ("metrics", {"since": "-1"}),
    ],
)
async def test_a_wrong_question_is_refused(made_up_run: RunFolder, question: str, asked: dict[str, str]) -> None:
    async with PageClient(made_up_run.path) as page:
        answer = await page.get(f"{RUN}/{question}", params=asked)
    assert answer.status_code == 400
    assert answer.json()["error"]["remedy"]


@pytest.mark.parametrize("archive", OLD, ids=[one.name for one in OLD])
async def test_a_run_of_an_earlier_release_opens(archive: Path, tmp_path: Path) -> None:
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path, filter="data")
    async with PageClient(tmp_path / "run") as page:
        for end in ("", "/config", "/steps", "/timeline", "/health"):
            await page.json(f"/api/runs/run{end}")
        step = await page.json("/api/runs/run/step", step=1)
        group, member = step["groups"][0], step["groups"][0]["members"][0]
        key = f"{group['key']}/{member['member']}/{member['attempt']}"
        shown = await page.json("/api/runs/run/rollout", key=key)
        tokens = await page.json("/api/runs/run/tokens", key=key)
    assert shown["messages"]
    assert len(tokens["ids"]) == shown["chains"][0]["tokens"]
    assert any(tokens["texts"]), tokens["why_no_texts"]


async def test_a_run_that_is_deleted_and_comes_back(made_up_run: RunFolder, tmp_path: Path) -> None:
    from loopwright.ui.served import ServedRuns
    from loopwright.ui.watching import Watcher

    watcher = Watcher(ServedRuns(made_up_run.path.parent), look_seconds=0)
    assert (await watcher.look("adding"))["gone"] is False
    shutil.move(made_up_run.path, tmp_path / "away")
    told: dict[str, Any] = await watcher.look("adding")
    assert told["gone"] is True
    async with PageClient(made_up_run.path.parent) as page:
        assert (await page.get(f"{RUN}/steps")).status_code == 404
    shutil.move(tmp_path / "away", made_up_run.path)
    assert (await watcher.look("adding"))["step"] == 3


async def test_a_run_that_does_not_run_tells_nothing_of_the_present(made_up_run: RunFolder) -> None:
    made_up_run.status.write_text('{"format": 1, "at": 1e18, "now": [{"what": "train"}]}')
    async with PageClient(made_up_run.path) as page:
        health, timeline = await page.json(f"{RUN}/health"), await page.json(f"{RUN}/timeline")
        overview, earlier = await page.json(RUN), await page.json(f"{RUN}/timeline", to=1)
    assert health["status"] == timeline["status"] == overview["status"]
    assert (overview["status"]["state"], overview["status"]["told"]) == ("not running", {})
    assert earlier["status"] is None


async def test_the_page_is_told_how_a_run_ended(made_up_run: RunFolder) -> None:
    ended = {"how": "error", "error": "16 groups in a row failed", "at": 5.0}
    async with PageClient(made_up_run.path) as page:
        before = await page.json(RUN)
        made_up_run.status.write_text(json.dumps({"format": 1, "at": 5.0, "ended": ended}))
        overview, status = await page.json(RUN), await page.json(f"{RUN}/status")
    assert before["ended"] is None
    assert overview["ended"] == status["status"]["ended"] == ended
