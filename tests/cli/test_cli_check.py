"""`check` and `config` as a user types them: exit codes, what is said, and what is not loaded."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from loopwright.build import rehearsal
from loopwright.cli import main
from loopwright.core.redaction import MARK
from loopwright.testing import JudgeReply, JudgeServer, chat_reply

EXAMPLE = Path(__file__).parents[2] / "examples" / "arithmetic.yaml"
CONFIG = """
model: {path: smollm2}
data: {kind: jsonl, path: tasks.jsonl}
agent: {kind: single_turn, judger: mine}
judgers: {mine: {kind: native, path: "mine.py:judge"}}
trainer: {run_dir: runs/x, steps: 10}
"""
# What is not async runs in a process of its own, which takes half a second to start.
JUDGERS = """
from loopwright import Scored

async def judge(task, episode): return episode.answer == str(task.truth)
def plain(task, episode): return episode.answer == str(task.truth)
async def rank(task, episodes): return list(range(len(episodes)))
async def patient(task, episode): return Scored(0.25, {"style": 1.0})
async def wordy(task, episode): return "good"
async def empty(task, episode): return None
async def nan(task, episode): return float("nan")
def broken(task, episode):
    return task.truth["answer"]
def quits(task, episode): raise SystemExit("bye")
def lazy(task, episode): return patient(task, episode)
def hangs(task, episode):
    import time
    time.sleep(600)
async def broken_later(task, episode): return broken(task, episode)
def keep(group): return True
async def chars(tasks): return sum(len(r.episode.answer) for t in tasks for r in t.rollouts)
async def divides(tasks): return 1 / sum(t.failed for t in tasks)
SEVEN = 7
class Loop:
    def __init__(self, turns): self.turns = turns
    async def run(self, task, policy): return []
"""

JUDGED = JudgeReply({"score": 0.5, "parts": {"style": 0.1}})


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "tasks.jsonl").write_text(
        '{"id": "first", "prompt": "2+2?", "truth": 4}\n{"prompt": "3+3?", "truth": 6}\n'
    )
    (tmp_path / "mine.py").write_text(JUDGERS)
    (tmp_path / "run.yaml").write_text(CONFIG)
    return tmp_path / "run.yaml"


@pytest.fixture
def run(capfd):
    """Run a command line; gives exit code, stdout and stderr."""

    def run_it(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as caught:
            main([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        return int(caught.value.code or 0), out, err

    return run_it


def test_a_sound_config_is_ok(run, file):
    code, out, err = run("check", file, "trainer.steps=5")
    assert (code, err) == (0, "")
    assert out.startswith(f"ok: {file}")
    assert "engine torch: weights in place" in out
    assert "5 steps x 8 groups x 8 samples = 320 rollouts" in out
    assert "tasks.jsonl, single_turn agent, judged by mine" in out


def test_a_program_is_not_said_to_be_judged_by_itself(run, file):
    program = "{kind: remote, runner: {kind: command, command: [sh, -c, 'exit 0']}, reward: {kind: exit_code}}"
    text = "".join("" if line.startswith("agent:") else line for line in CONFIG.splitlines(keepends=True))
    file.write_text(f"{text}\nagent: {program}\n")
    code, out, err = run("check", file)
    assert code == 0, err
    assert "remote agent, reward from its exit code" in out


def test_problems_exit_with_2_and_no_traceback(run, file):
    code, out, err = run("check", file, "rollout.temprature=1", "data.path=taks.jsonl")
    assert (code, out) == (2, "")
    assert "has 2 problems" in err
    assert "did you mean 'temperature'?" in err
    assert "did you mean 'tasks.jsonl'?" in err
    assert "Traceback" not in err


def test_warnings_are_shown_and_do_not_fail(run, file):
    code, _, err = run("check", file, "rollout.top_k=50")
    assert code == 0
    assert "warning: rollout.top_k: is 50" in err


def test_the_environment_is_a_layer(run, file, monkeypatch):
    monkeypatch.setenv("LOOPWRIGHT_TRAINER__STEPS", "none")
    code, _, err = run("check", file)
    assert code == 2
    assert "trainer.steps: is 'none', must be a whole number (env LOOPWRIGHT_TRAINER__STEPS)" in err


@pytest.mark.parametrize("deep", [(), ("--deep",)])
def test_a_malformed_line_of_every_data_file_is_reported(run, file, deep):
    (file.parent / "tasks.jsonl").write_text('{"prompt": "a"}\n{"prompt": \n')
    (file.parent / "held.jsonl").write_text('{"question": "a"}\n')
    evaluation = "eval={data: {kind: jsonl, path: held.jsonl}, agent: {kind: single_turn, judger: mine}}"
    code, out, err = run("check", file, evaluation, *deep)
    assert code == 2
    assert "ok:" not in out
    assert err.count("tasks.jsonl:2: this line is not valid JSON") == 1
    assert err.count("held.jsonl:1: there is neither messages nor prompt") == 1


@pytest.mark.parametrize("judger", ["judge", "plain"])
def test_deep_shows_a_task_and_calls_the_judger(run, file, judger):
    code, out, err = run("check", "--deep", file, f"judgers.mine.path=mine.py:{judger}")
    assert (code, err) == (0, "")
    assert "2 tasks; the first is first:" in out
    assert "user: 2+2?" in out
    assert "judger mine gives 1 to the made-up answer '4'" in out


def test_deep_awaits_an_async_judger_and_knows_the_built_in(run, file):
    _, out, _ = run("check", "--deep", file, "judgers.mine.path=mine.py:patient")
    assert "judger mine gives 0.25" in out
    _, out, _ = run("check", "--deep", file, "agent.judger=integer_answer")
    assert "judger integer_answer gives 1" in out


@pytest.mark.parametrize(
    ("judger", "words"),
    [
        ("wordy", "returned 'good' of type str"),
        ("empty", "returned None"),
        ("nan", "returned nan"),
        ("broken", 'return task.truth["answer"]'),
        ("broken", "TypeError: 'int' object is not subscriptable"),
        ("quits", "SystemExit: bye"),
        ("lazy", "make the judger an `async def`"),
        ("broken_later", 'return task.truth["answer"]'),
    ],
)
def test_deep_names_a_judger_that_gives_no_number(run, file, judger, words):
    code, out, err = run("check", "--deep", file, f"judgers.mine.path=mine.py:{judger}")
    assert code == 2
    assert "ok:" not in out
    assert f"judger 'mine' (mine.py:{judger})" in err
    assert words in err
    assert not {"rehearsal.py", "native.py"} & set(re.findall(r"\w+\.py", err)), "only the user's frames are shown"


# A judger in a process of its own takes a second to start.
@pytest.mark.parametrize("third", ["integer_answer", pytest.param("math_answer", marks=pytest.mark.real)])
def test_deep_calls_every_kind_of_judger(run, file, monkeypatch, third):
    monkeypatch.setenv("JUDGE_KEY", "k")
    monkeypatch.setattr("loopwright.judgers.endpoint.FIRST_PAUSE_SECONDS", 0.01)
    rank = "judgers.mine={kind: native, path: 'mine.py:rank', per: group}"
    _, out, _ = run("check", "--deep", file, rank)
    assert "judger mine gives 0 to the made-up answer '4'" in out
    assert "judger mine gives 1 to the made-up answer 'An answer.'" in out
    with JudgeServer(lambda asked: chat_reply('{"score": 1}') if "model" in asked.body else JUDGED) as server:
        web = f"judgers.web={{kind: http, url: '{server.url}', api_key_env: JUDGE_KEY}}"
        llm = f"judgers.llm={{kind: llm, base_url: '{server.url}', model: m}}"
        parts = f"{{a: {{judger: web}}, b: {{judger: llm, weight: 2}}, c: {{judger: {third}}}}}"
        both = f"judgers.mine={{kind: composed, parts: {parts}}}"
        code, out, err = run("check", "--deep", file, web, llm, both)
    assert (code, err) == (0, "")
    assert "judger mine gives 3.5 (a 0.5, a/style 0.1, b 1, c 1) to the made-up answer '4'" in out
    code, out, err = run("check", "--deep", file, web, llm, both)
    assert code == 2
    assert f"judger 'web' ({server.url}) could not be asked: ConnectError" in err
    assert "judger 'mine', part 'a'" in err


def test_deep_shows_no_key_that_is_in_a_task(run, file, monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", "the-key-of-the-judge")
    (file.parent / "tasks.jsonl").write_text('{"prompt": "Log in with the-key-of-the-judge", "truth": 4}\n')
    judger = "judgers.mine={kind: native, path: 'mine.py:patient', env: [JUDGE_KEY]}"
    code, out, err = run("check", "--deep", file, judger)
    assert (code, err) == (0, "")
    assert f"user: Log in with {MARK}" in out
    assert "the-key-of-the-judge" not in out


def test_deep_does_not_wait_for_a_judger_that_hangs(run, file):
    code, _, err = run(
        "check", "--deep", file, "judgers.mine={kind: native, path: 'mine.py:hangs', timeout_seconds: 0.1}"
    )
    assert code == 2
    assert "judger 'mine' (mine.py:hangs) gave no score within 0.1 s" in err


def test_deep_refuses_tasks_that_cannot_be_stored(run, file):
    (file.parent / "tasks.py").write_text("def made(): return [{'prompt': 'a', 'truth': {1, 2}}]\n")
    code, _, err = run("check", "--deep", file, "data={kind: python, path: 'tasks.py:made'}")
    assert code == 2
    assert "tasks.py:made, task 0: truth cannot be stored as JSON" in err


def test_deep_reads_a_table_to_its_end(run, file, monkeypatch):
    pq = pytest.importorskip("pyarrow.parquet")
    pa = pytest.importorskip("pyarrow")
    table = "data={kind: parquet, path: table.parquet}"
    prompts = ["2+2?", "3+3?", "", "4+4?", ""]
    pq.write_table(pa.table({"prompt": prompts, "truth": [4, 6, 0, 8, 0]}), file.parent / "table.parquet")
    assert run("check", file, table)[0] == 0, "without --deep only the first row is read"
    code, out, err = run("check", "--deep", file, table)
    assert code == 2
    assert "table.parquet: row 2: prompt must be text or messages, got empty text (2 of all 5 rows are bad)" in err
    assert "judger mine gives 1" in out, "the rest is checked all the same"
    monkeypatch.setattr(rehearsal, "READ_ROWS", 2)
    code, out, err = run("check", "--deep", file, table)
    assert (code, err) == (0, "")
    assert "the first 2 of 5 rows are tasks" in out


def test_deep_makes_the_agent(run, file):
    agent = "agent={kind: python, path: 'mine.py:Loop', judger: mine, args: {turns: 3}}"
    code, out, _ = run("check", "--deep", file, agent)
    assert code == 0
    assert "agent mine.py:Loop can be made" in out
    code, _, err = run("check", "--deep", file, agent.replace("turns", "tuns"))
    assert code == 2
    assert "unexpected keyword argument 'tuns'" in err


def test_deep_says_what_an_agent_with_tools_offers(run, file):
    (file.parent / "tools.py").write_text('def add(a: int, b: int) -> int:\n    """Add."""\n    return a + b\n')
    tools = "agent={kind: tool, judger: mine, tools: [{kind: python, path: 'tools.py:add'}]}"
    code, out, err = run("check", "--deep", file, tools)
    assert (code, err) == (0, "")
    assert "the model is offered add" in out


def test_deep_imports_the_choice_of_chains(run, file):
    agent = "agent={kind: python, path: 'mine.py:Loop', judger: mine, args: {turns: 3}, train: 'mine.py:%s'}"
    code, out, err = run("check", "--deep", file, agent % "keep")
    assert (code, err) == (0, "")
    assert "agent.train mine.py:keep can be called" in out
    code, _, err = run("check", "--deep", file, agent % "SEVEN")
    assert code == 2
    assert "'mine.py:SEVEN' names 7, which cannot be called" in err


def test_deep_imports_filters_and_measures_with_the_users_metrics(run, file):
    (file.parent / "held.jsonl").write_text('{"prompt": "1+4?", "truth": 5}\n')
    evaluation = [
        "eval={data: {kind: jsonl, path: held.jsonl}, agent: {kind: single_turn, judger: mine}}",
        "eval.metrics=['mine.py:chars']",
    ]
    code, out, err = run("check", "--deep", file, "produce.filter=mine.py:keep", *evaluation)
    assert (code, err) == (0, "")
    assert out.count("filter mine.py:keep can be called") == 1
    assert "metric mine.py:chars gives chars 1, chars/tasks 1 for one made-up sample" in out
    wrong = ["produce.filter=mine.py:SEVEN", "eval.metrics=['mine.py:divides']"]
    code, _, err = run("check", "--deep", file, *evaluation, *wrong)
    assert code == 2
    assert "'mine.py:SEVEN' names 7, which cannot be called" in err
    assert "metric 'divides' raised ZeroDivisionError" in err


def test_config_shows_every_field_with_its_source(run, file, monkeypatch):
    monkeypatch.setenv("LOOPWRIGHT_ROLLOUT__TOP_P", "0.9")
    code, out, _ = run("config", file, "rollout.temperature=0.7")
    assert code == 0
    rows = {line.split()[0]: line.split(maxsplit=2)[1:] for line in out.splitlines()}
    assert [part.strip() for part in rows["rollout.temperature"]] == ["0.7", "command line"]
    assert [part.strip() for part in rows["rollout.top_p"]] == ["0.9", "env LOOPWRIGHT_ROLLOUT__TOP_P"]
    assert [part.strip() for part in rows["trainer.steps"]] == ["10", "run.yaml:6"]
    assert [part.strip() for part in rows["learner.lr"]] == ["1e-05", "default"]


def test_config_as_yaml_is_a_config_again(run, file):
    code, out, _ = run("config", "--yaml", file, "rollout.stop=[x]")
    assert code == 0
    assert yaml.safe_load(out)["rollout"]["stop"] == ["x"]
    (file.parent / "merged.yaml").write_text(out)
    assert run("check", file.parent / "merged.yaml")[0] == 0


@pytest.mark.parametrize("example", ["arithmetic.yaml", "tools_calculator.yaml"])
def test_checking_deeply_loads_nothing_heavy(example):
    """In a process of its own, because other tests may have loaded torch into this one."""
    code = (
        "import sys\n"
        "from loopwright.cli import main\n"
        "try: main(['check', '--deep', sys.argv[1]])\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "heavy = {'torch', 'transformers', 'ray', 'pyarrow'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, EXAMPLE.parent / example], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "tasks; the first is" in done.stdout


HEAVY = {"torch", "transformers", "tokenizers", "pyarrow", "datasets", "httpx", "starlette", "math_verify"}


def test_a_typo_is_reported_before_anything_heavy_is_loaded():
    # That is what makes it take half a second; how long it takes is no test's business on a busy machine.
    code = f"import sys\nfrom loopwright.cli import main\ntry: main()\nfinally: print({HEAVY} & set(sys.modules))"
    command = [sys.executable, "-c", code, "check", str(EXAMPLE), "rollout.temprature=1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "did you mean 'temperature'?" in done.stderr
    assert done.stdout == "set()\n"
