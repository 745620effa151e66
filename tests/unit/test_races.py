"""Everything at once on one daemon: whatever comes first, the books are right in the end.

Pods come, go and are resized, settings and CPUs change, the runtime restarts; and every now and
then nobody gets the turn until a request has been answered without it.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.foundation.units import parse_cpu
from nri_policy.hardware import synthetic
from nri_policy.manifests.resources import Amounts, ManifestError, ResourceChange
from nri_policy.nri.service import LATE
from nri_policy.settings import Settings
from nri_policy.simulation.adaptation import Timeouts
from nri_policy.simulation.containers import CRIError, RuntimeState
from tests.support import bookkeeping, nodes, stores
from tests.support.daemon import Served, pod, served

ROUNDS = int(os.environ.get("NRI_POLICY_RACES", "25"))
REQUEST = 0.1  # seconds that the runtime grants a request
DOMAIN = "resource-policy.nri.io"
SPECS: tuple[dict[str, Any], ...] = (
    {},
    {"reservedResources": {"cpu": 3}},
    {"reservedResources": {"cpu": "cpuset:8"}},
    {"preferSharedCPUs": True},
    {"pinMemory": False},
    {"memoryKinds": {"3": "pmem"}},
    {"reservedResources": {"cpu": 99}},
)
OFFLINE = ("", " offline=15", " offline=4-7", " offline=2-13")
WISHES: tuple[dict[str, str], ...] = (
    {},
    {},
    {},
    {f"cpu.preserve.{DOMAIN}/pod": "maybe"},
    {f"static-cpus.{DOMAIN}": "true"},
)


class Race:
    """What happens to one node."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.number = 0
        self.spec: dict[str, Any] = {}
        self.restarting = asyncio.Lock()

    def load(self) -> Settings:
        return nodes.settings(**self.spec)

    async def act(self, it: Served) -> None:
        acts: tuple[Callable[[Served], Coroutine[Any, Any, None]], ...] = (
            *[self.start] * 5,
            *[self.stop] * 2,
            *[self.resize] * 2,
            *[self.reload] * 2,
            *[self.plug] * 2,
            self.drift,
            self.restart,
        )
        with suppress(CRIError, ManifestError, KeyError):
            await self.chance.choice(acts)(it)

    async def start(self, it: Served) -> None:
        self.number += 1
        cpu = self.chance.choice(("", "500m", "1", "1500m", "2", "4", "6"))
        made = pod(
            f"pod{self.number}",
            cpu,
            shared=bool(cpu) and self.chance.random() < 0.3,
            namespace=self.chance.choice(("default",) * 5 + ("kube-system",)),
            annotations=self.chance.choice(WISHES),
        )
        await it.runtime.start_pod(made)

    async def stop(self, it: Served) -> None:
        if it.runtime.pods:
            await it.runtime.delete_pod(self.chance.choice(it.runtime.pods))

    async def resize(self, it: Served) -> None:
        if it.runtime.pods:
            amount = Amounts(cpu=parse_cpu(self.chance.choice(("1", "1500m", "3"))))
            change = ResourceChange(requests=amount, limits=amount)
            await it.runtime.resize(self.chance.choice(it.runtime.pods), "main", change)

    async def reload(self, it: Served) -> None:
        self.spec = self.chance.choice(SPECS)
        await it.daemon.reloads.reload()

    async def plug(self, it: Served) -> None:
        machine = nodes.machine(nodes.SMALL + self.chance.choice(OFFLINE))
        await it.daemon.events.reconfigure(
            machine=machine, instead_of=it.daemon.node.view.layout.machine
        )

    async def drift(self, it: Served) -> None:
        await it.daemon.events.resend([*it.daemon.node.view.placed][:3])

    async def restart(self, it: Served) -> None:
        async with self.restarting:
            before = it.runtime.synchronizations
            await it.runtime.restart()
            await it.runtime.synchronized(after=before)

    async def round(self, it: Served) -> None:
        """Let several things happen at once, perhaps while nobody gets the turn for long."""
        acting = [asyncio.create_task(self.act(it)) for _ in range(self.chance.randint(1, 5))]
        for _ in range(self.chance.choice((0, 1, 4, 8))):
            async with it.daemon.node.turn:
                await asyncio.wait(acting, timeout=(LATE + 0.05) * REQUEST)
        await asyncio.gather(*acting)


async def settle(it: Served) -> None:
    """Wait until the runtime has heard everything."""
    while True:
        while not (it.runtime.plugins and it.daemon._session.synchronized):  # noqa: ASYNC110 - no event says both
            await asyncio.sleep(0.001)
        flushing = asyncio.ensure_future(it.daemon.flush_updates())
        await asyncio.wait({flushing}, timeout=10 * REQUEST)
        await it.runtime.settled()
        if flushing.done() and it.runtime.plugins:
            return
        flushing.cancel()


def check(it: Served) -> None:
    engine = it.daemon.node._engine
    living = {
        each.id: each
        for each in it.runtime.containers
        if each.state in (RuntimeState.CREATED, RuntimeState.RUNNING)
    }
    assert engine.state.placed.keys() == living.keys(), "whoever runs is in the books"
    believed = bookkeeping.Runtime()
    for container_id, (cpus, mems) in engine.state.sent.items():
        # a container that is no longer pinned keeps its cpuset
        believed.cpus[container_id], believed.mems[container_id] = cpus, mems
        assert cpus in (living[container_id].cpus, CPUSet())
        assert mems in (living[container_id].mems, CPUSet())
    if engine.layout.settings.pin_memory:
        bookkeeping.check(engine, believed)
    assert stores.on_disk(it.daemon._store.path) == stores.grants(engine)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("version", ["2.4.0", "2.1.9"])
def test_the_books_are_right_whatever_comes_first(seed: int, version: str, tmp_path: Path) -> None:
    race = Race(random.Random(seed))
    synthetic.write(nodes.SMALL, tmp_path)

    async def run() -> None:
        timeouts = Timeouts(request=REQUEST)
        async with served(
            tmp_path, load=race.load, version=version, listening=False, timeouts=timeouts
        ) as it:
            for _ in range(ROUNDS):
                await race.round(it)
                await settle(it)
                check(it)
            assert it.daemon.plugin.late_answers.total()

    asyncio.run(run())
