"""Where memory goes that follows the CPUs (placement.md §7), on the machine that a guest showed."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from nri_policy.cli.options import Source
from nri_policy.engine.engine import Engine
from nri_policy.engine.event import Created
from nri_policy.settings import from_spec
from tests.support import nodes
from tests.support.engine_driver import EngineDriver

ASYMMETRIC = Path(__file__).parents[3] / "guest/captures/asymmetric.tar.xz"


def test_cpus_without_memory_keep_the_node_without_cpus_that_is_near_to_them() -> None:
    """Node 0 has CPUs 0-3 and memory, node 1 only CPUs 4-7, node 2, near to it, only memory."""
    spec = {"reservedResources": {"cpu": "cpuset:0"}, "memoryKinds": {"2": "dram"}}
    settings = from_spec(spec, "test")
    engine = Engine(Source(capture=ASYMMETRIC).machine(settings.memory_kinds), settings)
    placement = engine.handle(Created(container=nodes.container(4000))).placement
    assert placement is not None
    assert (str(placement.cpus), str(placement.mems)) == ("4-7", "0,2")


def test_cpus_beside_movable_memory_alone_get_the_nearest_node_that_can_start_them() -> None:
    machine = nodes.machine("package:1 numa:2(memory=4GiB) core:2 pu:1")
    near, movable = machine.nodes
    driver = EngineDriver(replace(machine, nodes=(near, replace(movable, normal=False))))
    first, second = nodes.container(1000), nodes.container(2000)
    assert (driver.create(first), driver.mems(first)) == ("1", "0")
    assert (driver.create(second), driver.mems(second)) == ("2-3", "0-1")
