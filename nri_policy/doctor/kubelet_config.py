"""How the kubelet manages CPUs and memory: its file, its drop-ins, and its flags, which win."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from nri_policy.doctor.host import Host
from nri_policy.doctor.processes import Process, find_named
from nri_policy.foundation.yamltext import YAMLTextError, read

FILE = "/var/lib/kubelet/config.yaml"
_STATE = "/var/lib/kubelet/cpu_manager_state"


class KubeletConfig(Struct, frozen=True, kw_only=True):
    """What matters to us of a kubelet's configuration; the defaults are the kubelet's own."""

    origin: str  # where it was read
    whole: bool = True  # whether all of it was: a pod sees the kubelet's flags, but not its files
    broken: str = ""  # what is wrong with that
    cpu_manager: str = "none"
    memory_manager: str = "None"
    topology_manager: str = "none"
    reserved_cpus: str = ""  # a kernel list
    cgroup_driver: str | None = None  # None: not said; newer kubelets ask the runtime
    fail_swap_on: bool = True
    state: str = ""  # the policy that its last checkpoint is of


def kubelet_config(host: Host, processes: Sequence[Process]) -> KubeletConfig | None:
    """Return a host's kubelet's configuration, None where there is no trace of one."""
    process = next(iter(find_named(processes, "kubelet", "hyperkube")), None)
    file = (process and process.option("--config")) or FILE
    text = host.read(file)
    if text is None and process is None:
        return None
    broken, given = "", {}
    if text is not None:
        try:
            given = read(text)
        except YAMLTextError as error:
            broken = f"{file}: {error}"
    config = given if isinstance(given, dict) else {}
    for drop_in in _drop_ins(host, process):
        config = {**config, **drop_in}

    def value(key: str, flag: str, default: str) -> str:
        of_flag = process.option(f"--{flag}") if process else None
        of_file = config.get(key)
        return of_flag or (of_file if isinstance(of_file, str) and of_file else default)

    return KubeletConfig(
        origin=file
        if process is None or text is not None
        else f"the flags of process {process.id}",
        whole=text is not None or not (process and process.option("--config")),
        broken=broken,
        cpu_manager=value("cpuManagerPolicy", "cpu-manager-policy", "none"),
        memory_manager=value("memoryManagerPolicy", "memory-manager-policy", "None"),
        topology_manager=value("topologyManagerPolicy", "topology-manager-policy", "none"),
        reserved_cpus=value("reservedSystemCPUs", "reserved-cpus", ""),
        cgroup_driver=value("cgroupDriver", "cgroup-driver", "") or None,
        fail_swap_on=config.get("failSwapOn") is not False,
        state=_state(host),
    )


def _drop_ins(host: Host, process: Process | None) -> Iterator[dict[str, Any]]:
    """Yield the drop-ins of a kubelet that was given a folder of them, in their order."""
    folder = process.option("--config-dir") if process else None
    for file in host.matching(f"{folder}/*.conf") if folder else ():
        try:
            drop_in = read(host.read(file) or "")
        except YAMLTextError:
            continue  # the kubelet does not start with it
        if isinstance(drop_in, dict):
            yield drop_in


def _state(host: Host) -> str:
    """Return the policy that the CPU manager's checkpoint is of, empty where there is none."""
    try:
        state: Any = json.loads(host.read(_STATE) or "")
    except ValueError:
        return ""
    policy = state.get("policyName") if isinstance(state, Mapping) else None
    return policy if isinstance(policy, str) else ""
