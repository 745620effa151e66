"""Which pods occupy the places of their group, and which pods the engine counts.

The engine counts a group by its places. Owns the exception: pods that are bound where their group
has no place, which count like pods of no group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from msgspec.structs import replace

from nri_policy.cluster.engine.state.cluster_state import ClusterState
from nri_policy.cluster.groups.assembly import Incomplete, check_complete, pod_set_names
from nri_policy.cluster.groups.members import Members
from nri_policy.cluster.groups.place_claims import give_back
from nri_policy.cluster.groups.ungating import find_pods_without_place
from nri_policy.cluster.objects.document import DocumentError
from nri_policy.cluster.objects.metadata import Key
from nri_policy.cluster.objects.node import HOSTNAME
from nri_policy.cluster.objects.pod import Pod
from nri_policy.cluster.requests.group import (
    GROUP_LABEL,
    GroupStatus,
    PlacementGroup,
    hosts_of,
    places_by_pod_set,
)
from nri_policy.cluster.workloads.kueue import assigned_group


class PlacedPods:
    """The pods of groups that have places."""

    def __init__(self, state: ClusterState, members: Members) -> None:
        self._state = state
        self._members = members

    def phases(self, group: Key) -> Counter[str]:
        """Return the phases of the pods that are where their group has places."""
        elsewhere = self._members.elsewhere.get(group, ())
        pods = [each.pod for each in self._members.of(group)]
        return Counter(pod.phase for pod in pods if pod.key not in elsewhere)

    def count(self, group: Key | None, pod: Pod) -> None:
        """Have the engine count a pod of a group, or of none.

        One that ended leaves its place to the group. Pods of Kueue's Workloads that Kueue
        released count at Kueue's assignment, if any.
        """
        key = pod.key
        assigned = assigned_group(pod)
        if assigned is not None:
            self._state.set_member(pod, assigned)
        elif group is None:
            self._state.set_pod(pod)
        elif pod.finished:
            self._state.remove_pod(*key)
        elif key in self._members.elsewhere.get(group, ()):
            # an unbound pod counts on the host that its gate's opening named
            node = pod.node or self._node_of(self._members.as_asked(pod))
            self._state.set_member(replace(pod, node=node), None)
        else:
            self._state.set_member(pod, group[1])

    def recount(self, key: Key, group: PlacementGroup | None) -> bool:
        """Recompute which pods occupy the places of a group; return whether that has changed.

        A group without places, or a deleted one (None), may still have ungated pods.
        """
        members = [
            replace(each, pod=asked)
            for each in self._members.of(key)
            if (asked := self._members.as_asked(each.pod)) is not each.pod
            or asked.node
            or GROUP_LABEL in asked.annotations
        ]
        pods = [each.pod for each in members]
        if group is not None and group.status.assignments:
            names = pod_set_names(members, self._state.levels, group.pod_sets)
            by_pod_set: dict[str, list[Pod]] = {}
            for name, pod in zip(names, pods, strict=True):
                by_pod_set.setdefault(name, []).append(pod)
            pods = []
            for name, own in by_pod_set.items():
                places = [each for each in group.status.assignments if each.pod_set == name]
                pods += find_pods_without_place(places, own, self._state.nodes)
        elsewhere = {(key[0], pod.name) for pod in pods}
        changed = elsewhere ^ self._members.elsewhere.get(key, {}).keys()
        for pod_key in changed:
            self._members.update(pod_key, elsewhere=pod_key in elsewhere)
        for each in members:
            if (key[0], each.pod.name) in changed:
                self.count(key, each.pod)
        return bool(changed)

    def give_back(self, group: PlacementGroup, owners: Collection[str]) -> GroupStatus:
        """Return the status of a group without its unclaimed places.

        *owners* are the uids of its owners.
        """
        members = self._members.of(group.key)
        names = pod_set_names(members, self._state.levels, group.pod_sets)
        claimed = self._members.count_claims(group, names, owners)
        if all(count <= claimed[name] for name, count in places_by_pod_set(group).items()):
            return group.status
        return give_back(group, members, names, claimed, self._state.nodes)

    def missing_places(self, group: PlacementGroup, *, owned: bool) -> dict[str, int]:
        """Return how many places more the pods that wait need, by pod set, once all are there.

        Only the owner of a group may have it become larger than its `spec` says.
        """
        key, members = group.key, self._members.live(group.key)
        try:
            check_complete(key, members, self._members.count_spared(key))
        except (Incomplete, DocumentError):
            return {}
        counts = Counter(pod_set_names(members, self._state.levels, group.pod_sets))
        places = places_by_pod_set(group)
        found = {}
        for each in group.pod_sets:
            count = counts[each.name] if owned else min(counts[each.name], each.count)
            if each.name in places and count > places[each.name]:
                found[each.name] = count - places[each.name]
        return found

    def hosts(self, group: PlacementGroup) -> tuple[list[str], set[str]]:
        """Return the hosts that a group needs, and those where a pod of it makes progress."""
        busy = {
            self.host(pod)
            for pod in (each.pod for each in self._members.of(group.key))
            if pod.node in self._state.nodes and not (pod.finished or pod.deleted)
        }
        return [*+hosts_of(group)], busy

    def _node_of(self, pod: Pod) -> str:
        """Return the node that the selector of a pod names by its host; empty if there is none."""
        host = pod.spec.node_selector.get(HOSTNAME, "")
        named = self._state.view.on_host(host) if host else []
        return named[0].name if named else ""

    def host(self, pod: Pod) -> str:
        """Return the host where a pod is, or was to be."""
        node = self._state.nodes.get(pod.node)
        own = "" if node is None else node.labels.get(HOSTNAME, "")
        return own or pod.spec.node_selector.get(HOSTNAME, "")
