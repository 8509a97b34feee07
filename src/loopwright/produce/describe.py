"""Production in words, for whoever wonders why nothing happens."""

from __future__ import annotations

from loopwright.produce.context import ProduceContext
from loopwright.produce.line import Line
from loopwright.produce.slots import Slots

OLDEST = 5
"""How many of the oldest rollouts are listed."""


def describe_line(line: Line, context: ProduceContext, lacks: int) -> str:
    """One task set: what it has, what the next step lacks, and why no group starts."""
    stock = ", ".join(f"{count} {status}" for status, count in line.stock.items())
    limit = "" if context.takes_turns else f", {context.ahead} may be by these weights"
    choice = line.choose(context)
    waits = f"the next group is {choice}" if choice else "no group may start"
    return (
        f"  task set {line.name!r}: {stock}; step {context.step} lacks {lacks}; "
        f"{context.available} of {context.target} groups are there{limit}; {waits}"
    )


def describe_slots(slots: Slots) -> str:
    """How many agents run, and those that have run longest."""
    oldest = [f"    {key} for {seconds:.1f} s" for key, seconds in slots.oldest(OLDEST)]
    head = f"  {slots.in_use} of {slots.size} slots are in use{'; the oldest rollouts:' if oldest else ''}"
    return "\n".join([head, *oldest])
