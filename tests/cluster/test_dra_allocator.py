"""What kube-scheduler's allocator allocates of our slices is granted; needs Go, and no cluster."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from random import Random

import pytest

from tests.support.allocations import (
    RECORDED,
    Case,
    allocated_of,
    cluster_of,
    draw_case,
    grant,
    node_of,
    values_of,
)
from tools import dra_programs

CASES = 5000
BATCH = 250  # nodes that are held at once


def test_whatever_the_scheduler_allocates_is_granted() -> None:
    """With NRI_POLICY_RECORD=1 the cases are recorded anew, for machines without Go."""
    try:
        dra_programs.program("allocator")
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        pytest.skip(f"the allocator cannot be built: {error}")
    cases = [case for seed in range(CASES // BATCH) for case in granted(Random(seed))]
    lines = "".join(f"{each}\n" for each in cases)
    if os.environ.get("NRI_POLICY_RECORD"):
        RECORDED.write_text(lines)
    assert RECORDED.read_text() == lines, "NRI_POLICY_RECORD=1 records them anew"


def granted(random: Random) -> list[Case]:
    """Return cases that the scheduler has allocated, and a node has granted."""
    drawn = [draw_case(random) for _ in range(BATCH)]
    drivers = [node_of(each) for each in drawn]
    clusters = [cluster_of(each, random) for each in drivers]
    cases = []
    for case, driver, cluster, found in zip(
        drawn, drivers, clusters, dra_programs.allocate(clusters), strict=True
    ):
        claims = tuple(
            allocated_of(driver, claim, allocation)
            for claim, allocation in zip(cluster["claims"], found, strict=True)
            if allocation is not None
        )
        whole = replace(case, values=values_of(driver), claims=claims)
        grant(driver, claims, random)
        cases.append(whole)
    return cases
