"""Settings that change under running containers, on a daemon with the embedded runtime."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from nri_policy.engine.event import Reconfigured
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.hardware import synthetic
from nri_policy.settings import Level, Settings
from nri_policy.settings_sources.settings_file import SettingsFile
from nri_policy.workload.pod import Pod
from tests.support import nodes, stores
from tests.support.daemon import Served, pod, served

PLAIN: dict[str, Any] = {"reservedResources": {"cpu": "750m"}, "preferIsolatedCPUs": False}


def write(path: Path, **spec: Any) -> None:
    document = {
        "apiVersion": "config.nri/v1alpha1",
        "kind": "TopologyAwarePolicy",
        "metadata": {"name": "default"},
        "spec": {**PLAIN, **spec},
    }
    path.write_text(yaml.safe_dump(document))


def reloading(
    folder: Path, check: Callable[[Served, Path], Coroutine[Any, Any, None]], **spec: Any
) -> None:
    """Run *check* with a daemon whose settings are in a file."""

    async def run() -> None:
        path = folder / "config.yaml"
        write(path, **spec)
        async with served(folder, load=SettingsFile(path).load, **spec) as node:
            await check(node, path)

    asyncio.run(run())


def cpus(node: Served) -> dict[str, str]:
    return {container.key: str(container.cpus) for container in node.runtime.containers}


async def flush(node: Served) -> None:
    """Send all pending updates, and wait until the runtime has applied them."""
    before = node.runtime.synchronizations
    await node.daemon.flush_updates()
    await node.runtime.synchronized(after=before)


def test_settings_that_are_accepted_are_in_force_and_the_runtime_hears_of_it(
    tmp_path: Path,
) -> None:
    async def check(node: Served, path: Path) -> None:
        await node.start(
            pod("system", "100m", shared=True, namespace="kube-system"), pod("own", "2")
        )
        assert cpus(node) == {"kube-system/system/main": "0", "default/own/main": "4-5"}
        assert node.daemon.reloads.latest is None
        write(path, reservedResources={"cpu": "cpuset:8-9"})
        outcome = await node.daemon.reloads.reload()
        assert (outcome.accepted, outcome.reason, outcome.origin) == (True, "", str(path))
        assert node.daemon.reloads.latest == outcome
        await flush(node)
        assert cpus(node) == {"kube-system/system/main": "8-9", "default/own/main": "4-5"}

    reloading(tmp_path, check)


def test_containers_are_pinned_no_more_when_the_pins_are_taken_off(tmp_path: Path) -> None:
    async def check(node: Served, path: Path) -> None:
        await node.start(pod("own", "2"))
        write(path, pinCPU=False, pinMemory=False)
        assert (await node.daemon.reloads.reload()).accepted
        await node.start(pod("new", "2"))
        assert cpus(node)["default/new/main"] == ""
        assert await node.daemon.auditor._source.targets() == (), "there is nothing to be audited"
        write(path)
        assert (await node.daemon.reloads.reload()).accepted
        await flush(node)
        assert sorted(cpus(node).values()) == ["4-5", "8-9"]

    reloading(tmp_path, check)


@pytest.mark.parametrize(
    "spec",
    [{"unlimitedBurstable": "numa"}, {"unlimitedBurstable": "system"}, {"alignment": "numa"}],
)
def test_another_numa_level_moves_nobody_and_counts_from_then_on(
    spec: dict[str, Any], tmp_path: Path
) -> None:
    async def check(node: Served, path: Path) -> None:
        await node.start(pod("burst", "500m", shared=True), pod("own", "3"), pod("guest"))
        before, level = cpus(node), node.daemon.node.view.layout.settings.unlimited_burstable
        assert level is Level.PACKAGE
        write(path, **spec)
        assert (await node.daemon.reloads.reload()).accepted
        assert cpus(node) == before
        assert node.runtime.synchronizations == 1, "nothing to be told"
        errors = await node.start(pod("wide", "6"))
        assert bool(errors) == ("alignment" in spec)

    reloading(tmp_path, check)


@pytest.mark.parametrize(
    ("break_it", "reason"),
    [
        (lambda path: write(path, reservedResources={"cpu": 9}), "no pool has room for 4"),
        (lambda path: write(path, reservedResources={"cpu": 99}), "cannot reserve 99 CPUs"),
        (lambda path: write(path, pinCPUs=True), "did you mean 'pinCPU'?"),
        (lambda path: path.write_text("spec: ["), "line 2, column 1"),
        (lambda path: path.write_bytes(b"\xff\xfe"), "not UTF-8"),
        (lambda path: path.write_text(""), "the file is empty"),
        (lambda path: path.unlink(), "cannot be read: No such file or directory"),
    ],
    ids=["no place", "impossible", "unknown field", "broken", "binary", "empty", "removed"],
)
def test_settings_that_are_refused_leave_everything_as_it_was(
    break_it: Callable[[Path], None], reason: str, tmp_path: Path
) -> None:
    async def check(node: Served, path: Path) -> None:
        await node.start(pod("one", "4"), pod("two", "4"), pod("guest"))
        view, settings = node.daemon.node.view, node.daemon.node.view.layout.settings
        shown = cpus(node)
        break_it(path)
        outcome = await node.daemon.reloads.reload()
        assert not outcome.accepted
        assert reason in outcome.reason
        assert outcome.origin == str(path)
        assert node.daemon.node.view.layout.settings is settings
        assert node.daemon.node.view is view
        assert cpus(node) == shown
        assert node.runtime.synchronizations == 1
        write(path)
        assert (await node.daemon.reloads.reload()).accepted, "the next is looked at afresh"

    reloading(tmp_path, check)


def test_settings_that_the_engine_refuses_are_in_the_journal(tmp_path: Path) -> None:
    async def check(node: Served, path: Path) -> None:
        await node.start(pod("one", "4"), pod("two", "4"))
        write(path, reservedResources={"cpu": 9})
        outcome = await node.daemon.reloads.reload()
        record = stores.records(node.daemon._store.path)[-1]
        assert isinstance(record.event, Reconfigured)
        assert record.refusal == outcome.reason

    reloading(tmp_path, check)


def test_other_kinds_of_memory_take_effect_at_once(tmp_path: Path) -> None:
    synthetic.write(nodes.SMALL, tmp_path)

    async def check(node: Served, path: Path) -> None:
        await node.start(pod("own", "2"))
        write(path, memoryKinds={"3": "pmem"})
        assert (await node.daemon.reloads.reload()).accepted
        kinds = [each.kind.value for each in node.daemon.node.view.layout.machine.nodes]
        assert kinds == ["dram", "dram", "dram", "pmem"]
        write(path)
        assert (await node.daemon.reloads.reload()).accepted
        kinds = [each.kind.value for each in node.daemon.node.view.layout.machine.nodes]
        assert kinds == ["dram"] * 4

    reloading(tmp_path, check)


class Asked:
    """What a kubelet would be asked; it has assigned nothing."""

    def __init__(self) -> None:
        self.pods: list[str] = []

    def ask(self, pod: Pod) -> None:
        self.pods.append(pod.name)

    def ask_all(self, pods: Iterable[Pod]) -> None:
        self.pods += [each.name for each in pods]

    async def ready(self, pods: Iterable[Pod], others: Any = (), *, seconds: float = 0.0) -> None:
        pass

    def devices(self, pod: Pod, container: str) -> dict[str, dict[str, CPUSet]]:
        del pod, container
        return {}

    def owners(self, pod: Pod) -> tuple[str, ...]:
        del pod
        return ()

    def forget(self, pod: Pod) -> None:
        pass


def test_the_kubelet_is_asked_as_the_settings_have_it_from_then_on(tmp_path: Path) -> None:
    async def check(node: Served, path: Path) -> None:
        asked = node.daemon.components.pods._assignments = Asked()
        await node.start(pod("before"))
        write(path, agent={"podResourceAPI": True})
        assert (await node.daemon.reloads.reload()).accepted
        await node.start(pod("asked"))
        write(path)
        assert (await node.daemon.reloads.reload()).accepted
        await node.start(pod("after"))
        assert asked.pods == ["asked"]

    reloading(tmp_path, check)


def test_of_two_reloads_at_once_the_second_reads_after_the_first_took_effect(
    tmp_path: Path,
) -> None:
    loads: list[Settings] = []

    async def run() -> None:
        path = tmp_path / "config.yaml"
        write(path)

        def load() -> Settings:
            loads.append(SettingsFile(path).load())
            write(path, preferSharedCPUs=True)
            return loads[-1]

        async with served(tmp_path, load=load) as node:
            await asyncio.gather(node.daemon.reloads.reload(), node.daemon.reloads.reload())
            assert node.daemon.node.view.layout.settings is loads[1]

    asyncio.run(run())
    assert [each.prefer_shared_cpus for each in loads] == [False, True]
