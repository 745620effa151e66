"""What groups and pods lack, or what is wrong with them: each is said once."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from nri_policy.cluster.membership import Key
from nri_policy.cluster.seen_groups import SeenGroup, SeenGroups
from nri_policy.cluster.writes import Notice, Write, WriteStatus, with_status


class Problems:
    """The latest problem of each group, and of each pod that belongs to none."""

    def __init__(self, groups: SeenGroups) -> None:
        self.texts: dict[Key, str] = {}
        self._groups = groups

    def tell(self, seen: SeenGroup, state: str, message: str) -> Iterator[Write]:
        """Yield the status that says why a group waits, and an Event, unless they are said."""
        group = seen.group
        key = (group.namespace, group.name)
        said = (group.status.state, group.status.message) == (state, message)
        if not said and not self._groups.is_under_way(key):
            status = replace(group.status, state=state, message=message)
            yield WriteStatus(with_status(group, status), seen.revision)
        if self.say(key, message):
            yield Notice(key, state, message)

    def say(self, key: Key, problem: str) -> bool:
        """Note what a group lacks; return whether that is news."""
        if not problem:
            self.texts.pop(key, None)
            return False
        news = self.texts.get(key) != problem
        self.texts[key] = problem
        return news

    def forget(self, key: Key) -> None:
        """Take in that a pod went."""
        self.texts.pop(key, None)
