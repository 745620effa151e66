"""Whether the kubelet sets cpusets too: two masters contradict each other."""

from __future__ import annotations

from collections.abc import Iterator

from nri_policy.doctor.facts import Facts
from nri_policy.doctor.finding import Finding, Verdict
from nri_policy.doctor.kubelet_config import KubeletConfig
from nri_policy.settings import Settings

_REFUSING = {"restricted", "single-numa-node"}


def check(facts: Facts) -> Iterator[Finding]:
    """Yield which of the kubelet's managers are in the way."""
    kubelet, good = facts.kubelet, True
    folder = facts.where.kubelet_dir if kubelet is None else kubelet.folder
    policy = "static" if facts.cpu_manager else "none" if kubelet is None else kubelet.cpu_manager
    if policy != "none":
        good = False
        yield Finding(
            "kubelet",
            Verdict.ERROR,
            f"its CPU manager is {policy}: it sets the CPUs of containers too",
            "drain the node, set cpuManagerPolicy: none, remove"
            f" {folder}/cpu_manager_state, restart the kubelet",
        )
    if kubelet is None:
        root = facts.where.host_root
        yield Finding("kubelet", Verdict.NOTE, f"no kubelet found below {root}: not checked")
        return
    for broken in kubelet.broken:
        yield Finding("kubelet", Verdict.WARNING, broken, "put it right")
    yield from _check_folder(facts, kubelet)
    if policy == "none" and kubelet.state not in {"", "none"}:
        good = False
        yield Finding(
            "kubelet",
            Verdict.WARNING,
            f"{folder}/cpu_manager_state is of the CPU manager {kubelet.state}, the configuration"
            " says none: the kubelet was not restarted since, or will not start",
            f"drain the node, remove {folder}/cpu_manager_state, restart the kubelet",
        )
    if kubelet.memory_manager != "None":
        good = False
        yield Finding(
            "kubelet",
            Verdict.ERROR,
            f"its memory manager is {kubelet.memory_manager}: it sets memory nodes too",
            "drain the node, set memoryManagerPolicy: None, remove"
            f" {folder}/memory_manager_state, restart the kubelet",
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
        found = f"{kubelet.origin} are good; its configuration file was not read below"
        yield Finding("kubelet", Verdict.NOTE, f"{found} {facts.where.host_root}")
    elif good:
        found = f"{kubelet.origin}: it leaves CPUs and memory to nri-policy"
        yield Finding("kubelet", Verdict.OK, found)


def _check_folder(facts: Facts, kubelet: KubeletConfig) -> Iterator[Finding]:
    """Yield whether the daemon looks for the kubelet's sockets in the wrong folder."""
    settings = facts.settings
    if not kubelet.elsewhere or not isinstance(settings, Settings):
        return
    if settings.agent.pod_resource_api or settings.dra.enabled:
        found = f"its folder is {kubelet.folder}, but the daemon would use"
        found += f" {facts.where.kubelet_dir}: it finds no devices and registers no DRA driver"
        remedy = f"start it with --kubelet-dir {kubelet.folder} (Helm: kubeletDir)"
        yield Finding("kubelet", Verdict.WARNING, found, remedy)
