"""What the terminal says of a run: every line is known by its words, with and without a terminal."""

from __future__ import annotations

import io
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import rich.console
from hypothesis import given
from hypothesis import strategies as st

from loopwright.core.duration import duration
from loopwright.runs.final_summary import print_summary
from loopwright.runs.report.data import Evaluated, Measure, RunSummary, edges
from loopwright.track.console import Console
from loopwright.track.console_text import BLOCKS, PhaseTally, evaluations, sparkline
from loopwright.types import Failed, FailureCause, Rollout, RolloutKey, Scored, Task, Timing

STEP = {
    "reward/mean": 0.25,
    "response/tokens": 12.34,
    "response/truncated": 0.5,
    "groups/failed": 1.0,
    "failures/infra": 0.0,
    "failures/judge": 3.0,
    "time/rollout": 4.21,
    "time/train": 75.0,
}


def rollout(member: int, score: float | None, attempt: int = 0) -> Rollout:
    reward = Failed(FailureCause.INFRA, "EngineError", "down") if score is None else Scored(score)
    return Rollout(RolloutKey("train", 0, member, attempt), Task.ask("a", "b"), None, reward, Timing(0.0))


@pytest.fixture
def file() -> io.StringIO:
    return io.StringIO()


def lines(file: io.StringIO) -> list[str]:
    return file.getvalue().splitlines()


def piped(file: io.StringIO) -> rich.console.Console:
    return rich.console.Console(file=file, width=40, highlight=False)


def terminal(file: io.StringIO) -> rich.console.Console:
    return rich.console.Console(
        file=file, force_terminal=True, force_interactive=True, color_system=None, width=120, legacy_windows=False
    )


def test_each_step_is_one_line_also_in_a_narrow_pipe(file):
    with Console(steps=20, rollouts_per_step=4, title="runs/x", out=piped(file)) as console:
        with console.span("rollout", step=1):
            console.on_rollout(rollout(0, 1.0))
        console.log(1, STEP)
        assert lines(file)[-1] == (
            "step  1/20  reward  0.250 ▃               12.3 tokens  50% cut  failed: 3 judge"
            "  1 group given up  rollouts 4.2 s  training 1 min 15 s"
        )
        console.log(2, STEP)
    assert [line[:10] for line in lines(file)] == ["runs/x  20", "step  1/20", "step  2/20"]
    assert "▃▃" in lines(file)[-1]
    assert "\x1b" not in file.getvalue()


def test_a_step_of_an_asynchronous_run_tells_of_waiting_age_and_restarts(file):
    apart = {"time/wait": 3.0, "time/train": 5.0, "staleness/mean": 0.75, "staleness/masked": 0.04}
    with Console(steps=2, rollouts_per_step=4, title="x", out=piped(file)) as console:
        console.log(1, {**apart, "engine/restarts": 1.0})
        console.log(2, {**apart, "engine/restarts": 0.0, "staleness/masked": 0.0})
    assert lines(file)[1:] == [
        "step 1/2  engine restarted 1 x  4% too old  staleness 0.8  waited 3.0 s  training 5.0 s",
        "step 2/2  staleness 0.8  waited 3.0 s  training 5.0 s",
    ]


def test_missing_metrics_leave_gaps(file):
    with Console(steps=3, rollouts_per_step=4, title="x", out=piped(file)) as console:
        console.log(1, {"learner/loss": 0.5})
        console.log(2, {"reward/mean": -3.5})
        console.log(3, {})
    assert lines(file)[1] == "step 1/3"
    assert lines(file)[2].startswith("step 2/3  reward -3.500")
    assert len(lines(file)) == 3


def test_evaluations_tell_the_change_and_count_failures_apart(file):
    with Console(steps=3, rollouts_per_step=4, title="x", out=piped(file)) as console:
        console.log(0, {"eval/a/b/greedy/reward": 0.25, "eval/a/b/greedy/scored": 4.0, "eval/a/b/greedy/failed": 0.0})
        console.log(3, {"eval/a/b/greedy/reward": 0.75, "eval/a/b/greedy/scored": 3.0, "eval/a/b/greedy/failed": 1.0})
        console.log(3, {"eval/a/b/sampled/scored": 0.0, "eval/a/b/sampled/failed": 4.0})
    assert lines(file)[1:] == [
        "eval a/b, greedy, before training: reward 0.250  4 scored",
        "eval a/b, greedy, after step 3: reward 0.750 (+0.500)  3 scored  1 failed",
        "eval a/b, sampled, after step 3:  0 scored  4 failed",
    ]


def test_a_terminal_shows_live_reward_and_failures_and_cleans_up(file):
    out = terminal(file)
    with Console(steps=3, rollouts_per_step=4, title="x", out=out) as console:
        with console.span("rollout", step=1):
            for one in (rollout(0, 1.0), rollout(1, 0.0), rollout(2, None), rollout(2, 1.0, attempt=1)):
                console.on_rollout(one)
            console._bars.refresh()
            assert "3/4" in file.getvalue()
            assert "reward 0.667, 1 failed" in file.getvalue()
        with console.span("evaluate", step=1, task_set="heldout", mode="greedy", tasks=7, rollouts=7):
            console._bars.refresh()
            assert "evaluating heldout greedy" in file.getvalue()
            assert "0/7" in file.getvalue()
    assert file.getvalue().count("\x1b[?25l") == file.getvalue().count("\x1b[?25h") == 1


def test_a_span_that_raises_takes_its_bar_with_it(file):
    console = Console(steps=3, rollouts_per_step=4, title="x", out=piped(file))
    with pytest.raises(KeyError), console.span("train", step=1):
        raise KeyError("x")
    assert [task.description for task in console._bars.tasks] == ["steps"]
    console.on_rollout(rollout(0, 1.0))


@pytest.mark.parametrize("first", ["rollout", "wait"])
def test_a_resumed_run_begins_where_it_was(file, first):
    console = Console(steps=30, rollouts_per_step=4, title="x", out=piped(file))
    with console.span(first, step=11):
        assert console._bars.tasks[0].completed == 10


def test_a_tally_counts_members_once_and_failures_never_as_zero():
    tally = PhaseTally()
    assert str(tally) == ""
    for one in (rollout(0, None), rollout(0, None, attempt=1)):
        tally.add(one)
    assert (len(tally.seen), str(tally)) == (1, "2 failed")
    tally.add(rollout(1, 1.0))
    assert str(tally) == "reward 1.000, 2 failed"


@given(st.lists(st.floats(-1e6, 1e6), max_size=40))
def test_a_sparkline_has_one_block_per_value_and_keeps_their_order(values):
    line = sparkline(values)
    assert len(line) == len(values)
    heights = [BLOCKS.index(block) for block in line]
    for (a, height_a), (b, height_b) in pairwise(zip(values, heights, strict=True)):
        assert (a - b) * (height_a - height_b) >= 0


def test_a_sparkline_of_shares_does_not_magnify_noise():
    assert sparkline([0.1, 0.11, 0.1]) == "▂▂▂"
    assert sparkline([10.0, 20.0]) == "▁█"


def test_other_metrics_are_no_evaluations():
    assert evaluations({"eval/a/greedy/sampled/pass@2/tasks": 1.0}) == {("a/greedy", "sampled"): {"pass@2/tasks": 1.0}}
    assert evaluations({"reward/mean": 1.0, "eval/odd": 2.0, "time/eval/a/b": 3.0}) == {}


def summary_of(**overrides: object) -> RunSummary:
    values: dict[str, Any] = {
        "folder": Path("runs/x"),
        "measure": Measure.ACCURACY,
        "steps": {step: {"reward/mean": step / 10} for step in range(1, 5)},
        "evaluations": (
            Evaluated(0, "heldout", "greedy", 0.36, 200, 0),
            Evaluated(4, "heldout", "greedy", 0.8, 199, 1),
        ),
        "phases": {"rollout": 60.0, "train": 30.0},
    }
    return RunSummary(**(values | overrides))


def test_the_summary_says_what_was_achieved_and_what_to_do_next(file):
    paths = {"report": Path("runs/x/report.html"), "export": Path("runs/x/export")}
    print_summary(summary_of(**paths), out=rich.console.Console(file=file, width=100))
    text = file.getvalue()
    assert "36.0%  80.0%  +44.0 points" in text
    assert "0.150 in the first 2, 0.350 in the last 2 steps" in text
    assert "1 min 30 s (rollout 1 min 00 s, train 30 s)" in text
    for part in ("runs/x/report.html", "runs/x/export", "loopwright show runs/x", "loopwright chat runs/x"):
        assert part in text
    assert "Stopped" not in text


def test_commands_of_the_summary_can_be_pasted(file):
    print_summary(summary_of(folder=Path("my runs/x")), out=rich.console.Console(file=file, width=100))
    assert "loopwright show 'my runs/x'" in file.getvalue()


def test_the_summary_says_how_exact_the_engines_were(file):
    """Weighed by tokens; and the worst of all proofs of all engines."""
    steps = {
        1: {"learner/mismatch_mean_s0": 1e-5, "learner/mismatch_tokens_s0": 900.0, "engine/0/proof_max": 2e-5},
        2: {"learner/mismatch_mean_s1": 0.1, "learner/mismatch_tokens_s1": 500.0, "engine/1/proof_max": 9e-5},
        3: {"learner/mismatch_mean_s0": 2e-5, "learner/mismatch_tokens_s0": 100.0, "engine/0/proof_max": 1e-5},
    }
    print_summary(summary_of(steps=steps), out=piped(file))
    assert "1.1e-05 on average over 1,000 trained tokens of staleness 0" in file.getvalue()
    assert "of 3 weight updates, each at most 9.0e-05 off" in file.getvalue()


def test_a_run_that_was_stopped_early_says_so(file):
    print_summary(summary_of(steps={}, evaluations=()), finished=False, out=piped(file))
    assert "The same command goes on from here." in file.getvalue()
    assert "loopwright show runs/x" in file.getvalue()
    assert "loopwright chat" not in file.getvalue(), "without a trained step there is nobody to talk to"
    assert "held-out" not in file.getvalue()


@pytest.mark.parametrize(
    ("lost", "text"),
    [
        (range(5, 8), "Steps 5 to 7 are lost with the learner, and the same command goes on from step 4."),
        (range(5, 6), "Step 5 is lost with the learner, and the same command goes on from step 4."),
        (range(1, 4), "Steps 1 to 3 are lost with the learner, and the same command begins again."),
    ],
)
def test_a_run_that_was_stopped_after_a_loss_says_what_is_lost(file, lost, text):
    print_summary(summary_of(), finished=False, lost_steps=lost, out=piped(file))
    assert f"Stopped before the last step. {text}" in file.getvalue()
    assert "from here" not in file.getvalue()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (9.96, "10 s"),
        (59.6, "1 min 00 s"),
        (185, "3 min 05 s"),
        (3599.7, "1 h 00 min"),
        (7620, "2 h 07 min"),
    ],
)
def test_durations_are_round(seconds, text):
    assert duration(seconds) == text


def test_the_edges_of_a_series_never_overlap():
    series = tuple((step, float(step)) for step in range(7))
    assert edges(series) == (series[:3], series[4:])
    assert edges(series[:1]) == (series[:1], ())


def test_the_name_of_a_task_set_is_no_markup(file):
    with Console(steps=2, title="x", out=terminal(file)) as console:  # noqa: SIM117
        with console.span("evaluate", step=1, task_set="[/b] math[hard]", mode="greedy", rollouts=2):
            pass
    assert "evaluating [/b] math[hard] greedy" in file.getvalue()
