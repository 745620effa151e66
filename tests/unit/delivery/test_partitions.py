"""Kernel partitions on a daemon: made before a start is answered, kept, given up and removed."""

from __future__ import annotations

import asyncio
import errno
import logging
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest

from nri_policy.audit.cgroup_paths import folder_of
from nri_policy.classes import Equipment
from nri_policy.delivery import (
    executor,
    next_actions,
    observations,
    partition_files,
    partition_records,
    partitions,
)
from nri_policy.delivery.cpuset_files import Change, Confined
from nri_policy.delivery.inputs import Action
from nri_policy.delivery.partition_files import EXCLUSIVE, PARTITION, ancestors
from nri_policy.engine.state.partition_rules import Partition
from nri_policy.foundation.clock import Clock
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.foundation.units import parse_cpu
from nri_policy.manifests.resources import Amounts, ResourceChange
from nri_policy.plugin.answers import Answers
from nri_policy.plugin.sources import Sources
from nri_policy.proto import nri_pb2 as pb
from nri_policy.settings import ExclusivePartitions
from nri_policy.simulation.cgroups import SimulatedCgroups
from nri_policy.simulation.containers import CRIError, SimulatedContainer
from nri_policy.simulation.cpusets import EFFECTIVE, ROOT
from nri_policy.simulation.embedded import EmbeddedRuntime
from nri_policy.workload.pod import ContainerState
from tests.support import nodes
from tests.support.daemon import Served, pod, served
from tests.support.patience import HANGS, until

ONE_POOL = "package:1 numa:1 core:8 pu:1"
KEY = "exclusive-partition.resource-policy.nri.io/pod"


def is_at_rest(it: Served) -> bool:
    """Whether partitions are looked at next after a while, and not just now."""
    executor = it.daemon.executor
    now = executor.clock.now()
    return executor.state.plan(now).get(Action.PARTITIONS, now) > now + 1


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "MAX_START", 20.0)
    monkeypatch.setattr(next_actions, "SETTLE", 0.001)
    monkeypatch.setattr(partition_records, "SETTLE", 0.001)
    monkeypatch.setattr(partition_records, "PAUSE", 0.001)


def to(cpus: int) -> ResourceChange:
    amounts = Amounts(cpu=parse_cpu(str(cpus)))
    return ResourceChange(requests=amounts, limits=amounts)


def with_sidecar(name: str) -> dict[str, Any]:
    """Return the manifest of a pod that shares CPUs in one container, and has two in another."""
    manifest = pod(name)
    manifest["spec"]["containers"] = [
        {"name": each, "resources": {"limits": {"cpu": cpu, "memory": "1Mi"}}}
        for each, cpu in (("side", "500m"), ("main", "2"))
    ]
    return manifest


def path_of(container: SimulatedContainer) -> str:
    path = folder_of(container.message.linux.cgroups_path)
    assert path is not None
    return path


class PartitionCgroups(SimulatedCgroups):
    """The containers' cgroups on a kernel that may call partitions invalid."""

    refusal = ""  # why no partition becomes valid
    busy = ""  # a cgroup that cannot be written

    def __init__(self, runtime: EmbeddedRuntime) -> None:
        super().__init__(runtime)
        self.writes = 0

    def write(self, path: str, name: str, text: str) -> None:
        """Write a file of a cgroup."""
        self.writes += 1
        if path == self.busy:
            raise OSError(errno.EBUSY, "")
        super().write(path, name, text)

    def read(self, path: str, name: str) -> str | None:
        """Read one."""
        text = super().read(path, name)
        valid = name == PARTITION and text not in {None, "member"}
        return f"{text} invalid ({self.refusal})" if self.refusal and valid else text


class Host:
    """A daemon on a machine whose kernel has partitions;"""

    kind = PartitionCgroups

    def __init__(self) -> None:
        self.made: PartitionCgroups | None = None

    def __call__(self, runtime: EmbeddedRuntime) -> PartitionCgroups:
        """Make the cgroups, once."""
        self.made = self.made or self.kind(runtime)
        return self.made

    @property
    def cgroups(self) -> PartitionCgroups:
        """The cgroups."""
        assert self.made is not None
        return self.made

    def state(self, it: Served, name: str) -> tuple[str | None, str | None]:
        """Return what a container's cgroup is, and its exclusive CPUs."""
        path = path_of(it.runtime.container(name))
        return self.cgroups.read(path, PARTITION), self.cgroups.read(path, EXCLUSIVE)

    def write(self, it: Served, name: str, file: str, text: str) -> None:
        """Write a file of a container, as another program does."""
        self.cgroups.write(path_of(it.runtime.container(name)), file, text)

    def is_root(self, it: Served, name: str) -> bool:
        """Whether a container is a partition of all its CPUs."""
        return self.state(it, name) == ("root", str(it.runtime.container(name).cpus))

    def is_as_before(self, it: Served) -> bool:
        """Whether all files have what the kernel makes them with."""
        paths = map(path_of, it.runtime.containers)
        everything = {each for path in paths for each in (*ancestors(path), path)}
        found = {
            (self.cgroups.read(path, EXCLUSIVE), self.cgroups.read(path, PARTITION))
            for path in {*everything, "kubepods.slice"}
        }
        return found <= {("", "member"), (None, None)}


@pytest.fixture
def host() -> Host:
    return Host()


async def test_an_owner_is_a_partition_when_its_start_is_answered(
    tmp_path: Path, host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(tmp_path, cgroups=host, exclusivePartitions="root") as it:
        await it.start(pod("shared"), pod("own", "2"))
        assert host.is_root(it, "own/main")
        assert it.daemon.executor.state.kernel_partitions.is_in_force(
            it.runtime.container("own/main").id
        )
        assert host.state(it, "shared/main") == ("member", "")
        assert "cgroups-slow" not in caplog.text


async def test_by_its_annotation_it_is_isolated(tmp_path: Path, host: Host) -> None:
    async with served(tmp_path, cgroups=host) as it:
        await it.start(pod("own", "2", annotations={KEY: "isolated"}), pod("other", "1"))
        cpus = str(it.runtime.container("own/main").cpus)
        assert host.state(it, "own/main") == ("isolated", cpus)
        assert host.state(it, "other/main") == ("member", "")


class Stuck(PartitionCgroups):
    """The cpusets of others can be written only when `open` is set."""

    def __init__(self, runtime: EmbeddedRuntime) -> None:
        super().__init__(runtime)
        self.open = threading.Event()
        self.open.set()

    def confine(self, wanted: Mapping[str, CPUSet], change: Change) -> Mapping[str, Confined]:
        if change is not Change.REWRITE:
            self.open.wait(HANGS)
        return super().confine(wanted, change)


async def test_a_partition_takes_no_container_s_last_cpus(
    tmp_path: Path, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would run on all CPUs of the cgroup above, which may be another's own."""
    machine = "package:1 numa:2 core:2 pu:1"
    async with served(tmp_path, machine, cgroups=host, exclusivePartitions="root") as it:
        state = it.daemon.executor.state
        await it.start(pod("shared", "100m"))
        await until(lambda: not state.pending and not state.in_flight)
        await it.daemon.executor.probe(it.daemon.node.view.placed)  # files can be written
        shared = it.runtime.container("shared/main")
        before = shared.cpus
        found = list[tuple[str | None, CPUSet]]()
        write = host.cgroups.write

        def note(path: str, name: str, text: str) -> None:
            write(path, name, text)
            if name == PARTITION and text == "root":
                found.append((host.cgroups.read(path_of(shared), EFFECTIVE), shared.cpus))

        host.cgroups.write = note  # type: ignore[method-assign]
        monkeypatch.setattr(next_actions, "SETTLE", 1e9)  # it leaves no sooner than it must
        await it.start(pod("own", "2"))
        assert it.runtime.container("own/main").cpus == before
        await until(lambda: is_at_rest(it))
        assert [effective for effective, _ in found] == [str(cpus) for _, cpus in found] != []


async def test_the_start_of_an_owner_waits_for_no_neighbour(tmp_path: Path, host: Host) -> None:
    host.kind = Stuck
    async with served(tmp_path, ONE_POOL, cgroups=host, exclusivePartitions="root") as it:
        state = it.daemon.executor.state
        for each in (pod("shared"), pod("first", "1")):
            await it.start(each)
            await until(lambda: not state.pending and not state.in_flight)
        assert state.proven
        assert isinstance(host.cgroups, Stuck)
        host.cgroups.open.clear()
        await it.start(pod("own", "2"))
        own, shared = it.runtime.container("own/main").cpus, it.runtime.container("shared/main")
        assert host.is_root(it, "own/main")
        assert shared.cpus & own, "its cpuset is not written yet"
        host.cgroups.open.set()
        await until(lambda: not shared.cpus & own)


async def test_the_start_of_an_owner_waits_for_neighbours_on_hidden_hyperthreads(
    tmp_path: Path, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are the owner's, and not in its partition."""
    hides = {"hide-hyperthreads.resource-policy.nri.io/pod": "true"}
    machine = "package:1 numa:1 core:4 pu:2"
    async with served(tmp_path, machine, cgroups=host, exclusivePartitions="root") as it:
        delivery = it.daemon.executor
        waits = AsyncMock(wraps=delivery.wait_until_clear)
        monkeypatch.setattr(delivery, "wait_until_clear", waits)
        await it.start(pod("shared"), pod("plain", "1"))
        assert not waits.called
        await it.start(pod("own", "2", annotations=hides))
        own = it.runtime.container("own/main")
        grant = it.daemon.node.view.placed[own.id].grant
        assert host.is_root(it, "own/main")
        assert own.cpus < grant.own
        assert [each.args for each in waits.call_args_list] == [(grant.own,)]


async def test_the_start_of_an_owner_does_not_look_at_the_containers_of_other_pods(
    tmp_path: Path, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    def looked_at(*_: object) -> None:
        raise AssertionError("these can be many")

    async with served(tmp_path, ONE_POOL, cgroups=host, exclusivePartitions="root") as it:
        await it.start(pod("shared"))
        monkeypatch.setattr(it.daemon.executor.state, "occupants", looked_at)
        await it.start(pod("own", "2"))
        assert host.is_root(it, "own/main")


class Impatient(Clock, frozen=True, kw_only=True):
    """A clock on which all that is not done at once takes longer than anybody waits."""

    waits: list[float]

    async def done_within(self, seconds: float, future: asyncio.Future[Any]) -> bool:
        """Return whether it is done; let the *seconds* pass at once otherwise."""
        await asyncio.sleep(0)
        if not future.done():
            self.waits.append(seconds)
        return future.done()


async def test_a_start_waits_for_files_for_one_second_in_all(
    tmp_path: Path, host: Host, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(tmp_path, ONE_POOL, cgroups=host, exclusivePartitions="root") as it:
        await it.start(with_sidecar("own"))
        delivery, waits = it.daemon.executor, list[float]()
        own = it.runtime.container("own/main")
        monkeypatch.setattr(delivery.state, "occupants", lambda _: [own.id])
        monkeypatch.setattr(it.daemon.components.partitions, "_is_blocked", lambda *_: True)
        now = delivery.clock.now()
        passed = lambda: now + sum(waits)  # noqa: E731 - a clock
        monkeypatch.setattr(delivery, "clock", Impatient(now=passed, waits=waits))
        until = delivery.start_deadline()
        caplog.clear()  # the start of the containers may have been slow
        async with delivery.lock, it.daemon.components.partitions._lock:
            await it.daemon.components.partitions.start(own.id, own.cpus, until=until)
            await delivery.wait_until_clear(own.cpus, until=until)
        assert waits == [executor.MAX_START, 0.0, 0.0]
        warned = [each.msg for each in caplog.records if each.levelno >= logging.WARNING]
        assert warned == ["cgroups-slow"] * len(waits)


async def test_a_start_asks_for_occupants_in_its_pod_alone(
    tmp_path: Path, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served(tmp_path, ONE_POOL, cgroups=host, exclusivePartitions="root") as it:
        await it.start(pod("shared"), pod("first", "1"))
        asked = set[str]()

        def occupies(container_id: str, _own: CPUSet) -> bool:
            asked.add(container_id)
            return False

        monkeypatch.setattr(it.daemon.executor.state, "occupies", occupies)
        await it.start(with_sidecar("own"))
        assert host.is_root(it, "own/main")
        assert asked == {it.runtime.container("own/side").id}


async def test_neighbours_are_not_written_while_an_owner_is_created(
    tmp_path: Path, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served(tmp_path, ONE_POOL, cgroups=host, exclusivePartitions="root") as it:
        state = it.daemon.executor.state
        for each in (pod("shared"), pod("first", "1")):
            await it.start(each)
            await until(lambda: not state.pending and not state.in_flight)
        assert state.proven
        monkeypatch.setattr(next_actions, "SETTLE", 1e9)
        await it.start(pod("own", "2"))
        own, shared = it.runtime.container("own/main").cpus, it.runtime.container("shared/main")
        assert host.is_root(it, "own/main")
        await it.daemon.executor.looks[Action.OVERLAPS]()
        assert shared.cpus & own
        monkeypatch.setattr(next_actions, "SETTLE", 0.001)
        await it.start(pod("next"))
        await until(lambda: not shared.cpus & own)


async def test_cpus_that_a_resize_gives_up_leave_the_partition(tmp_path: Path, host: Host) -> None:
    async with served(tmp_path, cgroups=host, exclusivePartitions="root") as it:
        await it.start(pod("own", "2"))
        for cpus in (1, 3, 2):
            await it.runtime.resize(it.runtime.pod("own"), "main", to(cpus))
            assert len(it.runtime.container("own/main").cpus) == cpus
            await until(lambda: host.is_root(it, "own/main"))


async def test_nobody_starts_on_cpus_that_the_kernel_still_keeps_for_another(
    tmp_path: Path, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served(tmp_path, ONE_POOL.replace("core:8", "core:4"), cgroups=host) as it:
        await it.start(pod("own", "2", annotations={KEY: "root"}))
        await until(lambda: is_at_rest(it))
        monkeypatch.setattr(partition_records, "SETTLE", 1e9)  # nothing is looked at but by a start
        await it.runtime.resize(it.runtime.pod("own"), "main", to(1))
        assert len(CPUSet.parse(host.state(it, "own/main")[1] or "")) == 2
        await it.start(pod("next", "2", annotations={KEY: "root"}))
        assert host.is_root(it, "next/main")
        assert host.is_root(it, "own/main")


async def test_an_owner_that_grows_makes_no_sibling_invalid_that_has_just_shrunk(
    tmp_path: Path, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = ONE_POOL.replace("core:8", "core:6")
    async with served(tmp_path, machine, cgroups=host, exclusivePartitions="root") as it:
        manifest = with_sidecar("own")
        for each, cpu in zip(manifest["spec"]["containers"], ("2", "2"), strict=True):
            each["resources"]["limits"]["cpu"] = cpu
        assert await it.start(manifest) == []
        await until(lambda: is_at_rest(it))
        monkeypatch.setattr(partition_records, "SETTLE", 1e9)  # nothing is looked at by itself
        await it.runtime.resize(it.runtime.pod("own"), "side", to(1))
        await it.runtime.resize(it.runtime.pod("own"), "main", to(4))
        assert len(it.runtime.container("own/main").cpus) == 4, "it has all that are left"
        assert host.is_root(it, "own/side")


async def test_a_look_moves_nobody_onto_cpus_that_a_partition_still_keeps(
    tmp_path: Path, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With no CPU of its own left it would run on those of another that is no partition."""
    async with served(tmp_path, ONE_POOL.replace("core:8", "core:4"), cgroups=host) as it:
        await it.start(pod("first", "1"), pod("own", "2", annotations={KEY: "root"}))
        await until(lambda: is_at_rest(it))
        await it.runtime.delete_pod(it.runtime.pod("first"))
        # nothing is looked at but by a start, and the runtime tells of no end of one
        monkeypatch.setattr(partition_records, "SETTLE", 1e9)
        for module in (next_actions, observations):
            monkeypatch.setattr(module, "FIRST_LOOK", 1e9)
        it.runtime.after = AsyncMock()
        await it.start(pod("shared"))
        await it.runtime.resize(it.runtime.pod("own"), "main", to(1))
        shared = it.runtime.container("shared/main")
        before = shared.cpus
        await it.start(pod("next", "1"))
        assert it.runtime.container("next/main").cpus == before
        runs_on = host.cgroups.read(path_of(shared), EFFECTIVE)
        assert runs_on == str(shared.cpus), "it has left what is another's now"


@pytest.mark.parametrize("way", ["look", "answer", "call"])
async def test_nothing_widens_a_sidecar_onto_cpus_that_its_sibling_still_keeps(
    tmp_path: Path, host: Host, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """The kernel would call the sibling's partition invalid."""
    monkeypatch.setattr(next_actions, "PATIENCE", 0.001 if way == "call" else 1e9)
    monkeypatch.setattr(executor, "MAX_BATCH", 20.0)
    machine = ONE_POOL.replace("core:8", "core:4")
    async with served(tmp_path, machine, cgroups=host, version="2.4.0") as it:
        manifest = with_sidecar("own")
        manifest["metadata"]["annotations"] = {KEY: "root"}
        manifest["spec"]["containers"].reverse()
        made = await it.runtime.run_pod(manifest)
        await it.runtime.start_container(await it.runtime.create_container(made, "main"))
        await until(lambda: is_at_rest(it))
        # nothing is looked at by itself, and only a look or a message changes what still starts
        monkeypatch.setattr(partition_records, "SETTLE", 1e9)
        for module in (next_actions, observations):
            monkeypatch.setattr(module, "FIRST_LOOK", 1e9)
        it.runtime.after = AsyncMock()
        await it.runtime.start_container(await it.runtime.create_container(made, "side"))
        side = it.runtime.container("own/side")
        before = side.cpus
        if way != "answer":
            monkeypatch.setattr(Answers, "take", lambda *_, **_options: [])
        await it.runtime.resize(made, "main", to(1))
        if way == "look":
            await it.daemon.executor.look()
        if way == "answer":
            following = await it.runtime.run_pod(pod("next"))
            await it.runtime.create_container(following, "main")
        await until(lambda: len(side.cpus) > len(before))
        assert host.is_root(it, "own/main")


async def test_a_container_is_created_on_no_cpus_that_its_sibling_still_keeps(
    tmp_path: Path, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel would call the sibling's partition invalid before the new one starts."""
    monkeypatch.setattr(executor, "MAX_START", 20.0)
    async with served(tmp_path, ONE_POOL.replace("core:8", "core:4"), cgroups=host) as it:
        manifest = with_sidecar("own")
        manifest["metadata"]["annotations"] = {KEY: "root"}
        made = await it.runtime.run_pod(manifest)
        await it.runtime.start_container(await it.runtime.create_container(made, "main"))
        await until(lambda: is_at_rest(it))
        monkeypatch.setattr(partition_records, "SETTLE", 1e9)  # nothing is looked at by itself
        before = it.runtime.container("own/main").cpus
        await it.runtime.resize(made, "main", to(1))
        side = await it.runtime.create_container(made, "side")
        assert before & side.cpus, "it has what its sibling has given up"
        assert host.is_root(it, "own/main")


@pytest.mark.parametrize("by_call", [False, True])
async def test_no_message_moves_a_container_onto_cpus_that_a_partition_still_keeps(
    tmp_path: Path, host: Host, monkeypatch: pytest.MonkeyPatch, by_call: bool
) -> None:
    """Neither a call does so, nor an answer about another container."""
    monkeypatch.setattr(next_actions, "PATIENCE", 0.001)
    machine = ONE_POOL.replace("core:8", "core:4")
    async with served(tmp_path, machine, cgroups=host, version="2.4.0") as it:
        await it.start(pod("first", "1"), pod("own", "2", annotations={KEY: "root"}))
        await until(lambda: is_at_rest(it))
        await it.runtime.delete_pod(it.runtime.pod("first"))
        # nothing is looked at by itself, and only a message changes what still starts
        monkeypatch.setattr(partition_records, "SETTLE", 1e9)
        for module in (next_actions, observations):
            monkeypatch.setattr(module, "FIRST_LOOK", 1e9)
        it.runtime.after = AsyncMock()
        await it.start(pod("shared"))
        shared = it.runtime.container("shared/main")
        before = shared.cpus
        await it.runtime.resize(it.runtime.pod("own"), "main", to(1))
        if by_call:  # no answer takes it along
            monkeypatch.setattr(Answers, "take", lambda *_, **_options: [])
            monkeypatch.setattr(executor.Executor, "make_room", AsyncMock())
        following = await it.runtime.run_pod(pod("next", "1"))
        await it.runtime.create_container(following, "main")
        await until(lambda: not shared.cpus & before)
        assert host.cgroups.read(path_of(shared), EFFECTIVE) == str(shared.cpus)


async def test_a_partition_that_became_invalid_is_made_again(tmp_path: Path, host: Host) -> None:
    async with served(tmp_path, cgroups=host, exclusivePartitions="root") as it:
        await it.start(with_sidecar("own"))
        # another program writes to a sibling, and takes it back
        host.write(it, "own/side", "cpuset.cpus", "0-15")
        assert host.state(it, "own/main")[0] == "root invalid"
        host.write(it, "own/side", "cpuset.cpus", str(it.runtime.container("own/side").cpus))
        it.daemon._overlaps.touch()
        await until(lambda: host.is_root(it, "own/main"))


async def test_one_that_cannot_be_is_given_up_with_the_kernels_reason(
    tmp_path: Path, host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(tmp_path, cgroups=host, exclusivePartitions="root") as it:
        host.cgroups.refusal = "partition config conflicts with housekeeping setup"
        await it.start(pod("own", "2"))
        state, own = it.daemon.executor.state, it.runtime.container("own/main")
        await until(lambda: state.kernel_partitions.has_failed(own.id))
        await until(lambda: host.is_as_before(it))  # nothing is left of the tries
        (line,) = [each for each in caplog.records if each.message == "no-partition"]
        assert line.__dict__["reason"] == host.cgroups.refusal
        (doubt,) = it.daemon.status.doubts()
        assert (
            doubt
            == f"containers that the kernel does not make a partition: 1 ({host.cgroups.refusal})"
        )
        host.cgroups.refusal = ""
        before = host.cgroups.writes
        await it.daemon.components.partitions.look()
        assert host.cgroups.writes == before, "it is not tried again"
        synchronizations = it.runtime.synchronizations
        it.daemon._session.reconnect()
        await it.runtime.synchronized(after=synchronizations)
        await until(lambda: host.is_root(it, "own/main"))


async def test_without_the_setting_all_is_as_before(tmp_path: Path, host: Host) -> None:
    async with served(tmp_path, cgroups=host, exclusivePartitions="isolated") as it:
        await it.start(pod("own", "2"), pod("other", "1"))
        assert not host.is_as_before(it)
        await it.daemon.events.reconfigure(settings=nodes.settings())
        await until(lambda: host.is_as_before(it))
        await it.daemon.events.reconfigure(settings=nodes.settings(exclusivePartitions="root"))
        await until(lambda: host.is_root(it, "own/main") and host.is_root(it, "other/main"))


async def test_where_the_kernel_cannot_status_says_why(tmp_path: Path, host: Host) -> None:
    too_old = Sources(equipment=lambda: Equipment(no_partition="kernel too old"))
    async with served(tmp_path, cgroups=host, sources=too_old, exclusivePartitions="root") as it:
        assert await it.start(pod("own", "2")) == []
        assert host.state(it, "own/main") == ("member", "")
        (doubt,) = it.daemon.status.doubts()
        assert doubt == "exclusivePartitions: root has no effect: kernel too old"
        (error,) = await it.start(pod("asks", "1", annotations={KEY: "root"}))
        assert "exclusive-partition: 'root' is not possible on this node: kernel too old" in error


async def test_with_widen_no_partition_is_left(tmp_path: Path, host: Host) -> None:
    spec: dict[str, Any] = {"exclusivePartitions": "root", "onExit": "widen"}
    async with served(tmp_path, cgroups=host, **spec) as it:
        await it.start(pod("own", "2"))
        assert not host.is_as_before(it)
        await it.daemon.leave()
        assert host.is_as_before(it)


class Watched(PartitionCgroups):
    """What was written to the files of partitions and cpusets, in order."""

    def __init__(self, runtime: EmbeddedRuntime) -> None:
        super().__init__(runtime)
        self.log: list[str] = []

    def write(self, path: str, name: str, text: str) -> None:
        if name == PARTITION:
            self.log.append(text)
        super().write(path, name, text)

    def confine(self, wanted: Mapping[str, CPUSet], change: Change) -> Mapping[str, Confined]:
        self.log.append("cpusets")
        return super().confine(wanted, change)


async def test_partitions_end_before_cpusets_are_widened_which_would_overlap(
    tmp_path: Path, host: Host
) -> None:
    host.kind = Watched
    spec: dict[str, Any] = {"exclusivePartitions": "root", "onExit": "widen"}
    async with served(tmp_path, cgroups=host, **spec) as it:
        await it.start(with_sidecar("own"))
        await until(lambda: not it.daemon.executor.state.pending)
        assert isinstance(host.cgroups, Watched)
        host.cgroups.log.clear()
        await it.daemon.leave()
        assert host.cgroups.log.index("member") < host.cgroups.log.index("cpusets")


async def test_a_cgroup_above_that_keeps_cpus_for_nobody_is_reported_once(
    tmp_path: Path, host: Host, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is tried again, also where no partition is left."""
    async with served(tmp_path, cgroups=host, exclusivePartitions="root") as it:
        await it.start(pod("own", "2"))
        await until(lambda: is_at_rest(it))
        monkeypatch.setattr(partitions, "PERIOD", 0.01)
        host.cgroups.busy = "kubepods.slice"
        await it.runtime.delete_pod(it.runtime.pod("own"))
        await until(lambda: "partition-not-written" in caplog.text)
        host.cgroups.busy = ""
        await until(lambda: host.is_as_before(it))
    (line,) = [each for each in caplog.records if each.message == "partition-not-written"]
    assert vars(line)["cgroup"] == "kubepods.slice"
    assert vars(line)["reason"] == f"{EXCLUSIVE}: Device or resource busy"


async def test_what_a_partition_had_goes_back_with_its_end(tmp_path: Path, host: Host) -> None:
    async with served(tmp_path, cgroups=host, exclusivePartitions="root") as it:
        await it.start(pod("own", "2"))
        await it.runtime.delete_pod(it.runtime.pod("own"))
        await until(lambda: host.is_as_before(it))


class Lingering(PartitionCgroups):
    """The cgroups of containers that have ended are there until the runtime has removed them."""

    removed = False
    read_only = False

    def write(self, path: str, name: str, text: str) -> None:
        """Write a file of a cgroup, unless they are read-only."""
        if self.read_only:
            raise OSError(errno.EROFS, "")
        super().write(path, name, text)

    def is_removed(self, container_id: str) -> bool:  # noqa: ARG002 - all at once
        return self.removed


@pytest.mark.parametrize("way", ["stop", "removal", "end of the pod", "list", "no process"])
async def test_the_cgroup_of_an_owner_that_ended_loses_no_cpus_to_its_sidecar(
    tmp_path: Path, host: Host, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """If they overlapped, its CPUs would be lost to the machine with the cgroup."""
    host.kind = Lingering
    async with served(tmp_path, ONE_POOL, cgroups=host, exclusivePartitions="root") as it:
        await it.start(with_sidecar("own"))
        assert isinstance(host.cgroups, Lingering)
        own, side = (it.runtime.container(f"own/{each}") for each in ("main", "side"))
        path, cpus = path_of(own), own.cpus
        await until(lambda: is_at_rest(it))
        monkeypatch.setattr(partition_records, "SETTLE", 1e9)  # cpusets are written first
        if way == "stop":
            await it.runtime.stop_container(own)
        else:
            it.runtime.vanish(own)
        if way == "removal":
            await it.runtime.remove_container(own)
        elif way == "end of the pod":
            await it.runtime._tell(pb.STOP_POD_SANDBOX, own.pod)
        elif way == "list":
            it.daemon._session.reconnect()
            await it.runtime.synchronized(after=1)
        elif way == "no process":
            state = it.daemon.node.view.placed[own.id].container.state
            await it.daemon.events.release([own.id], state)
        assert host.cgroups.read(path, PARTITION) == "member"
        await until(lambda: side.cpus >= cpus or side.id not in it.daemon.node.view.placed)
        host.cgroups.removed = True
        assert host.cgroups.read(path, PARTITION) is None
        every = it.runtime.machine.online_cpus
        assert CPUSet.parse(host.cgroups.read(ROOT, EFFECTIVE) or "") == every


async def test_an_owner_keeps_its_cpus_while_its_partition_cannot_be_ended(
    tmp_path: Path, host: Host, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its successor, or its sidecar, would overlap the partition that is left."""
    host.kind = Lingering
    monkeypatch.setattr(partitions, "STUCK", 0.001)
    async with served(tmp_path, ONE_POOL, cgroups=host, exclusivePartitions="root") as it:
        await it.start(with_sidecar("own"))
        assert isinstance(host.cgroups, Lingering)
        own, side = (it.runtime.container(f"own/{each}") for each in ("main", "side"))
        await until(lambda: is_at_rest(it))
        host.cgroups.read_only = True
        await it.runtime.stop_container(own)
        with pytest.raises(CRIError, match="its kernel partition cannot be ended yet"):
            await it.runtime.create_container(own.pod, "main")
        await it.runtime.remove_container(own)
        await it.daemon.flush_updates()
        assert not side.cpus & own.cpus
        host.cgroups.read_only = False
        await until(lambda: own.id not in it.daemon.node.view.placed)
        await until(lambda: side.cpus >= own.cpus)
        host.cgroups.removed = True
        assert host.cgroups.read(path_of(own), PARTITION) is None
        every = it.runtime.machine.online_cpus
        assert CPUSet.parse(host.cgroups.read(ROOT, EFFECTIVE) or "") == every
        await it.runtime.start_container(await it.runtime.create_container(own.pod, "main"))
        await until(lambda: host.is_root(it, "own/main"))
    assert caplog.text.count("partition-not-ended") == 1


@pytest.mark.parametrize("way", ["stop", "end of the pod", "list", "no process", "overdue answer"])
async def test_nobody_gets_the_cpus_of_an_ended_container_that_is_still_a_partition(
    tmp_path: Path, host: Host, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """However its end is heard of, and whatever is decided meanwhile."""
    host.kind = Lingering
    monkeypatch.setattr(partitions, "STUCK", 0.001)
    async with served(tmp_path, ONE_POOL, cgroups=host, exclusivePartitions="root") as it:
        await it.start(with_sidecar("own"), pod("other"))
        assert isinstance(host.cgroups, Lingering)
        own, other = it.runtime.container("own/main"), it.runtime.container("other/main")
        cpus = own.cpus
        await until(lambda: is_at_rest(it))
        host.cgroups.read_only = True
        if way in {"stop", "overdue answer"}:
            await it.runtime.stop_container(own)
        else:
            it.runtime.vanish(own)
        if way == "end of the pod":
            await it.runtime._tell(pb.STOP_POD_SANDBOX, own.pod)
        elif way == "list":
            it.daemon._session.reconnect()
            await it.runtime.synchronized(after=1)
        elif way == "no process":
            await it.daemon.events.release([own.id], ContainerState.RUNNING)
        elif way == "overdue answer":
            with monkeypatch.context() as late:
                late.setattr(Answers, "is_overdue", True)
                await it.runtime.create_container(own.pod, "main")
        await it.start(pod("next", "2"))
        await it.daemon.flush_updates()
        living = [each for each in it.runtime.containers if each is not own]
        assert it.runtime.container("next/main") in living
        assert not any(each.cpus & cpus for each in living)
        host.cgroups.read_only = False
        await until(lambda: own.id not in it.daemon.node.view.placed)
        await until(lambda: other.cpus >= cpus)
        state = it.daemon.executor.state
        assert state.records.keys() <= it.daemon.node.view.placed.keys()


async def test_an_ended_container_is_released_with_its_cgroup_where_files_became_read_only(
    tmp_path: Path, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.kind = Lingering
    monkeypatch.setattr(partitions, "STUCK", 0.001)
    seen = Equipment()
    sources = Sources(equipment=lambda: seen)
    async with served(
        tmp_path, ONE_POOL, sources=sources, cgroups=host, exclusivePartitions="root"
    ) as it:
        await it.start(pod("own", "2"))
        assert isinstance(host.cgroups, Lingering)
        own = it.runtime.container("own/main")
        await until(lambda: is_at_rest(it))
        host.cgroups.read_only = True
        seen = Equipment(no_partition="/sys/fs/cgroup is mounted read-only")
        await it.daemon.events.equip()
        await it.runtime.stop_container(own)
        assert own.id in it.daemon.node.view.placed
        host.cgroups.removed = True
        await until(lambda: own.id not in it.daemon.node.view.placed)


async def test_a_partition_stays_whose_container_is_listed_although_its_end_was_reported(
    tmp_path: Path, host: Host
) -> None:
    host.kind = Lingering
    async with served(tmp_path, ONE_POOL, cgroups=host, exclusivePartitions="root") as it:
        await it.start(pod("own", "2"))
        assert isinstance(host.cgroups, Lingering)
        own = it.runtime.container("own/main")
        await until(lambda: is_at_rest(it))
        host.cgroups.read_only = True
        await it.daemon.events.release([own.id], ContainerState.RUNNING)
        it.daemon._session.reconnect()
        await it.runtime.synchronized(after=1)
        host.cgroups.read_only = False
        await it.daemon.components.partitions.look()
        assert host.is_root(it, "own/main")


async def test_a_successor_is_placed_when_the_partition_before_it_has_ended(
    tmp_path: Path, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its end is the first thing that is done for it, if nothing was heard of that."""
    host.kind = Lingering
    async with served(tmp_path, ONE_POOL, cgroups=host, exclusivePartitions="root") as it:
        await it.start(pod("own", "5"))
        assert isinstance(host.cgroups, Lingering)
        own = it.runtime.container("own/main")
        await until(lambda: is_at_rest(it))
        monkeypatch.setattr(partition_records, "SETTLE", 1e9)
        it.runtime.vanish(own)
        new = await it.runtime.create_container(own.pod, "main")
        assert host.cgroups.read(path_of(own), PARTITION) == "member"
        assert it.daemon.node.view.placed.keys() == {new.id}
        assert it.daemon.executor.state.records.keys() == {new.id}


class Blocked(PartitionCgroups):
    """No file of a partition is written unless `open` is set."""

    def __init__(self, runtime: EmbeddedRuntime) -> None:
        super().__init__(runtime)
        self.open = threading.Event()

    def write(self, path: str, name: str, text: str) -> None:
        self.open.wait(HANGS)
        super().write(path, name, text)


async def test_an_owner_that_ends_while_it_is_made_a_partition_leaves_nothing(
    tmp_path: Path, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.kind = Blocked
    monkeypatch.setattr(executor, "MAX_START", 0.001)
    monkeypatch.setattr(partitions, "MAX_BATCH", 0.001)
    async with served(tmp_path, cgroups=host, exclusivePartitions="root") as it:
        monkeypatch.setattr(partition_records, "SETTLE", 1e9)  # nothing is looked at by itself
        await it.start(pod("own", "2"))
        own = it.runtime.container("own/main")
        await it.runtime.stop_container(own)
        assert isinstance(host.cgroups, Blocked)
        host.cgroups.open.set()
        await until(lambda: not it.daemon.executor._tasks)
        assert host.is_as_before(it)


async def test_a_daemon_takes_out_what_an_earlier_one_has_left(tmp_path: Path, host: Host) -> None:
    async def leave(runtime: EmbeddedRuntime) -> None:
        (own,) = runtime.containers
        wanted = Partition(kind=ExclusivePartitions.ROOT, cpus=CPUSet([5]))
        host(runtime).partition({own.message.linux.cgroups_path: wanted}, (), {})
        assert host.cgroups.read("kubepods.slice", EXCLUSIVE) == "5"

    async with served(tmp_path, cgroups=host, before=[pod("own", "2")], meanwhile=leave) as it:
        await until(lambda: host.is_as_before(it))


async def test_a_new_daemon_lets_no_sidecar_overlap_with_a_partition_that_an_earlier_one_has_left(
    tmp_path: Path, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its container has ended meanwhile; with the cgroup, its CPUs would be lost to the machine."""
    host.kind = Lingering
    monkeypatch.setattr(partition_records, "SETTLE", 1e9)  # cpusets are written first

    async def end(runtime: EmbeddedRuntime) -> None:
        side, own = runtime.containers
        wanted = Partition(kind=ExclusivePartitions.ROOT, cpus=CPUSet([5]))
        side.write_cpus(CPUSet([0, 1]), cause="an earlier daemon")
        own.write_cpus(CPUSet([5]), cause="an earlier daemon")
        host(runtime).partition({own.message.linux.cgroups_path: wanted}, (), {})
        assert host.cgroups.read(path_of(own), PARTITION) == "root"
        runtime.vanish(own)

    async with served(
        tmp_path, ONE_POOL, cgroups=host, before=[with_sidecar("own")], meanwhile=end
    ) as it:
        side, _ = it.runtime.containers
        await until(lambda: 5 in side.cpus)
        assert isinstance(host.cgroups, Lingering)
        host.cgroups.removed = True
        every = it.runtime.machine.online_cpus
        assert CPUSet.parse(host.cgroups.read(ROOT, EFFECTIVE) or "") == every


async def test_a_daemon_takes_out_what_is_left_where_no_container_is(
    tmp_path: Path, host: Host
) -> None:
    async def end(runtime: EmbeddedRuntime) -> None:
        (own,) = runtime.containers
        wanted = Partition(kind=ExclusivePartitions.ROOT, cpus=CPUSet([5]))
        host(runtime).partition({own.message.linux.cgroups_path: wanted}, (), {})
        await runtime.delete_pod(own.pod)
        assert host.cgroups.read("kubepods.slice", EXCLUSIVE) == "5"

    async with served(tmp_path, cgroups=host, before=[pod("own", "2")], meanwhile=end):
        await until(lambda: host.cgroups.read("kubepods.slice", EXCLUSIVE) == "")


async def test_the_first_container_shows_where_else_an_earlier_daemon_has_left_something(
    tmp_path: Path, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kubelet keeps its pods below another cgroup, and has not removed that of a dead one."""
    monkeypatch.setattr(partition_files, "TOPS", ("elsewhere",))
    left = "kubepods.slice/kubepods-podold.slice"

    async def end(runtime: EmbeddedRuntime) -> None:
        (own,) = runtime.containers
        wanted = Partition(kind=ExclusivePartitions.ROOT, cpus=CPUSet([1, 2]))
        host(runtime).partition({own.message.linux.cgroups_path: wanted}, (), {})
        await runtime.delete_pod(own.pod)
        host.cgroups._follow().make(left)
        host.cgroups.write(left, EXCLUSIVE, "1-2")

    before = [pod("own", "2")]
    async with served(
        tmp_path, ONE_POOL, cgroups=host, before=before, meanwhile=end, exclusivePartitions="root"
    ) as it:
        assert host.cgroups.read(left, EXCLUSIVE) == "1-2"
        await it.start(pod("next", "2"))
        await until(lambda: host.is_root(it, "next/main"))
        assert host.cgroups.read(left, EXCLUSIVE) == ""


async def test_a_sharer_of_the_same_pod_leaves_first(tmp_path: Path, host: Host) -> None:
    async with served(tmp_path, cgroups=host, exclusivePartitions="root") as it:
        await it.start(with_sidecar("own"))
        assert host.is_root(it, "own/main")
        assert not it.runtime.container("own/side").cpus & it.runtime.container("own/main").cpus
