"""The cgroups of a simulated node: the kernel's side of the embedded runtime's containers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from msgspec.structs import replace

from nri_policy.audit.cgroup_paths import folder_of, settle_partitions
from nri_policy.audit.cpu_use import CpuUse
from nri_policy.audit.deviations import CpusetState, KernelState
from nri_policy.audit.first_process import FirstProcess
from nri_policy.delivery.cpuset_files import Change, Confined
from nri_policy.delivery.host_cgroups import Limited
from nri_policy.delivery.partition_files import Settled
from nri_policy.engine.state.partition_rules import Partition
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.plugin.convert import resources_of
from nri_policy.simulation.containers import RuntimeState, SimulatedContainer
from nri_policy.simulation.cpusets import CPUS, EFFECTIVE, PARTITION, CpusetTree
from nri_policy.simulation.embedded import EmbeddedRuntime
from nri_policy.workload.pod import Resources

POSSIBLE = CPUSet(range(8192))  # CPUs that a kernel can know: any of them may come online


class SimulatedCgroups:
    """A `Reader` of containers that have no threads, and run where the runtime has set them."""

    def __init__(self, runtime: EmbeddedRuntime) -> None:
        self._runtime = runtime
        self._cpusets: CpusetTree | None = None  # from the first use of a file on
        self._online = CPUSet()  # what they know of the machine
        self._pod_paths: set[str] = set()
        self._known: dict[str, tuple[str, str]] = {}  # path and text of CPUs by ids of containers

    # ---- files of cgroup v2, by paths below the mount point

    def read(self, path: str, name: str) -> str | None:
        """Return the content of a file of a cgroup; None if it is not there."""
        try:
            return self._follow().read(path, name)
        except OSError:
            return None

    def write(self, path: str, name: str, text: str) -> None:
        """Write a file of a cgroup, other than its CPUs; raises OSError."""
        self._follow().write(path, name, text)

    def children(self, path: str) -> Collection[str]:
        """Return the names of the cgroups right below one."""
        return self._follow().children(path)

    def is_removed(self, container_id: str) -> bool:  # noqa: ARG002 - others linger
        """Return whether the runtime has removed the cgroup of a container that has ended."""
        return True

    def _follow(self) -> CpusetTree:
        """Return the cpusets, with the pods and containers that there are now."""
        machine = self._runtime.machine
        if self._cpusets is None:
            self._cpusets, self._online = CpusetTree(POSSIBLE), POSSIBLE
        cpusets = self._cpusets
        there = {each.id: each for each in self._runtime.containers if each.in_force is not None}
        for container_id in [*(self._known.keys() - there)]:
            path, _ = self._known[container_id]
            cpusets.leave(path)
            if self.is_removed(container_id):
                del self._known[container_id]
                cpusets.remove(path)
        pods = {folder_of(each.message.linux.cgroup_parent) or "" for each in self._runtime.pods}
        empty = {each for each in self._pod_paths - pods if not cpusets.children(each)}
        for path in empty:
            cpusets.remove(path)
        for path in pods - self._pod_paths:
            _make(cpusets, path)
        self._pod_paths = (self._pod_paths - empty) | pods
        if self._online != machine.online_cpus:
            cpusets.set_online(machine.online_cpus)
            self._online = machine.online_cpus
        for container_id, each in there.items():
            text = each.effective.cpu.cpus
            path, before = self._known.get(container_id, ("", ""))
            if not path:
                path = folder_of(each.message.linux.cgroups_path) or container_id
                _make(cpusets, path)
                cpusets.enter(path, each.message.pid)
            elif text == before:
                continue
            cpusets.write(path, CPUS, str(each.cpus))
            self._known[container_id] = path, text
        return cpusets

    def observe(
        self,
        container_id: str,
        cgroup: str,  # noqa: ARG002 - the signature of a Reader
        *,
        turn: int,  # noqa: ARG002 - the same
        watched: Iterable[int] = (),  # noqa: ARG002 - the same
    ) -> KernelState | None:
        """Return where a container may run, None if it does not."""
        for each in self._runtime.containers:
            if each.id == container_id and each.state is RuntimeState.RUNNING:
                machine = self._runtime.machine
                cpus, partition = _cpuset(each.cpus, machine.online_cpus), ""
                if self._cpusets is not None:
                    cpusets = self._follow()
                    path, _ = self._known[each.id]
                    effective = cpusets.read(path, EFFECTIVE)
                    partition = cpusets.read(path, PARTITION)
                    cpus = CpusetState(written=each.cpus, effective=CPUSet.parse(effective))
                mems = _cpuset(each.mems, machine.memory_nodes)
                return KernelState(cpus=cpus, mems=mems, partition=partition, threads={})
        return None

    def limits(self, cgroup: str, names: Iterable[str]) -> Mapping[str, str]:
        """Return what was set of a container's limits of I/O."""
        container = self._of(cgroup)
        unified = {} if container is None else container.effective.unified
        return {name: unified[name] for name in names if name in unified}

    def first_process(self, cgroup: str) -> FirstProcess | None:
        """Return what a container's process runs with, None if it does not run."""
        container = self._of(cgroup)
        return container.process if container and container.state is RuntimeState.RUNNING else None

    def resources(self, cgroup: str) -> Resources | None:
        """Return what a container's cgroup is set to."""
        container = self._of(cgroup)
        if container is None or container.in_force is None:
            return None
        machine, found = self._runtime.machine, resources_of(container.in_force)
        return replace(
            found,
            cpus=found.cpus or str(machine.online_cpus),
            mems=found.mems or str(machine.memory_nodes),
        )

    def cpu_seconds(self, cgroups: Iterable[str]) -> Mapping[str, float]:  # noqa: ARG002 - the other's
        """Return nothing: no process runs."""
        return {}

    def cpu_use(self, cgroups: Iterable[str]) -> Mapping[str, CpuUse]:  # noqa: ARG002 - the other's
        """Return nothing: no process runs."""
        return {}

    def are_usable(self) -> bool:
        """Return True: they are the runtime's own."""
        return True

    def cpusets(self, cgroups: Iterable[str]) -> Mapping[str, CPUSet]:
        """Return the CPUs of those of *cgroups* that exist."""
        there = {each.message.linux.cgroups_path: each for each in self._runtime.containers}
        return {
            each: there[each].cpus for each in cgroups if each in there and there[each].in_force
        }

    def cpuset_files(self, cgroups: Iterable[str], partitions: Iterable[str]) -> None:
        """Return nothing: they are no files."""

    def confine(self, wanted: Mapping[str, CPUSet], change: Change) -> Mapping[str, Confined]:
        """Change the CPUs of containers' cgroups; return what became of each."""
        return {cgroup: self._confine(cgroup, cpus, change) for cgroup, cpus in wanted.items()}

    def _confine(self, cgroup: str, wanted: CPUSet, change: Change) -> Confined:
        container = self._of(cgroup)
        if container is None or container.in_force is None:
            return Confined(cpus=None)
        now = container.cpus
        target = change.target(now, wanted)
        if target == now:
            return Confined(cpus=now)
        container.write_cpus(target, cause=self._runtime.cause)
        if self._cpusets is not None:
            self._follow()
        return Confined(cpus=target, written=True)

    def limit(self, wanted: Mapping[str, int]) -> Mapping[str, Limited]:  # noqa: ARG002 - the other's
        """Return nothing: the cgroups of pods are not simulated."""
        return {}

    def partition(
        self,
        wanted: Mapping[str, Partition | None],
        above: Collection[str] | None,
        kept: Mapping[str, CPUSet],
    ) -> Settled:
        """Make cgroups the partitions wanted, or none."""
        return settle_partitions(self, wanted, above, kept)

    def kept_by_systemd(self, cgroup: str) -> bool:  # noqa: ARG002 - the other's
        """Return that no systemd is simulated."""
        return False

    def processes(self, cgroup: str) -> Collection[int]:
        """Return the process of the pod or container with a cgroup; 0 if it has no number."""
        for pod in self._runtime.pods:
            if pod.message.linux.cgroups_path == cgroup and pod.ready:
                return [pod.message.pid]
        container = self._of(cgroup)
        return [container.message.pid] if container and container.in_force is not None else []

    def has_process(self, pid: int) -> bool:
        """Return whether a container that runs has it."""
        running = (each for each in self._runtime.containers if each.state is RuntimeState.RUNNING)
        return any(each.message.pid == pid for each in running)

    def find_populated(self, folder: str) -> Mapping[str, Collection[int]]:
        """Return the containers of a pod that run, and its pause container."""
        found: dict[str, Collection[int]] = {}
        for pod in self._runtime.pods:
            if pod.message.linux.cgroup_parent == folder and pod.ready:
                found[pod.id] = [pod.message.pid]
                for each in pod.containers:
                    if each.state is RuntimeState.RUNNING:
                        found[each.id] = [each.message.pid]
        return found

    def _of(self, cgroup: str) -> SimulatedContainer | None:
        for each in self._runtime.containers:
            if each.message.linux.cgroups_path == cgroup:
                return each
        return None

    def outside(self, folders: Iterable[str]) -> Mapping[str, CPUSet]:  # noqa: ARG002
        """Return nothing: only pods are simulated."""
        return {}

    def cpus_above(self, cgroups: Iterable[str]) -> Mapping[str, CPUSet]:  # noqa: ARG002
        """Return nothing: nobody narrows what is above containers."""
        return {}

    def keep_only(self, container_ids: Iterable[str]) -> None:
        """Forget nothing: nothing is kept."""


def _make(cpusets: CpusetTree, path: str) -> None:
    """Make a cgroup and those above it."""
    names = path.split("/")
    for number in range(1, len(names) + 1):
        if not cpusets.has("/".join(names[:number])):
            cpusets.make("/".join(names[:number]))


def _cpuset(written: CPUSet, there: CPUSet) -> CpusetState:
    return CpusetState(written=written, effective=written & there or there)
