"""The queue of groups that wait for a place: who is tried next, and who holds others up.

Order is priority, then age. A group that did not fit is tried again only after something came that
could help, and others go before it; after `timeout` seconds of waiting it holds its place: nobody
behind it is tried until it fits, so that small groups cannot starve a large one. One that would not
even fit into an empty cluster holds nobody up. It has no clock of its own.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


@dataclass(slots=True)
class _Waiting:
    priority: int
    since: float  # from when on it waits
    created: str  # its age, as the API server writes times: no clock of ours is in it
    tried: int = -1  # the change up to which it has been tried
    hopeless: bool = False
    holds: bool = False


class Queue(Generic[Key]):
    """Groups that wait, by key."""

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self._waiting: dict[Key, _Waiting] = {}
        self._change = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, key: Key) -> bool:
        return key in self._waiting

    def put(self, key: Key, priority: int, since: float, created: str = "") -> None:
        """Take a group that waits since then, or its new priority. It may be tried at once.

        Of equal priority the one that was *created* first goes first.
        """
        found = self._waiting.get(key)
        since = since if found is None else found.since
        self._waiting[key] = _Waiting(priority, since, created)

    def remove(self, key: Key) -> None:
        """Forget a group, if it waits; those that it held up may be tried."""
        self._waiting.pop(key, None)

    def changed(self) -> None:
        """Take in that something came that could make a group fit."""
        self._change += 1

    def refused(self, key: Key, *, hopeless: bool, holds: bool = False) -> None:
        """Take in that a group did not fit; *hopeless*: not even into an empty cluster.

        One that *holds* its place lets nobody pass from now on: others leave for it.
        """
        found = self._waiting[key]
        found.tried, found.hopeless, found.holds = self._change, hopeless, holds

    def due(self, now: float) -> Iterator[Key]:
        """Yield the groups to try, in order; after each, `remove` or `refused` says what came."""
        for key, waiting in sorted(
            self._waiting.items(),
            key=lambda each: (-each[1].priority, each[1].created, each[1].since),
        ):
            if waiting.tried != self._change:
                yield key
            if key in self._waiting and self._holds(waiting, now):
                return

    def waited(self, key: Key, now: float) -> float:
        """Return for how many seconds a group has been waiting."""
        return now - self._waiting[key].since

    def oldest(self, now: float) -> float:
        """Return for how many seconds the oldest group has been waiting; 0 if none is."""
        return max((now - each.since for each in self._waiting.values()), default=0.0)

    def _holds(self, waiting: _Waiting, now: float) -> bool:
        if waiting.holds:
            return True
        return not waiting.hopeless and waiting.tried >= 0 and now >= waiting.since + self.timeout


def seconds_between(earlier: str, later: str) -> float:
    """Return the seconds between two times as the API server writes them; 0 for what is none."""
    try:
        seconds = datetime.fromisoformat(later) - datetime.fromisoformat(earlier)
        return max(seconds.total_seconds(), 0.0)
    except (ValueError, TypeError):
        return 0.0
