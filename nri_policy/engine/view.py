"""What the engine holds, as data: the `containers` and `pools` of every JSON output.

Field names are those of spec annotations-and-settings.md, "Data formats"; sets are kernel lists.
"""

from __future__ import annotations

from nri_policy.cpuset import EMPTY, CPUSet
from nri_policy.engine.state import Placed, State
from nri_policy.pools.capacity import Capacity
from nri_policy.pools.tree import PoolTree
from nri_policy.workload.pod import shares_of
from nri_policy.workload.request import Sort


def containers(state: State) -> dict[str, dict[str, object]]:
    """Return what every placed container holds, by `namespace/pod/name`."""
    return {
        placed.container.full_name: container(state, placed) for placed in state.placed.values()
    }


def container(state: State, placed: Placed) -> dict[str, object]:
    """Return what one container holds."""
    return {
        "qos": placed.container.pod.qos.value,
        "sort": placed.grant.sort.value,
        "pool": state.layout.tree.pools[placed.grant.pool].name,
        "cpus": str(state.cpus(placed.grant, placed.request.hide_hyperthreads)),
        "exclusive": str(placed.grant.exclusive),
        "shared_milli": placed.grant.shared,
        "isolated": str(placed.grant.exclusive if placed.grant.isolated else EMPTY),
        "mems": str(placed.grant.mems),
        "shares": shares_of(placed.request.milli),
    }


def refused(error: str) -> dict[str, object]:
    """Return what stands for a container that got nothing."""
    nothing = ("qos", "sort", "pool", "exclusive", "shared_milli", "isolated", "shares")
    return {**dict.fromkeys(nothing), "cpus": "", "mems": "", "state": "error", "error": error}


def topology(tree: PoolTree, capacity: Capacity) -> list[dict[str, object]]:
    """Return the pools as they are without containers."""
    return [
        {
            "id": pool.id,
            "name": pool.name,
            "levels": [level.value for level in pool.levels],
            "parent": pool.parent,
            "depth": pool.depth,
            "cpus": str(pool.cpus),
            "isolated": str(capacity.isolated & pool.cpus),
            "reserved": str(capacity.reserved & pool.cpus),
            "sharable": str(capacity.sharable & pool.cpus),
            "memory": {kind.value: str(nodes) for kind, nodes in pool.memory.items()},
        }
        for pool in tree.pools
    ]


def pools(state: State) -> list[dict[str, object]]:
    """Return the pools with what is granted on them."""
    tree = state.layout.tree
    taken = CPUSet.union(placed.grant.exclusive for placed in state.placed.values())
    booked: dict[int, list[str]] = {}
    for placed in state.placed.values():
        if placed.grant.sort is Sort.NORMAL:
            booked.setdefault(placed.grant.pool, []).append(placed.container.full_name)
    return [
        {
            **fields,
            "shared_milli_granted": state.supply.shared_milli_in(pool.id),
            "shared_milli_allocatable": max(0, state.supply.allocatable_shared(pool.id)),
            "exclusive": str(taken & pool.cpus),
            "containers": booked.get(pool.id, []),
        }
        for pool, fields in zip(tree.pools, topology(tree, state.layout.capacity), strict=True)
    ]


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
