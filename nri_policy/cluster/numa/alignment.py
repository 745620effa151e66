"""Whether the nodes that a group got take its pods: those that align pods to one NUMA node may not.

Groups are placed by what hosts have in all, unless their requests name zones. The extender and the
kubelet also look into the zones of a node that aligns pods. So what they would refuse is found
after a placement: zones are promised to the pods one after another, in a fork, as the extender does
it. The largest pods come first, as small ones would break up the zones that they need; places of
other groups whose pods are not there yet come before all of them.

If something would be refused, the group is placed once more, with a limit for each host: as many
equal pods as its zones take. The second placement counts if less of it would be refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import count
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import replace

from nri_policy.cluster.engine.engine import Engine
from nri_policy.cluster.numa.fit import reason
from nri_policy.cluster.numa.promises import LiveZones, size_of
from nri_policy.cluster.numa.shortage import zone_shortage
from nri_policy.cluster.objects.annotations import SLICE_LEVEL, SLICE_SIZE
from nri_policy.cluster.objects.document import PODS
from nri_policy.cluster.objects.group import GroupStatus, PlacementGroup
from nri_policy.cluster.objects.metadata import Key
from nri_policy.cluster.objects.node import HOSTNAME, ClusterNode
from nri_policy.cluster.objects.numa_node import NODE_TYPE, aligns_pods, policy_of, zone_id
from nri_policy.cluster.objects.numa_request import NumaRequest, numa_request
from nri_policy.cluster.objects.pod import PodSpec
from nri_policy.cluster.objects.reported_pods import lists_pods
from nri_policy.cluster.objects.settings import ZONE_LEVEL
from nri_policy.cluster.objects.zone import NodeZones
from nri_policy.cluster.view import ClusterView
from nri_policy.foundation.wording import counted
from nri_policy.native._numa_fit import FITS

# names of nodes -> their zones, less what is promised of them: a fork to try things in
ForkOf = Callable[[Collection[str]], LiveZones]

_WHEN_EMPTY = "even if it is empty"
_NOW = "while its zones are as full as now"
_HINT = f'ask for whole zones ({SLICE_LEVEL}: {ZONE_LEVEL}{NODE_TYPE}, {SLICE_SIZE}: "1"), or '


class _Pods(Struct, frozen=True):
    """Equal pods of a pod set on one host, in one of its zones where that is known."""

    pod_set: str
    request: NumaRequest
    zone: int | None
    count: int


class _Refused(Struct, frozen=True):
    """How many pods of a pod set a host refuses, of how many, and why the first of them."""

    pods: int
    of: int
    why: str


_ByHost = Mapping[str, Sequence[_Pods]]


class _HostsNow(Struct, frozen=True, kw_only=True):
    """Hosts as they are before pods of a group are tried there."""

    zones: LiveZones
    names: Mapping[str, Sequence[str]]  # of a host's nodes
    first: _ByHost  # places of other groups whose pods are not there yet
    busy: frozenset[str]  # nodes of which something is promised

    def kind(self, host: str) -> Hashable:
        """Return what is equal for hosts that take the same pods."""
        names = self.names[host]
        if not self.busy.isdisjoint(names):
            return host
        nodes, zones = self.zones.view.nodes, self.zones.view.zones
        kinds = (_kind(nodes[name], zones.get(name), free=True) for name in names)
        return (*kinds, *self.first[host])


class Refusals(Struct, frozen=True):
    """What nodes would refuse of a group: pods by pod set, and a sentence for each pod set."""

    pods: dict[str, int]
    notes: list[str]


class Alignment:
    """What nodes that align pods to one NUMA node refuse of the pods that groups get there."""

    def __init__(self, engine: Engine, fork_of: ForkOf) -> None:
        """Count the places of the groups of *engine*, on nodes whose zones come from *fork_of*.

        It lives while nothing changes there but what is added.
        """
        self._engine = engine
        self._fork_of = fork_of
        self._places: dict[Key, _ByHost] | None = None  # of groups, for pods that are not there yet
        self._numbers = count()  # of the pods that are tried
        self._known: dict[_Pods, dict[str, int]] = {}  # host -> how many of such pods it takes
        self._when_empty: dict[Hashable, dict[str, _Refused]] = {}  # by kinds of nodes, and pods

    def add(self, group: PlacementGroup) -> None:
        """Count what a group has got, or lost, from now on."""
        if self._places is None:
            return  # it is read when it is needed
        key = (group.namespace, group.name)
        before, self._places[key] = self._places.get(key, {}), self._open_places(group)
        for host in before.keys() | self._places[key].keys():
            for numbers in self._known.values():
                numbers.pop(host, None)

    def place(
        self,
        engine: Engine,
        group: PlacementGroup,
        failures: Mapping[str, int] = MappingProxyType({}),
        more: Mapping[str, int] = MappingProxyType({}),
    ) -> tuple[GroupStatus, Refusals]:
        """Return what comes of *group* in *engine*, and what nodes refuse of that.

        *engine* has the same nodes, maybe some of them closed. Hosts get no more pods of a pod set
        than their zones take, as far as that leaves a placement. *failures* and *more* are as of
        `Engine.place`, which also says what is raised.
        """
        status = engine.place(group, failures, more)
        refusals = self.check(group, status)
        if refusals.pods:
            limits = self._limits(group, status)
            other = engine.with_limits(limits).place(group, failures, more, explain=False)
            found = self.check(group, other)
            if other.assignments and sum(found.pods.values()) < sum(refusals.pods.values()):
                return other, found
        return status, refusals

    def check(self, group: PlacementGroup, status: GroupStatus) -> Refusals:
        """Return what nodes refuse of the pods of *group*, if *status* is what came of it.

        One sentence for nodes that are too small even when they are empty, one for those that have
        no room now. The pods of places that the group had before may be what fills the zones, so
        that these count as empty.
        """
        before, hosts = self._by_host(group), self._by_host(replace(group, status=status))
        aligned = {host: nodes for host in hosts if (nodes := self._aligned(host))}
        new = {host: _without_places(hosts[host], before.get(host, ())) for host in aligned}
        now = self._refused_now({host: pods for host, pods in new.items() if pods}, group)
        found: dict[tuple[str, str], dict[str, _Refused]] = {}
        for host, nodes in aligned.items():
            full = now.get(host, {})
            small = self._refused_when_empty(nodes, hosts[host]) if full or not new[host] else {}
            for when, refused in ((_WHEN_EMPTY, small), (_NOW, _beyond(full, small))):
                for name, each in refused.items():
                    found.setdefault((name, when), {})[nodes[0].name] = each
        pods = Counter[str]()
        for (name, _), own in found.items():
            pods[name] += sum(each.pods for each in own.values())
        return Refusals(dict(pods), [*_notes(group, status, found)])

    def too_small(self, group: PlacementGroup) -> Iterator[str]:
        """Yield a sentence for each pod set of which nodes refuse every pod, even when empty."""
        nodes = self._engine.view.nodes
        for each in group.pod_sets:
            refused = self.refused_when_empty(nodes.values(), each.template.spec)
            if each.count and refused:
                node, why = next(iter(refused.items()))
                yield (
                    f"{group.namespace}/{group.name}, pod set {each.name}: {len(refused)} of"
                    f" {counted(len(nodes), 'node')} would refuse its pods even when empty, as they"
                    f" align pods to one NUMA node ({node}: {why})"
                )

    def refused_when_empty(self, nodes: Iterable[ClusterNode], spec: PodSpec) -> dict[str, str]:
        """Return why nodes refuse a pod of *spec* even if they are empty, for those that do."""
        pod = [_Pods("", self._request(spec), None, 1)]
        return {
            node.name: refused[""].why
            for node in nodes
            if self._may_refuse(node) and (refused := self._refused_when_empty([node], pod))
        }

    def _limits(self, group: PlacementGroup, status: GroupStatus) -> dict[str, dict[str, int]]:
        """Return how many new pods of a pod set the zones of nodes take now, each set by itself.

        By pod set and node. Only of pod sets whose places in *status* are hosts, and of nodes on
        hosts that may refuse some.
        """
        by_host = {each.pod_set for each in status.assignments if each.levels[-1] == HOSTNAME}
        asked = [
            _Pods(each.name, self._request(each.template.spec), None, each.count)
            for each in group.pod_sets
            if each.name in by_host
        ]
        nodes = self._engine.nodes.values()
        hosts = dict.fromkeys(
            node.labels.get(HOSTNAME, node.name) for node in nodes if self._may_refuse(node)
        )
        # places that a group keeps are in nobody's way but in that of others
        known = {} if group.status.assignments else self._known
        numbers = [known.setdefault(each, {}) for each in asked]
        missing = [host for host in hosts if any(host not in own for own in numbers)]
        self._count(self._hosts_now(missing, group), dict(zip(asked, numbers, strict=True)))
        return {
            each.pod_set: {
                node.name: own[host] for host in hosts for node in self._engine.view.on_host(host)
            }
            for each, own in zip(asked, numbers, strict=True)
        }

    def _count(self, now: _HostsNow, asked: Mapping[_Pods, dict[str, int]]) -> None:
        """Set by host how many of the pods it takes, for each of those *asked* for."""
        of_kind: dict[Hashable, int] = {}
        nodes = now.zones.view.nodes
        for host, names in now.names.items():
            for numbers in asked.values():
                numbers[host] = 0
            fitting = [
                pods
                for pods in asked
                if any(now.zones.verdict(name, pods.request) == FITS for name in names)
            ]
            if not fitting:
                continue
            host_kind = now.kind(host)
            most = sum(nodes[name].allocatable.get(PODS, 0) for name in names)
            for pods in fitting:
                some = replace(pods, count=min(pods.count, most))
                kind = (host_kind, some)
                if kind not in of_kind:
                    of_kind[kind] = self._number(now, host, some)
                asked[pods][host] = of_kind[kind]

    def _number(self, now: _HostsNow, host: str, pods: _Pods) -> int:
        """Return how many of *pods* a host takes."""
        names = now.names[host]
        zones = now.zones.fork(names)
        self._book(zones, names, now.first[host])
        refused = self._book(zones, names, [pods]).get(pods.pod_set)
        return pods.count - (0 if refused is None else refused.pods)

    def _refused_now(self, hosts: _ByHost, group: PlacementGroup) -> dict[str, dict[str, _Refused]]:
        """Return what each of *hosts* refuses of such pods of a group, as it is now."""
        if not hosts:
            return {}
        found: dict[str, dict[str, _Refused]] = {}
        of_kind: dict[Hashable, dict[str, _Refused]] = {}
        now = self._hosts_now(hosts, group)
        for host, pods in hosts.items():
            kind = (now.kind(host), *pods)
            if kind not in of_kind:
                self._book(now.zones, now.names[host], now.first[host])
                of_kind[kind] = self._book(now.zones, now.names[host], pods)
            found[host] = of_kind[kind]
        return found

    def _hosts_now(self, hosts: Collection[str], group: PlacementGroup) -> _HostsNow:
        """Return *hosts* as they are now, for a group that is tried there."""
        names = {host: [node.name for node in self._engine.view.on_host(host)] for host in hosts}
        zones = self._fork_of([name for own in names.values() for name in own])
        promised: dict[str, Counter[Hashable]] = {host: Counter() for host in hosts}
        host_of = {name: host for host, own in names.items() for name in own}
        for each in zones.promises.values():
            if not each.bound:  # so that its pod's place counts among those of its group
                promised[host_of[each.node]][each.request] += 1
        others: dict[str, list[_Pods]] = {host: [] for host in hosts}
        for key, places in self._places_of_groups().items():
            if key != (group.namespace, group.name):
                for host in others.keys() & places.keys():
                    others[host] += places[host]
        first = {
            host: _without(others[host], promised[host], lambda each: each.request)
            for host in hosts
        }
        busy = frozenset(each.node for each in zones.promises.values())
        return _HostsNow(zones=zones, names=names, first=first, busy=busy)

    def _refused_when_empty(
        self, nodes: Sequence[ClusterNode], pods: Sequence[_Pods]
    ) -> dict[str, _Refused]:
        """Return what a host of these *nodes* would refuse of *pods* with nothing in use."""
        reports = {node.name: self._engine.view.zones.get(node.name) for node in nodes}
        key = (*(_kind(node, reports[node.name], free=False) for node in nodes), *pods)
        found = self._when_empty.get(key)
        if found is None:
            empty = {name: each.without_usage() for name, each in reports.items() if each}
            view = ClusterView({node.name: node for node in nodes}, empty)
            zones = LiveZones(self._engine.settings.extender, view, lambda: 0.0)
            found = self._when_empty[key] = self._book(zones, [*reports], pods)
        return found

    def _book(
        self, zones: LiveZones, nodes: Sequence[str], pods: Sequence[_Pods]
    ) -> dict[str, _Refused]:
        """Promise *zones* of a host's *nodes* to pods, one by one; return which find none."""
        refused: dict[str, _Refused] = {}
        for each in sorted(pods, key=lambda own: -size_of(own.request)):
            kept = 0
            while kept < each.count and self._keep(zones, nodes, each):
                kept += 1
            if kept < each.count:
                earlier = refused.get(each.pod_set, _Refused(0, 0, ""))
                refused[each.pod_set] = _Refused(
                    pods=earlier.pods + each.count - kept,
                    of=sum(own.count for own in pods if own.pod_set == each.pod_set),
                    why=earlier.why or _why(zones, nodes[0], each, kept),
                )
        return refused

    def _keep(self, zones: LiveZones, nodes: Iterable[str], pods: _Pods) -> bool:
        key = ("", str(next(self._numbers)))
        return any(zones.keep(key, name, pods.request, pods.zone) for name in nodes)

    def _aligned(self, host: str) -> list[ClusterNode]:
        """Return the nodes with a hostname, if one of them may refuse a pod for its zones."""
        nodes = self._engine.view.on_host(host)
        return nodes if any(map(self._may_refuse, nodes)) else []

    def _may_refuse(self, node: ClusterNode) -> bool:
        report = self._engine.view.zones.get(node.name)
        return node.name in self._engine.view.stale if report is None else aligns_pods(report)

    def _places_of_groups(self) -> dict[Key, _ByHost]:
        if self._places is None:
            self._places = {
                key: self._open_places(group)
                for key, group in self._engine.groups.items()
                if group.status.assignments
            }
        return self._places

    def _open_places(self, group: PlacementGroup) -> _ByHost:
        """Return the places of a group, by host, without as many as it has pods there."""
        running = self._engine.running_of((group.namespace, group.name))
        found = {}
        for host, pods in self._by_host(group).items():
            there = sum(running[node.name] for node in self._engine.view.on_host(host))
            found[host] = _without(pods, Counter({None: there}), lambda _: None)
        return found

    def _by_host(self, group: PlacementGroup) -> _ByHost:
        """Return the places of a group, by host."""
        requests = {each.name: self._request(each.template.spec) for each in group.pod_sets}
        found: dict[str, list[_Pods]] = {}
        for each in group.status.assignments:
            request = requests.get(each.pod_set)
            if request is None or HOSTNAME not in each.levels:
                continue
            at = each.levels.index(HOSTNAME)
            in_zones = each.levels[-1] == ZONE_LEVEL + NODE_TYPE
            for place in each.domains:
                zone = zone_id(place.values[-1]) if in_zones else None
                pods = _Pods(each.pod_set, request, zone, place.count)
                found.setdefault(place.values[at], []).append(pods)
        return found

    def _request(self, spec: PodSpec) -> NumaRequest:
        return numa_request(spec, strict=self._engine.settings.extender.strict)


def _kind(node: ClusterNode, report: NodeZones | None, *, free: bool) -> Hashable:
    """Return what of a node decides which pods it takes with what is *free*, or while it is empty.

    Nodes without a report are known by name.
    """
    if report is None:
        return node.name
    zones = tuple(
        (
            each.name,
            each.type,
            each.nodes,
            *each.total.items(),
            *(each.free.items() if free else ()),
        )
        for each in report.zones
    )
    return policy_of(report), lists_pods(report), tuple(node.allocatable), zones


def _without(
    pods: Iterable[_Pods], others: Counter[Hashable], key: Callable[[_Pods], Hashable]
) -> list[_Pods]:
    """Return *pods* without as many as there are of *others*, which are counted by *key*."""
    left = []
    for each in pods:
        less = min(each.count, others[key(each)])
        others[key(each)] -= less
        if less < each.count:
            left.append(replace(each, count=each.count - less))
    return left


def _without_places(pods: Iterable[_Pods], before: Iterable[_Pods]) -> list[_Pods]:
    """Return *pods* of a group on a host without those that had their places there *before*."""
    had = Counter[Hashable]()
    for each in before:
        had[each.pod_set, each.zone] += each.count
    return _without(pods, had, lambda each: (each.pod_set, each.zone))


def _beyond(full: Mapping[str, _Refused], small: Mapping[str, _Refused]) -> dict[str, _Refused]:
    """Return what a host refuses now, and would not if it were empty."""
    more = {
        name: replace(each, pods=each.pods - (small[name].pods if name in small else 0))
        for name, each in full.items()
    }
    return {name: each for name, each in more.items() if each.pods > 0}


def _why(zones: LiveZones, node: str, pods: _Pods, kept: int) -> str:
    """Return why a node refuses one of *pods*, after it took *kept* of them."""
    text = reason(zones.verdict(node, pods.request))
    report = zones.view.zones.get(node)
    if kept:
        return f"{text}: {kept} of {pods.count} fit together"
    if report is None:
        return text
    by_pod = policy_of(report)[1] == "pod"
    return f"{text}: {zone_shortage(report, pods.request, by_pod=by_pod)}"


def _notes(
    group: PlacementGroup,
    status: GroupStatus,
    found: Mapping[tuple[str, str], Mapping[str, _Refused]],
) -> Iterator[str]:
    """Yield a sentence for each pod set and when nodes refuse it: *found*, by node."""
    for each in status.assignments:
        for when in (_WHEN_EMPTY, _NOW):
            refused = found.get((each.pod_set, when))
            if refused:
                hosts = len({place.values[each.levels.index(HOSTNAME)] for place in each.domains})
                pods, of = (
                    sum(getattr(one, name) for one in refused.values()) for name in ("pods", "of")
                )
                some = "its pods" if pods == of else f"{pods} of {of} of its pods"
                node, first = next(iter(refused.items()))
                hint = _HINT if each.levels[-1] == HOSTNAME else ""
                yield (
                    f"{group.namespace}/{group.name}, pod set {each.pod_set}: on {len(refused)} of"
                    f" {counted(hosts, 'host')} the node aligns pods to one NUMA node, and refuses"
                    f' {some} {when} ({node}: {first.why}); {hint}see "cluster fit"'
                )
