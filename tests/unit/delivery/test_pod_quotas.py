from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from nri_policy.delivery import pod_quota_records, pod_quotas
from nri_policy.delivery.host_cgroups import Limited
from nri_policy.delivery.inputs import Action, PodsChanged
from nri_policy.delivery.record_table import RecordTable
from nri_policy.engine.state.quota import NO_QUOTA
from nri_policy.manifests.resources import Amounts, ResourceChange
from nri_policy.simulation.cgroups import SimulatedCgroups
from nri_policy.simulation.embedded import EmbeddedRuntime
from tests.support import nodes
from tests.support.daemon import Served, pod, served
from tests.support.patience import HANGS

RESERVED = "prefer-reserved-cpus.resource-policy.nri.io/container.side"


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - what it waits for announces itself by no event
        await asyncio.sleep(0.001)


class PodCgroups(SimulatedCgroups):
    """The cgroups of pods as a kubelet has made them: with a quota where their sandbox says so."""

    def __init__(self, runtime: EmbeddedRuntime) -> None:
        super().__init__(runtime)
        self._pods = runtime
        self.quotas: dict[str, int] = {}
        self.error = ""

    def limit(self, wanted: Mapping[str, int]) -> Mapping[str, Limited]:
        done = {}
        for each, quota in wanted.items():
            before = self.of(each)
            if (before > 0) == (quota == NO_QUOTA) and not self.error:
                self.quotas[each] = quota
            done[each] = Limited(before=before, error=self.error)
        return done

    def of(self, folder: str) -> int:
        """Return the quota of the pod of that cgroup."""
        (its,) = [each for each in self._pods.pods if each.message.linux.cgroup_parent == folder]
        return self.quotas.get(folder, its.amounts.cpu.quota.value)


class Host:
    """A daemon whose pods have cgroups."""

    def __init__(self) -> None:
        self.cgroups: PodCgroups | None = None

    def __call__(self, runtime: EmbeddedRuntime) -> PodCgroups:
        """Make the cgroups."""
        self.cgroups = PodCgroups(runtime)
        return self.cgroups

    def quota(self, it: Served, name: str) -> int:
        """Return the quota of a pod."""
        assert self.cgroups is not None
        return self.cgroups.of(it.runtime.pod(name).message.linux.cgroup_parent)

    def write(self, it: Served, name: str, quota: int) -> None:
        """Write it, as the kubelet does."""
        assert self.cgroups is not None
        self.cgroups.quotas[it.runtime.pod(name).message.linux.cgroup_parent] = quota


def both(name: str) -> dict[str, Any]:
    """Return the manifest of a pod of a container with two CPUs, and one on the reserved ones."""
    manifest = pod(name, "2", annotations={RESERVED: "true"})
    (main,) = manifest["spec"]["containers"]
    side = {**main, "name": "side", "resources": {"limits": {"cpu": "500m", "memory": "1Mi"}}}
    manifest["spec"]["containers"] = [main, side]
    return manifest


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_quota_records, "LOOK", 0.001)
    monkeypatch.setattr(pod_quotas, "MAX_WAIT", 600.0)


async def test_a_pod_whose_containers_have_their_own_cpus_has_no_quota(tmp_path: Path) -> None:
    host = Host()
    async with served(tmp_path, cgroups=host) as it:
        await it.start(pod("own", "2"), pod("shares", "500m"), pod("burst", "500m", shared=True))
        assert host.quota(it, "own") == NO_QUOTA
        assert host.quota(it, "shares") == 50_000


async def test_a_pod_has_its_quota_while_one_of_its_containers_has(tmp_path: Path) -> None:
    host = Host()
    async with served(tmp_path, cgroups=host) as it:
        await it.start(both("both"))
        assert host.quota(it, "both") == 250_000
        await it.runtime.stop_container(it.runtime.container("both/side"))
        await until(lambda: host.quota(it, "both") == NO_QUOTA)


async def test_what_the_kubelet_writes_after_a_resize_is_taken_away_again_and_kept(
    tmp_path: Path,
) -> None:
    host = Host()
    async with served(tmp_path, cgroups=host) as it:
        await it.start(pod("own", "2"))
        three = Amounts({"cpu": 3000})
        change = ResourceChange(requests=three, limits=three)
        await it.runtime.resize(it.runtime.pod("own"), "main", change)
        host.write(it, "own", 300_000)
        await until(lambda: host.quota(it, "own") == NO_QUOTA)
        await it.daemon.events.reconfigure(settings=nodes.settings(exclusiveQuota="keep"))
        await until(lambda: host.quota(it, "own") == 300_000)
        await until(lambda: it.runtime.container("own/main").quota == 300_000)


async def test_an_earlier_life_s_pods_get_what_their_containers_have(tmp_path: Path) -> None:
    host = Host()

    async def lifted(runtime: EmbeddedRuntime) -> None:
        for each in runtime.pods:
            each.message.linux.pod_overhead.cpu.quota.value = 25_000

    async with served(
        tmp_path, cgroups=host, before=[pod("own", "2")], meanwhile=lifted, exclusiveQuota="keep"
    ) as it:
        host.write(it, "own", NO_QUOTA)
        it.daemon.components.quotas.expect_all()
        await until(lambda: host.quota(it, "own") == 225_000)


async def test_leaving_brings_the_quotas_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nri_policy.daemon.daemon.LEAVING", 2 * HANGS)
    host = Host()
    async with served(tmp_path, cgroups=host, onExit="widen") as it:
        await it.start(pod("own", "2"))
        assert (host.quota(it, "own"), it.runtime.container("own/main").quota) == (
            NO_QUOTA,
            NO_QUOTA,
        )
        await it.daemon.leave()
        assert (host.quota(it, "own"), it.runtime.container("own/main").quota) == (
            200_000,
            200_000,
        )


async def test_a_cgroup_that_cannot_be_written_is_reported_while_it_is_so(tmp_path: Path) -> None:
    host = Host()
    async with served(tmp_path, cgroups=host) as it:
        assert host.cgroups is not None
        host.cgroups.error = "Read-only file system"
        await it.start(pod("own", "2"))
        assert it.runtime.container("own/main").quota == NO_QUOTA
        text = (
            "quotas of pods with exclusive CPUs cannot be written, so the kernel may throttle them:"
            " Read-only file system"
        )
        assert text in [*it.daemon.status.doubts()]
        host.cgroups.error = ""
        it.daemon.components.quotas.expect_all()
        await until(lambda: text not in [*it.daemon.status.doubts()])
        assert host.quota(it, "own") == NO_QUOTA


async def test_a_cgroup_that_is_not_the_pods_alone_is_left_alone(tmp_path: Path) -> None:
    """Pods without a kubelet have such cgroups."""
    host = Host()
    async with served(tmp_path, cgroups=host) as it:
        await it.start(pod("own", "2"))
        quotas, node = it.daemon.components.quotas, it.daemon.node
        ((its, sandbox),) = node.view.pods.items()
        async with node.turn:
            node.replace_pods({its: replace(sandbox, folder="/shared")})
        assert quotas._due(its) is None


def test_looks_at_quotas_come_no_closer_than_their_period(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pod_quota_records, "LOOK", 0.5)
    table = RecordTable(has_files=True)
    records = pod_quota_records.PodQuotaRecords(table)
    table.now = 7.0
    records.pods_changed(PodsChanged(pod_ids=["a"]))
    assert table.due[Action.QUOTAS] == 7.0
    table.due[Action.QUOTAS] = math.inf  # the look begins
    table.now = 7.1
    records.pods_changed(PodsChanged(pod_ids=["b"]))
    table.now = 7.2
    records.ended()
    table.now = 7.3
    records.pods_changed(PodsChanged(pod_ids=["c"]))
    assert table.due[Action.QUOTAS] == 7.7
    table.due[Action.QUOTAS] = math.inf
    table.now = 99.0  # the doubts are over
    records.ended()
    assert table.due[Action.QUOTAS] == 99.0 + pod_quota_records.RECHECK


def test_looks_after_an_event_come_at_growing_intervals_until_its_doubt_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pod_quota_records, "LOOK", 0.5)
    table = RecordTable(has_files=True)
    records = pod_quota_records.PodQuotaRecords(table)
    table.now = 100.0
    records.pods_changed(PodsChanged(pod_ids=["a"]))
    looks = []
    while records.doubtful:
        table.now = table.due[Action.QUOTAS]
        looks.append(table.now - 100.0)
        table.due[Action.QUOTAS] = math.inf  # the look begins
        records.ended()
    assert looks == [0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0]
    assert table.due[Action.QUOTAS] == 110.0 + pod_quota_records.RECHECK
