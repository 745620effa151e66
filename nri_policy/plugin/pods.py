"""Pods: from the runtime's messages about pods to the table of them that is in every `NodeView`.

Owns that table's making, and the questions to the kubelet and the API server about a pod's devices
and amounts. Who only reads takes the view: what stays here is read by the requests themselves. A
change copies the table, which holds a line a pod, and comes once or twice in a pod's life.
"""

from __future__ import annotations

import logging
import math
from asyncio import Task
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Protocol

from msgspec.structs import replace

from nri_policy.engine.restart.listed_container import NO_LIMIT
from nri_policy.engine.state.quota import as_granted
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.hardware.locality import Locator
from nri_policy.manifests.quality_of_service import QoS
from nri_policy.node import Node, Sandbox
from nri_policy.plugin.convert import (
    annotations_of,
    container_of,
    devices_of,
    mounts_of,
    pod_of,
    resources_of,
)
from nri_policy.proto import nri_pb2
from nri_policy.settings import PodRooms, PodSpecs
from nri_policy.workload.amounts import described
from nri_policy.workload.annotation_table import IRQ_AFFINITY, POD_ROOM, warnings
from nri_policy.workload.hints import (
    ClaimedDevice,
    Hint,
    candidates,
    claim_hints,
    find_used_devices,
)
from nri_policy.workload.pod import (
    Container,
    ContainerState,
    Pod,
    Resources,
    overlay,
    rounded_shares,
    shares_of,
)
from nri_policy.workload.preferences import find
from nri_policy.workload.requirements import PodRequirements

log = logging.getLogger(__name__)

# Seconds for the kubelet's answer at a start: it decides for good where containers are placed that
# came while no daemon ran.
START_PATIENCE = 0.5
# states of containers that run or have run
STARTED = {nri_pb2.CONTAINER_RUNNING, nri_pb2.CONTAINER_PAUSED, nri_pb2.CONTAINER_STOPPED}


class AssignmentSource(Protocol):
    """Where devices are that the kubelet has assigned; `kubelet.pod_resources.Assignments`."""

    def ask(self, pod: Pod) -> None:
        """Ask for a new pod's devices, without waiting."""

    def ask_all(self, pods: Iterable[Pod]) -> None:
        """Ask for the devices of all pods there are, without waiting."""

    async def ready(
        self, pods: Iterable[Pod], others: Iterable[Task[Any]] = (), *, seconds: float = ...
    ) -> None:
        """Wait so long, or else a little, for what was asked, and for *others*."""

    def devices(self, pod: Pod, container: str) -> Mapping[str, Mapping[str, CPUSet]]:
        """Return the memory nodes of each device, by resource."""
        ...

    def owners(self, pod: Pod) -> Collection[str]:
        """Return the names of the pod's containers that have devices."""
        ...

    def forget(self, pod: Pod) -> None:
        """Forget a pod that is gone."""


class ClaimedDeviceSource(Protocol):
    """Which devices containers have by resource claims; `dra.claimed_devices.ClaimedDevices`."""

    def ask(self, pod: Pod) -> None:
        """Ask for a new pod's devices, without waiting."""

    def ask_all(self, pods: Iterable[Pod]) -> None:
        """Ask for the devices of all pods there are, without waiting."""

    def pending(self, pods: Iterable[Pod]) -> Collection[Task[Any]]:
        """Return what has been asked about *pods* and not been answered."""
        ...

    def devices(self, pod: Pod, container: str) -> tuple[ClaimedDevice, ...]:
        """Return the devices of a container."""
        ...

    def forget(self, pod: Pod) -> None:
        """Forget a pod that is gone."""


class PodObjectSource(Protocol):
    """What the objects of pods say; `kubelet.pod_objects.PodObjects`."""

    @property
    def readable(self) -> bool:
        """Whether pods may be read, as far as is known."""
        ...

    def ask(self, pod: Pod) -> None:
        """Ask about a pod, without waiting."""

    def ask_late(self, pods: Iterable[Pod]) -> None:
        """Ask about pods that run already."""

    async def ready(self, pod: Pod) -> None:
        """Wait a moment for what was asked about *pod*, once."""

    def of(self, pod: Pod) -> PodRequirements | None:
        """Return what the object of *pod* says."""
        ...

    def forget(self, pod_id: str) -> None:
        """Forget a pod that is gone, or that says something else by now."""

    def restart(self) -> None:
        """Forget all pods."""


def _no_claim(_pod: nri_pb2.PodSandbox, _container: nri_pb2.Container) -> tuple[str, ...]:
    return ()


class Pods:
    """The pods of one runtime."""

    def __init__(  # noqa: PLR0913 - the sources
        self,
        node: Node,
        locator: Locator | None,
        assignments: AssignmentSource | None,
        claims: ClaimedDeviceSource | None,
        changed: Callable[[], None],
        *,
        objects: PodObjectSource | None = None,
        claimed: Callable[[nri_pb2.PodSandbox, nri_pb2.Container], tuple[str, ...]] = _no_claim,
    ) -> None:
        """Have *changed* called when others are counted, or Guaranteed pods have come or changed.

        Without a *locator* devices and mounts are no hints; without *assignments* neither the
        kubelet nor *claims* are queried. Without *objects* what containers ask for is estimated.
        *claimed* returns the parts of claims of our own devices that a container uses.
        """
        # by id: those of the node's view, but while the runtime's list is taken in
        self._known: dict[str, Sandbox] = {}
        self.locator = locator
        self._claimed = claimed
        self._node = node
        self._assignments = assignments
        self._claims = claims
        self._objects = objects
        self._changed = changed

    async def restart(
        self,
        pods: Sequence[nri_pb2.PodSandbox],
        containers: Iterable[nri_pb2.Container],
        ended: Collection[str] = (),
    ) -> None:
        """Take the pods that the runtime lists, with their containers, for all there are.

        Readers see them with `show`. Pods that have *ended* and have no containers are left out.
        """
        by_id = {pod.id: pod for pod in pods}
        # Listed are stopped pods, too, for as long as their objects exist (nri.md §3.10): without
        # containers, and without namespaces or, on newer runtimes, only without a process.
        living = {
            each.pod_sandbox_id for each in containers if each.state != nri_pb2.CONTAINER_STOPPED
        }
        for pod in pods:
            if pod.id in living and pod.id not in self._known:
                _warn_of(pod)
        running = [
            pod
            for pod in pods
            if pod.id in living or (pod.linux.namespaces and pod.id not in ended)
        ]
        counted = {each for each, known in self._known.items() if known.counted}
        self._known = {
            pod.id: replace(_sandbox_of(pod), counted=pod.id in counted) for pod in running
        }
        if self._objects is not None:
            self._objects.restart()
        if assignments := self._kubelet:
            listed = [pod_of(pod) for pod in pods]
            assignments.ask_all(listed)
            if self._claims is not None:
                self._claims.ask_all(listed)
            await assignments.ready(listed, self._pending(listed), seconds=START_PATIENCE)
        for container in containers:
            pod_id = container.pod_sandbox_id
            known = self._known.get(pod_id)
            if known is None or container.state not in STARTED:
                continue
            if self._counts(by_id[pod_id], container):
                self._known[pod_id] = replace(known, counted=True)

    def show(self) -> None:
        """Have readers see the pods that the runtime has listed."""
        self._node.replace_pods(self._known)
        self._changed()

    @property
    def listed(self) -> AbstractSet[str]:
        """The ids of the pods that exist, seen by readers or not."""
        return self._known.keys()

    def add(self, pod: nri_pb2.PodSandbox) -> None:
        """Say what is odd about a new pod's annotations, and ask about its devices and amounts."""
        if objects := self._cluster:
            objects.ask(pod_of(pod))
        if assignments := self._kubelet:
            asked = pod_of(pod)
            assignments.ask(asked)
            if self._claims is not None:
                self._claims.ask(asked)
        self._enter(pod.id, _sandbox_of(pod))
        _warn_of(pod)

    def resize(self, pod_id: str, asked: Resources) -> None:
        """Note what all containers of a pod ask for from now on."""
        self.forget_object(pod_id)
        if (known := self._known.get(pod_id)) is not None:
            whole = known.whole and replace(known.whole, resources=asked, resized=True)
            self._enter(pod_id, replace(known, asked=asked, whole=whole))

    def forget_object(self, pod_id: str) -> None:
        """Forget what a pod's object said before a resize."""
        if self._objects is not None:
            self._objects.forget(pod_id)

    def amounts(self, pod_id: str) -> Resources | None:
        """Return the latest known requests of all containers of a pod.

        After a resize, the sandbox still has the old ones; the engine and the store have the new.
        """
        view = self._node.view
        if pod_id in view.rooms:
            return view.rooms[pod_id].container.resources
        for each in self._node.of_pod(pod_id):
            container = view.placed[each].container
            if not container.pod_level and container.pod.amounts is not None:
                return container.pod.amounts
        sandbox = self._known.get(pod_id)
        return None if sandbox is None else sandbox.asked

    def only_container(self, pod_id: str) -> str | None:
        """Return the container that a resize of its pod is for.

        None if the pod's amounts differ from one container's: then it is unknown.
        """
        total, placed = self.amounts(pod_id), self._node.view.placed
        own = [placed[each].container for each in self._node.of_pod(pod_id)]
        if pod_id in self._node.view.rooms or len(own) != 1 or total is None:
            return None
        return own[0].id if _same(total, own[0].resources) else None

    def amounts_after(self, pod_id: str, change: Resources) -> Resources:
        """Return what all containers of a pod will ask for after a *change* of its resources.

        The kubelet changes limits and requests one after the other, and the rest it reads from the
        pod's cgroup: no limit as a large number, and requests that cgroup v2 has rounded. A
        Guaranteed pod's requests equal its limits. A pod shrinks after its containers, so that a
        change to no more than its sandbox has still names the limits before: the lesser amounts
        count.
        """
        if not 0 < change.memory_limit < NO_LIMIT:
            change = replace(change, memory_limit=0)
        total = self.amounts(pod_id) or Resources()
        sandbox = self._known.get(pod_id)
        guaranteed = sandbox is not None and sandbox.whole is not None
        if guaranteed:
            change = as_granted(change, total, QoS.GUARANTEED)
        elif change.cpu_shares in rounded_shares(total.cpu_shares):
            change = replace(change, cpu_shares=0)
        asked = overlay(total, change)
        if sandbox is not None and not _exceeds(asked, sandbox.asked):
            asked = _least(asked, total)
        if guaranteed and asked.cpu_limit is not None:
            asked = replace(asked, cpu_shares=shares_of(asked.cpu_limit))
        return asked

    def stop(self, pod: nri_pb2.PodSandbox) -> None:
        """Forget a pod that has stopped."""
        gone = pod_of(pod)
        for source in (self._assignments, self._claims):
            if source is not None:
                source.forget(gone)
        if self._objects is not None:
            self._objects.forget(pod.id)
        if pod.id in self._known:
            self._known = self._known.copy()
            del self._known[pod.id]
            self._node.replace_pods(self._known)

    async def ready(self, pod: nri_pb2.PodSandbox) -> None:
        """Wait a little for what was asked about a pod's devices and amounts."""
        objects, assignments = self._cluster, self._kubelet
        if objects is None and assignments is None:
            return
        asked = pod_of(pod)
        if objects is not None:
            await objects.ready(asked)
        if assignments is not None:
            await assignments.ready([asked], self._pending([asked]))

    def note_start(self, pod: nri_pb2.PodSandbox, container: nri_pb2.Container) -> None:
        """Count a pod of which a container has started, if schedulers take it to hold its own.

        The runtime may not have announced the pod, if no daemon ran when it was created.
        """
        known = self._known.get(pod.id)
        sandbox = known or _sandbox_of(pod)
        if not sandbox.counted and self._counts(pod, container):
            sandbox = replace(sandbox, counted=True)
        if sandbox is not known:
            self._enter(pod.id, sandbox)

    def _counts(self, pod: nri_pb2.PodSandbox, container: nri_pb2.Container) -> bool:
        """Whether a pod holds resources of its own: the Guaranteed ones, and those with devices.

        The latter as far as the kubelet is asked.
        """
        assignments = self._kubelet
        return QoS.of_cgroup(pod.linux.cgroup_parent) is QoS.GUARANTEED or (
            assignments is not None and bool(assignments.devices(pod_of(pod), container.name))
        )

    def _enter(self, pod_id: str, sandbox: Sandbox) -> None:
        """Have readers see a pod as it is now."""
        self._known = {**self._known, pod_id: sandbox}
        self._node.replace_pods(self._known)
        if sandbox.whole is not None or sandbox.counted:
            self._changed()

    def container(self, pod: nri_pb2.PodSandbox, container: nri_pb2.Container) -> Container:
        """Return the engine's view of a container, with what is near to it, and what it asks for.

        The latter in its owner's words, where these are known.
        """
        plain, assignments = container_of(pod, container), self._kubelet
        whole = self.amounts(pod.id)
        if whole is not None and whole != plain.pod.amounts:
            plain = replace(plain, pod=replace(plain.pod, amounts=whole))
        if used := self._claimed(pod, container):
            plain = replace(plain, claims=used)
        if near := self._hints_of_pod(plain.pod, assignments):
            plain = replace(plain, pod=replace(plain.pod, hints=near))
        if (objects := self._cluster) and (found := objects.of(plain.pod)):
            plain = described(plain, found)
        if self.locator is None:
            return plain
        assigned = assignments.devices(plain.pod, plain.name) if assignments else {}
        interfaces = container.linux.net_devices
        files = mounts_of(container), devices_of(container), interfaces
        hints, claimed = candidates(*files, assigned, self.locator), tuple[ClaimedDevice, ...]()
        if assignments and self._claims is not None:
            claimed = self._claims.devices(plain.pod, plain.name)
            hints = (*hints, *claim_hints(claimed, self.locator))
        if find(plain.pod.annotations, plain.name, IRQ_AFFINITY) is not None:
            devices = find_used_devices(*files, assigned, claimed, self.locator)
            plain = replace(plain, devices=devices)
        return replace(plain, hints=hints)

    def _hints_of_pod(self, pod: Pod, assignments: AssignmentSource | None) -> tuple[Hint, ...]:
        """Return hints of all containers of a pod that may get a room."""
        if assignments is None or self.locator is None:
            return ()
        rooms = self._node.view.layout.settings.pod_rooms is not PodRooms.OFF
        if not rooms and find(pod.annotations, "", POD_ROOM) is None:
            return ()
        found: dict[Hint, None] = {}
        for each in assignments.owners(pod):
            assigned = assignments.devices(pod, each)
            found |= dict.fromkeys(candidates((), (), (), assigned, self.locator))
            if self._claims is not None:
                found |= dict.fromkeys(claim_hints(self._claims.devices(pod, each), self.locator))
        return tuple(found)

    def _pending(self, pods: Sequence[Pod]) -> Iterable[Task[Any]]:
        """Return what is still looked up about the resource claims of *pods*."""
        return self._claims.pending(pods) if self._claims else ()

    def ask_late(self) -> None:
        """Ask about the containers that run already, as far as their owners' words are not known.

        Not about those that request nothing, or that were resized since.
        """
        if objects := self._cluster:
            unknown = {
                each.container.pod.id: each.container.pod
                for each in self._node.view.placed.values()
                if each.container.requirements is None and not each.container.resized
            }
            objects.ask_late(unknown.values())

    @property
    def exact(self) -> bool:
        """Whether what containers ask for will be known in their owners' words."""
        objects = self._cluster
        return objects is not None and objects.readable

    @property
    def _cluster(self) -> PodObjectSource | None:
        """The source of pod objects; None if the settings turn it off."""
        asked = self._node.view.layout.settings.agent.pod_specs is PodSpecs.AUTO
        return self._objects if asked else None

    @property
    def _kubelet(self) -> AssignmentSource | None:
        """The source of the kubelet's assignments; None if the settings turn it off."""
        asked = self._node.view.layout.settings.agent.pod_resource_api
        return self._assignments if asked else None


def _sandbox_of(pod: nri_pb2.PodSandbox) -> Sandbox:
    """Return what a sandbox says of its pod."""
    linux, whole = pod.linux, None
    asked = resources_of(linux.pod_resources)
    if QoS.of_cgroup(linux.cgroup_parent) is QoS.GUARANTEED:
        whole = Container(
            id=pod.id,
            pod=pod_of(pod),
            name="",
            state=ContainerState.CREATED,
            created=0,
            labels={},
            resources=asked,
        )
    return Sandbox(
        namespace=pod.namespace,
        name=pod.name,
        folder=linux.cgroup_parent,
        asked=asked,
        whole=whole,
        overhead=linux.pod_overhead.cpu.quota.value,
    )


def _same(some: Resources, others: Resources) -> bool:
    """Return whether CPU and memory are the same."""
    return (some.cpu_request, some.cpu_limit, some.memory_limit) == (
        others.cpu_request,
        others.cpu_limit,
        others.memory_limit,
    )


def _limits(resources: Resources) -> tuple[float, float]:
    """Return the limits of CPU and memory."""
    limit = resources.cpu_limit
    return math.inf if limit is None else limit, resources.memory_limit or math.inf


def _exceeds(some: Resources, others: Resources) -> bool:
    """Return whether *some* resources are more of anything than *others*."""
    pairs = zip(
        (some.cpu_request, *_limits(some)), (others.cpu_request, *_limits(others)), strict=True
    )
    return any(one > other for one, other in pairs)


def _least(some: Resources, others: Resources) -> Resources:
    """Return what is less of each."""
    cpu, memory = (min((some, others), key=lambda each: _limits(each)[which]) for which in (0, 1))
    return replace(
        some,
        cpu_shares=min(some.cpu_shares, others.cpu_shares),
        cpu_quota=cpu.cpu_quota,
        cpu_period=cpu.cpu_period,
        memory_limit=memory.memory_limit,
    )


def _warn_of(pod: nri_pb2.PodSandbox) -> None:
    """Log what is odd about the keys of a pod's annotations."""
    for warning in warnings(annotations_of(pod)):
        log.warning("annotation", extra={"pod": f"{pod.namespace}/{pod.name}", "text": warning})
