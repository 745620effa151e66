"""Two sockets of four CPUs: dram on nodes 0 and 1, slower memory on 2 and 3, faster on 4 and 5."""

from __future__ import annotations

from typing import Any

import pytest

from nri_policy.foundation.cpuset import CPUSet
from tests.e2e.kubelet import guaranteed
from tests.e2e.waiting import eventually
from tests.guest.inside import kernel
from tests.guest.inside.scene import SETTINGS, Scene

MEMORY_TYPE = "memory-type.resource-policy.nri.io"
FIRST = {"dram": 0, "pmem": 2, "hbm": 4}  # node of the first socket
SMALL = guaranteed(1000, 64 << 20)
TOUCHED = 16 << 20


@pytest.fixture(scope="module")
def settings() -> dict[str, Any]:
    return {**SETTINGS, "shrinkMemory": True}


def socket(container: kernel.Effective) -> int:
    """Return the socket of a container's one CPU."""
    return int(int(container.cpus) >= 4)


def test_pages_are_on_the_near_node_of_the_kind_asked_for(scene: Scene) -> None:
    annotations = {f"{MEMORY_TYPE}/container.{kind}": kind for kind in FIRST}
    asked = dict.fromkeys([*FIRST, "any"], SMALL)
    containers = scene.run_all("kinds", asked, annotations, touching=16)
    scene.settle()
    for container in containers[:3]:
        here = kernel.effective(container)
        node = FIRST[container.name] + socket(here)
        assert here.mems == str(node)
        assert set(kernel.pages(container, at_least=TOUCHED)) == {node}
    here = kernel.effective(containers[3])
    dram, pmem = socket(here), 2 + socket(here)
    assert here.mems == f"{dram},{pmem}"
    assert set(kernel.pages(containers[3], at_least=TOUCHED)) == {dram}, "not on the faster one"


def test_a_container_that_is_given_more_memory_than_its_node_has_can_use_others(
    scene: Scene,
) -> None:
    (container,) = scene.run_all("growing", {"main": SMALL}, {MEMORY_TYPE: "hbm"}, touching=16)
    before = kernel.effective(container)
    kernel.pages(container, at_least=TOUCHED)
    container.update(guaranteed(1000, 500 << 20))
    scene.settle()
    after = kernel.effective(container)
    assert after.cpus == before.cpus
    assert after.mems == "4-5"
    # the kernel moves no page out of a zone that grows
    assert set(kernel.pages(container, at_least=TOUCHED)) == {int(before.mems)}


def test_a_cold_start_has_its_pages_on_pmem_until_dram_is_added_also_by_the_next_daemon(
    scene: Scene,
) -> None:
    annotations = {"cold-start.resource-policy.nri.io/pod": "duration: 10s"}
    (container,) = scene.run_all("cold", {"main": SMALL}, annotations, touching=16)
    cold = kernel.effective(container)
    dram, pmem = socket(cold), 2 + socket(cold)
    assert cold.mems == str(pmem)
    assert set(kernel.pages(container, at_least=TOUCHED)) == {pmem}
    scene.daemon.kill()
    scene.daemon.start()
    warm = f"{dram},{pmem}"
    assert eventually(lambda: kernel.effective(container).mems, lambda now: now == warm) == warm
    scene.settle()
    assert set(kernel.pages(container, at_least=TOUCHED)) == {pmem}, "moved"


def test_who_grows_beyond_a_full_node_has_pages_elsewhere_until_there_is_room(
    scene: Scene,
) -> None:
    # no two fit into one dram node, nor all three into both
    touched = {"first": 40, "second": 40, "third": 240}  # the system itself needs some, too
    asked = dict.fromkeys(touched, guaranteed(1000, 380 << 20))
    pod = scene.kubelet.run_pod("large", asked, annotations={MEMORY_TYPE: "dram"})
    containers = []
    for name, megabytes in touched.items():
        containers.append(kernel.start(pod, name, command=kernel.touching(megabytes)))
        kernel.pages(containers[-1], at_least=megabytes << 20)
    scene.settle()
    zones = {each.name: CPUSet.parse(kernel.effective(each).mems) for each in containers}
    crowded = set(kernel.anonymous(containers[2]))
    (widened,) = (each for each in containers[:2] if crowded & set(kernel.anonymous(each)))
    full = CPUSet(kernel.anonymous(widened))
    assert len(full) == 1, "widening moves no pages"
    assert full < zones[widened.name] <= zones["third"], (
        "who comes is laid as wide as who makes way"
    )
    with kernel.touching_more(widened, 240):
        pages = kernel.pages(widened, at_least=280 << 20)
        assert sum(pages.values()) >= 280 << 20
        assert set(full) < set(pages) <= set(zones[widened.name])
        for container in containers:
            assert sum(kernel.anonymous(container).values()) >= touched[container.name] << 20
        containers[2].remove()
        scene.settle()
        assert kernel.effective(widened).mems == str(full)
        found = kernel.pages_moved(widened, set(full))
        assert found == set(full), "a zone that shrinks takes its pages along"
