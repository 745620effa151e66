"""Scheduling classes, from the settings to the kernel, with real-time policies.

No containerd of Debian has them yet. Here the embedded runtime speaks to the daemon in its place,
as a newer one would, and runc runs each container with what the daemon asks for.
"""

from __future__ import annotations

import asyncio
import json
import operator
import os
import shutil
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.kubelet.runtime_requests import Kubelet
from nri_policy.proto import nri_pb2 as nri
from nri_policy.report import ExplanationReport
from nri_policy.simulation.adaptation import Timeouts
from nri_policy.simulation.containers import SimulatedContainer
from nri_policy.simulation.embedded import EmbeddedRuntime
from tests.e2e import cgroup, image
from tests.e2e.daemon import Daemon
from tests.e2e.waiting import eventually
from tests.guest.inside.scene import SETTINGS, ask

KEY = "scheduling-class.resource-policy.nri.io/pod"
CLASSES: list[dict[str, Any]] = [
    {"name": "alarm", "policy": "fifo", "priority": 10, "ioClass": "rt", "ioPriority": 2},
    {"name": "turns", "policy": "rr", "priority": 20},
    {"name": "background", "policy": "batch", "nice": 10, "ioClass": "be", "ioPriority": 7},
    {"name": "leftover", "policy": "idle", "ioClass": "idle"},
]
# policy, real-time priority and nice value of a first process
IN_KERNEL = {
    "alarm": (os.SCHED_FIFO, 10, 0),
    "turns": (os.SCHED_RR, 20, 0),
    "background": (os.SCHED_BATCH, 0, 10),
    "leftover": (os.SCHED_IDLE, 0, 0),
}
READ_BACK = {
    "alarm": {"scheduler": "fifo, priority 10", "io_priority": "rt 2"},
    "turns": {"scheduler": "rr, priority 20"},
    "background": {"scheduler": "batch, nice 10", "io_priority": "be 7"},
    "leftover": {"scheduler": "idle", "io_priority": "idle"},
}
PATIENCE = Timeouts(registration=120, request=120)


class Bundles:
    """Containers of the embedded runtime that runc runs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "rootfs/bin").mkdir(parents=True)
        shutil.copy("/usr/bin/busybox", folder / "rootfs/bin")

    async def run(self, where: str, container: SimulatedContainer) -> None:
        """Run a container when its cgroup would be made."""
        if where == "starting":
            bundle = self._folder / container.id
            bundle.mkdir()
            config = self._config(container.message.linux)
            (bundle / "config.json").write_text(json.dumps(config))
            options = ["--detach", "--bundle", str(bundle), container.id]
            await asyncio.to_thread(self._runc, "run", *options)

    def delete(self, container: SimulatedContainer) -> None:
        """End a container."""
        self._runc("delete", "--force", container.id)

    def _runc(self, *arguments: str) -> None:
        command: list[str | Path] = ["runc", "--root", self._folder / "state", *arguments]
        with (self._folder / "log").open("w+") as log:
            done = subprocess.run(
                command, check=False, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
            log.seek(0)
            assert done.returncode == 0, log.read()

    def _config(self, linux: nri.LinuxContainer) -> dict[str, Any]:
        """Return what a runtime gives runc of a container."""
        process: dict[str, Any] = {"args": list(image.FOREVER), "cwd": "/"}
        if linux.HasField("scheduler"):
            attributes = linux.scheduler
            process["scheduler"] = {
                "policy": nri.LinuxSchedulerPolicy.Name(attributes.policy),
                "priority": attributes.priority,
                "nice": attributes.nice,
            }
        if linux.HasField("io_priority"):
            io = linux.io_priority
            name = nri.IOPrioClass.Name(getattr(io, "class"))
            process["ioPriority"] = {"class": name, "priority": io.priority}
        cpu = linux.resources.cpu
        return {
            "ociVersion": "1.2.0",
            "process": process,
            "root": {"path": str(self._folder / "rootfs")},
            "mounts": [
                {"destination": "/proc", "type": "proc", "source": "proc"},
                {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
            ],
            "linux": {
                "cgroupsPath": linux.cgroups_path,
                "namespaces": [{"type": "pid"}, {"type": "mount"}],
                "resources": {"cpu": {"cpus": cpu.cpus, "mems": cpu.mems}},
            },
        }


def manifest(name: str) -> dict[str, Any]:
    """Return a pod of one container, which is in the class of that name."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": {KEY: name}},
        "spec": {"containers": [{"name": "main"}]},
    }


def attributes(container: SimulatedContainer) -> tuple[int, int, int]:
    """Return what the kernel has of a container's first process."""
    (pid,) = cgroup.processes(container.message.linux.cgroups_path)
    return (
        os.sched_getscheduler(pid),
        os.sched_getparam(pid).sched_priority,
        os.getpriority(os.PRIO_PROCESS, pid),
    )


def read_back(daemon: Daemon, name: str) -> dict[str, tuple[str | None, str]]:
    """Return what the daemon found of a container's classes, and whether it is as it should be."""
    found = ask(daemon, lambda client: client.explain(f"{name}/main"))
    assert isinstance(found, ExplanationReport)
    return {
        each.item: (each.found, each.state) for each in found.classes or () if each.state != "note"
    }


async def check_all(daemon: Daemon, socket: Path, bundles: Bundles) -> None:
    """Run a container of each class."""
    runtime = EmbeddedRuntime(
        socket,
        online_cpus=CPUSet(range(8)),
        memory_nodes=CPUSet(range(2)),
        version="2.2.1",
        kubelet=Kubelet(cgroup_driver="cgroupfs"),
        timeouts=PATIENCE,
    )
    runtime.between = bundles.run
    async with runtime:
        await asyncio.to_thread(daemon.start)
        for name, expected in IN_KERNEL.items():
            pod = await runtime.start_pod(manifest(name))
            assert attributes(pod.container("main")) == expected
        for name, items in READ_BACK.items():
            wanted = {item: (found, "ok") for item, found in items.items()}
            shown = await asyncio.to_thread(
                eventually,
                partial(read_back, daemon, name),
                partial(operator.eq, wanted),
                every=0.5,
            )
            assert shown == wanted
        for container in runtime.containers:
            bundles.delete(container)


def test_a_first_process_has_what_its_class_says(tmp_path: Path) -> None:
    socket = tmp_path / "nri.sock"
    spec = SETTINGS | {"schedulingClasses": CLASSES}
    daemon = Daemon(tmp_path, settings=spec, host_root=Path("/"), nri_socket=socket)
    try:
        asyncio.run(check_all(daemon, socket, Bundles(tmp_path / "bundles")))
        daemon.stop()
    finally:
        daemon.close()
