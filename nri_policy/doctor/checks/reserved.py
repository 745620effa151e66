"""Whether the kubelet and we keep the same CPUs for the system."""

from __future__ import annotations

from collections.abc import Iterator

from nri_policy.cpuset import CPUSet
from nri_policy.doctor.facts import Facts
from nri_policy.doctor.finding import Finding, Verdict
from nri_policy.hardware.machine import Machine
from nri_policy.pools.capacity import CapacityError, capacity_of
from nri_policy.pools.picker import picker_of
from nri_policy.settings import Settings


def check(facts: Facts) -> Iterator[Finding]:
    """Yield what of the kubelet's reserved CPUs would be given to pods."""
    kubelet, settings, machine = facts.kubelet, facts.settings, facts.machine
    if kubelet is None or not kubelet.reserved_cpus:
        return
    try:
        kept = CPUSet.parse(kubelet.reserved_cpus)
    except ValueError as error:
        found = f"the kubelet's reserved CPUs: {error}"
        yield Finding("reserved", Verdict.WARNING, found, f"put {kubelet.origin} right")
        return
    if not isinstance(settings, Settings) or not isinstance(machine, Machine):
        return
    try:
        ours = capacity_of(machine, settings, picker_of(machine)).reserved
    except CapacityError:
        return  # the settings' own finding
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
