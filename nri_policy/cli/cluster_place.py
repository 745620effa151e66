"""`nri-policy cluster place`: where groups would go, one after another."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click
from rich.table import Table

from nri_policy.cli.cluster_service import Service
from nri_policy.cli.cluster_source import (
    ClusterSource,
    cluster_options,
    document_errors,
    documents_of,
    documents_option,
    groups_of,
    service_option,
)
from nri_policy.cli.cluster_tree import blocks, left, topology_name
from nri_policy.cli.failure import Exit
from nri_policy.cli.options import picture_form_option
from nri_policy.cli.output import print_document, print_drawing, print_page
from nri_policy.cluster.engine import Engine
from nri_policy.cluster.node import HOSTNAME
from nri_policy.cluster.tree_report import placed_on_hosts, tree_report
from nri_policy.cluster.trial import Part, Tried, try_group
from nri_policy.picture import racks
from nri_policy.wording import counted


@click.command
@documents_option
@cluster_options
@picture_form_option
@service_option
@click.pass_context
def place(
    context: click.Context,
    source: ClusterSource,
    asked: tuple[Path, ...],
    service: Service | None,
    form: str,
) -> None:
    """Show where groups of pods would go, or why they would not.

    Several are placed one after another; each sees those before it. Nothing is changed in any
    cluster. Exits with 1 if one of them does not fit.
    """
    if not asked:
        raise click.UsageError("nothing to place: give -f FILE")
    if service is not None:
        tried = service.ask("place", documents_of(asked), list[Tried])
    else:
        engine, snapshot = source.load()
        with document_errors():
            tried = [try_group(engine, group, snapshot.failures) for group in groups_of(asked)]
        if form in ("svg", "html"):
            _print_picture(engine, tried, form)
    if form == "table":
        print_drawing(drawn(tried))
    elif form in ("json", "yaml"):
        print_document(tried, form)
    context.exit(Exit.NO if any(each.status.state != "Placed" for each in tried) else 0)


def _print_picture(engine: Engine, tried: Sequence[Tried], form: str) -> None:
    report = tree_report(engine, topology_name(engine, None))
    shown = blocks(report, placed_on_hosts(tried))
    refused = [f"{_name(each)}: {each.status.message}" for each in tried if not each.parts]
    if form == "svg":
        print_page(racks.document(shown))
    else:
        names = ", ".join(map(_name, tried))
        print_page(racks.page_of(f"Placement of {names}", shown, [*refused, *left(report)]))


def drawn(tried: Sequence[Tried]) -> Table:
    """Return a table of where groups went."""
    table = Table(box=None, pad_edge=False)
    for name in ("group", "pod set", "where"):
        table.add_column(name)
    for each in tried:
        if not each.parts:
            table.add_row(_name(each), "", each.status.message or "no pods")
        for part in each.parts:
            table.add_row(_name(each), part.pod_set, where(each, part))
    return table


def where(tried: Tried, part: Part) -> str:
    """Return where pods are: `rack r1: 16 pods on 8 hosts`."""
    places = [
        f"{level.rpartition('/')[2]} {value or '-'}"
        for level, value in zip(tried.levels, part.values, strict=True)
    ]
    pods = counted(part.pods, "pod")
    if tried.levels[-1] == HOSTNAME or all(
        each.levels[0] != HOSTNAME for each in tried.status.assignments
    ):
        return f"{', '.join(places)}: {pods}"
    return f"{', '.join(places)}: {pods} on {counted(part.leaves, 'host')}"


def _name(tried: Tried) -> str:
    return f"{tried.namespace}/{tried.name}"
