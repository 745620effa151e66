"""`nri-policy status`: how the running daemon is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click
from rich.table import Table
from rich.text import Text

from nri_policy.cli.asking import asking, socket_option
from nri_policy.cli.options import form_option
from nri_policy.cli.output import local_time, print_document, print_drawing
from nri_policy.cli.pieces import cpu_list
from nri_policy.cli.pinning import left_alone
from nri_policy.report import PublicationReport, StatusReport
from nri_policy.settings import Reload


@click.command
@socket_option
@form_option
def command(control_socket: Path, form: str) -> None:
    """Show how the running daemon is."""
    with asking(control_socket) as client:
        status, note = client.status(), left_alone(client)
    if form == "table":
        print_drawing(_table(status, [note] if note else []))
    else:
        print_document(status, form)


def _table(status: StatusReport, notes: Sequence[str]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_row("version", Text(status.version))
    table.add_row("runtime", Text(status.runtime or "none is connected"))
    known = "all known" if status.synchronized else "not known yet: waiting for the runtime"
    table.add_row("its containers", Text(known))
    table.add_row("placed", str(status.containers))
    table.add_row("refused", str(status.refused))
    table.add_row("pools", str(status.pools))
    table.add_row("CPUs online", cpu_list(status.online_cpus))
    table.add_row("CPUs reserved", cpu_list(status.reserved_cpus))
    table.add_row("CPUs isolated", cpu_list(status.isolated_cpus))
    table.add_row("CPUs exclusive", cpu_list(status.exclusive_cpus))
    table.add_row("CPUs shared", cpu_list(status.shared_cpus))
    if status.latest_reload is not None:
        table.add_row("latest reload", Text(_outcome(status.latest_reload), overflow="fold"))
    for publication in status.publications:
        table.add_row("topology", Text(_told(publication), overflow="fold"))
    for notice in (*notes, *status.notices):
        table.add_row("note", Text(notice, overflow="fold"))
    return table


def _told(publication: PublicationReport) -> str:
    """Return how it goes with one copy of the node's NodeResourceTopology object."""
    text = f"{publication.phase}: {publication.to}"
    if publication.error:
        text += f": {publication.error}"
    if publication.rivals:
        text += f"; written by others too: {', '.join(publication.rivals)}"
    return text


def _outcome(reload: Reload) -> str:
    when = local_time(reload.time)
    if reload.accepted:
        return f"{when}: {reload.origin} was accepted"
    named = reload.reason.startswith(reload.origin)
    return f"{when}: refused: {'' if named else f'{reload.origin}: '}{reload.reason}"
