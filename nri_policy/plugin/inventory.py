"""Inventory: what the runtime lists when it takes the plugin in, and what of that is believed.

A list can be old: CRI-O lists the cpuset of a container's creation, containerd that of the last
update, even if it was lost. So cgroups count, for cpusets and amounts. Containers without a visible
cgroup get their placement again if the list may be wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from msgspec.structs import replace

from nri_policy.delivery.executor import Executor
from nri_policy.delivery.inputs import Listed, Observed
from nri_policy.delivery.record import Phase, cpuset_of
from nri_policy.engine.event import StoredGrant
from nri_policy.engine.grant import Changes
from nri_policy.engine.restart.listed_container import in_force
from nri_policy.engine.state.quota import NO_QUOTA
from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.node import Node
from nri_policy.plugin.convert import pod_of, resources_of
from nri_policy.plugin.pods import Pods
from nri_policy.proto import nri_pb2
from nri_policy.systemd.scopes import cgroup_of
from nri_policy.workload.pod import Container, ContainerState, Pod, Resources


class Inventory:
    """Reads the lists of one runtime."""

    def __init__(
        self,
        node: Node,
        pods: Pods,
        executor: Executor,
        held: Callable[[], Mapping[str, StoredGrant]],
    ) -> None:
        """*held* returns what an earlier daemon granted, by container id."""
        self._node = node
        self._pods = pods
        self._executor = executor
        self._held = held
        self._unseen: Collection[str] = ()  # containers that were listed, and have no cgroup here
        # those with a grant of an earlier daemon: its updates may be lost
        self._inherited: Collection[str] = ()

    async def ended(self, pods: Iterable[nri_pb2.PodSandbox]) -> Collection[str]:
        """Return the ids of the pods that have ended, where those that run show a process.

        A pod whose shim does not answer in time shows none either: while the shim creates a
        container, which takes as long as hooks do. Then the pod's first process counts, as far as
        its cgroup can be seen.
        """
        silent = {pod.id: pod.linux.cgroups_path for pod in pods if not pod.pid}
        return silent.keys() - await self._executor.survey.living(silent)

    async def read(
        self, pods: Iterable[nri_pb2.PodSandbox], listed: Sequence[nri_pb2.Container]
    ) -> tuple[tuple[Container, ...], Mapping[str, StoredGrant]]:
        """Return the containers with corrected cpusets and amounts, and the stored grants."""
        by_id = {pod.id: pod for pod in pods}
        held = self._held()
        earlier = held.keys() - self._node.view.placed.keys()
        seen = await self._executor.survey.observe(
            {each.id: each.linux.cgroups_path for each in listed}
        )
        found = seen or {}
        runs = any(each.state == nri_pb2.CONTAINER_RUNNING for each in listed)
        self._unseen = [each.id for each in listed if each.id not in found]
        self._inherited = () if seen is None else [each for each in self._unseen if each in earlier]
        self._executor.apply(
            Listed(
                recorded={
                    each.id: cpuset_of(resources_of(each.linux.resources)) for each in listed
                },
                observed={each: cpuset_of(resources) for each, resources in found.items()},
                blind=runs and seen is not None and not found,
            )
        )
        return (
            tuple(
                self._correct(by_id[each.pod_sandbox_id], each, found.get(each.id), held)
                for each in listed
            ),
            held,
        )

    async def under_creation(
        self,
        pods: Iterable[nri_pb2.PodSandbox],
        listed: Collection[Container],
        held: Mapping[str, StoredGrant],
        runtime: str,
    ) -> tuple[Container, ...]:
        """Return those that the *runtime* may be creating and has not *listed*, with their cpusets.

        We know those that we were asked about; those that an earlier daemon was asked about, which
        have a grant *held*, have a process. Another one of the same pod and name in the list has
        taken over.
        """
        view, phase = self._node.view, self._executor.state.phase
        by_uid = {pod.uid: pod for pod in pods}
        there = {key for each in listed for key in (each.id, each.identity)}
        asked = [
            (placed.container, str(cpus), str(mems))
            for each, placed in view.placed.items()
            for cpus, mems in [view.sent[each]]
            if phase(each) is Phase.CREATING and placed.container.pod.uid in by_uid
            if there.isdisjoint((each, placed.container.identity))
        ]
        earlier = {
            each: Container(
                id=each,
                pod=pod_of(by_uid[stored.pod_uid]),
                name=stored.full_name.rpartition("/")[2],
                state=ContainerState.CREATED,
                created=stored.created,
                labels={},
                resources=stored.resources,
                cgroup=cgroup_of(by_uid[stored.pod_uid].linux.cgroup_parent, each, runtime),
            )
            for each, stored in held.items()
            if each not in view.placed and stored.pod_uid in by_uid and stored.of_container
            if there.isdisjoint((each, (stored.pod_uid, stored.full_name)))
        }
        paths = {each: container.cgroup for each, container in earlier.items()}
        found = await self._executor.survey.observe(paths, living=True) or {}
        asked += [(earlier[each], seen.cpus, seen.mems) for each, seen in found.items()]
        return tuple(
            replace(each, resources=replace(each.resources, cpus=cpus, mems=mems))
            for each, cpus, mems in asked
        )

    def empty_pods(
        self, pods: Iterable[nri_pb2.PodSandbox], present: Iterable[Container]
    ) -> tuple[Pod, ...]:
        """Return the running *pods* without a container in *present*."""
        there = {each.pod.id for each in present}
        running = self._pods.listed - there
        return tuple(pod_of(each) for each in pods if each.id in running)

    async def look_at(self, container_ids: Iterable[str]) -> None:
        """Read the cgroups of these containers, and pass the result to the machine."""
        placed = self._node.view.placed
        paths = {each: placed[each].container.cgroup for each in container_ids if each in placed}
        found = await self._executor.survey.observe(paths) or {}
        for each in paths:
            cpuset = cpuset_of(found[each]) if each in found else None
            self._executor.apply(Observed(container_id=each, cpuset=cpuset))

    def doubtful(self, *, old: bool) -> Changes:
        """Return the placements of containers without a visible cgroup, if the list may be *old*.

        Otherwise only for containers with a grant of an earlier daemon: it may have ended before it
        noticed lost updates.
        """
        due = self._node.view.placements(self._unseen if old else self._inherited)
        return {each: new for each, new in due.items() if new.cpus or new.mems}

    def _correct(
        self,
        pod: nri_pb2.PodSandbox,
        container: nri_pb2.Container,
        found: Resources | None,
        held: Mapping[str, StoredGrant],
    ) -> Container:
        """Return a container that the runtime lists, with the cpuset that was *found* in force.

        Without a visible cgroup, the listed cpuset is ignored if a change is pending, or if the
        latest update may be lost.
        """
        listed = self._pods.container(pod, container)
        if listed.pod_level is None:
            listed = replace(listed, pod_level=self._pod_level(listed.id, held))
        cpus = mems = ""
        if found is not None:  # of what was never set the kernel names all there is
            said = listed.resources
            cpus, mems = said.cpus and found.cpus, said.mems and found.mems
            listed = in_force(listed, found, *self._known(listed.id, held))
            if found.cpu_quota == NO_QUOTA and listed.resources.cpu_quota:
                listed = replace(listed, resources=replace(listed.resources, cpu_quota=NO_QUOTA))
        elif listed.id not in self._executor.state.pending and not self._executor.state.may_be_lost(
            listed.id
        ):
            return listed
        return replace(listed, resources=replace(listed.resources, cpus=cpus, mems=mems))

    def _pod_level(self, container_id: str, held: Mapping[str, StoredGrant]) -> bool | None:
        """Return whether a container's pod has resources as a whole, None if unknown."""
        placed, stored = self._node.view.placed.get(container_id), held.get(container_id)
        if placed is not None:
            return placed.container.pod_level
        return None if stored is None else stored.pod_level

    def _known(
        self, container_id: str, held: Mapping[str, StoredGrant]
    ) -> tuple[Resources | None, int, CPUSet]:
        """Return what is known of a container's amounts, and the milli-CPU it was placed with.

        Also return its exclusive CPUs, if the runtime was sent any.
        """
        view = self._node.view
        placed, stored = view.placed.get(container_id), held.get(container_id)
        if placed is not None:
            return placed.container.resources, placed.request.milli, view.sent[container_id][0]
        if stored is None:
            return None, 0, EMPTY
        grant, hidden = stored.grant, stored.entitlement.hide_hyperthreads
        own = view.layout.cpus_of(grant, EMPTY, hidden) if grant.own else EMPTY
        return stored.resources, stored.entitlement.milli, own
