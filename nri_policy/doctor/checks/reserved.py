"""Whether the kubelet, and with it the scheduler, keeps as much for the system as we do."""

from __future__ import annotations

from collections.abc import Iterator

from nri_policy.cpuset import CPUSet
from nri_policy.doctor.facts import Facts
from nri_policy.doctor.finding import Finding, Verdict
from nri_policy.hardware.machine import Machine
from nri_policy.pools.capacity import Capacity, CapacityError, capacity_of
from nri_policy.pools.picker import picker_of
from nri_policy.settings import Settings
from nri_policy.units import format_cpu


def check(facts: Facts) -> Iterator[Finding]:
    """Yield what is reserved by one of us and promised to pods by the other."""
    capacity = _capacity(facts)
    yield from _reserved(facts, capacity)
    if capacity is not None and facts.cluster is not None:
        yield from _promised(facts.cluster.allocatable, capacity)


def _capacity(facts: Facts) -> Capacity | None:
    settings, machine = facts.settings, facts.machine
    if not isinstance(settings, Settings) or not isinstance(machine, Machine):
        return None
    try:
        return capacity_of(machine, settings, picker_of(machine))
    except CapacityError:
        return None  # the settings' own finding


def _promised(allocatable: int | None, capacity: Capacity) -> Iterator[Finding]:
    """Yield whether the Node promises more to pods than we can give them."""
    if allocatable is None:
        return
    ours = 1000 * len(capacity.sharable | capacity.isolated)
    shown = (
        f"the Node promises {format_cpu(allocatable)} CPU to pods, and we give {format_cpu(ours)}"
    )
    if allocatable <= ours:
        yield Finding("reserved", Verdict.OK, shown)
        return
    reserved = f"{len(capacity.reserved)} CPU{'s' * (len(capacity.reserved) != 1)}"
    yield Finding(
        "reserved",
        Verdict.WARNING,
        f"{shown}: a scheduler may send a pod that is refused here",
        f"have the kubelet reserve {reserved} (systemReserved and kubeReserved in all)",
    )


def _reserved(facts: Facts, capacity: Capacity | None) -> Iterator[Finding]:
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
    if capacity is None:
        return
    ours = capacity.reserved
    if kept == ours:
        yield Finding("reserved", Verdict.OK, f"the kubelet and we reserve CPUs {kept}")
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
