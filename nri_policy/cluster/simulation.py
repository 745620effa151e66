"""Playing what happens in a cluster: groups come and go, nodes fail and recover.

A group that does not fit waits; those that wait are tried again after each step, by priority, then
by age. Time goes only by `advance`.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
from msgspec import Struct

from nri_policy.cluster.document import DocumentError, convert, join
from nri_policy.cluster.engine import Engine
from nri_policy.cluster.group import PlacementGroup, State, Status
from nri_policy.cluster.membership import Key
from nri_policy.cluster.trial import fold, try_group
from nri_policy.cluster.workload import read_groups
from nri_policy.units import parse_duration
from nri_policy.wording import did_you_mean, quoted

_FIXED = 30.0  # seconds until a node counts as failed under Fixed30s


class Expected(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """What a group is to be like; what is not named may be anything."""

    state: State | None = None
    message: str | None = None  # a part of it
    domains: dict[str, int] | None = None  # pods by the last value of the domains above hosts


class Step(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """One step: exactly one of these."""

    apply: list[Any] | None = None
    delete: list[str] | None = None
    fail: list[str] | None = None
    recover: list[str] | None = None
    advance: str | None = None
    expect: dict[str, Expected] | None = None


class GroupState(Struct, frozen=True):
    """A group after a step; pods by the domains above hosts."""

    name: str
    state: State
    message: str
    domains: dict[str, int]


class Played(Struct, frozen=True):
    """A step that was played: what there is after it, and what was not as expected."""

    step: Step
    groups: list[GroupState]
    problems: list[str]


def read_steps(documents: list[object]) -> list[Step]:
    """Return the steps of a scenario; raises DocumentError."""
    steps = []
    for number, value in enumerate(documents):
        path = f"step {number + 1}"
        step = convert(value, Step, path)
        named = [name for name in Step.__struct_fields__ if getattr(step, name) is not None]
        if len(named) != 1:
            raise DocumentError(path, f"has {len(named)} of {', '.join(Step.__struct_fields__)}")
        if step.advance is not None:
            try:
                parse_duration(step.advance)
            except ValueError as error:
                raise DocumentError(join(path, "advance"), str(error)) from None
        steps.append(step)
    return steps


class Simulation:
    """A cluster in which steps are played."""

    def __init__(self, engine: Engine) -> None:
        """Go on from what *engine* has been told."""
        self._engine = engine
        self._now = 0.0
        self._failed: dict[str, float] = {}  # node -> when
        self._groups: dict[Key, PlacementGroup] = dict(engine.groups)  # by age

    def play(self, step: Step) -> Played:
        """Play a step; raises DocumentError for one that names what there is not."""
        for group in read_groups(step.apply or ()):
            self._drop((group.namespace, group.name))
            self._groups[group.namespace, group.name] = group
        for name in step.delete or ():
            self._drop(self._key(name))
        for name in step.fail or ():
            self._set_ready(name, ready=False)
            self._failed.setdefault(name, self._now)
        for name in step.recover or ():
            self._set_ready(name, ready=True)
            self._failed.pop(name, None)
        if step.advance is not None:
            self._now += parse_duration(step.advance)
        self._replace()
        self._try_waiting()
        states = {key: self._state(group) for key, group in self._groups.items()}
        problems: list[str] = []
        for name, expected in (step.expect or {}).items():
            problems += _differences(expected, states[self._key(name)])
        return Played(step=step, groups=[*states.values()], problems=problems)

    def _drop(self, key: Key) -> None:
        self._groups.pop(key, None)
        self._engine.remove_group(*key)

    def _key(self, name: str) -> Key:
        namespace, _, own = name.rpartition("/")
        key = (namespace or "default", own)
        if key not in self._groups:
            hint = did_you_mean(own, [each for _, each in self._groups])
            raise DocumentError("", f"there is no group {quoted(name)}{hint}")
        return key

    def _set_ready(self, name: str, *, ready: bool) -> None:
        node = self._engine.nodes.get(name)
        if node is None:
            hint = did_you_mean(name, self._engine.nodes)
            raise DocumentError("", f"there is no node {quoted(name)}{hint}")
        self._engine.set_node(msgspec.structs.replace(node, ready=ready))

    def _set(self, group: PlacementGroup, status: Status) -> None:
        key = (group.namespace, group.name)
        self._groups[key] = msgspec.structs.replace(group, status=status)
        if status.assignments:
            self._engine.set_group(self._groups[key])
        else:
            self._engine.remove_group(*key)

    def _replace(self) -> None:
        """Place the pods of failed nodes anew; under failFast a group without room for them ends.

        A node counts as failed at once, or after 30 s under Fixed30s.
        """
        policy = self._engine.settings.failure
        patience = _FIXED if policy.policy == "Fixed30s" else 0.0
        gone = {name for name, since in self._failed.items() if self._now - since >= patience}
        for group in [*self._groups.values()]:
            there = {one.values[0] for each in group.status.assignments for one in each.domains}
            unhealthy = sorted(there & gone)
            if not unhealthy:
                if group.status.state == "Degraded":
                    placed = Status(state="Placed", assignments=group.status.assignments)
                    self._set(group, placed)
                continue
            status = msgspec.structs.replace(group.status, unhealthy_nodes=unhealthy)
            found = self._engine.place(msgspec.structs.replace(group, status=status))
            if found.state != "Placed" and not policy.fail_fast:
                found = msgspec.structs.replace(status, state="Degraded", message=found.message)
            self._set(group, found)

    def _try_waiting(self) -> None:
        waiting = [each for each in self._groups.values() if not each.status.assignments]
        for group in sorted(waiting, key=lambda each: -each.priority):
            if group.status.state == "Unplaceable":
                continue
            status = try_group(self._engine, group, {}).status
            if status.state != "Placed":
                status = Status(state="Waiting", message=status.message)
            self._set(group, status)

    def _state(self, group: PlacementGroup) -> GroupState:
        pods: Counter[str] = Counter()
        for part in fold(self._engine, group)[1]:
            pods[part.values[-1]] += part.pods
        status = group.status
        return GroupState(
            name=f"{group.namespace}/{group.name}",
            state=status.state,
            message=status.message,
            domains=dict(pods),
        )


def _differences(expected: Expected, found: GroupState) -> list[str]:
    """Return what of a group is not as expected."""
    problems = []
    if expected.state not in (None, found.state):
        problems.append(f"{found.name} is {found.state}, not {expected.state}")
    if expected.message is not None and expected.message not in found.message:
        problems.append(f"{found.name} says {quoted(found.message)}")
    if expected.domains is not None and expected.domains != found.domains:
        problems.append(f"{found.name} has {found.domains}, not {expected.domains}")
    return problems
