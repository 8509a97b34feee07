"""`loopwright show` as a user types it."""

from __future__ import annotations

import asyncio
import io
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from loopwright.buffer.storage.sqlite import SqliteStorage
from loopwright.cli import main
from loopwright.cli.tokens import chain_text, print_indented, visible
from loopwright.runs.run_folder import RunFolder
from loopwright.testing.chars import CharRenderer
from loopwright.types import GroupStatus, TokenChain


@pytest.fixture
def show(capfd, made_up_run):
    """Run `show` on the made-up run; gives exit code, stdout and stderr."""

    def run_it(*arguments: object, run: object = made_up_run.path) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as caught:
            main(["show", str(run), *map(str, arguments)])
        out, err = capfd.readouterr()
        return int(caught.value.code or 0), out, err

    return run_it


def keys(out: str) -> list[str]:
    return [line.split()[0] for line in out.splitlines() if line.startswith(("train/", "heldout/"))]


def test_by_default_the_last_step_is_shown(show):
    code, out, err = show()
    assert (code, err) == (0, "")
    assert keys(out) == ["train/000004/00/0", "train/000004/01/0", "train/000005/00/0", "train/000005/01/0"]
    first = out.split("\n\n")[0].splitlines()
    assert first == [
        "train/000004/00/0  step 3",
        "  task 4+5",
        "  truth 9",
        "  user",
        "    What is 4+5?",
        "  assistant",
        "    9",
        "  reward 1  2 tokens  0.2 s  version 2",
    ]


def test_a_step_a_limit_and_an_order(show):
    assert keys(show("--step", 2, "--limit", 3)[1]) == ["train/000002/00/0", "train/000002/01/0", "train/000003/00/0"]
    assert keys(show("--step", 2, "--best", "--limit", 2)[1]) == ["train/000002/01/0", "train/000003/01/0"]
    assert keys(show("--step", 2, "--worst", "--limit", 2)[1]) == ["train/000002/00/0", "train/000003/00/0"]


def test_a_task_is_found_at_any_step(show):
    assert keys(show("--task", "1+5")[1]) == ["train/000001/00/0", "train/000001/01/0"]
    code, _, err = show("--task", "1+5", "--step", 2)
    assert code == 1
    assert "there is no task '1+5' at step 2" in err
    assert "step 2 has the tasks 2+5, 3+5" in err


def test_groups_that_were_not_trained_are_found_by_their_status(show, made_up_run):
    async def filter_some() -> None:
        async with SqliteStorage(made_up_run.rollouts) as storage:
            await storage.mark([("train", 0), ("train", 3)], GroupStatus.FILTERED)

    asyncio.run(filter_some())
    code, out, _ = show("--status", "filtered", "--limit", 3)
    assert code == 0
    assert keys(out) == ["train/000003/00/0", "train/000003/01/0", "train/000000/00/0"], "the latest draws first"
    assert "train/000003/00/0  filtered" in out
    assert keys(show("--status", "filtered", "--task", "0+5", "--best")[1]) == [
        "train/000000/00/0",
        "train/000000/01/0",
    ]
    code, _, err = show("--status", "failed")
    assert code == 1
    assert "no group is failed" in err
    assert "4 consumed, 2 filtered" in err
    assert show("--status", "failed", "--step", 1)[0] == 2


def test_evaluations_show_failures_with_their_cause_and_no_reward(show):
    _, out, _ = show("--eval", "--task", "3+3", "--limit", 1)
    assert keys(out) == ["heldout/000002/00/0"]
    assert "eval greedy, after step 3" in out
    assert "failed judge, KeyError: judge.py:3 <no truth>" in out
    assert "reward" not in out


def test_evaluations_of_one_step_order_failures_last(show):
    _, out, _ = show("--eval", "--step", 0, "--worst", "--limit", 6)
    assert [key.split("/")[1] for key in keys(out)] == ["000000", "000000", "000001", "000001", "000002", "000002"]
    assert "before training" in out


def test_one_rollout_by_its_key(show):
    assert keys(show("--key", "train/000001/01/0")[1]) == ["train/000001/01/0"]
    assert keys(show("--key", "heldout/1/0/0", "--eval", "--step", 0)[1]) == ["heldout/000001/00/0"] * 2
    assert "there is no rollout train/000099/00/0" in show("--key", "train/99/0/0")[2]
    code, _, err = show("--key", "train/1")
    assert code == 2
    assert "it looks like train/000012/03/0" in err
    assert show("--key", "train/1/0/0", "--task", "x")[0] == 2


def test_steps_that_are_not_there_name_those_that_are(show):
    code, out, err = show("--step", 9)
    assert (code, out) == (1, "")
    assert "step 9 has not been trained" in err
    assert "choose one of the steps 1, 2, 3" in err
    assert "choose one of the steps 0, 3" in show("--eval", "--step", 1)[2]


def test_a_folder_without_a_run_names_the_runs_near_it(show, made_up_run, tmp_path):
    code, _, err = show(run=made_up_run.path.parent)
    assert code == 1
    assert "is not the folder of a run" in err
    assert f"did you mean {made_up_run.path}?" in err
    assert f"did you mean {made_up_run.path}?" in show(run=made_up_run.path.with_name("addign"))[2]
    assert "does not exist" in show(run=tmp_path / "elsewhere" / "x")[2]


def test_tokens_are_marked_where_they_were_sampled(show, monkeypatch, made_up_run):
    asked: list[RunFolder] = []

    def run_renderer(folder: RunFolder) -> CharRenderer:
        asked.append(folder)
        return CharRenderer()

    build = SimpleNamespace(run_renderer=run_renderer)
    monkeypatch.setitem(sys.modules, "loopwright.build", build)
    _, out, _ = show("--tokens", "--limit", 1)
    assert asked == [made_up_run]
    assert "  tokens 32, 2 of them sampled" in out
    assert "    user: What is 4+5?<end>assistant: ⟦9⟧⟦<end>⟧" in out
    assert "logprob" not in out
    _, out, _ = show("--logprobs", "--limit", 1)
    rows = [line.split() for line in out.splitlines()]
    assert ["30", "'9'", "57", "-0.5000", "0.607", "2"] in rows


def test_without_tokens_nothing_heavy_is_loaded(made_up_run):
    code = (
        "import sys; from loopwright.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit as done: code = done.code\n"
        "sys.exit(code or ('torch' in sys.modules or 'transformers' in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code, "show", made_up_run.path], capture_output=True).returncode == 0


def test_colours_mark_sampled_tokens_on_a_terminal_and_lines_are_wrapped_with_a_margin():
    sampled = np.array([False, False, True, True, True])
    chain = TokenChain(
        np.array([*map(ord, "ab"), *map(ord, "c\nd")]), sampled, np.where(sampled, -1, 0), np.where(sampled, 0, -1)
    )
    text = chain_text(chain, CharRenderer(), coloured=True)
    assert text.plain == "abc↵\nd"
    styled = {text.plain[span.start : span.end]: str(span.style) for span in text.spans}
    assert styled["c"] != styled["↵"]
    assert "on " in styled["c"]
    assert styled["a"] == "dim"
    assert chain_text(chain, CharRenderer(), coloured=False).plain == "ab⟦c⟧⟦↵⟧\n⟦d⟧"
    forced = replace(chain, constrained=((3, 5),))
    assert chain_text(forced, CharRenderer(), coloured=False).plain == "ab⟦c⟧⟬↵⟭\n⟬d⟭", "what had no choice is marked"
    file = io.StringIO()
    out = Console(file=file, force_terminal=True, color_system=None, width=30)
    print_indented(out, chain_text(chain, CharRenderer(), coloured=True), indent=4)
    assert file.getvalue() == "    abc↵\n    d\n"


def test_what_a_model_wrote_cannot_control_the_terminal():
    assert visible("\x1b[31mred\x07\r\x7f\x9b\tok\n") == "␛[31mred␇␍␡\\x9b\tok\n"
