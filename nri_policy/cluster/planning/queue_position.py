"""Where a group stands among those that wait, and which hosts are set aside; spec cluster.md §9."""

from __future__ import annotations

from msgspec import Struct

from nri_policy.cluster.engine.engine import Engine
from nri_policy.cluster.engine.state.cluster_state import ClusterState
from nri_policy.cluster.engine.unit_capacity import count_fitting, pods_of
from nri_policy.cluster.requests.group import PlacementGroup


class QueuePosition(Struct, frozen=True, rename="camel"):
    """Where a group stands in the queue."""

    ahead: int  # groups
    waiting: int  # groups, itself included
    pods: int  # of its own
    reserved: list[str] = []  # hosts that are set aside for it
    fitting: int = 0  # of its pods, there, now
    set_aside: dict[str, list[str]] = {}  # hosts for groups ahead, as namespace/name


def find_position(state: ClusterState, group: PlacementGroup) -> QueuePosition:
    """Return where *group* stands among the groups of *state*; one that is not there is last."""
    key = group.key
    known = state.groups.get(key)
    others = [each for name, each in state.groups.items() if name != key and _waits(each)]
    own = _rank(group if known is None else known)
    ahead = [each for each in others if _rank(each) < own]
    reserved = [] if known is None else known.status.reserved
    return QueuePosition(
        ahead=len(ahead),
        waiting=len(others) + 1,
        pods=pods_of(group),
        reserved=reserved,
        fitting=count_fitting(state, group, reserved) if reserved else 0,
        set_aside={each.full_name: each.status.reserved for each in ahead if each.status.reserved},
    )


def without_reserved(engine: Engine, group: PlacementGroup) -> Engine:
    """Return *engine* without the hosts that are set aside for groups ahead of *group*."""
    found = find_position(engine.state, group)
    return engine.without_nodes({host for hosts in found.set_aside.values() for host in hosts})


def _waits(group: PlacementGroup) -> bool:
    return not group.status.assignments and group.status.state == "Waiting"


def _rank(group: PlacementGroup) -> tuple[int, bool, str, str, str]:
    return (-group.priority, not group.created, group.created, group.namespace, group.name)
