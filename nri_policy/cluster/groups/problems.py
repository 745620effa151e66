"""What groups and pods lack, or what is wrong with them: each is said once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from nri_policy.cluster.groups.seen_groups import SeenGroup, SeenGroups
from nri_policy.cluster.groups.writes import Notice, Write, WriteStatus, with_status
from nri_policy.cluster.objects.metadata import Key


class Problems:
    """The latest problem of each group, and of each pod that belongs to none."""

    def __init__(self, groups: SeenGroups) -> None:
        self.texts: dict[Key, str] = {}
        self._groups = groups

    def tell(
        self,
        seen: SeenGroup,
        state: str,
        message: str,
        standing: str = "",
        reserved: Sequence[str] = (),
    ) -> Iterator[Write]:
        """Yield the status that says why a group waits, and an Event, unless they are said.

        The status has its *standing*, too, which changes often, and which hosts are *reserved*.
        """
        group = seen.group
        key = (group.namespace, group.name)
        status = replace(
            group.status,
            state=state,
            message="; ".join(each for each in (standing, message) if each),
            reserved=[*reserved],
            conditions=[],
        )
        if status != group.status and not self._groups.is_under_way(key):
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
