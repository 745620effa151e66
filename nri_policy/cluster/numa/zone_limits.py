"""Host limits by the zones of nodes that align pods to one NUMA node: groups go where zones hold.

Hosts count by total amounts, unless requests name zones. The extender and the kubelet also look
into the zones of a node that aligns pods. So what they would refuse is found after a placement by
totals, which most groups keep. If something would be refused, the group is placed again, with a
limit for each host: as many pods of a pod set as its zones take beside those of the pod sets before
it, workers also beside their leader. A group that no placement is left for is refused, and told
what zones lack.

Trials have limits of their own: zones count as they are, without the pods of groups that are out
and of pods that have ended there, or with nothing in use.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from typing import Self

from msgspec.structs import replace

from nri_policy.cluster.engine.state.group_usages import GroupUsages
from nri_policy.cluster.engine.state.host_limits import (
    HostLimits,
    Limits,
    OwnLimits,
    Refusals,
    RefusedByHost,
)
from nri_policy.cluster.numa.host_zones import ByHost, HostZones, Kinds, PodsOnHost, subtract_pods
from nri_policy.cluster.numa.promises import LiveZones
from nri_policy.cluster.numa.zone_refusal import describe_refusal, make_refusal
from nri_policy.cluster.objects.assignment import Assignment
from nri_policy.cluster.objects.metadata import Key
from nri_policy.cluster.objects.pod import Pod, PodSpec
from nri_policy.cluster.objects.settings import ZONE_LEVEL, ClusterSettings
from nri_policy.cluster.requests.group import GroupStatus, PlacementGroup
from nri_policy.cluster.requests.request import Unit
from nri_policy.cluster.zones.numa_node import NODE_TYPE, zone_id
from nri_policy.cluster.zones.numa_request import NumaRequest, make_numa_request
from nri_policy.foundation.copies import copy_with


class ZoneLimits(HostLimits):
    """How many pods hosts take for their zones."""

    def __init__(
        self, zones: Callable[[], LiveZones], settings: ClusterSettings, usages: GroupUsages
    ) -> None:
        """Ask for *zones* when they matter, beside the open places of the groups in *usages*."""
        self.zones = zones
        self._strict = settings.extender.strict
        self._usages, self._view = usages, usages.view
        self._kinds = Kinds()
        self._empty = HostZones(self._kinds, zones, self._view, empty=True)
        self._emptied: HostZones | None = None  # of limits made by `emptied`
        self._hosts: HostZones | None = None  # see `host_zones`
        self._seen = 0  # generation of the zones in `_hosts`
        self._changed: dict[
            Key, None
        ] = {}  # groups to read again; in a fork, all since it was made
        self._origin: ZoneLimits | None = None  # of a fork
        self._gone: tuple[object, object] = (None, None)  # in a fork's `_hosts`: groups and pods

    def may_refuse(self) -> bool:
        """Whether a node may refuse a pod for its zones, as far as is known without a look."""
        return bool(self._view.zones or self._view.stale)

    def of(self, unit: Unit) -> OwnLimits:
        """Return how many new pods of a unit nodes take that may refuse some for their zones."""
        if not self.may_refuse():
            return {}
        hosts = self.host_zones()
        workers, *leader = self._pods_of(unit)
        limits: OwnLimits = {}
        for pods in (workers, *leader):
            limits[pods.pod_set] = hosts.limits(pods)
        if leader:
            limits[unit.names] = hosts.limits_beside(leader[0], workers)
        return limits

    def beside(
        self, limits: Limits, group: PlacementGroup, unit: Unit, taken: Mapping[str, Assignment]
    ) -> Limits:
        """Return the *limits* of a group's unit beside new assignments of the same group."""
        hosts = self.host_zones()
        aligned = hosts.aligned_hosts()
        found = {name: dict(each) for name, each in limits.items()}
        workers, *leader = self._pods_of(unit)
        status = GroupStatus(assignments=[*taken.values()])
        for host, others in self._by_host(replace(group, status=status)).items():
            for name in aligned.get(host, ()):
                for pods in (workers, *leader):
                    own = found.setdefault(pods.pod_set, {})
                    some = replace(pods, count=min(own.get(name, pods.count), pods.count))
                    own[name] = hosts.number_beside(host, others, some)
                if leader and found[leader[0].pod_set][name]:
                    some = replace(workers, count=found[workers.pod_set][name])
                    number = hosts.number_beside(host, [*others, *leader], some)
                    found.setdefault(unit.names, {})[name] = number
        return found

    def find_refused(
        self, placed: PlacementGroup, kept: PlacementGroup | None = None
    ) -> RefusedByHost:
        """Return what nodes refuse of a *placed* group's pods, but for those in *kept* places."""
        hosts = self.host_zones()
        aligned = hosts.aligned_hosts()
        before = {} if kept is None else self._by_host(kept)
        return {
            host: refused
            for host, pods in self._by_host(placed).items()
            if host in aligned
            and (new := _new_pods(before, host, pods))
            and (refused := hosts.refused(host, new))
        }

    def refusal(self, placed: PlacementGroup, refused: RefusedByHost, message: str) -> GroupStatus:
        """Return the status of a group that zones refuse; it has the condition `ZONES_REFUSE`."""
        hosts, empty = self._by_host(placed), self._empty
        small = {host: empty.refused(host, hosts[host]) for host in refused}
        return make_refusal(message, describe_refusal(placed.status, refused, small))

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
        return describe_refusal(group.status, found, found)

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

    def configure(self, settings: ClusterSettings) -> None:
        """Go on with other settings, by which pods may ask for something else of zones."""
        self._strict = settings.extender.strict
        self._hosts = None

    def change_hosts(self, hosts: Collection[str]) -> None:
        """Take in that nodes of *hosts* changed, or what they report."""
        for each in (self._empty, *([] if self._hosts is None else [self._hosts])):
            for host in hosts:
                each.see(host)

    def change_group(self, key: Key) -> None:
        """Take in that a group's places changed, or its running pods."""
        self._changed[key] = None
        if self._origin is not None:
            self._hosts = None

    def fork(self, usages: GroupUsages) -> Self:
        """Return those of a fork for trials, with its groups."""
        if self._emptied is not None:
            return copy_with(self, _usages=usages)
        changed = {} if self._origin is None else {**self._changed}
        return copy_with(
            self, _usages=usages, _origin=self._origin or self, _hosts=None, _changed=changed
        )

    def emptied(
        self, usages: GroupUsages, alone: Collection[Key] = (), only: Collection[str] | None = None
    ) -> Self:
        """Return those of a cluster in which nothing but the places of *usages* is in use.

        And pods of no group, those *alone*, that never end by themselves: of all nodes, or *only*
        some of them. They stay as they are.
        """
        emptied = self._empty
        if self.may_refuse() and (usages.groups or alone):
            emptied = self._zones_with(usages, alone, only)
        return copy_with(self, _usages=usages, _emptied=emptied)

    def _zones_with(
        self, usages: GroupUsages, alone: Collection[Key], only: Collection[str] | None
    ) -> HostZones:
        """Return the zones of hosts with nothing in use but what `emptied` leaves there."""
        places = {key: self._by_host(each) for key, each in usages.groups.items()}
        names = self._view.zones.keys() if only is None else self._view.zones.keys() & {*only}
        for node in [self._view.nodes[name] for name in names if name in self._view.nodes]:
            host = node.host
            for key, pod in self.zones().bound_on(node.name):
                if key in alone and not pod.spec.ends:
                    pods = PodsOnHost("", self._request(pod.spec), pod.zone, 1)
                    places["", "/".join(key)] = {host: [pods]}
        return self._empty.fork(places, {})

    def host_zones(self) -> HostZones:
        """Return the zones of hosts in this state of the cluster."""
        if self._emptied is not None:
            return self._emptied
        if self._origin is not None:
            return self._fork_of(self._origin.host_zones())
        self._kinds.tidy()
        fits = self.zones().fits
        if self._hosts is None:
            self._hosts = HostZones(self._kinds, self.zones, self._view)
            self._changed |= dict.fromkeys(self._usages.groups)
        elif self._seen != fits.generation:
            for name in fits.changed_since(self._seen):
                self._hosts.forget(self._view.nodes[name].host)
        for key in self._changed:
            self._hosts.set_places(key, self._open_places(key))
        self._changed.clear()
        self._seen = fits.generation
        return self._hosts

    def _fork_of(self, origin: HostZones) -> HostZones:
        usages, generation = self._usages, self.zones().fits.generation
        gone = usages.out, usages.ended
        same = all(old is new for old, new in zip(self._gone, gone, strict=True))
        if self._hosts is None or not same or self._seen != generation:
            places = {key: self._open_places(key) for key in (*usages.out, *self._changed)}
            ended: dict[str, list[Pod]] = {}
            members = (pod for key in usages.out for pod in usages.members.get(key, {}).values())
            for pod in (*usages.ended, *(each for each in members if not each.finished)):
                ended.setdefault(pod.node, []).append(pod)
            self._hosts = origin.fork(places, ended)
            self._gone, self._seen = gone, generation
        return self._hosts

    def _open_places(self, key: Key) -> ByHost:
        """Return the places of a group, by host, without as many as it has pods there."""
        group = self._usages.groups.get(key)
        if group is None or key in self._usages.out:
            return {}
        running = self._usages.running_of(key)
        found = {}
        for host, pods in self._by_host(group).items():
            there = sum(running[node.name] for node in self._view.on_host(host))
            if left := subtract_pods(pods, Counter({None: there}), lambda _: None):
                found[host] = left
        return found

    def _by_host(self, group: PlacementGroup) -> ByHost:
        """Return the places of a group, by host."""
        requests = {each.name: self._request(each.template.spec) for each in group.pod_sets}
        found: dict[str, list[PodsOnHost]] = {}
        for each in group.status.assignments:
            request = requests.get(each.pod_set)
            if request is None:
                continue
            in_zones = each.levels[-1] == ZONE_LEVEL + NODE_TYPE
            for host, place in each.by_host():
                zone = zone_id(place.values[-1]) if in_zones else None
                pods = PodsOnHost(each.pod_set, request, zone, place.count)
                found.setdefault(host, []).append(pods)
        return found

    def _pods_of(self, unit: Unit) -> list[PodsOnHost]:
        return [
            PodsOnHost(each.name, self._request(each.template.spec), None, each.count)
            for each in unit.pod_sets
        ]

    def _request(self, spec: PodSpec) -> NumaRequest:
        return make_numa_request(spec, strict=self._strict)


def _new_pods(before: ByHost, host: str, pods: Iterable[PodsOnHost]) -> list[PodsOnHost]:
    """Return *pods* of a group on a host without those that had their places there *before*."""
    had = Counter[Hashable]()
    for each in before.get(host, ()):
        had[each.pod_set, each.zone] += each.count
    return subtract_pods(pods, had, lambda each: (each.pod_set, each.zone))
