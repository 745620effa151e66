"""How many devices each NUMA node has and has left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from nri_policy.foundation.clock import Clock
from nri_policy.kubelet.device_counts import AGAIN, DeviceCounts
from nri_policy.kubelet.pod_resources import Assignments
from tests.support.clock import Steps

from .kubelet import Kubelet, entry, resources, serving
from .test_pod_resources import GPU, NIC, pod


class Changes:
    """Counts calls, and lets a test wait for the next one."""

    def __init__(self) -> None:
        self.count = 0
        self.more = asyncio.Event()

    def __call__(self) -> None:
        self.count += 1
        self.more.set()

    async def another(self) -> None:
        await self.more.wait()
        self.more.clear()


@asynccontextmanager
async def stocked(
    kubelet: Kubelet, folder: Path, wanted: Callable[[], bool] = lambda: True
) -> AsyncIterator[tuple[DeviceCounts, Assignments, Steps, Changes]]:
    steps, changes = Steps(), Changes()
    async with serving(kubelet, folder / "k"), Assignments(folder / "k") as assignments:
        device_counts = DeviceCounts(assignments, clock=Clock(sleep=steps.sleep))
        async with device_counts.running(changes, wanted=wanted):
            await steps.settled()
            yield device_counts, assignments, steps, changes


async def test_devices_are_counted_on_their_nodes_until_a_pod_has_them(tmp_path: Path) -> None:
    kubelet = Kubelet([resources("web", entry(GPU, "a", 0), entry(NIC, "eth1", 1))])
    kubelet.allocatable = [
        *(entry(GPU, device, node) for device, node in (("a", 0), ("b", 0), ("c", 1), ("c", 2))),
        entry(NIC, "eth1", 1),
        entry("example.com/nowhere", "x"),
    ]
    async with stocked(kubelet, tmp_path) as (device_counts, assignments, _, changes):
        await changes.another()
        assert device_counts.count() == {
            0: {GPU: (2, 2)},
            1: {GPU: (1, 1), NIC: (1, 1)},
            2: {GPU: (1, 1)},
        }
        assignments.ask(pod())
        await changes.another()
        assert device_counts.count()[0] == {GPU: (2, 1)}
        assert device_counts.count()[1] == {GPU: (1, 1), NIC: (1, 0)}
        assert device_counts.count_free() == {GPU: 2, NIC: 0, "example.com/nowhere": 1}
        assignments.forget(pod())
        assert device_counts.count()[0] == {GPU: (2, 2)}


async def test_devices_that_come_and_go_are_noticed_within_a_minute(tmp_path: Path) -> None:
    kubelet = Kubelet()
    async with stocked(kubelet, tmp_path) as (device_counts, _, steps, changes):
        assert device_counts.count() == {}
        kubelet.allocatable = [entry(GPU, "a", 0)]
        await steps.advance(AGAIN)
        assert device_counts.count() == {0: {GPU: (1, 1)}}
        assert changes.count == 1
        await steps.advance(AGAIN)
        assert changes.count == 1, "nothing is new"
        kubelet.allocatable = []
        await steps.advance(AGAIN)
        assert device_counts.count() == {}


async def test_what_is_unused_is_unknown_while_nobody_asks(tmp_path: Path) -> None:
    kubelet = Kubelet()
    async with stocked(kubelet, tmp_path, wanted=lambda: False) as (device_counts, _, _, _):
        assert device_counts.count_free() is None


async def test_settings_that_do_not_want_it_any_more_are_heeded_within_a_minute(
    tmp_path: Path,
) -> None:
    kubelet = Kubelet()
    kubelet.allocatable = [entry(GPU, "a", 0)]
    wanted = [False]
    async with stocked(kubelet, tmp_path, lambda: wanted[0]) as (device_counts, _, steps, _changes):
        assert device_counts.count() == {}
        wanted[0] = True
        await steps.advance(AGAIN)
        assert device_counts.count() == {0: {GPU: (1, 1)}}
        wanted[0] = False
        await steps.advance(AGAIN)
        assert device_counts.count() == {}


async def test_what_was_known_stays_while_the_kubelet_is_away(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kubelet = Kubelet()
    kubelet.allocatable = [entry(GPU, "a", 0)]
    async with stocked(kubelet, tmp_path) as (device_counts, _, steps, _changes):
        kubelet.failures["GetAllocatableResources"].append((grpc.StatusCode.INTERNAL, "no"))
        await steps.advance(AGAIN)
        assert device_counts.count() == {0: {GPU: (1, 1)}}
        assert "event=no-pod-resources" in caplog.text
