"""PlacementGroups from the watch, and their pending writes.

A write is pending until the watch shows another revision or the removal of its group, or until the
API server refuses it. A group whose write failed is left alone for a while.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping

from msgspec import Struct

from nri_policy.cluster.groups.refusals import Refusals
from nri_policy.cluster.groups.writes import GroupWrite, WriteStatus
from nri_policy.cluster.objects.group import PlacementGroup, hosts_of
from nri_policy.cluster.objects.metadata import Key


class SeenGroup(Struct, frozen=True):
    """A PlacementGroup as it was seen."""

    group: PlacementGroup
    revision: str
    owners: frozenset[str]  # uids


class SeenGroups:
    """PlacementGroups by namespace and name."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.refusals = Refusals(now)
        self._heard: dict[Key, str] = {}  # revisions of which we have been told
        self._seen: dict[Key, SeenGroup] = {}
        self._at: dict[str, set[Key]] = {}  # groups that have places, by host
        self._owned: dict[str, set[Key]] = {}  # groups, by the uid of an owner
        self._asked: dict[Key, GroupWrite] = {}
        self._unanswered: dict[Key, GroupWrite] = {}  # pending writes to repeat

    def __getitem__(self, key: Key) -> SeenGroup:
        return self._seen[key]

    def get(self, key: Key) -> SeenGroup | None:
        """Return a group, None where it is not known."""
        return self._seen.get(key)

    def keys(self) -> Collection[Key]:
        """Return the groups that are known."""
        return self._seen.keys()

    def states(self) -> Counter[str]:
        """Return how many groups there are of each state."""
        return Counter(each.group.status.state for each in self._seen.values())

    def on_host(self, host: str) -> Collection[Key]:
        """Return the groups that have places on a host."""
        return self._at.get(host, ())

    def owned_by(self, uid: str) -> Collection[Key]:
        """Return the groups of an owner."""
        return self._owned.get(uid, ())

    def evicted_groups(self) -> set[Key]:
        """Return the groups that have lost their places, with pods that may still be there."""
        return {key for key, each in self._seen.items() if each.group.status.evicted}

    def lacks(self, revisions: Mapping[Key, str]) -> set[Key]:
        """Return the groups whose *revisions* the watch has not delivered."""
        return {key for key, each in revisions.items() if self._heard.get(key) != each}

    def hear(self, key: Key, revision: str) -> None:
        """Record the revision of a group, even if its object is invalid."""
        self._heard[key] = revision

    def see(self, key: Key, seen: SeenGroup) -> tuple[SeenGroup | None, bool]:
        """Store a group from the watch.

        Return the previous object, and whether no write of its status is pending.
        """
        old = self._forget(key)
        self._seen[key] = seen
        for host in hosts_of(seen.group):
            self._at.setdefault(host, set()).add(key)
        for uid in seen.owners:
            self._owned.setdefault(uid, set()).add(key)
        asked = self._asked.get(key)
        if isinstance(asked, WriteStatus) and asked.revision == seen.revision:
            return old, False
        if self._asked.pop(key, None) is not None:
            self.refusals.remove(key)
        return old, True

    def remove(self, key: Key) -> None:
        """Remove a group."""
        self._forget(key)
        self._heard.pop(key, None)
        self._asked.pop(key, None)
        self.refusals.remove(key)

    def ask(self, write: GroupWrite) -> None:
        """Record a pending write."""
        self._asked[write.group.namespace, write.group.name] = write

    def is_under_way(self, key: Key) -> bool:
        """Whether a write of a group is pending, or is paused after a failure."""
        return key in self._asked or self.refusals.holds(key)

    def under_way(self) -> list[GroupWrite]:
        """Return the writes that are."""
        return [*self._asked.values()]

    def note_failure(self, key: Key) -> SeenGroup | None:
        """Drop a failed write; return the group from the watch."""
        self._asked.pop(key, None)
        return self._seen.get(key)

    def note_no_answer(self, write: GroupWrite) -> None:
        """Mark a write whose answer was lost."""
        self._unanswered[write.group.namespace, write.group.name] = write

    def again(self) -> list[GroupWrite]:
        """Return the writes to repeat: without an answer, and without news from the watch."""
        due = [key for key in self._unanswered if not self.refusals.holds(key)]
        again = {key: self._unanswered.pop(key) for key in due}
        return [write for key, write in again.items() if self._asked.get(key) is write]

    def _forget(self, key: Key) -> SeenGroup | None:
        """Forget a group; return it as it was seen."""
        seen = self._seen.pop(key, None)
        if seen is None:
            return None
        for index, names in ((self._at, hosts_of(seen.group)), (self._owned, seen.owners)):
            for name in names:
                index[name].discard(key)
                if not index[name]:
                    del index[name]
        return seen
