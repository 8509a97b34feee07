"""Print the parity table of docs/maths.md: `python -m tools.parity.table`."""

from __future__ import annotations

from collections.abc import Iterator

from tools.parity.advantage_rows import advantage_rows
from tools.parity.loss_rows import loss_rows
from tools.parity.ours import RECORDED
from tools.parity.pairs import gap
from tools.parity.rows import Row
from tools.parity.term_rows import term_rows

BOUNDS = (1e-12, 1e-9, 1e-6)
"""Agreement is rounding, which machines do differently: the table says what it stays below."""

NAMES = {"verl": "verl", "trl": "TRL", "torchrl": "torchrl"}


def rows() -> list[Row]:
    return [*advantage_rows(), *loss_rows(), *term_rows()]


def table() -> str:
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    yield "| ours | peer | its function | difference | what they define differently | difference as is |"
    yield "|---|---|---|---|---|---|"
    for row in rows():
        version = RECORDED[row.peer]["versions"][row.peer]
        apart = "" if row.apart is None else f"{gap(row.apart()):.1e}"
        cells = (
            f"`{row.ours}`",
            f"{NAMES[row.peer]} {version}",
            f"`{row.function}`",
            _below(row),
            row.definition,
            apart,
        )
        yield f"| {' | '.join(cells)} |"


def _below(row: Row) -> str:
    found = gap(row.agree())
    return next((f"< {bound:.0e}" for bound in BOUNDS if found < bound), f"{found:.1e}")


if __name__ == "__main__":
    print(table())
