"""A finished benchmark as JSON and as a table. docs/benchmarks.md describes both."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure, Summary, advantage, summarise
from benchmarks.harness import Measured, Side


def as_json(measured: Measured, busy_before: float | None) -> dict[str, Any]:
    """Everything that was measured; `busy_before` is the share of the cores that others used when it began."""
    benchmark = measured.benchmark
    return {
        "benchmark": benchmark.name,
        "what": benchmark.what,
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {**machine(), "busy_before": busy_before},
        "threads": benchmark.threads,
        "sides": {side.name: _side(measured, side) for side in measured.sides},
        "ratios": {figure.key: asdict(ratio) for figure, ratio in ratios(measured) if ratio is not None},
        "limit": measured.limit.as_json() if measured.limit else None,
    }


def _side(measured: Measured, side: Side) -> dict[str, Any]:
    return {
        "versions": side.versions,
        "figures": {
            figure.key: asdict(summarise(side.rounds, figure.key)) if _has(side, figure) else figure.absent
            for figure in measured.benchmark.figures
            if _has(side, figure) or figure.absent
        },
        "rounds": list(side.rounds),
    }


def _has(side: Side, figure: Figure) -> bool:
    """Whether a figure was measured on this side. What a store on disk adds, a peer without one cannot tell."""
    return all(figure.key in one for one in side.rounds)


def ratios(measured: Measured) -> Iterator[tuple[Figure, Summary | None]]:
    """How many times better ours is than the peer, by figure; None where there is nothing to compare."""
    ours, *peers = measured.sides
    for figure in measured.benchmark.figures:
        yield figure, advantage(figure, ours.rounds, peers[0].rounds) if peers else None


def machine() -> dict[str, Any]:
    return {
        "cpu": _line("/proc/cpuinfo", "model name") or platform.processor(),
        "cores": os.cpu_count(),
        "memory": _line("/proc/meminfo", "MemTotal"),
        "system": platform.platform(),
    }


def _line(file: str, name: str) -> str | None:
    """The value of `name: value` in one of the kernel's files, if there is such a file."""
    path = Path(file)
    lines = path.read_text().splitlines() if path.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), None)


def table(measured: Measured) -> list[str]:
    """Medians, with the lowest and the highest round behind them, and how many times better ours is."""
    rows = [("", *(_heading(side) for side in measured.sides), "ours is better by" if measured.sides[1:] else "")]
    for figure, ratio in ratios(measured):
        cells = [
            _cell(summarise(side.rounds, figure.key), figure.digits) if _has(side, figure) else figure.absent
            for side in measured.sides
        ]
        rows.append((figure.label, *cells, f"{_cell(ratio, 2)} x" if ratio else ""))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return [
        f"{measured.benchmark.name}: {measured.benchmark.what}",
        f"rounds: {len(measured.sides[0].rounds)}, threads: {measured.benchmark.threads}; median (lowest - highest)",
        "",
        *lines,
        *(("", measured.limit.line) if measured.limit else ()),
    ]


def _heading(side: Side) -> str:
    return f"{side.name} {side.versions.get(side.name, '')}".strip()


def _cell(summary: Summary, digits: int) -> str:
    median, lowest, highest = (f"{value:,.{digits}f}" for value in (summary.median, summary.lowest, summary.highest))
    return f"{median} ({lowest} - {highest})"
