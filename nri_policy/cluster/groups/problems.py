"""What groups and pods lack, or what is wrong with them: each is said once."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from nri_policy.cluster.groups.seen_groups import SeenGroup, SeenGroups
from nri_policy.cluster.groups.writes import Notice, Write, WriteStatus, with_status
from nri_policy.cluster.objects.group import GroupStatus
from nri_policy.cluster.objects.metadata import Key


class Problems:
    """The latest problem of each group, and of each pod: a pod may have the name of a group."""

    def __init__(self, groups: SeenGroups) -> None:
        self.texts: dict[Key, str] = {}  # by group
        self.of_pods: dict[Key, str] = {}
        self._groups = groups

    def tell(
        self,
        seen: SeenGroup,
        found: GroupStatus,
        standing: str = "",
    ) -> Iterator[Write]:
        """Yield the status that says why a group waits, and an Event, unless they are said.

        It is what was *found*, and the group's *standing*, which changes often.
        """
        group = seen.group
        key = (group.namespace, group.name)
        status = replace(
            group.status,
            state=found.state,
            message="; ".join(each for each in (standing, found.message) if each),
            reserved=found.reserved,
            hold=found.hold,
            conditions=found.conditions,
        )
        if status != group.status and not self._groups.is_under_way(key):
            yield WriteStatus(with_status(group, status), seen.revision)
        if self.say(key, found.message):
            yield Notice(key, found.state, found.message)

    def say(self, key: Key, problem: str) -> bool:
        """Note what a group lacks; return whether that is news."""
        return _say(self.texts, key, problem)

    def say_of_pod(self, key: Key, problem: str) -> bool:
        """Note what is wrong with a pod; return whether that is news."""
        return _say(self.of_pods, key, problem)


def _say(texts: dict[Key, str], key: Key, problem: str) -> bool:
    if not problem:
        texts.pop(key, None)
        return False
    news = texts.get(key) != problem
    texts[key] = problem
    return news
