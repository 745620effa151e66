"""Faults that are put into the daemon, one at a time: a play must find each.

Each takes away one rule by which decisions come into force (docs/runtime.md). Some rules are not
here: another one makes up for them within the bounds that are checked.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

from nri_policy.audit.orphans import OrphanFinder
from nri_policy.audit.parents import ParentCgroups
from nri_policy.daemon.daemon import Daemon
from nri_policy.delivery.executor import Executor
from nri_policy.delivery.overlaps import Overlaps
from nri_policy.delivery.partitions import Partitions
from nri_policy.plugin.answers import Answers
from nri_policy.store.store import Store
from nri_policy.workload.pod import Container


async def _nothing(*_: object, **_options: object) -> None:
    """Do nothing."""


async def _never_again(*_: object) -> float:
    return 1e6


async def _no_cases(*_: object) -> tuple[()]:
    return ()


_END = Partitions.end


async def _end_and_give_away(
    self: Partitions, *container_ids: str, until: float | None = None
) -> tuple[()]:
    await _END(self, *container_ids, until=until)
    self.stuck.clear()
    return ()


def _patch(owner: Any, name: str, instead: Any) -> AbstractContextManager[Any]:
    return mock.patch.object(owner, name, instead)


MUTANTS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "a start does not wait for those that leave its CPUs": lambda: _patch(
        Executor, "wait_until_clear", _nothing
    ),
    "what was sent is not looked at": lambda: _patch(Executor, "look", _no_cases),
    "partitions are not looked at again": lambda: _patch(Partitions, "look", _never_again),
    "an owner that ends stays a partition until its cgroup is removed": lambda: _patch(
        Partitions, "end", _nothing
    ),
    "overlaps are not watched": lambda: _patch(Overlaps, "look", _never_again),
    "nothing is stored": lambda: _patch(Store, "commit", lambda *_: None),
    "what could not be stored is not stored again": lambda: _patch(Daemon, "keep_stored", _nothing),
    "nobody looks at cgroups above pods": lambda: _patch(ParentCgroups, "look", _nothing),
    "CPUs of a partition that cannot be ended are given away": lambda: _patch(
        Partitions, "end", _end_and_give_away
    ),
    "no answer takes changes along": lambda: _patch(Answers, "take", lambda *_a, **_k: []),
    "containers that have ended unheard are kept": lambda: _patch(OrphanFinder, "round", _nothing),
    "a successor takes over from a pod of its name that still runs": lambda: _patch(
        Container, "identity", property(lambda self: ("", self.full_name))
    ),
}
# A seed whose history finds it, of those that no early history finds.
FOUND_BY = {
    "a start does not wait for those that leave its CPUs": 33,
    "what was sent is not looked at": 5,
    "partitions are not looked at again": 5,
    "an owner that ends stays a partition until its cgroup is removed": 9,
    "overlaps are not watched": 84,
    "what could not be stored is not stored again": 11,
    "nobody looks at cgroups above pods": 18,
    "containers that have ended unheard are kept": 20,
}
