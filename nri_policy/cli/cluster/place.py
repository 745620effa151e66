"""`nri-policy cluster place`: where groups would go, one after another."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click
from rich.table import Table
from rich.text import Text

from nri_policy.cli.cluster.documents import (
    document_errors,
    documents_option,
    exit_code,
    groups_of,
    objects_of,
)
from nri_policy.cli.cluster.picture import left, print_cluster
from nri_policy.cli.cluster.service import ServiceClient
from nri_policy.cli.cluster.source import ClusterSource, cluster_options, service_option
from nri_policy.cli.cluster.tree import topology_of
from nri_policy.cli.options import picture_form_option
from nri_policy.cli.output import print_document, print_drawing
from nri_policy.cluster.engine.engine import Engine
from nri_policy.cluster.objects.node import HOSTNAME
from nri_policy.cluster.planning.group_answers import try_groups
from nri_policy.cluster.planning.preview import DomainPods, TriedGroup
from nri_policy.cluster.report.tree_report import make_tree_report
from nri_policy.foundation.wording import counted, some


@click.command
@documents_option
@click.option("--hosts", is_flag=True, help="Show the pods on each host.")
@cluster_options
@picture_form_option
@service_option
@click.pass_context
def place(  # noqa: PLR0913, PLR0917 - click names them; one for each option
    context: click.Context,
    source: ClusterSource,
    asked: tuple[Path, ...],
    hosts: bool,
    service: ServiceClient | None,
    form: str,
) -> None:
    """Show where groups of pods would go, or why they would not.

    Several are placed one after another, those of higher priority first; each sees those before it.
    Nothing is preempted. Nodes that align pods to one NUMA node get as many pods as their zones
    take; other hosts count as a whole, unless a group names zones. "cluster fit" looks at the zones
    of every node for one pod. Nothing is changed in any cluster. Exits with 1 if a group
    does not fit.
    """
    if not asked:
        raise click.UsageError("nothing to place: give -f FILE")
    if service is not None:
        tried = service.ask("place", objects_of(asked), list[TriedGroup])
    else:
        engine, snapshot = source.load()
        with document_errors():
            groups = groups_of(asked, snapshot.classes)
            tried = try_groups(engine, groups, snapshot.failures)
        if form in ("svg", "html"):
            topologies = [topology_of(engine, each) for each in groups]
            _print_picture(engine, topologies[0], tried, form)
    notes = dict.fromkeys(note for each in tried for note in each.notes)
    if form == "table":
        text = "".join(f"\nnote: {note}" for note in notes)
        print_drawing(drawn(tried, hosts=hosts), *[Text(text)] * bool(text))
    elif form in ("json", "yaml"):
        print_document(tried, form)
    fits = all(each.status.state == "Placed" for each in tried)
    context.exit(exit_code(fits=fits, malformed=any(each.malformed for each in tried)))


def _print_picture(engine: Engine, topology: str, tried: Sequence[TriedGroup], form: str) -> None:
    report = make_tree_report(engine.state, topology)
    groups = [(each.full_name, each.status) for each in tried]
    unplaced = sum(not each.parts for each in tried)
    problems = [f"{counted(unplaced, 'group')} of {len(tried)} cannot be placed"]
    notes = dict.fromkeys([*left(report), *(note for each in tried for note in each.notes)])
    print_cluster(
        report,
        groups,
        form,
        f"Placement of {some(name for name, _ in groups)}",
        notes=[*notes],
        problems=problems if unplaced else (),
    )


def drawn(tried: Sequence[TriedGroup], *, hosts: bool = False) -> Table:
    """Return a table of where groups went, with a row for each host if *hosts*."""
    table = Table(box=None, pad_edge=False)
    for name in ("group", "pod set", "where", *(("host", "pods") if hosts else ())):
        table.add_column(name, justify="right" if name == "pods" else "left")
    for each in tried:
        if each.status.state != "Placed" or not each.parts:
            table.add_row(each.full_name, "", each.status.message or "no pods")
        for part in each.parts:
            if hosts:
                place = _place(each, part)
                for host, pods in part.hosts.items():
                    table.add_row(each.full_name, part.pod_set, place, host, str(pods))
            else:
                table.add_row(each.full_name, part.pod_set, where(each, part))
    return table


def where(tried: TriedGroup, part: DomainPods) -> str:
    """Return where pods are: `rack r1: 16 pods on 8 hosts`."""
    place, pods = _place(tried, part), counted(part.pods, "pod")
    if tried.levels[-1] == HOSTNAME or all(
        each.levels[0] != HOSTNAME for each in tried.status.assignments
    ):
        return f"{place}: {pods}"
    return f"{place}: {pods} on {counted(part.leaves, 'host')}"


def _place(tried: TriedGroup, part: DomainPods) -> str:
    return ", ".join(
        f"{level.rpartition('/')[2]} {value or '-'}"
        for level, value in zip(tried.levels, part.values, strict=True)
    )
