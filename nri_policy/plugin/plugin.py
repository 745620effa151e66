"""The policy as a plugin: NRI requests to engine events, decisions to adjustments and updates.

Owns the order of things. What other containers than the one asked about have to hear goes to
`update_queue`, which knows when.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from google.protobuf.message import Message
from msgspec import Struct
from msgspec.structs import replace

from nri_policy.classes import Equipment
from nri_policy.engine.event import (
    Created,
    Drifted,
    Elapsed,
    Equipped,
    PodStopped,
    Reconfigured,
    Started,
    Stopped,
    StoredGrant,
    Synchronized,
)
from nri_policy.hardware.locality import Locator
from nri_policy.hardware.machine import Machine
from nri_policy.node import Node
from nri_policy.nri.plugin import overdue
from nri_policy.nri.versions import Runtime
from nri_policy.plugin.confirmation import Phase
from nri_policy.plugin.convert import (
    adjustment_of,
    container_of,
    resources_of,
    update_of,
)
from nri_policy.plugin.decisions import Decisions
from nri_policy.plugin.enforcement import Cgroups, Enforcement, Overlap
from nri_policy.plugin.exposed_resources import ExposedResources
from nri_policy.plugin.exposure import Exposure
from nri_policy.plugin.inventory import Inventory
from nri_policy.plugin.pods import Assignments, Pods
from nri_policy.plugin.resizes import Resizes
from nri_policy.plugin.update_queue import UpdateQueue
from nri_policy.proto import nri_pb2
from nri_policy.settings import Settings
from nri_policy.workload.pod import Container, ContainerState

log = logging.getLogger(__name__)


class Sources(Struct, frozen=True, kw_only=True):
    """What else is asked about containers, and the time."""

    locator: Locator | None = None  # None: devices and mounts are no hints
    assignments: Assignments | None = None  # None: the kubelet is not asked
    cgroups: Cgroups | None = None  # None: only the runtime's events say what is in force
    now: Callable[[], float] = time.time  # seconds since the epoch
    held: Callable[[], Mapping[str, StoredGrant]] = dict  # what an earlier daemon granted, by id
    equipment: Callable[[], Equipment] = Equipment  # of the host, whatever the runtime


class PolicyPlugin:
    """Handles the requests of one runtime with one engine; a `Plugin`."""

    def __init__(  # noqa: PLR0913 - keywords: the parts that the daemon wires
        self,
        node: Node,
        exposure: Exposure,
        update_queue: UpdateQueue,
        *,
        sources: Sources,
        synchronized: Callable[[], None],
        pods_changed: Callable[[], None] = lambda: None,
        enforced: Callable[[], None] = lambda: None,
        overlapped: Callable[[Overlap], None] = lambda _: None,
        started: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Take the node, and whom to tell.

        *synchronized* is called whenever the runtime's containers are all known, *pods_changed*
        when there are others of the pods that schedulers count, *enforced* for each cpuset that was
        written here, *overlapped* with who was found on CPUs of somebody else's own, *started*
        with each container in a class that has started.
        """
        self._now = sources.now
        self._host_equipment = sources.equipment
        self._runtime: Runtime | None = None
        self._node = node
        self._update_queue = update_queue
        self._confirmations = update_queue.confirmations
        self._resources = ExposedResources(node, exposure)
        self._decisions = Decisions(node, update_queue, self._resources)
        self._resizes = Resizes(node, self._decisions, update_queue, self._resources)
        self.enforcement = Enforcement(
            node,
            update_queue,
            sources.cgroups,
            resize_overdue=self._resizes.overdue,
            wrote=enforced,
            overlapped=overlapped,
        )
        self.pods = Pods(node, sources.locator, sources.assignments, pods_changed)
        self._inventory = Inventory(node, self.pods, update_queue, self.enforcement, sources.held)
        self.pids: dict[str, int] = {}  # of the containers' first processes, as the runtime says
        self._synchronized = synchronized
        self._started = started
        self.late_answers: Counter[str] = Counter()  # given without a decision, by method

    async def configure(self, request: nri_pb2.ConfigureRequest, runtime: Runtime) -> None:
        """Serve any runtime alike, and warn of one that may not survive our coming."""
        del request
        self._runtime = runtime
        log.info("configured", extra={"runtime": str(runtime)})
        if runtime.registration_can_deadlock:
            log.warning(
                "old-runtime",
                extra={
                    "runtime": str(runtime),
                    "text": "it can hang when a plugin registers (containerd#10085): upgrade it",
                },
            )

    async def synchronize(
        self, pods: Sequence[nri_pb2.PodSandbox], containers: Sequence[nri_pb2.Container]
    ) -> Sequence[nri_pb2.ContainerUpdate]:
        """Take the runtime's containers for the truth; return updates of those that must change."""
        await self.pods.restart(pods, containers)
        ids = {pod.id for pod in pods}
        listed = [
            container
            for container in containers
            if container.pod_sandbox_id in ids and container.state != nri_pb2.CONTAINER_STOPPED
        ]
        present, held = await self._inventory.read(pods, listed)
        self.pids = {each.id: each.pid for each in listed}
        self._resizes.restart(present)
        decision = self._decisions.decide(
            Synchronized(
                containers=present, held=held, now=self._now(), equipment=self._equipment()
            )
        )
        self._confirmations.restart(
            (each.id, Phase.RUNNING if each.state is ContainerState.RUNNING else Phase.CREATED)
            for each in present
        )
        # whoever differs from the decisions is among them
        self._update_queue.only(decision.changes)
        if self._runtime is not None and self._runtime.lists_creations:
            self._update_queue.note(self._inventory.unseen())
        self._update_queue.remind(self._inventory.misremembered(listed))
        log.info(
            "synchronized", extra={"containers": len(present), "changed": len(decision.changes)}
        )
        self._resources.restart()
        self._synchronized()
        return self._update_queue.take()

    async def run_pod_sandbox(self, pod: nri_pb2.PodSandbox) -> None:
        """Take note of a new pod."""
        self.pods.add(pod)

    async def update_pod_sandbox(self, request: nri_pb2.UpdatePodSandboxRequest) -> None:
        """Note what a resized pod asks for in all; its containers' updates come by themselves."""
        self.pods.resize(request.pod.id, resources_of(request.linux_resources))

    async def stop_pod_sandbox(self, pod: nri_pb2.PodSandbox) -> None:
        """Release what is left of a pod."""
        self.pods.stop(pod)
        self._decisions.decide(PodStopped(pod_id=pod.id))

    async def remove_pod_sandbox(self, pod: nri_pb2.PodSandbox) -> None:
        """Release what is left of a pod whose stop was missed."""
        await self.stop_pod_sandbox(pod)

    async def create_container(
        self, pod: nri_pb2.PodSandbox, container: nri_pb2.Container
    ) -> nri_pb2.CreateContainerResponse:
        """Return where a container to be must run, and who has to move for it."""
        await self.pods.ready(pod)
        self._confirmations.heard()
        self._confirmations.enter(container.id, Phase.CREATING)
        admitted = overdue() or self._decisions.pins_nothing
        decision = self._decisions.decide(
            Created(
                container=self.pods.container(pod, container),
                admitted=admitted,
                unheard=overdue(),
            )
        )
        response = nri_pb2.CreateContainerResponse(
            update=self._update_queue.take(container.id, creating=True)
        )
        if decision.placement is not None:
            own = self._update_queue.own(decision.placement)
            response.adjust.CopyFrom(adjustment_of(own, decision.classes))
            self._update_queue.answered(container.id)
            if mount := self._resources.add(container.id):
                response.adjust.mounts.append(mount)
        return response

    async def start_container(self, pod: nri_pb2.PodSandbox, container: nri_pb2.Container) -> None:
        """Note when a container starts: it has its place since its creation.

        It waits until it and those whose CPUs it got are in their places, as far as that is quick.
        """
        self.pods.started(pod, container)
        self._confirmations.heard()
        self._update_queue.created(container.id)
        self._take_in(pod, container)
        self._decisions.decide(Started(container_id=container.id, now=self._now()))
        self._confirmations.enter(container.id, Phase.STARTING)
        await self.enforcement.settle(container.id)

    async def post_create_container(
        self, pod: nri_pb2.PodSandbox, container: nri_pb2.Container
    ) -> None:
        """Make up for what the runtime has lost while it created the container."""
        self._confirmations.heard()
        self._take_in(pod, container)
        self._confirmations.enter(container.id, Phase.CREATED)
        await self.enforcement.settle(container.id)

    async def post_start_container(
        self, pod: nri_pb2.PodSandbox, container: nri_pb2.Container
    ) -> None:
        """Make up for what the runtime has lost while it started the container."""
        self._confirmations.heard()
        if self._take_in(pod, container):
            self._decisions.decide(Started(container_id=container.id, now=self._now()))
        self._confirmations.enter(container.id, Phase.RUNNING)
        if container.id in self._node.view.classes:
            self._started(container.id)
        self.enforcement.expect()
        await self.enforcement.settle(container.id)

    async def update_container(
        self,
        pod: nri_pb2.PodSandbox,
        container: nri_pb2.Container,
        resources: nri_pb2.LinuxResources,
    ) -> nri_pb2.UpdateContainerResponse:
        """Return where a resized container must run now, and who has to move for it."""
        del pod
        self._confirmations.heard()
        decision = self._resizes.begin(container.id, resources_of(resources))
        if decision.placement is None:
            return nri_pb2.UpdateContainerResponse(update=self._update_queue.take(container.id))
        own = update_of(self._update_queue.own(decision.placement), ignore_failure=False)
        response = nri_pb2.UpdateContainerResponse(
            update=[own, *self._update_queue.take(container.id)]
        )
        self._resizes.answered(container.id)
        return response

    async def post_update_container(
        self, pod: nri_pb2.PodSandbox, container: nri_pb2.Container
    ) -> None:
        """Hear that a resize is in force."""
        del pod
        self._confirmations.heard()
        self._resizes.end(container.id)
        self.enforcement.expect()

    async def stop_container(
        self, pod: nri_pb2.PodSandbox, container: nri_pb2.Container
    ) -> nri_pb2.StopContainerResponse:
        """Release a container; return who may spread now."""
        del pod
        self._confirmations.heard()
        self._forget(container.id)
        self._decisions.decide(Stopped(container_id=container.id))
        self._update_queue.ended(container.id)
        return nri_pb2.StopContainerResponse(update=self._update_queue.take(container.id))

    async def remove_container(self, pod: nri_pb2.PodSandbox, container: nri_pb2.Container) -> None:
        """Release a container whose stop was missed."""
        del pod
        self._confirmations.heard()
        self._forget(container.id)
        self._decisions.decide(Stopped(container_id=container.id))
        self._resources.remove(container.id)

    def _take_in(self, pod: nri_pb2.PodSandbox, container: nri_pb2.Container) -> bool:
        """Place a container whose creation was missed; return whether it was.

        It is created, or started again, whatever we say: its due is what there is.
        """
        if container.pid:
            self.pids[container.id] = container.pid
        if container.id in self._node.view.placed:
            return False
        log.warning("creation-missed", extra={"container": container.id})
        decision = self._decisions.decide(
            Created(container=self.pods.container(pod, container), admitted=True, unheard=True)
        )
        if decision.placement is not None:
            self._update_queue.note([decision.placement])
        return decision.placement is not None

    def _forget(self, container_id: str) -> None:
        self._confirmations.forget(container_id)
        self.pids.pop(container_id, None)
        self._resizes.forget(container_id)

    async def release(self, container_ids: Iterable[str]) -> Sequence[Container]:
        """Release containers that have ended, though the runtime has not said so; return them."""
        async with self._node.turn:
            placed = self._node.view.placed
            gone = [placed[each].container for each in container_ids if each in placed]
            for each in gone:
                log.warning("ended-without-event", extra={"container": each.id})
                self._decisions.decide(Stopped(container_id=each.id))
                self._forget(each.id)
        return gone

    async def elapse(self) -> None:
        """Do what is due by now."""
        async with self._node.turn:
            now, deadline = self._now(), self._node.view.next_deadline
            if deadline is not None and deadline <= now:
                self._decisions.decide(Elapsed(now=now))

    async def reconfigure(
        self,
        *,
        settings: Settings | None = None,
        machine: Machine | None = None,
        instead_of: Machine | None = None,
    ) -> bool:
        """Change what the decisions rest on; return whether that was done.

        It is not if another machine than *instead_of*, where one is given, is in force by now.
        Refused, never for a machine alone: everything stays as it was.
        """
        async with self._node.turn:
            if instead_of is not None and self._node.view.layout.machine is not instead_of:
                return False
            self._decisions.reconfigure(Reconfigured(settings=settings, machine=machine))
            if machine is not None and self.pods.locator is not None:
                self.pods.locator.renew(machine)
        return True

    async def equip(self) -> None:
        """Take in what the host can do now, as far as that is other than it was."""
        async with self._node.turn:
            equipment = self._equipment()
            if equipment != self._node.view.equipment:
                self._decisions.decide(Equipped(equipment=equipment))

    def _equipment(self) -> Equipment:
        """Return what the host and the runtime can do."""
        host, runtime = self._host_equipment(), self._runtime
        if runtime is None:
            return host
        return replace(
            host,
            no_scheduler=runtime.no_scheduler or host.no_scheduler,
            no_io_priority=runtime.no_io_priority or host.no_io_priority,
            no_io_updates=runtime.no_unified_updates or host.no_io_updates,
        )

    async def resend(self, container_ids: Iterable[str]) -> None:
        """Have the runtime told again where these containers run, whatever it believes."""
        async with self._node.turn:
            self._decisions.decide(Drifted(container_ids=tuple(container_ids)))

    async def disconnected(self) -> None:
        """Keep everything: containers go on without us, and Synchronize comes first on return."""

    def late(self, method: str, request: Message) -> Message | None:
        """Admit what is asked, with what is certain: the decision follows, and is told then.

        A container under creation gets CPUs that are nobody's own, one that is resized keeps its
        cpuset.
        """
        self.late_answers[method] += 1
        match request:
            case nri_pb2.ConfigureRequest():
                return nri_pb2.ConfigureResponse(events=Runtime.from_request(request).events)
            case nri_pb2.SynchronizeRequest():
                return nri_pb2.SynchronizeResponse(more=request.more)
            case nri_pb2.CreateContainerRequest():
                placement = self._node.interim_placement(
                    container_of(request.pod, request.container)
                )
                return nri_pb2.CreateContainerResponse(adjust=adjustment_of(placement))
            case nri_pb2.UpdateContainerRequest():
                held = self._node.view.placement(request.container.id)
                own = (
                    []
                    if held is None
                    else [update_of(self._update_queue.own(held), ignore_failure=False)]
                )
                return nri_pb2.UpdateContainerResponse(update=own)
        response: Message = getattr(nri_pb2, f"{method}Response")()
        return response
