"""Whether the kubelet, and with it the scheduler, keeps as much for the system as we do."""

from __future__ import annotations

from collections.abc import Iterator

from nri_policy.doctor.facts import Facts
from nri_policy.doctor.finding import Finding, Verdict
from nri_policy.engine.state.layout import Layout, layout_of
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.foundation.units import format_bytes, format_cpu
from nri_policy.foundation.wording import counted
from nri_policy.hardware.machine import Machine
from nri_policy.pools.capacity import CapacityError
from nri_policy.settings import Settings

_CONSEQUENCE = "a scheduler may send a pod that is refused here"


def check(facts: Facts) -> Iterator[Finding]:
    """Compare CPUs and memory reserved by the kubelet and by the settings."""
    layout = _layout(facts)
    yield from _check_reserved(facts, layout)
    if layout is not None and facts.cluster is not None:
        yield from _check_cpu(facts.cluster.allocatable_milli, layout)
        yield from _check_memory(facts.cluster.allocatable_memory, layout)


def _layout(facts: Facts) -> Layout | None:
    settings, machine = facts.settings, facts.machine
    if not isinstance(settings, Settings) or not isinstance(machine, Machine):
        return None
    try:
        return layout_of(machine, settings)
    except CapacityError:
        return None  # the settings' own finding


def _check_cpu(promised: int | None, layout: Layout) -> Iterator[Finding]:
    """Yield whether the Node promises more CPU to pods than we can give them."""
    if promised is None:
        return
    capacity = layout.capacity
    ours = 1000 * len(capacity.sharable | capacity.isolated)
    shown = f"the Node promises {format_cpu(promised)} CPU to pods, and we give {format_cpu(ours)}"
    if promised <= ours:
        yield Finding("reserved", Verdict.OK, shown)
        return
    reserved = counted(len(capacity.reserved), "CPU")
    yield Finding(
        "reserved",
        Verdict.WARNING,
        f"{shown}: {_CONSEQUENCE}",
        f"have the kubelet reserve {reserved} (systemReserved and kubeReserved in all)",
    )


def _check_memory(promised: int | None, layout: Layout) -> Iterator[Finding]:
    """Yield whether the Node promises more memory to pods than we can give them."""
    if promised is None:
        return
    ours = layout.memory.capacity_of(layout.memory.nodes)
    shown = (
        f"the Node promises {format_bytes(promised)} of memory to pods, and we give"
        f" {format_bytes(ours)}"
    )
    if promised <= ours:
        yield Finding("reserved", Verdict.OK, shown)
        return
    more = format_bytes(promised - ours)
    remedy = f"have the kubelet reserve {more} more (systemReserved, kubeReserved, evictionHard)"
    if layout.settings.reserved.memory >= promised - ours:
        remedy += ", or reservedResources.memory that much less"
    yield Finding(
        "reserved",
        Verdict.WARNING,
        f"{shown}, {more} less: {_CONSEQUENCE}",
        remedy,
    )


def _check_reserved(facts: Facts, layout: Layout | None) -> Iterator[Finding]:
    """Yield what of the kubelet's reserved CPUs would be given to pods."""
    kubelet = facts.kubelet
    if kubelet is None or not kubelet.reserved_cpus:
        return
    try:
        kept = CPUSet.parse(kubelet.reserved_cpus)
    except ValueError as error:
        found = f"the kubelet's reserved CPUs: {error}"
        yield Finding("reserved", Verdict.WARNING, found, f"put {kubelet.origin} right")
        return
    if layout is None:
        return
    ours = layout.capacity.reserved
    if kept == ours:
        yield Finding("reserved", Verdict.OK, f"the kubelet and the settings reserve CPUs {kept}")
        return
    yield Finding(
        "reserved",
        Verdict.WARNING,
        f"the kubelet reserves CPUs {kept}, we {ours}: "
        + (
            f"pods may get {kept - ours}"
            if kept - ours
            else f"the kubelet promises {ours - kept} to pods"
        ),
        f'reservedResources: {{cpu: "cpuset:{kept}"}}',
    )
