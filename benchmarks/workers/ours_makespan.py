"""The makespan of schedules over the same rollouts, in virtual time. Each round has rollouts of its own."""

from __future__ import annotations

from typing import Any

from benchmarks.workers.port import Port

SLOWEST = 10
"""One group in so many."""


def main(port: Port) -> None:
    from benchmarks.production import Plant
    from loopwright.testing import run_virtually

    spec = port.spec
    port.ready("loopwright")
    for number, watch in enumerate(port.rounds()):
        plant = Plant(seed=number)
        in_turn = run_virtually(_in_turn(plant, spec["steps"]))
        cases = [
            run_virtually(_beside(plant, spec["steps"], staleness, learner))
            for staleness in spec["staleness"]
            for learner in spec["learner_seconds"]
        ]
        port.answer(watch.stop(), in_turn_seconds=in_turn, cases=cases)


async def _in_turn(plant: Any, steps: int) -> float:
    """Without the learner's time, which is the same in every step."""
    from benchmarks.production import Line
    from loopwright.types import ProduceKind

    trained = await Line(plant, staleness=0, kind=ProduceKind.SYNC).train_in_turn(steps, 0.0)
    return float(trained.seconds)


async def _beside(plant: Any, steps: int, staleness: int, learner: float) -> dict[str, float]:
    from benchmarks.production import TASK_SET, Line, trained_tokens
    from loopwright.types import ProduceKind

    line = Line(plant, staleness=staleness, kind=ProduceKind.ASYNC, steps=steps)
    trained = await line.train_beside(steps, learner)
    drawn = {draw: plant.member_seconds(draw) for draw in range(line.manager.next_draws[TASK_SET])}
    slowest = sorted(drawn, key=lambda draw: max(drawn[draw]))[-(len(drawn) // SLOWEST) :]
    tokens = {group.draw: trained_tokens(group) for group in trained.groups}
    shares = [tokens.get(draw, 0) / (plant.samples * plant.tokens) for draw in slowest]
    return {
        "staleness": staleness,
        "learner": learner,
        "makespan": trained.seconds,
        "ideal": sum(sum(drawn[draw]) for draw in tokens) / plant.slots,
        "slowest_groups": sum(share > 0 for share in shares) / len(shares),
        "slowest_tokens": sum(shares) / len(shares),
    }


if __name__ == "__main__":
    main(Port())
