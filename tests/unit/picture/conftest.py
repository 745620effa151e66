"""Fixtures: an engine with containers of all sorts."""

from __future__ import annotations

import pytest

from nri_policy.engine.engine import Engine
from nri_policy.engine.event import Created
from nri_policy.manifests.quality_of_service import QoS
from nri_policy.pools import tree
from tests.support import nodes
from tests.support.pictures import container

# a deep tree on few CPUs; real pools below a NUMA node have four cores
SPEC = "package:2 numa:2 l3:2 core:2 pu:2 isolated=6 offline=31"


@pytest.fixture(autouse=True)
def _pools_of_few_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "_LEAST_CORES", 1)


@pytest.fixture
def engine() -> Engine:
    engine = Engine(
        nodes.machine(SPEC),
        nodes.settings(
            availableResources={"cpu": "exclude-cpuset:24-25"},
            reservedResources={"cpu": "cpuset:0"},
        ),
    )
    for made in (
        container("db", 2000, None, "default", QoS.GUARANTEED),
        container("cache", 1500, None, "default", QoS.GUARANTEED),
        container("web", 300, 1000, "shop", QoS.BURSTABLE),
        container("dns", 100, None, "kube-system", QoS.BURSTABLE),
        container("batch", 0, None, "default", QoS.BEST_EFFORT),
    ):
        engine.handle(Created(container=made))
    return engine
