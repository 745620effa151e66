"""Jobs come, nodes fail, the service dies between any two requests: a simulated cluster.

`NRI_POLICY_ROUNDS=1000` plays more than the few that are played here, `NRI_POLICY_SEED=38` one
other play instead of those.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import warnings
from contextlib import suppress
from pathlib import Path

import pytest

from nri_policy.cluster.service import Service
from nri_policy.cluster.settings import ClusterSettings, read_settings
from nri_policy.cluster.sources import OF_GROUPS
from nri_policy.cluster.writer import AT_ONCE
from nri_policy.kube.client import Client
from nri_policy.kube.connection import access
from tests.support.simulated_cluster import RACK, SimulatedCluster
from tests.unit.cluster.objects import HOSTNAME, settings

ROUNDS = int(os.environ.get("NRI_POLICY_ROUNDS", "24"))
SEED = os.environ.get("NRI_POLICY_SEED")
SEEDS = range(2) if SEED is None else [int(SEED)]


class Replica:
    """The service, as long as it lives."""

    def __init__(self, api: SimulatedCluster, using: ClusterSettings) -> None:
        connect = access(api.kubeconfig)
        assert connect is not None
        self.client = Client(connect)
        self.service = Service(using, self.client, groups=True)
        assert self.service.writer is not None
        self.writer = self.service.writer
        self.writer._sleep = lambda _seconds: asyncio.sleep(0.01)
        self.service.watch._delay = lambda _failures: 0.01
        self.service.watch._sleep = lambda seconds: asyncio.sleep(min(seconds, 0.01))
        self._task = asyncio.create_task(self.service.run())

    async def die(self) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError, BaseExceptionGroup):
            await self._task
        await self.client.close()
        with warnings.catch_warnings():  # a connection that was just being made is not closed
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()

    @property
    def idle(self) -> bool:
        """Whether it has done what it has seen to do; a task that ended in an error is raised."""
        if self._task.done():
            self._task.result()
        writer = self.writer
        busy = writer._slots._value < AT_ONCE or writer._woken.is_set() or writer._failures
        return writer._current and not busy


class Play:
    """A cluster, its service, and chance."""

    def __init__(self, api: SimulatedCluster, using: ClusterSettings) -> None:
        self.api = api
        self.kills = 0
        self._using = using
        self.replica = Replica(api, using)

    async def rest(self) -> None:
        """Go on until nothing happens any more."""
        quiet = 0
        revision = -1
        for _ in range(5000):
            await asyncio.sleep(0.001)
            for error in self.api.broken:
                raise error
            if self.api.died:
                await self.kill()
            busy = await self.api.control() or not self.replica.idle
            quiet = 0 if busy or revision != self.api._revision else quiet + 1
            revision = self.api._revision
            watch = self.replica.service.watch
            if watch.problem(*OF_GROUPS) or watch.lost_seconds():
                quiet = 0
            if quiet == 1:
                self.replica.writer.wake()  # as it does by itself every second
            if quiet > 20:
                return
        raise AssertionError("it does not come to rest")

    async def kill(self) -> None:
        """It dies, and another one begins."""
        self.kills += 1
        await self.replica.die()
        self.api.dies_after, self.api.died = None, False
        self.replica = Replica(self.api, self._using)

    def check(self) -> None:
        """At rest no group is half-placed, but for what it has lost with a node."""
        api = self.api
        for item in api.objects["jobs"].values():
            name = item["metadata"]["name"]
            group = api.group_of(name)
            assert group is not None, f"{name} has no group"
            live = [
                each
                for each in api.pods_of(name)
                if each.get("status", {}).get("phase") not in ("Failed", "Succeeded")
            ]
            gone = sum(HOSTNAME in each["spec"].get("nodeSelector", {}) for each in live)
            if group.status.state == "Degraded":
                assert group.status.unhealthy_nodes
                continue
            assert gone in (0, len(live)), (name, gone, group.status)
            if live:
                assert bool(gone) == bool(group.status.assignments), (name, group.status)
            if not gone and live:
                assert "allow" in group.status.message, (name, group.status)


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_half_placed_or_promised_twice(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    failure = {"policy": "PodTermination", "failFast": seed % 2 == 0}
    using = read_settings(settings("rack", HOSTNAME, failure=failure))
    assert RACK in using.topologies[0].levels

    async def play() -> None:
        async with SimulatedCluster(tmp_path, chance) as api:
            await api.begin()
            playing = Play(api, using)
            try:
                for number in range(ROUNDS // len(SEEDS)):
                    await api.happen()
                    if chance.random() < 0.3:
                        api.dies_after = chance.randrange(8)
                    await api.control()
                    for _ in range(chance.choice([0, 1, 5])):
                        await asyncio.sleep(0.001)
                    if number % 4 == 3:
                        await playing.rest()
                        playing.check()
                await playing.rest()
                playing.check()
                assert playing.kills
            finally:
                await playing.replica.die()

    asyncio.run(play())
