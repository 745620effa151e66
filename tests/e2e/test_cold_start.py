"""A cold start on a played machine: dram is added to a running container through its runtime.

The machine has two packages of four CPUs, dram nodes 0 and 1, and pmem nodes 2 and 3 that are
normal memory; 750m reserve CPU 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.hardware.capture import open_capture
from tests.e2e.cgroup import CpusetFiles
from tests.e2e.daemon import Daemon
from tests.e2e.kubelet import Kubelet, guaranteed
from tests.e2e.runtime import Runtime
from tests.e2e.waiting import eventually

CAPTURE = Path(__file__).parents[1] / "scenarios/pmem/c-pmem.tar.xz"
COLD = {"cold-start.resource-policy.nri.io/pod": "duration: 2s"}


@pytest.fixture(scope="module")
def host_root() -> Iterator[Path]:
    with open_capture(CAPTURE) as root:
        yield root


def cpuset(cpus: str, mems: str) -> CpusetFiles:
    return CpusetFiles(cpus=CPUSet.parse(cpus), mems=CPUSet.parse(mems))


def test_dram_is_added_when_the_cold_start_is_over(
    stage: Kubelet, runtime: Runtime, daemon: Daemon
) -> None:
    # socket 1 has four CPUs to give, socket 0 three
    cold = stage.run("cold", guaranteed(1000), annotations=COLD)
    created = next(call for call in runtime.recorded() if call.container == cold.id)
    assert (created.command, created.cpus, created.mems) == ("create", "4", "3")
    daemon.await_line("event=sending")  # by a call, or by registering again
    warm = cpuset("4", "1,3")
    assert eventually(lambda: runtime.played(cold.id), lambda now: now == warm) == warm
    # the runtime goes on to answer, and both sockets have three CPUs: id
    assert runtime.played(stage.run("next", guaranteed(1000)).id) == cpuset("1", "0,2")
    assert runtime.played(cold.id) == warm
    cold.pod.delete()
    assert stage.version()
