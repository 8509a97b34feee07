"""Numbers about the gateway, in the format of Prometheus."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator

from loopwright.gateway.session import SessionState
from loopwright.render.recording.recorded import Recorded

BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds of the latency histogram, in seconds."""


class Metrics:
    """Counts since the process started. Everything runs in one event loop, so no locks are needed."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        self.sessions: Counter[SessionState] = Counter()
        self.chains: Counter[str] = Counter()
        self.omitted: Counter[str] = Counter()
        self.turns = 0
        self.replays = 0
        self.sampled_tokens = 0
        self.context_tokens = 0
        self.drift_tokens = 0
        self._latencies = [0] * (len(BOUNDS) + 1)
        self._seconds = 0.0

    def answered(self, route: str, status: int, seconds: float) -> None:
        self.requests[route, status] += 1
        self._latencies[bisect_left(BOUNDS, seconds)] += 1
        self._seconds += seconds

    def recorded(self, turn: Recorded) -> None:
        self.turns += 1
        self.sampled_tokens += len(turn.ids)
        self.context_tokens += len(turn.context)
        if turn.start is not None:
            self.chains[turn.start.value] += 1
        if omitted := turn.omitted:
            self.omitted.update(omitted)

    def replayed(self) -> None:
        self.replays += 1

    def text(self, sessions_in: Counter[SessionState]) -> str:
        """The exposition format, with how many sessions there are in each state."""
        lines = [
            *_family("sessions", "gauge", "Sessions by state.", _labelled("state", sessions_in.items())),
            *_family("chains_total", "counter", "Chains by why they began.", _labelled("start", self.chains.items())),
            *_family(
                "omitted_parts_total",
                "counter",
                "Pictures and other parts for which a placeholder stands, by kind.",
                _labelled("kind", self.omitted.items()),
            ),
            *_family("turns_total", "counter", "Committed model calls.", [("", self.turns)]),
            *_family("replays_total", "counter", "Answers given again to a retry.", [("", self.replays)]),
            *_family("sampled_tokens_total", "counter", "Tokens that were recorded.", [("", self.sampled_tokens)]),
            *_family("context_tokens_total", "counter", "Tokens encoded for prompts.", [("", self.context_tokens)]),
            *_family(
                "drift_tokens_total",
                "counter",
                "Tokens of completed sessions that tokenising their text again would have got wrong.",
                [("", self.drift_tokens)],
            ),
            *_family("requests_total", "counter", "Answered requests.", self._request_samples()),
            *_family("request_seconds", "histogram", "From a request to its last byte.", self._histogram()),
        ]
        return "\n".join(lines) + "\n"

    def _request_samples(self) -> Iterator[tuple[str, float]]:
        for (route, status), count in sorted(self.requests.items()):
            yield f'{{route="{route}",status="{status}"}}', count

    def _histogram(self) -> Iterator[tuple[str, float]]:
        so_far = 0
        for bound, count in zip((*BOUNDS, "+Inf"), self._latencies, strict=True):
            so_far += count
            yield f'_bucket{{le="{bound}"}}', so_far
        yield "_sum", self._seconds
        yield "_count", so_far


def _labelled(label: str, counts: Iterable[tuple[str, int]]) -> Iterator[tuple[str, float]]:
    return ((f'{{{label}="{value}"}}', count) for value, count in sorted(counts))


def _family(name: str, kind: str, about: str, samples: Iterable[tuple[str, float]]) -> Iterator[str]:
    full = f"loopwright_gateway_{name}"
    yield f"# HELP {full} {about}"
    yield f"# TYPE {full} {kind}"
    yield from (f"{full}{suffix} {value}" for suffix, value in samples)
