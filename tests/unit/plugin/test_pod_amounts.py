"""What a pod asks for in all, through its resizes and restarts of the daemon.

Neither its sandbox nor its cgroup says it: the sandbox says what the pod was created with, and the
cgroup has no quota any more.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from nri_policy.daemon.daemon import Daemon, Environment
from nri_policy.delivery import pod_quota_records, pod_quotas
from nri_policy.engine.state.quota import NO_QUOTA
from nri_policy.proto import nri_pb2 as nri
from tests.support import nodes, rooms
from tests.support.daemon import make_runtime, pod
from tests.unit.delivery.test_pod_quotas import PodCgroups, until
from tests.unit.plugin.test_rooms import NEW, change, shop

SAYS_NOTHING = "2.2.1"  # of pods that are resized


class Host:
    """A runtime, and daemons that follow each other beside it."""

    def __init__(self, folder: Path, version: str) -> None:
        self.machine = nodes.machine(nodes.SMALL)
        self.folder = folder
        self.runtime = make_runtime(self.machine, folder, version=version)
        self.cgroups = PodCgroups(self.runtime)

    @asynccontextmanager
    async def daemon(self, **spec: Any) -> AsyncIterator[Daemon]:
        """Yield a daemon that is synchronized."""
        before = self.runtime.synchronizations
        host = Environment(
            state_dir=self.folder, root=self.folder, cgroups=self.cgroups, delay=lambda _: 0.0
        )
        daemon = Daemon(self.machine, nodes.settings(**spec), host)
        try:
            async with daemon.serving(self.runtime.socket_path):
                await self.runtime.synchronized(after=before)
                yield daemon
        finally:
            await daemon.close()
        await self.runtime.disconnected()

    def quota(self, name: str) -> int:
        """Return the quota of a pod's cgroup."""
        return self.cgroups.of(self.runtime.pod(name).message.linux.cgroup_parent)

    def write(self, name: str, quota: int) -> None:
        """Write it, as the kubelet does."""
        self.cgroups.quotas[self.runtime.pod(name).message.linux.cgroup_parent] = quota


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_quota_records, "LOOK", 0.001)
    monkeypatch.setattr(pod_quotas, "MAX_WAIT", 600.0)


def sizes(daemon: Daemon) -> tuple[int, str]:
    """Return how large the only room is, and which CPUs main has."""
    view = daemon.node.view
    (room,) = view.rooms.values()
    (main,) = [each for each in view.placed.values() if each.container.name == "main"]
    return len(room.grant.exclusive), str(main.grant.exclusive)


@pytest.mark.parametrize("version", [NEW, SAYS_NOTHING])
async def test_a_room_is_as_large_after_a_restart_as_its_pod_was_resized_to(
    tmp_path: Path, version: str
) -> None:
    host = Host(tmp_path, version)
    async with host.runtime as runtime:
        async with host.daemon() as daemon:
            await runtime.start_pod(shop())
            await runtime.resize(runtime.pod("shop"), "main", change(3000))
            before = sizes(daemon)
            assert before[0] == 4
        async with host.daemon() as daemon:
            assert sizes(daemon) == before
            await runtime.resize(runtime.pod("shop"), "main", change(1000))
            assert sizes(daemon)[0] == 2


async def test_a_resize_of_memory_alone_leaves_a_room_as_large_as_it_is(tmp_path: Path) -> None:
    """The kubelet says of the CPU what it reads from the pod's cgroup: no quota."""
    host = Host(tmp_path, NEW)
    async with host.runtime as runtime:
        async with host.daemon() as daemon:
            await runtime.start_pod(shop())
            await runtime.resize(runtime.pod("shop"), "main", change(3000))
            before = sizes(daemon)
        async with host.daemon() as daemon:
            asked = nri.LinuxResources()
            asked.cpu.shares.value, asked.cpu.quota.value, asked.cpu.period.value = 4096, -1, 100000
            asked.memory.limit.value = 8 << 20
            await runtime.update_pod(runtime.pod("shop"), asked)
            assert sizes(daemon) == before
            (room,) = daemon.node.view.rooms.values()
            assert room.request.memory == 8 << 20


@pytest.mark.parametrize("version", [NEW, SAYS_NOTHING])
@pytest.mark.parametrize("annotations", [{}, rooms.ROOM])
async def test_a_resized_pod_gets_the_quota_back_that_the_kubelet_wrote_last(
    tmp_path: Path, version: str, annotations: dict[str, str]
) -> None:
    host = Host(tmp_path, version)
    async with host.runtime as runtime:
        async with host.daemon() as daemon:
            await runtime.start_pod(pod("own", "3", annotations=annotations))
            assert host.quota("own") == NO_QUOTA
            await runtime.resize(runtime.pod("own"), "main", change(2000))
            host.write("own", 200_000)
            daemon.components.quotas.expect_all()
            await until(lambda: host.quota("own") == NO_QUOTA)
        async with host.daemon(exclusiveQuota="keep") as daemon:
            daemon.components.quotas.expect_all()
            await until(lambda: host.quota("own") > 0)
            assert host.quota("own") == 200_000


@pytest.mark.parametrize("rounded", [3069, 6267])
async def test_requests_that_a_weight_has_rounded_are_those_of_before(
    tmp_path: Path, rounded: int
) -> None:
    """On cgroup v2 the kubelet reads a pod's shares back from the weight of its cgroup."""
    host = Host(tmp_path, NEW)
    async with host.runtime as runtime, host.daemon() as daemon:
        await runtime.start_pod(pod("web", "3", shared=True, annotations=rooms.ROOM))
        assert sizes(daemon)[0] == 3
        asked = nri.LinuxResources()
        asked.cpu.shares.value, asked.memory.limit.value = rounded, 8 << 20
        await runtime.update_pod(runtime.pod("web"), asked)
        assert sizes(daemon)[0] == 3
        asked.cpu.shares.value = 4096
        await runtime.update_pod(runtime.pod("web"), asked)
        assert sizes(daemon)[0] == 4
