"""How the kubelet manages CPUs and memory: its flags, which win, its drop-ins, and its file.

The kubelet may run inside another program: k3s has its flags in files of its own, and microk8s in
one that it names. Where the configuration cannot be read whole, the kubelet's checkpoints count.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from nri_policy.doctor.host import Host
from nri_policy.doctor.processes import Process, find_named
from nri_policy.doctor.sockets import socket_path
from nri_policy.foundation.yamltext import YAMLTextError, read

_K3S_CONFIG = "/etc/rancher/k3s/config.yaml"
_K3S_DATA = "/var/lib/rancher/k3s"
_K3S_ENDPOINT = "/run/k3s/containerd/containerd.sock"


class KubeletConfig(Struct, frozen=True, kw_only=True):
    """What matters to us of a kubelet's configuration; the defaults are the kubelet's own."""

    origin: str  # where it was read
    whole: bool = True  # whether all of it was: a pod sees the kubelet's flags, but not its files
    broken: tuple[str, ...] = ()  # what is wrong with files
    folder: str
    elsewhere: bool = False  # whether that is not the folder of --kubelet-dir
    endpoint: str = ""  # its runtime's CRI socket; empty: not said
    cpu_manager: str = "none"
    memory_manager: str = "None"
    topology_manager: str = "none"
    reserved_cpus: str = ""  # a kernel list
    cgroup_driver: str | None = None  # None: not said; newer kubelets ask the runtime
    state: str = ""  # the policy of the CPU manager's last checkpoint


def kubelet_config(
    host: Host, processes: Sequence[Process], kubelet_dir: str
) -> KubeletConfig | None:
    """Return the configuration of a host's kubelet, None if there is no trace of one.

    *kubelet_dir* is its folder, unless its flags name another.
    """
    files = _Files(host)
    process = _find_kubelet(files, processes)
    named = process.option("--config") if process else None
    folder = (process and process.option("--root-dir")) or kubelet_dir
    config = files.read(named or f"{folder}/config.yaml")
    known = config is not None
    config = config or {}
    drop_ins = process.option("--config-dir") if process else None
    for file in host.matching(f"{drop_ins}/*.conf") if drop_ins else ():
        config = {**config, **(files.read(file) or {})}
    cpu_state = _checkpoint(host, f"{folder}/cpu_manager_state")
    memory_state = _checkpoint(host, f"{folder}/memory_manager_state")
    # a kubelet without --config has its flags and drop-ins alone
    whole = known or (process is not None and named is None)
    whole = whole and (drop_ins is None or host.has(drop_ins))
    if process is None and not known and not {cpu_state, memory_state} - {"", "none", "None"}:
        return None

    def value(key: str, flag: str) -> str:
        of_flag = process.option(f"--{flag}") if process else None
        of_file = config.get(key)
        return of_flag or (of_file if isinstance(of_file, str) else "")

    def policy(key: str, flag: str, checkpoint: str) -> str:
        return value(key, flag) or ("" if whole else checkpoint)

    flags = f"the flags of process {process.id}" if process else f"the checkpoints in {folder}"
    return KubeletConfig(
        origin=", ".join(files.names) if whole and files.names else flags,
        whole=whole,
        broken=tuple(files.broken),
        folder=folder,
        elsewhere=host.path(folder) != host.path(kubelet_dir),
        endpoint=socket_path(value("containerRuntimeEndpoint", "container-runtime-endpoint")),
        cpu_manager=policy("cpuManagerPolicy", "cpu-manager-policy", cpu_state) or "none",
        memory_manager=policy("memoryManagerPolicy", "memory-manager-policy", memory_state)
        or "None",
        topology_manager=value("topologyManagerPolicy", "topology-manager-policy") or "none",
        reserved_cpus=value("reservedSystemCPUs", "reserved-cpus"),
        cgroup_driver=value("cgroupDriver", "cgroup-driver") or None,
        state=cpu_state,
    )


class _Files:
    """The YAML files that were read, and what is wrong with those that are there but unusable."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.names: list[str] = []
        self.broken: list[str] = []

    def read(self, file: str) -> dict[str, Any] | None:
        """Return the mapping in a file; empty if it has none, None if there is no such file."""
        text = self.host.read(file)
        if text is None:
            return None
        self.names.append(file)
        try:
            content = read(text)
        except YAMLTextError as error:
            self.broken.append(f"{file}: {error}")
            return {}
        return content if isinstance(content, dict) else {}


def _find_kubelet(files: _Files, processes: Sequence[Process]) -> Process | None:
    """Return the kubelet with its flags as arguments, also if it runs inside another program."""
    for process in find_named(processes, "kubelet", "hyperkube"):
        return process
    for process in find_named(processes, "k3s"):
        if process.arguments[1:2] in {("server",), ("agent",)}:
            return _inside_k3s(files, process)
    for process in find_named(processes, "kubelite"):
        return _inside_microk8s(files, process)
    return None


def _inside_k3s(files: _Files, process: Process) -> Process:
    """Return the kubelet of k3s: arguments come after those in its files, so they win."""
    start = process.option("--config", "-c") or _K3S_CONFIG
    found: dict[str, list[str]] = {}
    folder = f"{start}.d"
    drop_ins = [f"{folder}/{name}" for name in files.host.names(folder)]
    for file in (start, *(name for name in drop_ins if name.endswith((".yaml", ".yml")))):
        for key, value in (files.read(file) or {}).items():
            texts = [str(each) for each in (value if isinstance(value, list) else [value])]
            option = str(key).removesuffix("+")  # `kubelet-arg+` adds to files before
            found[option] = [*found[option], *texts] if key != option and option in found else texts

    def last(option: str, *short: str) -> str | None:
        return process.option(f"--{option}", *short) or next(reversed(found.get(option, [])), None)

    data = last("data-dir", "-d") or _K3S_DATA
    flags = [*found.get("kubelet-arg", ()), *process.options("--kubelet-arg")]
    return Process(
        process.id,
        (
            process.arguments[0],
            f"--config-dir={data}/agent/etc/kubelet.conf.d",
            f"--container-runtime-endpoint={last('container-runtime-endpoint') or _K3S_ENDPOINT}",
            *(f"--{flag.removeprefix('--')}" for flag in flags),
        ),
    )


def _inside_microk8s(files: _Files, process: Process) -> Process:
    """Return the kubelet of microk8s: its flags are the lines of a file."""
    file = process.option("--kubelet-args-file") or "/var/snap/microk8s/current/args/kubelet"
    data = posixpath.dirname(posixpath.dirname(file))
    common = posixpath.join(posixpath.dirname(data), "common")
    text = files.host.read(file)
    if text is None:
        return Process(process.id, (process.arguments[0], f"--config={file}"))  # not read either
    for name, path in (("SNAP_DATA", data), ("SNAP_COMMON", common)):
        text = text.replace(f"${{{name}}}", path).replace(f"${name}", path)
    lines = (line.strip() for line in text.splitlines())
    flags = (line.replace('"', "") for line in lines if line.startswith("--"))
    return Process(process.id, (process.arguments[0], *flags))


def _checkpoint(host: Host, file: str) -> str:
    """Return the policy that a manager's checkpoint names, empty if there is none."""
    try:
        state: Any = json.loads(host.read(file) or "")
    except ValueError:
        return ""
    policy = state.get("policyName") if isinstance(state, Mapping) else None
    return policy if isinstance(policy, str) else ""
