"""The table of group records, with an index for each question about many groups.

Only `put` replaces a record, and only it changes an index; each index follows from the records
alone, as a property test checks (`tests/property/test_controller.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from math import inf
from typing import Any, TypeVar

from msgspec.structs import replace

from nri_policy.cluster.groups.record import Group, QueuePlace, Reservation, SeenGroup
from nri_policy.cluster.objects.metadata import Key
from nri_policy.cluster.requests.group import hosts_of

Of = TypeVar("Of")
_UNKNOWN = Group()


class GroupTable:
    """Records by namespace and name; each index has keys in the order in which they came in."""

    def __init__(self) -> None:
        self.records: dict[Key, Group] = {}
        self.pending: dict[Key, None] = {}
        self.unanswered: dict[Key, None] = {}
        self.delayed: dict[Key, None] = {}  # to be looked at at a time, without news
        self.evicted: dict[Key, None] = {}  # lost their places; pods may still be there
        self.waiting: dict[Key, QueuePlace] = {}  # in the queue, each with its place
        self.holding: dict[Key, Reservation] = {}  # with hosts set aside
        self.growing: dict[Key, None] = {}  # that lack pods beside their places
        self.counting: dict[Key, None] = {}  # refused by a rule about other groups
        self._on_host: dict[str, dict[Key, None]] = {}  # groups that have places
        self._owned: dict[str, dict[Key, None]] = {}  # by the uid of an owner

    def __getitem__(self, key: Key) -> Group:
        """Return a record, that of an unknown group where there is none."""
        return self.records.get(key, _UNKNOWN)

    def object(self, key: Key) -> SeenGroup:
        """Return the object of a group that has one."""
        seen = self[key].seen
        assert seen is not None, key
        return seen

    def put(self, key: Key, new: Group) -> None:
        """Replace a record, and bring the indexes up to date."""
        new.check()
        old = self.records.get(key, _UNKNOWN)
        if new == _UNKNOWN:
            self.records.pop(key, None)
        else:
            self.records[key] = new
        if new.write is not old.write:
            _index(self.pending, key, on=new.write is not None)
        if new.unanswered is not old.unanswered:
            _index(self.unanswered, key, on=new.unanswered)
        if new.look_at != old.look_at:
            _index(self.delayed, key, on=new.look_at < inf)
        if new.place is not old.place:
            _set(self.waiting, key, new.place)
        if new.reservation is not old.reservation:
            _set(self.holding, key, new.reservation)
        if new.more is not old.more:
            _index(self.growing, key, on=bool(new.more))
        if new.counts_others is not old.counts_others:
            _index(self.counting, key, on=new.counts_others)
        if new.seen is not old.seen:
            self._index_object(key, old.seen, new.seen)

    def update(self, key: Key, **changed: Any) -> None:
        """Replace fields of a record."""
        self.put(key, replace(self[key], **changed))

    def _index_object(self, key: Key, old: SeenGroup | None, new: SeenGroup | None) -> None:
        for seen, on in ((old, False), (new, True)):
            if seen is not None:
                for host in hosts_of(seen.group):
                    _index_by(self._on_host, host, key, on=on)
                for uid in seen.owners:
                    _index_by(self._owned, uid, key, on=on)
        _index(self.evicted, key, on=new is not None and bool(new.group.status.evicted))

    def known(self) -> Collection[Key]:
        """Return the groups with an object."""
        return [key for key, each in self.records.items() if each.seen is not None]

    def states(self) -> Counter[str]:
        """Return how many groups there are of each state."""
        seen = (each.seen for each in self.records.values())
        return Counter(each.group.status.state for each in seen if each is not None)

    def on_host(self, host: str) -> Collection[Key]:
        """Return the groups that have places on a host."""
        return self._on_host.get(host, ())

    def owned_by(self, uid: str) -> Collection[Key]:
        """Return the groups of an owner."""
        return self._owned.get(uid, ())

    def lacks(self, revisions: Mapping[Key, str]) -> set[Key]:
        """Return the groups whose *revisions* the watch has not delivered."""
        return {key for key, each in revisions.items() if self[key].revision != each}

    def look_again(self, key: Key, at: float) -> None:
        """Have a group looked at then, without news."""
        self.put(key, self[key].with_look(at))

    def say(self, key: Key, problem: str) -> bool:
        """Record what a group lacks; return whether that is news."""
        if self[key].problem == problem:
            return False
        self.update(key, problem=problem)
        return bool(problem)


def _set(index: dict[Key, Of], key: Key, value: Of | None) -> None:
    if value is None:
        index.pop(key, None)
    else:
        index[key] = value


def _index(index: dict[Key, None], key: Key, *, on: bool) -> None:
    if on:
        index[key] = None
    else:
        index.pop(key, None)


def _index_by(index: dict[str, dict[Key, None]], name: str, key: Key, *, on: bool) -> None:
    own = index.setdefault(name, {})
    _index(own, key, on=on)
    if not own:
        del index[name]
