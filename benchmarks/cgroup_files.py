"""The cgroups of an embedded runtime's containers, as files of a synthetic host.

The runtime makes and sets them as runc does on version 2, and the daemon beside it can read and
write them: so both do as on a real node. They limit nothing.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from nri_policy.audit.cgroup_paths import folder_of, folder_of_pod
from nri_policy.simulation.containers import SimulatedContainer, SimulatedPod
from nri_policy.simulation.embedded import EmbeddedRuntime


class CgroupFiles:
    """The files below *root*, from now on kept up to date for the containers of *runtime*."""

    def __init__(self, root: Path, runtime: EmbeddedRuntime) -> None:
        machine, self._mount = runtime.machine, root / "sys/fs/cgroup"
        self._cpus, self._mems = str(machine.online_cpus), str(machine.memory_nodes)
        self._make(self._mount, {"cgroup.controllers": "cpuset cpu memory"})
        runtime.cgroup_set = self._set

    def remove(self, pod: SimulatedPod) -> None:
        """Remove those of a pod that has ended."""
        path = folder_of_pod(pod.message.linux.cgroup_parent)
        assert path, "the kubelet names its folder"
        shutil.rmtree(self._mount / path)

    def _set(self, container: SimulatedContainer) -> None:
        path = folder_of(container.message.linux.cgroups_path)
        assert path, "the runtime names its folder"
        folder, set_to = self._mount / path, container.effective
        if not folder.parent.exists():
            self._make(folder.parent, {})
        quota, period = set_to.cpu.quota.value, set_to.cpu.period.value or 100_000
        limit = set_to.memory.limit.value
        own = {
            "cpuset.cpus": set_to.cpu.cpus,
            "cpuset.mems": set_to.cpu.mems,
            "cpu.max": f"{quota if quota > 0 else 'max'} {period}",
            "memory.max": str(limit or "max"),
        }
        if folder.exists():
            self._write(folder, own)
        else:
            self._make(folder, {**own, "cgroup.threads": str(container.message.pid)})

    def _make(self, folder: Path, own: Mapping[str, str]) -> None:
        folder.mkdir(parents=True)
        names = {
            "cpuset.cpus": "",
            "cpuset.cpus.effective": self._cpus,
            "cpuset.mems": "",
            "cpuset.mems.effective": self._mems,
            "cpu.max": "max 100000",
            "memory.max": "max",
            "cgroup.threads": "",
        }
        self._write(folder, {**names, **own})

    def _write(self, folder: Path, texts: Mapping[str, str]) -> None:
        """Write each file in one call: as of a kernel's, nobody reads a part of it."""
        for name, text in texts.items():
            file = os.open(folder / name, os.O_WRONLY | os.O_CREAT)
            try:
                before = os.fstat(file).st_size
                os.pwrite(file, f"{text}\n".ljust(before).encode(), 0)
            finally:
                os.close(file)
