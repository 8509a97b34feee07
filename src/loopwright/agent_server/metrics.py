"""Numbers about the agent server, in the format of Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from loopwright.agents.trials.wire import TrialState


class TrialMetrics:
    """Counts since the process started."""

    def __init__(self) -> None:
        self.ended: Counter[str] = Counter()
        self.seconds: Counter[str] = Counter()
        self.requests: Counter[int] = Counter()
        self.errors: Counter[str] = Counter()

    def over(self, state: TrialState, error: str | None, seconds: Mapping[str, float]) -> None:
        self.ended[state.value] += 1
        if error is not None:
            self.errors[error] += 1
        for stage, spent in seconds.items():
            self.seconds[stage] += spent  # type: ignore[assignment]

    def text(self, states: Mapping[str, int], slots: int) -> str:
        lines = [
            *_family("slots", "gauge", "Trials that may run at once.", [("", slots)]),
            *_family("trials", "gauge", "Trials that are not over, by state.", _labelled("state", states)),
            *_family("trials_ended_total", "counter", "Ended trials.", _labelled("state", self.ended)),
            *_family("trial_errors_total", "counter", "Errors of trials.", _labelled("error", self.errors)),
            *_family("stage_seconds_total", "counter", "Seconds in each stage.", _labelled("stage", self.seconds)),
            *_family(
                "requests_total",
                "counter",
                "Answered requests.",
                _labelled("status", {str(status): count for status, count in self.requests.items()}),
            ),
        ]
        return "\n".join(lines) + "\n"


def _labelled(label: str, counts: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    return ((f'{{{label}="{value}"}}', count) for value, count in sorted(counts.items()))


def _family(name: str, kind: str, about: str, samples: Iterable[tuple[str, float]]) -> Iterator[str]:
    full = f"loopwright_agent_server_{name}"
    yield f"# HELP {full} {about}"
    yield f"# TYPE {full} {kind}"
    yield from (f"{full}{suffix} {value}" for suffix, value in samples)
