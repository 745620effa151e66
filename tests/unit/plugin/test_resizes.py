"""A resize that has to be refused is refused before the kubelet has changed anything of its pod."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from nri_policy.delivery.record import Phase
from nri_policy.engine.event import Event, Resized
from nri_policy.engine.state.quota import NO_QUOTA
from nri_policy.manifests.resources import ResourceChange, read_part
from nri_policy.node import NodeView
from nri_policy.proto.nri_pb2 import LinuxCPU, LinuxMemory, LinuxResources
from nri_policy.simulation.cgroups import SimulatedCgroups
from nri_policy.simulation.containers import CRIError
from nri_policy.simulation.embedded import EmbeddedRuntime
from tests.support import rooms
from tests.support.daemon import pod, served
from tests.support.deliveries import change

TELLS_OF_PODS, DOES_NOT = "2.4.2", "2.2.1"  # releases of containerd


def amounts(cpu: str, memory: str = "1Mi") -> ResourceChange:
    asked = {"cpu": cpu, "memory": memory}
    return read_part({"requests": asked, "limits": asked}, ResourceChange)


def pair(name: str) -> dict[str, Any]:
    """Return a Guaranteed pod of two containers, each of one CPU."""
    manifest = pod(name, "1")
    first = manifest["spec"]["containers"][0]
    manifest["spec"]["containers"].append({**first, "name": "second"})
    return manifest


def quota(runtime: EmbeddedRuntime, name: str) -> int:
    """Return the CPU time that the pod as a whole is to have, in µs of each 100 ms."""
    value: int = runtime.pod(name).amounts.cpu.quota.value
    return value


@pytest.mark.parametrize("version", [TELLS_OF_PODS, DOES_NOT])
async def test_a_pod_of_one_container_keeps_its_size(tmp_path: Path, version: str) -> None:
    async with served(tmp_path, version=version, reservedResources={"cpu": 1}) as node:
        refused: list[Event] = []

        def note(event: Event, outcome: object, _: NodeView) -> None:
            if isinstance(outcome, Exception):
                refused.append(event)

        node.daemon.node.add_observers(note)
        await node.start(pod("own", "2"))
        own = node.runtime.container("own/main")
        before = own.message.linux.resources.SerializeToString(deterministic=True)
        with pytest.raises(CRIError, match="16 exclusive CPUs"):
            await node.runtime.resize(own.pod, "main", amounts("16"))
        assert quota(node.runtime, "own") == 200_000
        assert own.message.linux.resources.SerializeToString(deterministic=True) == before
        (event,) = refused
        assert isinstance(event, Resized), "which is what `explain` and the counts go by"
        await node.runtime.resize(own.pod, "main", amounts("3"))
        assert len(own.cpus) == 3


@pytest.mark.parametrize("annotations", [{}, rooms.ROOM])
async def test_a_pod_that_shrinks_is_not_refused_what_its_sandbox_still_has(
    tmp_path: Path, annotations: dict[str, str]
) -> None:
    """Its requests shrink after its container, and its limit last; others may have come by then."""
    machine = "package:1 numa:1 core:5 pu:1"
    async with served(tmp_path, machine, version=TELLS_OF_PODS, exclusiveQuota="keep") as node:
        await node.start(pod("own", "3", annotations=annotations))
        own = node.runtime.container("own/main")
        coming = [pod("next", "3")]

        async def come() -> None:
            if own.quota == 100_000 and coming:
                assert await node.start(coming.pop()) == []

        node.runtime.after = come
        await node.runtime.resize(own.pod, "main", amounts("1"))
        assert not coming
        assert quota(node.runtime, "own") == 100_000
        await node.runtime.delete_pod(node.runtime.pod("next"))
        await node.runtime.resize(own.pod, "main", amounts("3"))
        assert len(own.cpus) == 3


async def test_memory_comes_first_and_stays(tmp_path: Path) -> None:
    async with served(tmp_path, version=TELLS_OF_PODS) as node:
        await node.start(pod("own", "2"))
        own = node.runtime.container("own/main")
        with pytest.raises(CRIError, match="16 exclusive CPUs"):
            await node.runtime.resize(own.pod, "main", amounts("16", "2Mi"))
        assert (own.memory_limit, own.quota) == (2 << 20, NO_QUOTA)
        assert quota(node.runtime, "own") == 200_000


async def test_a_pod_of_several_is_refused_when_its_container_asks(tmp_path: Path) -> None:
    """Nothing says before that which of them will."""
    async with served(tmp_path, version=TELLS_OF_PODS) as node:
        await node.start(pair("own"))
        with pytest.raises(CRIError, match="16 exclusive CPUs"):
            await node.runtime.resize(node.runtime.pod("own"), "second", amounts("16"))
        assert quota(node.runtime, "own") == 1_700_000
        assert node.runtime.container("own/second").quota == NO_QUOTA


@pytest.mark.parametrize("rounded", [2046, 0])
async def test_requests_that_a_weight_has_rounded_are_those_of_the_limit(
    tmp_path: Path, rounded: int
) -> None:
    """On cgroup v2 the kubelet reads a pod's shares back from the weight of its cgroup."""
    async with served(tmp_path, version=TELLS_OF_PODS) as node:
        await node.start(pod("own", "2"))
        own = node.runtime.pod("own")
        step = LinuxResources(
            cpu=LinuxCPU(shares={"value": rounded}, quota={"value": 1_600_000}),
            memory=LinuxMemory(limit={"value": -1}),
        )
        with pytest.raises(CRIError, match="16 exclusive CPUs"):
            await node.runtime.update_pod(own, step)
        step.cpu.quota.value = 200_000
        await node.runtime.update_pod(own, step)
        (pod_known,) = node.daemon.node.view.pods.values()
        held = pod_known.asked
        assert pod_known.whole is not None
        assert pod_known.whole.resources == held
        assert (held.cpu_request, held.memory_limit) == (2000, 1 << 20)


async def test_who_ends_a_resize_after_it_was_overdue_is_looked_at(tmp_path: Path) -> None:
    """The runtime may set what its update said long ago, and has heard of something newer."""
    async with served(tmp_path, cgroups=SimulatedCgroups) as it:
        await it.start(pod("guest", "500m", shared=True))
        (guest,) = it.runtime.containers
        parts, sent = it.daemon.components, it.daemon.executor.state.in_flight
        change(it.daemon.executor, guest.id, phase=Phase.UPDATING, in_flight=None)
        await parts.resizes.overdue(guest.id, None)
        assert guest.id not in sent
        async with it.daemon.node.turn:
            parts.resizes.end(guest.id)
        assert guest.id in sent


async def test_what_a_resize_should_have_brought_is_sent_again(tmp_path: Path) -> None:
    """The runtime failed to do it, and new settings have placed the container anew meanwhile."""
    async with served(tmp_path, cgroups=SimulatedCgroups) as it:
        await it.start(pod("guest", "500m", shared=True))
        (guest,) = it.runtime.containers
        change(it.daemon.executor, guest.id, phase=Phase.UPDATING, in_flight=None)
        assert guest.id not in it.daemon.executor.state.pending
        await it.daemon.components.resizes.overdue(guest.id, None)
        assert guest.id in it.daemon.executor.state.pending


async def test_the_cpus_of_a_resize_are_sent_again_that_has_only_its_amounts_in_force(
    tmp_path: Path,
) -> None:
    """The resize kept the amounts, so it looks applied, and it replaced the pending write."""
    async with served(tmp_path, cgroups=SimulatedCgroups) as it:
        await it.start(pod("guest", "500m", shared=True))
        (guest,) = it.runtime.containers
        resizes, view = it.daemon.components.resizes, it.daemon.node.view
        same = view.placed[guest.id].container.resources
        async with it.daemon.node.turn:
            resizes.begin(guest.id, same)
            resizes.note_answer(guest.id)
        await resizes.overdue(guest.id, replace(same, cpus="1", mems="0"))
        pending = it.daemon.executor.state.records[guest.id].pending
        assert pending is not None
        assert pending.cpus == guest.cpus


@pytest.mark.parametrize("cgroups", [SimulatedCgroups, None])
async def test_a_resize_that_an_earlier_daemon_answered_is_followed_by_what_is_due(
    tmp_path: Path, cgroups: type[SimulatedCgroups] | None
) -> None:
    """The runtime may have set CPUs that are another's now; where it can be, that is looked at."""
    async with served(tmp_path, cgroups=cgroups) as it:
        await it.start(pod("guest", "500m", shared=True))
        (guest,) = it.runtime.containers
        await it.daemon.executor.look(guest.id)
        async with it.daemon.node.turn:
            it.daemon.components.resizes.end(guest.id)
        state = it.daemon.executor.state
        assert (guest.id in state.pending) is (cgroups is None)
        assert guest.id in state.in_flight
