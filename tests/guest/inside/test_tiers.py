"""Two sockets of four CPUs: dram on nodes 0 and 1, slower memory on 2 and 3, faster on 4 and 5."""

from __future__ import annotations

import pytest

from tests.e2e.kubelet import Kubelet, guaranteed
from tests.e2e.waiting import eventually
from tests.guest.inside import kernel
from tests.guest.inside.kernel import run

SMALL = guaranteed(1000, 64 << 20)


@pytest.mark.parametrize(("kind", "first"), [("dram", 0), ("pmem", 2), ("hbm", 4)])
def test_pages_are_on_the_near_node_of_the_kind_asked_for(
    kubelet: Kubelet, kind: str, first: int
) -> None:
    annotations = {"memory-type.resource-policy.nri.io": kind}
    pod = kubelet.run_pod(kind, {"main": SMALL}, annotations=annotations)
    container = kernel.start(pod, command=kernel.touching(16))
    here = kernel.effective(container)
    assert here.mems == str(first + (int(here.cpus) >= 4))
    assert set(kernel.pages(container, at_least=16 << 20)) == {int(here.mems)}


def test_a_cold_start_has_its_pages_on_pmem_until_dram_is_added(kubelet: Kubelet) -> None:
    annotations = {"cold-start.resource-policy.nri.io/pod": "duration: 5s"}
    pod = kubelet.run_pod("cold", {"main": SMALL}, annotations=annotations)
    container = kernel.start(pod, command=kernel.touching(16))
    cold = kernel.effective(container)
    socket = int(int(cold.cpus) >= 4)
    pages = kernel.pages(container, at_least=16 << 20)
    assert cold.mems == str(2 + socket)
    assert set(pages) == {2 + socket}
    warm = f"{socket},{2 + socket}"
    assert eventually(lambda: kernel.effective(container).mems, lambda now: now == warm) == warm


def test_memory_beyond_a_node_widens_a_zone_and_no_page_is_refused(kubelet: Kubelet) -> None:
    dram = {"memory-type.resource-policy.nri.io": "dram"}
    large = guaranteed(1000, 300 << 20)  # each dram node holds one
    first, second, third = (run(kubelet, f"no-{n}", large, annotations=dram) for n in range(3))
    zones = [set(kernel.effective(each).mems) for each in (first, second, third)]
    # three bookings of 300 MiB: no two within one dram node, nor all three within both
    assert all(zone & {"0", "1"} for zone in zones)
    assert sorted(map(len, zones)) != [1, 1, 1]
    assert set.union(*zones) - {"0", "1", ","}
