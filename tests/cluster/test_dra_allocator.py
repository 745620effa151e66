"""What kube-scheduler's allocator allocates of our slices is granted; needs no cluster."""

from __future__ import annotations

import os
from dataclasses import replace
from random import Random

import pytest

from nri_policy.dra.resource_slice import CPU
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


@pytest.fixture(scope="module", autouse=True)
def _allocator() -> None:
    if not dra_programs.is_built("allocator"):
        pytest.skip("the allocator is not built: python -m tools.dra_programs")


def test_whatever_the_scheduler_allocates_is_granted() -> None:
    """With NRI_POLICY_RECORD=1 the cases are recorded anew, for machines without Go."""
    cases = [case for seed in range(CASES // BATCH) for case in granted(Random(seed))]
    lines = "".join(f"{each}\n" for each in cases)
    if os.environ.get("NRI_POLICY_RECORD"):
        RECORDED.write_text(lines)
    assert RECORDED.read_text() == lines, "NRI_POLICY_RECORD=1 records them anew"


@pytest.mark.parametrize(("cores", "milli"), [(0, 1), (1, 2000)])
def test_a_claim_of_no_cpus_is_allocated_the_least_and_granted(cores: int, milli: int) -> None:
    driver = node_of(Case(machine=3, cores=cores, ordinary=()))
    cluster = cluster_of(driver, Random(0))
    cluster["claims"] = cluster["claims"][:1]
    own = {"deviceClassName": cluster["classes"][0]["metadata"]["name"]}
    exactly = {**own, "allocationMode": "ExactCount", "count": 1}
    exactly["capacity"] = {"requests": {CPU: "0"}}
    request = {"name": "none", "exactly": exactly}
    cluster["claims"][0]["spec"] = {"devices": {"requests": [request]}}
    ((allocation,),) = dra_programs.allocate([cluster])
    claim = allocated_of(driver, cluster["claims"][0], allocation)
    assert [each for _, each in claim] == [milli]
    grant(driver, [claim], Random(0))


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
