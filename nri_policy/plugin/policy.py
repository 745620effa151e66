"""The policy as a plugin: NRI requests to engine events, decisions to adjustments and updates.

Owns the order of things. What other containers than the one asked about have to hear goes to
`telling`, which knows when.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from google.protobuf.message import Message
from msgspec.structs import replace

from nri_policy.cpuset import CPUSet
from nri_policy.engine.engine import Engine
from nri_policy.engine.event import (
    Created,
    Drifted,
    Elapsed,
    Event,
    PodStopped,
    Reconfigured,
    Resized,
    ResizeEnded,
    Started,
    Stopped,
    StoredGrant,
    Synchronized,
)
from nri_policy.engine.grant import Decision, Placement
from nri_policy.engine.interim import known
from nri_policy.engine.placement import RefusalError
from nri_policy.engine.synchronization import has, not_older, parsed
from nri_policy.engine.view import exposed
from nri_policy.hardware.locality import Locator
from nri_policy.hardware.machine import Machine
from nri_policy.nri.errors import Refused
from nri_policy.nri.plugin import overdue
from nri_policy.nri.versions import Runtime
from nri_policy.plugin.confirmation import Phase
from nri_policy.plugin.convert import (
    adjustment_of,
    container_of,
    devices_of,
    mounts_of,
    pod_of,
    resources_of,
    update_of,
)
from nri_policy.plugin.enforcement import Cgroups, Enforcement
from nri_policy.plugin.exposure import Exposure
from nri_policy.plugin.updates import Telling
from nri_policy.pools.capacity import CapacityError
from nri_policy.proto import nri_pb2
from nri_policy.settings import Settings
from nri_policy.workload.annotation_table import warnings
from nri_policy.workload.annotations import AnnotationError
from nri_policy.workload.hints import candidates
from nri_policy.workload.pod import Container, Pod, QoS, Resources, State

log = logging.getLogger(__name__)

Outcome = Decision | RefusalError | AnnotationError | CapacityError

# A thread that writes takes the interpreter from who answers, at each of its calls of the system:
# it begins when the answer has long left, and what changes in a row is written together.
REST = 0.1  # seconds
MOST_SHOWN = 32  # containers at a time
# of a container that has run, or does
STARTED = {nri_pb2.CONTAINER_RUNNING, nri_pb2.CONTAINER_PAUSED, nri_pb2.CONTAINER_STOPPED}


class Assignments(Protocol):
    """Where devices are that the kubelet has assigned; `kubelet.podresources.Assignments`."""

    def ask(self, pod: Pod) -> None:
        """Ask for a new pod's devices, without waiting."""

    def ask_all(self, pods: Iterable[Pod]) -> None:
        """Ask for the devices of all pods there are, without waiting."""

    async def ready(self, pods: Iterable[Pod]) -> None:
        """Wait a little for what was asked."""

    def devices(self, pod: Pod, container: str) -> Mapping[str, tuple[CPUSet, ...]]:
        """Return the memory nodes of each device, by resource."""
        ...

    def forget(self, pod: Pod) -> None:
        """Forget a pod that is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """What else is asked about containers, and the time."""

    locator: Locator | None = None  # None: devices and mounts are no hints
    assignments: Assignments | None = None  # None: the kubelet is not asked
    cgroups: Cgroups | None = None  # None: only the runtime's events say what is in force
    now: Callable[[], float] = time.time  # seconds since the epoch
    held: Callable[[], Mapping[str, StoredGrant]] = dict  # what an earlier daemon granted, by id


class Policy:
    """Handles the requests of one runtime with one engine; a `Plugin`."""

    def __init__(  # noqa: PLR0913 - keywords: the parts that the daemon wires
        self,
        engine: Engine,
        exposure: Exposure,
        telling: Telling,
        *,
        sources: Sources,
        synchronized: Callable[[], None],
        decided: Callable[[Event, Outcome, float], None],
        pods_changed: Callable[[], None] = lambda: None,
        enforced: Callable[[], None] = lambda: None,
        turn: asyncio.Lock | None = None,
    ) -> None:
        """Take the engine, and whom to tell.

        *synchronized* is called whenever the runtime's containers are all known, *decided* with
        each event, what became of it and the seconds that the engine took, *pods_changed* when
        there are others of the `exclusive_pods` or `guaranteed_pods`, *enforced* for each cpuset
        that was written here. *turn* is taken for what no request asks for.
        """
        self._pods: set[str] = set()  # sandboxes, until they stop
        # those that schedulers count: sandbox -> namespace and name of the pod (nrt.md §1.5)
        self.exclusive_pods: dict[str, tuple[str, str]] = {}
        self.folders: dict[str, str] = {}  # sandbox id -> its containers' parent cgroup
        # sandbox -> what all containers of the pod ask for, those to come too, as one container
        self.guaranteed_pods: dict[str, Container] = {}
        self._locator = sources.locator
        self._assignments = sources.assignments
        self._now = sources.now
        self._held = sources.held
        self._engine = engine
        self._exposure = exposure
        self._telling = telling
        self._confirmations = telling.confirmations
        self._turn = turn or asyncio.Lock()
        self.enforcement = Enforcement(
            engine,
            telling,
            sources.cgroups,
            resize_overdue=self._resize_overdue,
            wrote=enforced,
        )
        self.pids: dict[str, int] = {}  # of the containers' first processes, as the runtime says
        self._overdue_resizes: dict[str, Resources] = {}  # that seem to have been refused
        self._synchronized = synchronized
        self._decided = decided
        self._pods_changed = pods_changed
        self._stale: dict[str, None] = {}  # containers whose exposed resources are out of date
        self._showing: asyncio.Task[None] | None = None
        self.late_answers: Counter[str] = Counter()  # given without a decision, by method

    async def configure(self, request: nri_pb2.ConfigureRequest, runtime: Runtime) -> None:
        """Serve any runtime alike, and warn of one that may not survive our coming."""
        del request
        log.info("event=configured runtime=%r", str(runtime))
        if runtime.registration_can_deadlock:
            log.warning(
                "event=old-runtime runtime=%r text='it can hang when a plugin registers"
                " (containerd#10085): upgrade it'",
                str(runtime),
            )

    async def synchronize(
        self, pods: Sequence[nri_pb2.PodSandbox], containers: Sequence[nri_pb2.Container]
    ) -> Sequence[nri_pb2.ContainerUpdate]:
        """Take the runtime's containers for the truth; return updates of those that must change."""
        by_id = {pod.id: pod for pod in pods}
        # what a runtime lists without namespaces and containers has stopped (nri.md §4)
        living = {
            each.pod_sandbox_id for each in containers if each.state != nri_pb2.CONTAINER_STOPPED
        }
        for pod in pods:
            if pod.id in living and pod.id not in self._pods:
                _warn_of(pod)
        self._pods = {pod.id for pod in pods if pod.id in living or pod.linux.namespaces}
        self.folders = {pod.id: pod.linux.cgroup_parent for pod in pods if pod.id in self._pods}
        if assignments := self._kubelet:
            running = [pod_of(pod) for pod in pods]
            assignments.ask_all(running)
            await assignments.ready(running)
        for ended in self.exclusive_pods.keys() - self._pods:
            del self.exclusive_pods[ended]
        self.guaranteed_pods.clear()
        for pod in pods:
            if pod.id in self._pods:
                self._expect(pod)
        for container in containers:
            if container.pod_sandbox_id in self._pods and container.state in STARTED:
                self._count(by_id[container.pod_sandbox_id], container)
        listed = [
            container
            for container in containers
            if container.pod_sandbox_id in by_id and container.state != nri_pb2.CONTAINER_STOPPED
        ]
        found = await self.enforcement.observe(
            {each.id: each.linux.cgroups_path for each in listed}
        )
        held = self._held()
        present = tuple(
            self._listed(by_id[each.pod_sandbox_id], each, found.get(each.id), held)
            for each in listed
        )
        self.pids = {each.id: each.pid for each in listed}
        self._overdue_resizes.clear()
        decision = self._decide(Synchronized(containers=present, held=held, now=self._now()))
        self._confirmations.restart(
            (each.id, Phase.RUNNING if each.state is State.RUNNING else Phase.CREATED)
            for each in present
        )
        self._telling.only(decision.changes)  # whoever differs from the decisions is among them
        self._telling.remind(self._misremembered(listed))
        log.info("event=synchronized containers=%d changed=%d", len(present), len(decision.changes))
        self._exposure.keep_only(self._engine.state.placed.keys())
        for container_id in self._engine.state.placed:
            self._show_later(container_id)
        self._synchronized()
        return self._telling.take()

    async def run_pod_sandbox(self, pod: nri_pb2.PodSandbox) -> None:
        """Say what is odd about a new pod's annotations, and ask the kubelet about its devices."""
        if assignments := self._kubelet:
            assignments.ask(pod_of(pod))
        self._pods.add(pod.id)
        self.folders[pod.id] = pod.linux.cgroup_parent
        self._expect(pod)
        _warn_of(pod)

    async def update_pod_sandbox(self, request: nri_pb2.UpdatePodSandboxRequest) -> None:
        """Hear of a pod's coming resize: its containers' updates follow."""

    async def stop_pod_sandbox(self, pod: nri_pb2.PodSandbox) -> None:
        """Release what is left of a pod."""
        if self._assignments is not None:
            self._assignments.forget(pod_of(pod))
        self._pod_ended(pod)
        self._decide(PodStopped(pod_id=pod.id))

    async def remove_pod_sandbox(self, pod: nri_pb2.PodSandbox) -> None:
        """Release what is left of a pod."""
        self._pod_ended(pod)
        self._decide(PodStopped(pod_id=pod.id))

    async def create_container(
        self, pod: nri_pb2.PodSandbox, container: nri_pb2.Container
    ) -> nri_pb2.CreateContainerResponse:
        """Return where a container to be must run, and who has to move for it."""
        if assignments := self._kubelet:
            await assignments.ready([pod_of(pod)])
        self._confirmations.heard()
        self._confirmations.enter(container.id, Phase.CREATING)
        decision = self._decide(
            Created(container=self.container(pod, container), admitted=overdue() or self._on_paper)
        )
        response = nri_pb2.CreateContainerResponse(
            update=self._telling.take(container.id, creating=True)
        )
        if decision.placement is not None:
            response.adjust.CopyFrom(adjustment_of(self._telling.own(decision.placement)))
            self._telling.answered(container.id)
            if self._show(container.id):
                response.adjust.mounts.append(self._exposure.mount(container.id))
        return response

    async def start_container(self, pod: nri_pb2.PodSandbox, container: nri_pb2.Container) -> None:
        """Note when a container starts: it has its place since its creation.

        It waits until it and those whose CPUs it got are in their places, as far as that is quick.
        """
        self._count(pod, container)
        self._confirmations.heard()
        self._telling.created(container.id)
        self._take_in(pod, container)
        self._decide(Started(container_id=container.id, now=self._now()))
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
            self._decide(Started(container_id=container.id, now=self._now()))
        self._confirmations.enter(container.id, Phase.RUNNING)
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
        self._overdue_resizes.pop(container.id, None)
        running = self._confirmations.phase(container.id) in (Phase.RUNNING, Phase.UPDATING)
        asked = resources_of(resources)
        decision = self._decide(
            Resized(container_id=container.id, resources=asked, certain=not running)
        )
        if decision.placement is not None:
            self._show_later(container.id)
        own = (
            []
            if decision.placement is None
            else [update_of(self._telling.own(decision.placement), ignore_failure=False)]
        )
        response = nri_pb2.UpdateContainerResponse(update=[*own, *self._telling.take(container.id)])
        if own:
            self._telling.answered(container.id)
            if self._confirmations.phase(container.id) is Phase.RUNNING:
                self._confirmations.enter(container.id, Phase.UPDATING)
        return response

    async def post_update_container(
        self, pod: nri_pb2.PodSandbox, container: nri_pb2.Container
    ) -> None:
        """Hear that a resize is in force."""
        del pod
        self._confirmations.heard()
        if self._confirmations.phase(container.id) is Phase.UPDATING:
            self._confirmations.enter(container.id, Phase.RUNNING)
        overdue = self._overdue_resizes.pop(container.id, None)
        if container.id in self._engine.state.resizing:
            self._decide(ResizeEnded(container_id=container.id))
        elif overdue is not None:
            decision = self._decide(Resized(container_id=container.id, resources=overdue))
            if decision.placement is not None:
                self._telling.note([decision.placement])
        self.enforcement.expect()

    async def _resize_overdue(self, container_id: str, found: Resources | None) -> None:
        """Take back a resize of which no end was heard, unless it was *found* in force."""
        async with self._turn:
            resizing = self._engine.state.resizing.get(container_id)
            self._confirmations.enter(container_id, Phase.RUNNING)
            self._confirmations.confirm(container_id)
            if resizing is None:
                return
            placed = self._engine.state.placed[container_id]
            asked = placed.container.resources
            refused = found is None or not has(found, asked, placed.request.milli)
            if refused:
                self._overdue_resizes[container_id] = asked
            self._decide(ResizeEnded(container_id=container_id, refused=refused))
            self._show_later(container_id)

    def _take_in(self, pod: nri_pb2.PodSandbox, container: nri_pb2.Container) -> bool:
        """Place a container whose creation was missed; return whether it was.

        It is created, or started again, whatever we say: its due is what there is.
        """
        if container.pid:
            self.pids[container.id] = container.pid
        if container.id in self._engine.state.placed:
            return False
        log.warning("event=missed container=%r", container.id)
        decision = self._decide(Created(container=self.container(pod, container), admitted=True))
        if decision.placement is not None:
            self._telling.note([decision.placement])
        return decision.placement is not None

    async def stop_container(
        self, pod: nri_pb2.PodSandbox, container: nri_pb2.Container
    ) -> nri_pb2.StopContainerResponse:
        """Release a container; return who may spread now."""
        del pod
        self._confirmations.heard()
        self._forget(container.id)
        self._decide(Stopped(container_id=container.id))
        self._telling.ended(container.id)
        return nri_pb2.StopContainerResponse(update=self._telling.take(container.id))

    async def remove_container(self, pod: nri_pb2.PodSandbox, container: nri_pb2.Container) -> None:
        """Release a container whose stop was missed."""
        del pod
        self._confirmations.heard()
        self._forget(container.id)
        self._decide(Stopped(container_id=container.id))
        self._exposure.remove(container.id)

    def _forget(self, container_id: str) -> None:
        self._confirmations.forget(container_id)
        self.pids.pop(container_id, None)
        self._overdue_resizes.pop(container_id, None)

    def release(self, container_ids: Iterable[str]) -> None:
        """Release containers that have ended, though the runtime has not said so."""
        for each in container_ids:
            log.warning("event=ended-unheard container=%r", each)
            self._decide(Stopped(container_id=each))
            self._forget(each)

    def elapse(self) -> None:
        """Do what is due by now."""
        now, deadline = self._now(), self._engine.next_deadline
        if deadline is not None and deadline <= now:
            self._decide(Elapsed(now=now))

    def reconfigure(self, *, settings: Settings | None, machine: Machine | None) -> None:
        """Change what the decisions rest on.

        RefusalError or CapacityError: nothing has changed.
        """
        event = Reconfigured(settings=settings, machine=machine)
        began = time.perf_counter()
        try:
            decision = self._engine.handle(event)
        except (RefusalError, CapacityError) as error:
            self._decided(event, error, time.perf_counter() - began)
            raise
        taken = time.perf_counter() - began
        if machine is not None and self._locator is not None:
            self._locator.renew(machine)
        self._note(event, decision, taken)

    def drifted(self, container_ids: Iterable[str]) -> None:
        """Have the runtime told again where these containers run, whatever it believes."""
        self._decide(Drifted(container_ids=tuple(container_ids)))

    def container(self, pod: nri_pb2.PodSandbox, container: nri_pb2.Container) -> Container:
        """Return the engine's view of a container, with what is near to it."""
        plain = container_of(pod, container)
        if self._locator is None:
            return plain
        assignments = self._kubelet
        assigned = assignments.devices(plain.pod, plain.name) if assignments else {}
        interfaces = container.linux.net_devices
        hints = candidates(
            mounts_of(container), devices_of(container), interfaces, assigned, self._locator
        )
        return replace(plain, hints=hints)

    def _count(self, pod: nri_pb2.PodSandbox, container: nri_pb2.Container) -> None:
        """Count a pod of which a container has started, if schedulers take it to hold its own.

        These are the Guaranteed ones, and those with devices, as far as the kubelet is asked.
        """
        holder, assignments = pod_of(pod), self._kubelet
        if holder.qos is QoS.GUARANTEED or (
            assignments is not None and assignments.devices(holder, container.name)
        ):
            self.exclusive_pods[pod.id] = pod.namespace, pod.name
            self._pods_changed()

    def _pod_ended(self, pod: nri_pb2.PodSandbox) -> None:
        self._pods.discard(pod.id)
        self.exclusive_pods.pop(pod.id, None)
        self.folders.pop(pod.id, None)
        self.guaranteed_pods.pop(pod.id, None)

    def _expect(self, pod: nri_pb2.PodSandbox) -> None:
        """Note what a Guaranteed pod asks for, as far as its sandbox says."""
        whole = nri_pb2.Container(
            id=pod.id, linux=nri_pb2.LinuxContainer(resources=pod.linux.pod_resources)
        )
        if QoS.of_cgroup(pod.linux.cgroup_parent) is QoS.GUARANTEED:
            self.guaranteed_pods[pod.id] = container_of(pod, whole)
            self._pods_changed()

    @property
    def _kubelet(self) -> Assignments | None:
        """What the kubelet has assigned, if the settings say that it is asked."""
        asked = self._engine.layout.settings.agent.pod_resource_api
        return self._assignments if asked else None

    @property
    def _on_paper(self) -> bool:
        """Whether decisions are taken down only, as nothing is pinned."""
        settings = self._engine.layout.settings
        return not (settings.pin_cpu or settings.pin_memory)

    def _listed(
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
        listed = self.container(pod, container)
        said, cpus, mems = listed.resources, "", ""
        if found is not None:  # of what was never set the kernel names all there is
            cpus, mems = said.cpus and found.cpus, said.mems and found.mems
            placed, stored = self._engine.state.placed.get(listed.id), held.get(listed.id)
            if placed is not None:
                known, milli = placed.container.resources, placed.request.milli
                said = not_older(known, milli, said, found)
            elif stored is not None and stored.resources is not None:
                said = not_older(stored.resources, stored.request.milli, said, found)
        elif listed.id not in self._telling.untold and not self._confirmations.lost(listed.id):
            return listed
        return replace(listed, resources=replace(said, cpus=cpus, mems=mems))

    def _misremembered(self, listed: Iterable[nri_pb2.Container]) -> Iterator[Placement]:
        """Yield where containers are that the runtime believes elsewhere, for it to know."""
        for each in listed:
            placement = known(self._engine.state, each.id)
            said = resources_of(each.linux.resources)
            if placement is not None and (
                (placement.cpus and parsed(said.cpus) != placement.cpus)
                or (placement.mems and parsed(said.mems) != placement.mems)
            ):
                yield placement

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
                placement = self._engine.until_decided(container_of(request.pod, request.container))
                return nri_pb2.CreateContainerResponse(adjust=adjustment_of(placement))
            case nri_pb2.UpdateContainerRequest():
                held = known(self._engine.state, request.container.id)
                own = (
                    []
                    if held is None
                    else [update_of(self._telling.own(held), ignore_failure=False)]
                )
                return nri_pb2.UpdateContainerResponse(update=own)
        response: Message = getattr(nri_pb2, f"{method}Response")()
        return response

    def _decide(self, event: Event) -> Decision:
        """Hand *event* to the engine; a refusal becomes the request's error.

        Where all stays on paper nobody is kept from it.
        """
        began = time.perf_counter()
        try:
            decision = self._engine.handle(event)
        except (RefusalError, AnnotationError) as error:
            seconds = time.perf_counter() - began
            log.warning("event=refused container=%s reason=%r", self._asked(event), str(error))
            self._decided(event, error, seconds)
            if self._on_paper:
                return Decision()
            raise Refused(str(error)) from error
        self._note(event, decision, time.perf_counter() - began)
        return decision

    def _asked(self, event: Event) -> str:
        """Return the name of the container that *event* is about."""
        if isinstance(event, Created):
            return event.container.full_name
        if isinstance(event, Resized):
            return self._engine.state.placed[event.container_id].container.full_name
        return "-"

    def _note(self, event: Event, decision: Decision, seconds: float) -> None:
        """Keep what is to be told, and log one line."""
        self._decided(event, decision, seconds)
        if decision.explanation is not None and decision.placement is not None:
            # once the answer has left: whoever takes the log in may be slow
            asyncio.get_running_loop().call_soon(
                log.info,
                "event=placed container=%s cpus=%s mems=%s pool=%r",
                decision.explanation.container,
                decision.placement.cpus,
                decision.placement.mems,
                decision.explanation.pool_name,
            )
        self._telling.note(decision.changes)
        if decision.placement is not None and overdue():
            self._telling.note([decision.placement])
        for change in decision.changes:
            self._show_later(change.container_id)
        asked = decision.explanation.container if decision.explanation else "-"
        for warning in decision.warnings:
            log.warning("event=warning container=%s text=%r", asked, warning)

    def _show(self, container_id: str) -> bool:
        """Show a new container its resources; failing that must not keep it from running."""
        try:
            self._exposure.add(container_id, exposed(self._engine.state, container_id))
        except (OSError, ValueError) as error:
            log.warning("event=not-exposed container=%r error=%r", container_id, str(error))
            return False
        return True

    def _show_later(self, container_id: str) -> None:
        """Show a container its changed resources, without anyone waiting for the disk."""
        self._stale[container_id] = None
        if self._showing is None or self._showing.done():
            self._showing = asyncio.create_task(self._show_stale(), name="exposed resources")

    async def _show_stale(self) -> None:
        while self._stale:
            await asyncio.sleep(REST)
            state = self._engine.state
            batch = [*islice(self._stale, MOST_SHOWN)]
            for each in batch:
                del self._stale[each]
            resources = {each: exposed(state, each) for each in batch if each in state.placed}
            await asyncio.to_thread(self._show_again, resources)

    def _show_again(self, resources: Mapping[str, Mapping[str, str]]) -> None:
        """Show containers that run what has changed for them; this can wait for the disk."""
        for container_id, each in resources.items():
            try:
                self._exposure.replace(container_id, each)
            except FileNotFoundError:
                continue  # it came without us, and has no mount to see it by
            except (OSError, ValueError) as error:
                log.warning("event=not-exposed container=%r error=%r", container_id, str(error))


def _warn_of(pod: nri_pb2.PodSandbox) -> None:
    """Log what is odd about the keys of a pod's annotations."""
    for warning in warnings(pod.annotations):
        log.warning("event=annotation pod=%s/%s text=%r", pod.namespace, pod.name, warning)
