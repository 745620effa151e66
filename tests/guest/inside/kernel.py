"""What the kernel says of a container: its cgroup, its process, where its pages are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nri_policy.cpuset import CPUSet
from tests.e2e import cgroup
from tests.e2e.kubelet import Container, Kubelet, Pod, Resources
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

    def read() -> cgroup.Cpuset:
        cpus, mems = (
            CPUSet.parse((folder / f"cpuset.{name}.effective").read_text())
            for name in ("cpus", "mems")
        )
        return cgroup.Cpuset(cpus=cpus, mems=mems)

    def agreed(given: cgroup.Cpuset) -> bool:
        return all(cgroup.allowed(pid) == given for pid in cgroup.processes(container.cgroup))

    given = eventually(read, agreed)  # the kernel changes the cgroup first, then each process
    assert agreed(given)
    return Effective(cpus=str(given.cpus), mems=str(given.mems))


def weight(container: Container) -> int:
    """Return the container's cpu.weight."""
    return int((CGROUPS / container.cgroup.strip("/") / "cpu.weight").read_text())


def touching(megabytes: int) -> Sequence[str]:
    """Return a command that touches so much memory of its own, and stays."""
    fill = f"x=$(/bin/busybox head -c {megabytes << 20} /dev/zero | /bin/busybox tr '\\0' x)"
    return ("/bin/busybox", "sh", "-c", f"{fill}; /bin/busybox sleep 1000000; : $x")


def pages(container: Container, *, at_least: int) -> dict[int, int]:
    """Return the bytes of anonymous memory by node, once the container has so many in all."""

    def read() -> dict[int, int]:
        stat = (CGROUPS / container.cgroup.strip("/") / "memory.numa_stat").read_text()
        (line,) = (line for line in stat.splitlines() if line.startswith("anon "))
        found = {}
        for field in line.split()[1:]:
            node, _, count = field.partition("=")
            found[int(node.removeprefix("N"))] = int(count)
        return {node: count for node, count in found.items() if count}

    return eventually(read, lambda found: sum(found.values()) >= at_least, seconds=60)


def start(pod: Pod, **config: Any) -> Container:
    """Create and start the pod's container `main`."""
    container = pod.create("main", **config)
    container.start()
    return container


def run(kubelet: Kubelet, name: str, resources: Resources, **pod: Any) -> Container:
    """Run a pod whose container `main` asks for *resources*."""
    return start(kubelet.run_pod(name, {"main": resources}, **pod))


def comes_to(container: Container, cpus: str) -> None:
    """Wait until the container has those CPUs: changes of others follow the answer."""
    found = eventually(lambda: effective(container).cpus, lambda now: now == cpus, seconds=60)
    assert found == cpus
