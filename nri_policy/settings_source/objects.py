"""Which of the cluster's TopologyAwarePolicy objects counts for a node, and what is known of them.

One object counts as a whole: that of the node, else that of its group, else the default one. Rule:
what the cluster has not said is not known. As long as an object that would come first may exist,
what counted before goes on to count: an outage changes no settings.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

LABEL = "config.nri/group"  # of a node


class Level(IntEnum):
    """Where an object stands, the first one first."""

    NODE = 0
    GROUP = 1
    DEFAULT = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A TopologyAwarePolicy object."""

    name: str
    generation: int  # of its spec
    spec: Any  # as the API server has it, unchecked
    nodes: frozenset[str] = field(default=frozenset(), compare=False)  # that have said their status


class Known:
    """What the cluster has said of the objects for one node."""

    def __init__(self, counting: Policy | None = None, *, settled: bool = False) -> None:
        """Take what counted when the cluster was last heard of, if it ever was: *settled*."""
        self.counting = counting
        self.settled = settled
        self._said: dict[Level, Policy | None] = {}

    def say(self, level: Level, policy: Policy | None) -> bool:
        """Take what the cluster says of one level, None for no object.

        Return whether something else counts now, or it is known for the first time what does.
        """
        self._said[level] = policy
        return self._settle()

    def forget(self, level: Level) -> None:
        """Know nothing of a level any more: it is about another object now."""
        self._said.pop(level, None)

    def others(self) -> Iterator[Policy]:
        """Yield the objects that are known and do not count."""
        for policy in self._said.values():
            if policy is not None and (self.counting is None or policy.name != self.counting.name):
                yield policy

    def _settle(self) -> bool:
        """Find out what counts; return whether that is news."""
        found: Policy | None = None
        for level in Level:
            if level not in self._said:
                return False
            if (found := self._said[level]) is not None:
                break
        before = self.settled, self.counting
        self.settled, self.counting = True, found
        return before != (True, found)


def name_of(level: Level, of: str = "") -> str:
    """Return the name of a level's object, of a node or a group."""
    return "default" if level is Level.DEFAULT else f"{level.name.lower()}.{of}"
