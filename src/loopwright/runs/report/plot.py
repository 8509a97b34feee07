"""Small charts as SVG text, without scripts, fonts or network. Colours come from the page's style sheet.

Every chart has a title and a description for readers who cannot see it. All text in it is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from html import escape

Point = tuple[float, float]

LEFT, RIGHT, TOP, BOTTOM = 46, 14, 12, 30
"""The margins around the plotted area. The labels of the ticks are in them."""


SMALLEST_RANGE = 1e-12
"""Values that differ by less than this are drawn as equal, because no tick could distinguish them."""


class Mark(StrEnum):
    """How a line is drawn. The style sheet uses these names."""

    LINE = "line"
    FAINT = "faint"
    POINTS = "points"
    """Points joined by a dashed line, for few values with long distances."""


@dataclass(frozen=True, slots=True)
class PlotLine:
    """Values to draw. `tone` is the number of a colour in the style sheet."""

    label: str
    points: Sequence[Point]
    tone: int = 1
    mark: Mark = Mark.LINE


@dataclass(frozen=True, slots=True)
class Frame:
    """Maps values to positions in the picture."""

    width: int
    height: int
    x: tuple[float, float]
    y: tuple[float, float]

    def place(self, point: Point) -> Point:
        return self._along(point[0]), self._up(point[1])

    def _along(self, value: float) -> float:
        share = (value - self.x[0]) / (self.x[1] - self.x[0])
        return round(LEFT + share * (self.width - LEFT - RIGHT), 1)

    def _up(self, value: float) -> float:
        share = (value - self.y[0]) / (self.y[1] - self.y[0])
        return round(self.height - BOTTOM - share * (self.height - TOP - BOTTOM), 1)


def line_chart(
    title: str,
    lines: Sequence[PlotLine],
    *,
    width: int = 720,
    height: int = 280,
    x_label: str = "train step",
    y_range: tuple[float, float] | None = None,
) -> str:
    """A chart of lines over train steps. Empty text if there is nothing to draw."""
    points = [point for line in lines for point in line.points]
    if not points:
        return ""
    frame = Frame(width, height, _spread(x for x, _ in points), y_range or _from_zero(y for _, y in points))
    drawn = "".join(_grid(frame, x_label)) + "".join(_draw(line, frame) for line in lines if line.points)
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img">'
        f"<title>{escape(title)}</title><desc>{escape(_described(lines))}</desc>{drawn}</svg>"
    )


def stacked_bar(title: str, parts: Sequence[tuple[str, float, str]], *, width: int = 720, height: int = 22) -> str:
    """One bar with several parts. Each part has a label, a size, and the size as text."""
    whole = sum(size for _, size, _ in parts)
    if whole <= 0:
        return ""
    pieces, start = [], 0.0
    for tone, (label, size, words) in enumerate(parts, start=1):
        share = size / whole * width
        pieces.append(
            f'<rect class="fill tone-{tone}" x="{start:.1f}" y="0" width="{share:.1f}" height="{height}">'
            f"<title>{escape(label)}: {escape(words)}</title></rect>"
        )
        start += share
    described = ", ".join(f"{label} {words}" for label, _, words in parts)
    return (
        f'<svg class="bar" viewBox="0 0 {width} {height}" preserveAspectRatio="none" role="img">'
        f"<title>{escape(title)}</title><desc>{escape(described)}</desc>{''.join(pieces)}</svg>"
    )


def smoothed(points: Sequence[Point], window: int) -> tuple[Point, ...]:
    """Each value replaced by the mean of the values around it, at most `window` of them. The window is centred, so the
    result does not lag."""
    half = window // 2
    around = [points[max(0, i - half) : i + half + 1] for i in range(len(points))]
    return tuple((x, math.fsum(y for _, y in near) / len(near)) for (x, _), near in zip(points, around, strict=True))


def ticks(low: float, high: float, count: int = 4, *, whole: bool = False) -> tuple[float, ...]:
    """Round numbers within `low` and `high`, about `count` of them, evenly spaced."""
    rough = (high - low) / count
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= rough * 0.999)
    step = max(1.0, step) if whole else step
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return tuple(round(number * step, 12) for number in range(first, last + 1))


def _spread(values: Iterator[float]) -> tuple[float, float]:
    """The range of the values. It is never empty."""
    found = list(values)
    low, high = min(found), max(found)
    if high - low > SMALLEST_RANGE:
        return low, high
    around = abs(low) / 2 if abs(low) > SMALLEST_RANGE else 0.5
    return low - around, high + around


def _from_zero(values: Iterator[float]) -> tuple[float, float]:
    """The range with some space above. It starts at 0 unless there are negative values."""
    found = list(values)
    low, high = _spread(iter([*found, 0.0]))
    air = 0.08 * (high - low)
    return (0.0 if min(found) >= 0 else low - air), high + air


def _grid(frame: Frame, x_label: str) -> Iterator[str]:
    right, floor = frame.width - RIGHT, frame.height - BOTTOM
    for value in ticks(*frame.y, count=max(4, frame.height // 50)):
        _, y = frame.place((frame.x[0], value))
        yield f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{y}" y2="{y}"/>'
        yield f'<text class="tick" x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{value:g}</text>'
    for value in ticks(*frame.x, count=max(2, frame.width // 90), whole=True):
        x, _ = frame.place((value, frame.y[0]))
        yield f'<text class="tick" x="{x}" y="{floor + 16}" text-anchor="middle">{value:g}</text>'
    yield f'<text class="tick" x="{right}" y="{frame.height - 2}" text-anchor="end">{escape(x_label)}</text>'


def _draw(line: PlotLine, frame: Frame) -> str:
    places = [frame.place(point) for point in line.points]
    path = "M" + "L".join(f"{x} {y}" for x, y in places)
    drawn = f'<path class="{line.mark} tone-{line.tone}" d="{path}"/>' if len(places) > 1 else ""
    if line.mark is Mark.LINE and drawn:
        return drawn
    radius = 2 if line.mark is Mark.FAINT else 4.5
    dots = (
        f'<circle class="{line.mark} tone-{line.tone}" cx="{x}" cy="{y}" r="{radius}">'
        f"<title>{escape(line.label)}, step {step:g}: {value:.4g}</title></circle>"
        for (x, y), (step, value) in zip(places, line.points, strict=True)
    )
    return drawn + "".join(dots)


def _described(lines: Sequence[PlotLine]) -> str:
    told = []
    for line in lines:
        if line.points:
            (first, begun), (last, ended) = line.points[0], line.points[-1]
            told.append(f"{line.label}: {begun:.4g} at step {first:g}, {ended:.4g} at step {last:g}")
    return "; ".join(told)
