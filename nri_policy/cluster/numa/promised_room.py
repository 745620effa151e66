"""The free amounts of nodes minus promises to pods that are not bound yet; cluster.md §8.

kube-scheduler knows nothing of places: it would give the room of a group that was just placed to
pods of the same second, and the group would never be whole. Owns, for each node, what is promised
beyond what its bound pods use:

| promised | until |
|---|---|
| the places of a group on a node | the group's pods are bound there |
| what a pod asks for that was let through, on each node | it is bound, deleted or asks again |

Whole nodes count, whatever their zones. kube-scheduler may send a pod that was let through to any
node that was left: the pod counts on all of them with empty places, for CHOSEN_SECONDS at most.
Pods that were let through before a group had its places may still take them: the group waits for
them. It does no I/O; the clock is the caller's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from msgspec import Struct

from nri_policy.cluster.numa.promises import CHOSEN_SECONDS
from nri_policy.cluster.objects.document import CPU, Amounts, format_amount, is_bytes, with_place
from nri_policy.cluster.objects.metadata import Key
from nri_policy.cluster.objects.node import ClusterNode
from nri_policy.cluster.objects.pod import Pod
from nri_policy.cluster.requests.group import GROUP_LABEL, PlacementGroup
from nri_policy.cluster.view import ClusterView
from nri_policy.cluster.workloads.kueue import assigned_group
from nri_policy.cluster.zones.zone import NodeZones
from nri_policy.foundation.clock import Clock

REASON = "promised to placement groups"  # of a rejected node, in metrics


class _BoundPod(Struct, frozen=True, gc=False):
    node: str
    amounts: Amounts
    group: Key | None


class _LetThrough(Struct, frozen=True, gc=False):
    nodes: frozenset[str]
    amounts: Amounts
    until: float


class PromisedRoom:
    """Empty places of groups by node, the use of nodes, and the pods that were let through."""

    def __init__(self, view: ClusterView, clock: Clock) -> None:
        self._view = view
        self._clock = clock
        self._pods: dict[Key, _BoundPod] = {}
        self._used: dict[str, Amounts] = {}  # by node, by all bound pods
        self._groups: dict[Key, PlacementGroup] = {}  # that have places
        self._assigned: dict[Key, dict[str, Amounts]] = {}  # by group and node
        self._filled: dict[Key, dict[str, Amounts]] = {}  # by group and node: its bound pods
        self._promised: dict[str, dict[Key, Amounts]] = {}  # by node and group, over 0
        self._let_through: dict[Key, _LetThrough] = {}
        self._taken: dict[str, Amounts] = {}  # by node in _promised: amounts of admitted pods

    def set_group(self, key: Key, group: PlacementGroup | None) -> None:
        """Take in that a group came or changed, or went (None)."""
        old = self._groups.get(key)
        if group is None or not group.status.assignments:
            self._groups.pop(key, None)
            assigned: dict[str, Amounts] = {}
        else:
            self._groups[key] = group
            if old is not None and _places_of(old) == _places_of(group):
                return
            assigned = self._assigned_by(group)
        self._assign(key, assigned)

    def change_node(self, old: ClusterNode | None, new: ClusterNode | None) -> None:
        """Apply a changed, new or removed node: find its places again if these may differ.

        A host without a node is known by its hostname, usually equal to the name of its node.
        """
        names = {name for each in (old, new) if each is not None for name in _names_of(each)}
        if len(names) > 1:
            for key, assigned in [*self._assigned.items()]:
                if not names.isdisjoint(assigned):
                    self._assign(key, self._assigned_by(self._groups[key]))

    def change_zones(self, node: str, old: NodeZones | None, new: NodeZones | None) -> None:
        """Whole nodes count: what zones have left changes nothing."""

    def _assign(self, key: Key, assigned: dict[str, Amounts]) -> None:
        before = self._assigned.pop(key, {})
        if assigned:
            self._assigned[key] = assigned
        for node in {**before, **assigned}:
            self._promise(key, node)

    def set_pod(self, pod: Pod) -> None:
        """Take in that a pod came or changed."""
        key = pod.key
        known = self._pods.get(key)
        if not pod.node or pod.finished:
            if known is not None or pod.finished:
                self.remove_pod(*key)
        elif known is None or known.node != pod.node:
            self.remove_pod(*key)
            bound = _BoundPod(pod.node, with_place(pod.spec.effective()), _group_of(pod))
            self._pods[key] = bound
            self._count(bound, 1)

    def remove_pod(self, namespace: str, name: str) -> None:
        """Take in that a pod went."""
        self.withdraw((namespace, name))
        bound = self._pods.pop((namespace, name), None)
        if bound is not None:
            self._count(bound, -1)

    def refusals(
        self,
        pod: Pod,
        names: Iterable[str],
        leaving: Mapping[str, Sequence[Pod]] = MappingProxyType({}),
    ) -> dict[str, str]:
        """Return the nodes with room for a pod only where it is promised, and to which groups.

        By node, pods that are *leaving* use nothing any more.
        """
        if not self._promised or any(each.kind == "DaemonSet" for each in pod.owners):
            return {}
        own = _group_of(pod)
        asked = with_place(pod.spec.effective())
        found = {}
        for name in names:
            groups = self._promised.get(name)
            if groups is None:
                continue
            counted = {
                key: amounts
                for key, amounts in groups.items()
                if key != own and self._groups[key].priority >= pod.priority
            }
            # The pods that were let through leave the places of groups alone.
            taken = {} if own in self._groups else self._taken.get(name, {})
            if name in leaving:
                taken = {**taken}
                for each in leaving[name]:
                    for resource, amount in with_place(each.spec.effective()).items():
                        taken[resource] = taken.get(resource, 0) - amount
            if counted and (text := self._refusal(name, asked, counted, taken)):
                found[name] = text
        return found

    def let_through(self, pod: Pod, names: Iterable[str]) -> None:
        """Count a pod that may run on one of these nodes, where a node has empty places."""
        key = pod.key
        self.withdraw(key)
        nodes = frozenset(names)
        if nodes and _group_of(pod) not in self._groups:
            amounts = with_place(pod.spec.effective())
            self._let_through[key] = _LetThrough(nodes, amounts, self._clock.now() + CHOSEN_SECONDS)
            for node in self._promised.keys() & nodes:
                _add(self._taken, node, amounts, 1)

    def is_contested(self, group: Key) -> bool:
        """Whether pods that were let through would leave too little where a group has empty places.

        Once they are bound, or CHOSEN_SECONDS later, this is no longer so.
        """
        self.expire()
        for name in self._assigned.get(group, ()) if self._let_through else ():
            node, promised = self._view.nodes.get(name), self._promised.get(name, {})
            taken = self._taken.get(name, {})
            if node is None or group not in promised:
                continue
            for resource in promised[group].keys() & taken.keys():
                whole = sum(each.get(resource, 0) for each in promised.values())
                left = node.allocatable.get(resource, 0) - whole
                if left < self._used.get(name, {}).get(resource, 0) + taken[resource]:
                    return True
        return False

    def withdraw(self, pod: Key) -> None:
        """Take back that a pod was let through: it asks again, is bound, or went."""
        found = self._let_through.pop(pod, None)
        if found is not None:
            for node in self._promised.keys() & found.nodes:
                _add(self._taken, node, found.amounts, -1)

    def expire(self) -> None:
        """Forget pods that were let through and not bound since; the oldest come first."""
        now = self._clock.now()
        while self._let_through:
            key, oldest = next(iter(self._let_through.items()))
            if oldest.until > now:
                return
            self.withdraw(key)

    def promised(self, node: str) -> Mapping[Key, Amounts]:
        """Return what a node has promised beyond what its pods use, by group."""
        return self._promised.get(node, {})

    def _assigned_by(self, group: PlacementGroup) -> dict[str, Amounts]:
        """Return what a group's places use of each node; none where hosts are no level."""
        kinds = {each.name: with_place(each.template.spec.effective()) for each in group.pod_sets}
        found: dict[str, Amounts] = {}
        for assignment in group.status.assignments:
            kind = kinds.get(assignment.pod_set, {})
            for host, place in assignment.by_host():
                named = self._view.on_host(host)
                _add(found, named[0].name if named else host, kind, place.count)
        return found

    def _count(self, pod: _BoundPod, times: int) -> None:
        _add(self._used, pod.node, pod.amounts, times)
        if pod.group is not None:
            _add(self._filled.setdefault(pod.group, {}), pod.node, pod.amounts, times)
            if not self._filled[pod.group]:
                del self._filled[pod.group]
            self._promise(pod.group, pod.node)

    def _promise(self, key: Key, node: str) -> None:
        """See anew what a node has promised to a group."""
        filled = self._filled.get(key, {}).get(node, {})
        assigned = self._assigned.get(key, {}).get(node, {})
        left = {name: amount - filled.get(name, 0) for name, amount in assigned.items()}
        left = {name: amount for name, amount in left.items() if amount > 0}
        if left:
            if node not in self._promised:
                self._promised[node] = {}
                for each in self._let_through.values():
                    if node in each.nodes:
                        _add(self._taken, node, each.amounts, 1)
            self._promised[node][key] = left
        elif key in self._promised.get(node, {}):
            del self._promised[node][key]
            if not self._promised[node]:
                del self._promised[node]
                self._taken.pop(node, None)

    def _refusal(
        self, name: str, asked: Amounts, groups: Mapping[Key, Amounts], taken: Amounts
    ) -> str:
        """Return which room of a node that a pod would need is promised; nothing if none is."""
        node, used = self._view.nodes.get(name), self._used.get(name, {})
        if node is None:
            return ""
        for resource, amount in sorted(asked.items()):
            promised = sum(each.get(resource, 0) for each in groups.values())
            total = node.allocatable.get(resource, 0)
            left = total - used.get(resource, 0) - taken.get(resource, 0) - promised
            if amount and promised and left < amount:
                most, *others = sorted(groups, key=lambda key: (-groups[key].get(resource, 0), key))
                owner = f"placement group {'/'.join(most)}"
                if others:
                    owner += f" and {len(others)} more"
                return f"{_share(resource, promised, total)} promised to {owner}"
        return ""


def _share(resource: str, part: int, total: int) -> str:
    """Return how much of a resource is meant: `12 of 16 CPUs`."""
    what = "CPUs" if resource == CPU else f"of {resource}" if is_bytes(resource) else resource
    return f"{format_amount(resource, part)} of {format_amount(resource, total)} {what}"


def _names_of(node: ClusterNode) -> tuple[str, str]:
    return node.name, node.host


def _places_of(group: PlacementGroup) -> object:
    """Return what decides what a group's places use."""
    return group.status.assignments, group.pod_sets


def _group_of(pod: Pod) -> Key | None:
    """Return the group that opened a pod's gate or represents its Workload; None without one."""
    name = pod.annotations.get(GROUP_LABEL) or assigned_group(pod)
    return None if name is None else (pod.namespace, name)


def _add(sums: dict[str, Amounts], node: str, amounts: Amounts, times: int) -> None:
    """Add amounts of a node *times* times; what is 0 is not there."""
    own = sums.setdefault(node, {})
    for name, amount in amounts.items():
        own[name] = own.get(name, 0) + amount * times
        if not own[name]:
            del own[name]
    if not own:
        del sums[node]
