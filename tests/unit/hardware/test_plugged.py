"""A daemon whose machine changes under it: a folder that is watched as `/` is."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from nri_policy.control.client import connected
from nri_policy.daemon.daemon import IDENTITY
from nri_policy.daemon.process import Options, run
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.hardware import hotplug
from nri_policy.hardware.discovery import discover
from nri_policy.hardware.hotplug import QUIET, Hotplug, Notify
from nri_policy.hardware.locality import Locator
from nri_policy.hardware.machine import Machine
from nri_policy.hardware.synthetic import write
from nri_policy.observability.logs import Warnings
from nri_policy.plugin.sources import Sources
from nri_policy.report import StatusReport
from nri_policy.settings_sources.kubernetes import LABEL
from nri_policy.settings_sources.settings_file import SettingsFile
from tests.support import nodes
from tests.support.clock import SleepingClock
from tests.support.daemon import Served, pod, served

from .conftest import Change, Link, change

SPEC = nodes.SMALL  # node k has CPUs 4k..4k+3


class Plugged:
    """A daemon and the tree that it watches."""

    def __init__(self, served: Served, tree: Path) -> None:
        self.served = served
        self._tree = tree
        self._trees = 0
        self._done = asyncio.Event()

    async def become(self, spec: str, changes: Mapping[str, Change] | None = None) -> None:
        """Make another machine of the tree, at once, and wait until the daemon has taken it."""
        self._trees += 1
        tree = self._tree.with_name(f"tree-{self._trees}")
        write(spec, tree)
        change(tree, changes or {})
        swap(self._tree, tree)
        machine = discover(tree)
        runtime = self.served.runtime
        runtime.machine.online_cpus = machine.online
        runtime.machine.memory_nodes = CPUSet(node.id for node in machine.nodes)
        self._done.clear()
        self.notify()
        await self._done.wait()

    @contextmanager
    def listen(self, notify: Notify) -> Iterator[bool]:
        self.notify = notify
        yield True

    async def sleep(self, seconds: float) -> None:
        if seconds != QUIET:
            await asyncio.Event().wait()

    def known(self) -> Machine:
        return self.served.daemon.node.view.layout.machine

    async def changed(self, before: Machine, machine: Machine) -> None:
        await self.served.daemon.events.reconfigure(machine=machine, instead_of=before)
        await self.served.daemon.flush_updates()
        await self.served.runtime.settled()
        self._done.set()

    def runs(self) -> dict[str, tuple[str, str]]:
        """Return the CPUs and memory nodes that each pod's container runs on."""
        return {
            each.pod.key.removeprefix("default/"): (
                each.message.linux.resources.cpu.cpus,
                each.message.linux.resources.cpu.mems,
            )
            for each in self.served.runtime.containers
        }

    async def notices(self) -> list[str]:
        """Return what `status` has to say."""

        status = await asyncio.to_thread(asked, self.served.socket)
        return [*status.notices]


def asked(socket: Path) -> StatusReport:
    with connected(socket) as client:
        return client.status()


def swap(link: Path, target: Path) -> None:
    new = link.with_name("new")
    new.symlink_to(target)
    new.rename(link)


@asynccontextmanager
async def plugged(folder: Path, spec: str = SPEC, **settings: Any) -> AsyncIterator[Plugged]:
    tree = folder / "root"
    write(spec, folder / "tree-0")
    swap(tree, folder / "tree-0")
    machine = discover(tree)
    sources = Sources(locator=Locator(tree, machine))
    async with served(folder, spec, sources=sources, **settings) as it:
        plug = Plugged(it, tree)
        watch = Hotplug(
            tree, partial(discover, tree), listen=plug.listen, clock=SleepingClock(sleep=plug.sleep)
        )
        watching = asyncio.create_task(watch.run(plug.known, plug.changed))
        await asyncio.sleep(0)
        yield plug
        watching.cancel()


async def test_who_loses_all_cpus_is_placed_anew_and_nobody_else_moves(tmp_path: Path) -> None:
    async with plugged(tmp_path, reservedResources={"cpu": "cpuset:0"}) as it:
        await it.served.start(pod("a", "2"), pod("b", "2"), pod("c", "500m"))
        assert it.runs() == {"a": ("4-5", "1"), "b": ("8-9", "2"), "c": ("12-15", "3")}
        await it.become(f"{SPEC} offline=4-5")
        assert it.runs() == {"a": ("6-7", "1"), "b": ("8-9", "2"), "c": ("12-15", "3")}
        await it.become(SPEC)
        assert it.runs() == {"a": ("6-7", "1"), "b": ("8-9", "2"), "c": ("12-15", "3")}


def without_node_0() -> dict[str, Change]:
    return {
        "sys/devices/system/node/node0": None,
        "sys/devices/system/node/online": "1-3",
        "sys/devices/system/node/has_memory": "1-3",
        "sys/devices/system/node/has_normal_memory": "1-3",
    }


async def test_a_whole_node_goes_and_comes_back(tmp_path: Path) -> None:
    """CPUs and memory of node 0, with the reserved CPU."""
    system = pod("dns", "100m", shared=True, namespace="kube-system")
    async with plugged(tmp_path, reservedResources={"cpu": "cpuset:0"}) as it:
        await it.served.start(pod("a", "4"), pod("b", "4"), pod("c", "1"), pod("d", "2"), system)
        before = it.runs()
        assert before["d"] == ("2-3", "0")
        assert before["kube-system/dns"][0] == "0"
        await it.become(f"{SPEC} offline=0-3", without_node_0())
        after = it.runs()
        for name, (cpus, mems) in after.items():
            assert CPUSet.parse(cpus).isdisjoint(CPUSet.parse("0-3")), name
            assert "0" not in mems, name
        assert {name: after[name] for name in "abc"} == {name: before[name] for name in "abc"}
        notice, *_ = await it.notices()
        assert notice.startswith("reservedResources.cpu: some of these CPUs are offline: ")
        await it.become(SPEC)
        assert {name: it.runs()[name] for name in "abc"} == {name: before[name] for name in "abc"}
        assert it.runs()["kube-system/dns"][0] == "0"
        assert len(CPUSet.parse(it.runs()["d"][0])) == 2
        assert await it.notices() == []


async def test_settings_that_became_impossible_do_not_end_the_daemon(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    only: dict[str, Any] = {
        "availableResources": {"cpu": "cpuset:0-3"},
        "reservedResources": {"cpu": "cpuset:0"},
    }
    async with plugged(tmp_path, **only) as it:
        await it.served.start(pod("a", "2"), pod("b", "500m"))
        assert {name: cpus for name, (cpus, _) in it.runs().items()} == {"a": "2-3", "b": "1"}
        await it.become(f"{SPEC} offline=0-3")
        after = it.runs()
        assert len(CPUSet.parse(after["a"][0])) == 2
        assert [text.partition(":")[0] for text in await it.notices()] == [
            "availableResources.cpu",
            "reservedResources.cpu",
        ]
        assert "none of these CPUs is online: all online CPUs 4-15 are used" in caplog.text
        assert await it.served.start(pod("new", "3")) == []
        await it.become(SPEC)
        assert await it.notices() == []
        assert all(CPUSet.parse(cpus) <= CPUSet.parse("0-3") for cpus, _ in it.runs().values())


async def test_more_reserved_memory_than_is_left_is_not_reserved(tmp_path: Path) -> None:
    reserved = {"cpu": "cpuset:0", "memory": "15Gi"}
    async with plugged(tmp_path, reservedResources=reserved) as it:
        await it.become("package:2 numa:2(memory=1GiB) core:2 pu:2")
        [notice] = await it.notices()
        assert "cannot reserve 15 GiB" in notice
        assert await it.served.start(pod("a", "1", memory="512Mi")) == []
        await it.become(SPEC)
        assert await it.notices() == []


def with_disk(node: int) -> dict[str, Change]:
    """Describe a disk in the slot that has that node."""
    at = "pci0000:80/0000:80:01.0"
    return {
        f"sys/devices/{at}/numa_node": str(node),
        f"sys/devices/{at}/nvme/nvme0/nvme0n1/dev": "259:0",
        "sys/bus/pci/devices/0000:80:01.0": Link(f"../../../devices/{at}"),
        "sys/dev/block/259:0": Link(f"../../devices/{at}/nvme/nvme0/nvme0n1"),
        "proc/1/mountinfo": "22 1 259:0 / /data rw - ext4 /dev/nvme0n1 rw\n",
    }


async def test_a_device_that_comes_or_goes_is_in_the_next_decision_and_moves_no_one(
    tmp_path: Path,
) -> None:
    def worker(name: str) -> dict[str, Any]:
        made = pod(name, "1")
        made["spec"]["volumes"] = [{"name": "v", "hostPath": {"path": "/data"}}]
        [container] = made["spec"]["containers"]
        container["volumeMounts"] = [{"name": "v", "mountPath": "/work"}]
        return made

    async with plugged(tmp_path, reservedResources={"cpu": "cpuset:0"}) as it:
        daemon = it.served.daemon
        await it.served.start(worker("before"))
        for node in (3, 2, None):
            await it.become(SPEC, {} if node is None else with_disk(node))
            assert [str(each.numa_nodes) for each in daemon.node.view.layout.machine.devices] == (
                [] if node is None else [str(node)]
            )
            running = it.runs()
            await it.served.start(worker(f"on-{node}".lower()))
            assert {name: it.runs()[name] for name in running} == running
        where = {name: mems for name, (_, mems) in it.runs().items()}
        assert where == {"before": "1", "on-3": "3", "on-2": "2", "on-none": "0"}


class LogLines(logging.Handler):
    """Waits for lines of the log."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(Warnings())
        self._lines: asyncio.Queue[str] = asyncio.Queue()

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.put_nowait(self.format(record))

    async def line(self, beginning: str) -> str:
        while not (line := await self._lines.get()).startswith(beginning):
            pass
        return line


async def test_a_daemon_watches_the_root_that_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With all that `nri-policy run` has; the files are looked at all the time."""
    monkeypatch.setattr(hotplug, "PERIOD", 0.0)
    monkeypatch.setattr(hotplug, "PERIOD_UNHEARD", 0.0)
    caplog.set_level(logging.INFO)
    lines = LogLines()
    logging.getLogger().addHandler(lines)
    tree = tmp_path / "root"
    write(SPEC, tmp_path / "one")
    write(f"{SPEC} offline=7", tmp_path / "two")
    swap(tree, tmp_path / "one")
    options = Options(
        host_root=tree,
        runtime=tmp_path / "none.sock",
        identity=IDENTITY,
        state_dir=tmp_path / "state",
        containers_dir=tmp_path / "containers",
        control_socket=tmp_path / "control.sock",
        tuner_socket=tmp_path / "tuner.sock",
        kubelet_dir=tmp_path / "kubelet",
        kubeconfig=None,
        node_name="node",
        config_namespace="kube-system",
        group_label=LABEL,
        nrt_file=None,
        probe_endpoint=None,
        once_synchronized_exit=False,
    )
    config = tmp_path / "config.yaml"
    config.write_text(
        "{apiVersion: config.nri/v1alpha1, kind: TopologyAwarePolicy,"
        " spec: {reservedResources: {cpu: 750m}, preferIsolatedCPUs: false}}"
    )
    running = asyncio.create_task(run(SettingsFile(config), options))
    try:
        await lines.line("event=not-connected")
        swap(tree, tmp_path / "two")
        assert "cpus=0-6,8-15 " in await lines.line("event=hardware-changed")
        status = await asyncio.to_thread(asked, options.control_socket)
        assert str(status.online_cpus) == "0-6,8-15"
        assert not running.done()
        signal.raise_signal(signal.SIGTERM)
        await running
    finally:
        logging.getLogger().removeHandler(lines)
        gc.unfreeze()


async def test_who_loses_a_node_and_finds_no_memory_elsewhere_still_gets_its_cpus(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It runs all the same; without a place in the books its CPUs could become another's own."""
    spec = "package:2 numa:2(memory=1GiB) core:2 pu:2"
    reserved = {"cpu": "cpuset:15"}
    async with plugged(tmp_path, spec, reservedResources=reserved) as it:
        pods = [pod(f"p{i}", "1", memory="1Gi") for i in range(4)]
        assert await it.served.start(*pods) == []
        before = it.runs()
        lost = {name for name, (cpus, _) in before.items() if int(cpus) < 4}
        await it.become(f"{spec} offline=0-3", without_node_0())
        after = it.runs()
        assert lost
        for name in before.keys() - lost:
            assert after[name][0] == before[name][0]
        cpus = [CPUSet.parse(each) for each, _ in after.values()]
        assert len(CPUSet.union(cpus)) == len(cpus) == 4, "each has a CPU of its own"
        assert "1 GiB are missing; it runs all the same" in caplog.text
        assert "are booked with 1 GiB more" in caplog.text
