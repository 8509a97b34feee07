"""The numbers above the bars: what is known, and nothing before it is known."""

from __future__ import annotations

import io

import numpy as np
import rich.console

from loopwright.track.console import Console
from loopwright.track.live_numbers import LiveNumbers
from loopwright.types import (
    Episode,
    Failed,
    FailureCause,
    Rollout,
    RolloutKey,
    Scored,
    Task,
    Timing,
    TokenChain,
)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def rollout(tokens: int = 10, *, fails: bool = False) -> Rollout:
    mask = np.ones(tokens, np.bool_)
    chain = TokenChain(np.arange(tokens, dtype=np.int32), mask, -np.ones(tokens, np.float32), np.ones(tokens, np.int32))
    reward = Failed(FailureCause.JUDGE, "Timeout", "late") if fails else Scored(1.0)
    return Rollout(RolloutKey("train", 0, 0), Task.ask("a", "b"), Episode((), (chain,)), reward, Timing(0.0))


def test_nothing_is_told_before_it_is_known() -> None:
    numbers = LiveNumbers(10, Clock())
    assert list(numbers.lines()) == []
    numbers.begin(1)
    assert list(numbers.lines()) == []


def test_reward_throughput_and_the_time_that_is_left() -> None:
    clock = Clock()
    numbers = LiveNumbers(10, clock)
    numbers.saw(rollout(500))
    for step, reward in ((1, 0.25), (2, 0.5), (3, 0.75)):
        numbers.begin(step)
        for _ in range(6):
            numbers.saw(rollout())
        clock.now += 30.0 if step < 3 else 300.0
        numbers.trained(step, {"reward/mean": reward, "engine/restarts": float(step == 2)})
    numbers.evaluated("heldout, greedy", 0.25)
    numbers.evaluated("heldout, greedy", 0.375)
    numbers.saw(rollout(60, fails=True))
    told = dict(numbers.lines())
    assert told["reward"].startswith("0.750, 0.250 at first")
    assert told["evaluation"] == "heldout, greedy: 0.375 (+0.125)"
    assert told["throughput"] == "1 rollouts a minute, 1 tokens a second", "those of the last minute"
    assert told["time left"] == "about 3 min 30 s, at 30 s a step", "one slow step does not count"
    assert told["failures"] == "1 judge, an engine restarted 1 x"
    clock.now += 20.0
    assert dict(numbers.lines())["time left"].startswith("about 3 min 10 s")


def test_a_resumed_run_counts_its_steps_from_where_it_was() -> None:
    clock = Clock()
    numbers = LiveNumbers(10, clock)
    numbers.begin(9)
    clock.now += 4.0
    numbers.trained(9, {"reward/mean": 0.5})
    assert dict(numbers.lines())["time left"] == "about 4.0 s, at 4.0 s a step"
    numbers.trained(10, {"reward/mean": 0.5})
    assert "time left" not in dict(numbers.lines())


def test_a_terminal_shows_them_live_and_a_pipe_does_not() -> None:
    shown, piped = io.StringIO(), io.StringIO()
    options = {"force_terminal": True, "force_interactive": True, "color_system": None, "width": 100}
    for file, kind in ((shown, options), (piped, {})):
        out = rich.console.Console(file=file, legacy_windows=False, **kind)  # type: ignore[arg-type]
        with Console(steps=2, rollouts_per_step=1, title="x", out=out) as console:
            with console.span("rollout", step=1):
                console.on_rollout(rollout(fails=True))
            console.log(1, {"reward/mean": 0.5})
            console._bars.refresh()
    assert "failures    1 judge" in shown.getvalue()
    assert "failures" not in piped.getvalue()
    assert "step 1/2  reward  0.500" in piped.getvalue()
