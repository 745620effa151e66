"""`nri-policy cluster top`: the placement groups of a cluster, those in need first."""

from __future__ import annotations

from collections import Counter

import click
from rich.table import Table

from nri_policy.cli.cluster.source import ClusterSource, cluster_options
from nri_policy.cli.options import form_option
from nri_policy.cli.output import print_document, print_drawing
from nri_policy.cli.terminal.watching import repeat, watch_option
from nri_policy.cluster.report.group_rows import GroupRow, group_rows


@click.command
@cluster_options
@watch_option
@form_option
def top(source: ClusterSource, watch: bool, form: str) -> None:
    """Show the placement groups, those that need attention first.

    Degraded ones come first, then those that wait, in their order.
    """

    def show() -> None:
        snapshot, _ = source.read(nodes=False)
        rows = group_rows(snapshot.groups, snapshot.pods)
        if form == "table":
            print_drawing(_draw(rows))
        else:
            print_document(rows, form)

    repeat(show, watch=watch)


def _draw(rows: list[GroupRow]) -> Table:
    states = Counter(row.state for row in rows)
    title = ", ".join(f"{number} {state}" for state, number in states.items())
    table = Table(box=None, pad_edge=False, caption=title or "no groups", caption_justify="left")
    numbers = ("pods", "running", "hosts", "priority")
    for name in ("group", "state", *numbers, "created", "message"):
        table.add_column(name, justify="right" if name in numbers else "left")
    for row in rows:
        table.add_row(
            f"{row.namespace}/{row.name}",
            row.state,
            *(str(each) for each in (row.pods, row.running, row.hosts, row.priority)),
            row.created,
            row.message,
        )
    return table
