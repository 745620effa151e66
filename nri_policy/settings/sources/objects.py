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


class Scope(IntEnum):
    """Where an object stands, the first one first."""

    NODE = 0
    GROUP = 1
    DEFAULT = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyObject:
    """A TopologyAwarePolicy object."""

    name: str
    generation: int  # of its spec
    spec: Any  # as the API server has it, unchecked
    nodes: frozenset[str] = field(default=frozenset(), compare=False)  # that have said their status


class Known:
    """What the cluster has said of the objects for one node."""

    def __init__(self, counting: PolicyObject | None = None, *, settled: bool = False) -> None:
        """Take what counted when the cluster was last heard of, if it ever was: *settled*."""
        self.counting = counting
        self.settled = settled
        self._said: dict[Scope, PolicyObject | None] = {}

    def say(self, level: Scope, policy: PolicyObject | None) -> bool:
        """Take what the cluster says of one level, None for no object.

        Return whether something else counts now, or it is known for the first time what does.
        """
        self._said[level] = policy
        return self._settle()

    def forget(self, level: Scope) -> None:
        """Know nothing of a level any more: it is about another object now."""
        self._said.pop(level, None)

    def others(self) -> Iterator[PolicyObject]:
        """Yield the objects that are known and do not count."""
        for policy in self._said.values():
            if policy is not None and (self.counting is None or policy.name != self.counting.name):
                yield policy

    def _settle(self) -> bool:
        """Find out what counts; return whether that is news."""
        found: PolicyObject | None = None
        for level in Scope:
            if level not in self._said:
                return False
            if (found := self._said[level]) is not None:
                break
        before = self.settled, self.counting
        self.settled, self.counting = True, found
        return before != (True, found)


def name_of(level: Scope, of: str = "") -> str:
    """Return the name of a level's object, of a node or a group."""
    return "default" if level is Scope.DEFAULT else f"{level.name.lower()}.{of}"
