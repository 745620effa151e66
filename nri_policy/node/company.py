"""Company: containers that may run on the exclusive CPUs of another, by the decisions.

A pinned container is kept off them. One that is not pinned runs on the kubelet's cpuset, or on all
online CPUs.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from nri_policy.engine.state.state import Placed
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.node.view import NodeView
from nri_policy.workload.pod import ContainerState, parse_cpus
from nri_policy.workload.request import Sort

_MAX_NAMED = 3


class Companion(Struct, frozen=True, kw_only=True):
    """A container, or all, that may run on exclusive CPUs of another."""

    name: str  # namespace/pod/container; empty for all containers
    cpus: CPUSet  # the exclusive CPUs that it may use

    def __str__(self) -> str:
        return f"{self.name} is not pinned" if self.name else "all containers: pinCPU is false"


class Company(Struct, frozen=True, kw_only=True):
    """The exclusive CPUs of a running container, and the others that may run there."""

    container_id: str
    name: str  # namespace/pod/container
    cpus: CPUSet
    others: tuple[Companion, ...]

    @property
    def beside(self) -> str:
        """The others that may run there, in words."""
        named = [str(each) for each in self.others[:_MAX_NAMED]]
        more = len(self.others) - len(named)
        return ", ".join([*named, *([f"and {more} more"] if more else [])])


def list_company(view: NodeView) -> Iterator[Company]:
    """Yield each running container with exclusive CPUs, and the others that may run there."""
    unpinned = [] if not view.layout.settings.pin_cpu else [*_list_unpinned(view)]
    for container_id, placed in view.placed.items():
        own = placed.grant.own
        if own and placed.container.state is ContainerState.RUNNING:
            yield Company(
                container_id=container_id,
                name=placed.container.full_name,
                cpus=own,
                others=_beside(view, own, unpinned),
            )


def _beside(
    view: NodeView, own: CPUSet, unpinned: list[tuple[str, CPUSet]]
) -> tuple[Companion, ...]:
    if not view.layout.settings.pin_cpu:
        return (Companion(name="", cpus=own),)
    return tuple(Companion(name=name, cpus=cpus & own) for name, cpus in unpinned if cpus & own)


def _list_unpinned(view: NodeView) -> Iterator[tuple[str, CPUSet]]:
    """Yield the running containers without a cpuset from us, and the CPUs that they may use."""
    for container_id, placed in view.placed.items():
        if placed.container.state is ContainerState.RUNNING and not view.sent[container_id][0]:
            yield placed.container.full_name, _cpus_without_pinning(view, placed)


def _cpus_without_pinning(view: NodeView, placed: Placed) -> CPUSet:
    had = placed.grant.preserved
    if placed.grant.sort is not Sort.PRESERVE:
        had = parse_cpus(placed.container.resources.cpus)
    return had or view.layout.machine.online
