"""Groups that wait for places: tried in the queue's order, with hosts set aside; cluster.md §9.

Owns the queue, the reserved hosts, and what the cluster could hold after the end of all pods that
end by themselves. No group of lower or equal rank than the holder gets its hosts. A hold without
progress ends, and the next group holds. The caller reports changes, and the outcome of each
attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import lru_cache

import msgspec
from msgspec.structs import replace

from nri_policy.cluster.engine.engine import Engine
from nri_policy.cluster.engine.occupants import Occupants
from nri_policy.cluster.engine.reservation import Reservations, describe_hosts, lacking_pods
from nri_policy.cluster.engine.unit_capacity import count_fitting, pods_of
from nri_policy.cluster.groups.known_refusals import KnownRefusals
from nri_policy.cluster.groups.queue import MAX_PAUSE, Queue
from nri_policy.cluster.groups.record import NONE, Rank, Reservation
from nri_policy.cluster.groups.table import GroupTable
from nri_policy.cluster.objects.metadata import Key
from nri_policy.cluster.objects.pod import Pod
from nri_policy.cluster.requests.group import GROUP_LABEL, GroupStatus, PlacementGroup, hosts_of
from nri_policy.cluster.requests.request import spread_labels
from nri_policy.foundation.wording import counted

RECONSIDER = 60.0  # seconds until other hosts may take the place of those set aside
MAX_SHAPES = 1000  # shapes of requests whose lack is remembered


class WaitingGroups:
    """The queue of groups, and the hosts that are set aside for some of them."""

    def __init__(self, engine: Engine, groups: GroupTable) -> None:
        """Place *groups* in *engine*, which may know nodes already."""
        self.queue = Queue(groups)
        self._groups = groups
        self._engine = engine
        self._reservations = Reservations(engine)
        self._generation = engine.state.generation  # the engine's, when holds were last worked out
        self.ended = 0  # holds without a place
        self._now = 0.0  # when hosts were last set aside
        self._change = 0  # change number of the queue at the last look for ended pods
        self._checked = True  # whether these could still hold their groups
        self._reconsidered = 0.0  # when it was last seen whether others are better
        self._lacks: dict[object, str | None] = {}  # see `Reservations.find_lack`, by shape
        self._hopeless: dict[bytes, GroupStatus] = {}  # what came of those that fit nowhere
        self._refused: dict[bytes, GroupStatus] = {}  # refusals in this round, by shape
        self._known = KnownRefusals(engine.state)
        self._refused_without: frozenset[str] = frozenset()  # these hosts
        self._counted: dict[tuple[frozenset[str], bytes], GroupStatus] = {}  # see `count_by_zones`
        self._shaped: tuple[PlacementGroup | None, bytes] = None, b""  # the latest, and its shape
        self._trial, self._trial_without = engine, frozenset[str]()  # see `_without`

    def see_cluster(self) -> None:
        """React to changed nodes, zones or settings of the engine."""
        if self._generation == self._engine.state.generation:
            self.queue.note_change()  # no more than what is in use
        else:
            self._see_change()

    def restore(self, key: Key, hosts: tuple[str, ...], since: float) -> None:
        """Restore a reservation from a group's status, perhaps of another leader."""
        if not hosts:
            self._groups.update(key, reservation=None)
        elif self.reserved(key) != hosts:
            self._groups.update(key, reservation=Reservation(hosts, since, self._now))
            self._checked = False

    def reserve(self, key: Key, hosts: tuple[str, ...], now: float) -> None:
        """Set hosts aside for a group for which others leave them."""
        self._groups.update(key, reservation=Reservation(hosts, now, now))
        self._checked = False

    def reserved(self, key: Key) -> tuple[str, ...]:
        """Return the hosts that are set aside for a group."""
        hold = self._groups.holding.get(key)
        return () if hold is None else hold.hosts

    def reservations(self) -> Iterator[tuple[Key, Rank, tuple[str, ...]]]:
        """Yield each holder with its rank and its reserved hosts."""
        for key, hold in self._groups.holding.items():
            if key in self.queue:
                yield key, self.queue.rank(key), hold.hosts

    def next_look(self) -> float:
        """Return when to recompute reservations without news."""
        ends = (
            hold.progress + self._patience(key)
            for key, hold in self._groups.holding.items()
            if key in self.queue
        )
        return min((self.queue.end_of_pause(self._now), *ends))

    def _patience(self, key: Key) -> float:
        """Return for how many seconds a hold may make no progress.

        For a group that runs it doubles as its pauses do: few hosts make all that it has useful
        again, and the last job on them may take longer than most.
        """
        timeout = self._engine.state.settings.groups.hold_timeout
        place = self.queue.place(key)
        longer = timeout * 2.0 ** min(place.ended, 20)
        return min(longer, max(timeout, MAX_PAUSE)) if place.runs else timeout

    def hold(self, now: float, find: Callable[[Key], PlacementGroup]) -> None:
        """Recompute host reservations; requeue groups whose reservation changed."""
        self._now = now
        if self._generation != self._engine.state.generation:
            self._see_change()
        for key in [key for key in self._groups.growing if key not in self.queue]:
            self._groups.update(key, more=NONE)
        self._end_stuck(now, find)
        while True:
            timeout = self._engine.state.settings.groups.timeout
            holders = self.queue.holders(now, timeout, self._groups.holding)
            for key in [key for key in self._groups.holding if key not in holders]:
                self._groups.update(key, reservation=None)
                self.queue.note_change()
            again = now >= self._reconsidered + RECONSIDER
            if (
                self._checked
                and len(holders) == len(self._groups.holding)
                and not (holders and again)
            ):
                return
            self._checked = True
            self._reconsidered = now if again else self._reconsidered
            for key in holders:
                if not self._keep(key, find(key), now, again=again):
                    break  # the next may hold
            else:
                return

    def _keep(self, key: Key, group: PlacementGroup, now: float, *, again: bool) -> bool:
        """Set hosts aside for a holder; return False if nothing could hold it any more.

        It keeps those that it has, but if *again*, for others where more of its pods fit now than
        ever did on its own.
        """
        hold, more = self._groups[key].reservation, self._groups[key].more
        status = group.status
        if hold is not None and status.assignments and not (status.unhealthy_nodes or more):
            return True  # of another leader: what the group lacks is known once it was tried
        hosts = self._reservations.choose(group, () if hold is None else hold.hosts, more)
        if again and hold is not None and hosts is not None:
            hold = replace(hold, fitting=max(hold.fitting, self._count(key, group, hosts)))
            self._groups.update(key, reservation=hold)
            if self._reservations.may_find_more_room(group, hosts, hold.fitting):
                others = self._reservations.choose(group, (), more)
                if others not in {None, hosts} and self._count(key, group, others) > hold.fitting:
                    hosts = others
        if hosts is None:
            self.queue.bar(key)
            if hold is not None:
                self._groups.update(key, reservation=None)
                self.queue.note_change()
            return False
        if hold is None or hold.hosts != hosts:
            hold = Reservation(hosts, now if hold is None else hold.since, now)
            self.queue.note_change()
        if hold.occupants is None:
            there, fitting = Occupants(self._engine.state, hosts), self._count(key, group, hosts)
            hold = replace(hold, occupants=there, progress=now, fitting=fitting)
            self._groups.update(key, reservation=hold)
        return True

    def _end_stuck(self, now: float, find: Callable[[Key], PlacementGroup]) -> None:
        """End the holds that have made no progress: nothing ended there, and no more pods fit."""
        changed, self._change = self.queue.change != self._change, self.queue.change
        for key, hold in [*self._groups.holding.items()]:
            if key not in self.queue or hold.occupants is None:
                continue
            progress = hold.progress
            if changed and hold.occupants.note_ends():
                progress = now
                self._groups.update(key, reservation=replace(hold, progress=now))
            if now < progress + self._patience(key):
                continue
            fitting = self._count(key, find(key), hold.hosts)
            if fitting > hold.fitting:
                better = replace(hold, fitting=fitting, progress=now)
                self._groups.update(key, reservation=better)
                continue
            self._groups.update(key, reservation=None)
            self.queue.pause(key, now)
            self.ended += 1

    def _count(self, key: Key, group: PlacementGroup, hosts: Collection[str]) -> int:
        """Return how many of the pods that a group lacks fit on hosts now."""
        return count_fitting(self._engine.state, self._lacking(key, group), hosts)

    def _lacking(self, key: Key, group: PlacementGroup) -> PlacementGroup:
        if not group.status.assignments:
            return group
        return lacking_pods(group, self._groups[key].more)

    def begin_round(self) -> None:
        """Begin a round, in which nothing becomes free: what did not fit is not tried again.

        Nor is what would not fit into an empty cluster, until that has changed.
        """
        self._refused = dict(self._hopeless)
        self._counted.clear()

    def worth_trying(self, keys: Iterable[Key]) -> Iterator[Key]:
        """Yield those of *keys* that may fit now, of groups in the queue's order.

        Holders are always tried, and once when their hold ended, so that their status says it. With
        preemption, other groups may have come that can leave: all are tried.
        """
        preemption = self._engine.state.settings.groups.preemption
        holding = self._groups.holding
        for key in keys:
            place = self.queue.place(key)
            if (
                preemption
                or key in holding
                or not place.was_tried
                or not self._known.hold_for(key, self._aside(place.rank))
            ):
                yield key
            else:
                self.queue.note_lasting_refusal(key)

    def note_freed_zones(self) -> None:
        """React to promised places in zones that are free again."""
        self._known.clear()
        self.queue.note_change()

    def place(
        self,
        key: Key,
        group: PlacementGroup,
        failures: Mapping[str, int] = NONE,
        more: Mapping[str, int] = NONE,
    ) -> GroupStatus:
        """Return the status of a group of the queue if it were placed now, in a round.

        Or if *more* of its pods were, or those that failed nodes had. Hosts reserved for
        groups ahead are excluded. Raises DocumentError.
        """
        aside = self._aside(self.queue.rank(key))
        engine = self._without(aside)
        steps = self._engine.state.usages.steps_beside(group)
        lacking = [each for each in steps if each.key in self.queue]
        if more or failures or group.status.assignments or steps or _is_spread(group):
            if more and more != self._groups[key].more:
                self._groups.update(key, more=more)
                self._checked = False
            found = engine.place(group, failures, more, lacking=lacking)
            if not found.assignments and _counts_others(group):
                self._groups.update(key, counts_others=True)
            return self._seen(key, found)
        if aside != self._refused_without:
            self._refused_without, self._refused = aside, dict(self._hopeless)
        shape = self._shape(group)
        found = self._refused.get(shape) or engine.place(group, failures, more)
        if not found.assignments:
            self._refused[shape] = found
        if found.assignments or key in self._groups.holding:
            self._known.remove(key)
        else:
            self._known.add(key, group, aside)
        return self._seen(key, found)

    def place_anew(self, key: Key, group: PlacementGroup) -> GroupStatus:
        """Return the status of a group of the queue if all of its pods went elsewhere.

        If none of its hosts is left, it could have gone anywhere already.
        Raises DocumentError.
        """
        status = group.status
        if hosts_of(group).keys() <= {*status.unhealthy_nodes}:
            return GroupStatus()
        steps = self._engine.state.usages.steps_beside(group)
        lacking = [each for each in steps if each.key in self.queue]
        engine = self._without(self._aside(self.queue.rank(key)))
        return engine.place(replace(group, status=GroupStatus()), lacking=lacking)

    def see_step(self, group: PlacementGroup) -> None:
        """React to a group that moved or went: other steps of its JobSet share another domain."""
        for each in self._engine.state.usages.steps_beside(group):
            self.queue.note_edit(each.key)

    def count_by_zones(self, key: Key, group: PlacementGroup) -> GroupStatus:
        """Return the status of a group of the queue that does not fit, as `cluster place` says it.

        Users read it in the status of the group after a round.
        """
        aside = self._aside(self.queue.rank(key))
        known = aside, self._shape(group)
        found = self._counted.get(known)
        if found is None:
            engine = self._without(aside)
            found = self._counted[known] = engine.count_by_zones(group, engine.place(group))
        return found

    def is_hopeless(self, group: PlacementGroup) -> bool:
        """Whether a group fits nowhere, even once all has ended that ends by itself."""
        return self._find_lack(group) is not None

    def _find_lack(self, group: PlacementGroup) -> str | None:
        shape, groups = self._shape(group), self._engine.state.settings.groups
        known = shape, group.priority if groups.preemption else 0
        if known not in self._lacks:
            if len(self._lacks) >= MAX_SHAPES:
                self._lacks.clear()
                self._hopeless.clear()
            lack = self._lacks[known] = self._reservations.find_lack(group)
            if lack is not None and shape in self._refused:
                self._hopeless[shape] = self._refused[shape]
        return self._lacks[known]

    def _shape(self, group: PlacementGroup) -> bytes:
        """Return what decides where a group fits: groups of one shape fit alike."""
        if self._shaped[0] is not group:  # it is asked about again and again
            self._shaped = group, msgspec.json.encode((group.pod_sets, group.together))
        shape, steps = self._shaped[1], self._engine.state.usages.steps_beside(group)
        if not steps:
            return shape
        return shape + msgspec.json.encode([(each.key, each.status) for each in steps])

    def refusal(self, group: PlacementGroup, found: GroupStatus) -> GroupStatus:
        """Return the status to report for a refused group, from the result *found*."""
        lack = self._find_lack(group)
        if lack is None:
            return replace(found, state="Waiting")
        if not lack:
            return replace(found, state="Unplaceable")
        return replace(found, state="Waiting", message=lack)

    def note_refusal(
        self, key: Key, group: PlacementGroup, *, hopeless: bool, holds: bool = False
    ) -> None:
        """Record that *group* did not fit; see `Queue.note_refusal`.

        A shape that fits nowhere waits until nodes or lasting pods change.
        """
        final = hopeless and self._shape(group) in self._hopeless
        self.queue.note_refusal(key, hopeless=hopeless, holds=holds, final=final)

    def standing(self, key: Key, group: PlacementGroup, rank: Rank) -> str:
        """Return what is set aside for a group of this rank, or before it; empty if nothing is."""
        own = self._groups[key].reservation
        if own is not None:
            lacking = self._lacking(key, group)
            fits = count_fitting(self._without(self._aside(rank)).state, lacking, own.hosts)
            where = describe_hosts(group, own.hosts, self._engine.state.nodes)
            pods, minutes = counted(pods_of(lacking), "pod"), max(0.0, self._now - own.since) // 60
            return f"reserved: {where}, {fits} of {pods} fit now, since {minutes:.0f} min"
        return "; ".join(
            f"{counted(len(hosts), 'host')} set aside for {'/'.join(holder)}"
            for holder, other, hosts in self.reservations()
            if other < rank
        )

    def closed_to(self, pod: Pod) -> dict[str, str]:
        """Return the nodes that a pod without a group must not use now, and why.

        None unless hosts are held against all. Pods of DaemonSets run everywhere; those of groups
        have their places.
        """
        if self._engine.state.settings.groups.holds != "all":
            return {}
        if GROUP_LABEL in pod.annotations or any(one.kind == "DaemonSet" for one in pod.owners):
            return {}
        own = (-pod.priority, True, pod.created)
        return {
            host: f"set aside for placement group {'/'.join(holder)}"
            for holder, rank, hosts in self.reservations()
            if rank[:3] <= own
            for host in hosts
        }

    def _aside(self, rank: Rank) -> frozenset[str]:
        """Return the hosts that are set aside for groups before this rank."""
        waiting, ahead = self._groups.waiting, []
        for key, hold in self._groups.holding.items():  # each group asks: no generator
            place = waiting.get(key)
            if place is not None and place.rank < rank:
                ahead.append(hold.hosts)
        return _all_of(tuple(ahead))

    def _without(self, hosts: frozenset[str]) -> Engine:
        """Return the engine without hosts; a fork is kept, for most groups are refused."""
        if hosts != self._trial_without or not self._trial.state.is_up_to_date():
            self._trial, self._trial_without = self._engine.without_nodes(hosts), hosts
        return self._trial

    def _seen(self, key: Key, found: GroupStatus) -> GroupStatus:
        """Return what came of a group; where it is placed, others may have too large a share."""
        counting = self._groups.counting
        if found.assignments and counting.keys() - {key}:
            for each in [*counting]:
                self._groups.update(each, counts_others=False)
            self.queue.note_change()
        return found

    def _see_change(self) -> None:
        self._generation = self._engine.state.generation
        self._checked = False
        self._known.clear()
        self._lacks.clear()
        self._hopeless.clear()
        self.queue.note_new_cluster()


@lru_cache(maxsize=64)
def _all_of(hosts: tuple[tuple[str, ...], ...]) -> frozenset[str]:
    """Return all hosts; equal arguments share one set."""
    return frozenset(host for each in hosts for host in each)


def topology_name(group: PlacementGroup) -> str:
    """Return the topology that a group names, empty for the default."""
    named = (each.request.topology for each in group.pod_sets if each.request)
    return next((each for each in named if each is not None), "")


def _is_spread(group: PlacementGroup) -> bool:
    """Whether a group's own running pods, or other groups, count where it is placed."""
    requests = [each.request for each in group.pod_sets if each.request is not None]
    return _counts_others(group) or any(
        spread_labels(each) or each.apart_over or each.max_per_host is not None for each in requests
    )


def _counts_others(group: PlacementGroup) -> bool:
    """Whether the rules of a group are about where other groups are."""
    return any(each.request and each.request.topology_spreading for each in group.pod_sets)
