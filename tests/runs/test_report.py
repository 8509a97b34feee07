"""The report page: well-formed, self-contained, escaped, and whole whatever a run lacks."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopwright.runs.report.data import Comparison, Evaluated, Measure, ReportData, RunSummary, StepRollouts
from loopwright.runs.report.plot import Mark, PlotLine, line_chart, smoothed, stacked_bar, ticks
from loopwright.runs.report.render import render_report
from loopwright.types import Episode, Failed, FailureCause, Rollout, RolloutKey, Scored, Task, Timing

NASTY = "</pre><script>alert(1)</script>&\"'"
VOID = {"meta", "line", "path", "br", "rect", "circle"}
FINITE = st.floats(-1e9, 1e9)


class Page(HTMLParser):
    """Collects text and attributes, and refuses tags that do not match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "onclick", "onload")]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def rollout(answer: str, reward: Scored | Failed) -> Rollout:
    task = Task.ask(f"task {NASTY}", f"What? {NASTY}", truth=[NASTY])
    episode = Episode((*task.messages, {"role": "assistant", "content": answer, "tool_calls": [NASTY]}), ())
    return Rollout(RolloutKey("t", 0, 0), task, episode, reward, Timing(0.0))


def full() -> ReportData:
    bad, good = rollout(f"bad {NASTY}", Scored(0.0)), rollout("good", Scored(1.0, {NASTY: 0.5}))
    failed = rollout("lost", Failed(FailureCause.JUDGE, "KeyError", NASTY))
    summary = RunSummary(
        folder=Path("runs") / "a & b",
        measure=Measure.ACCURACY,
        steps={s: {"reward/mean": s / 9, "response/tokens": 3.0, "failures/judge": 1.0} for s in range(1, 9)},
        evaluations=tuple(
            Evaluated(step, NASTY, mode, reward, 10, 0)
            for step, reward in ((0, 0.1), (8, 0.9))
            for mode in ("greedy", "sampled")
        ),
        phases={"rollout": 40.0, "train": 20.0},
    )
    comparison = Comparison(NASTY, "greedy", 0, 8, 6, 1, 3, ((bad, good),))
    return ReportData(summary, {"model": NASTY}, f"key: {NASTY}", (comparison,), (StepRollouts(1, (bad, failed)),))


def empty(**overrides: object) -> ReportData:
    values: dict[str, Any] = {"measure": Measure.REWARD, "steps": {}, "evaluations": (), "phases": {}}
    return ReportData(RunSummary(folder=Path("runs/new"), **(values | overrides)), {}, "")


def test_the_page_shows_numbers_curves_and_answers():
    page = Page(render_report(full()))
    for part in ("10.0% → 90.0%", "+80.0 points", "6 tasks got better, 1 got worse", "before training", "after step 8"):
        assert part in page.text
    for part in ("bad", "good", "reward 0", "reward 1", "failed (judge)", "8 by the judger", "rollout 40 s"):
        assert part in page.text
    assert page.tags.count("svg") == page.tags.count("desc") == 3


def test_nothing_comes_from_outside_and_nothing_runs():
    text = render_report(full())
    page = Page(text)
    assert "script" not in page.tags
    assert page.links == []
    assert not re.search(r"https?:|@import|url\(", text)
    assert page.text.count(NASTY) >= 8, "what models and users wrote is shown as they wrote it"


def test_a_run_without_anything_still_has_a_page():
    page = Page(render_report(empty()))
    assert "No step has been trained yet." in page.text
    assert "Add an `eval` section" in page.text
    assert "No rollout failed." in page.text
    assert "svg" not in page.tags


def test_every_cause_of_failure_is_told():
    steps = {1: {f"failures/{cause}": 7.0 for cause in FailureCause}}
    assert Page(render_report(empty(steps=steps))).text.count("7 by ") == len(FailureCause)


def test_one_evaluation_is_shown_without_a_comparison():
    page = Page(render_report(empty(evaluations=(Evaluated(0, "heldout", "greedy", 0.5, 4, 2),))))
    assert "0.500" in page.text
    assert "→" not in page.text
    assert "4 tasks, 2 failed, before training" in page.text
    assert "There is one evaluation so far" in page.text
    assert "2 in evaluations" in page.text


def test_an_evaluation_in_which_all_failed_has_no_number():
    ends = (Evaluated(0, "heldout", "greedy", None, 0, 4), Evaluated(3, "heldout", "greedy", 0.5, 4, 0))
    page = Page(render_report(empty(evaluations=ends)))
    assert "no score → 0.500" in page.text


def test_rewards_beyond_one_fit_their_chart():
    steps = {step: {"reward/mean": float(value)} for step, value in ((1, -40), (2, 10), (3, 25))}
    svg = re.search(r"<svg.*?</svg>", render_report(empty(steps=steps)), re.DOTALL)
    assert svg
    assert ">-20<" in svg[0]
    assert ">20<" in svg[0]


@given(st.lists(st.tuples(st.integers(0, 10**6), FINITE), max_size=30), st.sampled_from(Mark))
def test_every_point_is_drawn_inside_the_chart(points, mark):
    svg = line_chart("t", [PlotLine("l", points, 1, mark)], width=300, height=200)
    assert bool(svg) == bool(points)
    for path in re.findall(r' d="M([^"]*)"', svg):
        for place in path.split("L"):
            x, y = map(float, place.split())
            assert 46 <= x <= 286
            assert 12 <= y <= 170
    circles = svg.count("<circle")
    assert circles == (0 if mark is Mark.LINE and len(points) > 1 else len(points))


@given(FINITE, st.floats(1e-6, 1e9), st.integers(2, 8))
def test_ticks_are_few_increasing_and_within_the_range(low, size, count):
    high = low + size
    if not high - low > 1e-9 * max(abs(low), 1):
        return
    found = ticks(low, high, count)
    assert len(found) <= count + 1
    assert list(found) == sorted(set(found))
    slack = 1e-6 * (high - low) + 1e-9 * abs(low)
    assert all(low - slack <= tick <= high + slack for tick in found)


def test_ticks_are_round():
    assert ticks(0, 1, 5) == (0, 0.2, 0.4, 0.6, 0.8, 1.0)
    assert ticks(1, 3, 8, whole=True) == (1, 2, 3)


@given(st.lists(FINITE, min_size=1, max_size=30), st.integers(1, 12))
def test_smoothing_stays_within_the_values_and_keeps_constants(values, window):
    points = [(float(i), value) for i, value in enumerate(values)]
    result = smoothed(points, window)
    assert [x for x, _ in result] == [x for x, _ in points]
    assert all(min(values) - 1e-6 <= y <= max(values) + 1e-6 for _, y in result)
    assert smoothed([(0.0, 2.0), (1.0, 2.0)], window) == ((0.0, 2.0), (1.0, 2.0))


def test_a_stacked_bar_fills_its_width():
    svg = stacked_bar("t", [("a", 1.0, "one"), ("b", 3.0, "three")], width=400)
    assert [float(w) for w in re.findall(r'<rect[^>]* width="([^"]*)"', svg)] == pytest.approx([100.0, 300.0])
    assert stacked_bar("t", []) == ""
