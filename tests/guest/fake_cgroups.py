"""The fake cpusets as scenes are played on them."""

from __future__ import annotations

from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.simulation.cpusets import CpusetTree
from tests.guest import partitions


class FakeCgroups:
    """Cgroups of a simulated kernel, with the CPUs of the machine of the recording."""

    def __init__(self, isolated: CPUSet = EMPTY) -> None:
        """Take the CPUs that were isolated at boot."""
        self._cpusets = CpusetTree(partitions.CPUS, isolated=isolated)
        self._processes: dict[str, int] = {}

    def make(self, path: str) -> None:
        """Make a cgroup."""
        self._cpusets.make(path)

    def remove(self, path: str) -> None:
        """End the processes of a cgroup and remove it."""
        self._cpusets.leave(path)
        self._processes.pop(path, None)
        self._cpusets.remove(path)

    def start(self, path: str) -> None:
        """Start a process in a cgroup."""
        self._processes[path] = len(self._processes) + 1
        self._cpusets.enter(path, self._processes[path])

    def read(self, path: str, name: str) -> str:
        """Return the content of a file."""
        return self._cpusets.read(path, name)

    def write(self, path: str, name: str, text: str) -> None:
        """Write a file."""
        self._cpusets.write(path, name, text)

    def pin(self, path: str, cpus: CPUSet) -> None:
        """Set the affinity of the process of a cgroup."""
        self._cpusets.pin(path, cpus)

    def allowed(self, path: str) -> CPUSet | None:
        """Return the CPUs that the process of a cgroup may run on."""
        return self._cpusets.allowed(path) if path in self._processes else None

    def plug(self, cpu: int, *, on: bool) -> None:
        """Switch a CPU on or off."""
        self._cpusets.plug(cpu, on=on)
