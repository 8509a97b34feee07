"""What the page says of train steps: the list, one step with its groups, and where a text occurs."""

from __future__ import annotations

from typing import Any

from loopwright.errors import RefusedError
from loopwright.runs.step_groups import GroupAtStep, GroupMember, Wanted, is_known_step, step_page, trained_steps
from loopwright.runs.text_search import search
from loopwright.types import FailureCause, GroupStatus
from loopwright.ui.answers import cut, numbers
from loopwright.ui.asked import Asked
from loopwright.ui.run_view import RunView

MOST_GROUPS = 128


def list_steps(view: RunView, asked: Asked) -> dict[str, Any]:
    """A page of steps. `again`: the run has gone back to a checkpoint since the cursor was given, so start again."""
    most = max(1, min(500, asked.number("most", 200)))
    found = trained_steps(view.database, cursor=asked.cursor(), most=most)
    if found is None:
        return {"again": True, "steps": [], "next": None, "edition": None}
    steps = [one._asdict() for one in found.steps]
    return {"again": False, "steps": steps, "next": found.next and str(found.next), "edition": found.edition}


def show_step(view: RunView, asked: Asked) -> dict[str, Any]:
    step = asked.number("step", 0)
    wanted = Wanted(
        asked.text("task_set"),
        asked.real("low"),
        asked.real("high"),
        asked.one_of("cause", FailureCause),
        asked.one_of("status", GroupStatus),
    )
    offset = asked.number("offset", 0)
    if not is_known_step(view.database, step):
        raise RefusedError(
            f"there is no such step: {step}", remedy="choose one from the list of steps; it may be undone", status=404
        )
    page = step_page(view.database, step, wanted, offset=offset, most=min(MOST_GROUPS, asked.number("most", 64)))
    return {
        "step": step,
        "total": page.total,
        "offset": offset,
        "histogram": [one._asdict() for one in page.histogram],
        "causes": page.causes,
        "task_sets": cut(page.task_sets),
        "left_out": page.left_out,
        "groups": [_group(group, page.loss_terms) for group in page.groups],
    }


def _group(group: GroupAtStep, loss_terms: float | None) -> dict[str, Any]:
    rewards = [one.reward for one in group.members if one.reward is not None]
    return {
        "key": f"{cut(group.task_set)}/{group.draw}",
        "task_set": cut(group.task_set),
        "draw": group.draw,
        "round": group.round,
        "task": cut(group.task, 300),
        "status": group.status,
        "version": group.version,
        "why": cut(group.why, 400),
        "mean": numbers([sum(rewards) / len(rewards)])[0] if rewards else None,
        # A reward alone, and none at all, are not equal to others.
        "has_signal": len(rewards) < 2 or len(set(rewards)) > 1,
        "members": [member_answer(one, loss_terms) for one in group.members],
    }


def member_answer(member: GroupMember, loss_terms: float | None) -> dict[str, Any]:
    """One member. Its push is its part of the loss terms of the step."""
    fields: dict[str, Any] = cut(member._asdict(), 400)
    own = fields.pop("loss_terms")
    return fields | {"push": numbers([own / loss_terms], 4)[0] if own is not None and loss_terms else None}


def find_text(view: RunView, asked: Asked) -> dict[str, Any]:
    text = asked.text("q")
    if text is None:
        raise RefusedError("nothing is looked for", remedy="send a text as q", status=400)
    # Refuses links that lead out of the folder.
    view.archive()
    found = search(view.database, text, cursor=asked.cursor())
    if found is None:
        return {"again": True, "hits": [], "next": None, "steps": 0, "unsearched": []}
    hits = [
        {"key": str(hit.key), "round": hit.round, "step": hit.step, "excerpt": cut(hit.excerpt)} for hit in found.hits
    ]
    return {
        "again": False,
        "hits": hits,
        "next": found.next and str(found.next),
        "steps": found.steps,
        "unsearched": [{"step": step, "why": cut(why, 400)} for step, why in found.unsearched.items()],
    }
