"""Selects the TopologyAwarePolicy object in force for a node.

One object applies as a whole: that of the node, else that of its group, else the default one. Rule:
as long as an object of higher precedence may exist, because the cluster has not answered about it,
the previous one stays in force. So an outage changes no settings.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any


class PolicyScope(IntEnum):
    """The precedence of an object, highest first."""

    NODE = 0
    GROUP = 1
    DEFAULT = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyObject:
    """A TopologyAwarePolicy object."""

    name: str
    generation: int  # of its spec
    spec: Any  # as the API server has it, unchecked
    nodes: frozenset[str] = field(default=frozenset(), compare=False)  # nodes with a status in it


class PolicySelection:
    """The cluster's answers about the objects for one node."""

    def __init__(self, counting: PolicyObject | None = None, *, settled: bool = False) -> None:
        """Take the object that was in force last; *settled* if the cluster had ever answered."""
        self.counting = counting
        self.settled = settled
        self._said: dict[PolicyScope, PolicyObject | None] = {}

    def record(self, level: PolicyScope, policy: PolicyObject | None) -> bool:
        """Record the cluster's answer about one scope; None for no object.

        Return whether the object in force changed, or is known for the first time.
        """
        self._said[level] = policy
        return self._settle()

    def forget(self, level: PolicyScope) -> None:
        """Forget the answer about a scope, because it is about another object now."""
        self._said.pop(level, None)

    def others(self) -> Iterator[PolicyObject]:
        """Yield the known objects that are not in force."""
        for policy in self._said.values():
            if policy is not None and (self.counting is None or policy.name != self.counting.name):
                yield policy

    def _settle(self) -> bool:
        """Select the object in force; return whether it changed."""
        found: PolicyObject | None = None
        for level in PolicyScope:
            if level not in self._said:
                return False
            if (found := self._said[level]) is not None:
                break
        before = self.settled, self.counting
        self.settled, self.counting = True, found
        return before != (True, found)


def name_of(level: PolicyScope, of: str = "") -> str:
    """Return the name of a scope's object, for a node or a group."""
    return "default" if level is PolicyScope.DEFAULT else f"{level.name.lower()}.{of}"
