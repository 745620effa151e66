"""`nri-policy cluster tree`: levels, domains, what is free and used, nodes that are left out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import click
from rich.table import Table
from rich.text import Text

from nri_policy.cli.cluster_source import ClusterSource, cluster_options
from nri_policy.cli.failure import Exit, Failure
from nri_policy.cli.options import picture_form_option
from nri_policy.cli.output import print_document, print_drawing, print_page
from nri_policy.cluster.engine import Engine
from nri_policy.cluster.tree_report import Domain, TreeReport, tree_report
from nri_policy.picture import racks
from nri_policy.units import format_bytes, format_cpu
from nri_policy.wording import counted, did_you_mean, quoted, some

_MOST_ROWS = 60
_ALWAYS = ("cpu", "memory", "pods")


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

    The table goes only as deep as a person can read. Nodes outside the tree are listed with the
    reason, most often a missing label.
    """
    engine, _ = source.load()
    report = tree_report(engine, topology_name(engine, topology), zones=zones)
    match form:
        case "table":
            print_drawing(*_draw(report, every=every))
        case "svg":
            print_page(racks.document(blocks(report, {})))
        case "html":
            print_page(
                racks.page_of(f"Topology {report.topology}", blocks(report, {}), left(report))
            )
        case _:
            print_document(report, form)


def topology_name(engine: Engine, name: str | None) -> str:
    """Return the name of a topology that there is; raises Failure."""
    known = [each.name for each in engine.settings.topologies]
    if name is not None and name not in known:
        hint = did_you_mean(name, known) or f"; there are: {', '.join(known)}"
        raise Failure(f"there is no topology {quoted(name)}{hint}", Exit.USAGE)
    return name or known[0]


def amount(resource: str, value: int) -> str:
    """Return an amount as people read it."""
    if resource == "cpu":
        return format_cpu(value)
    if resource in ("memory", "ephemeral-storage") or resource.startswith("hugepages-"):
        return format_bytes(value)
    return str(value)


def left(report: TreeReport) -> list[str]:
    """Return a line for each reason for which nodes are left out."""
    return [
        f"{counted(len(each.nodes), 'node')} left out: {each.reason} ({some(each.nodes)})"
        for each in report.left_out
    ]


def blocks(report: TreeReport, placed: dict[str, int]) -> list[racks.Block]:
    """Return the hosts of each rack as a picture has them, with the pods *placed* on them."""
    last = len(report.levels) - 1
    made: dict[tuple[str, ...], list[racks.Cell]] = {}
    for each in report.domains:
        if each.level == report.levels[last]:
            cell = racks.Cell(
                name=each.values[-1],
                share=_fullness(each),
                detail="; ".join([_uses(each), *each.groups]),
                pods=placed.get(each.values[-1], 0),
            )
            made.setdefault(tuple(each.values[:-1]), []).append(cell)
    return [
        racks.Block(title=" / ".join(path) or report.topology, cells=cells)
        for path, cells in made.items()
    ]


def _uses(domain: Domain) -> str:
    return ", ".join(f"{name} {_use(domain, name)}" for name in _ALWAYS)


def _fullness(domain: Domain) -> float:
    """Return the share that is used of what is fullest, CPU or memory."""
    return max(
        domain.used(name) / domain.total[name] if domain.total.get(name) else 0.0
        for name in ("cpu", "memory")
    )


def _use(domain: Domain, resource: str) -> str:
    total = domain.total.get(resource, 0)
    if resource not in domain.total:
        return ""
    return f"{amount(resource, domain.used(resource))} of {amount(resource, total)}"


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
    named = {name for each in report.domains for name, value in each.total.items() if value}
    resources = [*_ALWAYS, *sorted(named - {*_ALWAYS})]
    yield Text(f"topology {report.topology}: {' > '.join(report.levels)}")
    table = Table(box=None, pad_edge=False)
    for name in ("domain", "nodes", *(f"{each} used" for each in resources), "groups"):
        table.add_column(name, justify="left" if name in ("domain", "groups") else "right")
    for each in report.domains:
        if each.level in shown:
            indent = "  " * (len(each.values) - 1)
            uses = [_use(each, name) for name in resources]
            table.add_row(indent + each.values[-1], str(each.nodes), *uses, _short(each.groups))
    yield table
    if depth < len(report.levels):
        hidden = sum(each.level not in shown for each in report.domains)
        yield Text(f"{counted(hidden, 'domain')} below {shown[-1]} not shown: --all shows them")
    for line in left(report):
        yield Text(line)


def _short(groups: Sequence[str]) -> str:
    return some(groups)
