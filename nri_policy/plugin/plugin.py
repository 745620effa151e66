"""The policy as a plugin: NRI requests to engine events, decisions to adjustments and updates.

Owns the order of things. What other containers than the one asked about have to hear goes to
`update_queue`, which knows when.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from google.protobuf.message import Message
from msgspec import Struct
from msgspec.structs import replace

from nri_policy.classes import Equipment
from nri_policy.engine.event import (
    Created,
    Described,
    Drifted,
    Elapsed,
    Equipped,
    PodStopped,
    Reconfigured,
    Resized,
    Started,
    Stopped,
    StoredGrant,
    Synchronized,
)
from nri_policy.hardware.locality import Locator
from nri_policy.hardware.machine import Machine
from nri_policy.node import Node
from nri_policy.nri.errors import CallRefused
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
from nri_policy.plugin.lasting import Lasting, Scopes
from nri_policy.plugin.pod_quotas import PodQuotas, QuotaFiles
from nri_policy.plugin.pods import Assignments, Claims, PodObjects, Pods
from nri_policy.plugin.resizes import Resizes
from nri_policy.plugin.telling import Telling
from nri_policy.plugin.update_queue import WITH_CREATION, WITH_LIST, WITH_STOP, UpdateQueue
from nri_policy.plugin.writing import Writing
from nri_policy.proto import nri_pb2
from nri_policy.settings import Settings
from nri_policy.workload.pod import Container, ContainerState, Pod
from nri_policy.workload.requirements import PodRequirements

log = logging.getLogger(__name__)


class HostCgroups(Cgroups, QuotaFiles, Protocol):
    """The cgroups of containers and pods: `audit.cgroup.Cgroups`."""


class Sources(Struct, frozen=True, kw_only=True):
    """What else is asked about containers, and the time."""

    locator: Locator | None = None  # None: devices and mounts are no hints
    assignments: Assignments | None = None  # None: the kubelet is not asked
    claims: Claims | None = None  # None: the cluster is not asked about resource claims
    objects: PodObjects | None = None  # None: nor about what containers ask for
    scopes: Scopes | None = None  # None: systemd cannot be asked to keep what is written
    cgroups: HostCgroups | None = None  # None: only the runtime's events say what is in force
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
        wrote: Callable[[int, float], None] = lambda _number, _seconds: None,
        overlapped: Callable[[Overlap], None] = lambda _: None,
        started: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Take the node, and whom to tell.

        *synchronized* is called whenever the runtime's containers are all known, *pods_changed*
        when there are others of the pods that schedulers count, *enforced* for each cpuset that was
        written because it could not wait for the runtime, *wrote* with how many cpusets a batch
        wrote before the runtime heard of them, and its seconds, *overlapped* with who was found on
        CPUs of somebody else's own, *started* with each container in a class that has started.
        """
        self._now = sources.now
        self._host_equipment = sources.equipment
        self.runtime: Runtime | None = None  # None: not heard of yet
        self._node = node
        self._update_queue = update_queue
        self._confirmations = update_queue.confirmations
        self._resources = ExposedResources(node, exposure)
        self.writing = Writing(node, update_queue, sources.cgroups, wrote=wrote)
        self._decisions = Decisions(node, update_queue, self.writing, self._resources)
        self.resizes = Resizes(node, self._decisions, update_queue, self._resources)
        self.enforcement = Enforcement(
            node,
            update_queue,
            sources.cgroups,
            writing=self.writing,
            resize_overdue=self.resizes.overdue,
            wrote=enforced,
            overlapped=overlapped,
        )
        self.lasting = Lasting(
            node,
            update_queue,
            cgroups=sources.cgroups,
            scopes=sources.scopes,
            turn=self.writing.lock,
        )
        self.telling = Telling(node, update_queue)
        self.pods = Pods(
            node,
            sources.locator,
            sources.assignments,
            sources.claims,
            pods_changed,
            objects=sources.objects,
        )
        self.quotas = PodQuotas(node, self.pods, update_queue, sources.cgroups)
        self._inventory = Inventory(node, self.pods, update_queue, self.enforcement, sources.held)
        # containers that have ended before the runtime said that they had started
        self._ended_early: set[str] = set()
        self.pids: dict[str, int] = {}  # of the containers' first processes, as the runtime says
        self._synchronized = synchronized
        self._started = started
        self.late_answers: Counter[str] = Counter()  # given without a decision, by method

    async def configure(self, request: nri_pb2.ConfigureRequest, runtime: Runtime) -> None:
        """Serve any runtime alike, and warn of one that may not survive our coming."""
        del request
        self.runtime = runtime
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
        runtime = self.runtime
        shows_processes = runtime is not None and runtime.shows_pod_processes
        if shows_processes:
            containers = _without_stopped_pods(pods, containers)
        await self.pods.restart(pods, containers, shows_processes=shows_processes)
        ids = {pod.id for pod in pods}
        listed = [
            container
            for container in containers
            if container.pod_sandbox_id in ids and container.state != nri_pb2.CONTAINER_STOPPED
        ]
        present, held = await self._inventory.read(pods, listed)
        creating: Sequence[Container] = ()
        if runtime is not None and runtime.hides_creations:
            creating = await self._inventory.under_creation(pods, present, held, runtime.name)
        self.pids = {each.id: each.pid for each in listed}
        self._ended_early.clear()
        self.resizes.restart(present)
        decision = self._decisions.decide(
            Synchronized(
                containers=(*present, *creating),
                pods=self._inventory.empty_pods(pods, present),
                held=held,
                now=self._now(),
                equipment=self._equipment(),
            )
        )
        self._confirmations.restart(
            (each.id, Phase.RUNNING if each.state is ContainerState.RUNNING else Phase.CREATED)
            for each in present
        )
        for container in creating:
            self._confirmations.enter(container.id, Phase.CREATING)
        # whoever differs from the decisions is among them
        self._update_queue.only(decision.changes)
        if runtime is not None and runtime.lists_creations:
            self._update_queue.note(self._inventory.unseen())
        due = (self._node.view.placement(each.id) for each in listed)
        self._update_queue.ledger.compare(filter(None, due), self._update_queue.clock.now())
        await self.writing.probe(each.id for each in listed)
        self.writing.claim()
        await self.writing.narrow()
        log.info(
            "synchronized", extra={"containers": len(present), "changed": len(decision.changes)}
        )
        self._resources.restart()
        self.quotas.expect_all()
        self.pods.ask_late()
        self._synchronized()
        return self._update_queue.take(untold=WITH_LIST)

    async def run_pod_sandbox(self, pod: nri_pb2.PodSandbox) -> None:
        """Take note of a new pod."""
        self.pods.add(pod)

    async def update_pod_sandbox(self, request: nri_pb2.UpdatePodSandboxRequest) -> None:
        """Note what a resized pod asks for in all; its containers' updates come by themselves.

        What the pod's one container would be refused, or its room, is refused here: nothing has
        changed yet.
        """
        asked, pod_id = resources_of(request.linux_resources), request.pod.id
        if pod_id in self._node.view.rooms:
            whole = self.pods.asked(pod_id, asked)
            self._decisions.decide(Resized(container_id=pod_id, resources=whole))
            await self.writing.narrow()
        elif announced := self.pods.announced(pod_id, asked):
            self.resizes.foresee(*announced)
        self.pods.resize(pod_id, asked)
        self.quotas.expect([pod_id])

    async def stop_pod_sandbox(self, pod: nri_pb2.PodSandbox) -> None:
        """Release what is left of a pod."""
        self.pods.stop(pod)
        self.quotas.forget(pod.id)
        left = self._node.of_pod(pod.id)
        self._decisions.decide(PodStopped(pod_id=pod.id))
        for each in left:  # of some a runtime says nothing more
            self._forget(each)

    async def remove_pod_sandbox(self, pod: nri_pb2.PodSandbox) -> None:
        """Release what is left of a pod whose stop was missed."""
        await self.stop_pod_sandbox(pod)

    async def create_container(
        self, pod: nri_pb2.PodSandbox, container: nri_pb2.Container
    ) -> nri_pb2.CreateContainerResponse:
        """Return where a container to be must run, and who has to move for it."""
        await self.pods.ready(pod)
        self._hear()
        self._confirmations.enter(container.id, Phase.CREATING)
        admitted = overdue() or self._decisions.pins_nothing
        try:
            decision = self._decisions.decide(
                Created(
                    container=self.pods.container(pod, container),
                    admitted=admitted,
                    unheard=overdue(),
                )
            )
        except CallRefused:
            self._confirmations.forget(container.id)  # not every runtime says that it has given up
            raise
        await self.writing.make_room(moved=bool(decision.changes))
        response = nri_pb2.CreateContainerResponse(
            update=self._update_queue.take(container.id, untold=WITH_CREATION, creating=True)
        )
        if decision.placement is not None:
            own = self._update_queue.own(decision.placement)
            response.adjust.CopyFrom(adjustment_of(own, decision.classes))
            self._update_queue.answered(own, creating=True)
            if mount := self._resources.add(container.id):
                response.adjust.mounts.append(mount)
        return response

    async def start_container(self, pod: nri_pb2.PodSandbox, container: nri_pb2.Container) -> None:
        """Note when a container starts: it has its place since its creation.

        It waits until it and those whose CPUs it got are in their places, as far as that is quick.
        """
        self.pods.started(pod, container)
        self._hear()
        self._update_queue.created(container.id)
        self._take_in(pod, container)
        self._decisions.decide(Started(container_id=container.id, now=self._now()))
        self._confirmations.enter(container.id, Phase.STARTING)
        placed = self._node.view.placed.get(container.id)
        if placed is not None and (own := placed.grant.exclusive | placed.grant.rest):
            await self.writing.cleared(own)
        await self.quotas.start(pod.id)
        await self.enforcement.settle(container.id)

    async def post_create_container(
        self, pod: nri_pb2.PodSandbox, container: nri_pb2.Container
    ) -> None:
        """Make up for what the runtime has lost while it created the container."""
        self._hear()
        self._take_in(pod, container)
        self._confirmations.enter(container.id, Phase.CREATED)
        await self.enforcement.settle(container.id, starts=False)

    async def post_start_container(
        self, pod: nri_pb2.PodSandbox, container: nri_pb2.Container
    ) -> None:
        """Make up for what the runtime has lost while it started the container."""
        self._hear()
        if container.id in self._ended_early:
            self._ended_early.remove(container.id)
            return
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
        self._hear()
        self.pods.resized(pod.id)
        self.quotas.expect([pod.id])
        whole = self.pods.amounts(pod.id)
        decision = self.resizes.begin(container.id, resources_of(resources), whole)
        self._update_queue.supersede(container.id)
        await self.writing.narrow()
        others = self._update_queue.take(container.id, untold=WITH_CREATION)
        if decision.placement is None:
            return nri_pb2.UpdateContainerResponse(update=others)
        own = update_of(self._update_queue.own(decision.placement), ignore_failure=False)
        response = nri_pb2.UpdateContainerResponse(update=[own, *others])
        self.resizes.answered(container.id)
        return response

    async def post_update_container(
        self, pod: nri_pb2.PodSandbox, container: nri_pb2.Container
    ) -> None:
        """Hear that a resize is in force."""
        self._hear()
        self.resizes.end(container.id)
        self.enforcement.expect()
        self.quotas.expect([pod.id])

    async def stop_container(
        self, pod: nri_pb2.PodSandbox, container: nri_pb2.Container
    ) -> nri_pb2.StopContainerResponse:
        """Release a container; return who may spread now.

        One that was never started has not ended: containerd says so of it all the same, starts it
        whenever it is asked to, and lists it at the next registration.
        """
        self._hear()
        phase = self._confirmations.phase(container.id)
        if phase is Phase.STARTING:
            self._ended_early.add(container.id)
        if phase is Phase.CREATED and container.state == nri_pb2.CONTAINER_CREATED:
            return nri_pb2.StopContainerResponse(update=self._update_queue.take())
        self._forget(container.id)
        self._decisions.decide(Stopped(container_id=container.id))
        self._update_queue.ended(container.id)
        self.quotas.expect([pod.id])
        await self.writing.release()
        return nri_pb2.StopContainerResponse(
            update=self._update_queue.take(container.id, untold=WITH_STOP)
        )

    async def remove_container(self, pod: nri_pb2.PodSandbox, container: nri_pb2.Container) -> None:
        """Release a container whose stop was missed."""
        del pod
        self._hear()
        self._forget(container.id)
        self._ended_early.discard(container.id)
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

    def _hear(self) -> None:
        self._confirmations.heard(self._update_queue.clock.now())

    def _forget(self, container_id: str) -> None:
        self._confirmations.forget(container_id)
        self.pids.pop(container_id, None)
        self.resizes.forget(container_id)
        self.writing.forget(container_id)
        self._update_queue.ledger.forget(container_id)

    async def release(
        self, container_ids: Iterable[str], state: ContainerState
    ) -> Sequence[Container]:
        """Release containers that have ended, though the runtime has not said so; return them.

        Only those that are in *state*: one that was created may have been started meanwhile.
        """
        async with self._node.turn:
            placed = self._node.view.placed
            known = [placed[each].container for each in container_ids if each in placed]
            gone = [each for each in known if each.state is state]
            for each in gone:
                log.warning("ended-without-event", extra={"container": each.id})
                self._decisions.decide(Stopped(container_id=each.id))
                self._forget(each.id)
                self._resources.remove(each.id)
        return gone

    async def clear_rooms(self, pod_ids: Iterable[str]) -> None:
        """Release the rooms of pods that have ended, though the runtime has not said so.

        Only those without tenants: a container may have come meanwhile.
        """
        async with self._node.turn:
            for each in pod_ids:
                view = self._node.view
                tenants = (view.placed[one].grant.tenant for one in self._node.of_pod(each))
                if each in view.rooms and not any(tenants):
                    log.warning("ended-without-event", extra={"pod": each})
                    self.quotas.forget(each)
                    self._decisions.decide(PodStopped(pod_id=each))

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
            self.quotas.expect_all()
            if machine is not None and self.pods.locator is not None:
                self.pods.locator.renew(machine)
        return True

    async def describe(self, pod: Pod, said: PodRequirements) -> None:
        """Take in what the object of a pod says whose containers were placed before it was known.

        What they have too much is given back.
        """
        async with self._node.turn:
            self._decisions.decide(Described(pod_id=pod.id, said=said))
            self.quotas.expect([pod.id])
            await self.writing.narrow()

    async def equip(self) -> None:
        """Take in what the host can do now, as far as that is other than it was."""
        async with self._node.turn:
            equipment = self._equipment()
            if equipment != self._node.view.equipment:
                self._decisions.decide(Equipped(equipment=equipment))

    def _equipment(self) -> Equipment:
        """Return what the host and the runtime can do."""
        host, runtime = self._host_equipment(), self.runtime
        if runtime is None:
            return host
        return replace(
            host,
            no_scheduler=runtime.no_scheduler or host.no_scheduler,
            no_io_priority=runtime.no_io_priority or host.no_io_priority,
            no_io_updates=runtime.no_unified_updates or host.no_io_updates,
        )

    async def resend(self, container_ids: Iterable[str]) -> None:
        """Put in force again where these containers run, whatever the runtime believes."""
        async with self._node.turn:
            await self._inventory.look_at(container_ids)
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
            case _:
                response: Message = getattr(nri_pb2, f"{method}Response")()
                return response


def _without_stopped_pods(
    pods: Iterable[nri_pb2.PodSandbox], containers: Iterable[nri_pb2.Container]
) -> list[nri_pb2.Container]:
    """Return the *containers* but for those that never started, and cannot: their pods have ended.

    containerd lists them until they are removed.
    """
    ended = {pod.id for pod in pods if not pod.pid}
    return [
        each
        for each in containers
        if each.state != nri_pb2.CONTAINER_CREATED or each.pod_sandbox_id not in ended
    ]
