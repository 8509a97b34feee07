"""The numbers that a terminal shows above the bars while a run trains: reward, throughput, and the time left."""

from __future__ import annotations

import statistics
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise

from loopwright.core.duration import duration
from loopwright.track.console_text import sparkline
from loopwright.types import Failed, Rollout

WINDOW_SECONDS = 60.0
"""Throughput is that of the last minute. A run is not measured before `LEAST_SECONDS` have passed."""
LEAST_SECONDS = 2.0
LATEST_STEPS = 20
TREND = 40

Line = tuple[str, str]
"""What it is about, and the numbers."""


class LiveNumbers:
    """Takes rollouts and metrics as they come, and tells lines. `steps` is the last step of the run."""

    def __init__(self, steps: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._steps = steps
        self._clock = clock
        self._begun: float | None = None
        self._made: deque[tuple[float, int]] = deque()
        self._rewards: dict[int, float] = {}
        self._evaluated: dict[str, list[float]] = {}
        self._failures: Counter[str] = Counter()
        self._restarts = 0
        self._step = 0
        self._logged: deque[float] = deque(maxlen=LATEST_STEPS + 1)

    def begin(self, step: int) -> None:
        """Step `step` is under way."""
        now = self._clock()
        self._begun = now if self._begun is None else self._begun
        if not self._logged:
            self._logged.append(now)
        self._step = step - 1

    def saw(self, rollout: Rollout) -> None:
        """A rollout has ended."""
        if self._begun is not None:
            self._made.append((self._clock(), rollout.episode.sampled_tokens if rollout.episode else 0))
        if isinstance(rollout.reward, Failed):
            self._failures[rollout.reward.cause] += 1

    def trained(self, step: int, metrics: Mapping[str, float]) -> None:
        self._step = step
        self._logged.append(self._clock())
        self._restarts += int(metrics.get("engine/restarts", 0))
        if "reward/mean" in metrics:
            # After a loss of the learner, steps come again.
            self._rewards = {one: reward for one, reward in self._rewards.items() if one < step}
            self._rewards[step] = metrics["reward/mean"]

    def evaluated(self, name: str, reward: float) -> None:
        self._evaluated.setdefault(name, []).append(reward)

    def lines(self) -> Iterator[Line]:
        """What is known so far."""
        if self._rewards:
            rewards = list(self._rewards.values())
            first = f", {rewards[0]:.3f} at first" if len(rewards) > 1 else ""
            yield "reward", f"{rewards[-1]:.3f}{first}  {sparkline(rewards[-TREND:])}"
        for name, found in self._evaluated.items():
            change = f" ({found[-1] - found[0]:+.3f})" if len(found) > 1 else ""
            yield "evaluation", f"{name}: {found[-1]:.3f}{change}"
        if (made := self._throughput()) is not None:
            yield "throughput", f"{made[0]:.0f} rollouts a minute, {made[1]:,.0f} tokens a second"
        if (left := self._left()) is not None:
            yield "time left", f"about {duration(left)}, at {duration(self._pace())} a step"
        troubles = [f"{count} {cause}" for cause, count in self._failures.items()]
        troubles += [f"an engine restarted {self._restarts} x"] if self._restarts else []
        if troubles:
            yield "failures", ", ".join(troubles)

    def _throughput(self) -> tuple[float, float] | None:
        """Rollouts per minute and sampled tokens per second."""
        now = self._clock()
        while self._made and self._made[0][0] < now - WINDOW_SECONDS:
            self._made.popleft()
        seconds = min(WINDOW_SECONDS, now - self._begun) if self._begun is not None else 0.0
        if seconds < LEAST_SECONDS:
            return None
        return 60 * len(self._made) / seconds, sum(tokens for _, tokens in self._made) / seconds

    def _pace(self) -> float:
        """The seconds of a step: the median, because a step with a checkpoint or an evaluation takes longer."""
        return statistics.median(later - earlier for earlier, later in pairwise(self._logged))

    def _left(self) -> float | None:
        if len(self._logged) < 2 or self._step >= self._steps:
            return None
        since = self._clock() - self._logged[-1]
        return max(0.0, self._pace() * (self._steps - self._step) - since)
