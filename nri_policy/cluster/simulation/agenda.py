"""The clock of a simulation, and what is due when."""

from __future__ import annotations

import heapq
from math import inf

from nri_policy.cluster.objects.metadata import Key


class Agenda:
    """Seconds since the start, and the moments at which something may change."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Key | None]] = []  # when, and the group that ends then
        self._ends: dict[Key, int] = {}  # the number of the event
        self._number = 0

    def schedule(self, at: float, ending: Key | None = None) -> None:
        """Have groups looked at then; one may be *ending*, instead of at an earlier time."""
        self._number += 1
        if ending is not None:
            self._ends[ending] = self._number
        heapq.heappush(self._events, (at, self._number, ending))

    def cancel_end(self, key: Key) -> None:
        """Remove the end of a group, if one is scheduled."""
        self._ends.pop(key, None)

    def next(self) -> float:
        """When the next event is due, infinity if there is none."""
        return self._events[0][0] if self._events else inf

    def take_due(self) -> list[Key]:
        """Advance to the next event; return the groups that end then, which it forgets."""
        self.now, ended = self.next(), []
        while self.next() <= self.now:
            _, number, key = heapq.heappop(self._events)
            if key is not None and self._ends.get(key) == number:
                del self._ends[key]
                ended.append(key)
        return ended
