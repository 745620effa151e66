"""What the kernel was told that works with, or against, the placement of containers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from nri_policy.doctor.facts import Facts, Kernel
from nri_policy.doctor.finding import Finding, Verdict
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.hardware.machine import Machine
from nri_policy.pools.tree import describe_small
from nri_policy.settings import ListedCPUs, Settings


def check(facts: Facts) -> Iterator[Finding]:
    """Yield what is to be known of CPUs, affinities, memory balancing and swap."""
    settings = facts.settings if isinstance(facts.settings, Settings) else None
    yield from _check_inherited(facts.runtimes.confined)
    if isinstance(facts.machine, Machine):
        yield from _cpus(facts.machine, settings)
        if facts.kernel is not None:
            yield from _memory(facts.machine, facts.kernel, settings)


def _cpus(machine: Machine, settings: Settings | None) -> Iterator[Finding]:
    if machine.offline:
        found = f"CPUs {machine.offline} are offline: nothing is placed there"
        yield Finding("kernel", Verdict.NOTE, found)
    for found in describe_small(machine, machine.online):
        yield Finding("kernel", Verdict.NOTE, found)
    isolated = machine.isolated & machine.online
    if settings is not None and isolated:
        reserved = settings.reserved.cpu
        if isinstance(reserved, ListedCPUs) and not reserved.excluded and reserved.cpus & isolated:
            yield Finding(
                "kernel",
                Verdict.WARNING,
                f"reservedResources.cpu has isolated CPUs, {reserved.cpus & isolated}: the kernel"
                " does not balance load between those",
                "reserve others, or leave them out of isolcpus=",
            )
        if not settings.prefer_isolated_cpus:
            found = f"CPUs {isolated} are isolated, and used only by pods that ask for them"
            remedy = "preferIsolatedCPUs: true gives them to containers that need one exclusive CPU"
            yield Finding("kernel", Verdict.NOTE, found, remedy)
    if ticking := (machine.nohz_full & machine.online) - isolated:
        found = f"CPUs {ticking} are nohz_full but not isolated: they are shared like any other"
        yield Finding("kernel", Verdict.NOTE, found, "boot with the same list in isolcpus=")


def _check_inherited(confined: Mapping[str, CPUSet]) -> Iterator[Finding]:
    """Yield what containers inherit: since Linux 6.2 a cpuset narrows an affinity, and keeps it."""
    for name, cpus in confined.items():
        yield Finding(
            "kernel",
            Verdict.WARNING,
            f"{name} runs with an affinity to CPUs {cpus}, which its containers inherit: a"
            " container whose CPUs overlap with these uses only the overlap, whatever its cgroup"
            " says",
            "remove CPUAffinity= from its unit and from systemd's system.conf, or use a runc from "
            "1.2.7 or 1.3.1 on, or a crun from 1.9.2 on; then restart it, and the pods",
        )


def _memory(machine: Machine, kernel: Kernel, settings: Settings | None) -> Iterator[Finding]:
    pinned = settings is None or settings.pin_memory
    if kernel.numa_balancing and pinned and len(machine.nodes) > 1:
        found = "automatic NUMA balancing is on: it looks for better places for memory that is "
        found += "pinned already, which costs page faults"
        yield Finding("kernel", Verdict.NOTE, found, "sysctl kernel.numa_balancing=0")
    if kernel.swaps:
        found = (
            f"swap is on ({', '.join(kernel.swaps[:3])}): memory that was placed may be swapped out"
        )
        yield Finding(
            "kernel", Verdict.NOTE, found, "turn it off (swapoff) if pods rely on near memory"
        )
