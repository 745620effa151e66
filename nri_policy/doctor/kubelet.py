"""How the kubelet manages CPUs and memory: its configuration file, and its flags, which win."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nri_policy.doctor.host import Host
from nri_policy.doctor.processes import Process, named
from nri_policy.yamltext import YAMLTextError, read

FILE = "/var/lib/kubelet/config.yaml"
_STATE = "/var/lib/kubelet/cpu_manager_state"


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletConfig:
    """What matters to us of a kubelet's configuration; the defaults are the kubelet's own."""

    origin: str  # where it was read
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
    process = next(iter(named(processes, "kubelet", "hyperkube")), None)
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
    elif process is not None and process.option("--config"):
        broken = f"{file} cannot be read"
    config = given if isinstance(given, dict) else {}

    def value(key: str, flag: str, default: str) -> str:
        of_flag = process.option(f"--{flag}") if process else None
        of_file = config.get(key)
        return of_flag or (of_file if isinstance(of_file, str) and of_file else default)

    return KubeletConfig(
        origin=file if text is not None else f"process {process.id if process else ''}",
        broken=broken,
        cpu_manager=value("cpuManagerPolicy", "cpu-manager-policy", "none"),
        memory_manager=value("memoryManagerPolicy", "memory-manager-policy", "None"),
        topology_manager=value("topologyManagerPolicy", "topology-manager-policy", "none"),
        reserved_cpus=value("reservedSystemCPUs", "reserved-cpus", ""),
        cgroup_driver=value("cgroupDriver", "cgroup-driver", "") or None,
        fail_swap_on=config.get("failSwapOn") is not False,
        state=_state(host),
    )


def _state(host: Host) -> str:
    """Return the policy that the CPU manager's checkpoint is of, empty where there is none."""
    try:
        state: Any = json.loads(host.read(_STATE) or "")
    except ValueError:
        return ""
    policy = state.get("policyName") if isinstance(state, Mapping) else None
    return policy if isinstance(policy, str) else ""
