"""`nri-policy cluster top`: the placement groups of a cluster, those in need first."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator

import click
from rich.text import Text

from nri_policy.cli.cluster.source import ClusterSource, cluster_options
from nri_policy.cli.options import form_option
from nri_policy.cli.output import print_document, print_drawing
from nri_policy.cli.terminal.fitting import Columns
from nri_policy.cli.terminal.watching import repeat, watch_option
from nri_policy.cluster.groups.queue import seconds_between
from nri_policy.cluster.report.group_rows import GroupRow, make_group_rows
from nri_policy.foundation.units import format_age, format_time


@click.command
@cluster_options
@watch_option
@form_option
def top(source: ClusterSource, watch: bool, form: str) -> None:
    """Show the placement groups, those that need attention first.

    Degraded groups come first, then waiting groups in their order. A table only counts finished
    groups.
    """

    def show() -> None:
        snapshot, _ = source.read(nodes=False)
        rows = make_group_rows(snapshot.groups, snapshot.pods)
        if form == "table":
            print_drawing(*drawn(rows, time.time()))
        else:
            print_document(rows, form)

    repeat(show, watch=watch)


def drawn(rows: list[GroupRow], now: float) -> Iterator[Columns | Text]:
    """Yield a table of groups, their messages below it; *now* is in seconds since the epoch."""
    heads = ("group", "state", "pods", "running", "hosts", "priority", "age")
    spare = ("age", "priority", "hosts")
    table = Columns(*heads, right=heads[2:], whole=("group", "state"), dispensable=spare)
    shown = [row for row in rows if row.state != "Finished"]
    for row in shown:
        age = format_age(seconds_between(row.created, format_time(now))) if row.created else ""
        numbers = (row.pods, row.running, row.hosts, row.priority)
        cells = (row.full_name, row.state, *map(str, numbers), age)
        table.add_row(*map(Text, cells))
    yield table
    states = Counter(row.state for row in rows)
    title = ", ".join(f"{number} {state}" for state, number in states.items())
    yield Text(title or "no groups", "italic")
    yield from (Text(f"{row.full_name}: {row.message}") for row in shown if row.message)
