"""Time decisions on a machine of eight memory nodes, with and without memory to be booked.

Without: the containers preserve their memory, so nothing is booked. The more there is, the more
newcomers push others to wider zones, which shrink back when they go.
"""

from __future__ import annotations

import logging
import statistics
import time

from msgspec.structs import replace

from nri_policy.engine.engine import Engine
from nri_policy.engine.event import Created, Stopped
from nri_policy.workload.pod import Container
from tests.support import nodes

MACHINE = "package:4(pmem=256GiB) numa:1(memory=64GiB) core:32 pu:2"
RUNNING = 300
ROUNDS = 300
# MiB a container and of which kinds, on 256 GiB of dram and 1 TiB of pmem; 0: preserved
LOADS = {
    "none": (0, "dram,pmem"),
    "next to nothing": (1, "dram,pmem"),
    "half of all": (2048, "dram,pmem"),
    "all of the dram": (870, "dram"),
    "more than the dram": (1300, "dram"),
}


def main() -> None:
    """Print the medians."""
    logging.disable(logging.INFO)
    plain = 0.0
    for name, (mib, kinds) in LOADS.items():
        cost, moves = _decision(mib, kinds)
        plain = plain or cost
        print(
            f"memory asked for: {name:20} {cost:6.0f} µs, {cost / plain:.2f} of none;"
            f" {moves} others moved in {ROUNDS} decisions"
        )


def _decision(mib: int, kinds: str) -> tuple[float, int]:
    """Return the median in µs of one more container, and how many others' memory moved."""
    engine = Engine(nodes.machine(MACHINE), nodes.settings(shrinkMemory=True))
    for _ in range(RUNNING):
        engine.handle(Created(container=_container(mib, kinds)))
    costs, moves = [], 0
    for _ in range(ROUNDS):
        newcomer = _container(mib, kinds)
        began = time.perf_counter()
        engine.handle(Created(container=newcomer))
        costs.append(time.perf_counter() - began)
        moves += len(engine.state.moved)
        engine.handle(Stopped(container_id=newcomer.id))
    return 1e6 * statistics.median(costs), moves


def _container(mib: int, kinds: str) -> Container:
    annotations = {
        "memory-type.resource-policy.nri.io/pod": kinds,
        "memory.preserve.resource-policy.nri.io/pod": str(not mib).lower(),
    }
    container = nodes.container(500, annotations=annotations)
    return replace(container, resources=replace(container.resources, memory_limit=mib << 20))
