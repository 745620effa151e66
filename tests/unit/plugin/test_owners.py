"""Two owners of one CPU: what the runtime loses of what it is told, and that it is made up for.

The embedded runtime loses what the real ones lose, held against them in tests/e2e/test_owners.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from unittest.mock import AsyncMock

import pytest
from msgspec.structs import replace

from nri_policy.audit import orphans
from nri_policy.daemon.daemon import Daemon, Environment
from nri_policy.delivery import (
    delivery_state,
    executor,
    next_actions,
    observations,
    overlap_times,
    overlaps,
    survey,
)
from nri_policy.delivery.cpuset_files import Change, Confined
from nri_policy.delivery.record import Phase
from nri_policy.engine.event import Stopped
from nri_policy.engine.state.quota import NO_QUOTA
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.foundation.units import parse_bytes, parse_cpu
from nri_policy.kube.events import ClusterEvent, Subject
from nri_policy.manifests.resources import Amounts, ResourceChange
from nri_policy.plugin.policy_plugin import PolicyPlugin
from nri_policy.proto import nri_pb2 as pb
from nri_policy.report import explanation_report
from nri_policy.simulation.cgroups import SimulatedCgroups
from nri_policy.simulation.containers import CRIError, SimulatedContainer
from nri_policy.simulation.embedded import EmbeddedRuntime
from nri_policy.store.history import History
from nri_policy.workload.pod import ContainerState
from tests.support import nodes, rooms
from tests.support.daemon import PATIENT, Served, pod, served
from tests.support.deliveries import put_in_flight
from tests.support.gate import Gate

TWO_SOCKETS = "package:2 numa:1 core:2 pu:2"
ONE_POOL = "package:1 numa:1 core:4 pu:1"
GONE = "has no process any more, but the runtime did not report its end; its CPUs are free"
RUNTIMES = pytest.mark.parametrize(
    "runtime",
    [
        ("containerd", "1.7.24"),
        ("containerd", "2.1.9"),
        ("containerd", "2.4.0"),
        ("cri-o", "1.36.3"),
    ],
)


@pytest.fixture(autouse=True)
def busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let requests wait for files however slow this machine is, and hear what there is to hear."""
    monkeypatch.setattr(executor, "MAX_WAIT", 20.0)
    monkeypatch.setattr(executor, "MAX_BATCH", 20.0)
    monkeypatch.setattr(executor, "MAX_START", 20.0)
    monkeypatch.setattr(next_actions, "PAUSE", 0.0)


class Unwritable(SimulatedCgroups):
    """Cgroups on a file system that is mounted read-only."""

    def confine(
        self,
        wanted: Mapping[str, CPUSet],
        change: Change,  # noqa: ARG002 - the signature
    ) -> Mapping[str, Confined]:
        found = self.cpusets(wanted)
        return {
            each: Confined(cpus=found.get(each), error="Read-only file system") for each in wanted
        }


def owners(it: Served) -> dict[int, list[str]]:
    """Return who runs on each CPU that is somebody's own and should have one user."""
    state = it.daemon.node.view
    own = CPUSet.union(each.grant.exclusive for each in state.placed.values())
    using = {
        cpu: [each.key for each in it.runtime.containers if each.in_force and cpu in each.cpus]
        for cpu in own
    }
    return {cpu: users for cpu, users in using.items() if len(users) > 1}


def host(
    folder: Path,
    runtime: tuple[str, str],
    machine: str = ONE_POOL,
    cgroups: type[SimulatedCgroups] | None = SimulatedCgroups,
) -> AbstractAsyncContextManager[Served]:
    """Serve one of RUNTIMES."""
    name, version = runtime
    return served(folder, machine, cgroups=cgroups, name=name, version=version)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - what it waits for announces itself by no event
        await asyncio.sleep(0.001)


async def test_a_stop_waits_for_nobody_to_move(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(next_actions, "SETTLE", 1e6)  # no moves without a request
    async with served(
        tmp_path,
        "package:1 numa:1 core:2 pu:1",
        cgroups=SimulatedCgroups,
        reservedResources={"cpu": "cpuset:0"},
    ) as it:
        await it.start(pod("shared"), pod("own", "1"))
        shared, own = (it.runtime.container(f"{each}/main") for each in ("shared", "own"))
        assert (str(shared.cpus), str(own.cpus)) == ("0", "1")
        await it.runtime.stop_container(own)
        assert str(shared.cpus) == "0"
        await it.daemon.executor.settle()
        assert shared.cpus == own.cpus


@RUNTIMES
@pytest.mark.parametrize("where", ["creating", "starting", "started"])
async def test_an_update_that_a_starting_container_loses_is_made_up_for_before_it_runs(
    where: str, runtime: tuple[str, str], tmp_path: Path
) -> None:
    async with host(tmp_path, runtime) as it:
        gate = Gate(it.runtime, where, "slow")
        starting = asyncio.create_task(it.start(pod("slow")))
        await gate.reached.wait()
        await it.start(pod("own", "1"))
        slow, own = (it.runtime.container(f"{each}/main") for each in ("slow", "own"))
        assert len(own.cpus) == 1
        if where == "started":  # it runs, as far as anybody knows
            assert own.cpus.isdisjoint(slow.cpus)
        gate.open.set()
        await starting
        assert owners(it) == {}
        assert slow.cpus == it.daemon.node.view.sent[slow.id][0]
        await until(lambda: not it.daemon.executor.state.in_flight)
        # and the runtime's own idea of it is put right with the next answer
        await it.start(pod("next"))
        assert CPUSet.parse(slow.message.linux.resources.cpu.cpus).isdisjoint(own.cpus)
        assert it.runtime.synchronizations == 1
        assert not it.daemon.executor._tasks, "a look that is over is not kept"


@RUNTIMES
@pytest.mark.parametrize("cgroups", [None, Unwritable], ids=["unseen", "read-only"])
@pytest.mark.parametrize("where", ["creating", "starting", "started"])
async def test_where_no_cgroup_can_be_written_the_runtime_is_told_again_at_once(
    where: str,
    cgroups: type[SimulatedCgroups] | None,
    runtime: tuple[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(next_actions, "PATIENCE", 0.0)
    async with host(tmp_path, runtime, cgroups=cgroups) as it:
        gate = Gate(it.runtime, where, "slow")
        starting = asyncio.create_task(it.start(pod("slow")))
        await gate.reached.wait()
        await it.start(pod("own", "1"))
        gate.open.set()
        await starting
        await until(lambda: owners(it) == {})
        slow = it.runtime.container("slow/main")
        await until(lambda: slow.cpus == it.daemon.node.view.sent[slow.id][0])


async def test_what_is_told_counts_only_once_it_is_seen_in_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(next_actions, "FIRST_LOOK", 20.0)  # only requests look
    async with served(tmp_path, ONE_POOL, cgroups=SimulatedCgroups) as it:
        await it.start(pod("shared", "500m"))
        shared = it.runtime.container("shared/main")
        gate = Gate(it.runtime, "creating", "own")
        starting = asyncio.create_task(it.start(pod("own", "1")))
        await gate.reached.wait()
        assert shared.id in it.daemon.executor.state.in_flight
        assert shared.in_force is not None
        decided, shared.in_force.cpu.cpus = shared.cpus, "1-3"  # it never got that far
        gate.open.set()
        await starting
        assert owners(it) == {}
        assert shared.cpus == decided
        assert shared.id not in it.daemon.executor.state.in_flight


async def test_a_runtime_that_believes_a_container_elsewhere_hears_where_it_is(
    tmp_path: Path,
) -> None:
    async with served(tmp_path, ONE_POOL, cgroups=SimulatedCgroups) as it:
        await it.start(pod("shared", "500m"))
        shared = it.runtime.container("shared/main")
        decided = shared.cpus
        shared.message.linux.resources.cpu.cpus = "0"  # the word of what we wrote was lost
        it.daemon._session.reconnect()
        await it.runtime.synchronized(after=1)
        await it.runtime.settled()
        assert CPUSet.parse(shared.message.linux.resources.cpu.cpus) == shared.cpus == decided


@RUNTIMES
@pytest.mark.parametrize("where", ["creating", "starting", "started"])
async def test_a_container_that_was_created_while_the_daemon_registered_is_placed(
    where: str, runtime: tuple[str, str], tmp_path: Path
) -> None:
    """The runtime does not list it yet, or it comes up without its creation."""
    async with host(tmp_path, runtime) as it:
        await it.start(pod("own", "1"))
        it.daemon._session.reconnect()
        await it.runtime.disconnected()
        gate = Gate(it.runtime, where, "missed")
        starting = asyncio.create_task(it.start(pod("missed")))
        await gate.reached.wait()
        missed = it.runtime.container("missed/main")
        await it.runtime.synchronized(after=1)
        gate.open.set()
        await starting
        assert missed.id in it.daemon.node.view.placed
        assert owners(it) == {}
        await it.daemon.executor.look()  # as it does a moment later
        assert missed.cpus == it.daemon.node.view.sent[missed.id][0]


@RUNTIMES
async def test_a_container_whose_quota_an_earlier_life_has_taken_keeps_its_limit(
    runtime: tuple[str, str], tmp_path: Path
) -> None:
    """Its creation was answered by a life that stored nothing of it."""
    async with host(tmp_path, runtime) as it:
        gate = Gate(it.runtime, "creating", "missed")
        starting = asyncio.create_task(it.start(pod("missed", "2")))
        await gate.reached.wait()
        missed = it.runtime.container("missed/main")
        assert missed.quota == NO_QUOTA
        async with it.daemon.node.turn:
            it.daemon.node.handle(Stopped(container_id=missed.id))
        gate.open.set()
        await starting
        known = it.daemon.node.view.placed[missed.id].container
        assert known.resources.cpu_limit == 2000


@RUNTIMES
async def test_a_container_that_is_stopped_before_its_start_keeps_its_place_as_long_as_it_is_listed(
    runtime: tuple[str, str], tmp_path: Path
) -> None:
    async with host(tmp_path, runtime) as it:
        made = await it.runtime.run_pod(pod("again", "1"))
        again = await it.runtime.create_container(made, "main")
        await it.runtime.stop_container(again)
        errors = await it.start(pod("own", "2"), pod("guest"))
        assert not errors
        places = [each.cpus for each in it.runtime.containers]
        it.daemon._session.reconnect()
        await it.runtime.synchronized(after=1)
        await it.runtime.settled()
        assert [each.cpus for each in it.runtime.containers] == places
        assert owners(it) == {}
        if runtime[0] == "cri-o":
            assert again.id not in it.daemon.node.view.placed
            return
        await it.runtime.start_container(again)
        assert again.cpus == places[0]
        assert owners(it) == {}
        await it.runtime.stop_container(again)
        assert again.id not in it.daemon.node.view.placed


@RUNTIMES
async def test_a_container_that_never_started_holds_nothing_once_its_pod_has_stopped(
    runtime: tuple[str, str], tmp_path: Path
) -> None:
    async with host(tmp_path, runtime) as it:
        made = await it.runtime.run_pod(pod("never", "1"))
        await it.runtime.create_container(made, "main")
        await it.runtime.stop_pod(made)
        await it.start(pod("own", "2"), pod("guest"))
        own, guest = it.runtime.containers[1:]
        places = own.cpus, guest.cpus
        assert len(it.daemon.node.view.placed) == 2
        it.daemon._session.reconnect()
        await it.runtime.synchronized(after=1)
        await it.runtime.settled()
        assert (own.cpus, guest.cpus) == places
        assert len(it.daemon.node.view.placed) == 2


@RUNTIMES
async def test_a_container_that_starts_though_it_was_released_is_placed_anew(
    runtime: tuple[str, str], tmp_path: Path
) -> None:
    async with host(tmp_path, runtime) as it:
        made = await it.runtime.run_pod(pod("again", "1"))
        again = await it.runtime.create_container(made, "main")
        await it.daemon.events.release([again.id], ContainerState.CREATED)
        await it.start(pod("own", "1"))
        await it.runtime.start_container(again)
        assert again.id in it.daemon.node.view.placed
        assert owners(it) == {}
        await it.start(pod("next"))
        assert again.cpus == it.daemon.node.view.sent[again.id][0]


def amounts(cpu: str, memory: str = "") -> ResourceChange:
    each = Amounts(cpu=parse_cpu(cpu))
    if memory:
        each["memory"] = parse_bytes(memory)
    return ResourceChange(requests=each, limits=each)


@RUNTIMES
async def test_what_a_resize_frees_is_nobody_elses_until_it_is_in_force(
    runtime: tuple[str, str], tmp_path: Path
) -> None:
    async with host(tmp_path, runtime, "package:1 numa:1 core:6 pu:1") as it:
        await it.start(pod("shrinks", "3"))
        (shrinks,) = it.runtime.containers
        before = shrinks.cpus
        gate = Gate(it.runtime, "updating", "shrinks")
        resizing = asyncio.create_task(it.runtime.resize(shrinks.pod, "main", amounts("1")))
        await gate.reached.wait()
        assert shrinks.cpus == before
        assert await it.start(pod("next", "3")), "there is no room for it yet"
        await it.runtime.delete_pod(it.runtime.pod("next"))
        gate.open.set()
        await resizing
        assert len(shrinks.cpus) == 1
        assert await it.start(pod("next", "3")) == []
        assert owners(it) == {}


@RUNTIMES
async def test_a_resize_gets_no_cpu_that_another_leaves_by_a_resize_of_its_own_before_that_has_left(
    runtime: tuple[str, str], tmp_path: Path
) -> None:
    async with host(tmp_path, runtime, "package:1 numa:1 core:6 pu:1") as it:
        await it.start(pod("leaves", "900m"), pod("takes", "1"))
        leaves, takes = it.runtime.containers
        first = Gate(it.runtime, "updating", "leaves")
        leaving = asyncio.create_task(it.runtime.resize(leaves.pod, "main", amounts("1")))
        await first.reached.wait()
        second = Gate(it.runtime, "updating", "takes")
        taking = asyncio.create_task(it.runtime.resize(takes.pod, "main", amounts("4")))
        await second.reached.wait()
        own = it.daemon.node.view.placed[takes.id].grant.own
        assert (len(own), leaves.cpus & own) == (4, CPUSet())
        first.open.set()
        second.open.set()
        await asyncio.gather(leaving, taking)
        assert owners(it) == {}


@RUNTIMES
@pytest.mark.parametrize("cpu", ["500m", "1", "1500m", "4"])
async def test_a_resize_that_the_runtime_refuses_is_taken_back(
    cpu: str, runtime: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observations, "GRACE", 0.1)
    async with host(tmp_path, runtime, "package:1 numa:1 core:6 pu:1") as it:
        await it.start(pod("full", "3", memory="96Mi"), pod("guest"))
        full, guest = it.runtime.containers
        full.usage = 50 << 20
        before, beside = full.cpus, guest.cpus
        with pytest.raises(CRIError, match="cannot decrease memory limit"):
            await it.runtime.resize(full.pod, "main", amounts(cpu, "24Mi"))
        errors = await it.start(pod("next", "1"))
        assert owners(it) == {}
        await until(lambda: not it.daemon.node.view.resizing)
        assert it.daemon.node.view.placed[full.id].grant.exclusive == before
        notes = it.daemon.node.view.placed[full.id].explanation.notes
        assert "the runtime refused its resize, so it keeps what it had" in notes
        if not errors:
            await it.runtime.delete_pod(it.runtime.pod("next"))
        await it.start(pod("last"))
        await until(lambda: (full.cpus, guest.cpus) == (before, beside))
        assert owners(it) == {}


@RUNTIMES
async def test_a_refused_resize_is_taken_back_when_the_runtime_lists_what_there_is(
    runtime: tuple[str, str], tmp_path: Path
) -> None:
    async with host(tmp_path, runtime, TWO_SOCKETS) as it:
        assert await it.start(*[pod(f"p{number}", "1") for number in range(7)]) == []
        others = {min(each.cpus): each.pod for each in it.runtime.containers}
        for cpu in (2, 4):
            await it.runtime.delete_pod(others.pop(cpu))
        await it.start(pod("full", "2", memory="96Mi"))
        full = it.runtime.container("full/main")
        for each in others.values():
            await it.runtime.delete_pod(each)
        full.usage = 50 << 20
        before = full.cpus
        assert before == CPUSet([2, 4]), "two cores, though there are whole ones by now"
        with pytest.raises(CRIError, match="cannot decrease memory limit"):
            await it.runtime.resize(full.pod, "main", amounts("1", "24Mi"))
        assert it.daemon.node.view.resizing
        it.daemon._session.reconnect()
        await it.runtime.synchronized(after=1)
        await it.runtime.settled()
        assert not it.daemon.node.view.resizing
        assert it.daemon.node.view.placed[full.id].grant.exclusive == before == full.cpus


async def test_who_was_refused_resizes_is_explained_as_before_and_by_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observations, "GRACE", 0.1)
    async with served(tmp_path, ONE_POOL, cgroups=SimulatedCgroups) as it:
        await it.start(pod("full", "2", memory="96Mi"))
        (full,) = it.runtime.containers
        full.usage = 50 << 20
        before = it.daemon.node.view.placed[full.id].explanation
        for cpu in ("1", "3"):
            with pytest.raises(CRIError, match="cannot decrease memory limit"):
                await it.runtime.resize(full.pod, "main", amounts(cpu, "24Mi"))
            await until(lambda: not it.daemon.node.view.resizing)
        after = it.daemon.node.view.placed[full.id].explanation
        note = "the runtime refused its resize, so it keeps what it had"
        assert after == replace(before, notes=(*before.notes, note))
        # and so by the journal, after a restart
        journal = History(it.daemon._store.path)
        assert journal.placement("default/full/main", full.id) == explanation_report(after, None)
        assert journal.changes(full.id, full.pod.id) == ()


async def test_a_resize_to_nonsense_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observations, "GRACE", 0.1)
    async with served(tmp_path, ONE_POOL, cgroups=SimulatedCgroups) as it:
        await it.start(pod("own", "2"))
        (own,) = it.runtime.containers
        before = it.daemon.node.view.placed[own.id].container.resources
        nonsense = pb.LinuxResources()
        nonsense.cpu.period.value = (1 << 64) - 7
        with pytest.raises(CRIError, match="CPU period"):
            await it.runtime.update_container(own, nonsense)
        await until(lambda: not it.daemon.node.view.resizing)
        assert it.daemon.node.view.placed[own.id].container.resources == before


async def test_a_resize_that_seemed_refused_counts_when_it_ends_after_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observations, "GRACE", 0.0)
    async with served(tmp_path, "package:1 numa:1 core:6 pu:1", cgroups=SimulatedCgroups) as it:
        await it.start(pod("slow", "3"))
        (slow,) = it.runtime.containers
        gate = Gate(it.runtime, "updating", "slow")
        resizing = asyncio.create_task(it.runtime.resize(slow.pod, "main", amounts("1")))
        await gate.reached.wait()
        await until(lambda: not it.daemon.node.view.resizing)
        assert len(it.daemon.node.view.placed[slow.id].grant.exclusive) == 3
        gate.open.set()
        await resizing
        assert len(it.daemon.node.view.placed[slow.id].grant.exclusive) == 1
        await it.start(pod("next", "3"))
        await until(lambda: owners(it) == {})


@RUNTIMES
@pytest.mark.parametrize("killed", [True, False], ids=["runtime killed", "too slow"])
async def test_a_resize_that_seemed_refused_counts_when_it_is_seen_in_force_after_all(
    killed: bool, runtime: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A runc goes on that a killed runtime had begun; nobody reports its end."""
    monkeypatch.setattr(observations, "GRACE", 0.0)
    monkeypatch.setattr(delivery_state, "RESIZE_LOOK", 0.01)
    async with host(tmp_path, runtime, "package:1 numa:1 core:6 pu:1") as it:
        await it.start(pod("slow", "1"), pod("guest"))
        slow, _ = it.runtime.containers
        gate = Gate(it.runtime, "updating", "slow")
        resizing = asyncio.create_task(it.runtime.resize(slow.pod, "main", amounts("3")))
        await gate.reached.wait()
        if killed:
            await it.runtime.restart()
            await it.runtime.synchronized(after=1)
        await until(lambda: not it.daemon.node.view.resizing)
        assert it.daemon.node.view.placed[slow.id].request.milli == 1000
        resizing.cancel()
        assert slow.in_force is not None
        slow.in_force.cpu.quota.value = 300_000
        slow.in_force.cpu.shares.value = 3072
        await until(lambda: it.daemon.node.view.placed[slow.id].request.milli == 3000)
        await it.start(pod("next"))
        await until(lambda: slow.cpus == it.daemon.node.view.sent[slow.id][0])
        assert len(slow.cpus) == 3
        await until(lambda: owners(it) == {})


async def test_who_is_refused_a_resize_is_looked_at_for_a_while_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observations, "GRACE", 0.0)
    monkeypatch.setattr(delivery_state, "RESIZE_LOOK", 0.001)
    monkeypatch.setattr(delivery_state, "RESIZE_DOUBT", 0.01)
    async with served(tmp_path, ONE_POOL, cgroups=SimulatedCgroups) as it:
        await it.start(pod("full", "2", memory="96Mi"))
        (full,) = it.runtime.containers
        full.usage = 50 << 20
        with pytest.raises(CRIError, match="cannot decrease memory limit"):
            await it.runtime.resize(full.pod, "main", amounts("1", "24Mi"))
        await until(lambda: full.id in it.daemon.executor.state.resizes)
        await until(lambda: not it.daemon.executor.state.resizes)
        assert it.daemon.node.view.placed[full.id].request.milli == 2000


@RUNTIMES
async def test_a_resize_that_a_registration_fell_into_counts_when_it_ends(
    runtime: tuple[str, str], tmp_path: Path
) -> None:
    async with host(tmp_path, runtime, "package:1 numa:1 core:6 pu:1") as it:
        await it.start(pod("slow", "1"))
        (slow,) = it.runtime.containers
        gate = Gate(it.runtime, "updating", "slow")
        resizing = asyncio.create_task(it.runtime.resize(slow.pod, "main", amounts("3")))
        await gate.reached.wait()
        it.daemon._session.reconnect()
        await it.runtime.synchronized(after=1)
        assert not it.daemon.node.view.resizing
        gate.open.set()
        await resizing
        assert it.daemon.node.view.placed[slow.id].request.milli == 3000
        await it.start(pod("next"))
        assert slow.cpus == it.daemon.node.view.sent[slow.id][0]
        assert len(slow.cpus) == 3


@RUNTIMES
async def test_a_restart_of_the_runtime_undoes_no_resize(
    runtime: tuple[str, str], tmp_path: Path
) -> None:
    """CRI-O lists what containers were created with; their cgroups say otherwise."""
    async with host(tmp_path, runtime) as it:
        await it.start(pod("resized", "1"), pod("guest"))
        resized, guest = it.runtime.containers
        await it.runtime.resize(resized.pod, "main", amounts("2"))
        places, updates = (resized.cpus, guest.cpus), len(guest.updated_by)
        assert len(resized.cpus) == 2
        await it.runtime.restart()
        await it.runtime.synchronized(after=1)
        assert (resized.cpus, guest.cpus) == places
        news = guest.updated_by[updates:]  # at most where it is already, for the runtime to know
        assert {CPUSet.parse(each.resources.cpu.cpus) for each in news} <= {guest.cpus}
        assert it.daemon.node.view.placed[resized.id].request.milli == 2000


@pytest.mark.parametrize("known", [True, False], ids=["while we were away", "store lost"])
async def test_what_a_cgroup_has_counts_where_the_list_and_the_store_are_older(
    known: bool, tmp_path: Path
) -> None:
    """CRI-O lists what a container was created with; nobody told us of its resize."""

    async def resized_meanwhile(runtime: EmbeddedRuntime) -> None:
        await runtime.resize(runtime.pod("resized"), "main", amounts("3"))
        await runtime.restart()

    async with served(
        tmp_path,
        ONE_POOL,
        cgroups=SimulatedCgroups,
        name="cri-o",
        version="1.36.3",
        before=[] if known else [pod("resized", "1"), pod("guest")],
        meanwhile=None if known else resized_meanwhile,
    ) as it:
        if known:
            await it.start(pod("resized", "1"), pod("guest"))
            await it.runtime._nri.stop()
            await resized_meanwhile(it.runtime)
            await it.runtime.synchronized(after=1)
        resized, guest = it.runtime.containers
        listed = resized.message.linux.resources.cpu
        assert (listed.shares.value, listed.quota.value) == (1024, NO_QUOTA), "what it lists"
        assert it.daemon.node.view.placed[resized.id].request.milli == 3000
        await until(lambda: len(resized.cpus) == 3)
        assert owners(it) == {}
        assert guest.cpus.isdisjoint(resized.cpus)


async def test_a_container_that_ends_unheard_is_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orphans, "GRACE", 0.0)
    events: list[ClusterEvent] = []
    async with served(
        tmp_path, ONE_POOL, cgroups=SimulatedCgroups, record=events.append, audit="off"
    ) as it:
        await it.start(pod("ends", "2"), pod("stays", "1"))
        ends, stays = it.runtime.containers
        it.runtime.vanish(ends)
        await it.daemon.auditor.round()
        assert [each.reason for each in events] == ["EndedWithoutEvent"]
        assert [*it.daemon.status.doubts()] == [f"default/ends/main {GONE}"]
        assert [*it.daemon.node.view.placed] == [stays.id]
        assert await it.start(pod("next", "1")) == []


@RUNTIMES
async def test_a_creation_that_nobody_waits_for_any_more_is_released_where_the_runtime_hides_it(
    runtime: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orphans, "GRACE", 0.0)
    monkeypatch.setattr(orphans, "MAX_CREATION", 0.0)
    events: list[ClusterEvent] = []
    async with served(
        tmp_path,
        ONE_POOL,
        cgroups=SimulatedCgroups,
        record=events.append,
        name=runtime[0],
        version=runtime[1],
    ) as it:
        gate = Gate(it.runtime, "creating", "given-up")
        await it.start(pod("stays", "1"))
        creating = asyncio.create_task(it.start(pod("given-up", "1")))
        await gate.reached.wait()
        creating.cancel()
        await asyncio.wait({creating})
        given_up = it.runtime.container("given-up/main")
        waiting = await it.runtime.create_container(
            await it.runtime.run_pod(pod("waiting", "500m")), "main"
        )
        await it.daemon.auditor.round()
        hides = runtime[1] in {"1.36.3", "1.7.24"}
        unlike = runtime[1] == "1.7.24"  # where what was created has no process before its start
        assert (waiting.id in it.daemon.node.view.placed) is not unlike
        assert (given_up.id in it.daemon.node.view.placed) is not hides
        assert [each.reason for each in events] == ["EndedWithoutEvent"] * (hides + unlike)
        assert await it.start(pod("next", "1")) == [] if hides else True


async def test_a_container_that_failed_to_start_is_not_taken_for_one_under_creation(
    tmp_path: Path,
) -> None:
    """Nothing shows that it is gone but its lack in the list."""

    async def fail(where: str, container: SimulatedContainer) -> None:
        if where == "starting" and container.key == "default/fails/main":
            raise CRIError("no such program")

    async with served(tmp_path, ONE_POOL, version="1.7.24") as it:
        it.runtime.between = fail
        assert len(await it.start(pod("stays", "1"), pod("fails", "1"))) == 1
        failed = it.runtime.container("fails/main")
        assert failed.id in it.daemon.node.view.placed, "the kubelet may start it again"
        it.runtime._forget(failed)  # removed while we are not connected
        it.daemon._session.reconnect()
        await it.runtime.synchronized(after=1)
        assert failed.id not in it.daemon.node.view.placed


@pytest.mark.parametrize(("name", "version"), [("cri-o", "1.36.3"), ("containerd", "1.7.24")])
async def test_a_creation_that_goes_on_while_the_runtime_registers_us_keeps_its_cpus(
    name: str, version: str, tmp_path: Path
) -> None:
    async with served(
        tmp_path, ONE_POOL, cgroups=SimulatedCgroups, name=name, version=version
    ) as it:
        gate = Gate(it.runtime, "creating", "slow")
        starting = asyncio.create_task(it.start(pod("slow", "2")))
        await gate.reached.wait()
        slow = it.runtime.container("slow/main")
        own = it.daemon.node.view.placed[slow.id].grant.exclusive
        it.daemon._session.reconnect()
        await it.runtime.synchronized(after=1)
        assert it.daemon.node.view.placed[slow.id].grant.exclusive == own
        assert await it.start(pod("next", "2")) != [], "there is one CPU left, and one reserved"
        gate.open.set()
        assert await starting == []
        assert slow.cpus == own
        assert not slow.updated_by


@pytest.mark.parametrize(("name", "version"), [("cri-o", "1.36.3"), ("containerd", "1.7.24")])
async def test_a_creation_that_the_runtime_registers_us_in_hears_what_was_decided_before(
    name: str, version: str, tmp_path: Path
) -> None:
    async with served(
        tmp_path, ONE_POOL, cgroups=SimulatedCgroups, name=name, version=version
    ) as it:
        gate = Gate(it.runtime, "creating", "slow")
        starting = asyncio.create_task(it.start(pod("slow")))
        await gate.reached.wait()
        assert await it.start(pod("own", "2")) == []
        it.daemon._session.reconnect()
        await it.runtime.synchronized(after=1)
        gate.open.set()
        assert await starting == []
        slow, own = it.runtime.container("slow/main"), it.runtime.container("own/main")
        assert slow.cpus == CPUSet.parse("1-3") - own.cpus


@pytest.mark.parametrize("living", [True, False])
async def test_a_creation_that_goes_on_while_the_daemon_is_restarted_keeps_its_cpus(
    living: bool, tmp_path: Path
) -> None:
    machine = nodes.machine(ONE_POOL)
    async with (
        EmbeddedRuntime(
            tmp_path / "nri.sock",
            online_cpus=machine.online,
            memory_nodes=CPUSet([0]),
            name="cri-o",
            version="1.36.3",
            timeouts=PATIENT,
        ) as runtime,
        asyncio.TaskGroup() as group,
    ):

        def daemon() -> Daemon:
            host = Environment(
                state_dir=tmp_path,
                root=tmp_path,
                cgroups=SimulatedCgroups(runtime),
                delay=lambda _: 0.0,
            )
            return Daemon(machine, nodes.settings(), host)

        first = daemon()
        gate = Gate(runtime, "creating", "slow")
        async with first.serving(runtime.socket_path):
            await runtime.synchronized()
            starting = group.create_task(runtime.start_pod(pod("slow", "2")))
            await gate.reached.wait()
            slow = runtime.container("slow/main")
            own = first.node.view.placed[slow.id].grant.exclusive
        await first.close()
        await runtime.disconnected()
        if living:
            slow.make_cgroup()  # as it is before the hooks run
        second = daemon()
        async with second.serving(runtime.socket_path):
            await runtime.synchronized(after=1)
            held = second.node.view.placed
            assert {each: held[each].grant.exclusive for each in held} == (
                {slow.id: own} if living else {}
            )
            gate.open.set()
            await starting
            assert slow.cpus == second.node.view.placed[slow.id].grant.exclusive
            assert not (living and slow.updated_by)
        await second.close()


async def test_a_container_that_starts_slowly_keeps_its_cpus_when_the_daemon_registers(
    tmp_path: Path,
) -> None:
    """containerd's shim says nothing of the pod meanwhile, as of one that has ended."""
    async with host(tmp_path, ("containerd", "2.2.1")) as it:
        gate = Gate(it.runtime, "starting", "slow")
        starting = asyncio.create_task(it.start(pod("slow", "2")))
        await gate.reached.wait()
        slow = it.runtime.container("slow/main")
        own = it.daemon.node.view.placed[slow.id].grant.exclusive
        slow.pod.message.ClearField("pid")
        it.daemon._session.reconnect()
        await it.runtime.synchronized(after=1)
        assert it.daemon.node.view.placed[slow.id].grant.exclusive == own
        assert slow.pod.id in it.daemon.node.view.pods
        gate.open.set()
        assert await starting == []
        assert slow.cpus == own


@pytest.mark.parametrize("seen", ["never", "late", "late or never"])
async def test_what_an_earlier_daemon_sent_in_vain_is_sent_again(
    seen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """containerd lists what a container was sent, and only the earlier daemon knew it was lost."""
    machine = nodes.machine(ONE_POOL)
    async with EmbeddedRuntime(
        tmp_path / "nri.sock",
        online_cpus=machine.online,
        memory_nodes=CPUSet([0]),
        name="containerd",
        version="2.2.1",
        timeouts=PATIENT,
    ) as runtime:

        def daemon(cgroups: SimulatedCgroups | None = None) -> Daemon:
            host = Environment(
                state_dir=tmp_path, root=tmp_path, cgroups=cgroups, delay=lambda _: 0.0
            )
            return Daemon(machine, nodes.settings(), host)

        first = daemon()  # one that sees cgroups would soon write this one
        gate = Gate(runtime, "starting", "slow")
        async with first.serving(runtime.socket_path):
            await runtime.synchronized()
            await runtime.start_pod(pod("own", "2"))
            starting = asyncio.create_task(runtime.start_pod(pod("slow")))
            await gate.reached.wait()
            own, slow = runtime.containers
            await runtime.stop_container(own)
        await first.close()
        await runtime.disconnected()
        gate.open.set()
        await starting
        wide = CPUSet.parse(slow.message.linux.resources.cpu.cpus)
        assert slow.cpus < wide, "it was sent more than it got"
        if "late" in seen:
            monkeypatch.setattr(survey, "MAX_SURVEY", 0.0)
        second = daemon(None if "never" in seen else SimulatedCgroups(runtime))
        async with second.serving(runtime.socket_path):
            await runtime.synchronized(after=1)
            await until(lambda: slow.cpus == wide)
        await second.close()


async def test_a_pod_that_stops_takes_its_creations_along(tmp_path: Path) -> None:
    async with served(tmp_path, ONE_POOL, name="cri-o", version="1.36.3") as it:
        gate = Gate(it.runtime, "creating", "given-up")
        creating = asyncio.create_task(it.start(pod("given-up", "1")))
        await gate.reached.wait()
        creating.cancel()
        await asyncio.wait({creating})
        records = it.daemon.executor.state.records
        assert records
        async with it.daemon.node.turn:
            (stopped,) = it.runtime.pods
            await it.daemon.plugin.stop_pod_sandbox(stopped.message)
        assert not it.daemon.node.view.placed
        assert not records


async def test_a_creation_that_was_refused_does_not_go_on(tmp_path: Path) -> None:
    async with served(tmp_path, ONE_POOL, name="cri-o", version="1.36.3") as it:
        assert await it.start(pod("refused", "9")) != []
        assert not it.daemon.executor.state.busy


async def test_a_container_that_was_missed_altogether_is_found_and_placed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orphans, "GRACE", 0.0)
    events: list[ClusterEvent] = []
    async with served(tmp_path, ONE_POOL, cgroups=SimulatedCgroups, record=events.append) as it:
        await it.start(pod("own", "1"), pod("missed"))
        own, missed = it.runtime.containers
        # as if its events had been missed
        await it.daemon.events.release([missed.id], ContainerState.RUNNING)
        await it.daemon.auditor.round()
        (event,) = events
        assert (event.about, event.reason) == (Subject.node("node-a"), "UnknownContainer")
        assert missed.id in event.text
        await it.runtime.synchronized(after=1)
        assert missed.id in it.daemon.node.view.placed
        await it.daemon.auditor.round()
        assert not it.daemon.auditor.orphans.unknown
        assert own.cpus.isdisjoint(missed.cpus)


@pytest.mark.parametrize("audit", ["off", "report", "repair"])
async def test_who_is_put_on_a_cpu_of_anothers_own_is_put_off_it_whatever_the_audit_does(
    audit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overlaps, "PERIOD", 0.01)
    monkeypatch.setattr(overlap_times, "REST", 0.0)
    events: list[ClusterEvent] = []
    async with served(
        tmp_path, ONE_POOL, cgroups=SimulatedCgroups, record=events.append, audit=audit
    ) as it:
        await it.start(pod("own", "1"), pod("guest"))
        own, guest = it.runtime.containers
        decided = guest.cpus
        assert guest.in_force is not None
        await until(lambda: not it.daemon.executor.state.in_flight)
        assert events == [], "what a runtime loses while it starts a container is nothing unusual"
        guest.in_force.cpu.cpus = str(guest.cpus | own.cpus)
        await until(lambda: guest.cpus == decided)
        await until(lambda: events != [])
        text = f"was on CPUs {own.cpus}, which only default/own/main may use; it was moved off"
        assert [*it.daemon.status.doubts()] == [f"default/guest/main {text} them"]
    (event,) = events
    uid = guest.pod.message.uid
    assert event.about == Subject.pod("default", "guest", uid)
    assert (event.reason, event.text) == ("ExclusiveCPUsShared", f"container main {text} them")


async def test_an_overlap_that_cannot_be_ended_here_is_said_to_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overlaps, "PERIOD", 0.01)
    monkeypatch.setattr(overlap_times, "REST", 0.0)
    events: list[ClusterEvent] = []
    async with served(tmp_path, ONE_POOL, cgroups=Unwritable, record=events.append) as it:
        await it.start(pod("own", "1"), pod("guest"))
        own, guest = it.runtime.containers
        await until(lambda: not it.daemon.executor.state.in_flight)
        assert guest.in_force is not None
        guest.in_force.cpu.cpus = str(own.cpus)
        await until(lambda: events != [])
        for _ in range(3):
            await it.daemon._overlaps.look()
        assert len(events) == 1, "it lasts, and is known"
        guest.in_force.cpu.cpus = "2"
        await it.daemon._overlaps.look()
        guest.in_force.cpu.cpus = str(own.cpus)
        await it.daemon._overlaps.look()
    assert len(events) == 2
    for event in events:
        assert event.text.endswith("may use; it is still there: Read-only file system")


@RUNTIMES
async def test_what_the_runtime_refuses_a_container_that_runs_is_written_once_it_had_its_time(
    runtime: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where its memory nodes change too, the runtime is told; its CPUs do not wait for that."""
    monkeypatch.setattr(observations, "GRACE", 0.1)
    async with host(tmp_path, runtime, TWO_SOCKETS) as it:
        await it.start(pod("guest"))
        (guest,) = it.runtime.containers
        await until(lambda: not it.daemon.executor.state.in_flight)

        def refuse(*_: object, **__: object) -> None:
            raise CRIError("runc update failed")

        monkeypatch.setattr(type(guest), "apply", refuse)
        decided = guest.cpus
        assert guest.in_force is not None
        guest.in_force.cpu.cpus, guest.in_force.cpu.mems = str(decided.first(1)), "0"
        put_in_flight(it.daemon.executor, guest.id)
        await until(lambda: guest.cpus == decided or bool(it.daemon.executor.state.refused))
        assert guest.cpus == decided


async def test_where_crio_lists_what_was_once_so_and_no_cgroup_is_seen_all_hear_again(
    tmp_path: Path,
) -> None:
    async with served(tmp_path, ONE_POOL, name="cri-o", version="1.36.3") as it:
        await it.start(pod("own", "1"), pod("guest"))
        guest = it.runtime.container("guest/main")
        narrow = guest.cpus
        await it.runtime.delete_pod(it.runtime.pod("own"))
        assert guest.cpus > narrow
        await it.runtime._nri.stop()
        await it.start(pod("meanwhile", "1"))
        await it.runtime.restart()  # the guest is listed as it was created
        await it.runtime.synchronized(after=1)
        await until(lambda: owners(it) == {})
        assert guest.cpus == narrow == it.daemon.node.view.sent[guest.id][0]


@RUNTIMES
async def test_a_sibling_in_a_room_follows_two_resizes_where_no_cgroup_can_be_written(
    runtime: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(next_actions, "PATIENCE", 0.0)
    monkeypatch.setattr(next_actions, "PATIENCE_TO_REGISTER", 0.0)
    manifest = pod("web", annotations=rooms.ROOM)
    (first,) = manifest["spec"]["containers"]
    both = [{**first, "name": name, "resources": {"requests": {"cpu": "2"}}} for name in "ab"]
    manifest["spec"]["containers"] = both
    async with host(tmp_path, runtime, nodes.SMALL, Unwritable) as it:
        await it.start(manifest)
        it.daemon._session.reconnect()  # it tries to write one, and registers again
        await it.runtime.synchronized(after=2)
        sibling = it.runtime.container("web/b")
        for milli in (1000, 3000):  # the room shrinks to 3 CPUs, and grows to 5
            amounts = ResourceChange(requests=Amounts({"cpu": milli}))
            await it.runtime.resize(it.runtime.pod("web"), "a", amounts)
            due = it.daemon.node.view.sent[sibling.id][0]
            assert len(due) == 2 + milli // 1000
            await until(lambda due=due: sibling.cpus == due)  # type: ignore[misc]


async def test_a_look_finds_that_a_container_has_started_and_the_runtime_does_not_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = AsyncMock()
    monkeypatch.setattr(PolicyPlugin, "post_start_container", heard)
    async with served(tmp_path, ONE_POOL, cgroups=SimulatedCgroups) as it:
        it.runtime.after = AsyncMock()
        await it.start(pod("new", "1"))
        new, state = it.runtime.container("new/main"), it.daemon.executor.state
        assert state.phase(new.id) is Phase.STARTING
        while state.phase(new.id) is not Phase.RUNNING:  # noqa: ASYNC110 - no event announces it
            await asyncio.sleep(0.001)
        heard.assert_not_called()
        assert new.id not in state.in_flight


class Hidden(SimulatedCgroups):
    """Cgroups of a host that has none of the runtime's containers."""

    def resources(self, cgroup: str) -> None:
        """Return nothing: it is not here."""

    def cpusets(self, cgroups: Iterable[str]) -> Mapping[str, CPUSet]:  # noqa: ARG002
        return {}


async def test_a_daemon_that_sees_no_cgroup_of_those_that_run_registers_to_hear_of_starts(
    tmp_path: Path,
) -> None:
    async with served(tmp_path, ONE_POOL, cgroups=Hidden, before=[pod("old", "1")]) as it:
        await it.runtime.synchronized(after=1)
        state = it.daemon.executor.state
        assert (state.blind, state.hears_starts) == (True, True)
        it.runtime.after = AsyncMock()
        await it.start(pod("new", "1"))
        assert state.phase(it.runtime.container("new/main").id) is Phase.RUNNING
