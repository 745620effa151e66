"""What containers hold, as the engine's own values."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from nri_policy.classes import Classes
from nri_policy.cpuset import CPUSet
from nri_policy.engine.state import Placed, State
from nri_policy.workload.request import Sort


class Holding(Struct, frozen=True, kw_only=True):
    """What one container holds."""

    placed: Placed
    pool: str  # name
    cpus: CPUSet  # where it may run; empty where the policy leaves that alone
    classes: Classes | None = None


def holding(state: State, placed: Placed) -> Holding:
    """Return what a placed container holds."""
    return Holding(
        placed=placed,
        pool=state.layout.tree.pools[placed.grant.pool].name,
        cpus=state.cpus(placed.grant, placed.request.hide_hyperthreads),
        classes=state.classes.get(placed.container.id),
    )


def holdings(state: State) -> Iterator[Holding]:
    """Yield what every placed container holds."""
    return (holding(state, placed) for placed in state.placed.values())


def exposed(state: State, container_id: str) -> dict[str, str]:
    """Return what a placed container may know of its own resources (§9): shell names and lists."""
    grant = state.placed[container_id].grant
    resources = {}
    if grant.shares or grant.sort is Sort.RESERVED:
        resources["SHARED_CPUS"] = state.cpus(grant, hide_hyperthreads=False) - grant.exclusive
    if grant.exclusive:
        resources["ISOLATED_CPUS" if grant.isolated else "EXCLUSIVE_CPUS"] = grant.exclusive
    kinds = state.layout.tree.top.memory
    resources["ALL_MEMS"] = grant.mems
    for kind, nodes in kinds.items():
        if grant.mems & nodes:
            resources[f"{kind.upper()}_MEMS"] = grant.mems & nodes
    return {name: str(ids) for name, ids in resources.items()}
