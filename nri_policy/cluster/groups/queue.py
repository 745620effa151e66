"""The queue of waiting groups: the order of attempts, and the groups with reserved hosts.

Order is priority, then groups that run and lack pods, then age. A group that did not fit is tried
again only after a change that could help, and does not block the groups behind it. After `timeout`
seconds of waiting the first group in this order becomes the *holder*, one per topology (spec
cluster.md §9), until its hold ends, or until a group of higher priority or a running group takes
over. A group that would not fit even after the end of all pods that end by themselves is never the
holder, and is not tried again before nodes or lasting pods change. The caller passes the time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import datetime
from math import inf
from typing import Any

from msgspec.structs import replace

from nri_policy.cluster.groups.record import QueuePlace, Rank
from nri_policy.cluster.groups.table import GroupTable
from nri_policy.cluster.objects.metadata import Key

PAUSE = 600.0  # seconds between the first hold of a group and its next one; doubled each time
MAX_PAUSE = 43_200.0  # seconds


class Queue:
    """The order of the groups that wait."""

    def __init__(self, groups: GroupTable) -> None:
        self._groups = groups
        self._change = 0
        # groups whose refusals still hold at this change, unless their places are others by now
        self._lasting: dict[Key, QueuePlace] = {}

    def __len__(self) -> int:
        return len(self._groups.waiting)

    def __contains__(self, key: Key) -> bool:
        return key in self._groups.waiting

    def __iter__(self) -> Iterator[Key]:
        return iter(self._groups.waiting)

    def put(self, key: Key, place: QueuePlace) -> None:
        """Take a group, which may be tried at once."""
        self._groups.update(key, place=place)

    def prioritize(self, key: Key, priority: int) -> None:
        """Take in the priority of a group: if it waits, it moves, and all are tried again."""
        place = self._groups[key].place
        if place is not None and place.rank[0] != -priority:
            self._update(key, rank=(-priority, *place.rank[1:]))
            self.note_change()

    def note_edit(self, key: Key) -> None:
        """Retry a waiting group: it asks for something else, or what it could not have before.

        Or it cannot say yet what it lacks.
        """
        if key in self:
            self._update(key, tried=-1, final=False, barred=False)

    def remove(self, key: Key) -> None:
        """Forget a group, if it waits."""
        if key in self:
            self._groups.update(key, place=None)

    def note_change(self) -> None:
        """Note that a group may fit now."""
        self._change += 1
        self._lasting.clear()

    def note_new_cluster(self) -> None:
        """Note that nodes or lasting pods changed: final refusals are void."""
        for key, place in [*self._groups.waiting.items()]:
            if place.final or place.barred:
                self._update(key, final=False, barred=False)
        self.note_change()

    def note_refusal(
        self, key: Key, *, hopeless: bool, holds: bool = False, final: bool = False
    ) -> None:
        """Record that a group did not fit; no hosts are reserved for a *hopeless* group.

        With *holds*, the group becomes a holder, because victims of preemption leave. A *final*
        refusal lasts until nodes or lasting pods change.
        """
        holds = holds or (self.place(key).holds and not hopeless)
        tried = self._change
        self._update(key, tried=tried, refused=True, final=final, hopeless=hopeless, holds=holds)

    def note_lasting_refusal(self, key: Key) -> None:
        """Record that the latest refusal of a group still holds."""
        self._lasting[key] = self.place(key)

    def bar(self, key: Key) -> None:
        """Reserve no hosts for a group until nodes or lasting pods change."""
        self._update(key, barred=True)

    def pause(self, key: Key, now: float) -> None:
        """End the hold of a group without a place, and delay its next hold."""
        ended = self.place(key).ended
        until = now + min(PAUSE * 2.0 ** min(ended, 20), MAX_PAUSE)
        self._update(key, holds=False, paused_until=until, ended=ended + 1)
        self.note_change()

    def end_of_pause(self, now: float) -> float:
        """Return when the next group may hold again."""
        waiting = self._groups.waiting.values()
        return min([each.paused_until for each in waiting if each.paused_until > now], default=inf)

    @property
    def change(self) -> int:
        """The number of the latest change that could make a group fit."""
        return self._change

    def place(self, key: Key) -> QueuePlace:
        """Return the place of a group that waits."""
        return self._groups.waiting[key]

    def rank(self, key: Key) -> Rank:
        """Return the rank of a group that waits."""
        return self.place(key).rank

    def due(self) -> Iterator[Key]:
        """Yield the groups to try, in order; `remove` or `note_refusal` follows each."""
        for key, place in self._in_order():
            if place.tried != self._change and key in self and self._lasting.get(key) is not place:
                yield key

    def all_due(self) -> Iterator[Key]:
        """Yield the groups to try, as `due` does, until none is left: one may help another."""
        while True:
            before = self._change
            yield from self.due()
            if self._change == before:
                return

    def holders(self, now: float, timeout: float, current: Collection[Key] = ()) -> list[Key]:
        """Return the groups for which hosts are set aside, in order; one of a topology at most.

        They have waited *timeout* seconds, or hold already, as the *current* ones do.
        """
        found: dict[str, tuple[tuple[int, bool, bool, Rank], Key]] = {}
        for key, place in self._groups.waiting.items():
            if _is_holder(place, now, timeout):
                priority, waits, *_ = place.rank
                order = priority, waits, key not in current, place.rank
                first = found.get(place.topology)
                if first is None or order < first[0]:
                    found[place.topology] = order, key
        return sorted((key for _, key in found.values()), key=self.rank)

    def oldest(self, now: float) -> float:
        """Return for how many seconds the oldest group has been waiting; 0 if none is."""
        return max((now - each.since for each in self._groups.waiting.values()), default=0.0)

    def _in_order(self) -> list[tuple[Key, QueuePlace]]:
        some = [each for each in self._groups.waiting.items() if not each[1].final]
        return sorted(some, key=lambda each: each[1].rank)

    def _update(self, key: Key, **changed: Any) -> None:
        """Replace fields of a group's place."""
        record = self._groups[key]
        self._groups.put(key, replace(record, place=replace(self.place(key), **changed)))


def _is_holder(place: QueuePlace, now: float, timeout: float) -> bool:
    if place.barred or not (place.holds or (place.refused and not place.hopeless)):
        return False
    return now >= place.paused_until and (place.holds or now >= place.since + timeout)


def seconds_between(earlier: str, later: str) -> float:
    """Return the seconds between two times as the API server writes them; 0 for what is none."""
    try:
        seconds = datetime.fromisoformat(later) - datetime.fromisoformat(earlier)
        return max(seconds.total_seconds(), 0.0)
    except (ValueError, TypeError):
        return 0.0
