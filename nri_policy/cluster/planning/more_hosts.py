"""How many more hosts would make a group fit: copies of a host that is there, tried offline.

A copy has the labels, taints, amounts and zones of its host, and the pods that would come to it at
once: those of DaemonSets, and mirror pods. Hosts of each kind are tried in the domains that have
most room for the group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from heapq import nsmallest

from msgspec.structs import replace

from nri_policy.cluster.engine.bisection import smallest_fitting_up_to
from nri_policy.cluster.engine.engine import Engine
from nri_policy.cluster.engine.state.cluster_state import ClusterState
from nri_policy.cluster.engine.unit_capacity import UnitCapacity, pods_of
from nri_policy.cluster.objects.node import HOSTNAME
from nri_policy.cluster.offline import engine_of
from nri_policy.cluster.planning.changes import COMES_BACK, SuggestedChange
from nri_policy.cluster.planning.queue_position import without_reserved
from nri_policy.cluster.requests.group import PlacementGroup
from nri_policy.cluster.requests.request import Unplaceable, units_of
from nri_policy.cluster.snapshot import ClusterSnapshot

MAX_HOSTS = 256  # of a kind
_MAX_MODELS = 8  # hosts of which copies are tried


def find_more_hosts(
    engine: Engine, group: PlacementGroup, snapshot: ClusterSnapshot
) -> list[SuggestedChange]:
    """Return the fewest hosts that would make *group* fit, of one kind; nothing if none would.

    *engine* knows what is in *snapshot*. Nothing changes. Raises DocumentError.
    """
    most = min(pods_of(group), MAX_HOSTS)
    copies = {
        name: [f"{name}+{number}" for number in range(most)]
        for name in _models(engine.state, group)
    }
    if not copies:
        return []
    larger = engine_of(_with_copies(snapshot, copies), engine.state.settings)
    trial = without_reserved(larger, group)
    every = {name for names in copies.values() for name in names}
    best: SuggestedChange | None = None
    for like, names in copies.items():

        def fits(number: int, names: Sequence[str] = names) -> bool:
            others = trial.without_nodes(every - {*names[:number]})
            return bool(others.place(group, explain=False).assignments)

        number = smallest_fitting_up_to(most if best is None else best.hosts - 1, fits)
        if number:
            best = SuggestedChange(hosts=number, like=like)
    return [] if best is None else [best]


def _models(state: ClusterState, group: PlacementGroup) -> list[str]:
    """Return hosts of different kinds, or in different domains, those with most room first."""
    found: dict[Hashable, tuple[int, str]] = {}
    for unit in units_of(group):
        with suppress(Unplaceable):
            rooms = UnitCapacity(state, unit)
            level = min(rooms.plan.level, rooms.host_level)
            domains = rooms.tree.shape.domains
            room = Counter[int]()
            for name, leaf in rooms.leaf.items():
                room[domains.above(leaf, level)] += rooms.pods(name)
            asked = unit.workers.amounts
            for name, leaf in rooms.leaf.items():
                node = state.nodes[name]
                if all(node.allocatable.get(each, 0) >= asked[each] for each in asked):
                    domain = domains.above(leaf, level)
                    kind = level, domain, (*sorted(node.allocatable.items()),), node.taints
                    found[kind] = min(found.get(kind, (0, name)), (-room[domain], name))
    return [name for _, name in nsmallest(_MAX_MODELS, {*found.values()})]


def _with_copies(snapshot: ClusterSnapshot, copies: Mapping[str, Sequence[str]]) -> ClusterSnapshot:
    """Return *snapshot* with copies of hosts, by the names that these have."""
    nodes = [
        replace(node, name=name, labels={**node.labels, HOSTNAME: name})
        for node in snapshot.nodes
        for name in copies.get(node.name, ())
    ]
    zones = [
        replace(report.without_usage(), node=name)
        for report in snapshot.zones
        for name in copies.get(report.node, ())
    ]
    pods = [
        replace(pod, name=f"{pod.name}+{name}", node=name)
        for pod in snapshot.pods
        if not pod.finished and any(owner.kind in COMES_BACK for owner in pod.owners)
        for name in copies.get(pod.node, ())
    ]
    return replace(
        snapshot,
        nodes=(*snapshot.nodes, *nodes),
        zones=(*snapshot.zones, *zones),
        pods=(*snapshot.pods, *pods),
    )
