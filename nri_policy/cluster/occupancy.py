"""Which pods of a group are in its places, and what of them the engine counts.

The engine counts a group by its places. Owns the exceptions: places that pods which succeeded have
given back, and pods that are bound where their group has no place, which count like pods of no
group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from msgspec.structs import replace

from nri_policy.cluster.engine import Engine
from nri_policy.cluster.finished import given_back
from nri_policy.cluster.gates import places_of
from nri_policy.cluster.gathering import pod_set_names
from nri_policy.cluster.group import GROUP_LABEL, PlacementGroup, hosts_of
from nri_policy.cluster.members import Members
from nri_policy.cluster.membership import Key
from nri_policy.cluster.node import HOSTNAME, Node
from nri_policy.cluster.pod import Pod
from nri_policy.cluster.usage import nodes_named


class Occupancy:
    """The pods of groups that have places."""

    def __init__(self, engine: Engine, members: Members, levels: Collection[str]) -> None:
        self._engine = engine
        self._members = members
        self._levels = levels
        self._given_back: dict[Key, set[Key]] = {}  # by group
        self._elsewhere: dict[Key, set[Key]] = {}  # by group
        self._gone: dict[Key, set[Key]] = {}  # by group, pods that gave a place back and went

    @property
    def nodes(self) -> Mapping[str, Node]:
        """The nodes, by name."""
        return self._engine.nodes

    def given_back(self, group: Key) -> Collection[Key]:
        """Return the pods that succeeded and whose places are no longer the group's."""
        return self._given_back.get(group, ())

    def elsewhere(self, group: Key) -> Collection[Key]:
        """Return the pods that are bound where the group has no place."""
        return self._elsewhere.get(group, ())

    def outlives(self, pod: Key) -> bool:
        """Return whether a pod that went has given a place back, which stays given back.

        It is kept as a member for as long as its group is there.
        """
        group = self._members.group_of(pod)
        if group is None or pod not in self.given_back(group):
            return False
        self._gone.setdefault(group, set()).add(pod)
        return True

    def forget(self, group: Key) -> Collection[Key]:
        """Forget a group that went; return its pods that went before."""
        self._given_back.pop(group, None)
        self._elsewhere.pop(group, None)
        return self._gone.pop(group, ())

    def count(self, group: Key, pod: Pod) -> None:
        """Have the engine count a pod of a group; one that ended keeps its place as yet."""
        key = (pod.namespace, pod.name)
        if pod.finished and key not in self.given_back(group):
            self._engine.remove_pod(*key)
        elif key in self.elsewhere(group):
            labels, annotations = dict(pod.labels), dict(pod.annotations)
            labels.pop(GROUP_LABEL, None)
            annotations.pop(GROUP_LABEL, None)
            node = pod.node or self._node_of(pod)  # where it is to be, until it is failed
            self._engine.set_pod(replace(pod, node=node, labels=labels, annotations=annotations))
        else:
            annotations = {**pod.annotations, GROUP_LABEL: group[1]}
            self._engine.set_pod(replace(pod, annotations=annotations))

    def recount(self, key: Key, group: PlacementGroup) -> bool:
        """See anew which pods are in the group's places; return whether that has changed."""
        members, nodes = self._members.of(key), self._engine.nodes
        names = pod_set_names(members, self._levels, group.pod_sets)
        elsewhere = set()
        for assignment in group.status.assignments:
            own = [
                each.pod
                for each, name in zip(members, names, strict=True)
                if name == assignment.pod_set
                and (each.pod.node or GROUP_LABEL in each.pod.annotations)
            ]
            places = places_of(assignment, own, nodes)
            elsewhere |= {(key[0], name) for name, place in places.items() if place is None}
        before = {*self.given_back(key)}
        back = given_back(group, members, names, self._members.job, nodes, before)
        changed = (elsewhere ^ {*self.elsewhere(key)}) | (back ^ before)
        self._given_back[key], self._elsewhere[key] = back, elsewhere
        for each in members:
            if (key[0], each.pod.name) in changed:
                self.count(key, each.pod)
        return bool(changed)

    def hosts(self, key: Key, group: PlacementGroup) -> tuple[list[str], set[str]]:
        """Return the hosts that a group needs, and those where a pod of it makes progress."""
        pods = [each.pod for each in self._members.of(key)]
        back = Counter(
            self._host(pod) for pod in pods if (key[0], pod.name) in self.given_back(key)
        )
        needed = [host for host, count in hosts_of(group).items() if back[host] < count]
        busy = {
            self._host(pod)
            for pod in pods
            if pod.node in self._engine.nodes and not (pod.finished or pod.deleted)
        }
        return needed, busy

    def _node_of(self, pod: Pod) -> str:
        """Return the node that the selector of a pod names by its host; empty if there is none."""
        host = pod.spec.node_selector.get(HOSTNAME, "")
        named = nodes_named([HOSTNAME], [host], self.nodes) if host else []
        return named[0] if named else ""

    def _host(self, pod: Pod) -> str:
        """Return the host where a pod is, or was to be."""
        node = self._engine.nodes.get(pod.node)
        own = "" if node is None else node.labels.get(HOSTNAME, "")
        return own or pod.spec.node_selector.get(HOSTNAME, "")
