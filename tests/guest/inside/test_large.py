"""Four sockets of 24 CPUs: 96, so that a mask of them is longer than a word."""

from __future__ import annotations

from nri_policy.foundation.cpuset import CPUSet
from tests.e2e.kubelet import BEST_EFFORT, guaranteed
from tests.guest.inside import kernel
from tests.guest.inside.kernel import Effective
from tests.guest.inside.scene import Scene

SOCKETS = {
    Effective(cpus="24-47", mems="1"),
    Effective(cpus="48-71", mems="2"),
    Effective(cpus="72-95", mems="3"),
}


def test_whole_sockets_are_filled_and_the_rest_is_shared_also_by_the_next_daemon(
    scene: Scene,
) -> None:
    asked = dict.fromkeys(["first", "second", "third"], guaranteed(24_000))
    assert {kernel.effective(each) for each in scene.run_all("whole", asked)} == SOCKETS
    shared = scene.run("shared", BEST_EFFORT)
    before = scene.settle()
    assert kernel.effective(shared) == Effective(cpus="1-23", mems="0")
    scene.daemon.kill()
    scene.daemon.start()
    assert scene.settle() == before


def test_who_is_larger_than_a_socket_has_the_memory_of_the_sockets_of_its_cpus(
    scene: Scene,
) -> None:
    here = kernel.effective(scene.run("wide", guaranteed(40_000)))
    scene.settle()
    cpus, mems = CPUSet.parse(here.cpus), CPUSet.parse(here.mems)
    assert len(cpus) == 40
    assert set(mems) == {cpu // 24 for cpu in cpus}
    assert len(mems) == 2
