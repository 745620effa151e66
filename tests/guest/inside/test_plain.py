"""Two sockets of two NUMA nodes, each with two cores of two threads and their memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from nri_policy.foundation.cpuset import CPUSet
from tests.e2e import cgroup
from tests.e2e.kubelet import BEST_EFFORT, guaranteed, resources
from tests.e2e.quota import FIFTH, become, busy, limits, throttled
from tests.e2e.waiting import eventually
from tests.guest.inside import kernel
from tests.guest.inside.kernel import Effective
from tests.guest.inside.scene import SETTINGS, Scene

MEMORY = 64 << 20
WHOLE_NODE = guaranteed(4000, MEMORY)
NODES = {"1": "4-7", "2": "8-11", "3": "12-15"}  # those without a reserved CPU
AFFINITY = "resource-policy.nri.io/affinity"
ANTI_AFFINITY = "resource-policy.nri.io/anti-affinity"


@contextmanager
def offline(scene: Scene, cpus: CPUSet) -> Iterator[None]:
    """Have CPUs offline in the block; the policy knows of it when they are back."""
    for cpu in cpus:
        kernel.online(cpu, on=False)
    try:
        yield
    finally:
        for cpu in cpus:
            kernel.online(cpu, on=True)
    scene.await_machine()


def test_pages_follow_a_container_that_outgrows_its_node(scene: Scene) -> None:
    asked = {"growing": guaranteed(2000, MEMORY), "neighbour": guaranteed(2000, MEMORY)}
    one_way = "neighbour: [{match: {key: name, operator: Equals, values: [growing]}}]"
    annotations = {
        AFFINITY: one_way,
        "hide-hyperthreads.resource-policy.nri.io/container.neighbour": "true",
    }
    growing, neighbour = scene.run_all("two", asked, annotations, touching=16)
    scene.settle()
    first = kernel.effective(growing)
    assert set(kernel.pages(growing, at_least=16 << 20)) == {int(first.mems)}
    beside = CPUSet.parse(NODES[first.mems]) - CPUSet.parse(first.cpus)
    assert kernel.effective(neighbour) == Effective(cpus=str(min(beside)), mems=first.mems)
    growing.update(WHOLE_NODE)
    scene.settle()
    second = kernel.effective(growing)
    assert second.mems != first.mems
    assert second.cpus == NODES[second.mems]
    assert kernel.pages_moved(growing, {int(second.mems)}) == {int(second.mems)}


def test_who_is_larger_than_a_node_has_all_of_its_socket(scene: Scene) -> None:
    asked = {"whole": guaranteed(8000), "most": guaranteed(6000), "rest": guaranteed(500)}
    whole, most, rest = scene.run_all("large", asked)
    scene.settle()
    assert kernel.effective(whole) == Effective(cpus="8-15", mems="2-3")
    cpus = [CPUSet.parse(kernel.effective(each).cpus) for each in (most, rest)]
    assert [len(each) for each in cpus] == [6, 1]
    assert cpus[0] | cpus[1] == CPUSet.parse("1-7")
    assert kernel.effective(most).mems == "0-1"


def test_affinity_is_near_and_anti_affinity_far(scene: Scene) -> None:
    asked = {"one": guaranteed(1000), "close": guaranteed(500), "away": guaranteed(1000)}
    annotations = {AFFINITY: "close: [one]", ANTI_AFFINITY: "away: [one]"}
    one, close, away = map(kernel.effective, scene.run_all("three", asked, annotations))
    scene.settle()
    assert close.mems == one.mems
    assert CPUSet.parse(one.cpus) | CPUSet.parse(close.cpus) == CPUSet.parse(NODES[one.mems])
    assert int(away.mems) // 2 != int(one.mems) // 2, "not on the other socket"


def test_a_process_keeps_the_affinity_that_it_gave_itself_as_far_as_it_may(scene: Scene) -> None:
    asked = {"shared": guaranteed(500), "taking": guaranteed(1000)}
    shared, taking = scene.run_all("pinned", asked, {AFFINITY: "taking: [shared]"})
    taken, left = (CPUSet.parse(kernel.effective(each).cpus) for each in (taking, shared))
    assert taken | left == CPUSet.parse(NODES[kernel.effective(shared).mems])
    pid = shared.pid()
    taking.remove()
    eventually(lambda: cgroup.allowed(pid).cpus, lambda now: now == taken | left)
    os.sched_setaffinity(pid, taken)
    assert scene.audit().drifts == ()
    taking = kernel.start(shared.pod, "taking")
    scene.settle()
    assert CPUSet.parse(kernel.effective(taking).cpus) == taken
    assert cgroup.allowed(pid).cpus == left
    taking.remove()
    # the kernel remembers what the process asked for
    assert eventually(lambda: cgroup.allowed(pid).cpus, lambda now: now == taken) == taken
    assert scene.audit().drifts == ()


def test_pods_that_come_and_go_at_once_have_cpus_of_their_own(scene: Scene) -> None:
    sizes = [4000, 2000, 500]
    with ThreadPoolExecutor(len(sizes)) as threads:
        asked = [threads.submit(scene.run, f"pod-{milli}", guaranteed(milli)) for milli in sizes]
        containers = [each.result() for each in asked]
        scene.settle()
        cpus = [CPUSet.parse(kernel.effective(each).cpus) for each in containers]
        assert [len(each) for each in cpus[:2]] == [4, 2]
        assert len(CPUSet.union(cpus)) == sum(map(len, cpus))
        for gone in [threads.submit(each.pod.delete) for each in containers]:
            gone.result()
    assert scene.holdings() == {}


def test_shared_cpus_come_and_go_also_while_the_daemon_is_away(scene: Scene) -> None:
    asked = {"guest": BEST_EFFORT, "wide": resources(milli_cpu=100)}
    guest, wide = scene.run_all("burstable", asked)
    before = scene.settle()
    cpus, lost = CPUSet.parse(kernel.effective(guest).cpus), CPUSet([15])
    scene.daemon.kill()
    with offline(scene, lost):
        scene.daemon.start()
        scene.settle()
        assert CPUSet.parse(kernel.effective(guest).cpus) == cpus - lost
        assert lost.isdisjoint(CPUSet.parse(kernel.effective(wide).cpus))
    assert scene.settle() == before


def test_a_node_whose_cpus_all_go_offline_is_left(scene: Scene) -> None:
    whole, bystander = scene.run_all(
        "two", {"whole": WHOLE_NODE, "bystander": guaranteed(2000)}, touching=16
    )
    scene.settle()
    before = [kernel.effective(each) for each in (whole, bystander)]
    with offline(scene, CPUSet.parse(before[0].cpus)):
        scene.await_machine()
        scene.settle()
        now = kernel.effective(whole)
        assert len(CPUSet.parse(now.cpus)) == 4
        assert kernel.effective(bystander) == before[1]
    scene.settle()
    assert [kernel.effective(each) for each in (whole, bystander)] == [now, before[1]]


def test_new_settings_move_whom_they_concern(scene: Scene) -> None:
    system = scene.run("system", BEST_EFFORT, namespace="kube-system")
    guest = scene.run("guest", BEST_EFFORT)
    before = scene.settle()
    more = max(CPUSet.parse(kernel.effective(guest).cpus))
    scene.daemon.reload({"reservedResources": {"cpu": f"cpuset:0,{more}"}})
    try:
        scene.settle()
        assert kernel.effective(system).cpus == f"0,{more}"
        with offline(scene, CPUSet([more])):
            scene.await_machine()
            scene.settle()
            assert kernel.effective(system).cpus == "0"
        scene.settle()
        assert kernel.effective(system).cpus == f"0,{more}"
    finally:
        scene.daemon.reload(SETTINGS)
    assert scene.settle() == before


def test_a_busy_owner_is_throttled_by_its_quota_only_if_it_keeps_it(scene: Scene) -> None:
    keeps = busy(scene.kubelet, {"exclusive-quota.resource-policy.nri.io/pod": "keep"})
    assert limits(keeps.pod) == (FIFTH, FIFTH)
    assert eventually(lambda: throttled(keeps)[0], lambda times: times > 0) > 0
    keeps.pod.delete()
    owner = busy(scene.kubelet, {})
    become(owner.pod, (None, None))
    before = throttled(owner)
    assert eventually(lambda: cgroup.seconds(owner.cgroup), lambda used: used > 1) > 1
    assert throttled(owner) == before  # its start was, while the pod had its quota
