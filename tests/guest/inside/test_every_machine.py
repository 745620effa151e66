"""What has to come out on every machine, held against what its kernel does."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from nri_policy.doctor.host import Host
from nri_policy.doctor.processes import find_named, own_affinity, processes
from nri_policy.foundation.cpuset import CPUSet
from tests.e2e.daemon import Daemon
from tests.e2e.kubelet import BEST_EFFORT, Container, guaranteed
from tests.e2e.runtime import Runtime
from tests.e2e.waiting import eventually
from tests.guest.inside import kernel
from tests.guest.inside.kernel import Effective
from tests.guest.inside.scene import Scene, full_name, near, pods

RESERVED = CPUSet([0])
ORDINARY = {"prefer-isolated-cpus.resource-policy.nri.io": "false"}
MEMORY = 32 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowd(Scene):
    """One container of each class, which run through all tests of this module."""

    own: Container
    mixed: Container
    best_effort: Container
    system: Container


def cpus_of(container: Container, here: Mapping[str, Effective]) -> CPUSet:
    """Return the CPUs of a container among what the kernel gives each."""
    return CPUSet.parse(here[full_name(container)].cpus)


@pytest.fixture(scope="module")
def crowd(runtime: Runtime, daemon: Daemon) -> Iterator[Crowd]:
    with pods(runtime) as kubelet:
        pod = kubelet.run_pod("guaranteed", {"own": guaranteed(2000), "mixed": guaranteed(1500)})
        touching = kernel.touching(8)
        own, mixed = (kernel.start(pod, name, command=touching) for name in pod.containers)
        yield Crowd(
            kubelet=kubelet,
            daemon=daemon,
            own=own,
            mixed=mixed,
            best_effort=kernel.run(kubelet, "best-effort", BEST_EFFORT),
            system=kernel.run(kubelet, "system", BEST_EFFORT, namespace="kube-system"),
        )


def test_each_class_of_container_has_what_the_policy_says_and_explains(crowd: Crowd) -> None:
    here = crowd.settle()
    own = cpus_of(crowd.own, here)
    assert len(own) == 2
    kernel.node_of(own)
    assert sum(kernel.pages(crowd.own, at_least=8 << 20).values()) >= 8 << 20
    assert cpus_of(crowd.system, here) == RESERVED
    for guest in (crowd.mixed, crowd.best_effort):
        assert cpus_of(guest, here).isdisjoint(own | RESERVED)
    assert len(cpus_of(crowd.mixed, here)) > 1
    for container in crowd.containers():
        name = full_name(container)
        assert cpus_of(container, here) <= crowd.pool_of(name)
        assert crowd.explain(name).outcome in {"placed", "on the reserved CPUs"}


def test_a_resize_changes_cpus_weight_and_memory_of_running_containers(crowd: Crowd) -> None:
    for size in (3, 1, 2):
        crowd.own.update(guaranteed(size * 1000, MEMORY + size * 4096))
        assert len(cpus_of(crowd.own, crowd.settle())) == size
        limit = MEMORY + size * 4096
        assert eventually(partial(kernel.memory_limit, crowd.own), limit.__eq__) == limit
    before = kernel.weight(crowd.mixed)
    crowd.mixed.update(guaranteed(1900))
    crowd.settle()
    assert kernel.weight(crowd.mixed) > before


def test_cpus_of_ones_own_come_from_who_shares_them_and_go_back_when_the_process_ends(
    crowd: Crowd,
) -> None:
    before = crowd.settle()
    shared = cpus_of(crowd.best_effort, before)
    annotations = near("best-effort") | ORDINARY
    passing = crowd.run("passing", guaranteed(1000), annotations=annotations)
    here = crowd.settle()
    own = cpus_of(passing, here)
    assert len(own) == 1
    assert own <= shared
    assert cpus_of(crowd.best_effort, here) == shared - own
    os.kill(passing.pid(), signal.SIGKILL)
    passing.pod.created.remove(passing)
    assert eventually(crowd.effective, lambda now: now == before) == before
    # a pod is not to be stopped while its runtime has not done with the process
    exited = eventually(passing.state, lambda state: state == "CONTAINER_EXITED")
    assert exited == "CONTAINER_EXITED"
    passing.pod.delete()
    assert crowd.settle() == before


@pytest.mark.usefixtures("crowd")
def test_the_doctor_sees_what_confines_a_runtime_beside_its_cgroup() -> None:
    host = Host(Path("/"))
    (runtime,) = find_named(processes(host), "containerd")
    before, confined = os.sched_getaffinity(runtime.id), kernel.online_cpus().first(2)
    assert own_affinity(host, runtime) is None
    os.sched_setaffinity(runtime.id, confined)  # its first thread, which `own_affinity` reads
    try:
        assert own_affinity(host, runtime) == confined
    finally:
        os.sched_setaffinity(runtime.id, before)


def test_nobody_moves_when_the_daemon_is_killed_and_comes_back(crowd: Crowd) -> None:
    before = crowd.settle()
    crowd.daemon.kill()
    assert crowd.effective() == before
    crowd.daemon.start()
    assert crowd.settle() == before


def test_nobody_moves_when_containerd_restarts_and_the_next_are_placed(
    crowd: Crowd, runtime: Runtime
) -> None:
    before = crowd.settle()
    runtime.restart()
    crowd.daemon.await_synchronized()
    assert crowd.settle() == before
    after = crowd.run("after", guaranteed(1000))
    assert len(cpus_of(after, crowd.settle())) == 1
    after.pod.delete()
    assert crowd.settle() == before


def test_a_cpu_goes_offline_under_its_container_and_comes_back(crowd: Crowd) -> None:
    before = crowd.settle()
    lost = max(cpus_of(crowd.own, before))
    online = kernel.online_cpus()
    kernel.online(lost, on=False)
    try:
        crowd.await_machine()
        now = crowd.settle()
        own = cpus_of(crowd.own, now)
        assert len(own) == 2
        assert lost not in own
        assert now[full_name(crowd.system)] == before[full_name(crowd.system)]
    finally:
        kernel.online(lost, on=True)
    assert kernel.online_cpus() == online
    crowd.await_machine()
    crowd.settle()
