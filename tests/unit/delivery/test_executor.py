"""When the executor looks at its plan again."""

from __future__ import annotations

from nri_policy.delivery.executor import Executor
from nri_policy.delivery.inputs import PodsChanged, RequestBegan
from nri_policy.engine.engine import Engine
from nri_policy.foundation.clock import Clock
from nri_policy.node import Node
from tests.support import nodes


async def test_an_input_wakes_the_loop_only_if_something_is_due_before_it_wakes_anyway() -> None:
    node = Node(Engine(nodes.machine(), nodes.settings()))
    times = iter((10.0, 12.0, 11.0))
    executor = Executor(node, None, clock=Clock(now=lambda: next(times)))
    executor._wake_at = 12.0
    executor.apply(RequestBegan())
    assert not executor._changed.is_set()
    executor.apply(PodsChanged(pod_ids=["any"]))
    assert not executor._changed.is_set(), "it wakes at that time"
    executor.apply(PodsChanged(pod_ids=["any"]))
    assert executor._changed.is_set()
