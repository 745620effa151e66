"""The queue of waiting groups: the order of attempts, and the groups with reserved hosts.

Order is priority, then groups that run and lack pods, then age. A group that did not fit is tried
again only after a change that could help, and does not block the groups behind it. After `timeout`
seconds of waiting the first group in this order becomes the *holder*, one per topology (spec
cluster.md §9), until its hold ends, or until a group of higher priority or a running group takes
over. A group that would not fit even after the end of all pods that end by themselves is never the
holder, and is not tried again before nodes or lasting pods change. The caller passes the time.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator
from dataclasses import dataclass
from datetime import datetime
from math import inf
from typing import Generic, TypeVar

GroupKey = TypeVar("GroupKey", bound=Hashable)
Rank = tuple[int, bool, str, float]  # lower goes first
PAUSE = 600.0  # seconds between the first hold of a group and its next one; doubled each time
MAX_PAUSE = 43_200.0  # seconds


@dataclass(slots=True)
class _Waiting:
    rank: Rank
    since: float  # from when on it waits
    topology: str
    holds: bool  # whatever it has waited
    ended: int  # holds, without a place
    paused_until: float  # it holds no hosts before
    tried: int = -1  # change number at the last attempt
    refused: bool = False
    hopeless: bool = False
    barred: bool = False  # no hosts could hold this group
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
        runs: bool = False,
        holds: bool = False,
        ended: int = 0,
        paused_until: float = -inf,
    ) -> None:
        """Take a group that waits since then. It may be tried at once.

        Of equal priority those that have places and lack some (*runs*) go first, then the one that
        was *created* first. One that *holds* has hosts set aside for it already; *ended* holds
        found it no place, and it holds none before *paused_until*.
        """
        rank = (-priority, not runs, created, since)
        self._waiting[key] = _Waiting(rank, since, topology, holds, ended, paused_until)

    def prioritize(self, key: GroupKey, priority: int) -> None:
        """Take in the priority of a group: if it waits, it moves, and all are tried again."""
        found = self._waiting.get(key)
        if found is not None and found.rank[0] != -priority:
            found.rank = (-priority, *found.rank[1:])
            self.note_change()

    def note_edit(self, key: GroupKey) -> None:
        """Retry a waiting group, because its request changed."""
        found = self._waiting.get(key)
        if found is not None:
            found.tried, found.final, found.barred = -1, False, False

    def remove(self, key: GroupKey) -> None:
        """Forget a group, if it waits."""
        self._waiting.pop(key, None)

    def note_change(self) -> None:
        """Note that a group may fit now."""
        self._change += 1

    def note_new_cluster(self) -> None:
        """Note that nodes or lasting pods changed: final refusals are void."""
        for each in self._waiting.values():
            each.final = each.barred = False
        self.note_change()

    def note_refusal(
        self, key: GroupKey, *, hopeless: bool, holds: bool = False, final: bool = False
    ) -> None:
        """Record that a group did not fit; no hosts are reserved for a *hopeless* group.

        With *holds*, the group becomes a holder, because victims of preemption leave. A *final*
        refusal lasts until nodes or lasting pods change.
        """
        found = self._waiting[key]
        found.tried, found.refused, found.final = self._change, True, final
        found.hopeless, found.holds = hopeless, holds or (found.holds and not hopeless)

    def bar(self, key: GroupKey) -> None:
        """Reserve no hosts for a group until nodes or lasting pods change."""
        self._waiting[key].barred = True

    def pause(self, key: GroupKey, now: float) -> None:
        """End the hold of a group without a place, and delay its next hold."""
        found = self._waiting[key]
        found.holds = False
        found.paused_until = now + min(PAUSE * 2.0 ** min(found.ended, 20), MAX_PAUSE)
        found.ended += 1
        self.note_change()

    def pauses(self, key: GroupKey) -> tuple[int, float]:
        """Return how many holds of a group ended without a place, and when it may hold again."""
        found = self._waiting[key]
        return found.ended, found.paused_until

    def end_of_pause(self, now: float) -> float:
        """Return when the next group may hold again."""
        times = (each.paused_until for each in self._waiting.values())
        return min((each for each in times if each > now), default=inf)

    @property
    def change(self) -> int:
        """The number of the latest change that could make a group fit."""
        return self._change

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

    def holders(
        self, now: float, timeout: float, current: Collection[GroupKey] = ()
    ) -> list[GroupKey]:
        """Return the groups for which hosts are set aside, in order; one of a topology at most.

        They have waited *timeout* seconds, or hold already, as the *current* ones do.
        """
        found: dict[str, tuple[tuple[int, bool, bool, Rank], GroupKey]] = {}
        for key, waiting in self._waiting.items():
            if _is_holder(waiting, now, timeout):
                priority, waits, *_ = waiting.rank
                order = priority, waits, key not in current, waiting.rank
                first = found.get(waiting.topology)
                if first is None or order < first[0]:
                    found[waiting.topology] = order, key
        return sorted((key for _, key in found.values()), key=self.rank)

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
    if waiting.barred or now < waiting.paused_until:
        return False
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
