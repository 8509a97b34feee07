"""`loopwright audit`: whether a run has lost a group, or trained one twice or too late."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loopwright.cli.runs import RunPath, existing_run
from loopwright.cli.show_errors import FAILED

if TYPE_CHECKING:
    from loopwright.runs.auditing.audit import Audit, Conservation


def audit(
    run: RunPath,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Print the status of every group that was drawn; exit 1 if one was lost, trained twice or trained too old.

    It only reads, and works beside a run.
    """
    from loopwright.runs.auditing.audit import audit as audit_of

    audited = audit_of(existing_run(run).rollouts)
    if as_json:
        typer.echo(json.dumps(_as_json(audited), indent=1))
    else:
        _print_table(audited)
    if not audited.is_clean:
        raise typer.Exit(FAILED)


def _as_json(audited: Audit) -> dict[str, Any]:
    return {
        "clean": audited.is_clean,
        "lineages": audited.lineages,
        "task_sets": {name: _row(table) for name, table in audited.task_sets.items()},
        "findings": [finding._asdict() for finding in audited.findings],
    }


def _row(table: Conservation) -> dict[str, Any]:
    standing = {status.value: count._asdict() for status, count in table.standing.items()}
    return {"sampled": table.sampled._asdict(), "standing": standing}


def _print_table(audited: Audit) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("", "", box=None, pad_edge=False, header_style="dim")
    for heading in ("groups", "members"):
        table.add_column(heading, justify="right")
    for name, conserved in audited.task_sets.items():
        table.add_row(name, "sampled", *map(str, conserved.sampled))
        for status, count in conserved.standing.items():
            if count.groups:
                table.add_row("", f"  {status.value}", *map(str, count))
    out = Console(highlight=False)
    out.print(table)
    out.print()
    for finding in audited.findings:
        out.print(f"{finding.kind}: {finding.where}: {finding.what}", soft_wrap=True, markup=False)
    opened = "opened once" if audited.lineages == 1 else f"opened {audited.lineages} times"
    verdict = "everything is there, once" if audited.is_clean else f"{len(audited.findings)} findings"
    out.print(f"{verdict} ({opened})")
