"""`nri-policy cluster explain`: what fits where, what limits, and what would help."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import msgspec
import yaml
from msgspec.structs import replace
from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from nri_policy.cli.cluster.documents import (
    document_errors,
    documents_option,
    exit_code,
    group_of,
    objects_of,
    require_one,
    the_group,
)
from nri_policy.cli.cluster.picture import print_cluster
from nri_policy.cli.cluster.service import ServiceClient
from nri_policy.cli.cluster.source import ClusterSource, cluster_options, service_option
from nri_policy.cli.cluster.tree import topology_of
from nri_policy.cli.options import picture_form_option
from nri_policy.cli.output import print_document, print_drawing
from nri_policy.cli.terminal.fitting import Columns
from nri_policy.cluster.objects.assignment import Assignment
from nri_policy.cluster.objects.document import format_amount
from nri_policy.cluster.objects.matching import tolerate
from nri_policy.cluster.objects.node import HOSTNAME, Taint
from nri_policy.cluster.objects.settings import ZONE_LEVEL
from nri_policy.cluster.planning.changes import SuggestedChange
from nri_policy.cluster.planning.explanation import GroupExplanation, PodSetExplanation
from nri_policy.cluster.planning.group_answers import (
    describe_outcome,
    explain_group,
    notes_of_devices,
)
from nri_policy.cluster.planning.more_hosts import find_more_hosts
from nri_policy.cluster.planning.moves import find_movable_pods
from nri_policy.cluster.planning.pods_alone import single_out
from nri_policy.cluster.planning.queue_position import QueuePosition
from nri_policy.cluster.report.tree_report import make_tree_report
from nri_policy.foundation.wording import counted

_MOST_PLACES = 6  # that are named for a pod set


@click.command("explain")
@click.argument("name", required=False)
@documents_option
@cluster_options
@picture_form_option
@service_option
@click.pass_context
def explain_command(  # noqa: PLR0913, PLR0917 - click names them; one for each option
    context: click.Context,
    source: ClusterSource,
    name: str | None,
    asked: tuple[Path, ...],
    service: ServiceClient | None,
    form: str,
) -> None:
    """Show how much of a group fits where, and what limits it.

    Also shows what would make it fit; pictures show the hosts that it would get. The group is in a
    file, or in the cluster: NAME, or NAMESPACE/NAME. If a file has several groups, NAME names
    one. Exits with 1 if it does not fit, or if nodes that align pods would refuse some of its pods
    at the places that it has.
    """
    require_one(name, asked)
    if service is not None:
        question: object = name
        if asked:
            objects = objects_of(asked)
            with document_errors():
                own = group_of(asked, name)
            question = objects if name is None else {"name": name, "objects": objects}
            name = own.full_name
        explanation = service.ask("explain", question, GroupExplanation)
        _print(name or "", explanation, form)
    else:
        engine, snapshot = source.load(devices=True)
        with document_errors():
            group = the_group(engine, name, asked, snapshot.classes, snapshot.devices)
            engine, group, notes = single_out(engine, group)
            explanation = explain_group(engine, group, snapshot.pods)
            explanation.notes[:0] = notes
            explanation.notes.extend(notes_of_devices(engine.state.nodes, group, snapshot.devices))
        if explanation.status.state == "Unplaceable" and not explanation.malformed:
            movable, _ = find_movable_pods(engine.state, snapshot)
            changes = [*explanation.changes, *find_more_hosts(engine, group, snapshot)]
            explanation = replace(explanation, movable=len(movable), changes=changes)
        if form in ("svg", "html"):
            report = make_tree_report(engine.state, topology_of(engine, group))
            groups = [(group.full_name, explanation.status)]
            title = f"Group {group.name}"
            print_cluster(report, groups, form, title, notes=[*_notes(explanation)])
        else:
            _print(group.full_name, explanation, form)
    fits = explanation.status.state != "Unplaceable" and not explanation.refused
    context.exit(exit_code(fits=fits, malformed=explanation.malformed))


def _print(name: str, explanation: GroupExplanation, form: str) -> None:
    if form == "table":
        print_drawing(*_draw(name, explanation))
    else:
        print_document(explanation, form)


def _draw(name: str, explanation: GroupExplanation) -> Iterator[RenderableType]:
    yield Text(f"{name}: {describe_outcome(explanation.status, explanation.refused)}")
    yield from (Text(f"note: {each}") for each in explanation.notes)
    yield from (Text(each) for each in _queued(explanation.standing))
    for each in explanation.pod_sets:
        yield Text("")
        yield Text(f"pod set {each.pod_set}: {_wanted(each)}; {_asks(each)}")
        unit = each.unit
        heads = (
            "level",
            "domains",
            "that fit the whole pod set",
            f"most {unit} in one domain",
            f"{unit} in all domains",
        )
        table = Columns(*heads, right=heads[1:], whole=("level",))
        for at in each.levels:
            numbers = (at.domains, at.holding_all, at.most, at.in_all)
            table.add_row(Text(at.level), *map(Text, map(str, numbers)))
        yield table
        if each.in_no_slice:
            pods = counted(each.in_no_slice, "pod")
            yield Text(f"beside whole slices there is room for {pods}")
        yield from (Text(line) for line in _no_room(each))
    for assignment in explanation.status.assignments:
        yield Text(_places(assignment))
    if explanation.movable:
        yield Text("")
        yield Text(_plan(explanation.movable))
    if explanation.changes:
        yield Text("")
        yield Text("It would fit")
        for change in explanation.changes:
            yield Padding(Text(_change(change)), (0, 0, 0, 2))
    elif explanation.status.state == "Unplaceable" and explanation.pod_sets:
        yield Text("")
        yield Text("No change was found that would make it fit")


def _wanted(found: PodSetExplanation) -> str:
    beside = f" beside {found.leader}" if found.leader else ""
    if found.leads:
        beside = f", the leader of {found.leads}"
    return counted(found.wanted, found.unit.removesuffix("s")) + beside


def _asks(found: PodSetExplanation) -> str:
    asks = ", ".join(f"{name} {format_amount(name, each)}" for name, each in found.asks.items())
    return f"each pod asks for {asks or 'nothing'}"


def _no_room(found: PodSetExplanation) -> Iterator[str]:
    """Yield how many leaves have no room for one pod, by reason, and some of them."""
    other = "zone" if found.leaf.startswith(ZONE_LEVEL) else "domain"
    leaf = "host" if found.leaf == HOSTNAME else other
    for reason, count in found.excluded.items():
        text = f"no room for one pod: {count} of {counted(found.nodes, leaf)}: {reason}"
        example = found.examples.get(reason)
        if example is None:
            yield text
        elif example.left is None:
            more = count - len(example.leaves)
            yield f"{text}: {', '.join(example.leaves)}{f' and {more} more' if more else ''}"
        else:
            yield f"{text}: {_left(example.resource, example.left)}, on {example.leaves[0]}"


def _left(resource: str, left: int) -> str:
    """Return what the leaf with most of a resource has left of it."""
    amount = format_amount(resource, abs(left))
    if left < 0:
        return f"all are overbooked, by {amount} at least"
    return f"at most {amount} left" if left else "nothing left"


def _places(assignment: Assignment) -> str:
    """Return which places a pod set has, or would get: the first ones by name."""
    hosts = [f"{'/'.join(each.values)} ({each.count})" for each in assignment.domains]
    more = len(hosts) - _MOST_PLACES
    named = ", ".join(hosts[:_MOST_PLACES]) + (f" and {more} more" if more > 0 else "")
    return f"places of {assignment.pod_set}: {named}"


def _plan(movable: int) -> str:
    return f'{counted(movable, "pod")} may move: "nri-policy cluster plan" finds whether that helps'


def _notes(explanation: GroupExplanation) -> Iterator[str]:
    """Return what the page says below its picture: the table's numbers as lines."""
    yield describe_outcome(explanation.status, explanation.refused)
    yield from explanation.notes
    yield from _queued(explanation.standing)
    for each in explanation.pod_sets:
        yield f"{each.pod_set}: {_asks(each)}"
        for at in each.levels:
            yield (
                f"{each.pod_set}: {_wanted(each)}; {at.level}: {at.holding_all} of"
                f" {counted(at.domains, 'domain')} fit the whole pod set, at most {at.most} in one"
                f" domain, {at.in_all} in all domains"
            )
        yield from (f"{each.pod_set}: {line}" for line in _no_room(each))
    if explanation.movable:
        yield _plan(explanation.movable)
    for change in explanation.changes:
        yield f"it would fit {_change(change)}"


def _queued(standing: QueuePosition | None) -> Iterator[str]:
    """Return where the group stands in the queue, and what is set aside."""
    if standing is None:
        return
    if standing.waiting > 1:
        yield f"in the queue: {counted(standing.ahead, 'group')} ahead, {standing.waiting} in all"
    if standing.reserved:
        yield (
            f"set aside for it: {', '.join(standing.reserved)};"
            f" {standing.fitting} of {counted(standing.pods, 'pod')} fit there now"
        )
    for name, hosts in standing.set_aside.items():
        yield f"set aside for {name}: {', '.join(hosts)}"


def _change(change: SuggestedChange) -> str:
    if change.counts:
        counts = " and ".join(_count(change, name) for name in change.counts)
        return f"if {counts}{'' if change.most else '; perhaps with more'}"
    if change.hosts:
        return f"with {counted(change.hosts, 'more host')} like {change.like}"
    if change.taints:
        return _tolerating(change.taints)
    if change.leaving or change.leaving_pods:
        return f"if these were removed: {', '.join((*change.leaving, *_pods(change)))}"
    return f"if {_other_request(change)}"


def _other_request(change: SuggestedChange) -> str:
    names = f"pod set{'s' * (len(change.pod_sets) > 1)} {' and '.join(change.pod_sets)}"
    if change.level is not None:
        return f"{names} required only one {change.level}"
    if change.slice_level is not None:
        return f"slices of {names} required only one {change.slice_level}"
    return f"{names} allowed {counted(change.max_per_host or 0, 'pod')} on a host"


def _tolerating(taints: Sequence[Taint]) -> str:
    """Return which taints pods would have to tolerate, and the tolerations to write."""
    wanted = [msgspec.to_builtins(tolerate(each)) for each in taints]
    given = [{name: value for name, value in each.items() if value} for each in wanted]
    written = yaml.safe_dump(given, default_flow_style=True, sort_keys=False, width=10_000).strip()
    names = " and ".join(map(str, taints))
    return f"if its pods tolerated {names}; in the pod template: tolerations: {written}"


def _count(change: SuggestedChange, name: str) -> str:
    slices = f" ({counted(change.slices[name], 'slice')})" if name in change.slices else ""
    return f"pod set {name} had only {counted(change.counts[name], 'pod')}{slices}"


def _pods(change: SuggestedChange) -> Iterator[str]:
    more = len(change.leaving_pods) - _MOST_PLACES
    yield from (f"pod {each}" for each in change.leaving_pods[:_MOST_PLACES])
    if more > 0:
        yield f"{counted(more, 'more pod')} (all are in -o json)"
