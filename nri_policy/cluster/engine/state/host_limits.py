"""How many pods of a group a host takes, for other reasons than its free amounts.

An engine places a group by free amounts, asks its host limits which pods hosts would refuse there,
and then places the group again within the limits. There are none here; `numa.zone_limits` has those
of the zones of nodes that align pods.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Self

from msgspec import Struct

from nri_policy.cluster.engine.state.group_usages import GroupUsages
from nri_policy.cluster.objects.assignment import Assignment
from nri_policy.cluster.objects.metadata import Key
from nri_policy.cluster.objects.pod import PodSpec
from nri_policy.cluster.objects.settings import ClusterSettings
from nri_policy.cluster.requests.group import GroupStatus, PlacementGroup
from nri_policy.cluster.requests.request import Unit

# of new pods, by pod set and node; those of workers where their leader is, by the names of a unit
Limits = Mapping[str | tuple[str, ...], Mapping[str, int]]
OwnLimits = dict[str | tuple[str, ...], dict[str, int]]  # that go on being lowered


class HostRefusal(Struct, frozen=True):
    """How many pods of a pod set a host refuses, of how many, and why the first of them."""

    pods: int
    of: int
    why: str
    alone: bool = True  # whether it would without the other pod sets, too


RefusedByHost = Mapping[str, Mapping[str, HostRefusal]]  # by host, and pod set


class Refusals(Struct, frozen=True):
    """What hosts refuse of a group: pods by pod set, and a sentence for each pod set."""

    pods: dict[str, int]
    texts: list[str]
    too_small: bool  # empty hosts would refuse as many


class HostLimits:
    """What hosts take, in one state of a cluster; here, their free amounts are the only limit."""

    def __init__(self, settings: ClusterSettings, usages: GroupUsages) -> None:
        """Go by *settings*, and by the places of the groups in *usages*."""

    def may_refuse(self) -> bool:
        """Whether a host may refuse a pod, as far as is known without a look."""
        return False

    def of(self, _unit: Unit) -> OwnLimits:
        """Return how many new pods of a unit nodes take, of those that may refuse some."""
        return {}

    def beside(
        self,
        limits: Limits,
        _group: PlacementGroup,
        _unit: Unit,
        _taken: Mapping[str, Assignment],
    ) -> Limits:
        """Return the *limits* of a group's unit beside new assignments of the same group."""
        return limits

    def find_refused(
        self, _placed: PlacementGroup, _kept: PlacementGroup | None = None
    ) -> RefusedByHost:
        """Return what is refused of a *placed* group's pods, but for those in *kept* places."""
        return {}

    def refusal(
        self, _placed: PlacementGroup, _refused: RefusedByHost, message: str
    ) -> GroupStatus:
        """Return the status of a group that would be *refused* where it was *placed*.

        The *message* says why it cannot be placed with the limits.
        """
        return GroupStatus(state="Unplaceable", message=message)

    def check(self, _group: PlacementGroup) -> Refusals:
        """Return what empty hosts refuse of a group's pods at the places that it has."""
        return Refusals({}, [], too_small=False)

    def too_small(self, _spec: PodSpec) -> dict[str, str]:
        """Return the nodes that refuse a pod of a spec even if they are empty, and why."""
        return {}

    def configure(self, settings: ClusterSettings) -> None:
        """Go on with other settings."""

    def change_hosts(self, hosts: Collection[str]) -> None:
        """Take in that nodes of *hosts* changed, or what they report."""

    def change_group(self, key: Key) -> None:
        """Take in that a group's places changed, or its running pods."""

    def fork(self, _usages: GroupUsages) -> Self:
        """Return those of a fork for trials, with its groups."""
        return self

    def emptied(
        self,
        _usages: GroupUsages,
        _alone: Collection[Key] = (),
        _only: Collection[str] | None = None,
    ) -> Self:
        """Return those of a cluster in which nothing but the places of some groups is in use.

        And pods of no group, those *alone*, that never end by themselves: of all nodes, or *only*
        some of them. They stay as they are.
        """
        return self


MakeLimits = Callable[[ClusterSettings, GroupUsages], HostLimits]
