"""State: the only mutable part of the engine: all grants, and what the runtime has of them.

Owns the bookkeeping, not the choice. `snapshot` and `restore` make a decision a transaction. Every
event takes a snapshot, so that costs only copies of a few tables; everything derived from these is
rebuilt by `restore`, which only failed events call.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, MutableMapping
from operator import attrgetter
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from nri_policy.classes import Classes, Equipment
from nri_policy.engine.explanation import Explanation
from nri_policy.engine.grant import Grant
from nri_policy.engine.state.layout import Layout
from nri_policy.engine.state.quota import NO_QUOTA
from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.pools.memory import MemorySupply
from nri_policy.pools.memory_offer import Books, Offer, ZoneMove
from nri_policy.pools.supply import supply_of
from nri_policy.settings import Preserve
from nri_policy.workload.peers import Peers
from nri_policy.workload.pod import Container, ContainerState
from nri_policy.workload.request import Request, Sort

UNLIMITED = Equipment()
_STOPPED = ContainerState.STOPPED  # Python 3.11 takes 0.5 µs to find a member of an enumeration
_Key = TypeVar("_Key", int, str)
_Value = TypeVar("_Value")
# what the supply knows of a grant
_BOOKED = attrgetter("pool", "sort", "exclusive", "shared", "shares", "preemptible", "tenant")


class Placed(Struct, frozen=True, kw_only=True):
    """A container that holds a grant."""

    container: Container
    request: Request  # of the grant: reduced if there was no room for all
    grant: Grant
    explanation: Explanation

    @property
    def asked(self) -> Request:
        """Its whole request."""
        return self.explanation.request or self.request


class Resizing(Struct, frozen=True, kw_only=True):
    """A resize that the runtime has not confirmed: how things were, and still may be."""

    before: Placed
    sent: tuple[CPUSet, CPUSet]
    kept: CPUSet  # CPUs that it frees, kept from others until the resize is in force
    same: bool = True  # whether the grant of `before` fits the request of `before`

    @property
    def shared(self) -> CPUSet:
        """The kept CPUs that will be free for all, including itself."""
        return EMPTY if self.before.grant.isolated else self.kept


class Snapshot(Struct, frozen=True):
    """What all else in a State follows from, at one moment."""

    placed: dict[str, Placed]
    rooms: dict[str, Placed]
    claims: dict[str, Placed]
    sent: dict[str, tuple[CPUSet, CPUSet]]
    quotas: dict[str, int]
    supply: bytes
    memory: Books
    cold: dict[str, float | None]
    resizing: dict[str, Resizing]
    classes: dict[str, Classes]
    equipment: Equipment


class State:
    """Grants and bookings on one layout."""

    def __init__(self, layout: Layout, equipment: Equipment = UNLIMITED) -> None:
        self.layout = layout
        self.equipment = equipment
        self.classes: dict[str, Classes] = {}  # by container id, of containers in a class
        self.supply = supply_of(layout.tree, layout.capacity.sharable, layout.capacity.isolated)
        self.memory = MemorySupply(layout.memory)
        # Containers on pmem alone -> when they get dram, seconds since the epoch; None: not started
        self.cold: dict[str, float | None] = {}
        self.resizing: dict[str, Resizing] = {}  # by container id
        # containers moved for others in this event, with the cause if it is not the event itself
        self.moved: dict[str, str | None] = {}
        self.latest = 0  # `Container.created` of the latest container so far
        # by container id, in the order of placement; only `enter` and `drop` change it
        self.placed: dict[str, Placed] = {}
        # by pod id, in the order of placement: pods that have their CPUs as a whole (§3.3)
        self.rooms: dict[str, Placed] = {}
        # by id of the part: of resource claims, in the order of their preparation
        self.claims: dict[str, Placed] = {}
        self.touched: dict[str, None] = {}  # ids that `enter` and `drop` had in this event
        self.sent: dict[str, tuple[CPUSet, CPUSet]] = {}  # cpus and mems that the runtime has
        # CFS quotas sent to the runtime, µs per period, NO_QUOTA for none
        self.quotas: dict[str, int] = {}
        self.reserved_milli = 0  # milli-CPU booked on the reserved CPUs
        # sharers that may be booked farther up to make room (§2), or are at the top: milli-CPU,
        # age, id and pool, by container id
        self.movers: dict[str, tuple[int, int, str, int]] = {}
        self.away: dict[str, None] = {}  # containers with a home to return to, by id
        self.peers = Peers()
        self._ids: dict[tuple[str, str], str] = {}  # by identity
        # pool id -> containers whose cpuset follows its free CPUs; memory nodes, for containers
        # whose cpuset equals the pool's free CPUs; else None
        self.sharing: defaultdict[int, dict[str, CPUSet | None]] = defaultdict(dict)
        # pool id -> the common placement that the runtime has of all these containers; missing if
        # it must be looked up
        self.common: dict[int, tuple[CPUSet, CPUSet]] = {}
        # containers without a cpuset of ours except for others' exclusive CPUs; by container id
        self.unowned: dict[str, None] = {}
        # pod id -> its containers that have a part of its memory booked instead of their own
        self.pod_memory: defaultdict[str, dict[str, None]] = defaultdict(dict)
        # pod id -> its containers
        self._pods: defaultdict[str, dict[str, None]] = defaultdict(dict)

    def snapshot(self) -> Snapshot:
        """Return the data for `restore` to this moment.

        The tables themselves go into it, and the state continues with copies, which are compact: a
        table with many deleted entries takes several times as long to copy.
        """
        snapshot = Snapshot(
            self.placed,
            self.rooms,
            self.claims,
            self.sent,
            self.quotas,
            self.supply.snapshot(),
            self.memory.snapshot(),
            self.cold,
            self.resizing,
            self.classes,
            self.equipment,
        )
        self._copy(snapshot)
        return snapshot

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to *snapshot*, which stays usable."""
        self._copy(snapshot)
        self.supply.restore(snapshot.supply)
        self.memory.restore(snapshot.memory)
        self.peers.follow((each.container, each.grant.pool) for each in self.placed.values())
        self.reserved_milli = 0
        indexes = self.movers, self.away, self.pod_memory, self._ids, self.sharing, self._pods
        self.unowned.clear()
        for index in (*indexes, self.common):
            index.clear()
        for placed in self.placed.values():
            self._index(placed)

    def _copy(self, snapshot: Snapshot) -> None:
        self.placed = snapshot.placed.copy()
        self.rooms = snapshot.rooms.copy()
        self.claims = snapshot.claims.copy()
        self.sent = snapshot.sent.copy()
        self.quotas = snapshot.quotas.copy()
        self.cold = snapshot.cold.copy()
        self.resizing = snapshot.resizing.copy()
        self.classes = snapshot.classes.copy()
        self.equipment = snapshot.equipment

    def _index(self, placed: Placed) -> None:
        """Note what follows from a grant, besides what the supply and the peers know of it."""
        container, grant, request = placed.container, placed.grant, placed.request
        container_id, pod_id = container.id, container.pod.id
        if grant.sort is Sort.RESERVED:
            self.reserved_milli += grant.shared
        if grant.shares:
            self.sharing[grant.pool][container_id] = self._mems_of_sharer(placed)
            self.common.pop(grant.pool, None)
            stays = grant.exclusive or not grant.shared or not request.movable or container.claims
            if not (stays or (request.steering.strict_hints and request.steering.hints)):
                mover = grant.shared, container.created, container_id, grant.pool
                self.movers[container_id] = mover
        if grant.sort is Sort.PRESERVE and self.layout.settings.preserve is Preserve.UNOWNED:
            self.unowned[container_id] = None
        if grant.home is not None:
            self.away[container_id] = None
        if _shares_memory(placed):
            self.pod_memory[pod_id][container_id] = None
        identity = container.identity
        assert identity not in self._ids, "a pod has one container of a name at a time"
        self._ids[identity] = container_id
        self._pods[pod_id][container_id] = None

    def movers_in_order(self) -> list[tuple[int, int, str, int]]:
        """Return the sharers that may be booked farther up, in the order of moves (§2)."""
        top = self.layout.tree.top.id
        return sorted([mover for mover in self.movers.values() if mover[3] != top])

    def fork(self) -> State:
        """Return an independent copy."""
        twin = State(self.layout, self.equipment)
        twin.restore(self.snapshot())
        twin.latest = self.latest
        return twin

    def put(self, placed: Placed, offer: Offer | None = None) -> None:
        """Book a grant for a holder that has none, and the memory offered to it.

        A tenant's CPUs are booked for its room.
        """
        container, grant, container_id = placed.container, placed.grant, placed.container.id
        if container_id in self.placed or container_id in self.rooms or container_id in self.claims:
            raise ValueError(f"container {container_id} holds a grant already")
        assert grant.sort is Sort.NORMAL or not grant.exclusive, "only these have exclusive CPUs"
        assert not grant.tenant or (
            grant.exclusive <= self.rooms[container.pod.id].grant.exclusive
        ), "a slice is of its pod's room (I7)"
        assert container_id not in self.resizing, "a resize is of a grant that is held"
        assert container_id not in self.cold, "a cold start is of a grant that is held"
        if grant.sort is Sort.NORMAL:
            self.supply.take(EMPTY if grant.tenant else grant.exclusive)
            self.supply.book(grant.pool, grant.shared, grant.shares, grant.preemptible)
        self.enter(placed)
        self.latest = max(self.latest, container.created)
        if container_id in self.placed:
            self.peers.add(container, grant.pool)
            self._index(placed)
        if offer is not None:
            assert offer.booking.request.id == container_id, "an offer is for its own container"
            self.memory.commit(offer)
            if offer.moves:
                self._rezone(offer.moves)
            if offer.booking.home.cold:
                self.cold[container_id] = None

    def enter(self, placed: Placed) -> None:
        """Replace what is known of a holder by *placed*; bookings stay."""
        container, table = placed.container, self.placed
        if container.stands_for_pod:
            table = self.rooms
        elif container.part is not None:
            table = self.claims
        before = table.get(container.id)
        assert before is None or _BOOKED(before.grant) == _BOOKED(placed.grant), "bookings stay"
        stopped = container.state is _STOPPED
        if before is not None and stopped is not (before.container.state is _STOPPED):
            del self._ids[before.container.identity]  # one that has stopped has another
            assert container.identity not in self._ids, "a pod has one container of a name"
            self._ids[container.identity] = container.id
        table[container.id] = placed
        self.touched[container.id] = None

    def holder(self, holder_id: str) -> Placed | None:
        """Return the container, room or part of a claim of that id, None if it holds no grant."""
        if holder_id in self.placed:
            return self.placed[holder_id]
        return self.rooms.get(holder_id) or self.claims.get(holder_id)

    def shrink_memory(self) -> None:
        """Let widened zones shrink back as far as they fit."""
        self._rezone(self.memory.shrink())

    def book_memory(self, container_id: str, amount: int) -> None:
        """Book another *amount* for a container, on the memory nodes that it has."""
        placed = self.placed[container_id]
        request = replace(placed.request, memory=amount)
        self.enter(replace(placed, request=request))
        if container_id in self.memory.bookings:
            self.memory.resize(container_id, amount)

    def release_pages(self, pod_id: str) -> None:
        """Take back the huge pages of a pod's room: its tenants book their own (§3.3)."""
        room = self.rooms[pod_id]
        self.enter(replace(room, request=replace(room.request, hugepages=())))
        if pod_id in self.memory.bookings:
            self.memory.release_pages(pod_id)

    def zone_of_tenant(self, container_id: str, room: CPUSet) -> CPUSet:
        """Return a tenant's zone: its *room*'s, and where its huge pages are."""
        booking = self.memory.bookings.get(container_id)
        return room if booking is None else room | booking.zone

    def heat(self, container_id: str, now: float) -> None:
        """Record when a container that has started on pmem alone gets dram."""
        wait = self.placed[container_id].request.cold_start or 0.0
        self.cold[container_id] = now + wait

    def bound_cold(self, now: float) -> None:
        """Have no cold start last longer than it was to be, from *now* on: a clock was set back."""
        for each, at in self.cold.items():
            if at is not None:
                wait = self.placed[each].request.cold_start or 0.0
                self.cold[each] = min(at, now + wait)

    def warm(self, container_id: str) -> None:
        """End a container's cold start: it gets dram beside its pmem."""
        del self.cold[container_id]
        before = self.placed[container_id].grant.mems
        self._rezone([ZoneMove(container_id, before, self.memory.warm(container_id))])

    def _rezone(self, moves: Iterable[ZoneMove]) -> None:
        for move in moves:
            if move.id not in self.rooms:
                self._rezone_one(move.id, move.zone)
                continue
            room = self.rooms[move.id]
            self.enter(replace(room, grant=replace(room.grant, mems=move.zone)))
            for each in self.of_pod(move.id):
                tenant = self.placed[each]
                if tenant.grant.tenant and not tenant.request.memory_preserve:
                    self._rezone_one(each, self.zone_of_tenant(each, move.zone))

    def _rezone_one(self, container_id: str, zone: CPUSet) -> None:
        placed = self.placed[container_id]
        placed = replace(placed, grant=replace(placed.grant, mems=zone))
        self.enter(placed)
        if container_id not in self.moved:
            self.moved[container_id] = None
        members = self.sharing.get(placed.grant.pool, {})
        if members.get(container_id) is not None:
            members[container_id] = self._mems(placed)
        self.common.pop(placed.grant.pool, None)

    def rebook(self, placed: Placed, grant: Grant, cause: str) -> None:
        """Replace a sharer's grant by *grant* on another pool, with the same amount of memory.

        Or a tenant's by one on its pool instead of in its room, or back. A pending resize of it
        moves too: the CPUs that it frees are still kept from others.
        """
        container, pool, old = placed.container, grant.pool, placed.grant
        self.supply.unbook(old.pool, old.shared, old.shares, old.preemptible)
        self.supply.book(pool, grant.shared, grant.shares, grant.preemptible)
        self.peers.remove(container.id)
        self.peers.add(container, pool)
        if container.id in self.memory.bookings:
            mems = self.memory.rehome(container.id, pool)
            grant = replace(grant, mems=grant.mems | mems if grant.tenant else mems)
        if old.shares:
            _remove(self.sharing, old.pool, container.id)
        self.away.pop(container.id, None)
        del self.placed[container.id]  # it becomes the last one
        placed = replace(placed, grant=grant)
        self.enter(placed)
        if grant.shares:
            self.sharing[pool][container.id] = self._mems_of_sharer(placed)
            self.common.pop(pool, None)
        if container.id in self.movers:
            self.movers[container.id] = *self.movers[container.id][:3], pool
        if grant.home is not None:
            self.away[container.id] = None
        self.moved[container.id] = cause
        if container.id in self.resizing:
            self._rebook_resized(container.id, grant)

    def _rebook_resized(self, container_id: str, moved: Grant) -> None:
        """Let a sharer stay where it has *moved* if its resize is refused."""
        resizing = self.resizing[container_id]
        grant = resizing.before.grant
        if not grant.exclusive:
            grant = replace(grant, pool=moved.pool, home=moved.home, returned=moved.returned)
            before = replace(resizing.before, grant=grant)
            self.resizing[container_id] = replace(resizing, before=before)

    def drop(self, container_id: str, *, settle: bool = True) -> Placed:
        """Take the grant of a holder back; the record of what the runtime has stays.

        Short bookings of others get its memory only if *settle*, and not if it comes back resized.
        """
        if container_id in self.resizing:
            self.end_resize(container_id)
        others = self.rooms if container_id in self.rooms else self.claims
        table = self.placed if container_id in self.placed else others
        placed = table.pop(container_id)
        self.touched[container_id] = None
        container, grant = placed.container, placed.grant
        if grant.sort is Sort.NORMAL:
            self.supply.give(EMPTY if grant.tenant else grant.exclusive)
            self.supply.unbook(grant.pool, grant.shared, grant.shares, grant.preemptible)
        elif grant.sort is Sort.RESERVED:
            self.reserved_milli -= grant.shared
        if grant.shares and table is self.placed:
            _remove(self.sharing, grant.pool, container_id)
        self.unowned.pop(container_id, None)
        if container_id in self.movers:
            del self.movers[container_id]
        if container_id in self.away:
            del self.away[container_id]
        if container_id in self.memory.bookings:
            self.memory.release(container_id, settle=settle)
        assert container_id not in self.memory.bookings, "its memory is given back"
        assert container_id not in self.resizing, "what was kept for its resize is given back"
        if table is not self.placed:
            return placed
        if _shares_memory(placed):
            _remove(self.pod_memory, container.pod.id, container_id)
        self.cold.pop(container_id, None)
        self.peers.remove(container_id)
        known = self._ids.pop(container.identity)
        assert known == container_id, "a pod has one container of a name at a time"
        _remove(self._pods, container.pod.id, container_id)
        return placed

    def forget(self, container_id: str) -> None:
        """Forget the placement of a container that is gone."""
        self.sent.pop(container_id, None)
        self.quotas.pop(container_id, None)
        self.classes.pop(container_id, None)

    def list_quota(self, listed: Container) -> None:
        """Record the quota in the runtime's list, so that only another one is sent."""
        self.quotas.pop(listed.id, None)
        if listed.resources.cpu_quota == NO_QUOTA:
            self.quotas[listed.id] = NO_QUOTA

    def await_resize(self, container_id: str, resizing: Resizing) -> None:
        """Keep CPUs that a container's resize frees from others; *resizing* has the old state."""
        before = resizing.before.grant
        kept = before.exclusive - self.placed[container_id].grant.exclusive
        self.supply.take(EMPTY if before.tenant else kept)
        self.resizing[container_id] = replace(resizing, kept=kept)

    def end_resize(self, container_id: str) -> None:
        """Give back what was kept for a container's resize."""
        resizing = self.resizing.pop(container_id)
        self.supply.give(EMPTY if resizing.before.grant.tenant else resizing.kept)

    def end_resizes(self) -> None:
        """Free the CPUs that were kept for resizes."""
        for container_id in [*self.resizing]:
            self.end_resize(container_id)

    def find(self, identity: tuple[str, str]) -> str | None:
        """Return the id of the container of that `Container.identity`, if it holds a grant."""
        return self._ids.get(identity)

    def has_stopped(self, container_id: str) -> bool:
        """Whether a container has stopped, and keeps its grant."""
        return self.placed[container_id].container.state is _STOPPED

    def of_pod(self, pod_id: str) -> Iterable[str]:
        """Return the ids of a pod's containers that hold a grant."""
        return self._pods.get(pod_id, {})

    def members(self, pool: int) -> Iterable[str]:
        """Return the ids of the containers that are booked on exactly *pool* and share its CPUs."""
        return self.sharing.get(pool, {})

    def cpus(self, grant: Grant, hide_hyperthreads: bool, kept: CPUSet = EMPTY) -> CPUSet:
        """Return the CPUs that a grant allows (§9); empty if they are not set.

        A sharer also uses the CPUs *kept* for its resize.
        """
        if grant.sort is Sort.PRESERVE:
            return self.layout.unowned(grant, self.taken)
        free = (self.supply.free_cpus() | kept) if grant.shares else EMPTY
        return self.layout.cpus_of(grant, free, hide_hyperthreads)

    @property
    def taken(self) -> CPUSet:
        """The exclusive CPUs, with those held only until the end of a resize."""
        capacity, supply = self.layout.capacity, self.supply
        free = supply.free_cpus() | supply.free_isolated_cpus()
        return (capacity.sharable | capacity.isolated) - free

    def target(self, placed: Placed) -> tuple[CPUSet, CPUSet]:
        """Return the CPUs and memory nodes to send to the runtime; empty if they are not set."""
        grant, container_id, cpus = placed.grant, placed.container.id, EMPTY
        if self.layout.settings.pin_cpu:
            resizing = self.resizing.get(container_id)
            kept = EMPTY if resizing is None else resizing.shared
            cpus = self.cpus(grant, placed.request.hide_hyperthreads, kept)
        return cpus, self._mems(placed)

    def _mems(self, placed: Placed) -> CPUSet:
        pinned = self.layout.settings.pin_memory and not placed.request.memory_preserve
        return placed.grant.mems if pinned else EMPTY

    def _mems_of_sharer(self, placed: Placed) -> CPUSet | None:
        """Return its memory nodes if its cpuset is just its pool's free CPUs, else None."""
        grant = placed.grant
        own = grant.exclusive or grant.claimed or placed.request.hide_hyperthreads
        return None if own else self._mems(placed)


def _shares_memory(placed: Placed) -> bool:
    """Whether a container has a part of its pod's memory booked; in a room that is booked once."""
    return placed.request.pod_memory > 0 and not placed.grant.tenant


def _remove(tables: MutableMapping[_Key, dict[str, _Value]], key: _Key, member: str) -> None:
    members = tables[key]
    del members[member]
    if not members:
        del tables[key]
