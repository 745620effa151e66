"""When the executor looks at its plan again."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping

from nri_policy.delivery.executor import Executor
from nri_policy.delivery.inputs import Action, CpusetsTouched, PodsChanged, RequestBegan
from nri_policy.engine.engine import Engine
from nri_policy.foundation.clock import Clock
from nri_policy.node import Node
from nri_policy.nri.plugin import PluginIdentity
from nri_policy.nri.session import Session
from nri_policy.plugin.runtime_link import RuntimeLink
from tests.support import nodes
from tests.unit.nri.peer import FakeTime, RecordingPlugin


async def test_an_input_wakes_the_loop_only_if_something_is_due_before_it_wakes_anyway() -> None:
    node = Node(Engine(nodes.machine(), nodes.settings()))
    times = iter((10.0, 12.0, 11.0))
    executor = Executor(node, None, clock=Clock(now=lambda: next(times)))
    executor._alarm.at = 12.0
    executor.apply(RequestBegan())
    assert not executor._alarm.rang.is_set()
    executor.apply(PodsChanged(pod_ids=["any"]))
    assert not executor._alarm.rang.is_set(), "it wakes at that time"
    executor.apply(PodsChanged(pod_ids=["any"]))
    assert executor._alarm.rang.is_set()


class Looking:
    """An executor whose loop runs, by a clock that stands still."""

    def __init__(self) -> None:
        self.time = FakeTime()
        node = Node(Engine(nodes.machine(), nodes.settings()))
        self.executor = Executor(node, None, clock=self.time.clock)
        self.plans = 0
        self._plan = self.executor.state.plan
        self.executor.state.plan = self.plan  # type: ignore[method-assign]
        identity = PluginIdentity(name="any", index="00")
        link = RuntimeLink(Session(RecordingPlugin(), identity))
        self.running = asyncio.create_task(self.executor.run(link))

    def plan(self, now: float) -> Mapping[Action, float]:
        self.plans += 1
        return self._plan(now)

    async def settle(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)


async def test_the_loop_looks_at_its_plan_only_when_something_is_due() -> None:
    looking, looks = Looking(), 0

    async def look() -> None:
        nonlocal looks
        looks += 1

    looking.executor.looks[Action.QUOTAS] = look
    await looking.settle()
    looking.executor.apply(CpusetsTouched())
    await looking.settle()
    assert looking.plans == 1, "a look at cpusets is due after 0.1 s"
    looking.executor.apply(PodsChanged(pod_ids=["any"]))
    await looking.settle()
    assert looks == 1
    assert looking.plans == 2, "the next look at quotas is due after 0.5 s"
    looking.time.advance(0.11)
    await looking.settle()
    assert looking.plans == 3
    looking.running.cancel()


async def test_an_action_that_becomes_due_while_it_is_under_way_is_done_again() -> None:
    looking, looks = Looking(), 0

    async def look() -> float:
        nonlocal looks
        looks += 1
        if looks == 1:
            looking.executor.apply(CpusetsTouched(partitions=True))
            await looking.settle()
        return math.inf

    looking.executor.looks[Action.PARTITIONS] = look
    looking.executor.apply(CpusetsTouched(partitions=True))
    for expected in (0, 1, 2):
        await looking.settle()
        assert looks == expected
        looking.time.advance(0.11)
    looking.running.cancel()
