"""What `reconcile` reads of a group's world, and what it returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from msgspec import Struct

from nri_policy.cluster.engine.state.cluster_state import ClusterState
from nri_policy.cluster.groups.failed_hosts import FailedHosts
from nri_policy.cluster.groups.group_placer import GroupPlacer
from nri_policy.cluster.groups.members import Members
from nri_policy.cluster.groups.placed_pods import PlacedPods
from nri_policy.cluster.groups.pod_writes import PendingPodWrites
from nri_policy.cluster.groups.record import Group
from nri_policy.cluster.groups.table import GroupTable
from nri_policy.cluster.groups.unbound_pods import UnboundPod
from nri_policy.cluster.groups.ungating import CrowdedPlace
from nri_policy.cluster.groups.writes import Write
from nri_policy.cluster.objects.metadata import Key
from nri_policy.cluster.requests.group import Condition
from nri_policy.foundation.clock import Clock


class View(Struct, frozen=True):
    """What the writes of a group follow from."""

    clock: Clock
    state: ClusterState
    members: Members
    groups: GroupTable
    placed_pods: PlacedPods
    pod_writes: PendingPodWrites
    failed_hosts: FailedHosts
    placer: GroupPlacer
    is_contested: Callable[[Key], bool]


class Replacement(Struct, frozen=True):
    """An attempt to place anew what these hosts had of a group."""

    hosts: list[str]


class PodMove(Struct, frozen=True):
    """An attempt to give other places to pods that kube-scheduler does not bind."""

    pods: list[UnboundPod]
    condition: Condition


class Reconciled(Struct, frozen=True):
    """What follows for a group; the controller applies it, in the order of these fields."""

    record: Group  # with its place in the queue, when to look again, and what it lacks
    problems: Mapping[Key, str] = MappingProxyType({})  # of its pods, as their Events say
    writes: Sequence[Write] = ()
    attempt: Replacement | PodMove | CrowdedPlace | None = None  # the last: to move it
    otherwise: Sequence[Write] = ()  # writes if there is no attempt, or it changes no places
