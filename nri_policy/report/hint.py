"""Hints: the devices and mounts that a container uses, and which of its CPUs are near them."""

from __future__ import annotations

from msgspec import Struct

from nri_policy.engine.state.topology_hints import TopologyHints
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.foundation.wording import some
from nri_policy.node import Holding


class HintReport(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A device or a mount, or several of a resource in one place."""

    source: str  # path on the host, `podresourceapi:RESOURCE` or `claim:DRIVER`
    count: int
    nodes: CPUSet  # NUMA nodes near it
    cpus: CPUSet  # online CPUs near it
    granted: int  # how many of the container's CPUs are among these
    granted_of: int  # how many CPUs the container has
    device: str = ""  # device and claim names that the source lacks

    @property
    def name(self) -> str:
        """What it is, and which."""
        return f"{self.source} {self.device}".rstrip()


def held_hints(holding: Holding, topology: TopologyHints) -> tuple[HintReport, ...]:
    """Return the hints of a container that has a place; those without a place are left out."""
    granted = holding.cpus
    places: dict[tuple[str, CPUSet, CPUSet], list[str]] = {}
    for hint in holding.placed.request.steering.hints:
        if cpus := topology.cpus(hint):
            places.setdefault((hint.source, cpus, topology.mems(hint)), []).append(hint.device)
    return tuple(
        HintReport(
            source=source,
            device=some(filter(None, devices)),
            count=len(devices),
            nodes=nodes,
            cpus=cpus,
            granted=len(cpus & granted),
            granted_of=len(granted),
        )
        for (source, cpus, nodes), devices in places.items()
    )
