"""Measure owners beside sharers and busy processes of the host: `benchmarks.partitions_guest`.

    python3 -m tests.guest.inside.measure_partitions ROUNDS STARTS STARTS_WITHOUT

Prints the figures as JSON. The kernel, its cgroups, the processes and the daemon are real. So that
a thousand starts take minutes on an emulated machine, the runtime is the embedded one, which makes
cgroups as runc does. What a real containerd takes for a creation and a start is timed beside it.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from nri_policy.audit.cgroup_paths import folder_of
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.kubelet.runtime_requests import Kubelet
from nri_policy.proto import nri_pb2 as nri
from nri_policy.simulation.adaptation import Timeouts
from nri_policy.simulation.containers import SimulatedContainer, SimulatedPod
from nri_policy.simulation.embedded import EmbeddedRuntime
from tests.e2e import cgroup, image, packages
from tests.e2e.containerd import Containerd
from tests.e2e.daemon import Daemon
from tests.e2e.kubelet import BEST_EFFORT
from tests.guest.inside.kernel import CGROUPS
from tests.guest.inside.partition_tree import PARTITION, above, read

SIZES = (0, 300)
IN_A_POD = 30
KINDS = ("off", "root")
SETTINGS = {"reservedResources": {"cpu": "cpuset:0"}}
PATIENT = Timeouts(registration=600.0, request=600.0)
LOOKS = 2  # at all processes, after each start
STILL = 0.5  # seconds without a change of any cpuset until all is written
FLAGS, LAST_CPU, STATE = 8, 38, 2  # fields of /proc/PID/stat, from 0
KERNEL_THREAD = 0x00200000
SUITE = "forky"


@dataclass(slots=True, kw_only=True)
class Samples:
    """Looks at all processes of the host once the start of an owner was answered."""

    starts: int = 0
    looks: int = 0
    running: int = 0  # processes of others seen running on an owner's CPUs
    allowed: int = 0  # processes of others whose affinity allowed these CPUs


@dataclass(slots=True, kw_only=True)
class Figures:
    """What was measured."""

    took: dict[str, list[float]] = field(default_factory=dict)  # seconds, by KIND/SHARERS
    runtime: list[float] = field(default_factory=list)  # seconds of a real containerd, alone
    missing: int = 0  # owners that were no partition when their start was answered
    samples: dict[str, Samples] = field(default_factory=dict)  # by kind


class Runtime(EmbeddedRuntime):
    """A runtime whose containers have cgroups and a process each."""

    def __init__(self, socket: Path) -> None:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        super().__init__(
            socket,
            online_cpus=CPUSet(range(os.cpu_count() or 1)),
            memory_nodes=CPUSet([0]),
            kubelet=Kubelet(memory_capacity=memory, cgroup_driver="cgroupfs"),
            timeouts=PATIENT,
        )
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def make(self, container: SimulatedContainer) -> None:
        """Make a container's cgroup and its process."""
        path = path_of(container)
        folder = CGROUPS / path
        folder.mkdir(parents=True)
        for each in (".", *above(path)):
            (CGROUPS / each / "cgroup.subtree_control").write_text("+cpuset")
        cgroup.write(path, "cpuset.cpus", str(container.cpus))
        self._processes[container.id] = started = subprocess.Popen(["busybox", "sleep", "1000000"])
        cgroup.write(path, "cgroup.procs", str(started.pid))

    def end(self, container: SimulatedContainer) -> None:
        """End its process, and remove its cgroup."""
        process = self._processes.pop(container.id)
        process.kill()
        process.wait()
        (CGROUPS / path_of(container)).rmdir()

    def apply_updates(
        self, updates: Iterable[nri.ContainerUpdate], *, cause: str
    ) -> list[nri.ContainerUpdate]:
        """Change containers, and the cgroups of those that run."""
        all_of_them = [*updates]
        failed = super().apply_updates(all_of_them, cause=cause)
        here = {each.id: each for each in self.containers if each.id in self._processes}
        for each in all_of_them:
            cpus = each.linux.resources.cpu.cpus
            if cpus and each.container_id in here:
                cgroup.write(path_of(here[each.container_id]), "cpuset.cpus", cpus)
        return failed


class Measurement:
    """One node: a runtime, a daemon and the pods on it."""

    def __init__(self, runtime: Runtime, daemon: Daemon) -> None:
        self._runtime = runtime
        self._daemon = daemon
        self._sampled: Samples | None = None  # what looks are counted in, if there are any
        self._busy: list[subprocess.Popen[bytes]] = []  # they compute while an owner starts
        self._began = self._answered = 0.0  # when the latest START was asked and answered
        self._owner: SimulatedPod | None = None
        self.figures = Figures()
        runtime.between = self._between

    async def _between(self, place: str, container: SimulatedContainer) -> None:
        if place == "starting":
            self._runtime.make(container)
            self._signal(signal.SIGCONT)
            self._began = time.monotonic()
        elif place == "started":
            self._answered = time.monotonic()
            if self._sampled is not None:
                for _ in range(LOOKS):
                    _look(self._sampled, container)
            self._signal(signal.SIGSTOP)

    def _signal(self, number: signal.Signals) -> None:
        for each in self._busy:
            each.send_signal(number)

    async def fill(self, count: int) -> None:
        """Start so many sharers."""
        for number in range(0, count, IN_A_POD):
            await self._runtime.start_pod(_manifest(f"sharers{number}", ["0"] * IN_A_POD))
        await self._still()

    async def set_kind(self, kind: str) -> None:
        """Set the kind of the partitions."""
        settings = SETTINGS | {"exclusivePartitions": kind}
        await asyncio.to_thread(self._daemon.reload, settings)
        await self._still()

    async def owner(self, kind: str) -> float:
        """Start an owner and end it; return the seconds that its creation and start took."""
        if self._owner is None:
            self._owner = await self._runtime.run_pod(_manifest("owner", ["1"]))
        began = time.monotonic()
        container = await self._runtime.create_container(self._owner, "c0")
        created = time.monotonic()
        await self._runtime.start_container(container)
        self.figures.missing += kind != "off" and read(path_of(container), PARTITION) != kind
        await self._runtime.stop_container(container)
        self._runtime.end(container)
        await self._runtime.remove_container(container)
        return created - began + self._answered - self._began

    async def time_owner(self, kind: str, size: int) -> None:
        """Time an owner once all are where they were before the latest."""
        await self._still()
        took = await self.owner(kind)
        self.figures.took.setdefault(f"{kind}/{size}", []).append(took)
        _say(f"{kind} beside {size}: {1e3 * took:.1f} ms")

    async def _still(self) -> None:
        """Wait until no cpuset changes any more."""
        before: object = None
        while (now := self._cpusets()) != before:
            before = now
            await asyncio.sleep(STILL)

    def _cpusets(self) -> list[str]:
        paths = map(path_of, self._runtime.containers)
        return [read(each, "cpuset.cpus") for each in paths if (CGROUPS / each).exists()]

    async def sample(self, kind: str, starts: int) -> None:
        """Start owners while two processes of the host compute, one of them pinned to their CPU."""
        own = await self._only_cpus()
        self._sampled = self.figures.samples[kind] = Samples()
        with _busy(own) as pinned, _busy(CPUSet(range(1, 8))) as free:
            self._busy = [pinned, free]
            for _ in range(starts):
                await self.owner(kind)
                self._sampled.starts += 1
                if self._sampled.starts % 20 == 0:
                    _say(f"{kind}: {self._sampled}")
        self._busy = []
        self._sampled = None

    async def _only_cpus(self) -> CPUSet:
        """Return the CPUs that the owner gets, whenever it comes."""
        found = CPUSet()
        before = self._runtime.between

        async def note(place: str, container: SimulatedContainer) -> None:
            nonlocal found
            found = container.cpus
            await before(place, container)

        self._runtime.between = note
        await self.owner("off")
        self._runtime.between = before
        return found


def _look(samples: Samples, owner: SimulatedContainer) -> None:
    """Count which processes of others run on an owner's CPUs, and which may."""
    samples.looks += 1
    own = set(cgroup.processes(path_of(owner)))
    for pid in {int(each.name) for each in Path("/proc").glob("[0-9]*")} - own:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            may = not cgroup.allowed(pid).cpus.isdisjoint(owner.cpus)
        except OSError:  # it has ended
            continue
        if not int(fields[FLAGS - 2]) & KERNEL_THREAD:
            runs = fields[STATE - 2] == "R" and int(fields[LAST_CPU - 2]) in owner.cpus
            samples.running += runs
            samples.allowed += may


def path_of(container: SimulatedContainer) -> str:
    """Return the path of a container's cgroup."""
    path = folder_of(container.message.linux.cgroups_path)
    assert path is not None
    return path


def _manifest(name: str, cpus: Iterable[str]) -> dict[str, Any]:
    """Return a pod of containers with so many CPUs each; 0 asks for nothing."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "containers": [
                {
                    "name": f"c{number}",
                    "image": "i",
                    "resources": {"limits": {"cpu": each, "memory": "1Mi"}},
                }
                if each != "0"
                else {"name": f"c{number}", "image": "i"}
                for number, each in enumerate(cpus)
            ]
        },
    }


@contextmanager
def _busy(cpus: CPUSet) -> Iterator[subprocess.Popen[bytes]]:
    """Have a process of the host compute all the time, pinned to these CPUs."""
    command = ["busybox", "taskset", "-c", str(cpus), "busybox", "sh", "-c", "while :; do :; done"]
    with subprocess.Popen(command) as started:
        started.send_signal(signal.SIGSTOP)
        try:
            yield started
        finally:
            started.kill()


def real(rounds: int) -> list[float]:
    """Return the seconds that a real containerd takes for creations and starts without a daemon."""
    with ExitStack() as stack:
        archive = Path(mkdtemp()) / "image.tar"
        image.write(Path("/usr/bin/busybox"), archive)
        runc = Path(__file__).with_name("runc.sh")
        runtime = Containerd(packages.programs_in(Path("/opt", SUITE), runc), emulated=True)
        stack.enter_context(closing(runtime))
        runtime.start()
        runtime.load(archive)
        pod = runtime.kubelet("runc", seconds=600).run_pod("alone", {"main": BEST_EFFORT})
        took = []
        for _ in range(rounds):
            began = time.monotonic()
            container = pod.create("main")
            container.start()
            took.append(time.monotonic() - began)
            container.remove()
        pod.delete()
        return took


async def main(rounds: int, starts: int, without: int) -> None:
    """Measure, and print the figures."""
    folder = Path(mkdtemp())
    (CGROUPS / "kubepods").mkdir()  # as a kubelet does before any daemon starts
    async with Runtime(folder / "nri.sock") as runtime:
        daemon = Daemon(
            folder, settings=SETTINGS, host_root=Path("/"), nri_socket=runtime.socket_path
        )
        with closing(daemon):
            await asyncio.to_thread(daemon.start)
            node = Measurement(runtime, daemon)
            await node.sample("off", without)
            await node.set_kind("root")
            await node.sample("root", starts)
            for size in SIZES:
                await node.fill(size)
                for _ in range(rounds):
                    for kind in KINDS:
                        await node.set_kind(kind)
                        await node.time_owner(kind, size)
    _say(f"{node.figures}")
    node.figures.runtime = real(rounds)
    sys.stdout.write(json.dumps(asdict(node.figures)))


def _say(text: str) -> None:
    sys.stderr.write(f"{time.monotonic():.1f} s: {text}\n")


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:])))
