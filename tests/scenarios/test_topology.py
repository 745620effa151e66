"""After every step of every scenario, the zones to be published are what the engine has granted."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from nri_policy.cli.simulation import SimulatedNode
from nri_policy.runtime.playback import Playback
from nri_policy.runtime.scenario import read_scenario
from tests.scenarios.test_scenarios import SCENARIOS, machine
from tests.support.topology_twin import Twin


async def follow(path: Path, folder: Path) -> int:
    """Check the zones after each step; return how many were checked."""
    checked = 0
    async with AsyncExitStack() as stack:
        node = SimulatedNode(machine(path.parent), None, folder, stack)
        await stack.enter_async_context(node.runtime)
        async for _ in Playback(node.runtime, node).play(read_scenario(path)):
            if node.daemon is None:
                continue
            topology = await node.daemon.topology()
            Twin(node.daemon.engine.state).check(topology["zones"])
            checked += 1
    return checked


@pytest.mark.parametrize(
    "path", SCENARIOS, ids=[f"{path.parent.name}/{path.stem}" for path in SCENARIOS]
)
def test_zones_say_what_the_engine_has_granted(path: Path, tmp_path: Path) -> None:
    assert asyncio.run(follow(path, tmp_path)) or path.stem.endswith("wrong")
