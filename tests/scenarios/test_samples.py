"""The samples in configs/ play on machines of every sort without a step that fails."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from nri_policy.foundation import yamltext
from nri_policy.simulation.scenario import read_scenario, read_step
from tests.scenarios.test_scenarios import complaints, played
from tests.support import nodes

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
SCENARIOS = [
    path
    for path in sorted(CONFIGS.glob("*.yaml"))
    # the node of the recipes is one of its own
    if path.stem != "recipes" and isinstance(yamltext.read(path.read_text()), list)
]
PODS = sorted(CONFIGS.glob("pods/*.yaml"))
MACHINES = (
    nodes.SMALL,
    "package:2 numa:2 l3:4 core:4 pu:2",
    "package:1 core:8 pu:2",
    "package:3 core:3 pu:2",
    "package:2 numa:2 core:4 pu:2 isolated=6-7,22-23",
    "package:1 core:12(efficiency=4) pu:2 offline=3",
    "package:2 numa:2(memory=16GiB,0) core:2 pu:2",
)


@pytest.mark.parametrize("spec", MACHINES)
@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_a_sample_scenario_plays(path: Path, spec: str, tmp_path: Path) -> None:
    steps = read_scenario(path)
    assert not complaints(steps, asyncio.run(played(nodes.machine(spec), steps, tmp_path)))


@pytest.mark.parametrize("spec", MACHINES)
@pytest.mark.parametrize("path", PODS, ids=lambda path: path.stem)
def test_sample_pods_run(path: Path, spec: str, tmp_path: Path) -> None:
    steps = [
        read_step({"settings": {"reservedResources": {"cpu": 1}}}, folder=CONFIGS),
        read_step({"apply": {"file": str(path)}}, folder=CONFIGS),
    ]
    results = asyncio.run(played(nodes.machine(spec), steps, tmp_path))
    assert not complaints(steps, results)
    assert {each.state for each in results[-1].containers.values()} == {"running"}
