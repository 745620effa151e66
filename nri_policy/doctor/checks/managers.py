"""Whether the kubelet sets cpusets too: two masters contradict each other."""

from __future__ import annotations

from collections.abc import Iterator

from nri_policy.doctor.facts import Facts
from nri_policy.doctor.finding import Finding, Verdict

_STATE = "/var/lib/kubelet/cpu_manager_state"
_REFUSING = {"restricted", "single-numa-node"}


def check(facts: Facts) -> Iterator[Finding]:
    """Yield which of the kubelet's managers are in the way."""
    kubelet, good = facts.kubelet, True
    policy = "static" if facts.cpu_manager else "none" if kubelet is None else kubelet.cpu_manager
    if policy != "none":
        good = False
        yield Finding(
            "kubelet",
            Verdict.ERROR,
            f"its CPU manager is {policy}: it sets the CPUs of containers too",
            f"drain the node, set cpuManagerPolicy: none, remove {_STATE}, restart the kubelet",
        )
    if kubelet is None:
        root = facts.where.host_root
        yield Finding("kubelet", Verdict.NOTE, f"no kubelet found below {root}: not checked")
        return
    if kubelet.broken:
        yield Finding("kubelet", Verdict.WARNING, kubelet.broken, "put it right")
    if policy == "none" and kubelet.state not in {"", "none"}:
        good = False
        yield Finding(
            "kubelet",
            Verdict.WARNING,
            f"{_STATE} is of the CPU manager {kubelet.state}, the configuration says none: "
            "the kubelet was not restarted since, or will not start",
            f"drain the node, remove {_STATE}, restart the kubelet",
        )
    if kubelet.memory_manager != "None":
        good = False
        yield Finding(
            "kubelet",
            Verdict.ERROR,
            f"its memory manager is {kubelet.memory_manager}: it sets memory nodes too",
            "drain the node, set memoryManagerPolicy: None, remove "
            "/var/lib/kubelet/memory_manager_state, restart the kubelet",
        )
    if kubelet.topology_manager in _REFUSING:
        good = False
        yield Finding(
            "kubelet",
            Verdict.WARNING,
            f"its topology manager is {kubelet.topology_manager}: it can refuse pods because of"
            " their devices, even if there is room",
            "set topologyManagerPolicy: none or best-effort",
        )
    if good and not kubelet.whole:
        found = f"{kubelet.origin} are good; its configuration file was not found below"
        yield Finding("kubelet", Verdict.NOTE, f"{found} {facts.where.host_root}")
    elif good:
        found = f"{kubelet.origin}: it leaves CPUs and memory to nri-policy"
        yield Finding("kubelet", Verdict.OK, found)
