"""Whether a run is well: where its groups stand, and what happened to its engines."""

from __future__ import annotations

from typing import Any

from loopwright.runs.auditing.audit import Conservation, conservation
from loopwright.ui.alarm_answers import alarms_of
from loopwright.ui.answers import cut
from loopwright.ui.asked import Asked
from loopwright.ui.run_answers import is_alive, status_of
from loopwright.ui.run_view import RunView


def health(view: RunView, asked: Asked) -> dict[str, Any]:
    engines = [
        {"name": event["name"], "step": event["step"], "at": event["end"], "facts": cut(event.get("facts") or {}, 1000)}
        for event in view.engine_events()[-50:]
    ]
    alive = is_alive(view)
    found = alarms_of(view, alive)
    return {
        "alive": alive,
        "status": status_of(view),
        **view.progress(),
        **found,
        "conservation": {} if found["problem"] else view.remembered("conservation", lambda: _conservation(view)),
        "engine_events": engines,
    }


def alarms_alone(view: RunView, asked: Asked) -> dict[str, Any]:
    """For the first view of a run, which shows them at its top."""
    return alarms_of(view, is_alive(view))


def status_alone(view: RunView, asked: Asked) -> dict[str, Any]:
    """For views that follow what a run does now."""
    return {"status": status_of(view)}


def _conservation(view: RunView) -> dict[str, Any]:
    if not view.inside(view.folder.rollouts).is_file():
        return {}
    return {cut(name): _sides(conserved) for name, conserved in conservation(view.database).items()}


def _sides(conserved: Conservation) -> dict[str, Any]:
    """Both sides of R3, as `loopwright audit --json` has them."""
    return {
        "sampled": conserved.sampled._asdict(),
        "total": conserved.total._asdict(),
        "standing": {status.value: count._asdict() for status, count in conserved.standing.items() if count.groups},
    }
