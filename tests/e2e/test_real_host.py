"""On the hardware of this host: cpusets as the kernel holds them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from nri_policy.foundation.cpuset import CPUSet
from tests.e2e.daemon import Daemon
from tests.e2e.kubelet import BEST_EFFORT, Kubelet, guaranteed
from tests.e2e.waiting import eventually


def one_pool() -> CPUSet:
    """Return CPUs of this host that no level of the pool tree divides: one L3 on one NUMA node."""
    usable = CPUSet(os.sched_getaffinity(0))
    cpu = Path(f"/sys/devices/system/cpu/cpu{usable.lowest}")
    nodes = cpu.glob("node[0-9]*/cpulist")
    l3 = (
        index / "shared_cpu_list"
        for index in cpu.glob("cache/index*")
        if (index / "level").read_text().strip() == "3"
    )
    for peers in (*nodes, *l3):
        usable &= CPUSet.parse(peers.read_text())
    return usable


AVAILABLE = one_pool()
RESERVED = AVAILABLE.first(1)
SHARABLE = AVAILABLE - RESERVED


@pytest.fixture
def settings() -> dict[str, Any]:
    return {
        "availableResources": {"cpu": f"cpuset:{AVAILABLE}"},
        "reservedResources": {"cpu": f"cpuset:{RESERVED}"},
        "preferIsolatedCPUs": False,
    }


@pytest.fixture
def host_root() -> Path:
    return Path("/")


@pytest.mark.usefixtures("daemon")
def test_an_exclusive_cpu_is_taken_from_the_others_and_given_back(kubelet: Kubelet) -> None:
    best_effort = kubelet.run("best-effort", BEST_EFFORT)
    assert best_effort.cpus() == SHARABLE

    exclusive = kubelet.run("exclusive", guaranteed(1000))
    own = exclusive.cpus()
    assert len(own) == 1
    assert own <= SHARABLE
    # where that was the last one, the others make room: on the reserved CPUs
    left = SHARABLE - own or RESERVED
    assert eventually(best_effort.cpus, lambda now: now == left) == left

    exclusive.pod.delete()
    assert eventually(best_effort.cpus, lambda now: now == SHARABLE) == SHARABLE


def test_a_killed_daemon_leaves_the_cgroups_alone_and_finds_them_so(
    daemon: Daemon, kubelet: Kubelet
) -> None:
    containers = [kubelet.run("exclusive", guaranteed(1000)), kubelet.run("shared", BEST_EFFORT)]
    before = [container.cpus() for container in containers]
    assert before[0].isdisjoint(before[1])
    daemon.kill()
    assert [container.cpus() for container in containers] == before
    daemon.start()
    assert [container.cpus() for container in containers] == before


def test_who_may_run_anywhere_once_the_daemon_has_left_stays_so_when_it_is_resized(
    daemon: Daemon, settings: dict[str, Any], kubelet: Kubelet
) -> None:
    """Then the runtime writes the cpuset that it knows."""
    daemon.reload(settings | {"onExit": "widen"})
    own = kubelet.run("own", guaranteed(1000))
    assert len(own.cpus()) == 1
    daemon.stop()
    anywhere = own.cpus()
    assert len(anywhere) > 1
    own.update(guaranteed(500))
    assert own.cpus() == anywhere
    daemon.start()


def test_the_cpus_that_another_agent_asks_for_are_replaced_and_status_says_so(
    daemon: Daemon, kubelet: Kubelet
) -> None:
    own, guest = kubelet.run("own", guaranteed(1000)), kubelet.run("guest", BEST_EFFORT)
    before = [own.cpus(), guest.cpus()]
    assert before[0].isdisjoint(before[1])
    own.update(guaranteed(1000, 48 << 20))
    assert "another agent" not in daemon.ask("status").stdout
    for each in (own, guest):  # as the kubelet's static CPU manager does
        wide = {"cpuset_cpus": str(AVAILABLE)}
        kubelet.call("UpdateContainerResources", container_id=each.id, linux=wide)
    assert [own.cpus(), guest.cpus()] == before
    assert "another agent asked for CPUs" in " ".join(daemon.ask("status").stdout.split())
