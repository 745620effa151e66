"""`nri-policy cluster tree`: levels, domains, what is free and used, nodes that are left out."""

from __future__ import annotations

from collections.abc import Iterable

import click
from rich.table import Table
from rich.text import Text

from nri_policy.cli.cluster.amounts import FIRST, quantities
from nri_policy.cli.cluster.picture import left, overbooked, print_cluster
from nri_policy.cli.cluster.source import ClusterSource, cluster_options
from nri_policy.cli.failure import Exit, Failure
from nri_policy.cli.options import picture_form_option
from nri_policy.cli.output import print_document, print_drawing
from nri_policy.cluster.engine.engine import Engine
from nri_policy.cluster.report.tree_report import TreeReport, make_tree_report
from nri_policy.cluster.requests.group import PlacementGroup
from nri_policy.foundation.wording import counted, did_you_mean, quoted, some

_MOST_ROWS = 60


@click.command
@cluster_options
@click.option("--topology", help="The topology's name.  [default: the first of the settings]")
@click.option(
    "--zones", is_flag=True, help="Show the zones in each host, too (`belowHost` of the settings)."
)
@click.option("--all", "every", is_flag=True, help="Show every domain, however many there are.")
@picture_form_option
def tree(source: ClusterSource, topology: str | None, zones: bool, every: bool, form: str) -> None:
    """Show a topology's domains, and what is used of each.

    The table shows as many levels as fit into 60 rows. Nodes outside the tree are listed with the
    reason, most often a missing label.
    """
    engine, _ = source.load()
    pictured = form in ("svg", "html")  # whose cells are hosts
    name = topology_name(engine, topology)
    report = make_tree_report(engine.state, name, zones=zones and not pictured)
    if zones and not pictured and not engine.state.tree(name).shape.topology.below_host:
        click.echo(f"note: no zones: set belowHost: [Node] in the topology {name}", err=True)
    match form:
        case "table":
            print_drawing(*_draw(report, every=every))
        case "svg" | "html":
            groups = [(each.full_name, each.status) for each in engine.state.groups.values()]
            notes = [*overbooked(report), *left(report)]
            print_cluster(report, groups, form, f"Topology {name}", notes=notes)
        case _:
            print_document(report, form)


def topology_name(engine: Engine, name: str | None) -> str:
    """Return the name of a topology that there is; raises Failure."""
    known = [each.name for each in engine.state.settings.topologies]
    if name is not None and name not in known:
        hint = did_you_mean(name, known) or f"; there are: {', '.join(known)}"
        raise Failure(f"there is no topology {quoted(name)}{hint}", Exit.USAGE)
    return name or known[0]


def topology_of(engine: Engine, group: PlacementGroup) -> str:
    """Return the name of the topology that a group is placed on; raises Failure."""
    requests = (each.request for each in group.pod_sets if each.request)
    return topology_name(engine, next((each.topology for each in requests), None))


def _depth(report: TreeReport) -> int:
    """Return how many levels a person can read; the first one always."""
    rows = 0
    for depth, level in enumerate(report.levels):
        rows += sum(each.level == level for each in report.domains)
        if rows > _MOST_ROWS:
            return max(1, depth)
    return len(report.levels)


def _draw(report: TreeReport, *, every: bool) -> Iterable[Table | Text]:
    depth = len(report.levels) if every else _depth(report)
    shown = report.levels[:depth]
    resources = [each for each in quantities(report) if _is_asked_for(each.resource, report)]
    groups = ["groups"] if any(each.groups for each in report.domains) else []
    yield Text(f"topology {report.topology}: {' > '.join(report.levels)}")
    table = Table(box=None, pad_edge=False)
    for name in ("domain", "nodes", *(each.heading for each in resources), *groups):
        table.add_column(name, justify="left" if name in ("domain", "groups") else "right")
    for each in report.domains:
        if each.level in shown:
            indent = "  " * (len(each.values) - 1)
            uses = [resource.use(each) for resource in resources]
            named = [some(each.groups)] if groups else []
            table.add_row(indent + each.values[-1], str(each.nodes), *uses, *named)
    yield table
    if depth < len(report.levels):
        hidden = sum(each.level not in shown for each in report.domains)
        yield Text(f"{counted(hidden, 'domain')} below {shown[-1]} not shown: --all shows them")
    for line in (*overbooked(report), *left(report)):
        yield Text(line)


def _is_asked_for(resource: str, report: TreeReport) -> bool:
    """Whether readers look for a resource: one of all pods, a device, or one that is in use."""
    used = any(each.used.get(resource) for each in report.domains)
    return resource in FIRST or "/" in resource or used
