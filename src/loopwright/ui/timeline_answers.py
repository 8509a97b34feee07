"""Who did what when, in a few train steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from loopwright.runs.step_work import work_lanes
from loopwright.ui.answers import cut, numbers
from loopwright.ui.asked import Asked
from loopwright.ui.run_answers import status_of
from loopwright.ui.run_view import RunView

MOST_STEPS = 20
MOST_SPANS = 3000


def timeline(view: RunView, asked: Asked) -> dict[str, Any]:
    """The events of `count` steps up to step `to`, and the rollouts that they trained; without it, up to the last."""
    steps = view.event_steps()
    to, count = asked.maybe_number("to"), max(1, min(MOST_STEPS, asked.number("count", 3)))
    shown = [step for step in steps if to is None or step <= to][-count:]
    events = view.events(shown)
    spans = [
        {
            "name": cut(event["name"], 80),
            "step": event["step"],
            "start": event["start"],
            "end": event["end"],
            "who": cut(str(event.get("who") or ""), 120),
            "ok": bool(event.get("ok", True)),
            "error": cut(event.get("error"), 200),
            "facts": cut(event.get("facts") or {}, 500),
        }
        for event in events[-MOST_SPANS:]
    ]
    first, last = (steps[0], steps[-1]) if steps else (None, None)
    begin = min((span["start"] for span in spans), default=None)
    end = max((span["end"] for span in spans), default=None)
    # Who is in flight now belongs to the end of the timeline only.
    status = status_of(view) if to is None or not steps or to >= steps[-1] else None
    return {
        "status": status,
        "first": first,
        "last": last,
        "steps": shown,
        "begin": begin,
        "end": end,
        "spans": spans,
        "work": _work(view, shown, begin, end),
        "left_out": max(0, len(events) - MOST_SPANS),
    }


def _work(view: RunView, steps: Sequence[int], begin: float | None, end: float | None) -> list[dict[str, Any]]:
    if begin is None or end is None or not view.inside(view.folder.rollouts).is_file():
        return []
    return [
        {
            "worker": cut(lane.worker, 120),
            "work": lane.work,
            "rollouts": lane.rollouts,
            "idle": lane.idle,
            "cells": numbers(lane.cells, 3),
        }
        for lane in work_lanes(view.database, steps, begin, end)
    ]
