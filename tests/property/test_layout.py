"""The floor plan of any machine shows every CPU once, within its box, and keeps to its width."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.picture import svg_parts, terminal
from nri_policy.picture.floor_plan import Box, DrawingSizes, plan
from nri_policy.picture.scene import scene
from nri_policy.pools.capacity import Capacity
from nri_policy.pools.tree import build
from nri_policy.report import machine_report, pool_reports
from tests.support import nodes

specs = st.builds(
    "package:{} numa:{} l3:{} core:{} pu:{}".format,
    *(st.sampled_from(counts) for counts in ((1, 2, 3), (1, 2), (1, 3), (1, 4, 12), (1, 2, 3))),
)


@pytest.mark.parametrize(
    ("metrics", "unit"), [(terminal.METRICS, 1), (svg_parts.METRICS, 10)], ids=["letters", "pixels"]
)
@settings(max_examples=25, deadline=None)
@given(spec=specs, columns=st.integers(60, 140), left_out=st.sets(st.integers(1, 40)))
def test_every_cpu_is_drawn_once_and_nothing_overlaps(
    metrics: DrawingSizes, unit: int, spec: str, columns: int, left_out: set[int]
) -> None:
    machine = nodes.machine(spec)
    available = machine.online - CPUSet(left_out)
    capacity = Capacity(reserved=CPUSet(), isolated=CPUSet(), sharable=available)
    pools = pool_reports(build(machine, available), capacity)
    layout = plan(scene(machine_report(machine), pools), columns * unit, metrics)
    assert layout.width <= columns * unit
    whole = Box(width=layout.width, height=layout.height, title="", caption="", boxes=layout.boxes)
    assert sorted(cpus(whole, metrics)) == list(machine.online)


def cpus(box: Box, metrics: DrawingSizes) -> Iterator[int]:
    """Yield the CPUs in a box, whose parts must lie within it and apart from each other."""
    parts = [(each.x, each.y, each.width, each.height) for each in box.boxes]
    for cell in box.cells:
        height = -(-len(cell.threads) // metrics.abreast) * metrics.line
        parts.append((cell.x, cell.y, metrics.cell, height))
        yield from (cpu for cpu in cell.threads if cpu is not None)
    for at, (x, y, width, height) in enumerate(parts):
        assert x >= 0
        assert y >= 0
        assert x + width <= box.width
        assert y + height <= box.height
        for left, top, w, h in parts[:at]:
            assert x >= left + w or left >= x + width or y >= top + h or top >= y + height
    for each in box.boxes:
        yield from cpus(each, metrics)
