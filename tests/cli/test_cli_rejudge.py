"""`loopwright rejudge` as a user types it, on a run without a model."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from made_up_run import add, answered, failed

from loopwright.buffer.storage.sqlite import SqliteStorage
from loopwright.cli import main
from loopwright.runs.run_folder import RunFolder
from loopwright.testing.tiny import tiny_llama
from loopwright.track.jsonl import read_jsonl
from loopwright.types import Failed, FailureCause, Group, GroupStatus, RolloutKey, Scored

DRAWS = 4
JUDGE = """
import os
from pathlib import Path

CALLS = Path(__file__).parent / "calls.txt"

async def judge(task, episode):
    with CALLS.open("a") as calls:
        calls.write(f"{task.id} {episode.answer}\\n")
    if "raises" in episode.answer:
        raise KeyError("no truth, and the key is " + os.environ.get("A_KEY", ""))
    return float(len(episode.answer))

async def judge_group(task, episodes):
    with CALLS.open("a") as calls:
        calls.write(f"{len(episodes)} of {task.id}\\n")
    return [float(place) for place, _ in enumerate(episodes)]
"""
CONFIG = """
model: {{ path: {model} }}
data: {{ kind: jsonl, path: tasks.jsonl }}
agent: {agent}
judgers:
  length: {{ kind: native, path: judge.py:judge }}
  places: {{ kind: native, path: judge.py:judge_group, per: group }}
trainer: {{ run_dir: run, steps: 8 }}
"""
AGENT = "{ kind: single_turn, judger: integer_answer }"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def run(tmp_path: Path, model: Path) -> RunFolder:
    return make_run(tmp_path, model)


def make_run(folder: Path, model: Path, agent: str = AGENT) -> RunFolder:
    """Four groups of two: the first member is right, the second says `nothing`."""
    from loopwright.config import load

    (folder / "judge.py").write_text(JUDGE)
    (folder / "tasks.jsonl").write_text('{"prompt": "What is 2+3?", "truth": 5}\n')
    (folder / "train.yaml").write_text(CONFIG.format(model=model, agent=agent))
    loaded = load(folder / "train.yaml")
    with RunFolder.open(folder / "run", loaded.config.model_dump(mode="json")) as made:
        made.adopt(loaded.config.model_dump(mode="json"), loaded.base)
        asyncio.run(store(made))
    return made


async def store(folder: RunFolder, first: int = 0, answers: tuple[str, ...] = ("right", "nothing")) -> None:
    async with SqliteStorage(folder.rollouts) as storage:
        for draw in range(first, first + DRAWS):
            task = add(draw, 5)
            row = await storage.draw("train", draw, task, 0)
            said = [str(task.truth) if answer == "right" else answer for answer in answers]
            members = [answered(RolloutKey("train", draw, n), task, one) for n, one in enumerate(said)]
            for member in members:
                await storage.put(row, member)
            await storage.mark([("train", draw)], GroupStatus.COMPLETED)
            await storage.consume([Group("train", draw, task, tuple(members))], draw + 1)


@pytest.fixture
def rejudge(capfd: pytest.CaptureFixture[str], run: RunFolder):
    """Run the command on the run; gives exit code, stdout and stderr."""

    def run_it(*arguments: object, folder: RunFolder = run) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as caught:
            main(["rejudge", str(folder.path), *map(str, arguments)])
        out, err = capfd.readouterr()
        return int(caught.value.code or 0), out, err

    return run_it


def calls(run: RunFolder) -> list[str]:
    file = run.path.parent / "calls.txt"
    return file.read_text().splitlines() if file.exists() else []


def ledger(run: RunFolder) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(run.rollouts)) as db:
        return db.execute("SELECT * FROM rollouts ORDER BY task_set, draw, round, member, attempt").fetchall()


def test_every_stored_rollout_is_judged_once_and_the_ledger_stays_as_it_is(rejudge, run):
    before = ledger(run)
    code, out, err = rejudge("--judger", "length")
    assert (code, err) == (0, "")
    assert len(calls(run)) == 2 * DRAWS
    # 5 to 8 have one letter, like their reward of 1; `nothing` has seven.
    (row,) = [line.split() for line in out.splitlines() if line.startswith("train ")]
    assert row == ["train", "8", "0.5", "4", "4", "0", "4", "of", "4"]
    assert "train/000000/01/0  0 -> 7" in out
    assert ledger(run) == before
    code, out, _ = rejudge("--judger", "length", "--json")
    assert len(calls(run)) == 2 * DRAWS, "nobody is asked again"
    told = json.loads(out)
    assert (told["judged_now"], told["task_sets"][0]["differ"]) == (0, DRAWS)
    assert told["largest"][0]["after"] == 7.0


def test_it_goes_on_after_a_kill_and_with_what_the_run_has_made_since(rejudge, run):
    rejudge("--judger", "length")
    scores = run.rejudged / "length" / "scores.jsonl"
    whole = scores.read_bytes()
    lines = whole.splitlines(keepends=True)
    scores.write_bytes(b"".join(lines[:3]) + lines[3][:10])  # killed while it wrote the fourth
    asked = len(calls(run))
    assert rejudge("--judger", "length")[0] == 0
    assert len(calls(run)) == asked + 5
    assert sorted(scores.read_bytes().splitlines()) == sorted(whole.splitlines())
    asyncio.run(store(run, first=DRAWS))
    assert rejudge("--judger", "length")[0] == 0
    assert len(read_jsonl(scores)) == 4 * DRAWS


def test_a_group_judger_gets_whole_groups_that_have_ended(rejudge, run):
    async def draw_one_more() -> None:
        async with SqliteStorage(run.rollouts) as storage:
            task = add(9, 5)
            row = await storage.draw("train", DRAWS, task, 0)
            await storage.put(row, answered(RolloutKey("train", DRAWS, 0), task, "14"))

    asyncio.run(draw_one_more())
    assert rejudge("--judger", "places")[0] == 0
    assert sorted(calls(run)) == [f"2 of {draw}+5" for draw in range(DRAWS)]
    assert {one["after"] for one in read_jsonl(run.rejudged / "places" / "scores.jsonl")} == {0.0, 1.0}
    assert rejudge("--judger", "length")[0] == 0
    assert len(read_jsonl(run.rejudged / "length" / "scores.jsonl")) == 2 * DRAWS + 1


def test_a_failure_is_no_score_and_is_asked_again(rejudge, run, monkeypatch):
    monkeypatch.setenv("A_KEY", "a-secret-of-the-judger")
    config = run.path.parent / "train.yaml"
    config.write_text(config.read_text().replace("judge.py:judge }", "judge.py:judge, env: [A_KEY] }"))
    asyncio.run(store(run, first=DRAWS, answers=("this raises", "nothing")))
    code, out, _ = rejudge("--judger", "length", "--config", config)
    assert code == 0
    (row,) = [line.split() for line in out.splitlines() if line.startswith("train ")]
    assert row[1:6] == ["16", "0.333", "5", "8", "4"]
    records = read_jsonl(run.rejudged / "length" / "scores.jsonl")
    failures = [one for one in records if "failure" in one]
    assert len(failures) == DRAWS
    assert {one["after"] for one in failures} == {None}
    assert "a-secret-of-the-judger" not in out + json.dumps(records)
    assert "KeyError" in failures[0]["failure"]
    asked = len(calls(run))
    assert json.loads(rejudge("--judger", "length", "--config", config, "--json")[1])["failures"] == DRAWS
    assert len(calls(run)) > asked


def test_a_judger_that_always_fails_stops(rejudge, run):
    asyncio.run(store(run, first=DRAWS, answers=("this raises",) * 8))
    code, _, err = rejudge("--judger", "length")
    assert code == 1
    assert "failed 20 times in a row" in err


def test_what_was_not_judged_is_left_out(rejudge, run):
    async def more() -> None:
        async with SqliteStorage(run.rollouts) as storage:
            task = add(9, 5)
            row = await storage.draw("train", DRAWS, task, 0)
            sound = answered(RolloutKey("train", DRAWS, 0), task, "14")
            raised = sound.judged(Scored(-1.0, {"agent_error": 1.0}), 0.0)
            lost = failed(RolloutKey("train", DRAWS, 1), task).judged(Failed(FailureCause.AGENT, "KeyError", "x"), 0.0)
            for rollout in (raised, lost):
                await storage.put(row, rollout)
            await storage.mark([("train", DRAWS)], GroupStatus.FAILED)
            undone = await storage.draw("train", DRAWS + 1, task, 0)
            await storage.put(undone, answered(RolloutKey("train", DRAWS + 1, 0), task, "14"))

    asyncio.run(more())
    with closing(sqlite3.connect(run.rollouts)) as db, db:  # as a resumed run leaves it
        db.execute("UPDATE groups SET status = ? WHERE draw = ?", (GroupStatus.ROLLED_BACK.value, DRAWS + 1))
    assert rejudge("--judger", "length")[0] == 0
    assert len(calls(run)) == 2 * DRAWS


def test_another_judger_of_the_same_name_is_refused_until_it_may_start_over(rejudge, run):
    rejudge("--judger", "length")
    judge = run.path.parent / "judge.py"
    judge.write_text(judge.read_text().replace("float(len(episode.answer))", "0.0"))
    code, _, err = rejudge("--judger", "length")
    assert code == 1
    assert "another config or other code" in err
    assert "--fresh" in err
    code, out, _ = rejudge("--judger", "length", "--fresh", "--json")
    assert code == 0
    assert json.loads(out)["judged_now"] == 2 * DRAWS


def test_rewards_from_the_folder_of_a_program_are_refused(tmp_path, model, rejudge):
    runner = "runner: { kind: command, command: [python] }, reward: { kind: file, path: reward.json }"
    other = tmp_path / "programs"
    other.mkdir()
    made = make_run(other, model, agent=f"{{ kind: remote, {runner} }}")
    code, _, err = rejudge("--judger", "length", folder=made)
    assert code == 1
    assert "came from the folders of its programs" in err
    assert calls(made) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--judger", "lenght"], "did you mean 'length'?"),
        (["--judger", "length", "--task-set", "trian"], "did you mean 'train'?"),
    ],
)
def test_a_wrong_name_gets_a_suggestion(rejudge, run, arguments, words):
    code, _, err = rejudge(*arguments)
    assert code != 0
    assert words in err
    assert not run.rejudged.exists()


def test_two_at_once_are_refused(rejudge, run):
    import fcntl

    folder = run.rejudged / "length"
    folder.mkdir(parents=True)
    with (folder / "lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        code, _, err = rejudge("--judger", "length")
    assert code == 1
    assert "wait for it" in err
