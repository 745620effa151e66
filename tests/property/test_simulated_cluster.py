"""Jobs come, nodes fail, the service dies between any two requests: a simulated cluster."""

from __future__ import annotations

import asyncio
import gc
import random
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from nri_policy.cluster.objects.settings import ClusterSettings, read_settings
from nri_policy.cluster.service.kinds import OF_GROUPS
from nri_policy.cluster.service.service import Service
from nri_policy.kube.client import Client
from nri_policy.kube.connection import access
from tests.property.seeds import seeds
from tests.support.clock import SleepingClock
from tests.support.simulated_cluster import RACK, SimulatedCluster
from tests.unit.cluster.written import HOSTNAME, settings

ROUNDS = 12


class Replica:
    """The service, as long as it lives."""

    def __init__(
        self, api: SimulatedCluster, using: ClusterSettings, now: Callable[[], float]
    ) -> None:
        connect = access(api.kubeconfig)
        assert connect is not None
        self.client = Client(connect)
        clock = SleepingClock(now=now, sleep=lambda seconds: asyncio.sleep(min(seconds, 0.01)))
        self.service = Service(using, self.client, clock=clock, groups=True)
        assert self.service.writer is not None
        self.writer = self.service.writer
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
        """Whether it has written all that it decided; raises the error of a failed task."""
        if self._task.done():
            self._task.result()
        writer = self.writer
        busy = writer._writes or writer._woken.is_set()
        return writer._current and not busy


class Play:
    """A cluster, its service, and chance."""

    def __init__(self, api: SimulatedCluster, using: ClusterSettings) -> None:
        self.api = api
        self.kills = 0
        self._using = using
        self._passed = 0.0  # seconds skipped instead of waited for
        self.replica = Replica(api, using, self._now)

    def _now(self) -> float:
        return time.monotonic() + self._passed

    async def rest(self) -> None:
        """Go on until nothing happens any more."""
        quiet = self.api.refused = 0
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
            if quiet in (1, 10):
                self._passed += 31.0  # what was refused is tried again
                self.replica.writer.wake()  # as it does by itself every second
            if quiet > 20:
                return
        raise AssertionError("it does not come to rest")

    async def kill(self) -> None:
        """It dies, and another one begins."""
        self.kills += 1
        await self.replica.die()
        self.api.dies_after, self.api.died = None, False
        self.replica = Replica(self.api, self._using, self._now)

    def check(self) -> None:
        """At rest no group is half-placed, but for what it has lost with a node."""
        api = self.api
        for item in api.objects["jobs"].values():
            name = item["metadata"]["name"]
            if not api.pods_of(name):
                continue
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
            if gone and "cannot be placed" in group.status.message:  # it has become larger
                continue
            assert gone in (0, len(live)), (name, gone, group.status)
            if live:
                assert bool(gone) == bool(group.status.assignments), (name, group.status)
            if not gone and live:
                refused = ("allow", "no topology domains")
                assert any(each in group.status.message for each in refused), (name, group.status)


@seeds(2)
def test_nothing_is_half_placed_or_promised_twice(seed: int) -> None:
    chance = random.Random(seed)
    failure = {"policy": "PodTermination", "failFast": chance.random() < 0.5}
    groups = {"timeout": "1000h", "preemption": seed % 4 < 2}
    using = read_settings(settings("rack", HOSTNAME, failure=failure, groups=groups))
    assert RACK in using.topologies[0].levels

    async def play(folder: Path) -> None:
        async with SimulatedCluster(folder, chance) as api:
            await api.begin()
            playing = Play(api, using)
            try:
                for number in range(ROUNDS):
                    await api.happen()
                    if chance.random() < 0.3:
                        api.dies_after = chance.randrange(8)
                    await api.control()
                    for _ in range(chance.choice([0, 1, 5])):
                        await asyncio.sleep(0.001)
                    if number % 4 == 3:
                        await playing.rest()
                        playing.check()
                api.dies_after = 0  # whatever happened before, it dies at this job's first write
                await api.submit()
                await playing.rest()
                playing.check()
                assert playing.kills
            finally:
                await playing.replica.die()

    with TemporaryDirectory() as folder:
        asyncio.run(play(Path(folder)))
