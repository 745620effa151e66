"""Classes over the wire: what a runtime of each version is told, and what comes of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from nri_policy.audit.deviations import DeviationKind
from nri_policy.audit.first_process import FirstProcess
from nri_policy.classes import Equipment
from nri_policy.hardware.disks import Disk
from nri_policy.plugin.sources import Sources
from nri_policy.proto import nri_pb2 as nri
from nri_policy.settings import SchedulingPolicy
from nri_policy.simulation.cgroups import SimulatedCgroups
from nri_policy.simulation.containers import SimulatedContainer
from tests.support import nodes
from tests.support.clock import SleepingClock
from tests.support.daemon import Served, pod, served
from tests.support.patience import HANGS

KEY = "scheduling-class.resource-policy.nri.io/pod"
IO_KEY = "blockioclass.resource-policy.nri.io/pod"
CALM = {"name": "calm", "policy": "batch", "nice": 5, "ioClass": "be", "ioPriority": 7}
SDA = Disk(number="8:0", name="sda", paths=("/dev/sda",))
SDB = Disk(number="8:16", name="sdb", paths=("/dev/sdb",))
IO = {"blockio": {"enable": True, "classes": {"slow": [
    {"Devices": ["/dev/sd*"], "ThrottleWriteBps": "1M"}
]}}}  # fmt: skip
LINE = "{} rbps=max wbps=1000000 riops=max wiops=max"


class Host:
    """A host whose disks come and go."""

    def __init__(self, **equipment: Any) -> None:
        self.equipment = Equipment(**equipment)

    @asynccontextmanager
    async def serving(self, folder: Path, **options: Any) -> AsyncIterator[Served]:
        sources = Sources(equipment=lambda: self.equipment)
        async with served(
            folder, sources=sources, cgroups=SimulatedCgroups, listening=False, **options
        ) as up:
            self.attach(up)
            yield up

    def attach(self, up: Served, *disks: Disk) -> None:
        """Let these disks come."""
        self.equipment = replace(self.equipment, disks=(*self.equipment.disks, *disks))
        up.runtime.machine.disks = frozenset(disk.number for disk in self.equipment.disks)
        up.runtime.machine.several_lines = not self.equipment.one_disk


def io_of(container: SimulatedContainer) -> dict[str, str]:
    """Return the files about I/O in a container's cgroup; the kubelet sets others."""
    assert container.effective.unified["memory.oom.group"] == "1", "which stay"
    return {k: v for k, v in container.effective.unified.items() if k.startswith("io.")}


def run(test: Callable[[], Coroutine[None, None, None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), HANGS))


RELEASES = [
    # runtime, version, whether it takes an I/O priority, and a scheduler
    ("containerd", "1.7.24", False, False),
    ("containerd", "2.1.9", False, False),
    ("containerd", "2.2.0", True, False),
    ("containerd", "2.2.1", True, True),
    ("containerd", "2.3.0", True, True),
    ("containerd", "2.4.0", True, True),
    ("cri-o", "1.33.0", False, False),
    ("cri-o", "1.34.0", True, False),
    ("cri-o", "1.35.0", True, True),
    ("cri-o", "1.37.0", True, True),
]


@pytest.mark.parametrize(("name", "version", "io", "scheduler"), RELEASES)
def test_a_runtime_is_told_what_its_version_takes(
    name: str, version: str, io: bool, scheduler: bool, tmp_path: Path
) -> None:
    """The peer tells every version (scheduling F6)."""

    async def test() -> None:
        options = {"name": name, "version": version, "schedulingClasses": [CALM]}
        async with Host().serving(tmp_path, **options) as up:
            assert not await up.start(pod("web", annotations={KEY: "calm"}))
            container = up.runtime.container("web/main")
            linux = container.message.linux
            assert linux.HasField("io_priority") is io
            assert linux.HasField("scheduler") is scheduler
            assert container.process is not None
            assert container.process.scheduler == (
                "batch, nice 5" if scheduler else "other, nice 0"
            )
            assert container.process.io_priority == ("be 7" if io else "be 4")
            classes = up.daemon.node.view.classes[container.id]
            assert len(classes.lacking) == 2 - io - scheduler
            assert all("runtime too old" in text for text in classes.lacking)

    run(test)


def test_nobody_without_a_class_is_told_anything(tmp_path: Path) -> None:
    async def test() -> None:
        async with Host().serving(tmp_path, version="2.2.1", schedulingClasses=[CALM]) as up:
            assert not await up.start(pod("web"))
            web = up.runtime.container("web/main")
            linux = web.message.linux
            assert not linux.HasField("scheduler")
            assert not linux.HasField("io_priority")
            assert not linux.resources.HasField("blockio_class")
            assert not io_of(web)
            assert not up.daemon.node.view.classes

    run(test)


@pytest.mark.parametrize(
    "given",
    [
        {"policy": "other", "nice": -20},
        {"policy": "batch", "nice": 19},
        {"policy": "idle", "nice": 5},
        {"policy": "fifo", "priority": 99},
        {"policy": "rr", "priority": 1},
        {"nice": 7},
        {"flags": ["reset-on-fork", "keep-policy"]},
        {"ioClass": "idle", "ioPriority": 7},
        {"ioClass": "none"},
        {"ioClass": "rt"},
    ],
)
def test_whatever_settings_take_the_kernel_takes(given: dict[str, Any], tmp_path: Path) -> None:
    async def test() -> None:
        classes = [{"name": "a", **given}]
        async with Host().serving(tmp_path, version="2.2.1", schedulingClasses=classes) as up:
            assert not await up.start(pod("web", annotations={KEY: "a"}))
            state = up.daemon.node.view
            container = up.runtime.container("web/main")
            scheduling = state.classes[container.id].scheduling
            assert scheduling is not None
            assert container.process is not None
            assert not [*container.process.differences(scheduling)]

    run(test)


def test_every_flag_arrives_as_itself(tmp_path: Path) -> None:
    """The peer's `reclaimable` comes to nothing, and its CRD takes no list (scheduling F3)."""
    flags = ["reset-on-fork", "reclaim", "dl-overrun", "keep-policy", "keep-params"]

    async def test() -> None:
        classes = [{"name": "a", "flags": flags}]
        async with Host().serving(tmp_path, version="2.2.1", schedulingClasses=classes) as up:
            assert not await up.start(pod("web", annotations={KEY: "a"}))
            given = up.runtime.container("web/main").message.linux.scheduler
            assert [nri.LinuxSchedulerFlag.Name(each) for each in given.flags] == [
                f"SCHED_FLAG_{each.upper().replace('-', '_')}" for each in flags
            ]

    run(test)


def test_a_deadline_runs_unpinned_and_is_refused_to_those_that_are_pinned(tmp_path: Path) -> None:
    due = {
        "name": "due",
        "policy": "deadline",
        "flags": ["reset-on-fork"],
        "runtime": "1ms",
        "deadline": "5ms",
    }
    preserve = {"cpu.preserve.resource-policy.nri.io/pod": "true"}

    async def test() -> None:
        async with Host().serving(tmp_path, version="2.2.1", schedulingClasses=[due]) as up:
            assert not await up.start(pod("free", annotations={KEY: "due", **preserve}))
            process = up.runtime.container("free/main").process
            assert process is not None
            assert process.scheduler == "deadline"
            (error,) = await up.start(pod("pinned", annotations={KEY: "due"}))
            assert "pinned to some CPUs" in error, "not what runc says when the container starts"

    run(test)


def test_realtime_without_a_budget_is_refused_before_the_kernel_does(tmp_path: Path) -> None:
    async def test() -> None:
        fast = {"name": "fast", "policy": "fifo", "priority": 1}
        host = Host(no_realtime="RT_GROUP_SCHED: EPERM")
        options = {"version": "2.2.1", "schedulingClasses": [fast]}
        async with host.serving(tmp_path, **options) as up:
            up.runtime.machine.realtime = False
            (error,) = await up.start(pod("web", annotations={KEY: "fast"}))
            assert "RT_GROUP_SCHED: EPERM" in error
            assert not up.daemon.node.view.classes

    run(test)


def test_an_unsupported_annotation_is_refused_where_the_settings_say_so(tmp_path: Path) -> None:
    async def test() -> None:
        options = {"schedulingClasses": [CALM], "unsupportedAnnotations": "refuse"}
        async with Host().serving(tmp_path, version="2.1.9", **options) as up:
            (error,) = await up.start(pod("web", annotations={KEY: "calm"}))
            assert "runtime too old: containerd 2.1.9 has no scheduling policy" in error

    run(test)


def test_a_resize_and_a_restart_say_nothing_of_scheduling(tmp_path: Path) -> None:
    """The peer logs up to nine errors for each container then (scheduling F5)."""

    async def test() -> None:
        async with Host().serving(tmp_path, version="2.2.1", schedulingClasses=[CALM]) as up:
            assert not await up.start(pod("web", "1", annotations={KEY: "calm"}))
            container = up.runtime.container("web/main")
            before = up.daemon.node.view.classes[container.id]
            wanted = nri.LinuxResources()
            wanted.cpu.quota.value, wanted.cpu.period.value = 200_000, 100_000
            await up.runtime.update_container(container, wanted)
            assert up.daemon.node.view.classes[container.id] == before
            count = up.runtime.synchronizations
            await up.runtime.restart()
            await up.runtime.synchronized(after=count)
            assert up.daemon.node.view.classes[container.id] == before
        async with Host().serving(
            tmp_path, version="2.2.1", schedulingClasses=[], before=[pod("db")]
        ) as up:
            assert not up.daemon.node.view.classes

    run(test)


def test_what_ran_before_the_policy_came_does_without(tmp_path: Path) -> None:
    async def test() -> None:
        before = [pod("web", annotations={KEY: "calm"}), pod("odd", annotations={KEY: "clam"})]
        options = {"schedulingClasses": [CALM], "before": before}
        async with Host().serving(tmp_path, version="2.2.1", **options) as up:
            classes = up.daemon.node.view.classes
            web, odd = (classes[up.runtime.container(f"{name}/main").id] for name in ("web", "odd"))
            assert "created before" in web.lacking[0]
            assert "'clam' is not one of" in odd.lacking[0]

    run(test)


def test_limits_go_with_the_creation_and_a_disk_that_comes_follows(tmp_path: Path) -> None:
    async def test() -> None:
        host = Host(disks=(SDA,))
        async with host.serving(tmp_path, version="2.2.1", control=IO) as up:
            assert not await up.start(pod("web", annotations={IO_KEY: "slow"}), pod("other"))
            web, other = (up.runtime.container(f"{name}/main") for name in ("web", "other"))
            assert io_of(web) == {"io.max": LINE.format("8:0")}
            assert not io_of(other)
            host.attach(up, SDB)
            await up.daemon.events.equip()
            assert not await up.start(pod("carrier"))  # whose answer takes it along
            assert io_of(web) == {"io.max": f"{LINE.format('8:0')}\n{LINE.format('8:16')}"}
            assert not (await up.daemon.auditor.check()).drifts
            known = up.daemon.node.view.classes[web.id].limits
            assert known == {"io.max": f"{LINE.format('8:0')}\n{LINE.format('8:16')}"}
            assert not io_of(other)

    run(test)


def test_limits_that_wait_to_be_told_survive_a_new_registration(tmp_path: Path) -> None:
    """As the runtimes have that cannot be called: they are told of a disk by registering again."""

    async def test() -> None:
        host = Host(disks=(SDA,))
        async with host.serving(tmp_path, version="2.1.9", control=IO) as up:
            assert not await up.start(pod("web", annotations={IO_KEY: "slow"}))
            web = up.runtime.container("web/main")
            host.attach(up, SDB)
            await up.daemon.events.equip()
            count = up.runtime.synchronizations
            await up.runtime.restart()
            await up.runtime.synchronized(after=count)
            assert io_of(web) == {"io.max": f"{LINE.format('8:0')}\n{LINE.format('8:16')}"}

    run(test)


def test_a_class_that_matches_no_disk_degrades_until_there_is_one(tmp_path: Path) -> None:
    async def test() -> None:
        host = Host()
        async with host.serving(tmp_path, version="2.2.1", control=IO) as up:
            assert not await up.start(pod("web", annotations={IO_KEY: "slow"}))
            web = up.runtime.container("web/main")
            classes = up.daemon.node.view.classes
            assert classes[web.id].lacking == ("block I/O class slow: no disk is /dev/sd*",)
            host.attach(up, SDA)
            await up.daemon.events.equip()
            assert not up.daemon.node.view.classes[web.id].lacking

    run(test)


def test_an_old_containerd_is_told_at_the_creation_only(tmp_path: Path) -> None:
    async def test() -> None:
        host = Host(disks=(SDA,))
        async with host.serving(tmp_path, version="1.7.24", control=IO) as up:
            assert not await up.start(pod("web", annotations={IO_KEY: "slow"}))
            web = up.runtime.container("web/main")
            assert io_of(web) == {"io.max": LINE.format("8:0")}
            host.attach(up, SDB)
            await up.daemon.events.equip()
            assert not await up.start(pod("carrier"))
            assert io_of(web) == {"io.max": LINE.format("8:0")}
            (why,) = up.daemon.node.view.classes[web.id].lacking
            assert "would lose what the kubelet has set" in why

    run(test)


def test_new_settings_limit_and_lift(tmp_path: Path) -> None:
    async def test() -> None:
        host = Host(disks=(SDA,))
        async with host.serving(tmp_path, version="2.2.1", control=IO) as up:
            assert not await up.start(pod("web", annotations={IO_KEY: "slow"}))
            web = up.runtime.container("web/main")
            await up.daemon.events.reconfigure(settings=nodes.settings())
            assert not await up.start(pod("carrier"))
            assert io_of(web) == {"io.max": ""}

    run(test)


def test_a_class_that_only_the_runtime_knows_is_passed_on(tmp_path: Path) -> None:
    async def test() -> None:
        async with Host().serving(tmp_path, version="2.2.1", control=IO) as up:
            assert not await up.start(pod("web", annotations={IO_KEY: "theirs"}))
            web = up.runtime.container("web/main")
            assert web.message.linux.resources.blockio_class.value == "theirs"
            assert not io_of(web)

    run(test)


def test_a_runtime_that_applies_nothing_is_found_out(tmp_path: Path) -> None:
    async def test() -> None:
        async with Host().serving(tmp_path, version="2.2.1", schedulingClasses=[CALM]) as up:
            assert not await up.start(pod("web", annotations={KEY: "calm"}))
            assert not await up.start(pod("lost", annotations={KEY: "calm"}))
            web, lost = (up.runtime.container(f"{name}/main") for name in ("web", "lost"))
            lost.process = FirstProcess(
                policy=SchedulingPolicy.OTHER, nice=0, priority=0, io_class=None
            )
            auditor = up.daemon.auditor
            auditor._clock = SleepingClock(sleep=_at_once)
            watching = asyncio.create_task(auditor.watch_starts())
            while auditor.first_processes.keys() != {web.id, lost.id}:  # noqa: ASYNC110
                await asyncio.sleep(0)  # a thread looks
            watching.cancel()
            assert auditor.in_kernel(web.id) == {
                "scheduler": "batch, nice 5",
                "io_priority": "be 7",
            }
            (drift,) = auditor.report.drifts
            assert drift.deviation.kind is DeviationKind.CLASS
            assert drift.deviation.reason == "not applied by the runtime"
            assert (drift.deviation.decided, drift.deviation.found) == (
                "batch, nice 5",
                "other, nice 0",
            )
            assert not drift.curable
            report = await auditor.check()
            assert [each.deviation.kind for each in report.drifts] == [DeviationKind.CLASS]

    run(test)


async def _at_once(_: float) -> None:
    """Sleep not at all."""


def test_limits_that_somebody_changed_are_drift_and_are_sent_again(tmp_path: Path) -> None:
    async def test() -> None:
        host = Host(disks=(SDA,))
        options = {"version": "2.2.1", "control": IO, "audit": "repair"}
        async with host.serving(tmp_path, **options) as up:
            assert not await up.start(pod("web", annotations={IO_KEY: "slow"}))
            web, auditor = up.runtime.container("web/main"), up.daemon.auditor
            auditor._clock = SleepingClock(sleep=_at_once)
            assert web.in_force is not None
            web.in_force.unified["io.max"] = ""
            await auditor.round()
            (drift,) = auditor.report.drifts
            assert drift.deviation.kind is DeviationKind.IO
            assert drift.deviation.decided == f"io.max {LINE.format('8:0')}"
            assert not await up.start(pod("carrier"))
            assert io_of(web) == {"io.max": LINE.format("8:0")}
            assert not (await auditor.check()).drifts

    run(test)


RDT_KEY = "rdtclass.resource-policy.nri.io/pod"
QOS_RDT = {"rdt": {"enable": True, "usePodQoSAsDefaultClass": True}}


def group_of(up: Served, name: str) -> str | None:
    """Return the RDT class that the runtime was told of for a container."""
    resources = up.runtime.container(name).message.linux.resources
    return resources.rdt_class.value if resources.HasField("rdt_class") else None


@pytest.mark.parametrize("version", ["1.7.24", "2.2.1"])
def test_a_runtime_of_any_version_is_told_the_rdt_class(tmp_path: Path, version: str) -> None:
    async def test() -> None:
        host = Host(rdt_groups=("Burstable", "gold"))
        async with host.serving(tmp_path, version=version, control=QOS_RDT) as up:
            up.runtime.machine.rdt_groups = frozenset({"Burstable", "gold"})
            root = {RDT_KEY: "system/default"}
            assert not await up.start(pod("web", annotations={RDT_KEY: "gold"}))
            assert not await up.start(pod("root", annotations=root), pod("plain"))
            assert group_of(up, "web/main") == "gold"
            assert group_of(up, "root/main") == ""
            process = up.runtime.container("web/main").process
            assert process is not None
            assert process.rdt_group == "gold"

    run(test)


def test_a_group_that_does_not_exist_never_fails_a_start(tmp_path: Path) -> None:
    """With the peer, runc fails the container (RDT F4)."""
    classes: dict[str, Any] = {"gold": {}, "Guaranteed": {}}
    partitions = {"all": {"classes": classes}}

    async def test() -> None:
        control = {"rdt": {**QOS_RDT["rdt"], "partitions": partitions}}
        async with Host(rdt_groups=()).serving(tmp_path, control=control) as up:
            errors = await up.start(
                pod("web", annotations={RDT_KEY: "gold"}),
                pod("unknown", annotations={RDT_KEY: "gold1"}),
                pod("default", "1"),
            )
            assert group_of(up, "web/main") is None
            assert group_of(up, "default/main") is None
            (error,) = filter(None, errors)
            assert error.endswith(
                f"annotation {RDT_KEY}: 'gold1' is not an RDT class of this node"
                " (Guaranteed, gold); did you mean 'gold'?"
            )
            lacking = {
                each.rdt.name: each.lacking
                for each in up.daemon.node.view.classes.values()
                if each.rdt is not None
            }
            assert lacking == {
                name: (f"RDT class {name}: it has no group in /sys/fs/resctrl",)
                for name in ("gold", "Guaranteed")
            }

    run(test)


def test_a_process_that_is_not_in_its_rdt_class_is_found_out(tmp_path: Path) -> None:
    async def test() -> None:
        host = Host(rdt_groups=("gold",))
        async with host.serving(tmp_path, control={"rdt": {"enable": True}}) as up:
            up.runtime.machine.rdt_groups = frozenset({"gold"})
            assert not await up.start(pod("web", annotations={RDT_KEY: "gold"}))
            web, auditor = up.runtime.container("web/main"), up.daemon.auditor
            assert web.process is not None
            web.process = replace(web.process, rdt_group="")
            auditor._clock = SleepingClock(sleep=_at_once)
            watching = asyncio.create_task(auditor.watch_starts())
            while web.id not in auditor.first_processes:  # noqa: ASYNC110
                await asyncio.sleep(0)  # a thread looks
            watching.cancel()
            (drift,) = auditor.report.drifts
            assert (drift.deviation.decided, drift.deviation.found) == (
                "RDT class gold",
                "RDT class system/default",
            )
            assert auditor.in_kernel(web.id)["group"] == "system/default"

    run(test)
