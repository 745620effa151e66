"""Two sockets of two NUMA nodes, each with four CPUs and their memory; CPU 0 is reserved."""

from __future__ import annotations

from pathlib import Path

from nri_policy.cpuset import CPUSet
from tests.e2e.containerd import Containerd
from tests.e2e.daemon import Daemon
from tests.e2e.kubelet import BEST_EFFORT, Kubelet, guaranteed
from tests.e2e.waiting import eventually
from tests.guest.inside import kernel
from tests.guest.inside.kernel import Effective, comes_to, run

WHOLE_NODE = guaranteed(4000, 64 << 20)
NEAR_SHARED = """\
main:
- scope: {key: namespace, operator: Equals, values: [default]}
  match: {key: pod/name, operator: Equals, values: [shared]}
"""
NODES = {"1": "4-7", "2": "8-11", "3": "12-15"}  # those without a reserved CPU


def test_an_exclusive_container_has_its_cpus_and_its_pages_on_one_node(kubelet: Kubelet) -> None:
    pod = kubelet.run_pod("exclusive", {"main": WHOLE_NODE})
    container = kernel.start(pod, command=kernel.touching(16))
    node = kernel.effective(container).mems
    assert kernel.effective(container).cpus == NODES[node]
    assert set(kernel.pages(container, at_least=16 << 20)) == {int(node)}


def test_shared_cpus_shrink_when_an_exclusive_container_comes_and_grow_when_it_goes(
    kubelet: Kubelet,
) -> None:
    shared = run(kubelet, "shared", guaranteed(500))
    before = kernel.effective(shared)
    assert before.cpus == NODES[before.mems]
    others = [run(kubelet, f"other-{number}", WHOLE_NODE) for number in range(2)]
    near = {"resource-policy.nri.io/affinity": NEAR_SHARED}
    own = run(kubelet, "own", guaranteed(1000), annotations=near)
    assert kernel.effective(own).mems == before.mems
    taken = int(kernel.effective(own).cpus)
    first, last = map(int, before.cpus.split("-"))
    left = [cpu for cpu in range(first, last + 1) if cpu != taken]
    assert taken in {first, last}
    comes_to(shared, f"{left[0]}-{left[-1]}")
    own.pod.delete()
    comes_to(shared, before.cpus)
    assert {kernel.effective(each).cpus for each in others} == set(NODES.values()) - {before.cpus}


def test_a_mixed_container_has_one_cpu_of_its_own_beside_the_shared_ones(kubelet: Kubelet) -> None:
    mixed = run(kubelet, "mixed", guaranteed(1500))
    sharing = kernel.effective(mixed)
    beside = run(kubelet, "beside", WHOLE_NODE)
    assert kernel.effective(beside).mems != sharing.mems
    assert sharing.cpus == NODES[sharing.mems]
    # 1500m of the kubelet's shares, as the kernel's weight: 1 + (1536 - 2) * 9999 / 262142
    assert kernel.weight(mixed) == 59


def test_the_systems_own_pods_run_on_the_reserved_cpus(kubelet: Kubelet) -> None:
    system = run(kubelet, "system", BEST_EFFORT, namespace="kube-system")
    assert kernel.effective(system) == Effective(cpus="0", mems="0-3")


def test_a_resize_changes_cpus_in_place(kubelet: Kubelet) -> None:
    container = run(kubelet, "resized", guaranteed(2000))
    before = kernel.effective(container)
    container.update(guaranteed(4000))
    assert kernel.effective(container) == Effective(cpus=NODES[before.mems], mems=before.mems)
    container.update(guaranteed(2000))
    assert kernel.effective(container) == before


def test_a_container_that_no_node_can_hold_has_the_memory_of_its_cpus(kubelet: Kubelet) -> None:
    wide = run(kubelet, "wide", guaranteed(8000))
    assert kernel.effective(wide) == Effective(cpus="8-15", mems="2-3")


def test_a_cpu_that_goes_offline_moves_its_container_and_nobody_else(kubelet: Kubelet) -> None:
    victim, bystander = (run(kubelet, name, guaranteed(2000)) for name in ("victim", "bystander"))
    before = [*map(kernel.effective, (victim, bystander))]
    lost = before[0].cpus.split("-")[1]
    switch = Path(f"/sys/devices/system/cpu/cpu{lost}/online")
    switch.write_text("0")
    try:
        moved = eventually(
            lambda: CPUSet.parse(kernel.effective(victim).cpus),
            lambda cpus: len(cpus) == 2,
            seconds=120,
        )
        assert len(moved) == 2
        assert int(lost) not in moved
    finally:
        switch.write_text("1")
    assert kernel.effective(bystander) == before[1]


def test_nobody_moves_when_the_daemon_is_killed_and_comes_back(
    kubelet: Kubelet, daemon: Daemon
) -> None:
    containers = [run(kubelet, "own", guaranteed(2000)), run(kubelet, "shared", BEST_EFFORT)]
    before = [*map(kernel.effective, containers)]
    daemon.kill()
    daemon.start()
    assert [*map(kernel.effective, containers)] == before
    last = run(kubelet, "last", WHOLE_NODE)
    assert kernel.effective(last).cpus in NODES.values()
    assert kernel.effective(containers[0]) == before[0]


def test_nobody_moves_when_containerd_restarts(
    kubelet: Kubelet, daemon: Daemon, containerd: Containerd
) -> None:
    containers = [run(kubelet, "own", guaranteed(2000)), run(kubelet, "shared", guaranteed(500))]
    before = [*map(kernel.effective, containers)]
    containerd.restart()
    daemon.await_synchronized()
    assert [*map(kernel.effective, containers)] == before
    assert kernel.effective(run(kubelet, "last", WHOLE_NODE)).cpus in NODES.values()
