"""`nri-policy audit`: whether containers run where they are to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import click
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from nri_policy.cli.daemon_option import daemon_client, socket_option
from nri_policy.cli.failure import Exit
from nri_policy.cli.node.holdings import short
from nri_policy.cli.node.pinning import left_alone
from nri_policy.cli.options import form_option
from nri_policy.cli.output import local_time, print_document, print_drawing
from nri_policy.cli.terminal.breakable_text import path
from nri_policy.cli.terminal.fitting import Columns
from nri_policy.report import AuditReport, DriftReport


@click.command
@socket_option
@form_option
@click.pass_context
def command(context: click.Context, control_socket: Path, form: str) -> None:
    """Check that running containers are where they should be.

    Compares each cgroup and its threads with the decision. What seems wrong is checked again some
    seconds later. Exits with 1 if anything is wrong.
    """
    with daemon_client(control_socket) as client:
        report, note = client.audit(), left_alone(client.settings())
    if form == "table":
        print_drawing(*_draw(report), *([Text(f"note: {note}")] if note else []))
    else:
        print_document(report, form)
    if report.drifts:
        context.exit(Exit.NO)


def _draw(report: AuditReport) -> Iterator[RenderableType]:
    yield from _draw_drifts(report)
    yield from _draw_company(report)


def _draw_drifts(report: AuditReport) -> Iterator[RenderableType]:
    drifts = report.drifts
    astray = len({drift.container for drift in drifts})
    if drifts:
        yield Text(f"{astray} of {report.audited} containers are not as decided:")
        yield Text()
        yield _table(drifts)
    elif report.audited:
        yield Text(f"{report.audited} containers are as decided.")
    else:
        yield Text("No container is checked.")
    if report.unseen:
        yield Text(f"Cgroups not found: {', '.join(map(short, report.unseen))}")
    if report.changing:
        names = ", ".join(map(short, report.changing))
        yield Text(f"Not checked, because a change of them is in progress: {names}")
    if report.threads_hidden:
        names = ", ".join(map(short, report.threads_hidden))
        yield Text(f"Threads not checked, because the host's process ids cannot be seen: {names}")


def _draw_company(report: AuditReport) -> Iterator[RenderableType]:
    """List containers that may run on exclusive CPUs of others."""
    accompanied = [each for each in report.company if each.others]
    if not report.company:
        return
    yield Text()
    if not accompanied:
        yield Text("No container may run on exclusive CPUs of another.")
    else:
        yield Text("Who may run on exclusive CPUs beside their owner:")
        table = Columns("owner", "CPUs", "beside it")
        for each in accompanied:
            others = Text(", ".join(each.others))
            table.add_row(path(short(each.container)), Text(each.cpus), others)
        yield table
    if report.outside:
        names = ", ".join(report.outside)
        yield Text(f"Processes outside of pods may use exclusive CPUs, too: those of {names}")


def _table(drifts: Sequence[DriftReport]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("container", "what", "decided", "found", "since", "why", "repair"):
        table.add_column(heading, overflow="fold")
    for drift in drifts:
        threads = f": {', '.join(map(str, drift.threads))}" if drift.threads else ""
        table.add_row(
            path(short(drift.container)),
            Text(drift.what),
            Text(drift.decided or "-", overflow="fold"),
            Text(drift.found or "-", overflow="fold"),
            Text(local_time(drift.since)),
            Text(f"{drift.reason}{threads}"),
            Text(_repair(drift)),
        )
    return table


def _repair(drift: DriftReport) -> str:
    tried = f"tried {drift.tries} times" if drift.tries else ""
    if drift.repairable:
        return tried or "can be"
    return f"{tried}: cannot be repaired" if tried else "cannot be repaired"
