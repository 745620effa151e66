"""How many pods of a group a host takes, for other reasons than its free amounts.

An engine places a group by free amounts, asks its host limits which pods hosts would refuse there,
and then places the group again within the limits. There are two forms: no limits, or limits by the
zones of nodes that align pods (`numa.zone_limits`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Protocol, Self

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


class HostLimits(Protocol):
    """What hosts take, in one state of a cluster."""

    def may_refuse(self) -> bool:
        """Whether a host may refuse a pod, as far as is known without a look."""

    def of(self, unit: Unit) -> OwnLimits:
        """Return how many new pods of a unit nodes take, of those that may refuse some."""

    def beside(
        self,
        limits: Limits,
        group: PlacementGroup,
        unit: Unit,
        taken: Mapping[str, Assignment],
    ) -> Limits:
        """Return the *limits* of a group's unit beside new assignments of the same group."""

    def find_refused(
        self, placed: PlacementGroup, kept: PlacementGroup | None = None
    ) -> RefusedByHost:
        """Return what is refused of a *placed* group's pods, but for those in *kept* places."""

    def refusal(self, placed: PlacementGroup, refused: RefusedByHost, message: str) -> GroupStatus:
        """Return the status of a group that would be *refused* where it was *placed*.

        The *message* says why it cannot be placed with the limits.
        """

    def check(self, group: PlacementGroup) -> Refusals:
        """Return what empty hosts refuse of a group's pods at the places that it has."""

    def too_small(self, spec: PodSpec) -> dict[str, str]:
        """Return the nodes that refuse a pod of *spec* even if they are empty, and why."""

    def configure(self, settings: ClusterSettings) -> None:
        """Go on with other settings."""

    def change_hosts(self, hosts: Collection[str]) -> None:
        """Take in that nodes of *hosts* changed, or what they report."""

    def change_group(self, key: Key) -> None:
        """Take in that a group's places changed, or its running pods."""

    def fork(self, usages: GroupUsages) -> Self:
        """Return those of a fork for trials, with its groups."""

    def emptied(
        self,
        usages: GroupUsages,
        lasting: Collection[Key] = (),
        only: Collection[str] | None = None,
    ) -> Self:
        """Return those of a cluster in which nothing but the places of *usages* is in use.

        And *lasting* pods of no group, of all nodes or *only* some of them. They stay as they are.
        """


class NoLimits:
    """No limits: only the free amounts of a host count."""

    def __init__(self, _settings: ClusterSettings, _usages: GroupUsages) -> None:
        """Be made as the other form is."""

    def may_refuse(self) -> bool:
        """Return that no host refuses a pod."""
        return False

    def of(self, _unit: Unit) -> OwnLimits:
        """Return no limit."""
        return {}

    def beside(
        self,
        limits: Limits,
        _group: PlacementGroup,
        _unit: Unit,
        _taken: Mapping[str, Assignment],
    ) -> Limits:
        """Return *limits* as they are."""
        return limits

    def find_refused(
        self, _placed: PlacementGroup, _kept: PlacementGroup | None = None
    ) -> RefusedByHost:
        """Return that nothing is refused."""
        return {}

    def refusal(
        self, _placed: PlacementGroup, _refused: RefusedByHost, message: str
    ) -> GroupStatus:
        """Return a status with the *message* alone."""
        return GroupStatus(state="Unplaceable", message=message)

    def check(self, _group: PlacementGroup) -> Refusals:
        """Return that nothing is refused."""
        return Refusals({}, [], too_small=False)

    def too_small(self, _spec: PodSpec) -> dict[str, str]:
        """Return that no node refuses a pod."""
        return {}

    def configure(self, settings: ClusterSettings) -> None:
        """Depend on no settings."""

    def change_hosts(self, hosts: Collection[str]) -> None:
        """Depend on no hosts."""

    def change_group(self, key: Key) -> None:
        """Depend on no groups."""

    def fork(self, _usages: GroupUsages) -> Self:
        """Return these, which never change."""
        return self

    def emptied(
        self,
        _usages: GroupUsages,
        _lasting: Collection[Key] = (),
        _only: Collection[str] | None = None,
    ) -> Self:
        """Return these, which never change."""
        return self


MakeLimits = Callable[[ClusterSettings, GroupUsages], HostLimits]
