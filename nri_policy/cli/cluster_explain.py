"""`nri-policy cluster explain`: what fits where, what limits, and what would help."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
from rich.table import Table
from rich.text import Text

from nri_policy.cli.cluster_source import (
    ClusterSource,
    cluster_options,
    documents_option,
    groups_of,
    told,
)
from nri_policy.cli.cluster_tree import blocks, topology_name
from nri_policy.cli.failure import Exit, Failure
from nri_policy.cli.options import picture_form_option
from nri_policy.cli.output import print_document, print_drawing, print_page
from nri_policy.cluster.engine import Engine
from nri_policy.cluster.explanation import Change, Explanation, explain
from nri_policy.cluster.group import PlacementGroup
from nri_policy.cluster.tree_report import placed_on_hosts, tree_report
from nri_policy.picture import racks
from nri_policy.wording import counted, did_you_mean, quoted


@click.command("explain")
@click.argument("name", required=False)
@documents_option
@cluster_options
@picture_form_option
@click.pass_context
def explain_command(
    context: click.Context,
    source: ClusterSource,
    name: str | None,
    asked: tuple[Path, ...],
    form: str,
) -> None:
    """Show what of a group fits where, and what limits it.

    Also shows what would make it fit; a picture shows it where it would go. The group is in a file,
    or in the cluster: NAME, or NAMESPACE/NAME. Exits with 1 if it does not fit.
    """
    if (name is None) == (not asked):
        raise click.UsageError("name one group: NAME of one in the cluster, or -f FILE")
    engine, _ = source.load()
    with told():
        group = _found(engine, name) if name is not None else _read(asked)
        explanation = explain(engine, group)
    if form == "table":
        print_drawing(*_drawn(group, explanation))
    elif form in ("svg", "html"):
        named = next((each.request.topology for each in group.pod_sets if each.request), None)
        report = tree_report(engine, topology_name(engine, named))
        shown = blocks(report, placed_on_hosts([explanation]))
        if form == "svg":
            print_page(racks.document(shown))
        else:
            print_page(racks.page_of(f"Group {group.name}", shown, [*_notes(explanation)]))
    else:
        print_document(explanation, form)
    context.exit(Exit.NO if explanation.status.state == "Unplaceable" else 0)


def _read(asked: tuple[Path, ...]) -> PlacementGroup:
    groups = groups_of(asked)
    if len(groups) != 1:
        raise Failure(f"{asked[0]}: {len(groups)} groups; one can be explained at a time")
    return groups[0]


def _found(engine: Engine, name: str) -> PlacementGroup:
    namespace, _, own = name.rpartition("/")
    group = engine.groups.get((namespace or "default", own))
    if group is None:
        known = [f"{space}/{each}" for space, each in engine.groups]
        hint = did_you_mean(f"{namespace or 'default'}/{own}", known)
        raise Failure(f"there is no group {quoted(name)} in the cluster{hint}")
    return group


def _drawn(group: PlacementGroup, explanation: Explanation) -> Iterator[Table | Text]:
    status = explanation.status
    yield Text(f"{group.namespace}/{group.name}: {status.message or 'it fits'}")
    for each in explanation.pod_sets:
        yield Text("")
        yield Text(f"pod set {each.pod_set}: {each.wanted} {each.unit}")
        table = Table(box=None, pad_edge=False)
        heads = ("level", "domains", "hold all", "most in one", "in all")
        for head in heads:
            table.add_column(head, justify="left" if head == "level" else "right")
        for at in each.levels:
            numbers = (at.domains, at.holding_all, at.most, at.in_all)
            table.add_row(at.level, *map(str, numbers))
        yield table
        if each.in_no_slice:
            yield Text(f"room for {counted(each.in_no_slice, 'pod')} is in no whole slice")
        for reason, count in each.excluded.items():
            yield Text(f"without room for one: {count} of {each.nodes}: {reason}")
    if explanation.changes:
        yield Text("")
        yield Text("It would fit with:")
        for change in explanation.changes:
            yield Text(f"  {_change(change)}")


def _notes(explanation: Explanation) -> Iterator[str]:
    """Return what the page says below its picture: the table's numbers as lines."""
    yield explanation.status.message or "it fits"
    for each in explanation.pod_sets:
        for at in each.levels:
            yield (
                f"{each.pod_set}: {each.wanted} {each.unit}; {at.level}: {at.holding_all} of"
                f" {counted(at.domains, 'domain')} hold all, {at.most} in one, {at.in_all} in all"
            )
        for reason, count in each.excluded.items():
            yield f"{each.pod_set}: without room for one: {count} of {each.nodes}: {reason}"
    for change in explanation.changes:
        yield f"it would fit with {_change(change)}"


def _change(change: Change) -> str:
    if change.count is not None:
        return f"{change.count} pods in {change.pod_set}"
    if change.level is not None:
        return f"{change.pod_set} within {change.level}"
    if change.slice_level is not None:
        return f"slices of {change.pod_set} within {change.slice_level}"
    if change.max_per_host is not None:
        return f"up to {counted(change.max_per_host, 'pod')} of {change.pod_set} on a host"
    return f"{', '.join(change.leaving)} gone"
