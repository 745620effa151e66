"""Records of deliveries, changed by tests without what would usually have changed them."""

from __future__ import annotations

from typing import Any

from nri_policy.delivery.executor import Executor
from nri_policy.delivery.inputs import Action, ActionEnded
from nri_policy.delivery.record import InFlight


def change(executor: Executor, container_id: str, **fields: Any) -> None:
    """Give a record other fields."""
    executor.state.change(container_id, **fields)


def put_in_flight(executor: Executor, container_id: str, *, lost: bool = False) -> None:
    """Have a change be in flight, and looked at from now on."""
    now = executor.clock.now()
    flight = InFlight(since=now, request=executor.state.requests, lost=lost)
    change(executor, container_id, in_flight=flight)
    executor.apply(ActionEnded(action=Action.READ))


def land(executor: Executor) -> None:
    """Have nothing be in flight."""
    for each in [*executor.state.in_flight]:
        change(executor, each, in_flight=None)
