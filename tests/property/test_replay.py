"""A replay of a journal comes to every decision that was recorded, whatever the node went through.

`life` of tests/stored has containers come and go; here they also want memory, start cold, pull each
other, and the machine loses CPUs.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from nri_policy.engine.engine import Engine
from nri_policy.engine.event import (
    Created,
    Elapsed,
    Event,
    PodStopped,
    Reconfigured,
    Resized,
    Started,
    Stopped,
)
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.hardware.machine import Machine
from nri_policy.manifests.quality_of_service import QoS
from nri_policy.node import view_of
from nri_policy.store import compaction, writer
from nri_policy.store.database import RecordLink
from nri_policy.workload.pod import Container, Resources
from tests.support import memory_maps, nodes, stores

LIVES = 40
GIB = 1 << 30
MACHINES = (
    nodes.SMALL,
    memory_maps.TIERED,
    "package:2 numa:2(memory=4GiB) core:3 pu:2 isolated=2-3,8",
    "package:2 numa:2(memory=2GiB,0) l3:1 core:2 pu:1",
)
NEAR = "[{scope: {operator: AlwaysTrue}, match: {key: name, operator: Exists}, weight: %d}]"


class Node:
    """A node on which everything happens that can be recorded."""

    def __init__(self, engine: Engine, whole: Machine, seed: int) -> None:
        self.engine = engine
        self.whole = whole
        self.choices = random.Random(seed)
        self.now = 0.0

    def events(self) -> Iterator[Event]:
        """Yield random events; the engine has to handle each before the next is asked for."""
        draw = self.choices
        while True:
            self.now += draw.choice((0.0, 1.0, 20.0))
            placed = [*self.engine.state.placed.values()]
            deadline = view_of(self.engine).next_deadline
            if deadline is not None and deadline <= self.now and draw.random() < 0.8:
                yield Elapsed(now=self.now)
            elif not placed or draw.random() < 0.45:
                yield Created(container=self._container())
            else:
                yield self._other(draw.choice(placed).container)

    def _other(self, container: Container) -> Event:
        what = self.choices.choice(("start", "start", "resize", "stop", "pod", "settings", "plug"))
        match what:
            case "start":
                return Started(container_id=container.id, now=self.now)
            case "resize":
                request = self.choices.choice(stores.AMOUNTS)
                limit = request if container.pod.qos is QoS.GUARANTEED else None
                return Resized(container_id=container.id, resources=self._resources(request, limit))
            case "settings":
                return Reconfigured(
                    settings=nodes.settings(
                        preferSharedCPUs=self.choices.random() < 0.3,
                        shrinkMemory=self.choices.random() < 0.5,
                        colocatePods=self.choices.random() < 0.5,
                    )
                )
            case "plug":
                gone = self.choices.sample(
                    sorted(self.whole.online)[1:], k=self.choices.randrange(3)
                )
                return Reconfigured(machine=self.whole.restricted(self.whole.online - CPUSet(gone)))
            case "pod":
                return PodStopped(pod_id=container.pod.id)
            case _:
                return Stopped(container_id=container.id)

    def _container(self) -> Container:
        draw = self.choices
        request = draw.choice(stores.AMOUNTS)
        qos = draw.choice(list(QoS)) if request else QoS.BEST_EFFORT
        request = 0 if qos is QoS.BEST_EFFORT else request
        limit = request if qos is QoS.GUARANTEED else draw.choice((None, 4000))
        annotations = {}
        if draw.random() < 0.3:
            annotations["memory-type.resource-policy.nri.io/pod"] = draw.choice(
                ("dram", "pmem", "dram,pmem", "hbm")
            )
        if draw.random() < 0.3:
            annotations["cold-start.resource-policy.nri.io/pod"] = "duration: 30s"
        if draw.random() < 0.2:
            annotations["resource-policy.nri.io/affinity"] = f"c0: {NEAR % draw.choice((5, -5))}"
        if draw.random() < 0.2:
            annotations["prefer-reserved-cpus.resource-policy.nri.io/pod"] = "true"
        container = nodes.container(
            request,
            None if qos is QoS.BEST_EFFORT else limit,
            qos=qos,
            namespace=draw.choice(("default", "default", "kube-system")),
            annotations=annotations,
        )
        return replace(container, resources=self._resources(request, container.resources.cpu_limit))

    def _resources(self, request: int, limit: int | None) -> Resources:
        memory = self.choices.choice((0, GIB // 2, GIB, 3 * GIB))
        return replace(nodes.resources(request, limit), memory_limit=memory)


@settings(max_examples=LIVES, deadline=None)
@given(
    machine=st.sampled_from(MACHINES),
    seed=st.integers(0, 2**32),
    lives=st.lists(st.integers(1, 60), min_size=1, max_size=3),
    base_every=st.sampled_from((4, 20, 1000)),
    bases=st.sampled_from((2, 10_000)),
)
# a quota that was given back before the base, and a resize after it
@example("package:2 numa:2 core:2 pu:2", 16349927, [13], 4, 2)
def test_every_decision_comes_out_again(
    machine: str, seed: int, lives: list[int], base_every: int, bases: int
) -> None:
    """Also where the journal's beginning is dropped, and a base is all that is known."""
    # pmem is enough to start on
    whole = memory_maps.with_nodes(nodes.machine(machine), normal=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        stack.enter_context(patch.object(writer, "BASE_EVERY", base_every))
        stack.enter_context(patch.object(compaction, "MAX_RECORDS", base_every * bases))
        running: list[Container] = []
        in_force, hardware = nodes.settings(), whole
        for number, steps in enumerate(lives):
            store, engine = stores.started(folder, hardware, in_force, running)
            node = Node(engine, whole, seed + number)
            for event in islice(node.events(), steps):
                stores.commit(store, engine, event, now=node.now)
                compaction.compact(store.path)
            in_force, hardware = engine.layout.settings, engine.layout.machine
            running = [
                nodes.running(placed.container, *engine.state.sent[i], engine.state.quotas.get(i))
                for i, placed in engine.state.placed.items()
            ]
            store.close()
            journal = stores.records(store.path)
            for index, record in enumerate(journal[1:], 1):
                if record.link is RecordLink.BASE:
                    stores.replay(journal[index:])
            again = stores.replay(journal)
            assert stores.grants(again) == stores.grants(engine)
            told = {each: engine.state.sent[each] for each in engine.state.placed}
            assert told.items() <= again.state.sent.items()
            assert view_of(again).next_deadline == view_of(engine).next_deadline
