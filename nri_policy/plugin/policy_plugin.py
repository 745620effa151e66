"""The policy as a plugin: NRI requests to engine events, decisions to adjustments and updates.

Owns the order of the steps of a request. `delivery` schedules the updates of other
containers.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import NoReturn, TypeVar

from google.protobuf.message import Message

from nri_policy.delivery.inputs import Gone, PhaseChanged, Registered, StartAnswered
from nri_policy.delivery.record import Phase
from nri_policy.engine.event import Created, PodStopped, Resized, Started, Stopped, Synchronized
from nri_policy.engine.state.quota import with_limit
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.nri.errors import CallRefused
from nri_policy.nri.plugin import Call
from nri_policy.nri.versions import Events, Runtime
from nri_policy.plugin.answers import WITH_CREATION, WITH_LIST, WITH_STOP
from nri_policy.plugin.components import PluginComponents
from nri_policy.plugin.convert import fill_adjustment, resources_of, update_of
from nri_policy.plugin.late_answers import answer_late
from nri_policy.proto import nri_pb2
from nri_policy.workload.pod import Container, ContainerState

log = logging.getLogger(__name__)

_T = TypeVar("_T")

_UNSTARTED = (Phase.CREATING, Phase.CREATED)


class PolicyPlugin:
    """Handles the requests of one runtime with one engine; a `Plugin`."""

    def __init__(
        self,
        components: PluginComponents,
        *,
        synchronized: Callable[[], None],
        started: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Take the components, and two callbacks.

        *synchronized* is called whenever the runtime's containers are all known, *started* with
        each container in a class that has started.
        """
        self._components = components
        self._node = components.node
        self._executor = components.executor
        self._answers = components.answers
        self._resources = components.resources
        self._decisions = components.decisions
        self._inventory = components.inventory
        self._resizes = components.resizes
        self._pods = components.pods
        self._quotas = components.quotas
        self._synchronized = synchronized
        self._started = started
        self.late_answers: Counter[str] = Counter()  # given without a decision, by method

    def begin(self, call: Call) -> None:
        """Note a request: the runtime has handled all answers before it."""
        self._answers.begin(call)

    def end(self) -> None:
        """Note that a request was handled."""
        self._answers.end()

    def step(self, work: Callable[[], _T]) -> _T:
        """Do the first step of a request; observers of its decisions come after its answer."""
        return self._node.step(work)

    async def configure(self, request: nri_pb2.ConfigureRequest, runtime: Runtime) -> Events:
        """Serve any runtime alike, and warn of one that may not survive our coming."""
        del request
        self._components.runtime = runtime
        log.info("configured", extra={"runtime": str(runtime)})
        if runtime.registration_can_deadlock:
            log.warning(
                "old-runtime",
                extra={
                    "runtime": str(runtime),
                    "text": "it can hang when a plugin registers (containerd#10085): upgrade it",
                },
            )
        return self._components.subscribe(runtime)

    async def synchronize(
        self, pods: Sequence[nri_pb2.PodSandbox], containers: Sequence[nri_pb2.Container]
    ) -> Sequence[nri_pb2.ContainerUpdate]:
        """Take the runtime's containers for the truth; return updates of those that must change."""
        runtime = self._components.runtime
        ended: Collection[str] = ()
        if runtime is not None and runtime.shows_pod_processes:
            ended = await self._inventory.ended(pods)
            # those that never started, and cannot: containerd lists them until they are removed
            containers = [
                each
                for each in containers
                if each.state != nri_pb2.CONTAINER_CREATED or each.pod_sandbox_id not in ended
            ]
        await self._pods.restart(pods, containers, ended)
        ids = {pod.id for pod in pods}
        listed = [
            container
            for container in containers
            if container.pod_sandbox_id in ids and container.state != nri_pb2.CONTAINER_STOPPED
        ]
        self._components.claims.recover(pods, listed)
        present, held = await self._inventory.read(pods, listed)
        creating: Sequence[Container] = ()
        if runtime is not None and runtime.hides_creations:
            creating = await self._inventory.under_creation(pods, present, held, runtime.name)
        self._components.pids = {each.id: each.pid for each in listed}
        self._components.ended_early.clear()
        self._resizes.restart(present)
        self._pods.show()
        placed = self._node.view.placed.keys()
        new = {each.id for each in listed} - placed
        there = {each.id for each in (*present, *creating)}
        await self._components.end_partitions(placed - there)
        decision = self._decisions.decide(
            Synchronized(
                containers=(*present, *creating),
                pods=self._inventory.empty_pods(pods, present),
                held=held,
                now=self._executor.clock.date(),
                equipment=self._components.equipment(),
            )
        )
        self._components.claims.end_recovery()
        old = runtime is not None and runtime.lists_creations
        self._executor.apply(
            Registered(
                phases={each.id: _listed_phase(each) for each in present}
                | {each.id: Phase.CREATING for each in creating},
                changes=decision.changes,
                unseen=self._inventory.doubtful(old=old),
                listed=self._node.view.placements(each.id for each in listed),
                new=new,
            )
        )
        await self._executor.probe(each.id for each in listed)
        await self._components.partitions.restart()
        await self._executor.narrow()
        log.info(
            "synchronized", extra={"containers": len(present), "changed": len(decision.changes)}
        )
        self._resources.restart()
        self._quotas.expect_all()
        self._pods.ask_late()
        self._synchronized()
        return self._answers.take(informing=WITH_LIST)

    async def run_pod_sandbox(self, pod: nri_pb2.PodSandbox) -> None:
        """Take note of a new pod."""
        self._pods.add(pod)

    async def update_pod_sandbox(self, request: nri_pb2.UpdatePodSandboxRequest) -> None:
        """Note what a resized pod asks for in all; its containers' updates come by themselves.

        What the pod's one container would be refused, or its room, is refused here: nothing has
        changed yet.
        """
        asked, pod_id = resources_of(request.linux_resources), request.pod.id
        whole = self._pods.amounts_after(pod_id, asked)
        if only := self._pods.only_container(pod_id):
            self._resizes.refuse_early(only, whole)
        self._decisions.decide(Resized(container_id=pod_id, resources=whole))
        self._pods.resize(pod_id, whole)
        await self._executor.narrow()
        self._quotas.expect([pod_id])

    async def stop_pod_sandbox(self, pod: nri_pb2.PodSandbox) -> None:
        """Release what is left of a pod."""
        self._pods.stop(pod)
        self._quotas.forget(pod.id)
        left = self._node.of_pod(pod.id)
        kept = await self._components.end_partitions(left)
        self._decisions.decide(PodStopped(pod_id=pod.id))
        for each in left:  # of some a runtime says nothing more
            if each not in kept:
                self._components.forget(each)

    async def remove_pod_sandbox(self, pod: nri_pb2.PodSandbox) -> None:
        """Release a pod's grants if its stop event was missed."""
        left = self._node.of_pod(pod.id)
        if left or pod.id in self._node.view.pods or pod.id in self._node.view.rooms:
            await self.stop_pod_sandbox(pod)

    async def create_container(
        self, pod: nri_pb2.PodSandbox, container: nri_pb2.Container
    ) -> nri_pb2.CreateContainerResponse:
        """Return the placement of a new container, and updates of containers that make room."""
        await self._pods.ready(pod)
        await self._components.claims.check(pod, container)
        new = self._pods.container(pod, container)
        if await self._end_predecessors(new) and not self._answers.is_overdue:
            self._refuse_successor(new)
        self._enter(container.id, Phase.CREATING)
        unheard = self._answers.is_overdue
        try:
            decision = self._decisions.decide(
                Created(
                    container=new,
                    admitted=unheard or self._decisions.pins_nothing,
                    unheard=unheard,
                )
            )
        except CallRefused:
            # some runtimes send no event for a failed creation
            self._executor.apply(Gone(container.id))
            raise
        until = self._executor.start_deadline()
        await self._executor.make_room(container.id, moved=bool(decision.changes))
        if decision.placement is not None:
            await self._components.partitions.make_room(decision.placement.cpus, until=until)
        response = nri_pb2.CreateContainerResponse(
            update=self._answers.take(container.id, informing=WITH_CREATION, creating=True)
        )
        if decision.placement is not None:
            own = self._executor.state.unless_leaving(container.id, decision.placement)
            fill_adjustment(response.adjust.linux, own, decision.classes)
            self._answers.note(container.id, own, creating=True)
            self._note_cpuset(pod, container, container.linux.resources, own.cpus)
            self._components.creations.answered(pod, container.id)
            if mount := self._resources.add(container.id):
                response.adjust.mounts.append(mount)
        return response

    async def _end_predecessors(self, new: Container) -> bool:
        """Release the predecessors of a *new* container; return whether one is a partition still.

        The books have a predecessor if the daemon missed its end, or could not end its partition.
        """
        before = self._node.predecessors(new)
        if not before:
            return False
        left = await self._components.end_partitions(before, until=self._executor.start_deadline())
        for each in before:
            if each not in left:
                self._components.release(each)
        return bool(left)

    def _refuse_successor(self, new: Container) -> NoReturn:
        """Refuse a container whose predecessor is still a partition: it may need its CPUs."""
        reason = "its predecessor has ended, and its kernel partition cannot be ended yet"
        log.warning("refused", extra={"container": new.full_name, "reason": reason})
        raise CallRefused(f"{new.full_name}: {reason}")

    async def start_container(self, pod: nri_pb2.PodSandbox, container: nri_pb2.Container) -> None:
        """Note when a container starts: it has its place since its creation, and may see it now.

        It waits a bounded time until its cpuset is in force and others have left its CPUs, and
        these have the values of its class.
        """
        if await self._is_gone(pod, container):
            return
        if (known := self._node.view.placed.get(container.id)) is not None:
            await self._components.tuned(known)
        self._components.creations.created(container.id)
        self._pods.note_start(pod, container)
        await self._take_in(pod, container)
        self._decisions.decide(Started(container_id=container.id, now=self._executor.clock.date()))
        self._resources.show(container.id)
        self._enter(container.id, Phase.STARTING)
        placed = self._node.view.placed.get(container.id)
        until = self._executor.start_deadline()
        if (
            placed is not None
            and (own := placed.grant.own | placed.grant.rest)
            and not await self._components.partitions.start(container.id, own, until=until)
        ):
            await self._executor.wait_until_clear(own, until=until)
        await self._quotas.start(pod.id)
        await self._executor.look_before(container.id)
        if container.id in self._node.view.classes:
            self._started(container.id)
        self._executor.apply(StartAnswered(container.id))

    async def post_start_container(
        self, pod: nri_pb2.PodSandbox, container: nri_pb2.Container
    ) -> None:
        """Make up for what the runtime has lost while it started the container."""
        if container.id in self._components.ended_early:
            self._components.ended_early.remove(container.id)
            return
        if await self._is_gone(pod, container):
            return
        if await self._take_in(pod, container):
            self._decisions.decide(
                Started(container_id=container.id, now=self._executor.clock.date())
            )
        self._enter(container.id, Phase.RUNNING)
        await self._executor.look_before(container.id)

    async def update_container(
        self,
        pod: nri_pb2.PodSandbox,
        container: nri_pb2.Container,
        resources: nri_pb2.LinuxResources,
    ) -> nri_pb2.UpdateContainerResponse:
        """Return the new placement of a resized container, and updates of others."""
        state = self._executor.state
        if state.phase(container.id) is Phase.STARTING and not state.hears_starts:
            self._enter(container.id, Phase.RUNNING)  # kubelets resize what has started
        self._pods.forget_object(pod.id)
        self._quotas.expect([pod.id])
        whole = self._pods.amounts(pod.id)
        decision = self._resizes.begin(container.id, resources_of(resources), whole)
        self._answers.supersede(container.id)
        until = self._executor.start_deadline()
        await self._executor.narrow()
        await self._executor.look_before_resize(container.id)
        if decision.placement is not None:
            await self._components.partitions.make_room(decision.placement.cpus, until=until)
        others = self._answers.take(container.id, informing=WITH_CREATION)
        if decision.placement is None:
            return nri_pb2.UpdateContainerResponse(update=others)
        placement = self._executor.state.unless_leaving(container.id, decision.placement)
        self._note_cpuset(pod, container, resources, placement.cpus)
        own = update_of(container.id, placement, ignore_failure=False)
        response = nri_pb2.UpdateContainerResponse(update=[own, *others])
        self._resizes.note_answer(container.id)
        return response

    def _note_cpuset(
        self,
        pod: nri_pb2.PodSandbox,
        container: nri_pb2.Container,
        asked: nri_pb2.LinuxResources,
        decided: CPUSet,
    ) -> None:
        if asked.cpu.cpus:
            name = f"{pod.namespace}/{pod.name}/{container.name}"
            self._components.cpuset_requests.note(name, asked.cpu.cpus, decided)

    async def post_update_container(
        self, pod: nri_pb2.PodSandbox, container: nri_pb2.Container
    ) -> None:
        """Handle that a resize is in force."""
        self._resizes.end(container.id)
        self._quotas.expect([pod.id])

    async def stop_container(
        self, pod: nri_pb2.PodSandbox, container: nri_pb2.Container
    ) -> nri_pb2.StopContainerResponse:
        """Release a container; return updates of containers that may spread now.

        A container that never started keeps its grant: containerd sends STOP for it all the
        same, but starts it on request, and lists it at the next registration. One that is still a
        kernel partition keeps its CPUs until it is none.
        """
        self._note_state(container)
        phase = self._executor.state.phase(container.id)
        if phase is Phase.STARTING and self._executor.state.hears_starts:
            self._components.ended_early.add(container.id)
        if phase in _UNSTARTED and container.state == nri_pb2.CONTAINER_CREATED:
            self._enter(container.id, Phase.CREATED)  # no longer under creation
            return nri_pb2.StopContainerResponse(update=self._answers.take())
        if await self._components.end_partitions([container.id]):
            return nri_pb2.StopContainerResponse(update=self._answers.take())
        self._components.forget(container.id)
        self._decisions.decide(Stopped(container_id=container.id))
        self._quotas.expect([pod.id])
        await self._executor.release()
        return nri_pb2.StopContainerResponse(
            update=self._answers.take(container.id, informing=WITH_STOP)
        )

    async def remove_container(self, pod: nri_pb2.PodSandbox, container: nri_pb2.Container) -> None:
        """Release a container whose stop was missed."""
        del pod
        self._note_state(container)
        placed = container.id in self._node.view.placed
        self._components.ended_early.discard(container.id)
        if not placed or not await self._components.end_partitions([container.id]):
            self._components.forget(container.id)
            if placed:
                self._decisions.decide(Stopped(container_id=container.id))
        self._resources.remove(container.id)

    def _note_state(self, container: nri_pb2.Container) -> None:
        """Note the creation of a container that ends unstarted: only these have a known state."""
        if container.state != nri_pb2.CONTAINER_UNKNOWN:
            self._components.creations.created(container.id)

    def _enter(self, container_id: str, phase: Phase) -> None:
        self._executor.apply(PhaseChanged(container_id=container_id, phase=phase))

    async def _is_gone(self, pod: nri_pb2.PodSandbox, container: nri_pb2.Container) -> bool:
        """Whether an event about a start comes after the container has ended.

        It has no grant, and its message has the state STOPPED; or its cgroup has no process while
        its pod's sandbox shows one. A container with a first process, such as a virtual
        machine, may run elsewhere.
        """
        if container.id in self._node.view.placed:
            return False
        gone = container.state == nri_pb2.CONTAINER_STOPPED
        if not gone and not container.pid:
            paths = {pod.id: pod.linux.cgroups_path, container.id: container.linux.cgroups_path}
            living = await self._executor.survey.living(paths)
            gone = pod.id in living and container.id not in living
        if gone:
            log.info("event-of-ended", extra={"container": container.id})
        return gone

    async def _take_in(self, pod: nri_pb2.PodSandbox, container: nri_pb2.Container) -> bool:
        """Place a container whose creation was missed; return whether it was.

        A lack of room does not refuse the container, as the runtime starts it anyway.
        """
        if container.pid:
            self._components.pids[container.id] = container.pid
        if container.id in self._node.view.placed:
            return False
        log.warning("creation-missed", extra={"container": container.id})
        new = with_limit(self._pods.container(pod, container))
        await self._end_predecessors(new)
        decision = self._decisions.decide(
            Created(
                container=new,
                admitted=True,
                unheard=True,
            )
        )
        if decision.placement is not None:
            self._executor.decide({container.id: decision.placement})
        return decision.placement is not None

    async def disconnected(self) -> None:
        """Keep everything: containers go on without us, and Synchronize comes first on return."""

    def late(self, method: str, request: Message) -> Message | None:
        """Count an answer that cannot wait for its decision, and return it."""
        self.late_answers[method] += 1
        return answer_late(self._components, method, request)


def _listed_phase(container: Container) -> Phase:
    return Phase.RUNNING if container.state is ContainerState.RUNNING else Phase.CREATED
