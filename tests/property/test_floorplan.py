"""The floor plan of any machine shows every CPU once and keeps to its width."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from nri_policy.cli.floorplan import FloorPlan, Look
from nri_policy.cpuset import CPUSet
from nri_policy.pools.tree import build
from tests import nodes

CELL = Look("*", "red", "red")

specs = st.builds(
    "package:{} numa:{} l3:{} core:{} pu:{}".format,
    *(st.sampled_from(counts) for counts in ((1, 2, 3), (1, 2), (1, 3), (1, 4, 12), (1, 2, 3))),
)


@settings(max_examples=25, deadline=None)
@given(spec=specs, width=st.integers(60, 140), left_out=st.sets(st.integers(1, 40)))
def test_every_cpu_is_drawn_once_and_no_line_is_too_long(
    spec: str, width: int, left_out: set[int]
) -> None:
    machine = nodes.machine(spec)
    plan = FloorPlan(
        machine=machine,
        tree=build(machine, machine.online - CPUSet(left_out)),
        looks=dict.fromkeys(machine.online, CELL),
        writing=lambda pool: (f"{pool.name}: {pool.cpus}", "mem"),
    )
    text = plan.drawn(width, colour=False).plain
    assert text.count("*") == len(machine.online)
    assert max(map(len, text.splitlines())) <= width
