"""Inventory: what the runtime lists when it takes the plugin in, and what of that is believed.

A list can be old: CRI-O has what a container was created with, containerd what it was told, even if
the container never got it. So the cgroup counts for the cpuset, and for an amount wherever it
agrees with what is known. Who has no cgroup to be seen hears again where it is to be, if the list
may be old.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from nri_policy.engine.event import StoredGrant
from nri_policy.engine.grant import Placement
from nri_policy.engine.synchronization import not_older, parse_cpus
from nri_policy.node import Node
from nri_policy.plugin.convert import resources_of
from nri_policy.plugin.enforcement import Enforcement
from nri_policy.plugin.pods import Pods
from nri_policy.plugin.update_queue import UpdateQueue
from nri_policy.proto import nri_pb2
from nri_policy.workload.pod import Container, Resources


class Inventory:
    """Reads the lists of one runtime."""

    def __init__(
        self,
        node: Node,
        pods: Pods,
        update_queue: UpdateQueue,
        enforcement: Enforcement,
        held: Callable[[], Mapping[str, StoredGrant]],
    ) -> None:
        """*held* returns what an earlier daemon granted, by container id."""
        self._node = node
        self._pods = pods
        self._update_queue = update_queue
        self._enforcement = enforcement
        self._held = held
        self._unseen: tuple[str, ...] = ()  # containers that were listed, and have no cgroup here

    async def read(
        self, pods: Iterable[nri_pb2.PodSandbox], listed: Sequence[nri_pb2.Container]
    ) -> tuple[tuple[Container, ...], Mapping[str, StoredGrant]]:
        """Return the containers as they are, by all that is known, and what was granted before."""
        by_id = {pod.id: pod for pod in pods}
        found = await self._enforcement.observe(
            {each.id: each.linux.cgroups_path for each in listed}
        )
        self._unseen = tuple(each.id for each in listed if each.id not in found)
        held = self._held()
        return (
            tuple(
                self._correct(by_id[each.pod_sandbox_id], each, found.get(each.id), held)
                for each in listed
            ),
            held,
        )

    def unseen(self) -> Iterator[Placement]:
        """Yield where those are to be of which only the list says where they are."""
        for each in self._unseen:
            placement = self._node.view.placement(each)
            if placement is not None and (placement.cpus or placement.mems):
                yield placement

    def misremembered(self, listed: Iterable[nri_pb2.Container]) -> Iterator[Placement]:
        """Yield where containers are that the runtime believes elsewhere, for it to know."""
        for each in listed:
            placement = self._node.view.placement(each.id)
            said = resources_of(each.linux.resources)
            if placement is not None and (
                (placement.cpus and parse_cpus(said.cpus) != placement.cpus)
                or (placement.mems and parse_cpus(said.mems) != placement.mems)
            ):
                yield placement

    def _correct(
        self,
        pod: nri_pb2.PodSandbox,
        container: nri_pb2.Container,
        found: Resources | None,
        held: Mapping[str, StoredGrant],
    ) -> Container:
        """Return a container that the runtime lists, with the cpuset that was *found* in force.

        Where there is nothing to be found, the runtime's word on the cpuset does not count for one
        that has something to hear, or was told when updates are lost.
        """
        listed = self._pods.container(pod, container)
        said, cpus, mems = listed.resources, "", ""
        if found is not None:  # of what was never set the kernel names all there is
            cpus, mems = said.cpus and found.cpus, said.mems and found.mems
            placed, stored = self._node.view.placed.get(listed.id), held.get(listed.id)
            if placed is not None:
                before, milli = placed.container.resources, placed.request.milli
                said = not_older(before, milli, said, found)
            elif stored is not None and stored.resources is not None:
                said = not_older(stored.resources, stored.request.milli, said, found)
        elif (
            listed.id not in self._update_queue.unsent
            and not self._update_queue.confirmations.lost(listed.id)
        ):
            return listed
        return replace(listed, resources=replace(said, cpus=cpus, mems=mems))
