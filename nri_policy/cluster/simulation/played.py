"""The results of a simulation's steps: groups, their changes, and unmet expectations."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from nri_policy.cluster.requests.group import PlacementGroup, State, hosts_of
from nri_policy.cluster.simulation.figures import Figures
from nri_policy.cluster.simulation.steps import Expected, SimulationStep
from nri_policy.foundation.wording import counted, quoted


class GroupState(Struct, frozen=True):
    """A group after a step, or one that ended in it; pods by the domains above hosts."""

    name: str
    state: State | Literal["Ended"]
    message: str
    domains: dict[str, int]
    change: str = ""  # in the step: what it was before, and which pods moved; or nothing


class Played(Struct, frozen=True):
    """A step that was played: the groups after it, and where they differ from expectations."""

    step: SimulationStep
    groups: list[GroupState]
    problems: list[str]
    at: float = 0.0  # seconds
    notes: list[str] = []  # fields of applied groups without effect on placement


class SimulationReport(Struct, frozen=True):
    """The figures and the steps of a simulation."""

    figures: Figures
    steps: list[Played]


def describe_change(before: PlacementGroup | None, now: PlacementGroup) -> str:
    """Describe the change of a group in a step; *before* is None for a new group."""
    if before is None:
        return "new"
    if before.status.state != now.status.state:
        return f"was {before.status.state}"
    left, came = hosts_of(before) - hosts_of(now), hosts_of(now) - hosts_of(before)
    if left and came:
        pods = counted(left.total(), "pod")
        return f"{pods} moved from {', '.join(left)} to {', '.join(came)}"
    if left or came:
        return f"{counted((left or came).total(), 'pod')} {'fewer' if left else 'more'}"
    moved = before.status.assignments != now.status.assignments
    what = "other places" if moved else "another message"
    return "" if before.status == now.status else what


def find_differences(expected: Expected, found: GroupState) -> list[str]:
    """Return the differences between a group and its expected state."""
    problems = []
    if expected.state not in (None, found.state):
        problems.append(f"{found.name} is {found.state}, not {expected.state}")
    if expected.message is not None and expected.message not in found.message:
        problems.append(f"{found.name} says {quoted(found.message)}")
    if expected.domains is not None and expected.domains != found.domains:
        problems.append(f"{found.name} has {found.domains}, not {expected.domains}")
    return problems
