"""Answers: what a container has, in the words that open `explain`.

Owns the phrases. Made from what the node holds now; why it is so comes from the decision.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from msgspec import UNSET, Struct, UnsetType

from nri_policy.engine.choice.placement_notes import lacks_cpus
from nri_policy.engine.choice.shortage import describe_cpus
from nri_policy.engine.explanation import Explanation
from nri_policy.engine.state.layout import Layout
from nri_policy.engine.state.partition_rules import Partition
from nri_policy.engine.state.topology_hints import per_place
from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.foundation.units import count_cpus, format_cpu, format_pages
from nri_policy.foundation.wording import counted
from nri_policy.node import NodeView, Placed, describe_misfit, list_company
from nri_policy.pools.tree import Pool
from nri_policy.report.container import NO_QUOTA
from nri_policy.report.hint import HintReport
from nri_policy.report.recent_use import RecentUseReport
from nri_policy.workload.amounts import AmountSource
from nri_policy.workload.pod import ContainerState
from nri_policy.workload.preferences import preferences
from nri_policy.workload.request import Request, Sort

_MOST_SHARERS = 3  # that are named
_SPREAD = 'pick-resources-by-hints.resource-policy.nri.io: "true"'


class AnswerReport(Struct, frozen=True, kw_only=True):
    """What a container has now."""

    cpus: CPUSet  # where it may run; empty where the policy leaves that alone
    cpus_are: str  # exclusive, shared, …, and in which pool
    mems: CPUSet  # memory nodes; empty where the policy leaves that alone
    memory_is: str  # of which kinds
    away: str | UnsetType = UNSET  # count of CPUs without its memory beside them
    asked: str
    got: str
    better: tuple[str, ...]  # improvements that are, or were, possible
    huge_pages: str | None = None  # huge pages of the request, and their memory nodes
    quota: str | None = None  # CFS quota, if the daemon has set it
    partition: str | UnsetType = UNSET  # why it lacks the requested kernel partition
    alone: str | UnsetType = UNSET  # containers that may run on its exclusive CPUs
    room: str | None = None  # slices of the pod's room, by container
    recent: RecentUseReport | UnsetType = UNSET  # what it used lately, if the kernel says so


def answer_report(  # noqa: PLR0913 - keywords
    view: NodeView,
    placed: Placed,
    devices: tuple[HintReport, ...] = (),
    *,
    recent: RecentUseReport | UnsetType = UNSET,
    reader: str | None = None,
    partition_error: str = "",
) -> AnswerReport:
    """Describe a placed container's resources; *devices* are those that its placement considered.

    *partition_error* is the reason why the kernel refuses its partition.
    Where *reader*, a namespace, is given, containers of other namespaces are counted, not named.
    """
    cpus, mems = view.sent[placed.container.id]
    kinds = _memory_kinds(view.layout, mems)
    found = partition_error or view.partition(placed.container.id)
    partition, reason = (None, found) if isinstance(found, str) else (found, "")
    container = placed.container
    itself = preferences(container.pod.annotations, container.name).exclusive_partition
    return AnswerReport(
        cpus=cpus,
        cpus_are=_cpus_are(view, placed, reader, partition)
        if cpus
        else _cpus_left(view, placed, reader),
        mems=mems,
        memory_is=kinds or _memory_left(view.layout, placed),
        away=_away(view.layout, cpus, mems) or UNSET,
        huge_pages=_huge_pages(view, placed) or None,
        asked=f"{_amount(placed.asked)}{_source(placed)}",
        got=_got(view, placed),
        room=describe_room(view, placed.container.pod.id) if placed.grant.tenant else None,
        quota=NO_QUOTA if view.holding(placed).unthrottled else None,
        partition=f"no kernel partition: {reason}"
        if reason and (placed.grant.own or itself is not None)
        else UNSET,
        alone=_not_alone(view, placed, reader),
        recent=recent,
        better=tuple(_better(view, placed, devices)),
    )


def _not_alone(view: NodeView, placed: Placed, reader: str | None) -> str | UnsetType:
    """Name the other containers that may run on its exclusive CPUs; UNSET if there are none.

    With pinCPU off no CPUs are set, and another line says so.
    """
    if not (placed.grant.own and view.layout.settings.pin_cpu):
        return UNSET
    found = [each for each in list_company(view) if each.container_id == placed.container.id]
    beside = [
        each.beside if reader is None else f"{counted(len(each.others), 'container')} not pinned"
        for each in found
        if each.others
    ]
    return f"not alone: {beside[0]}" if beside else UNSET


def describe_room(view: NodeView, pod_id: str) -> str:
    """Describe the slices of a pod's room: `room of 8: 6 main, 2 shared by log, mesh`."""
    whole = view.rooms[pod_id].grant.exclusive
    tenants = [
        each
        for each in view.placed.values()
        if each.container.pod.id == pod_id and each.grant.tenant
    ]
    parts = [
        f"{len(each.grant.exclusive)} {each.container.name}"
        for each in tenants
        if each.grant.exclusive
    ]
    rest = whole - CPUSet.union(each.grant.exclusive for each in tenants)
    sharers = ", ".join(each.container.name for each in tenants if each.grant.rest)
    if rest:
        parts.append(f"{len(rest)} shared by {sharers}" if sharers else f"{len(rest)} unused")
    return f"room of {len(whole)}: {', '.join(parts)}"


def _unset(view: NodeView, placed: Placed) -> bool:
    """Whether its CPUs are decided but not set."""
    return "cpus" in view.decided_only(placed)


def _cpus_left(view: NodeView, placed: Placed, reader: str | None) -> str:
    left = "left as they are"
    if not _unset(view, placed):
        return left
    decided = f"{view.holding(placed).cpus}, {_cpus_are(view, placed, reader)}"
    return f"{left}, because pinCPU is false; decided: {decided}"


def _memory_left(layout: Layout, placed: Placed) -> str:
    left, mems = "left to the kernel", placed.grant.mems
    if layout.settings.pin_memory or placed.request.memory_preserve:
        return left
    decided = f"{'node' if len(mems) == 1 else 'nodes'} {mems}, {_memory_kinds(layout, mems)}"
    return f"{left}, because pinMemory is false; decided: {decided}"


def _cpus_are(
    view: NodeView, placed: Placed, reader: str | None, partition: Partition | None = None
) -> str:
    grant = placed.grant
    cpus = view.cpus(placed)
    if grant.sort is Sort.RESERVED:
        return f"reserved, {_sharers(view, placed, cpus, reader)}"
    if grant.sort is Sort.PRESERVE:
        return "all that it had, but for the exclusive CPUs of others"
    kind = "isolated" if grant.isolated else "exclusive"
    kind = "of its claims" if grant.claimed else kind
    if partition is not None:
        kind += f" against the whole machine (kernel partition, {partition.kind})"
    own = f"{kind}, {_place(view.layout, grant.own)}"
    if placed.container.state is ContainerState.STOPPED:
        own += "; it has ended, and keeps them until its cgroup is no kernel partition"
    if not (grant.shares or grant.rest):
        return own
    shared = cpus - grant.own
    others = _sharers(view, placed, shared, reader)
    if not grant.own:
        return f"{others}, {_place(view.layout, shared)}"
    return f"{grant.own} {own}; {shared} {others}"


def list_neighbours(view: NodeView, placed: Placed, cpus: CPUSet = EMPTY) -> list[Placed]:
    """Return the other containers that may run on *cpus*, by default all CPUs of this one."""
    cpus = cpus or _seen_cpus(view, placed)
    return [
        other
        for other in view.placed.values()
        if other is not placed and not _seen_cpus(view, other).isdisjoint(cpus)
    ]


def _seen_cpus(view: NodeView, placed: Placed) -> CPUSet:
    return view.sent[placed.container.id][0] or view.holding(placed).cpus


def _sharers(view: NodeView, placed: Placed, cpus: CPUSet, reader: str | None) -> str:
    """Name the containers that share *cpus*, those that ask for most first."""
    others = sorted(
        list_neighbours(view, placed, cpus),
        key=lambda each: (-each.asked.milli, each.container.full_name),
    )
    if not others:
        return "shared with no other container now"
    known = [each for each in others if reader in {None, each.container.pod.namespace}]
    if not known:
        return f"shared with {counted(len(others), 'other container')}"
    named = [
        f"{each.container.full_name} ({_amount(each.asked)})" for each in known[:_MOST_SHARERS]
    ]
    more = len(others) - len(named)
    return f"shared with {', '.join(named)}{f' and {more} more' if more else ''}"


def _away(layout: Layout, cpus: CPUSet, mems: CPUSet) -> str:
    """Return the number of *cpus* without any of *mems* beside them, as text; empty for none."""
    nodes = [node.cpus & cpus for node in layout.machine.nodes if not node.cpus.isdisjoint(cpus)]
    away = sum(len(each) for each in nodes if layout.memory.beside(each).isdisjoint(mems))
    return f"{away} of {counted(len(cpus), 'CPU')} are away from it" if mems and away else ""


def _place(layout: Layout, cpus: CPUSet) -> str:
    """Return how many cores and threads *cpus* are, and in which pool they lie together."""
    cores = [core.cpus & layout.machine.online for core in layout.machine.cores]
    whole = [core for core in cores if core and core <= cpus]
    rest = len(cpus - CPUSet.union(whole))
    parts = [counted(len(whole), "core")] * bool(whole)
    parts += [counted(rest, "thread")] * bool(rest)
    pool = _narrowest(layout, cpus)
    return f"{' and '.join(parts)} on {pool.name}"


def _narrowest(layout: Layout, cpus: CPUSet) -> Pool:
    around = [pool for pool in layout.tree.pools if cpus <= pool.cpus]
    return max(around, key=lambda pool: pool.depth, default=layout.tree.top)


def _memory_kinds(layout: Layout, mems: CPUSet) -> str:
    kinds = (str(kind) for kind, nodes in layout.tree.top.memory.items() if mems & nodes)
    return " and ".join(sorted(kinds))


def _huge_pages(view: NodeView, placed: Placed) -> str:
    """Describe booked huge pages by memory node: `8 × 1Gi on node 1`."""
    booking, map_ = view.bookings.get(placed.container.id), view.layout.memory
    parts = []
    for size, amount in booking.request.hugepages if booking is not None else ():
        nodes = booking.zone & map_.with_pages(size) if booking is not None else EMPTY
        where = f"{'node' if len(nodes) == 1 else 'nodes'} {nodes}" if nodes else "no node"
        parts.append(f"{format_pages(size, amount)} on {where}")
    return ", ".join(parts)


def _amount(request: Request) -> str:
    if request.sort is Sort.PRESERVE:
        return "no pinning"
    return count_cpus(request.milli) if request.milli else "no CPU"


def _source(placed: Placed) -> str:
    """Name the source of the request; empty for an ordinary estimate."""
    if placed.request.sort is Sort.PRESERVE:
        return ""
    match placed.request.steering.source:
        case AmountSource.ANNOTATION:
            return ", by its annotation"
        case AmountSource.OBJECT:
            return ", by the pod's object"
        case AmountSource.ESTIMATE:
            return ", by estimate" if placed.container.pod_level else ""


def _got(view: NodeView, placed: Placed) -> str:
    """Describe the grant, and whether it is in force."""
    granted = _granted(placed, view.holding(placed).cpus)
    if placed.grant.exclusive and (why := _why_not_isolated(view, placed)):
        granted = f"{granted}, not isolated: {why}"
    return f"nothing; decided: {granted}" if _unset(view, placed) else granted


def _why_not_isolated(view: NodeView, placed: Placed) -> str:
    """Return why exclusive CPUs are not isolated; empty if they may be, or nothing asks for it."""
    if view.layout.capacity.isolated:
        return placed.request.steering.because
    container = placed.container
    asked = preferences(container.pod.annotations, container.name).prefer_isolated
    return "the kernel of this node isolates no CPUs" if asked else ""


def _granted(placed: Placed, seen: CPUSet) -> str:
    """Describe the grant, and why it differs from the request."""
    grant, request = placed.grant, placed.asked
    because = f": {request.steering.because}" if request.steering.because else ""
    match grant.sort:
        case Sort.PRESERVE:
            return f"preserved{because}"
        case Sort.RESERVED:
            return f"{format_cpu(grant.shared)} reserved{because}"
        case Sort.NORMAL:
            pass
    own = len(grant.exclusive)
    kind = "isolated" if grant.isolated else "exclusive"
    parts = [f"{own} {kind}"] * bool(own)
    if placed.container.claims:
        parts.append(f"{len(grant.claimed)} of its claims")
    if grant.rest:
        parts.append(f"a share of {counted(len(grant.rest), 'CPU')} of its pod's room")
    if grant.shares:
        parts.append(f"{format_cpu(grant.shared)} shared" if grant.shared else "shared CPUs")
    text = " and ".join(parts)
    if lacks_cpus(placed.explanation, grant):
        return f"{text}: no room for {describe_cpus(request)}"
    if own > request.exclusive:
        text = f"{text}: whole cores"
    if own and seen and len(seen & grant.exclusive) < own:
        text = f"{text}, sees {len(seen & grant.exclusive)}: hide-hyperthreads"
    return text if own or grant.tenant or placed.container.claims else f"{text}{because}"


def _better(view: NodeView, placed: Placed, devices: tuple[HintReport, ...]) -> Iterator[str]:
    """Suggest improvements of its place."""
    if placed.container.claims:  # nothing of it is ours to choose
        return
    yield from _nearer(view, placed, devices)
    if split := describe_misfit(view, placed):
        yield f"{split}{_closer(placed.explanation)}"


def _nearer(view: NodeView, placed: Placed, devices: tuple[HintReport, ...]) -> Iterator[str]:
    """Explain distant devices: a shortage at placement, or an annotation that would help."""
    request, own = placed.request, placed.grant.exclusive
    places = Counter(view.layout.topology_hints.localities(request.steering.hints))
    spreads = 0 < places.total() <= request.exclusive
    share = per_place(request.exclusive, places.total()) if spreads else 0
    short = [
        f"it has no CPUs beside {each.name}{lack}"
        for each in devices
        if not each.granted
        and (lack := _lack(placed.explanation, each.cpus, 1000 * share * places[each.cpus]))
    ]
    yield from short
    free = (view.free | own) & view.layout.tree.pools[placed.grant.pool].cpus
    if (
        spreads
        and not short
        and not request.steering.pick_by_hints
        and any(own.isdisjoint(each) for each in places)
        and all(len(each & free) >= share * count for each, count in places.items())
    ):
        yield f"to take CPUs beside each device, annotate the pod: {_SPREAD}"


def _lack(explanation: Explanation, near: CPUSet, milli: int) -> str:
    """Return how much of *milli* the smallest pool with *near* lacked, of 0 how much of all of it.

    Empty where it lacked nothing.
    """
    table, request, tree = explanation.table, explanation.compared, explanation.tree
    if table is None or request is None or not (near := near & tree.top.cpus):
        return ""
    pool = min((each for each in tree.pools if near <= each.cpus), key=lambda each: len(each.cpus))
    left = request.milli - table.missing(pool.id)
    return _was_short(pool, (milli or request.milli) - left)


def _was_short(pool: Pool, milli: int) -> str:
    return f": {pool.name} was {count_cpus(milli)} short when it was placed" if milli > 0 else ""


def _closer(explanation: Explanation) -> str:
    """Return what kept it from the narrower pool that came closest, where that was CPU."""
    table, pools = explanation.table, explanation.tree.pools
    if table is None or explanation.pool is None:
        return ""
    depth = pools[explanation.pool].depth
    short = {
        pool.id: table.missing(pool.id)
        for pool in pools
        if pool.depth > depth and table.missing(pool.id)
    }
    if not short:
        return ""
    closest = min(short, key=lambda pool: (short[pool], pool))
    return _was_short(pools[closest], short[closest])
