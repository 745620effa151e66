"""What the doctor knows about a node; its parts are read in parallel, with a deadline.

Parts that fail or miss the deadline stay unknown, and a finding says so.
"""

from __future__ import annotations

import os
import platform
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from queue import Empty, Queue
from time import monotonic
from typing import Any

from msgspec import Struct, field
from msgspec.structs import fields

from nri_policy.audit.cgroup import Cgroups
from nri_policy.classes import Equipment
from nri_policy.control.client import DeclinedError, UnreachableError, connected
from nri_policy.daemon.paths import CONFIG, CONTROL_SOCKET, KUBELET_DIR, NRI_SOCKET, STATE_DIR
from nri_policy.doctor.access import Access, access_to
from nri_policy.doctor.host import Host
from nri_policy.doctor.kubelet_config import KubeletConfig, kubelet_config
from nri_policy.doctor.pod_resources import assigned_resources, has_cpu_manager
from nri_policy.doctor.processes import (
    Process,
    find_named,
    has_own_ids,
    own_affinity,
    processes,
)
from nri_policy.doctor.runtime_config import RuntimeConfig, runtime_configs
from nri_policy.doctor.sockets import Socket, probe_socket, runtime, runtime_at, socket_path
from nri_policy.dra.cdi import FOLDER
from nri_policy.dra.registration import registration_socket
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.foundation.yamltext import MAX_SIZE
from nri_policy.hardware.discovery import discover
from nri_policy.hardware.machine import Machine
from nri_policy.hardware.power import Power, power_of
from nri_policy.hardware.resctrl import Resctrl, resctrl_of
from nri_policy.hardware.sysfs import TopologyError
from nri_policy.kubelet.pod_resources import pod_resources_socket
from nri_policy.nri.versions import Runtime
from nri_policy.plugin.host_equipment import equipment_of, oci_runtime
from nri_policy.report import StatusReport
from nri_policy.settings import Problem, Settings, SettingsError, load
from nri_policy.systemd.scopes import socket_of
from nri_policy.tuning.irqbalance import list_sockets
from nri_policy.workload.claim import DRIVER

PATIENCE = 8.0  # seconds for everything
UDEV = "/run/udev/data"  # the links to disks


class Where(Struct, frozen=True, kw_only=True):
    """Which node to look at, and where the daemon's own files are for us."""

    host_root: Path = Path("/")
    config: Path = CONFIG
    nri_socket: Path = NRI_SOCKET
    state_dir: Path = STATE_DIR
    control_socket: Path = CONTROL_SOCKET
    kubelet_dir: Path = KUBELET_DIR
    kubeconfig: Path | None = None
    node_name: str = field(default_factory=lambda: platform.node().lower())


class Kernel(Struct, frozen=True, kw_only=True):
    """What the kernel says of itself."""

    numa_balancing: bool = False
    swaps: tuple[str, ...] = ()  # devices and files
    cgroup_version: int | None = None
    cgroups_writable: bool = True  # by this process; a service may be allowed less
    scopes: bool = False  # whether systemd makes the pods' cgroups
    cpus_above: Mapping[str, CPUSet] = field(default_factory=dict)  # of cgroups above containers
    unwritable: tuple[str, ...] = ()  # those that this process may not write
    own_processes: bool = False  # whether we see other processes' ids than the host does
    udev: bool = True  # whether udev's database is there
    resctrl: bool = False  # whether it can be mounted: kernel and processor have it


class FolderFacts(Struct, frozen=True, kw_only=True):
    """Owner and permissions of a folder; the mode is None if the folder is missing."""

    path: Path
    mode: int | None
    owner: int = 0


class Runtimes(Struct, frozen=True, kw_only=True):
    """The container runtimes: as configured, and as the one that is asked calls itself."""

    configs: tuple[RuntimeConfig, ...] = ()
    answered: Runtime | None = None
    plugins: tuple[str, ...] = ()  # programs that the runtime starts
    confined: Mapping[str, CPUSet] = field(default_factory=dict)  # to those CPUs, by program

    @property
    def config(self) -> RuntimeConfig | None:
        """The configuration of the runtime that the kubelet uses."""
        return self.configs[0] if self.configs else None


class Facts(Struct, frozen=True, kw_only=True):
    """What is known of a node."""

    where: Where
    user: int
    runtimes: Runtimes = Runtimes()
    nri_socket: Socket | None = None
    pod_resources: Socket | None = None
    systemd: Socket | None = None
    devices: tuple[str, ...] = ()  # resources of device plugins that pods have
    registration: Socket | None = None  # where the kubelet finds our DRA driver
    claims: int = 0  # that are prepared, by their CDI files
    kubelet: KubeletConfig | None = None
    cpu_manager: bool = False  # whether the kubelet itself says that its CPU manager is on
    processes: tuple[Process, ...] = ()
    balancers: tuple[str, ...] = ()  # ids of processes of irqbalance that the tuner can ask
    machine: Machine | str | None = None  # a text: why there is none
    settings: Settings | SettingsError | None = None  # of the file
    settings_file: bool = True  # whether it is there
    kernel: Kernel | None = None
    equipment: Equipment | None = None  # what classes rest on
    power: Power | None = None  # what CPU classes can set
    resctrl: Resctrl | None = None  # None: it is not mounted
    state: FolderFacts | None = None
    daemon: StatusReport | str | None = None  # a text: why it does not answer
    cluster: Access | None = None
    unknown: tuple[str, ...] = ()  # what could not be read, and why

    @property
    def talker(self) -> Runtime | None:
        """Identify the runtime by its CRI service, or else by the daemon's status."""
        if self.runtimes.answered is not None:
            return self.runtimes.answered
        running = self.daemon.runtime if isinstance(self.daemon, StatusReport) else ""
        name, _, version = running.partition(" ")
        return runtime(name, version) if version else None


def gather(where: Where, *, patience: float = PATIENCE) -> Facts:
    """Return what can be known of a node within *patience* seconds."""
    host = Host(where.host_root)
    pod_resources = pod_resources_socket(where.kubelet_dir)
    kubelet_dir = str(where.kubelet_dir)
    parts: dict[str, Callable[[], Any]] = {
        "processes": lambda: processes(host),
        "balancers": lambda: tuple(list_sockets(where.host_root)),
        "runtimes": lambda: _runtimes(host, where),
        "nri_socket": lambda: probe_socket(where.nri_socket),
        "pod_resources": lambda: probe_socket(pod_resources),
        "registration": lambda: probe_socket(registration_socket(where.kubelet_dir)),
        "claims": lambda: sum(each.startswith(DRIVER) for each in host.names(str(FOLDER))),
        "systemd": lambda: probe_socket(socket_of(where.host_root)),
        "devices": lambda: assigned_resources(pod_resources),
        "cpu_manager": lambda: has_cpu_manager(pod_resources),
        "kubelet": lambda: kubelet_config(host, processes(host), kubelet_dir),
        "machine": lambda: _machine(where),
        "settings": lambda: _settings(where.config),
        "settings_file": where.config.exists,
        "kernel": lambda: _kernel(host),
        "equipment": lambda: equipment_of(where.host_root, oci_runtime(where.host_root)),
        "power": lambda: _power(where),
        "resctrl": lambda: resctrl_of(where.host_root),
        "state": lambda: _folder(where.state_dir),
        "daemon": lambda: _daemon(where.control_socket),
        "cluster": lambda: access_to(where.kubeconfig, where.node_name),
    }
    assert parts.keys() <= {each.name for each in fields(Facts)}
    known, unknown = _within(patience, parts)
    return Facts(where=where, user=os.geteuid(), unknown=tuple(unknown), **known)


def _within(
    patience: float, parts: dict[str, Callable[[], Any]]
) -> tuple[dict[str, Any], list[str]]:
    """Run *parts* in parallel; return results by name, and messages about late or failed parts.

    Late threads are abandoned: a thread blocked on a dead file system cannot be ended.
    """
    done: Queue[tuple[str, Any, str]] = Queue()

    def run(name: str, read: Callable[[], Any]) -> None:
        try:
            done.put((name, read(), ""))
        except Exception as error:  # noqa: BLE001 - whatever it is, the other parts go on
            done.put((name, None, f"{type(error).__name__}: {error}"))

    for name, read in parts.items():
        threading.Thread(target=run, args=(name, read), daemon=True).start()
    end, waiting = monotonic() + patience, set(parts)
    known, unknown = {}, []
    while waiting:
        try:
            name, value, error = done.get(timeout=max(0.0, end - monotonic()))
        except Empty:
            unknown += [f"{name}: not read within {patience:g} s" for name in sorted(waiting)]
            break
        waiting.discard(name)
        if error:
            unknown.append(f"{name}: {error}")
        else:
            known[name] = value
    return known, unknown


def _runtimes(host: Host, where: Where) -> Runtimes:
    """Return the runtimes, the kubelet's first.

    If the kubelet's endpoint is not known, the one that listens at the NRI socket comes first:
    two may be configured with the same socket.
    """
    running, asked = processes(host), host.path(str(where.nri_socket))
    kubelet = kubelet_config(host, running, str(where.kubelet_dir))
    endpoint = host.path(kubelet.endpoint) if kubelet and kubelet.endpoint else None
    listener = probe_socket(where.nri_socket).peer

    def is_other(config: RuntimeConfig) -> tuple[bool, bool, bool, bool]:
        unused = endpoint is not None and host.path(socket_path(config.cri_socket)) != endpoint
        elsewhere = host.path(config.nri_socket) != asked
        return unused, config.process != listener, elsewhere, config.nri is False

    configs = sorted(runtime_configs(host, running), key=is_other)
    if not configs:
        return Runtimes()
    config = configs[0]
    plugins = tuple(f"{config.plugin_folder}/{name}" for name in host.names(config.plugin_folder))
    answered = runtime_at(host.path(config.cri_socket))
    confined = {
        process.name: cpus
        for process in find_named(running, "containerd", "crio")
        if (cpus := own_affinity(host, process)) is not None
    }
    return Runtimes(configs=tuple(configs), answered=answered, plugins=plugins, confined=confined)


def _machine(where: Where) -> Machine | str:
    try:
        return discover(where.host_root)
    except TopologyError as error:
        return str(error)


def _settings(config: Path) -> Settings | SettingsError:
    try:
        with config.open("rb") as file:
            return load(file.read(MAX_SIZE + 1), str(config))  # which refuses longer ones
    except OSError as error:
        return SettingsError(str(config), (Problem("", f"cannot be read: {error.strerror}"),))
    except SettingsError as error:
        return error


def _kernel(host: Host) -> Kernel:
    swaps = (host.read("/proc/swaps") or "").splitlines()[1:]
    version = None
    if host.has("/sys/fs/cgroup/cgroup.controllers"):
        version = 2
    elif host.names("/sys/fs/cgroup"):
        version = 1
    above = Cgroups(host.root).cpus_above(())
    mount = cpuset_mount(version)
    return Kernel(
        numa_balancing=(host.read("/proc/sys/kernel/numa_balancing") or "0").strip() != "0",
        swaps=tuple(line.split()[0] for line in swaps if line.split()),
        cgroup_version=version,
        cgroups_writable=host.writable("/sys/fs/cgroup"),
        scopes=host.has("/sys/fs/cgroup/kubepods.slice"),
        cpus_above=above,
        unwritable=tuple(
            each for each in above if not host.allows_writing(f"{mount}/{each}/cpuset.cpus")
        ),
        own_processes=has_own_ids(host),
        udev=bool(host.names(UDEV)),
        resctrl="resctrl" in (host.read("/proc/filesystems") or "").split(),
    )


def cpuset_mount(cgroup_version: int | None) -> str:
    """Return where cpusets are."""
    return "/sys/fs/cgroup" if cgroup_version == 2 else "/sys/fs/cgroup/cpuset"


def _power(where: Where) -> Power | None:
    machine = _machine(where)
    return power_of(where.host_root, machine) if isinstance(machine, Machine) else None


def _folder(path: Path) -> FolderFacts:
    try:
        status = path.lstat()
    except FileNotFoundError:
        return FolderFacts(path=path, mode=None)
    return FolderFacts(path=path, mode=status.st_mode, owner=status.st_uid)


def _daemon(control_socket: Path) -> StatusReport | str:
    try:
        with connected(control_socket) as client:
            return client.status()
    except (UnreachableError, DeclinedError) as error:
        return str(error)
