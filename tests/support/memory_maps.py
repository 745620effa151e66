"""Memory maps, supplies and requests for tests of memory placement."""

from __future__ import annotations

import itertools
from typing import Any

from msgspec.structs import replace

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.hardware.machine import Machine, MemoryKind
from nri_policy.pools.memory import MemorySupply
from nri_policy.pools.memory_map import MemoryMap
from nri_policy.pools.memory_offer import MemoryRequest, Rank
from nri_policy.pools.tree import PoolTree, build
from tests.support import nodes

GIB = 1 << 30
DRAM, PMEM, HBM = MemoryKind.DRAM, MemoryKind.PMEM, MemoryKind.HBM
DEFAULT = frozenset({DRAM, PMEM})
EVERY = frozenset({DRAM, PMEM, HBM})

# 2 packages of CPUs and 16 GiB (nodes 0, 1), each with a small near (2, 3) and a large far node
# (4, 5). The far ones are movable-only, as memory is that a driver brings.
TIERED = "package:2(hbm=8GiB cxl=64GiB) numa:1(memory=16GiB) core:4"

_numbers = itertools.count(1)


def supply(spec: str = TIERED, machine: Machine | None = None, **settings: Any) -> MemorySupply:
    """Return the untouched supply of a synthetic machine."""
    machine = machine or nodes.machine(spec)
    return MemorySupply(MemoryMap(machine, tree(machine), nodes.settings(**settings)))


def tree(machine: Machine) -> PoolTree:
    """Return the tree over all CPUs."""
    return build(machine, machine.online)


def with_nodes(machine: Machine, **fields: Any) -> Machine:
    """Return *machine* with *fields* of its nodes replaced: by a value for all, or by id."""
    changed = []
    for node in machine.nodes:
        named = {
            name: value[node.id] if isinstance(value, dict) else value
            for name, value in fields.items()
            if not isinstance(value, dict) or node.id in value
        }
        changed.append(replace(node, **named))
    return replace(machine, nodes=tuple(changed))


def request(gib: float, **fields: Any) -> MemoryRequest:
    """Return a Burstable request of default kinds, the youngest so far."""
    number = next(_numbers)
    defaults: dict[str, Any] = {
        "id": f"ctr-{number}",
        "amount": int(gib * GIB),
        "limit": None,
        "kinds": DEFAULT,
        "rank": Rank.BURSTABLE,
        "created": number,
    }
    return MemoryRequest(**(defaults | fields))


def book(supply: MemorySupply, pool: int, gib: float, **fields: Any) -> str:
    """Book what *pool* offers and return the booking's id."""
    wanted = request(gib, **fields)
    supply.commit(supply.offer(pool, wanted))
    return wanted.id


def zones(supply: MemorySupply) -> dict[str, str]:
    """Return the zones of all bookings as text."""
    return {id_: str(booking.zone) for id_, booking in supply.bookings.items()}


def ids(text: str) -> CPUSet:
    """Return a set of node ids."""
    return CPUSet.parse(text)
