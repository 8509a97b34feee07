"""The report's part on trajectories: the messages and their rewards. Models may write anything, so all text is
escaped."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

from loopwright.runs.report.data import Comparison, StepRollouts
from loopwright.types import Failed, Message, Rollout, Scored

LONGEST = 4000
"""How many characters of one message are shown. `loopwright show` shows the rest."""


def comparisons(found: Sequence[Comparison]) -> str:
    """Held-out tasks, before and after side by side."""
    return "".join(_comparison(one) for one in found)


def samples(found: Sequence[StepRollouts]) -> str:
    """Rollouts of a few train steps, in the order of training."""
    columns = "".join(
        f"<div><h3>Step {sample.step}</h3>{''.join(_trajectory(rollout) for rollout in sample.rollouts)}</div>"
        for sample in found
    )
    return f'<div class="columns">{columns}</div>'


def _comparison(one: Comparison) -> str:
    before, after = _when(one.before), _when(one.after)
    counts = f"{one.better} tasks got better, {one.worse} got worse, {one.same} stayed the same."
    heading = f"<h3>{escape(one.task_set)}, {escape(one.mode)}</h3><p>{counts}</p>"
    return heading + "".join(_pair(before, after, *pair) for pair in one.pairs)


def _pair(before: str, after: str, old: Rollout, new: Rollout) -> str:
    prompt = "".join(_message(message) for message in old.task.messages)
    sides = "".join(
        f'<div><p class="when">{when}</p>{_answer(rollout)}{_verdict(rollout)}</div>'
        for when, rollout in ((before, old), (after, new))
    )
    return f'<article>{_heading(old)}{prompt}<div class="sides">{sides}</div></article>'


def _trajectory(rollout: Rollout) -> str:
    prompt = "".join(_message(message) for message in rollout.task.messages)
    return f"<article>{_heading(rollout)}{prompt}{_answer(rollout)}{_verdict(rollout)}</article>"


def _heading(rollout: Rollout) -> str:
    truth = "" if rollout.task.truth is None else f" <span>truth {escape(_cut(_text(rollout.task.truth)))}</span>"
    return f'<p class="task">{escape(rollout.task.id)}{truth}</p>'


def _answer(rollout: Rollout) -> str:
    """The messages after the prompt, as HTML."""
    said = rollout.episode.messages if rollout.episode else ()
    asked = len(rollout.task.messages)
    # An agent may return a transcript that does not begin with the task's messages. Then all of it is shown.
    own = said[asked:] if said[:asked] == rollout.task.messages else said
    return "".join(_message(message) for message in own)


def _message(message: Message) -> str:
    role = str(message.get("role", ""))
    kind = "said" if role == "assistant" else "asked"
    text = "\n".join(_lines(message)).strip()
    return f'<div class="message {kind}"><b>{escape(role)}</b><pre>{escape(_cut(text)) or "<i>nothing</i>"}</pre></div>'


def _lines(message: Message) -> Iterator[str]:
    """The content, then the other fields of the message, such as tool calls."""
    for key, value in message.items():
        if value and key != "role":
            yield _text(value) if key == "content" else f"{key}: {_text(value)}"


def _verdict(rollout: Rollout) -> str:
    reward = rollout.reward
    if isinstance(reward, Scored):
        parts = "".join(f", {escape(name)} {value:g}" for name, value in reward.parts.items())
        kind = "good" if reward.value > 0 else "poor"
        return f'<p class="verdict {kind}">reward {reward.value:g}{parts}</p>'
    if isinstance(reward, Failed):
        return f'<p class="verdict failed">failed ({reward.cause}): {escape(_cut(reward.detail))}</p>'
    return '<p class="verdict">not scored</p>'


def _when(step: int) -> str:
    return f"after step {step}" if step else "before training"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}… ({len(text) - LONGEST} characters more)"
