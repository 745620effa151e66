"""Overlap times: when all cpusets are looked at; a part of the delivery state, and as pure."""

from __future__ import annotations

import math

from nri_policy.delivery.inputs import Action
from nri_policy.delivery.record_table import RecordTable

SETTLE = 0.1  # seconds from a write to the look: a change is many writes
REST = 1.4  # seconds from a look until the next write counts: an overlap ends within two
BREATH = 0.3  # seconds from a look to the next of a period, at least; so at most a period more


class OverlapTimes:
    """When the next look at all cpusets is due."""

    def __init__(self, table: RecordTable) -> None:
        self._table = table
        self._rest_until = -math.inf  # when the latest look is long enough ago

    def cpusets_touched(self) -> None:
        """Look soon after a write or a decision."""
        soon = max(self._table.now, self._rest_until)
        self._table.hasten(Action.OVERLAPS, soon + SETTLE)

    def ended(self, period: float) -> None:
        """Look again with the next tick of a *period*, or after a cpuset changes."""
        now, due = self._table.now, self._table.due
        self._rest_until = now + REST
        if due[Action.OVERLAPS] < math.inf:  # one has changed during the look
            due[Action.OVERLAPS] = self._rest_until + SETTLE
        else:
            after = now + BREATH
            due[Action.OVERLAPS] = after + period - after % period
