"""What kube-scheduler's allocator has allocated of our slices is granted: recorded cases."""

from __future__ import annotations

import os
from random import Random

import pytest

from tests.support.allocations import RECORDED, grant, node_of, parse_case, values_of

SOME = 1 if os.environ.get("CI") else 10  # every case, or one of so many
PARTS = 5


@pytest.mark.parametrize("number", range(PARTS))
def test_whatever_the_scheduler_has_allocated_is_granted(number: int) -> None:
    lines = RECORDED.read_text().splitlines()[::SOME]
    assert len(lines) >= PARTS, "each part has some"
    for line in lines[number::PARTS]:
        case = parse_case(line)
        driver = node_of(case)
        assert values_of(driver) == case.values, f"it publishes what was allocated of: {line}"
        grant(driver, case.claims, Random(line))
