"""A run's files may hold anything: what a model wrote, what a crash left, what somebody put there. The page opens."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from made_up_run import CONFIG
from page_client import PageClient

from loopwright.buffer.storage.sqlite import SqliteStorage
from loopwright.runs.rejudged_scores import Judgement, RejudgedScores
from loopwright.runs.run_folder import RunFolder
from loopwright.runs.stored_run import StoredRun
from loopwright.types import Episode, Group, GroupStatus, Rollout, RolloutKey, Scored, Task, Timing
from loopwright.ui.run_view import RunView

RUN = "/api/runs/adding"
DEEP = '{"step": 9, "name": "x", "start": 1, "end": 2, "facts": ' + "[" * 100_000 + "]" * 100_000 + "}"
HUGE = "1" + "0" * 400
ODD_LINES = (
    DEEP,
    '{"step": 1' + "0" * 40 + ', "time": 1}',
    f'{{"step": 9, "time": {HUGE}, "reward/mean": {HUGE}}}',
    '{"step": 9, "time": Infinity, "reward/mean": -Infinity, "failures/judge": Infinity, "time/train": NaN}',
    '{"step": true, "reward/mean": true}',
    '{"step": 9, "\\ud800": 1, "__proto__": 2}',
    '{"step": 9, "name": "x", "start": "soon", "end": null}',
    '{"step": 9, "name": {"a": 1}, "start": 1e400, "end": 2, "who": ["\\udfff"]}',
    '{"step": 9, "name": "engine_lost", "start": 1, "end": 2, "facts": ["no mapping"]}',
    "\x00\x01\x02 no JSON",
)
VIEWS = ("", "/metrics?name=reward/mean", "/steps", "/timeline", "/health", "/alarms", "/status", "/config")


async def opens(folder: Path) -> None:
    async with PageClient(folder) as page:
        assert (await page.json("/api/runs"))["runs"]
        for end in VIEWS:
            await page.json(RUN + end)


@pytest.mark.parametrize("name", ["metrics.jsonl", "events.jsonl"])
@pytest.mark.parametrize("line", ODD_LINES, ids=range(len(ODD_LINES)))
async def test_odd_lines_close_no_view(made_up_run: RunFolder, name: str, line: str) -> None:
    with (made_up_run.path / name).open("ab") as file:
        file.write(line.encode() + b"\n")
        file.write(b'{"step": 3, "name": "train", "start": 5.0, "end": 6.0, "reward/mean": 1.0}\n')
    await opens(made_up_run.path)


@pytest.mark.parametrize(
    "status",
    [
        '{"format": 1, "at": ' + HUGE + "}",
        '{"format": 1, "at": NaN, "engines": "none", "now": 7}',
        "[" * 100_000,
        '{"format": 1, "at": 1, "engines": [{"version": 1' + "0" * 40 + "}]}",
    ],
    ids=range(4),
)
async def test_an_odd_status_closes_no_view(made_up_run: RunFolder, status: str) -> None:
    made_up_run.status.write_text(status)
    await opens(made_up_run.path)


@pytest.mark.parametrize(
    "config",
    [
        "a: &a [x, x, x, x, x, x, x, x, x, x]\n"
        + "".join(
            f"{two}: &{two} [{', '.join([f'*{one}'] * 10)}]\n" for one, two in zip("abcdefgh", "bcdefghi", strict=True)
        ),
        "a: &a [*a]\n",
        "a: " + "[" * 5000 + "]" * 5000,
        "a: 1" + "0" * 40,
        "a: !!python/object/apply:os.system [id]",
    ],
    ids=range(5),
)
async def test_an_odd_config_is_refused_or_shown(made_up_run: RunFolder, config: str) -> None:
    head = made_up_run.config.read_text().splitlines()[0]
    made_up_run.config.write_text(f"{head}\n{config}\n")
    async with PageClient(made_up_run.path) as page:
        for end in VIEWS:
            assert (await page.get(RUN + end)).status_code in (200, 404, 413)


async def stored(path: Path, task: Task, episode: Episode, reward: float = 1.0) -> RunFolder:
    with RunFolder.open(path / "adding", CONFIG) as folder:
        async with SqliteStorage(folder.rollouts) as storage:
            row = await storage.draw("train", 0, task, 0)
            rollout = Rollout(RolloutKey("train", 0, 0), task, episode, Scored(reward), Timing(1.0, 0.25))
            await storage.put(row, rollout)
            await storage.mark([("train", 0)], GroupStatus.COMPLETED)
            await storage.consume([Group("train", 0, task, (rollout,))], 1)
    return folder


async def test_numbers_that_json_cannot_hold_are_shown(tmp_path: Path) -> None:
    task = Task.ask("power", "What is 2**70?", truth=2**70, metadata={"deep": json.loads("[" * 300 + "]" * 300)})
    folder = await stored(tmp_path, task, Episode(task.messages, ()))
    async with PageClient(folder.path) as page:
        shown = await page.json(f"{RUN}/rollout", key="train/0/0/0")
    assert shown["task"]["truth"] == str(2**70)


async def test_a_long_conversation_opens(tmp_path: Path) -> None:
    task = Task.ask("long", "Work.")
    said = [{"role": "tool", "content": f"{number} " + "é" * 30_000} for number in range(300)]
    folder = await stored(tmp_path, task, Episode((*task.messages, *said), ()))
    async with PageClient(folder.path) as page:
        shown = await page.json(f"{RUN}/rollout", key="train/0/0/0")
        await page.json(f"{RUN}/copy", key="train/0/0/0")
    last = shown["messages"][-1]["content"]
    assert len(shown["messages"]) == 301
    assert last["text"].startswith("299 é")
    assert last["characters"] == 30_004


async def test_a_long_binary_text_can_be_read_to_its_end(tmp_path: Path) -> None:
    task = Task.ask("binary", "Work.")
    text = "\x00\x1b\udc80" * 300_000
    folder = await stored(tmp_path, task, Episode(({"role": "tool", "content": text},), ()))
    async with PageClient(folder.path) as page:
        place = 0
        while place < len(text):
            asked: dict[str, str | int] = {"key": "train/0/0/0", "path": "messages/0/content", "from": place}
            answer = await page.get(f"{RUN}/text", params=asked)
            assert answer.status_code == 200
            part: Any = answer.json()
            assert part["next"] > place
            place = part["next"]


@pytest.mark.parametrize(
    "reward",
    [
        '{"kind": "scored", "value": 1e400}',
        '{"kind": "scored", "value": "much"}',
        '{"kind": "scored"}',
        '{"kind": "failed", "cause": "bad luck", "error": 7}',
        "[]",
        "no JSON",
    ],
)
async def test_odd_rows_of_the_database_are_refused_by_name(made_up_run: RunFolder, reward: str) -> None:
    with sqlite3.connect(made_up_run.rollouts) as db:
        db.execute("UPDATE rollouts SET reward = ? WHERE draw = 4 AND member = 0", (reward,))
    db.close()
    async with PageClient(made_up_run.path) as page:
        for end in ("/step?step=3", "/rollout?key=train/4/0/0", "/tokens?key=train/4/0/0", "/health", "/steps"):
            answer = await page.get(RUN + end)
            assert answer.status_code in (200, 404), answer.text
            assert answer.status_code == 200 or answer.json()["error"]["remedy"]


async def test_damaged_lines_of_a_rejudging_leave_the_rollout_readable(made_up_run: RunFolder) -> None:
    folder = made_up_run.rejudged / "strict"
    folder.mkdir(parents=True)
    (folder / "scores.jsonl").write_text('{"task_set": "train"}\nno JSON\n')
    async with PageClient(made_up_run.path) as page:
        await page.json(f"{RUN}/rollout", key="train/4/0/0")


async def test_a_damaged_tokenizer_leaves_the_ids(made_up_run: RunFolder) -> None:
    made_up_run.tokenizer.mkdir(exist_ok=True)
    (made_up_run.tokenizer / "tokenizer.json").write_text('{"version": "1.0", "model": {"type": "odd"}}')
    async with PageClient(made_up_run.path) as page:
        told = await page.json(f"{RUN}/tokens", key="train/4/0/0")
    assert told["why_no_texts"]


async def test_a_file_that_cannot_be_read_is_told_and_hides_no_other_run(made_up_run: RunFolder) -> None:
    metrics = shutil.copytree(made_up_run.path, made_up_run.path.with_name("other")) / "metrics.jsonl"
    metrics.unlink()
    metrics.mkdir()
    async with PageClient(made_up_run.path.parent) as page:
        listed = (await page.json("/api/runs"))["runs"]
        refused = await page.get("/api/runs/other")
    assert {run["name"]: "problem" in run for run in listed} == {"adding": False, "other": True}
    assert (refused.status_code, "metrics.jsonl" in refused.text) == (404, True)


async def test_a_folder_of_runs_may_hold_a_config_file_of_its_owner(made_up_run: RunFolder) -> None:
    (made_up_run.path.parent / "config.yaml").write_text("model: {path: smollm2}\n")
    async with PageClient(made_up_run.path.parent) as page:
        listed = await page.json("/api/runs")
    assert (listed["single"], [run["name"] for run in listed["runs"]]) == (None, ["adding"])


async def test_the_list_reads_only_runs_that_have_changed(
    made_up_run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(10):
        shutil.copytree(made_up_run.path, made_up_run.path.with_name(f"run-{number}"))
    async with PageClient(made_up_run.path.parent) as page:
        first = await page.json("/api/runs")
        read = list[str]()
        series = RunView.series

        def noted(view: RunView, name: str) -> list[tuple[int, float]]:
            read.append(view.name)
            return series(view, name)

        monkeypatch.setattr(RunView, "series", noted)
        assert await page.json("/api/runs") == first
        assert not read
        with (made_up_run.path.with_name("run-7") / "metrics.jsonl").open("a") as file:
            file.write('{"step": 4, "reward/mean": 1.0}\n')
        await page.json("/api/runs")
    assert set(read) == {"run-7"}


async def test_members_that_did_not_train_say_so(made_up_run: RunFolder) -> None:
    """Of a group that trained: what was stored of one member tells that nothing was stored of the other."""
    with sqlite3.connect(made_up_run.rollouts) as db:
        db.execute("INSERT INTO trained VALUES ('train', 4, 0, 1, 0, 0.5, 0.1, NULL, NULL)")
    db.close()
    async with PageClient(made_up_run.path) as page:
        other = await page.json(f"{RUN}/tokens", key="train/4/0/0")
        own = await page.json(f"{RUN}/tokens", key="train/4/1/0")
        unknown = await page.json(f"{RUN}/tokens", key="train/5/0/0")
    assert set(filter(None, other["why_untrained"])) == {"not_trained"}
    assert set(own["why_untrained"]) == {None}
    assert unknown["why_untrained"] is None


async def test_an_engine_that_was_lost_in_an_undone_step_is_no_alarm(planted_run: RunFolder, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(planted_run.path, tmp_path / "adding"))
    lost = {"name": "engine_lost", "step": 22, "start": 1_760_000_000.0, "end": 1_760_000_000.0}
    with (copy / "events.jsonl").open("a") as file:
        file.writelines(json.dumps({**lost, "step": step}) + "\n" for step in (22, 90))
    async with PageClient(copy) as page:
        alarms = {one["kind"]: one for one in (await page.json(f"{RUN}/alarms"))["alarms"]}
    assert alarms["engines"]["numbers"].startswith("once in the last 10 steps, first in step 17")


@pytest.mark.parametrize("columns", [None, {"odd": [1]}, {"messages": [7], "task_set": [None]}])
async def test_a_damaged_archive_is_named(made_up_run: RunFolder, columns: dict[str, list[Any]] | None) -> None:
    async with SqliteStorage(made_up_run.rollouts) as storage:
        await storage.archive(3)
    path = made_up_run.path / "archive" / "step-000003.parquet"
    if columns is None:
        path.write_bytes(b"no parquet")
    else:
        pq.write_table(pa.table(columns), path)
    async with PageClient(made_up_run.path) as page:
        for end in ("/rollout?key=train/4/0/0", "/tokens?key=train/4/0/0"):
            refused = await page.get(RUN + end)
            assert (refused.status_code, "step-000003.parquet" in refused.text) == (404, True)
        await page.json(f"{RUN}/step", step=3)
        # The other steps are searched.
        found = await page.json(f"{RUN}/search", q="idea")
        assert [hit["step"] for hit in found["hits"]] == [2, 2, 1, 1, 1, 1]
        (unsearched,) = found["unsearched"]
        assert (unsearched["step"], "step-000003.parquet" in unsearched["why"]) == (3, True)


@pytest.mark.parametrize("content", [b"", b"no database" * 1000], ids=["empty", "damaged"])
async def test_a_damaged_database_hides_no_alarm_of_the_metrics(
    planted_run: RunFolder, tmp_path: Path, content: bytes
) -> None:
    copy = Path(shutil.copytree(planted_run.path, tmp_path / "adding"))
    (copy / "rollouts.sqlite").write_bytes(content)
    async with PageClient(copy) as page:
        told = [await page.json(RUN + end) for end in ("/alarms", "/health")]
    for one in told:
        assert {alarm["kind"] for alarm in one["alarms"]} >= {"failures", "engines", "lengths", "truncated"}
        assert "rollouts.sqlite" in one["problem"]
        assert "--fresh" not in one["problem"]


async def test_a_search_says_which_steps_have_lost_their_file(made_up_run: RunFolder) -> None:
    async with PageClient(made_up_run.path) as page:
        assert (await page.json(f"{RUN}/search", q="idea"))["unsearched"] == []
        async with SqliteStorage(made_up_run.rollouts) as storage:
            await storage.archive(3)
        assert (await page.json(f"{RUN}/search", q="idea"))["unsearched"] == []
        (made_up_run.path / "archive" / "step-000002.parquet").unlink()
        found = await page.json(f"{RUN}/search", q="idea")
    assert ([hit["step"] for hit in found["hits"]], found["steps"]) == ([1, 1, 1, 1], 3)
    assert found["unsearched"] == [{"step": 2, "why": "step-000002.parquet is missing"}]


@pytest.mark.parametrize("name", ["status.json", "metrics.jsonl", "events.jsonl"])
async def test_a_pipe_in_the_place_of_a_file_holds_up_nobody(made_up_run: RunFolder, name: str) -> None:
    path = made_up_run.path / name
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    async with PageClient(made_up_run.path) as page:
        refused = await asyncio.wait_for(page.get(f"{RUN}"), 20)
        assert (await page.get("/api/runs")).status_code == 200
    assert (refused.status_code, name in refused.text) == (403, True)


async def test_nobody_says_since_when_who_did_not_look_there(made_up_run: RunFolder) -> None:
    """All groups of 100 steps have equal rewards; only the latest steps are searched for such groups."""
    lines = [{"step": step, "time": 60.0 * step, "reward/mean": 1.0, "groups/trained": 1.0} for step in range(1, 101)]
    made_up_run.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with sqlite3.connect(made_up_run.rollouts) as db:
        for step in range(4, 101):
            row = f"'train', {step + 10}, 0, '{{}}', 0, 0, 'consumed', {step}, 0, NULL, NULL"
            db.execute(f"INSERT INTO groups VALUES ({row})")
            for member in (0, 1):
                db.execute(
                    "INSERT INTO rollouts (task_set, draw, round, expiries, member, attempt, reward, started,"
                    " agent_seconds, judge_seconds) VALUES ('train', ?, 0, 0, ?, 0, ?, 0, 0, 0)",
                    (step + 10, member, '{"kind": "scored", "value": 1.0, "parts": {}, "answer": null}'),
                )
    db.close()
    async with PageClient(made_up_run.path) as page:
        (alarm,) = (await page.json(f"{RUN}/alarms"))["alarms"]
    assert (alarm["kind"], alarm["since"]) == ("no_signal", None)
    assert alarm["numbers"].endswith("since step 70 or earlier")


async def test_the_score_of_another_judger_is_that_of_its_latest_line(made_up_run: RunFolder) -> None:
    keys = [RolloutKey("train", draw, member, attempt) for draw in (4, 40) for member in (0, 1) for attempt in (0, 1)]
    with RejudgedScores.open(made_up_run.rejudged / "strict", {}) as scores:
        for number, key in enumerate([*keys, *keys]):
            scores.add(Judgement(key, 0, "t", 1.0, float(number)))
    found = RejudgedScores(made_up_run.rejudged / "strict")
    assert all(found.of(key, 0) == found.judgements()[key, 0] for key in keys)
    assert found.of(keys[0], 1) is None
    async with PageClient(made_up_run.path) as page:
        shown = await page.json(f"{RUN}/rollout", key="train/4/1/0")
    assert shown["rejudged"] == [{"judger": "strict", "score": 10.0, "failure": None}]


async def test_a_run_that_was_started_over_is_read_with_its_new_tokenizer(made_up_run: RunFolder) -> None:
    stored = StoredRun(made_up_run.rollouts).find(RolloutKey("train", 4, 0))
    assert stored is not None
    assert stored.episode is not None
    first = int(stored.episode.chains[0].ids[0])
    made_up_run.tokenizer.mkdir(exist_ok=True)
    async with PageClient(made_up_run.path) as page:
        for word in ("old", "new"):
            model = {"type": "WordLevel", "vocab": {word: first, "?": first + 1}, "unk_token": "?"}
            text = json.dumps({"version": "1.0", "added_tokens": [], "model": model})
            (made_up_run.tokenizer / "tokenizer.json").write_text(text)
            told = await page.json(f"{RUN}/tokens", key="train/4/0/0")
            assert told["texts"][0] == word
