"""What the kernel says of a container: its cgroup, its process, where its pages are."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.manifests.resources import ResourceRequirements
from tests.e2e import cgroup
from tests.e2e.kubelet import Container, Kubelet, Pod
from tests.e2e.waiting import eventually

CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True, kw_only=True)
class Effective:
    """CPUs and memory nodes that a container may really use, as kernel lists."""

    cpus: str
    mems: str


def effective(container: Container) -> Effective:
    """Return what the container's cgroup gives it; its processes have to agree."""
    folder = CGROUPS / container.cgroup.strip("/")

    def read() -> set[tuple[CPUSet, CPUSet]]:
        cpus, mems = (
            CPUSet.parse(cgroup.text_of(folder / f"cpuset.{name}.effective"))
            for name in ("cpus", "mems")
        )
        processes = map(cgroup.allowed, cgroup.processes(container.cgroup))
        return {(cpus, mems), *((each.cpus, each.mems) for each in processes)}

    # the kernel changes the cgroup first, then each process
    ((cpus, mems),) = eventually(read, lambda found: len(found) == 1)
    return Effective(cpus=str(cpus), mems=str(mems))


def weight(container: Container) -> int:
    """Return the container's cpu.weight."""
    return int(cgroup.text_of(CGROUPS / container.cgroup.strip("/") / "cpu.weight"))


def weight_of(shares: int) -> int:
    """Return the weight that runc, from 1.3.2 on, makes of cgroup v1's shares.

    A parabola of logarithms, through 1 for 2 shares, 100 for 1024 and 10,000 for 262,144.
    """
    bits = math.log2(shares)
    return math.ceil(10 ** ((bits * bits + 125 * bits) / 612 - 7 / 34))


def memory_limit(container: Container) -> int:
    """Return the container's memory.max, in bytes."""
    return int(cgroup.text_of(CGROUPS / container.cgroup.strip("/") / "memory.max"))


def touching(megabytes: int) -> Sequence[str]:
    """Return a command that touches so much memory of its own, and stays."""
    # dd reads one block of that size into its memory, and sleep never reads it from the pipe
    fill = f"/bin/busybox dd if=/dev/zero bs={megabytes}M"
    return ("/bin/busybox", "sh", "-c", f"{fill} | /bin/busybox sleep 1000000000")


@contextmanager
def touching_more(container: Container, megabytes: int) -> Iterator[None]:
    """Have one more process in the container, which touches so much memory."""
    command = ["busybox", "dd", "if=/dev/zero", f"bs={megabytes}M"]
    with subprocess.Popen(
        ["busybox", "sh", "-c", f"read; exec {' '.join(command)}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdin is not None
        try:
            cgroup.enter(container.cgroup, process.pid)
            process.stdin.write(b"\n")
            process.stdin.flush()
            yield
        finally:
            process.kill()


TOUCH_HUGE_PAGES = """
import mmap, sys
size = int(sys.argv[1])
sys.stdin.readline()
hugetlb, noreserve = 0x40000, 0x4000
memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | hugetlb | noreserve)
for page in range(0, size, 2 << 20):
    memory[page] = 1
print("touched", flush=True)
sys.stdin.readline()
"""


@contextmanager
def touching_huge_pages(container: Container, count: int) -> Iterator[subprocess.Popen[str]]:
    """Start a process in the container that touches *count* pages of 2 MiB, one by one.

    If the container's memory nodes have no page left, the kernel ends the process by SIGBUS.
    """
    with subprocess.Popen(
        [sys.executable, "-c", TOUCH_HUGE_PAGES, str(count << 21)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        try:
            cgroup.enter(container.cgroup, process.pid)
            process.stdin.write("\n")
            process.stdin.flush()
            yield process
        finally:
            process.kill()


def free_huge_pages(node: int) -> int:
    """Return how many pages of 2 MiB of a NUMA node nobody has."""
    folder = Path(f"/sys/devices/system/node/node{node}/hugepages/hugepages-2048kB")
    return int((folder / "free_hugepages").read_text())


def pages(container: Container, *, at_least: int) -> dict[int, int]:
    """Return the bytes of anonymous memory by node, once the container has so many in all."""
    return eventually(lambda: anonymous(container), lambda found: sum(found.values()) >= at_least)


def anonymous(container: Container) -> dict[int, int]:
    """Return the bytes of anonymous memory by node, where there are any."""
    stat = cgroup.text_of(CGROUPS / container.cgroup.strip("/") / "memory.numa_stat")
    (line,) = (line for line in stat.splitlines() if line.startswith("anon "))
    found = {}
    for field in line.split()[1:]:
        node, _, count = field.partition("=")
        found[int(node.removeprefix("N"))] = int(count)
    return {node: count for node, count in found.items() if count}


def pages_moved(container: Container, nodes: set[int]) -> set[int]:
    """Return the nodes that the container's memory is on, once it is on *nodes* or long after.

    The kernel moves and counts pages beside the write of the cpuset.
    """
    return eventually(lambda: set(anonymous(container)), lambda found: found == nodes)


def log() -> str:
    """Return the kernel's log."""
    done = subprocess.run(["busybox", "dmesg"], capture_output=True, text=True, check=True)
    return done.stdout


def online(cpu: int, *, on: bool) -> None:
    """Switch a CPU on or off."""
    Path(f"/sys/devices/system/cpu/cpu{cpu}/online").write_text(str(int(on)))


def online_cpus() -> CPUSet:
    """Return the CPUs that are on."""
    return CPUSet.parse(cgroup.text_of(Path("/sys/devices/system/cpu/online")))


def node_of(cpus: CPUSet) -> int:
    """Return the NUMA node that all the *cpus* are on; LookupError if there is none."""
    for folder in Path("/sys/devices/system/node").glob("node[0-9]*"):
        if cpus <= CPUSet.parse((folder / "cpulist").read_text()):
            return int(folder.name.removeprefix("node"))
    raise LookupError(f"no node has all of {cpus}")


def start(pod: Pod, name: str = "main", **config: Any) -> Container:
    """Create and start a container of the pod."""
    container = pod.create(name, **config)
    container.start()
    return container


def run(kubelet: Kubelet, name: str, resources: ResourceRequirements, **pod: Any) -> Container:
    """Run a pod whose container `main` asks for *resources*."""
    return start(kubelet.run_pod(name, {"main": resources}, **pod))


def comes_to(container: Container, cpus: str) -> None:
    """Wait until the container has those CPUs: changes of others follow the answer."""
    found = eventually(lambda: effective(container).cpus, lambda now: now == cpus)
    assert found == cpus
