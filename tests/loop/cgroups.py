"""The cgroups of a node in a loop: they can fail, and stay for a while when a container has ended.

| runtime, driver | the cgroup of a container that has ended is removed |
|---|---|
| containerd | by runc, soon after the end was reported to plugins |
| CRI-O, systemd | by systemd, soon after the last process |
| CRI-O, cgroupfs | by runc, soon after the container was removed |

While no daemon runs, the partition ends with its container: an owner that ends while a sibling
overlaps its CPUs would lose them.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Iterable, Mapping
from random import Random

from nri_policy.delivery.cpuset_files import Change, Confined
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.simulation.cgroups import SimulatedCgroups
from nri_policy.simulation.containers import SimulatedContainer
from nri_policy.simulation.cpusets import CPUS, EFFECTIVE, PARTITION
from nri_policy.simulation.embedded import EmbeddedRuntime
from nri_policy.systemd.scopes import scope_of
from tests.loop.deterministic import DeterministicLoop

PARTY = "the kernel"
SOON, LATE = 0.05, 2.0  # seconds until a cgroup is removed, at most; LATE for one in ten


class LoopRuntime(EmbeddedRuntime):
    """A runtime whose containers leave their cgroups behind when they end."""

    ended: Callable[[SimulatedContainer], None]
    removed: Callable[[SimulatedContainer], None]

    def vanish(self, container: SimulatedContainer) -> None:
        """Let a container exit."""
        super().vanish(container)
        self.ended(container)

    def _forget(self, container: SimulatedContainer) -> None:
        super()._forget(container)
        self.removed(container)


class LoopCgroups(SimulatedCgroups):
    """Cgroups of containers that can be read, and written unless they are `read_only`."""

    read_only = False
    has_daemon: Callable[[], bool]  # whether one runs that knows the containers

    def __init__(self, runtime: LoopRuntime, loop: DeterministicLoop, random: Random) -> None:
        """*random* chooses how long cgroups stay."""
        super().__init__(runtime)
        self._loop = loop
        self._random = random
        self._left_behind: set[str] = set()  # ids of containers that have ended
        # paths of cgroups above containers to which another program has written CPUs
        self.narrowed: dict[str, CPUSet] = {}
        runtime.ended, runtime.removed = self._ended, self._removed

    def effective(self, paths: Iterable[str]) -> dict[str, CPUSet]:
        """Return the CPUs that cgroups may use, by path; of those that are there."""
        cpusets = self._follow()  # once for all: it looks at each container
        there = filter(cpusets.has, paths)
        return {each: CPUSet.parse(cpusets.read(each, EFFECTIVE)) for each in there}

    def narrow(self, path: str, cpus: CPUSet) -> None:
        """Let another program write the CPUs of a cgroup above containers."""
        super().write(path, CPUS, str(cpus))
        self.narrowed[path] = cpus

    def widen(self, every: CPUSet) -> None:
        """Give all of them all CPUs back."""
        for path in [*self.narrowed]:
            if super().read(path, CPUS) is not None:
                super().write(path, CPUS, str(every))
        self.narrowed.clear()

    def cpus_above(self, cgroups: Iterable[str]) -> Mapping[str, CPUSet]:  # noqa: ARG002
        """Return the CPUs that cgroups above containers were given, by path."""
        read = super().read
        return {path: cpus for path, cpus in self.narrowed.items() if read(path, CPUS) is not None}

    def _ended(self, container: SimulatedContainer) -> None:
        self._end_alone(container.id)
        self._left_behind.add(container.id)
        by_systemd = self.kept_by_systemd(container.message.linux.cgroups_path)
        if by_systemd or self._runtime.release.name != "cri-o":
            self._removed(container)

    def _removed(self, container: SimulatedContainer) -> None:
        stays = self._random.uniform(0.0, LATE if self._random.random() < 0.1 else SOON)
        self._loop.spawn(PARTY, self._remove(container.id, stays))

    async def _remove(self, container_id: str, stays: float) -> None:
        if self._cpusets is not None:
            self._follow()  # its processes have ended
        await asyncio.sleep(stays)
        self._end_alone(container_id)
        self._left_behind.discard(container_id)
        if self._cpusets is not None:
            self._follow()

    def _end_alone(self, container_id: str) -> None:
        path, _ = self._known.get(container_id, ("", ""))
        if path and self._cpusets is not None and not self.has_daemon():
            self._cpusets.write(path, PARTITION, "member")

    def is_removed(self, container_id: str) -> bool:
        """Return whether the cgroup of a container that has ended is removed."""
        return container_id not in self._left_behind

    def are_usable(self) -> bool:
        """Return whether they can be written, as the flags of a mount say."""
        return not self.read_only

    def _confine(self, cgroup: str, wanted: CPUSet, change: Change) -> Confined:
        container = self._of(cgroup)
        if self.read_only and container is not None and container.in_force is not None:
            return Confined(cpus=container.cpus, error="[Errno 30] Read-only file system")
        return super()._confine(cgroup, wanted, change)

    def kept_by_systemd(self, cgroup: str) -> bool:
        """Return whether it is a scope's: then systemd writes it again."""
        return scope_of(cgroup) is not None

    def write(self, path: str, name: str, text: str) -> None:
        """Write a file of a cgroup."""
        if self.read_only:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        super().write(path, name, text)
