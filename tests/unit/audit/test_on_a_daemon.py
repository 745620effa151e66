"""The audit on a daemon with the embedded runtime, whose cgroups are files."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from nri_policy.audit import auditor
from nri_policy.audit.cgroup_paths import folder_of
from nri_policy.kube.events import ClusterEvent
from nri_policy.simulation.containers import SimulatedContainer
from tests.support.daemon import Served, pod, served
from tests.unit.audit.host import Cgroup, Root


@asynccontextmanager
async def audited(
    folder: Path, monkeypatch: pytest.MonkeyPatch, **spec: Any
) -> AsyncIterator[tuple[Served, Root]]:
    """Yield a daemon that takes a second look at once, and its host's files."""
    monkeypatch.setattr(auditor, "GRACE", 0.0)
    root = Root(folder, 2)
    async with served(folder, **spec) as node:
        yield node, root


def cgroup(root: Root, container: SimulatedContainer) -> Cgroup:
    """Make the cgroup that a container really runs in, as the runtime was told."""
    path = folder_of(container.message.linux.cgroups_path)
    assert path is not None
    thread = 100 + len([*(root.path / "proc").glob("*")])
    return root.cgroup(path, str(container.cpus), str(container.mems), thread=thread)


async def test_drift_behind_the_runtimes_back_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with audited(tmp_path, monkeypatch) as (node, root):
        await node.start(pod("own", "2"), pod("guest"))
        own, guest = (cgroup(root, each) for each in node.runtime.containers)
        await node.daemon.auditor.round()
        assert node.daemon.auditor.report.drifts == ()
        assert node.daemon.auditor.report.audited == 2
        own.set("cpus", "0-15")
        guest.set("mems", "0")
        await node.daemon.auditor.round()
        report = await node.daemon.auditor.check()
    found = [(each.name, each.deviation.kind, str(each.deviation.found)) for each in report.drifts]
    assert found == [
        ("default/own/main", "cpus", "0-15"),
        ("default/guest/main", "mems", "0"),
    ]


@pytest.mark.parametrize("version", ["2.1.9", "2.4.0"], ids=["registering", "calling"])
async def test_repair_writes_what_the_runtime_believes_to_be_set(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with audited(tmp_path, monkeypatch, audit="repair", version=version) as (node, root):
        await node.start(pod("own", "2"), pod("other", "2"))
        drifted, other = node.runtime.containers
        files = cgroup(root, drifted)
        files.set("cpus", "1,4-5")
        cgroup(root, other)
        before = node.runtime.synchronizations
        await node.daemon.auditor.round()
        await node.daemon.flush_updates()
        assert (files.folder / "cpuset.cpus").read_text() == f"{drifted.cpus}\n" == "4-5\n"
        # no update is sent: the runtime's record is correct
        assert not drifted.updated_by
        assert not other.updated_by
        assert node.runtime.synchronizations == before


async def test_a_container_made_while_the_daemon_was_away_is_placed_and_not_astray(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with audited(tmp_path, monkeypatch) as (node, root):
        await node.start(pod("own", "2"))
        node.daemon._session.reconnect()
        await node.runtime.disconnected()
        before = node.runtime.synchronizations
        await node.runtime.start_pod(pod("meanwhile", "2"))
        meanwhile = node.runtime.container("default/meanwhile/main")
        await node.runtime.synchronized(after=before)
        assert [update.resources.cpu.cpus for update in meanwhile.updated_by] == ["8-9"]
        for each in node.runtime.containers:
            cgroup(root, each)
        await node.daemon.auditor.round()
        report = node.daemon.auditor.report
        assert (report.audited, report.drifts, report.unseen) == (2, (), ())


@pytest.mark.parametrize("spec", [{"pinCPU": False, "pinMemory": False}, {}])
async def test_what_the_policy_leaves_alone_is_not_audited(
    spec: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    annotations = {
        "cpu.preserve.resource-policy.nri.io": "true",
        "memory.preserve.resource-policy.nri.io": "true",
    }
    async with audited(tmp_path, monkeypatch, **spec) as (node, root):
        await node.start(pod("own", "2", annotations={} if spec else annotations))
        (container,) = node.runtime.containers
        path = folder_of(container.message.linux.cgroups_path)
        assert path is not None
        root.cgroup(path, "0-15", "0-3")
        await node.daemon.auditor.round()
        assert node.daemon.auditor.report.audited == 0
        assert node.daemon.auditor.report.drifts == ()


async def test_an_audit_follows_each_synchronization(tmp_path: Path) -> None:
    async with served(tmp_path) as node:
        due = node.daemon.auditor._due
        assert due.is_set()
        due.clear()
        before = node.runtime.synchronizations
        node.daemon._session.reconnect()
        await node.runtime.synchronized(after=before)
        assert due.is_set()


async def test_an_event_tells_of_each_container_that_is_released_without_a_report(
    tmp_path: Path,
) -> None:
    events: list[ClusterEvent] = []
    async with served(tmp_path, record=events.append) as node:
        await node.start(pod("runs", "1"))
        runs = node.runtime.container("runs/main")
        waits = await node.runtime.create_container(
            await node.runtime.run_pod(pod("waits", "1")), "main"
        )
        source = node.daemon.auditor._source
        await source.release([runs.id])
        await source.release_unstarted([waits.id])
        assert not node.daemon.node.view.placed
    assert [each.text.partition(",")[0] for each in events] == [
        "container main has no process any more",
        "container main was never started and has no process; its CPUs are free",
    ]
