"""What the page says of whole runs: the list, how far one is, its metrics and its config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loopwright.errors import LoopwrightError
from loopwright.runs.first_screen import pace
from loopwright.runs.lock_holder import lock_holder
from loopwright.runs.run_status import read_status
from loopwright.ui.answers import cut, numbers
from loopwright.ui.asked import Asked
from loopwright.ui.run_view import RunView
from loopwright.ui.served import ServedRuns

MOST_RUNS = 500
SHOWN = ("reward/mean", "response/tokens")
"""Metrics of the list of runs."""


def list_runs(runs: ServedRuns) -> dict[str, Any]:
    names = runs.names()
    rows = []
    for name in names[:MOST_RUNS]:
        try:
            rows.append(runs.told(name, _row) | {"alive": is_alive(runs.view(name))})
        except LoopwrightError as error:
            rows.append({"name": name, "problem": error.message})
        except OSError as error:
            rows.append({"name": name, "problem": str(error)})
    return {
        "root": runs.root.name,
        "single": runs.single,
        "runs": cut(rows),
        "left_out": max(0, len(names) - MOST_RUNS),
    }


def _row(view: RunView) -> dict[str, Any]:
    config = stored_config(view)
    row = {"name": view.name, **view.progress(), "steps": _at(config, "trainer", "steps")}
    row["model"] = _at(config, "model", "path")
    for name in SHOWN:
        series = view.series(name)
        row[name] = numbers([series[-1][1]])[0] if series else None
    row["spark"] = numbers([value for _, value in view.series("reward/mean")][-60:], 4)
    row["eval"] = _newest_evaluations(view)
    return row


def is_alive(view: RunView) -> bool:
    """Whether a process uses the run's folder."""
    return lock_holder(view.inside(view.folder.lock)) is not None


def status_of(view: RunView) -> dict[str, Any]:
    """Whether the run runs, what it does now, and how it ended: nothing is told of the present of a run that does not
    run."""
    view.inside(view.folder.status)
    view.inside(view.folder.lock)
    found = read_status(view.folder)
    return {
        "state": found.state,
        "pid": found.pid,
        "age": found.age,
        "told": cut(found.present, 500),
        "ended": None if found.ended is None else cut(found.ended.as_json(), 2000),
    }


def overview(view: RunView, asked: Asked) -> dict[str, Any]:
    config, status = stored_config(view), status_of(view)
    return {
        "name": view.name,
        **view.progress(),
        "alive": is_alive(view),
        "status": status,
        "ended": status["ended"],
        "step_seconds": pace(view.times(), view.opened_at()),
        "metrics": view.metric_names(),
        "steps": _at(config, "trainer", "steps"),
        "task_sets": cut([str(one.get("name")) for one in _task_sets(config)]),
        "facts": cut(_facts(config)),
    }


def metrics_of(view: RunView, asked: Asked) -> dict[str, Any]:
    found = view.columns(asked.texts("name"), asked.number("since", 0))
    return {
        "edition": found.edition,
        "rows": found.rows,
        "first": found.first,
        "bucket": found.bucket,
        "steps": list(found.steps),
        "values": {name: numbers(values) for name, values in found.values.items()},
    }


def config_of(view: RunView, asked: Asked) -> dict[str, Any]:
    """Every setting by its dotted name."""
    return {"settings": {name: cut(_shown(value), 2000) for name, value in _flat(stored_config(view)).items()}}


def stored_config(view: RunView) -> Mapping[str, Any]:
    view.inside(view.folder.config)
    return view.folder.stored_config() or {}


def _facts(config: Mapping[str, Any]) -> dict[str, str]:
    groups, samples = _at(config, "trainer", "groups_per_step"), _at(config, "rollout", "samples_per_task")
    facts = {
        "model": _at(config, "model", "path"),
        "trainer": _at(config, "trainer", "kind"),
        "batch": f"{groups} x {samples}" if groups and samples else None,
        "engine": _at(config, "rollout", "engine", "kind"),
        "temperature": _at(config, "rollout", "temperature"),
        "advantage": _at(config, "learner", "advantage", "kind"),
        "loss": _at(config, "learner", "loss", "kind"),
        "learning rate": _at(config, "learner", "lr"),
        "seed": _at(config, "trainer", "seed"),
    }
    return {name: str(value) for name, value in facts.items() if value is not None}


def _at(config: Any, *path: str) -> Any:
    for name in path:
        config = config.get(name) if isinstance(config, Mapping) else None
    return config


def _task_sets(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    found = config.get("task_sets")
    return [one for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []


def _newest_evaluations(view: RunView) -> dict[str, Any]:
    """The latest reward of each evaluation, at most a few."""
    names = [name for name in view.metric_names() if name.startswith("eval/") and name.endswith("/reward")][:4]
    found = {name.removeprefix("eval/").removesuffix("/reward"): view.series(name) for name in names}
    return {name: numbers([series[-1][1]])[0] for name, series in found.items() if series}


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if isinstance(value, Mapping) and value:
        pairs = [(str(name), inner) for name, inner in value.items()]
    elif isinstance(value, list) and value:
        pairs = [(str(place), inner) for place, inner in enumerate(value)]
    else:
        return {prefix: value}
    found: dict[str, Any] = {}
    for name, inner in pairs:
        found |= _flat(inner, f"{prefix}.{name}" if prefix else name)
    return found


def _shown(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
