"""Groups that wait for places: tried in the queue's order, with hosts set aside; cluster.md §9.

Owns the queue, what is set aside for whom, and what a cluster could hold if it were empty. Nobody
of lower or equal rank than a holder is placed on its hosts. The caller says when something changed,
and what became of each group that was tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

import msgspec

from nri_policy.cluster.engine.engine import Engine
from nri_policy.cluster.engine.reservation import Reservations, place_of
from nri_policy.cluster.engine.room import count_fitting, pods_of
from nri_policy.cluster.groups.queue import Queue, Rank
from nri_policy.cluster.objects.group import (
    GROUP_LABEL,
    GroupStatus,
    PlacementGroup,
    PlacementRequest,
)
from nri_policy.cluster.objects.metadata import Key
from nri_policy.cluster.objects.pod import Pod
from nri_policy.foundation.wording import counted

RECONSIDER = 60.0  # seconds until other hosts may take the place of those set aside
MAX_SHAPES = 1000  # of which it is known whether they fit into an empty cluster


class WaitingGroups:
    """The queue of groups, and the hosts that are set aside for some of them."""

    def __init__(self, engine: Engine) -> None:
        """Place groups in *engine*, which may know nodes already."""
        self.queue: Queue[Key] = Queue()
        self._engine = engine
        self._reservations = Reservations(engine)
        self._empty = self._reservations.empty
        self._hosts: dict[Key, tuple[str, ...]] = {}  # by holder
        self._checked = True  # whether these could still hold their groups
        self._reconsidered = 0.0  # when it was last seen whether others are better
        self._fits_empty: dict[bytes, bool] = {}  # by shape of a group
        self._hopeless: dict[bytes, GroupStatus] = {}  # what came of those that do not, by shape
        self._refused: dict[bytes, GroupStatus] = {}  # by shape, what did not fit in this round
        self._refused_without: frozenset[str] = frozenset()  # these hosts
        self._counted: dict[tuple[frozenset[str], bytes], GroupStatus] = {}  # see `count_by_zones`
        self._trial, self._trial_without = engine, frozenset[str]()  # see `_without`
        self._counting: set[Key] = set()  # groups that were refused, and count where others are

    def see_cluster(self) -> None:
        """Take in that nodes, zones or settings of the engine have changed."""
        if self._empty.is_up_to_date():
            self.queue.note_change()  # no more than what is in use
        else:
            self._see_change()

    def restore(self, key: Key, hosts: tuple[str, ...]) -> None:
        """Take in for whom hosts are set aside: it is stored, maybe by another leader."""
        if hosts:
            self._hosts[key] = hosts
            self._checked = False
        else:
            self._hosts.pop(key, None)

    def reserve(self, key: Key, hosts: tuple[str, ...]) -> None:
        """Set hosts aside for a group for which others leave them."""
        self._hosts[key] = hosts

    def reserved(self, key: Key) -> tuple[str, ...]:
        """Return the hosts that are set aside for a group."""
        return self._hosts.get(key, ())

    def reservations(self) -> Iterator[tuple[Key, Rank, tuple[str, ...]]]:
        """Yield for whom hosts are set aside, and its rank."""
        for key, hosts in self._hosts.items():
            if key in self.queue:
                yield key, self.queue.rank(key), hosts

    def hold(self, now: float, find: Callable[[Key], PlacementGroup]) -> None:
        """See anew for whom hosts are set aside; those for whom that changes are tried again."""
        while True:
            holders = self.queue.holders(now, self._engine.settings.groups.timeout)
            for key in [key for key in self._hosts if key not in holders]:
                del self._hosts[key]
                self.queue.note_change()
            again = now >= self._reconsidered + RECONSIDER
            if self._checked and len(holders) == len(self._hosts) and not (holders and again):
                return
            self._checked = True
            self._reconsidered = now if again else self._reconsidered
            for key in holders:
                if not self._keep(key, find(key), again=again):
                    break  # the next may hold
            else:
                return

    def _keep(self, key: Key, group: PlacementGroup, *, again: bool) -> bool:
        """Set hosts aside for a holder; return False if nothing could hold it any more.

        It keeps those that it has, but if *again*, for others where more of its pods fit now.
        """
        before = self._hosts.get(key, ())
        hosts = self._reservations.choose(group, before)
        if again and before and hosts is not None:
            others = self._reservations.choose(group)
            if others is not None and count_fitting(self._engine, group, others) > count_fitting(
                self._engine, group, hosts
            ):
                hosts = others
        if hosts is None:
            self._hosts.pop(key, None)
            self.queue.note_refusal(key, hopeless=True)
            self.queue.note_change()
        elif hosts != before:
            self._hosts[key] = hosts
            self.queue.note_change()
        return hosts is not None

    def begin_round(self) -> None:
        """Begin a round, in which nothing becomes free: what did not fit is not tried again.

        Nor is what would not fit into an empty cluster, until that has changed.
        """
        self._refused = dict(self._hopeless)
        self._counted.clear()

    def place(
        self,
        key: Key,
        group: PlacementGroup,
        failures: Mapping[str, int] = MappingProxyType({}),
        more: Mapping[str, int] = MappingProxyType({}),
    ) -> GroupStatus:
        """Return the status of a group of the queue if it were placed now, in a round.

        Hosts are out of its reach that are set aside for others before it. Raises DocumentError.
        """
        aside = self._aside(key)
        engine = self._without(aside)
        if more or failures or _is_spread(group):
            found = engine.place(group, failures, more)
            if not found.assignments and _counts_others(group):
                self._counting.add(key)
            return self._seen(key, found)
        if aside != self._refused_without:
            self._refused_without, self._refused = aside, dict(self._hopeless)
        shape = _shape(group)
        refused = self._refused.get(shape)
        if refused is not None:
            return refused
        found = engine.place(group, failures, more)
        if not found.assignments:
            self._refused[shape] = found
        return self._seen(key, found)

    def count_by_zones(self, key: Key, group: PlacementGroup) -> GroupStatus:
        """Return the status of a group of the queue that does not fit, as `cluster place` says it.

        That is for people who look at the group after a round.
        """
        aside = self._aside(key)
        known = aside, _shape(group)
        found = self._counted.get(known)
        if found is None:
            engine = self._without(aside)
            found = self._counted[known] = engine.count_by_zones(group, engine.place(group))
        return found

    def is_hopeless(self, group: PlacementGroup) -> bool:
        """Whether a group would not even fit into an empty cluster."""
        shape = _shape(group)
        fits = self._fits_empty.get(shape)
        if fits is None:
            if len(self._fits_empty) >= MAX_SHAPES:
                self._fits_empty.clear()
                self._hopeless.clear()
            fits = self._fits_empty[shape] = bool(self._reservations.empty.place(group).assignments)
            if not fits and shape in self._refused:
                self._hopeless[shape] = self._refused[shape]
        return not fits

    def note_refusal(
        self, key: Key, group: PlacementGroup, *, hopeless: bool, holds: bool = False
    ) -> None:
        """Take in that *group*, as it was tried, did not fit; see `Queue.note_refusal`.

        If it is known that an empty cluster does not hold its shape, it waits for another one.
        """
        final = hopeless and _shape(group) in self._hopeless
        self.queue.note_refusal(key, hopeless=hopeless, holds=holds, final=final)

    def standing(self, key: Key, group: PlacementGroup) -> str:
        """Return what is set aside for a group of the queue, or before it; empty if nothing is."""
        own = self._hosts.get(key)
        if own:
            fits = count_fitting(self._without(self._aside(key)), group, own)
            where = place_of(group, own, self._engine)
            return f"reserved: {where}, {fits} of {counted(pods_of(group), 'pod')} fit now"
        rank = self.queue.rank(key)
        return "; ".join(
            f"{counted(len(hosts), 'host')} set aside for {'/'.join(holder)}"
            for holder, other, hosts in self.reservations()
            if other < rank
        )

    def closed_to(self, pod: Pod) -> dict[str, str]:
        """Return the nodes that a pod without a group must not use now, and why.

        Pods of DaemonSets run everywhere; those of groups have their places.
        """
        if GROUP_LABEL in pod.annotations or any(one.kind == "DaemonSet" for one in pod.owners):
            return {}
        own = (-pod.priority, pod.created)
        return {
            host: f"set aside for placement group {'/'.join(holder)}"
            for holder, rank, hosts in self.reservations()
            if rank[:2] <= own
            for host in hosts
        }

    def _aside(self, key: Key) -> frozenset[str]:
        rank = self.queue.rank(key)
        return frozenset(
            host for _, other, hosts in self.reservations() if other < rank for host in hosts
        )

    def _without(self, hosts: frozenset[str]) -> Engine:
        """Return the engine without hosts; a fork is kept, for most groups are refused."""
        if hosts != self._trial_without or not self._trial.is_up_to_date():
            self._trial, self._trial_without = self._engine.without_nodes(hosts), hosts
        return self._trial

    def _seen(self, key: Key, found: GroupStatus) -> GroupStatus:
        """Return what came of a group; where it is placed, others may have too large a share."""
        if found.assignments and self._counting - {key}:
            self._counting.clear()
            self.queue.note_change()
        return found

    def _see_change(self) -> None:
        self._empty = self._reservations.empty
        self._checked = False
        self._fits_empty.clear()
        self._hopeless.clear()
        self.queue.note_new_cluster()


def topology_name(group: PlacementGroup) -> str:
    """Return the topology that a group names, empty for the default."""
    named = (each.request.topology for each in group.pod_sets if each.request)
    return next((each for each in named if each is not None), "")


def _is_spread(group: PlacementGroup) -> bool:
    """Whether a group's own running pods, or other groups, count where it is placed."""
    requests = [each.request or PlacementRequest() for each in group.pod_sets]
    return _counts_others(group) or any(
        each.spread_over or each.max_per_host is not None for each in requests
    )


def _counts_others(group: PlacementGroup) -> bool:
    """Whether the rules of a group are about where other groups are."""
    return any(each.request and each.request.topology_spreading for each in group.pod_sets)


def _shape(group: PlacementGroup) -> bytes:
    """Return what decides where a group fits: groups of one shape fit alike."""
    return msgspec.json.encode(group.pod_sets)
