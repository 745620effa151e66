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
    *(st.sampled_from(counts) for counts in ((1, 2, 3), (1, 2), (1, 2, 5), (1, 3, 9), (1, 2, 4))),
)


@settings(max_examples=40, deadline=None)
@given(spec=specs, width=st.integers(60, 140), left_out=st.sets(st.integers(1, 40)))
def test_every_cpu_is_drawn_once_and_no_line_is_too_long(
    spec: str, width: int, left_out: set[int]
) -> None:
    machine = nodes.machine(spec)
    available = machine.online - CPUSet(left_out)
    plan = FloorPlan(
        machine=machine,
        tree=build(machine, available),
        looks=dict.fromkeys(machine.online, CELL),
        writing=lambda pool: (f"{pool.name}: {pool.cpus}", "mem"),
    )
    text = plan.drawn(width, colour=False).plain
    assert text.count("*") == len(machine.online)
    assert max(map(len, text.splitlines())) <= width
    assert len({len(line) for line in text.splitlines()}) == 1 or plan.tree.top.children
    in_colour = plan.drawn(width, colour=True).plain
    assert in_colour.count("*") <= len(machine.online)
