"""Refusals that still hold: no host that was released since then has room for one more pod.

This covers groups of one pod set whose places depend on free amounts alone. For these the engine is
exact: less free room never helps, and if few pods do not fit, more pods do not fit either.
"""

from __future__ import annotations

from collections.abc import Collection

from msgspec import Struct

from nri_policy.cluster.engine.state.cluster_state import ClusterState
from nri_policy.cluster.engine.unit_placement import tree_of
from nri_policy.cluster.objects.metadata import Key
from nri_policy.cluster.objects.settings import ZONE_LEVEL
from nri_policy.cluster.requests.group import PlacementGroup
from nri_policy.cluster.requests.request import (
    Unit,
    Unplaceable,
    exclusive_of,
    together_of,
    units_of,
)
from nri_policy.native._domains import Vector

MAX_KNOWN = 10_000  # groups and requests; then all are tried again

_Request = tuple[frozenset[str], bytes]  # without which hosts, and all but its number of pods


class _Refused(Struct):
    unit: Unit
    pods: int  # the fewest that were refused
    release: int  # no host released until then has room for a pod
    checked: int = -1  # the release up to which `holds` is known
    holds: bool = True


class KnownRefusals:
    """Which groups still do not fit, without another attempt."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._asked: dict[Key, tuple[bytes, int]] = {}  # the requests of refused groups
        self._refused: dict[_Request, _Refused] = {}

    def add(self, key: Key, group: PlacementGroup, aside: frozenset[str]) -> None:
        """Take in that *group* was refused without the hosts that are set *aside*."""
        if len(self._asked) >= MAX_KNOWN or len(self._refused) >= MAX_KNOWN:
            self.clear()
        unit = self._only_unit(key, group)
        if unit is None:
            self._asked.pop(key, None)
            return
        pods = unit.workers.count
        request = aside, unit.workers.kind
        self._asked[key] = request[1], pods
        known = self._refused.get(request)
        if known is None or pods < known.pods or not self._still_holds(request, known):
            self._refused[request] = _Refused(unit, pods, self._state.releases)

    def remove(self, key: Key) -> None:
        """Forget a group that was placed."""
        self._asked.pop(key, None)

    def clear(self) -> None:
        """Forget all refusals: hosts have other capacities, or their zones other free amounts."""
        self._asked.clear()
        self._refused.clear()

    def hold_for(self, key: Key, aside: frozenset[str]) -> bool:
        """Whether a group that was refused would be refused again, without the hosts *aside*."""
        asked = self._asked.get(key)
        if asked is None:
            return False
        request = aside, asked[0]
        known = self._refused.get(request)
        return known is not None and known.pods <= asked[1] and self._still_holds(request, known)

    def _only_unit(self, key: Key, group: PlacementGroup) -> Unit | None:
        """Return what is placed of a group whose places depend on free amounts alone."""
        if exclusive_of(group.pod_sets) is not None or together_of(group) is not None:
            return None
        found = [unit for unit in units_of(group) if unit.workers.count]
        if len(found) != 1 or found[0].leader is not None or self._state.running_of(key):
            return None
        request = found[0].workers.request
        named = () if request is None else (request.required, request.preferred)
        slices = () if request is None else (each.level for each in request.slices)
        below = any(level and level.startswith(ZONE_LEVEL) for level in (*named, *slices))
        return None if below else found[0]

    def _still_holds(self, request: _Request, known: _Refused) -> bool:
        latest = self._state.releases
        if known.checked != latest:
            known.checked = latest
            hosts = self._state.released_since(known.release)
            known.holds = hosts is not None and not self._has_room(known.unit, hosts, request[0])
            if known.holds:
                known.release = latest
        return known.holds

    def _has_room(self, unit: Unit, hosts: Collection[str], aside: Collection[str]) -> bool:
        """Whether one of *hosts* has enough free for a pod, without regard to zones."""
        try:
            tree = tree_of(self._state, unit)
        except Unplaceable:
            return False  # settings lack its level or topology: no host matters
        pod = Vector(tree.rows, self._state.kind_of(unit.workers))
        leaves = (tree.leaf_of(host) for host in hosts if host not in aside)
        return any(
            tree.rows.thousandths((leaf,), pod) >= 1000 for leaf in leaves if leaf is not None
        )
