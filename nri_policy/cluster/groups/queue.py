"""The queue of groups that wait for a place: who is tried next, and for whom hosts are set aside.

Order is priority, then age. A group that did not fit is tried again only after something came that
could help, and others go before it. One that has waited `timeout` seconds becomes the *holder*, one
at a time on a topology: the first of them in the queue's order (spec cluster.md §9). One that would
not even fit into an empty cluster is none, and is not tried again before there is another cluster.
It has no clock of its own.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

GroupKey = TypeVar("GroupKey", bound=Hashable)
Rank = tuple[int, str, float]  # lower goes first


@dataclass(slots=True)
class _Waiting:
    rank: Rank
    since: float  # from when on it waits
    topology: str
    holds: bool  # whatever it has waited
    tried: int = -1  # the change up to which it has been tried
    refused: bool = False
    hopeless: bool = False
    final: bool = False  # nothing helps that becomes free


class Queue(Generic[GroupKey]):
    """Groups that wait, by key."""

    def __init__(self) -> None:
        self._waiting: dict[GroupKey, _Waiting] = {}
        self._change = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, key: GroupKey) -> bool:
        return key in self._waiting

    def __iter__(self) -> Iterator[GroupKey]:
        return iter(self._waiting)

    def put(  # noqa: PLR0913 - keywords: of what the queue knows nothing else
        self,
        key: GroupKey,
        priority: int,
        since: float,
        created: str = "",
        *,
        topology: str = "",
        holds: bool = False,
    ) -> None:
        """Take a group that waits since then. It may be tried at once.

        Of equal priority the one that was *created* first goes first. One that *holds* has hosts
        set aside for it already.
        """
        self._waiting[key] = _Waiting((-priority, created, since), since, topology, holds)

    def prioritize(self, key: GroupKey, priority: int) -> None:
        """Take in the priority of a group: if it waits, it moves, and all are tried again."""
        found = self._waiting.get(key)
        if found is not None and found.rank[0] != -priority:
            found.rank = (-priority, *found.rank[1:])
            self.note_change()

    def note_edit(self, key: GroupKey) -> None:
        """Take in that a group asks for something else: if it waits, it is tried again."""
        found = self._waiting.get(key)
        if found is not None:
            found.tried, found.final = -1, False

    def remove(self, key: GroupKey) -> None:
        """Forget a group, if it waits."""
        self._waiting.pop(key, None)

    def note_change(self) -> None:
        """Take in that something came that could make a group fit."""
        self._change += 1

    def note_new_cluster(self) -> None:
        """Take in that the cluster could hold something else if it were empty."""
        for each in self._waiting.values():
            each.final = False
        self.note_change()

    def note_refusal(
        self, key: GroupKey, *, hopeless: bool, holds: bool = False, final: bool = False
    ) -> None:
        """Take in that a group did not fit; *hopeless*: no hosts are to be set aside for it.

        One that *holds* is a holder from now on, for others leave for it. One whose refusal is
        *final* is tried again in another cluster only.
        """
        found = self._waiting[key]
        found.tried, found.refused, found.final = self._change, True, final
        found.hopeless, found.holds = hopeless, holds or (found.holds and not hopeless)

    def rank(self, key: GroupKey) -> Rank:
        """Return the rank of a group that waits."""
        return self._waiting[key].rank

    def due(self) -> Iterator[GroupKey]:
        """Yield the groups to try, in order; `remove` or `note_refusal` follows each."""
        for key, waiting in self._in_order():
            if waiting.tried != self._change and key in self._waiting:
                yield key

    def all_due(self) -> Iterator[GroupKey]:
        """Yield the groups to try, as `due` does, until none is left: one may help another."""
        while True:
            before = self._change
            yield from self.due()
            if self._change == before:
                return

    def holders(self, now: float, timeout: float) -> list[GroupKey]:
        """Return the groups for which hosts are set aside, in order; one of a topology at most.

        They have waited *timeout* seconds, or hold already.
        """
        found: dict[str, tuple[Rank, GroupKey]] = {}
        for key, waiting in self._waiting.items():
            if _is_holder(waiting, now, timeout):
                first = found.get(waiting.topology)
                if first is None or waiting.rank < first[0]:
                    found[waiting.topology] = waiting.rank, key
        return [key for _, key in sorted(found.values(), key=lambda each: each[0])]

    def seconds_waited(self, key: GroupKey, now: float) -> float:
        """Return for how many seconds a group has been waiting."""
        return now - self._waiting[key].since

    def oldest(self, now: float) -> float:
        """Return for how many seconds the oldest group has been waiting; 0 if none is."""
        return max((now - each.since for each in self._waiting.values()), default=0.0)

    def _in_order(self) -> list[tuple[GroupKey, _Waiting]]:
        some = [each for each in self._waiting.items() if not each[1].final]
        return sorted(some, key=lambda each: each[1].rank)


def _is_holder(waiting: _Waiting, now: float, timeout: float) -> bool:
    if waiting.holds:
        return True
    return waiting.refused and not waiting.hopeless and now >= waiting.since + timeout


def seconds_between(earlier: str, later: str) -> float:
    """Return the seconds between two times as the API server writes them; 0 for what is none."""
    try:
        seconds = datetime.fromisoformat(later) - datetime.fromisoformat(earlier)
        return max(seconds.total_seconds(), 0.0)
    except (ValueError, TypeError):
        return 0.0
