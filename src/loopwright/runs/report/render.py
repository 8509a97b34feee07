"""The report: a run as one HTML file that needs no other files and no network.

Parts that the run does not have are left out, or a sentence says so. All text of users and models is escaped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from importlib.resources import files
from string import Template

from loopwright.core.duration import duration
from loopwright.runs.report import trajectories
from loopwright.runs.report.data import Progress, ReportData, RunSummary, edges, mean
from loopwright.runs.report.drift import drift_paragraph
from loopwright.runs.report.plot import Mark, PlotLine, line_chart, smoothed, stacked_bar
from loopwright.types import FailureCause


def render_report(data: ReportData) -> str:
    """The whole page."""
    page = Template(files("loopwright.runs.report").joinpath("page.html").read_text(encoding="utf-8"))
    name = escape(data.summary.folder.name)
    return page.substitute(title=name, lead=_lead(data), sections="".join(_sections(data)))


def _lead(data: ReportData) -> str:
    return " · ".join(f"<span>{escape(name)} <b>{escape(value)}</b></span>" for name, value in data.facts.items())


def _sections(data: ReportData) -> Iterator[str]:
    run = data.summary
    yield f'<div class="cards">{"".join(_cards(run))}</div>'
    yield _section("Reward", _reward(run), "No step has been trained yet.")
    yield _section("From bad to good", trajectories.comparisons(data.comparisons), _no_comparison(run))
    yield _section("Along the way", _multiples(run))
    samples = trajectories.samples(data.samples) if data.samples else ""
    yield _section("While it learned", samples and f"<p>The first rollouts of some train steps.</p>{samples}")
    yield _section("Tokens kept exact", drift_paragraph(run, data.first_diff))
    yield _section("Failures", _failures(run))
    yield _section("Time", _time(run))
    yield _section("Config", f"<details><summary>All settings</summary><pre>{escape(data.config)}</pre></details>")


def _section(title: str, body: str, otherwise: str = "") -> str:
    shown = body or (otherwise and f"<p>{escape(otherwise)}</p>")
    return f"<section><h2>{escape(title)}</h2>{shown}</section>" if shown else ""


def _cards(run: RunSummary) -> Iterator[str]:
    for progress in run.progress():
        yield _eval_card(run, progress)
    first, last = edges(run.series("reward/mean"))
    if last:
        small = f"mean of the first and last {len(first)} of {len(run.series('reward/mean'))} steps"
        yield _card("train reward", f"{mean(first):.3f}", f"{mean(last):.3f}", small)
    yield _card("time", "", duration(run.seconds), "rollouts, training and evaluation")


def _eval_card(run: RunSummary, progress: Progress) -> str:
    before, after = progress.before, progress.after
    last = after or before
    label = f"{before.task_set} {run.measure}, {before.mode}"
    remarks = [f"{last.scored} tasks"] + ([f"{last.failed} failed"] if last.failed else [])
    if after is None:
        return _card(label, "", run.measure.shown(before.reward), ", ".join([*remarks, _when(before.step)]))
    change = run.measure.difference(before.reward, after.reward)
    remarks = [change, *remarks] if change else remarks
    return _card(label, run.measure.shown(before.reward), run.measure.shown(after.reward), ", ".join(remarks))


def _card(label: str, before: str, after: str, small: str) -> str:
    past = f'<span class="before">{escape(before)}</span><span class="arrow"> → </span>' if before else ""
    return (
        f'<div class="card"><p>{escape(label)}</p><p class="number">{past}<b>{escape(after)}</b></p>'
        f"<small>{escape(small)}</small></div>"
    )


def _reward(run: RunSummary) -> str:
    rewards = run.series("reward/mean")
    window = max(3, len(rewards) // 8)
    lines = [PlotLine("mean reward of the step", rewards, 1, Mark.FAINT)]
    if len(rewards) > window:
        lines.append(PlotLine("smoothed", smoothed(rewards, window), 1))
    places = dict.fromkeys((one.task_set, one.mode) for one in run.evaluations)
    for tone, (task_set, mode) in enumerate(places, start=2):
        points = [
            (one.step, one.reward)
            for one in run.evaluations
            if (one.task_set, one.mode) == (task_set, mode) and one.reward is not None
        ]
        lines.append(PlotLine(f"{task_set}, {mode}", points, tone, Mark.POINTS))
    values = [value for line in lines for _, value in line.points]
    unit = all(0 <= value <= 1 for value in values)
    chart = line_chart("Reward over train steps", lines, y_range=(0, 1) if unit else None)
    return chart and f"<figure>{chart}{_legend(lines)}</figure>"


def _legend(lines: Sequence[PlotLine]) -> str:
    items = (
        f'<li><i class="swatch {line.mark} tone-{line.tone}"></i>{escape(line.label)}</li>'
        for line in lines
        if line.points
    )
    return f'<ul class="legend">{"".join(items)}</ul>'


MULTIPLES = (
    ("Tokens per answer", (("mean", "response/tokens"),)),
    ("Answers cut by the token limit", (("share", "response/truncated"),)),
    ("Entropy of the policy", (("nats per token", "learner/entropy"),)),
    (
        "Sampling against training logprobs",
        (("mean difference", "learner/mismatch_mean"), ("largest", "learner/mismatch_max")),
    ),
    ("Spread of rewards in a step", (("standard deviation", "reward/std"),)),
    ("Gradient norm", (("before clipping", "learner/grad_norm"),)),
)


def _multiples(run: RunSummary) -> str:
    figures = []
    for title, metrics in MULTIPLES:
        lines = [PlotLine(label, run.series(name), tone) for tone, (label, name) in enumerate(metrics, start=1)]
        if chart := line_chart(title, lines, width=340, height=170):
            figures.append(f"<figure><figcaption>{escape(title)}</figcaption>{chart}{_legend(lines)}</figure>")
    return (figures and f'<div class="multiples">{"".join(figures)}</div>') or ""


def _no_comparison(run: RunSummary) -> str:
    if not run.evaluations:
        return "The run has no evaluation. Add an `eval` section to its config to compare answers before and after."
    return "There is one evaluation so far; answers can be compared after the next one."


def _failures(run: RunSummary) -> str:
    counts = {cause: run.total(f"failures/{cause}") for cause in FailureCause}
    in_eval = sum(one.failed for one in run.evaluations)
    lost = run.total("groups/failed")
    if not (any(counts.values()) or in_eval or lost):
        return "<p>No rollout failed.</p>"
    told = [f"{count} by {_BLAME[cause]}" for cause, count in counts.items() if count]
    told += [f"{in_eval} in evaluations"] if in_eval else []
    told += [f"{lost} groups were given up"] if lost else []
    rule = "Failed rollouts are tried again where that can help, and never count as reward 0"
    return f"<p>{rule}: {escape(', '.join(told))}.</p>"


_BLAME = {
    FailureCause.INFRA: "infrastructure",
    FailureCause.TASK: "prompts that do not fit",
    FailureCause.SETUP: "programs' set-up",
    FailureCause.AGENT: "the agent",
    FailureCause.VERIFIER: "programs' rewards",
    FailureCause.JUDGE: "the judger",
    FailureCause.FILTER: "the filter",
}


def _time(run: RunSummary) -> str:
    parts = [(name, seconds, duration(seconds)) for name, seconds in run.phases.items() if seconds > 0]
    bar = stacked_bar("Time by kind of work", parts)
    items = (
        f'<li><i class="swatch line tone-{tone}"></i>{escape(name)} {escape(words)}</li>'
        for tone, (name, _, words) in enumerate(parts, start=1)
    )
    return bar and f'<figure>{bar}<ul class="legend">{"".join(items)}</ul></figure>'


def _when(step: int) -> str:
    return f"after step {step}" if step else "before training"
