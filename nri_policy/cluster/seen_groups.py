"""PlacementGroups as they were seen, and what is asked to be written of them.

Owns what is under way: a write is, until its group is seen at another revision or is gone, or until
it is known that the write did not come to be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from msgspec import Struct

from nri_policy.cluster.group import PlacementGroup, hosts_of
from nri_policy.cluster.membership import Key
from nri_policy.cluster.writes import GroupWrite, WriteStatus


class SeenGroup(Struct, frozen=True):
    """A PlacementGroup as it was seen."""

    group: PlacementGroup
    revision: str
    owners: frozenset[str]  # uids


class SeenGroups:
    """PlacementGroups by namespace and name."""

    def __init__(self) -> None:
        self._seen: dict[Key, SeenGroup] = {}
        self._at: dict[str, set[Key]] = {}  # groups that have places, by host
        self._asked: dict[Key, GroupWrite] = {}
        self._unanswered: dict[Key, GroupWrite] = {}  # of those, what is to be asked again

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

    def evicted(self) -> set[Key]:
        """Return the groups that have lost their places, with pods that may still be there."""
        return {key for key, each in self._seen.items() if each.group.status.evicted}

    def lacks(self, revisions: Mapping[Key, str]) -> set[Key]:
        """Return the groups that are not known as they are at these *revisions*."""
        seen = self._seen
        return {
            key
            for key, revision in revisions.items()
            if key not in seen or seen[key].revision != revision
        }

    def see(self, key: Key, seen: SeenGroup) -> tuple[SeenGroup | None, bool]:
        """Take in a group as it is now.

        Return it as it was, and whether it is as it would be: no write of its status is under way.
        """
        old = self._forget(key)
        self._seen[key] = seen
        for host in hosts_of(seen.group):
            self._at.setdefault(host, set()).add(key)
        asked = self._asked.get(key)
        if isinstance(asked, WriteStatus) and asked.revision == seen.revision:
            return old, False
        self._asked.pop(key, None)
        return old, True

    def remove(self, key: Key) -> None:
        """Take in that a group went."""
        self._forget(key)
        self._asked.pop(key, None)

    def ask(self, write: GroupWrite) -> None:
        """Take in that a write is under way."""
        self._asked[write.group.namespace, write.group.name] = write

    def is_under_way(self, key: Key) -> bool:
        """Whether a write of a group is."""
        return key in self._asked

    def under_way(self) -> list[GroupWrite]:
        """Return the writes that are."""
        return [*self._asked.values()]

    def failed(self, key: Key) -> SeenGroup | None:
        """Take in that a write did not come to be; return the group as it is."""
        self._asked.pop(key, None)
        return self._seen.get(key)

    def unanswered(self, write: GroupWrite) -> None:
        """Take in that nobody knows whether a write came to be."""
        self._unanswered[write.group.namespace, write.group.name] = write

    def again(self) -> list[GroupWrite]:
        """Return what is to be asked again: nobody answered, and nothing was seen since."""
        again, self._unanswered = self._unanswered, {}
        return [write for key, write in again.items() if self._asked.get(key) is write]

    def _forget(self, key: Key) -> SeenGroup | None:
        """Forget a group; return it as it was seen."""
        seen = self._seen.pop(key, None)
        for host in hosts_of(seen.group) if seen is not None else ():
            self._at[host].discard(key)
            if not self._at[host]:
                del self._at[host]
        return seen
