"""The engine of a cluster with nodes that align pods to one NUMA node: groups go where zones hold.

Hosts count by total amounts, unless requests name zones. The extender and the kubelet also look
into the zones of a node that aligns pods. So what they would refuse is found after a placement by
totals, which most groups keep. If something would be refused, the group is placed again, with a
limit for each host: as many pods of a pod set as its zones take beside those of the pod sets before
it, workers also beside their leader. A group that no placement is left for is refused, and told
what zones lack.

Whoever asks where groups would go, or what would make them fit, asks this engine, or a fork of it:
zones count as they are, without the pods of groups that are out and of pods that have ended there,
or with nothing in use.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from itertools import count
from types import MappingProxyType
from typing import Self

from msgspec.structs import replace

from nri_policy.cluster.engine.engine import Engine
from nri_policy.cluster.engine.pod_set_engine import is_replaced
from nri_policy.cluster.engine.search.spread_assignment import assignment
from nri_policy.cluster.numa.host_zones import (
    ByHost,
    HostRefusal,
    HostZones,
    Kinds,
    PodsOnHost,
    without,
)
from nri_policy.cluster.numa.promises import LiveZones
from nri_policy.cluster.numa.zone_refusal import Refusals, describe, refusal
from nri_policy.cluster.objects.assignment import Assignment
from nri_policy.cluster.objects.metadata import Key
from nri_policy.cluster.objects.node import HOSTNAME, ClusterNode
from nri_policy.cluster.objects.pod import Pod, PodSpec
from nri_policy.cluster.objects.settings import ZONE_LEVEL, ClusterSettings
from nri_policy.cluster.requests.group import GroupStatus, PlacementGroup
from nri_policy.cluster.requests.request import Unit, units
from nri_policy.cluster.view import ClusterView
from nri_policy.cluster.zones.numa_node import NODE_TYPE, zone_id
from nri_policy.cluster.zones.numa_request import NumaRequest, numa_request
from nri_policy.cluster.zones.zone import NodeZones

_BY_ZONES = "nodes that align pods to one NUMA node count by their zones"
MAX_TRIES = 10  # to spread pod sets that are in each other's way

_NOTHING: Mapping[str, int] = MappingProxyType({})
_OwnLimits = dict[str | tuple[str, ...], dict[str, int]]  # `Limits` that go on being lowered


class AlignedEngine(Engine):
    """An engine that counts the zones of nodes that align pods."""

    def __init__(
        self, settings: ClusterSettings, view: ClusterView, zones: Callable[[], LiveZones]
    ) -> None:
        """Place groups on the nodes of *view*, whose *zones* are asked for when they matter."""
        super().__init__(settings, view)
        self.zones = zones
        self._kinds = Kinds()
        self._hosts: HostZones | None = None  # see `host_zones`
        self._seen = 0  # generation of the zones in `_hosts`
        self._moved: dict[Key, None] = {}  # groups with changed places, to be read again
        self._empty = HostZones(self._kinds, zones, view, empty=True)
        self._emptied: HostZones | None = None  # zones of an engine made by `emptied`
        self._origin: AlignedEngine | None = None  # of a fork
        self._other_groups: dict[Key, PlacementGroup | None] = {}  # in a fork; None: it went
        self._ended: list[Pod] = []  # in a fork

    def place(
        self,
        group: PlacementGroup,
        failures: Mapping[str, int] = _NOTHING,
        more: Mapping[str, int] = _NOTHING,
        *,
        explain: bool = True,
    ) -> GroupStatus:
        """Return the status of *group* as `Engine.place` does, on hosts whose zones hold its pods.

        One that is refused for zones has the condition `ZONES_REFUSE`.
        """
        status = super().place(group, failures, more, explain=explain)
        if not status.assignments or not self._may_refuse():
            return status
        keeps = is_replaced(group, more)
        if not keeps and self._has_places(group):
            made = self.fork()
            made.take_out([*self.out, _key(group)])
            return made.place(group, failures, more, explain=explain)
        before = self._by_host(group) if keeps else {}
        first = self._find_refused(before, self._by_host(replace(group, status=status)))
        if not first:
            return status
        limited = self.with_limits(self._limits_of_group(group))
        found = Engine.place(limited, group, failures, more, explain=explain)
        if found.assignments:
            after = self._by_host(replace(group, status=found))
            if not self._find_refused(before, after):
                return found
        hosts, empty = self._by_host(replace(group, status=status)), self._empty
        small = {host: empty.refused(host, hosts[host]) for host in first}
        message = "" if found.assignments else found.message
        return refusal(message, describe(status, first, small))

    def _spread_group(
        self, group: PlacementGroup, failures: Mapping[str, int]
    ) -> dict[str, tuple[dict[str, int], int]]:
        """Return where new pods go, as the engine does, on hosts whose zones hold them."""
        found = super()._spread_group(group, failures)
        if not self._may_refuse():
            return found
        limits: _OwnLimits = {}
        for tries in count():
            assignments = [assignment(name, new, self.nodes) for name, (new, _) in found.items()]
            status = GroupStatus(state="Placed", assignments=assignments)
            after = self._by_host(replace(group, status=status))
            refused = self._find_refused({}, after)
            if not refused:
                break
            limits = limits or self._limits_of_each(group)
            self._lower(limits, after, refused, close=tries > MAX_TRIES)
            found = Engine._spread_group(self.with_limits(limits), group, failures)  # noqa: SLF001 - another engine
        return found

    def _limits_of_each(self, group: PlacementGroup) -> _OwnLimits:
        """Return how many pods of each pod set hosts take, by itself."""
        pods = [
            PodsOnHost(each.name, self._request(each.template.spec), None, each.count)
            for each in group.pod_sets
        ]
        return {each.pod_set: self.host_zones().limits(each) for each in pods}

    def count_by_zones(self, group: PlacementGroup, status: GroupStatus) -> GroupStatus:
        """Return the *status* of a new group; if hosts have too little in all, as zones count.

        This is slower than a placement: only for reports to people.
        """
        if status.assignments or status.conditions or not self._may_refuse():
            return status
        found = Engine.place(self.with_limits(self._limits_of_group(group)), group)
        if found.message == status.message:
            return status
        return replace(status, message=f"{found.message}; {_BY_ZONES}")

    def check(self, group: PlacementGroup) -> Refusals:
        """Return what nodes refuse of a group's pods at the places that it has.

        What fills zones now may be these pods, so that zones count as empty.
        """
        empty = self._empty
        found = {
            host: empty.refused(host, pods)
            for host, pods in self._by_host(group).items()
            if host in empty.aligned_hosts()
        }
        return describe(group.status, found, found)

    def too_small(self, spec: PodSpec) -> dict[str, str]:
        """Return the nodes that refuse a pod of *spec* even if they are empty, and why."""
        pod = PodsOnHost("", self._request(spec), None, 1)
        empty = self._empty
        return {
            name: refused[""].why
            for host, names in empty.aligned_hosts().items()
            if (refused := empty.refused(host, [pod]))
            for name in names
        }

    def limits_of(self, unit: Unit) -> _OwnLimits:
        """Return how many new pods of a unit nodes take that may refuse some for their zones."""
        if not self._may_refuse():
            return {}
        hosts = self.host_zones()
        workers, *leader = self._pods_of(unit)
        limits: _OwnLimits = {}
        for pods in (workers, *leader):
            limits[pods.pod_set] = hosts.limits(pods)
        if leader:
            limits[unit.names] = hosts.limits_beside(leader[0], workers)
        return limits

    def _beside(self, group: PlacementGroup, unit: Unit, taken: Mapping[str, Assignment]) -> Self:
        """Return what places a unit by zones beside new assignments of others, which are taken."""
        if not taken or not self._limits:
            return self
        hosts = self.host_zones()
        aligned = hosts.aligned_hosts()
        limits = {name: dict(each) for name, each in self._limits.items()}
        workers, *leader = self._pods_of(unit)
        status = GroupStatus(assignments=[*taken.values()])
        for host, others in self._by_host(replace(group, status=status)).items():
            for name in aligned.get(host, ()):
                for pods in (workers, *leader):
                    most = min(limits[pods.pod_set][name], pods.count)
                    number = hosts.number_beside(host, others, replace(pods, count=most))
                    limits[pods.pod_set][name] = number
                if leader and limits[leader[0].pod_set][name]:
                    some = replace(workers, count=limits[workers.pod_set][name])
                    number = hosts.number_beside(host, [*others, *leader], some)
                    limits[unit.names][name] = number
        return self.with_limits(limits)

    def _limits_of_group(self, group: PlacementGroup) -> _OwnLimits:
        limits: _OwnLimits = {}
        for unit in units(group):
            limits |= self.limits_of(unit)
        return limits

    def fork(self) -> Self:
        """Return a fork for trials, as `Engine.fork` does."""
        made = super().fork()
        made._origin = self._origin or self  # noqa: SLF001 - another engine
        made._hosts = None  # noqa: SLF001 - another engine
        made._other_groups, made._ended = {**self._other_groups}, [*self._ended]  # noqa: SLF001 - another engine
        return made

    def without_usage(self, only: Collection[str] | None = None) -> Self:
        """Return one with nothing in use, also in zones, as `Engine.without_usage` does."""
        made = super().without_usage(only)
        made._emptied = self._empty  # noqa: SLF001 - another engine
        return made

    def emptied(
        self, staying: Iterable[PlacementGroup], only: Collection[str] | None = None
    ) -> Self:
        """Return one without what ends by itself, also in zones, as `Engine.emptied` does."""
        staying = [*staying]
        made = super().emptied(staying, only)
        made._emptied = self._empty  # noqa: SLF001 - another engine
        if self._may_refuse():
            made._emptied = self._zones_with(staying, only)  # noqa: SLF001 - another engine
        return made

    def _zones_with(
        self, staying: Iterable[PlacementGroup], only: Collection[str] | None
    ) -> HostZones:
        """Return the zones of hosts with nothing in use but what `emptied` leaves there."""
        places: dict[Key, Mapping[str, Sequence[PodsOnHost]]] = {
            _key(each): self._by_host(each) for each in staying
        }
        names = self.view.zones.keys() if only is None else self.view.zones.keys() & {*only}
        for node in [self.nodes[name] for name in names if name in self.nodes]:
            host = node.labels.get(HOSTNAME, node.name)
            for key, pod in self.zones().bound_on(node.name):
                if not pod.spec.ends and self.is_bound(key):
                    pods = PodsOnHost("", self._request(pod.spec), pod.zone, 1)
                    places["", "/".join(key)] = {host: [pods]}
        return self._empty.fork(places, {})

    def configure(self, settings: ClusterSettings) -> None:
        """Go on with other settings, by which pods may ask for something else of zones."""
        super().configure(settings)
        self._hosts = None

    def change_node(self, old: ClusterNode | None, new: ClusterNode | None) -> None:
        """Take in that a node changed, came or went."""
        super().change_node(old, new)
        self._see({each.labels.get(HOSTNAME, each.name) for each in (old, new) if each})

    def change_zones(self, node: str, old: NodeZones | None, new: NodeZones | None) -> None:
        """Take in what a node's zones have left, or that its report went."""
        super().change_zones(node, old, new)
        known = self.nodes.get(node)
        self._see([node if known is None else known.labels.get(HOSTNAME, node)])

    def _see(self, hosts: Iterable[str]) -> None:
        for each in (self._empty, *([] if self._hosts is None else [self._hosts])):
            for host in hosts:
                each.see(host)

    def set_group(self, group: PlacementGroup) -> None:
        """Take in that a group came or changed; its assignments are in use."""
        if self._origin is not None:
            super().set_group(group)
            self._other_groups[_key(group)] = group
            self._hosts = None
            return
        super().set_group(group)
        self._moved[_key(group)] = None

    def remove_group(self, namespace: str, name: str) -> None:
        """Remove a group; its running pods then count like pods without a group."""
        super().remove_group(namespace, name)
        if self._origin is not None:
            self._other_groups[namespace, name] = None
            self._hosts = None
        else:
            self._moved[namespace, name] = None

    def _change_member(self, key: Key, pod: Pod, times: int) -> None:
        super()._change_member(key, pod, times)
        self._moved[key] = None

    def take_out(self, groups: Collection[Key]) -> None:
        """Have just these groups leave their places in this fork, with their pods."""
        super().take_out(groups)
        self._hosts = None

    def end(self, pod: Pod) -> None:
        """Have a bound pod of no group end in this fork."""
        super().end(pod)
        self._ended.append(pod)
        self._hosts = None

    def _may_refuse(self) -> bool:
        """Whether a node may refuse a pod for its zones, as far as is known without a look."""
        return bool(self.view.zones or self.view.stale)

    def _has_places(self, group: PlacementGroup) -> bool:
        known = self.groups.get(_key(group))
        return known is not None and bool(known.status.assignments) and _key(group) not in self.out

    def host_zones(self) -> HostZones:
        """Return zones of hosts in the state of this engine."""
        if self._emptied is not None:
            return self._emptied
        zones = self.zones()
        if self._origin is not None:
            origin = self._origin.host_zones()
            if self._hosts is None or self._seen != zones.fits.generation:
                self._hosts = self._fork_of(origin)
        else:
            self._kinds.tidy()
            if self._hosts is None:
                self._hosts = HostZones(self._kinds, self.zones, self.view)
                self._moved |= dict.fromkeys(self.groups)
            elif self._seen != zones.fits.generation:
                for name in zones.fits.changed_since(self._seen):
                    self._hosts.forget(self.nodes[name].labels.get(HOSTNAME, name))
            for key in self._moved:
                group = self.groups.get(key)
                self._hosts.set_places(key, {} if group is None else self._open_places(group))
            self._moved.clear()
        self._seen = zones.fits.generation
        return self._hosts

    def _fork_of(self, origin: HostZones) -> HostZones:
        places: dict[Key, ByHost] = {
            key: self._open_places(each) if each is not None and key not in self.out else {}
            for key, each in (dict.fromkeys(self.out) | self._other_groups).items()
        }
        ended: dict[str, list[Pod]] = {}
        members = (pod for key in self.out for pod in self._usages.members.get(key, {}).values())
        for pod in (*self._ended, *(each for each in members if not each.finished)):
            ended.setdefault(pod.node, []).append(pod)
        return origin.fork(places, ended)

    def _find_refused(self, before: ByHost, after: ByHost) -> dict[str, Mapping[str, HostRefusal]]:
        """Return by host what is refused of the pods that come there, by pod set."""
        hosts = self.host_zones()
        aligned = hosts.aligned_hosts()
        return {
            host: refused
            for host, pods in after.items()
            if host in aligned
            and (new := _new_pods(before, host, pods))
            and (refused := hosts.refused(host, new))
        }

    def _lower(
        self,
        limits: _OwnLimits,
        after: ByHost,
        refused: Mapping[str, Mapping[str, HostRefusal]],
        *,
        close: bool,
    ) -> None:
        """Have hosts get no more pods of a pod set than they took beside the others.

        Or none at all, to *close* them.
        """
        for host, found in refused.items():
            came = Counter[str]()
            for pods in after[host]:
                came[pods.pod_set] += pods.count
            for pod_set, each in found.items():
                for name in self.host_zones().aligned_hosts()[host]:
                    limits[pod_set][name] = 0 if close else came[pod_set] - each.pods

    def _open_places(self, group: PlacementGroup) -> ByHost:
        """Return the places of a group, by host, without as many as it has pods there."""
        running = self.running_of(_key(group))
        found = {}
        for host, pods in self._by_host(group).items():
            there = sum(running[node.name] for node in self.view.on_host(host))
            if left := without(pods, Counter({None: there}), lambda _: None):
                found[host] = left
        return found

    def _by_host(self, group: PlacementGroup) -> ByHost:
        """Return the places of a group, by host."""
        requests = {each.name: self._request(each.template.spec) for each in group.pod_sets}
        found: dict[str, list[PodsOnHost]] = {}
        for each in group.status.assignments:
            request = requests.get(each.pod_set)
            if request is None or HOSTNAME not in each.levels:
                continue
            at = each.levels.index(HOSTNAME)
            in_zones = each.levels[-1] == ZONE_LEVEL + NODE_TYPE
            for place in each.domains:
                zone = zone_id(place.values[-1]) if in_zones else None
                pods = PodsOnHost(each.pod_set, request, zone, place.count)
                found.setdefault(place.values[at], []).append(pods)
        return found

    def _pods_of(self, unit: Unit) -> list[PodsOnHost]:
        return [
            PodsOnHost(each.name, self._request(each.template.spec), None, each.count)
            for each in unit.pod_sets
        ]

    def _request(self, spec: PodSpec) -> NumaRequest:
        return numa_request(spec, strict=self.settings.extender.strict)


def _key(group: PlacementGroup) -> Key:
    return group.namespace, group.name


def _new_pods(before: ByHost, host: str, pods: Iterable[PodsOnHost]) -> list[PodsOnHost]:
    """Return *pods* of a group on a host without those that had their places there *before*."""
    had = Counter[Hashable]()
    for each in before.get(host, ()):
        had[each.pod_set, each.zone] += each.count
    return without(pods, had, lambda each: (each.pod_set, each.zone))
