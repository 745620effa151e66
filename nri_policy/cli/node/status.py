"""`nri-policy status`: how the running daemon is."""

from __future__ import annotations

from pathlib import Path

import click
from rich.table import Table
from rich.text import Text

from nri_policy.cli.daemon_option import daemon_client, socket_option
from nri_policy.cli.node.pinning import left_alone, pinning_of
from nri_policy.cli.options import form_option
from nri_policy.cli.output import local_time, print_document, print_drawing
from nri_policy.cli.terminal.breakable_text import cpu_list
from nri_policy.cli.terminal.watching import repeat, watch_option
from nri_policy.foundation.wording import counted
from nri_policy.report import PublicationReport, SettingsReport, StatusReport
from nri_policy.settings import ReloadResult


@click.command
@watch_option
@socket_option
@form_option
def command(watch: bool, control_socket: Path, form: str) -> None:
    """Show the state of the running daemon."""
    repeat(lambda: _show(control_socket, form), watch=watch)


def _show(control_socket: Path, form: str) -> None:
    with daemon_client(control_socket) as client:
        status, settings = client.status(), client.settings()
    if form == "table":
        print_drawing(_table(status, settings))
    else:
        print_document(status, form)


def _table(status: StatusReport, settings: SettingsReport) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_row("version", Text(status.version))
    table.add_row("runtime", Text(status.runtime or "none is connected"))
    if status.memory_bytes:
        table.add_row("daemon's usage", Text(status.usage))
    known = "yes" if status.synchronized else "not yet: waiting for the runtime"
    table.add_row("containers in sync", Text(known))
    table.add_row("settings from", Text(settings.origin, overflow="fold"))
    table.add_row("pins", Text(" and ".join(pinning_of(settings)) or "nothing: it only decides"))
    table.add_row("placed", str(status.containers))
    why = ": containers says why" if status.refused else ""
    table.add_row("refused", f"{status.refused}{why}")
    table.add_row("pools", str(status.pools))
    table.add_row("CPUs online", cpu_list(status.online_cpus))
    if status.offline_cpus:
        table.add_row("CPUs offline", cpu_list(status.offline_cpus))
    table.add_row("CPUs reserved", cpu_list(status.reserved_cpus))
    table.add_row("CPUs isolated", cpu_list(status.isolated_cpus))
    table.add_row("CPUs exclusive", cpu_list(status.exclusive_cpus))
    table.add_row("CPUs shared", cpu_list(status.shared_cpus))
    if status.lacking_classes:
        text = f"not all in effect for {counted(status.lacking_classes, 'container')}: see explain"
        table.add_row("classes", Text(text))
    if status.tunables:
        counts = ", ".join(f"{count} {state}" for state, count in status.tunables.items())
        table.add_row("tunables", Text(f"{counts}: see tunables"))
    if status.latest_reload is not None:
        table.add_row("latest reload", Text(_outcome(status.latest_reload), overflow="fold"))
    for publication in status.publications:
        table.add_row("nrt", Text(_format_publication(publication), overflow="fold"))
    note = left_alone(settings)
    for notice in (*([note] if note else []), *status.notices):
        table.add_row("note", Text(notice, overflow="fold"))
    return table


def _format_publication(publication: PublicationReport) -> str:
    """Return how it goes with one copy of the node's NodeResourceTopology object."""
    text = f"{publication.phase}: {publication.to}"
    if publication.error:
        text += f": {publication.error}"
    if publication.rivals:
        text += f"; written by others too: {', '.join(publication.rivals)}"
    return text


def _outcome(reload: ReloadResult) -> str:
    when = local_time(reload.time)
    if reload.accepted:
        return f"{when}: {reload.origin} was accepted"
    named = reload.reason.startswith(reload.origin)
    return f"{when}: refused: {'' if named else f'{reload.origin}: '}{reload.reason}"
