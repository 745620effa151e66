"""How many pods the zones of hosts take, in one state of a cluster; spec cluster.md §8.

A fork promises zones to pods one after another, as the extender does. Places of groups whose pods
do not exist yet are promised first. Then the largest pods go first, since small pods would break up
the zones that large pods need.

Equal hosts with equal amounts in use take the same pods: this is computed once.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import count

from msgspec import Struct
from msgspec.structs import replace

from nri_policy.cluster.engine.state.host_limits import HostRefusal
from nri_policy.cluster.numa.equal_pods import count_equal
from nri_policy.cluster.numa.fit import reason_of
from nri_policy.cluster.numa.promises import LiveZones, size_of
from nri_policy.cluster.numa.shortage import find_zone_shortage
from nri_policy.cluster.objects.document import PODS
from nri_policy.cluster.objects.metadata import Key
from nri_policy.cluster.objects.node import ClusterNode
from nri_policy.cluster.objects.pod import Pod
from nri_policy.cluster.view import ClusterView
from nri_policy.cluster.zones.numa_node import aligns_pods, policy_of
from nri_policy.cluster.zones.numa_request import NumaRequest
from nri_policy.cluster.zones.reported_pods import lists_pods
from nri_policy.cluster.zones.zone import NodeZones
from nri_policy.foundation.clock import Clock
from nri_policy.native._numa_fit import FITS

MAX_REQUESTS = 8  # of which is known how many pods each host takes
MAX_KINDS = 20_000  # of nodes, and of answers about hosts, that are kept


class PodsOnHost(Struct, frozen=True):
    """Equal pods of a pod set on one host, in one of its zones where that is known."""

    pod_set: str
    request: NumaRequest
    zone: int | None
    count: int


ByHost = Mapping[str, Sequence[PodsOnHost]]  # places of a group


class Kinds:
    """What nodes are like, as numbers, and what was found out about hosts of a kind."""

    def __init__(self) -> None:
        self.numbers: dict[Hashable, int] = {}  # by kind of host, and pods: how many it takes
        self.refused: dict[
            Hashable, dict[str, HostRefusal]
        ] = {}  # the same: what it refuses of them
        self._numbers: dict[Hashable, int] = {}  # by what a node is like
        self._seen: dict[tuple[str, bool], tuple[ClusterNode, NodeZones, int]] = {}

    def of(self, view: ClusterView, name: str, *, free: bool) -> int:
        """Return what is equal for nodes that are alike, with what is *free*, or while empty.

        Nodes without a report are like no others.
        """
        node, report = view.nodes[name], view.zones.get(name)
        if report is None:
            return self._number((name, name in view.stale))
        seen = self._seen.get((name, free))
        if seen is not None and seen[0] is node and seen[1] is report:
            return seen[2]
        kind = self._number(_kind(node, report, free=free))
        self._seen[name, free] = node, report, kind
        return kind

    def _number(self, kind: Hashable) -> int:
        return self._numbers.setdefault(kind, len(self._numbers))

    def tidy(self) -> None:
        """Forget all if it has become too much: while no answer is being looked for."""
        if max(len(self.numbers), len(self.refused), len(self._numbers)) > MAX_KINDS:
            for each in (self.numbers, self.refused, self._numbers, self._seen):
                each.clear()


class HostZones:
    """The zones of hosts in one state of the cluster: as it is, without some pods, or empty."""

    def __init__(
        self,
        kinds: Kinds,
        zones: Callable[[], LiveZones],
        view: ClusterView,
        *,
        empty: bool = False,
    ) -> None:
        """Read hosts in *view*; what their zones have left is in *zones*, or all if *empty*."""
        self._kinds = kinds
        self._zones = zones
        self._view = view
        self._empty = empty
        self._origin: HostZones | None = None
        self._changed: frozenset[str] = frozenset()  # hosts that differ from the origin's
        self._ended: Mapping[str, Sequence[Pod]] = {}  # pods that are gone, by node
        self._places: dict[str, dict[Key, Sequence[PodsOnHost]]] = {}  # by host, of groups
        self._hosts: dict[Key, Sequence[str]] = {}  # of these groups
        self._numbers: OrderedDict[PodsOnHost, dict[str, int]] = OrderedDict()  # by host
        self._aligned: dict[str, list[str]] | None = None  # see `aligned_hosts`
        self._keys = count()  # of the pods that are tried

    def fork(self, places: Mapping[Key, ByHost], ended: Mapping[str, Sequence[Pod]]) -> HostZones:
        """Return them with other *places* of groups, and without pods that are *ended*, by node.

        It lives while nothing changes here.
        """
        made = HostZones(self._kinds, self._zones, self._view, empty=self._empty)
        made._origin, made._ended = self, ended
        nodes = [self._view.nodes[name] for name in ended if name in self._view.nodes]
        changed = {each.host for each in nodes}
        for key, own in places.items():
            changed |= own.keys() | {*self._hosts.get(key, ())}
        for host in changed & self._places.keys():
            on_host = self._places[host].items()
            made._places[host] = {key: pods for key, pods in on_host if key not in places}
        for key, own in places.items():
            made.set_places(key, own)
        made._changed = frozenset(changed)
        return made

    def set_places(self, key: Key, places: ByHost) -> None:
        """Take in where a group has places for pods that are not there yet."""
        for host in self._hosts.pop(key, ()):
            del self._places[host][key]
            self.forget(host)
        for host, pods in places.items():
            self._places.setdefault(host, {})[key] = pods
            self.forget(host)
        if places:
            self._hosts[key] = [*places]

    def see(self, host: str) -> None:
        """Take in that the nodes of a host have changed, or what they report."""
        self.forget(host)
        nodes = self._view.on_host(host)
        hosts = self.aligned_hosts()
        hosts.pop(host, None)
        if any(_may_refuse(self._view, each.name) for each in nodes):
            hosts[host] = [each.name for each in nodes]

    def forget(self, host: str) -> None:
        """Take in that the zones of a host have other amounts left."""
        for numbers in self._numbers.values():
            numbers.pop(host, None)

    def aligned_hosts(self) -> dict[str, list[str]]:
        """Return the hosts with nodes that may refuse a pod for its zones, and all their nodes."""
        if self._origin is not None:
            return self._origin.aligned_hosts()
        if self._aligned is None:
            view = self._view
            names = [name for name in view.zones.keys() | view.stale if _may_refuse(view, name)]
            nodes = [view.nodes[name] for name in names if name in view.nodes]
            hosts = sorted({each.host for each in nodes})
            self._aligned = {host: [each.name for each in view.on_host(host)] for host in hosts}
        return self._aligned

    def limits(self, pods: PodsOnHost) -> dict[str, int]:
        """Return by node how many of *pods* hosts take, of those that may refuse some."""
        some = _round_up(pods)
        return {
            name: number
            for host, names in self.aligned_hosts().items()
            for number in [min(self.number(host, some), pods.count)]
            for name in names
        }

    def limits_beside(self, leader: PodsOnHost, workers: PodsOnHost) -> dict[str, int]:
        """Return by node how many of *workers* hosts take beside their *leader*.

        Only of those that take both, each by itself, and may refuse some.
        """
        found: dict[str, int] = {}
        some, one = _round_up(workers), _round_up(leader)
        for host, names in self.aligned_hosts().items():
            number = min(self.number(host, some), workers.count)
            if not number or not self.number(host, one):
                continue
            number = self.number_beside(host, [leader], replace(workers, count=number))
            found |= dict.fromkeys(names, number)
        return found

    def number(self, host: str, pods: PodsOnHost) -> int:
        """Return how many of *pods* a host takes that may refuse some."""
        if self._origin is not None and host not in self._changed:
            return self._origin.number(host, pods)
        known = self._numbers.get(pods)
        if known is None:
            if len(self._numbers) == MAX_REQUESTS:
                self._numbers.popitem(last=False)
            known = self._numbers[pods] = {}
        if host not in known:
            known[host] = self._count(host, pods)
        return known[host]

    def number_beside(self, host: str, others: Sequence[PodsOnHost], pods: PodsOnHost) -> int:
        """Return how many of *pods* a host takes beside *others* that it takes."""
        number = pods.count
        while number:
            refused = self.refused(host, [*others, replace(pods, count=number)])
            if not refused:
                break
            # a smaller pod of another pod set is refused: try one pod less
            number -= refused[pods.pod_set].pods if pods.pod_set in refused else 1
        return number

    def refused(self, host: str, pods: Sequence[PodsOnHost]) -> Mapping[str, HostRefusal]:
        """Return what a host refuses of *pods*, by pod set."""
        if self._origin is not None and host not in self._changed:
            return self._origin.refused(host, pods)
        first = self._first(host)
        kind = (self._kind(host), *first, None, *pods)
        found = self._kinds.refused.get(kind)
        if found is None:
            names = self.aligned_hosts()[host]
            zones = self._fork(names)
            self._book(zones, names, first)
            found = self._book(zones, names, pods)
            for name, each in found.items():
                own = [one for one in pods if one.pod_set == name]
                if len(own) < len(pods):
                    zones = self._fork(names)
                    self._book(zones, names, first)
                    alone = name in self._book(zones, names, own)
                    found[name] = replace(each, alone=alone)
            self._kinds.refused[kind] = found
        return found

    def _count(self, host: str, pods: PodsOnHost) -> int:
        names = self.aligned_hosts()[host]
        if not any(self._may_take(name, pods.request) for name in names):
            return 0
        most = sum(self._view.nodes[name].allocatable.get(PODS, 0) for name in names)
        first = self._first(host)
        if len(names) == 1 and not first and self._is_as_reported(names[0]):
            report = self._view.zones[names[0]]
            if (number := count_equal(report, pods.request)) is not None:
                return min(number, pods.count, most)
        some = replace(pods, count=min(pods.count, most))
        kind = (self._kind(host), *first, None, some)
        found = self._kinds.numbers.get(kind)
        if found is None:
            zones = self._fork(names)
            self._book(zones, names, first)
            refused = self._book(zones, names, [some]).get("")
            found = self._kinds.numbers[kind] = some.count - (refused.pods if refused else 0)
        return found

    def _may_take(self, node: str, request: NumaRequest) -> bool:
        """Whether a node may take a pod: not, if the live one does not and nothing is gone."""
        if self._empty or node in self._ended:
            return True
        return self._zones().verdict(node, request) == FITS

    def _is_as_reported(self, node: str) -> bool:
        if self._empty or node in self._ended or node not in self._view.zones:
            return False
        return not self._zones().promised_on(node)

    def _kind(self, host: str) -> Hashable:
        """Return a key that is equal for hosts whose zones have equal free amounts."""
        names = self.aligned_hosts()[host]
        alike = [self._kinds.of(self._view, name, free=not self._empty) for name in names]
        if self._empty:
            return "empty", *alike
        zones, used = self._zones(), list[Hashable]()
        for name in names:
            ended = {pod.key: pod for pod in self._ended.get(name, ())}
            promised = zones.promised_on(name)
            used += [(each.request, each.zone) for each in promised if each.pod not in ended]
            ended = {key: ended[key] for key in ended.keys() - {each.pod for each in promised}}
            for _, pod in sorted(ended.items()):
                held = zones.held(name, pod)
                used.append(tuple((each.zone, *each.amounts.items()) for each in held))
        return (*alike, None, *used)

    def _first(self, host: str) -> list[PodsOnHost]:
        """Return the places of groups, for pods to which nothing is promised there yet."""
        places = [each for every in self._places.get(host, {}).values() for each in every]
        if not places or self._empty:  # no promise counts there
            return places
        zones = self._zones()
        promised = Counter[Hashable](
            each.request
            for name in self.aligned_hosts()[host]
            for each in zones.promised_on(name)
            if not each.bound  # a bound pod's place stays among the places of its group
        )
        return subtract_pods(places, promised, lambda each: each.request)

    def _fork(self, names: Sequence[str]) -> LiveZones:
        """Return the zones of nodes to try pods in."""
        if not self._empty:
            return self._zones().fork(names, self._ended)
        view = self._view
        zones = {name: view.zones[name].without_usage() for name in names if name in view.zones}
        own = ClusterView({name: view.nodes[name] for name in names}, zones, view.stale)
        return LiveZones(self._zones().fits.settings, own, Clock(now=lambda: 0.0))

    def _book(
        self, zones: LiveZones, nodes: Sequence[str], pods: Sequence[PodsOnHost]
    ) -> dict[str, HostRefusal]:
        """Promise *zones* of a host's *nodes* to pods, one by one; return refusals by pod set."""
        refused: dict[str, HostRefusal] = {}
        for each in sorted(pods, key=lambda own: -size_of(own.request)):
            kept = 0
            while kept < each.count and self._keep(zones, nodes, each):
                kept += 1
            if kept < each.count:
                earlier = refused.get(each.pod_set, HostRefusal(0, 0, ""))
                refused[each.pod_set] = HostRefusal(
                    pods=earlier.pods + each.count - kept,
                    of=sum(own.count for own in pods if own.pod_set == each.pod_set),
                    why=earlier.why or _why(zones, nodes[0], each, kept),
                )
        return refused

    def _keep(self, zones: LiveZones, nodes: Iterable[str], pods: PodsOnHost) -> bool:
        key = ("", str(next(self._keys)))
        return any(zones.keep(key, name, pods.request, pods.zone) for name in nodes)


def _round_up(pods: PodsOnHost) -> PodsOnHost:
    """Return *pods* of no pod set, up to twice as many: for groups of any size alike."""
    return replace(pods, pod_set="", count=1 << (pods.count - 1).bit_length())


def subtract_pods(
    pods: Iterable[PodsOnHost], others: Counter[Hashable], key: Callable[[PodsOnHost], Hashable]
) -> list[PodsOnHost]:
    """Return *pods* less *others*, which are counted by *key*."""
    left = []
    for each in pods:
        less = min(each.count, others[key(each)])
        others[key(each)] -= less
        if less < each.count:
            left.append(replace(each, count=each.count - less))
    return left


def _may_refuse(view: ClusterView, node: str) -> bool:
    """Whether a node refuses pods that its zones do not hold, or any whose zones matter."""
    report = view.zones.get(node)
    return node in view.stale if report is None else aligns_pods(report)


def _kind(node: ClusterNode, report: NodeZones, *, free: bool) -> Hashable:
    """Return what of a node decides which pods it takes with what is *free*, or while empty."""
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


def _why(zones: LiveZones, node: str, pods: PodsOnHost, kept: int) -> str:
    """Return why a node refuses one of *pods*, after it took *kept* of them."""
    text = reason_of(zones.verdict(node, pods.request))
    report = zones.view.zones.get(node)
    if kept:
        return f"{text}: {kept} of {pods.count} fit together"
    if report is None:
        return text
    return f"{text}: {find_zone_shortage(zones.view.nodes[node], report, pods.request)}"
