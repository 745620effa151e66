"""Desired: the decisions of one node, as the delivery state reads them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from nri_policy.engine.grant import Placement
from nri_policy.engine.state.partition_rules import Partition
from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.node import Node
from nri_policy.workload.request import Sort


class Desired:
    """The latest decisions of a node; the delivery state only reads them."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def __iter__(self) -> Iterator[str]:
        """Yield the ids of all containers with a grant."""
        return iter(self._node.view.placed)

    @property
    def taken(self) -> CPUSet:
        """All exclusive CPUs."""
        return self._node.view.taken

    def placement(self, container_id: str) -> Placement | None:
        """Return a container's whole placement; None if it holds no grant."""
        return self._node.view.placement(container_id)

    def decided(self, container_ids: Iterable[str]) -> Iterator[tuple[str, Placement]]:
        """Yield the whole placements of those that hold a grant, with their ids."""
        due = ((each, self.placement(each)) for each in container_ids)
        return ((each, placement) for each, placement in due if placement is not None)

    def own(self, container_id: str) -> CPUSet:
        """Return a container's exclusive CPUs, and those that it keeps in a resize."""
        view = self._node.view
        resizing = view.resizing.get(container_id)
        return view.placed[container_id].grant.own | (resizing.kept if resizing else EMPTY)

    def partition(self, container_id: str) -> Partition | None:
        """Return the kernel partition due for a container; None: no partition."""
        partition = self._node.view.partition(container_id)
        return None if isinstance(partition, str) else partition

    def are_siblings(self, one: str, other: str) -> bool:
        """Whether two containers with a grant are of the same pod."""
        placed = self._node.view.placed
        return placed[one].container.pod.id == placed[other].container.pod.id

    def unmanaged(self, container_id: str) -> Placement:
        """Return the placement without the policy: all CPUs and memory nodes."""
        view = self._node.view
        settings, machine = view.layout.settings, view.layout.machine
        placed = view.placed[container_id]
        request = placed.request
        desired, _ = view.sent[container_id]  # nothing, of one that is left alone
        cpus = settings.pin_cpu and (request.sort is not Sort.PRESERVE or bool(desired))
        mems = settings.pin_memory and not request.memory_preserve
        nodes = CPUSet(node.id for node in machine.nodes if node.memory)
        return Placement(
            cpus=((placed.grant.preserved & machine.online) or machine.online) if cpus else EMPTY,
            mems=nodes if mems else EMPTY,
            shares=None,
            quota=view.granted_quota(container_id),
            cause="the policy leaves",
        )
