"""After every event the runtime has of each container what the books say.

Whoever is moved, gains or loses is told in the same decision, whatever the event is about. And who
is booked elsewhere for its CPUs keeps its memory nodes: its pages stay behind.
"""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from nri_policy.classes import Equipment
from nri_policy.engine.choice.shortage import PlacementError
from nri_policy.engine.engine import Engine
from nri_policy.engine.event import (
    Created,
    Described,
    Drifted,
    Elapsed,
    Equipped,
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
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.manifests.pod import PodManifest
from nri_policy.manifests.quality_of_service import QoS
from nri_policy.node import view_of
from nri_policy.pools.capacity import CapacityError
from nri_policy.workload.annotation_values import HintKind
from nri_policy.workload.hints import Hint
from nri_policy.workload.pod import Container, Pod
from tests.support import bookkeeping, nodes, pod_level, rooms

MACHINES = (
    nodes.SMALL,
    "package:2 numa:1(memory=4GiB) core:4",
    "package:1 numa:2(memory=4GiB) core:2",
    "package:2(pmem=4GiB) numa:2(memory=2GiB) core:2 pu:1",
    "package:2 numa:1 core:3 pu:2 isolated=2-3,8",
)
GIB = 1 << 30
EXAMPLES = 400
# pods with resources as a whole; what is not known of them yet is estimated
WHOLE = [pod_level.manifest(name=name) for name in ("one", "two")]
WHOLE_IDS = {each.metadata.name for each in WHOLE}
# what a room's pod requests in all, and its containers each
ROOMS = ((QoS.GUARANTEED, 3000, (2000, 600, 400)), (QoS.BURSTABLE, 2000, (1500, 0)))

amounts = st.sampled_from((0, 100, 300, 500, 999, 1000, 1500, 2000, 2500, 3000, 4000))
bytes_ = st.sampled_from((0, 0, 1 << 28, GIB, 3 * GIB))
specs = st.fixed_dictionaries(
    {},
    optional={
        "pinCPU": st.booleans(),
        "pinMemory": st.booleans(),
        "shrinkMemory": st.booleans(),
        "preferIsolatedCPUs": st.booleans(),
        "alignment": st.sampled_from(("none", "numa")),
        "reservedResources": st.sampled_from(({"cpu": "cpuset:0"}, {"cpu": "cpuset:1"})),
    },
)
wishes = st.dictionaries(
    st.sampled_from(
        (
            "prefer-isolated-cpus",
            "hide-hyperthreads",
            "static-cpus",
            "strict.topologyhints",
            "strict.topologyhints",
            "memory.preserve",
        )
    ).map(lambda key: f"{key}.resource-policy.nri.io/pod"),
    st.just("true"),
    max_size=2,
)
COLD = {
    "cold-start.resource-policy.nri.io/pod": "duration: 60s",
    "memory-type.resource-policy.nri.io/pod": "dram,pmem",
}


class Told(RuleBasedStateMachine):
    """One node's life, and a runtime that does as it is told."""

    @initialize(spec=specs, machine=st.sampled_from(MACHINES))
    def start(self, spec: dict[str, Any], machine: str) -> None:
        self.spec = spec
        self.whole = nodes.machine(machine)
        self.engine = Engine(self.whole, nodes.settings(**spec))
        self.runtime = bookkeeping.Runtime()
        self.containers: dict[str, Container] = {}
        self.pods: dict[int, Pod] = {}  # index in ROOMS -> pod
        self.now = 0.0

    def handle(self, event: Event) -> bool:
        """Pass the event to the engine; return whether it was accepted."""
        before = {id_: placed.grant for id_, placed in self.engine.state.placed.items()}
        try:
            decision = self.engine.handle(event)
        except (PlacementError, CapacityError):
            return False
        self.runtime.apply(decision)
        if isinstance(event, Created | Stopped | PodStopped | Started | Elapsed):
            for id_, placed in self.engine.state.placed.items():
                if id_ in before and placed.grant.pool != before[id_].pool:
                    assert placed.grant.mems >= before[id_].mems, "its memory moves in the books"
        return True

    @rule(
        request=amounts,
        more=st.none() | amounts,
        qos=st.sampled_from(QoS),
        memory=bytes_,
        annotated=wishes,
        cold=st.booleans(),
        near=st.none() | st.integers(0, 1),
        admitted=st.sampled_from((False, False, False, True)),
    )
    def create(  # noqa: PLR0917 - all that makes a container
        self,
        request: int,
        more: int | None,
        qos: QoS,
        memory: int,
        annotated: dict[str, str],
        cold: bool,
        near: int | None,
        admitted: bool,
    ) -> None:
        request = 0 if qos is QoS.BEST_EFFORT else request
        limit = request + more if qos is QoS.BURSTABLE and more is not None else None
        container = nodes.container(
            request, limit, qos=qos, annotations=annotated | (COLD if cold else {})
        )
        hint = Hint(
            kind=HintKind.DEVICES, source="/dev/one", cpus=CPUSet(), nodes=CPUSet((near or 0,))
        )
        container = replace(
            container,
            hints=() if near is None else (hint,),
            resources=replace(container.resources, memory_limit=memory),
        )
        if self.handle(Created(container=container, admitted=admitted)):
            self.containers[container.id] = container

    @rule(
        number=st.sampled_from(range(len(ROOMS))), which=st.integers(0, 2), admitted=st.booleans()
    )
    def create_in_room(self, number: int, which: int, admitted: bool) -> None:
        qos, milli, requests = ROOMS[number]
        pod = self.pods.setdefault(number, rooms.pod(milli, qos=qos, name=f"room{number}"))
        which %= len(requests)
        container = rooms.tenant(pod, f"c{which}", requests[which])
        there = (each.full_name for each in self.containers.values())
        if container.full_name not in there and self.handle(
            Created(container=container, admitted=admitted)
        ):
            self.containers[container.id] = container

    @rule(manifest=st.sampled_from(WHOLE), name=st.sampled_from(("log", "log", "main", "mesh")))
    def create_of_a_whole(self, manifest: PodManifest, name: str) -> None:
        container = pod_level.shown(manifest)[name]
        if container.id not in self.containers and self.handle(Created(container=container)):
            self.containers[container.id] = container

    @precondition(lambda self: any(each.pod.id in WHOLE_IDS for each in self.containers.values()))
    @rule(manifest=st.sampled_from(WHOLE))
    def describe(self, manifest: PodManifest) -> None:
        said = pod_level.said(manifest)
        assert self.handle(Described(pod_id=manifest.metadata.name, said=said))

    @rule(lacking=st.sampled_from(("", "the runtime is too old")))
    def equip(self, lacking: str) -> None:
        assert self.handle(Equipped(equipment=Equipment(no_scheduler=lacking)))

    @precondition(lambda self: self.containers)
    @rule(data=st.data(), request=amounts, memory=bytes_, certain=st.booleans())
    def resize(self, data: st.DataObject, request: int, memory: int, certain: bool) -> None:
        container = self._any(data)
        if container.pod.qos is QoS.BEST_EFFORT or not request:
            return
        limit = request if container.pod.qos is QoS.GUARANTEED else None
        resources = replace(nodes.resources(request, limit), memory_limit=memory)
        self.handle(Resized(container_id=container.id, resources=resources, certain=certain))

    @precondition(lambda self: self.engine.state.resizing)
    @rule(data=st.data(), refused=st.booleans())
    def end_resize(self, data: st.DataObject, refused: bool) -> None:
        container_id = data.draw(st.sampled_from([*self.engine.state.resizing]))
        if refused:
            self.runtime.forget(container_id)  # what it has is not certain
        assert self.handle(ResizeEnded(container_id=container_id, refused=refused))

    @precondition(lambda self: self.containers)
    @rule(data=st.data())
    def started(self, data: st.DataObject) -> None:
        self.handle(Started(container_id=self._any(data).id, now=self.now))

    @rule(seconds=st.sampled_from((1, 100)))
    def elapse(self, seconds: int) -> None:
        self.now += seconds
        self.handle(Elapsed(now=self.now))

    @precondition(lambda self: self.containers)
    @rule(data=st.data(), whole_pod=st.booleans())
    def stop(self, data: st.DataObject, whole_pod: bool) -> None:
        container = self._any(data)
        pod_id = container.pod.id
        for id_, each in [*self.containers.items()]:
            if each is container or (whole_pod and each.pod.id == pod_id):
                del self.containers[id_]
                self.runtime.forget(id_)
        self.handle(PodStopped(pod_id=pod_id) if whole_pod else Stopped(container_id=container.id))

    @rule(spec=specs)
    def reconfigure(self, spec: dict[str, Any]) -> None:
        if self.handle(Reconfigured(settings=nodes.settings(**spec))):
            self.spec = spec

    @rule(data=st.data())
    def hotplug(self, data: st.DataObject) -> None:
        gone = data.draw(st.sets(st.sampled_from(sorted(self.whole.online)[2:]), max_size=2))
        machine = self.whole.restricted(self.whole.online - CPUSet(gone))
        assert self.handle(Reconfigured(machine=machine))

    @precondition(lambda self: self.containers)
    @rule(data=st.data())
    def drift(self, data: st.DataObject) -> None:
        container = self._any(data)
        self.runtime.forget(container.id)
        self.handle(Drifted(container_ids=(container.id,)))

    @rule(lost=st.booleans(), stored=st.booleans())
    def synchronize(self, lost: bool, stored: bool) -> None:
        """The runtime lists its containers to the same daemon, or to a new one."""
        held: dict[str, StoredGrant] = {}
        there = {each.pod.id for each in self.containers.values()}
        pods = tuple(each for each in self.pods.values() if each.id not in there)
        if lost:
            view, machine = view_of(self.engine), self.engine.layout.machine
            if stored:
                held = {each: view.to_store(each) for each in (*view.placed, *view.rooms)}
            self.engine = Engine(machine, nodes.settings(**self.spec))
        containers = tuple(
            nodes.running(
                each, self.runtime.cpus[id_], self.runtime.mems[id_], self.runtime.quotas.get(id_)
            )
            for id_, each in self.containers.items()
        )
        self.handle(Synchronized(containers=containers, pods=pods, held=held, now=self.now))

    @invariant()
    def the_runtime_has_what_is_due(self) -> None:
        if hasattr(self, "engine"):
            runtime = self.runtime
            told = {id_: (runtime.cpus[id_], runtime.mems[id_]) for id_ in self.containers}
            assert told == bookkeeping.due(self.engine)

    def _any(self, data: st.DataObject) -> Container:
        return data.draw(st.sampled_from(list(self.containers.values())))


TestTold = Told.TestCase
TestTold.settings = hypothesis_settings(
    max_examples=EXAMPLES,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
