"""Memory offers: what each pool can offer a request, and which bookings make way; placement.md §7.

Owns the order in which zones are widened. The requester's own zone is kept as long as others can
make way for it: bookings of lower QoS first, then smaller, then younger ones, never those that are
not movable, and never those of a higher QoS than the requester's: a BestEffort newcomer does not
push a Guaranteed container about. Each moved booking grows until it is out of the set of nodes that
is full. Only if that does not help does the requester's zone grow by one step, and all begins anew.

Widening never takes room from other bookings: it only loosens Hall's condition. So a zone can be
judged before anything moves, by laying every movable booking on its widest zone. The moves
themselves are computed for the chosen pool only.
"""

from __future__ import annotations

from array import array
from bisect import insort
from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple

from msgspec import Struct

from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.foundation.units import format_bytes, format_pages
from nri_policy.pools.memory_flow import Flow
from nri_policy.pools.memory_map import Home, Kinds, MemoryColumns, MemoryMap

Pages = tuple[tuple[int, int], ...]  # (bytes of a huge page, bytes), by size


class Rank(IntEnum):
    """The QoS classes in the order in which bookings make way, the lowest first."""

    BEST_EFFORT = 0
    BURSTABLE = 1
    GUARANTEED = 2


class MemoryRequest(Struct, frozen=True, kw_only=True):
    """What one container asks for."""

    id: str
    amount: int  # bytes to be booked, 0 allowed
    limit: int | None  # bytes, None for none
    kinds: Kinds
    rank: Rank
    created: int  # orders by age, the oldest lowest
    strict: bool = False  # never on memory of another kind
    movable: bool = True  # its zone may be changed once it is booked
    cold: bool = False  # starts on pmem only, if dram + pmem is what it would get
    hugepages: Pages = ()
    # whether it is refused where there are too few huge pages, instead of placed all the same
    needs_pages: bool = False


class Booking(Struct, frozen=True, kw_only=True):
    """A request that holds a zone."""

    request: MemoryRequest
    pool: int
    zone: CPUSet
    home: Home
    missing: int = 0  # bytes beyond what the zone holds: adopted all the same, booked nowhere
    missing_pages: Pages = ()  # likewise

    @property
    def laid(self) -> int:
        """The bytes that count as booked on the zone."""
        return self.request.amount - self.missing

    @property
    def laid_pages(self) -> Pages:
        """The huge pages that count as booked on the zone."""
        missing = dict(self.missing_pages)
        return tuple((size, all_ - missing.get(size, 0)) for size, all_ in self.request.hugepages)


class Books(Struct, kw_only=True, eq=False):
    """All bookings; two are equal if the bookings are."""

    bookings: dict[str, Booking]  # by id
    # What may make way in all: (rank, zone, widest zone) -> bytes laid.
    movable: dict[tuple[Rank, CPUSet, CPUSet], int]
    flow: Flow  # one of many ways to lay the same bookings
    pages: dict[int, Flow] = {}  # the same of the huge pages of each size
    generation: int = 0  # counts the changes

    def copy(self) -> Books:
        """Return independent books that say the same."""
        return Books(
            bookings=self.bookings.copy(),
            movable=self.movable.copy(),
            flow=self.flow.copy(),
            pages={size: flow.copy() for size, flow in self.pages.items()} if self.pages else {},
            generation=self.generation,
        )

    def has_pages(self, zone: CPUSet, pages: Pages) -> bool:
        """Return whether *zone* has *pages* free."""
        return all(
            size in self.pages and self.pages[size].holds(zone, amount) for size, amount in pages
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Books):
            return NotImplemented
        return self.bookings == other.bookings and self.movable == other.movable

    __hash__ = None  # type: ignore[assignment]


class ZoneMove(NamedTuple):
    """A change of another booking's zone."""

    id: str
    before: CPUSet
    zone: CPUSet


class Offer(Struct, frozen=True, kw_only=True):
    """A zone for a request on a pool; good only for the generation that it was made on."""

    booking: Booking
    moves: tuple[ZoneMove, ...]  # by id
    generation: int

    @property
    def zone(self) -> CPUSet:
        """The nodes offered; empty only where the machine shows no memory at all."""
        return self.booking.zone


class Shortage(Struct, frozen=True, kw_only=True):
    """Why a request does not fit."""

    missing: int  # bytes; 0 if amounts are not the reason
    nodes: CPUSet  # where they are missing
    text: str  # for the container's owner
    pages: bool = False  # whether huge pages are missing


class MemoryShortageError(Exception):
    """No zone can be offered; nothing has changed."""

    def __init__(self, shortage: Shortage) -> None:
        super().__init__(shortage.text)
        self.shortage = shortage


class StaleOfferError(Exception):
    """The bookings have changed since the offer was made."""


class Criteria(NamedTuple):
    """What §4 compares a pool by; higher is better."""

    kind: int  # criterion 5: whether the zone is exactly of the requested kinds
    burst: int  # criterion 6: whether the limit fits
    tightness: int  # criterion 8: minus the nodes in the zone
    undisturbed: int  # criterion 10: whether all other zones can stay


class Offers:
    """What every pool offers one request; pools that start with the same nodes share the work.

    To be asked before anything is booked.
    """

    def __init__(
        self,
        map_: MemoryMap,
        books: Books,
        request: MemoryRequest,
        held: CPUSet,
        *,
        keeps: bool,
    ) -> None:
        """Every zone starts with *held*, besides the pool's nodes: what the container has.

        *keeps*: the container had at least this amount on *held*, and keeps it.
        """
        self._map = map_
        self._books = books
        self._generation = books.generation
        self._request = request
        self._held = held
        self._keeps = keeps
        self._homes = map_.homes(request.kinds, strict=request.strict, cold=request.cold)
        # Whether all pools offer what they start with, however the rest lies: mostly they do.
        least = min(self._homes.least, books.flow.least)
        self._roomy = not held and request.amount <= least and not request.hugepages
        self._wide: Flow | None = None
        # Start -> zone, where there is one, and whether it is of the kinds of the start.
        self._zones: dict[CPUSet, tuple[CPUSet | None, bool]] = {}
        self._fits: dict[CPUSet, bool] = {}
        self._free: dict[CPUSet, bool] = {}  # whether a zone holds the request as all others lie

    def zone(self, pool: int) -> CPUSet | None:
        """Return the zone that *pool* offers, None where there is a shortage."""
        return self._zone(self._homes.each[pool])[0]

    def columns(self) -> MemoryColumns:
        """Return the criteria of all pools; most offer the zone that they start with."""
        homes, request, held, burst = self._homes, self._request, self._held, None
        if (limit := request.limit or request.amount) != request.amount:
            burst = array("d", (capacity >= limit for capacity in homes.capacity))
        others = self._others()
        if burst is None and not others and not held:
            return homes.columns
        kind, tightness, none = homes.columns.kind[:], homes.columns.tightness[:], []
        if held:
            has = self._map.kinds_of(held)
            for home, pools in homes.pools.items():
                exact, tight = int(home.has | has == home.kinds), -len(home.zone | held)
                for pool in pools:
                    kind[pool], tightness[pool] = exact, tight
        undisturbed = array("d", [1.0]) * len(kind) if others else None
        for home in others:
            pools = homes.pools[home]
            criteria = self.criteria(pools[0])
            if criteria is None:
                none += pools
                continue
            for pool in pools:
                kind[pool], tightness[pool] = criteria.kind, criteria.tightness
                undisturbed[pool] = criteria.undisturbed  # type: ignore[index]
        return MemoryColumns(kind, tightness, burst, undisturbed, none)

    def _others(self) -> list[Home]:
        """Return the homes whose zone, with the nodes held, may be too full to be offered."""
        if self._roomy:
            return []
        if self._request.hugepages:
            return [*self._homes.pools]
        amount = self._request.amount
        roomy = self._books.flow.roomy(amount)
        full = self._held.isdisjoint(roomy)
        return [
            home
            for home in self._homes.pools
            if amount > home.holds or home.refused or (full and home.zone.isdisjoint(roomy))
        ]

    def criteria(self, pool: int) -> Criteria | None:
        """Return how the offer of *pool* compares, None where there is a shortage."""
        request, home = self._request, self._homes.each[pool]
        zone, exact = self._zone(home)
        if zone is None:
            return None
        limit = request.limit or 0
        burst = int(limit not in (0, request.amount) and home.capacity >= limit)
        undisturbed = self._keeps or self._is_free(zone)
        return Criteria(int(exact), burst, -len(zone), int(undisturbed))

    def offer(self, pool: int) -> Offer:
        """Return the offer of *pool* with the moves that it takes; MemoryShortageError if none.

        Widening another booking moves no pages: unless the request is strict, its zone includes
        the nodes to which others are widened, or it could be killed beside free memory.
        """
        home = self._homes.each[pool]
        zone, _ = self._zone(home)
        if zone is None:
            raise MemoryShortageError(self.shortage(pool))
        moves = () if self._keeps or self._is_free(zone) else self._moves(zone)
        if moves and not self._request.strict:
            zone |= CPUSet.union(move.zone for move in moves)
        booking = Booking(request=self._request, pool=pool, zone=zone, home=home)
        return Offer(booking=booking, moves=moves, generation=self._generation)

    def shortage(self, pool: int) -> Shortage:
        """Return what *pool*, which offers no zone, lacks."""
        request, home = self._request, self._homes.each[pool]
        if home.refused:
            return Shortage(missing=0, nodes=EMPTY, text=home.refused)
        if request.hugepages and self._narrowest_of_memory(home) is not None:
            return self._shortage_of_pages(home)
        widest = self._held | home.widest
        wide = self._widest_flow().copy()
        missing = wide.lay(widest, request.amount)
        nodes = wide.full(widest)
        capacity = self._map.capacity_of(nodes)
        fixed = capacity + missing - request.amount
        return Shortage(
            missing=missing,
            nodes=nodes,
            text=(
                f"{format_bytes(request.amount)} of memory do not fit: nodes {nodes} have"
                f" {format_bytes(capacity)} for containers, {format_bytes(fixed)} of it booked by"
                f" containers that cannot move; {format_bytes(missing)} are missing"
            ),
        )

    def _zone(self, home: Home) -> tuple[CPUSet | None, bool]:
        """Return the narrowest zone in the order of growth that can be made to fit."""
        if self._roomy:
            return home.zone, home.has == home.kinds
        if home.zone not in self._zones:
            self._zones[home.zone] = self._narrowest(home)
        return self._zones[home.zone]

    def _narrowest(self, home: Home) -> tuple[CPUSet | None, bool]:
        amount = self._request.amount
        if self._keeps:
            zone = self._held if home.refused else home.zone | self._held
            return zone, self._map.kinds_of(zone) == home.kinds
        if home.refused:
            return None, False
        if self._request.hugepages:
            return self._narrowest_with_pages(home)
        if not self._held and amount <= min(home.holds, self._books.flow.room(home.zone)):
            self._free[home.zone] = True
            return home.zone, home.has == home.kinds
        narrowest = self._narrowest_of_memory(home)
        exact = narrowest is not None and self._map.kinds_of(narrowest) == home.kinds
        return narrowest, exact

    def _narrowest_of_memory(self, home: Home) -> CPUSet | None:
        """Return the narrowest zone whose memory can be made to fit, whatever its huge pages."""
        widths = self._map.widths(home.zone | self._held, home.growth)
        return next((zone for zone in widths if self._can_fit(zone)), None)

    def _narrowest_with_pages(self, home: Home) -> tuple[CPUSet | None, bool]:
        """Return the narrowest zone that has the huge pages as well: nodes with any come first.

        Where the books have too few: all nodes with such pages, unless they are needed.
        """
        books, pages = self._books, self._request.hugepages
        start, growth = home.zone | self._held, home.growth
        if not books.has_pages(start, pages):
            growth = (self._with_free_pages() & home.widest, *growth)
        widths = self._map.widths(start, growth)
        fitting = (each for each in widths if books.has_pages(each, pages) and self._can_fit(each))
        zone = next(fitting, None)
        if zone is None and not self._request.needs_pages:
            zone = self._narrowest_of_memory(home)
            if zone is not None:
                zone |= self._map.with_pages_of(pages) & home.widest
        return zone, zone is not None and self._map.kinds_of(zone) == home.kinds

    def _with_free_pages(self) -> CPUSet:
        """Return the nodes that have any huge pages of the requested sizes free."""
        flows = (self._books.pages.get(size) for size, _ in self._request.hugepages)
        return CPUSet.union(flow.roomy(1) for flow in flows if flow is not None)

    def _shortage_of_pages(self, home: Home) -> Shortage:
        """Return which huge pages a pool lacks that has the memory."""
        widest, books = self._held | home.widest, self._books
        size, amount = next(
            each for each in self._request.hugepages if not books.has_pages(widest, (each,))
        )
        nodes = self._map.with_pages(size) & widest
        left = books.pages[size].room(nodes) if nodes else 0
        have = f"nodes {nodes} have {left // size} left" if nodes else "the node has none"
        return Shortage(
            missing=amount - left,
            nodes=nodes,
            text=f"{format_pages(size, amount)} huge pages do not fit: {have}",
            pages=True,
        )

    def _can_fit(self, zone: CPUSet) -> bool:
        """Return whether *zone* holds the request once all others have made way that may."""
        if zone not in self._fits:
            amount = self._request.amount
            self._fits[zone] = amount <= self._map.capacity_of(zone) and (
                self._books.flow.room(zone) >= amount or self._widest_flow().holds(zone, amount)
            )
        return self._fits[zone]

    def _is_free(self, zone: CPUSet) -> bool:
        """Return whether *zone* holds the request without moves."""
        if self._roomy:
            return True
        if zone not in self._free:
            self._free[zone] = self._books.flow.holds(zone, self._request.amount)
        return self._free[zone]

    def _widest_flow(self) -> Flow:
        """Return the flow with every movable booking on its widest zone."""
        if self._wide is None:
            self._wide = self._books.flow.copy()
            wide: dict[CPUSet, int] = {}
            for (rank, zone, widest), amount in self._books.movable.items():
                if rank <= self._request.rank and zone != widest:
                    self._wide.take(zone, amount)
                    wide[widest] = wide.get(widest, 0) + amount
            for widest, amount in wide.items():
                self._wide.lay(widest, amount)
        return self._wide

    def _moves(self, zone: CPUSet) -> tuple[ZoneMove, ...]:
        """Return the moves that make room for the request on *zone*, which can be made to fit."""
        queue = _Queue(self._map, self._books.bookings.values(), self._request.rank)
        flow = self._books.flow.copy()
        waiting = {zone: self._request.amount}  # zone -> bytes still to be laid
        while waiting := {
            zone: missing for zone, amount in waiting.items() if (missing := flow.lay(zone, amount))
        }:
            full = flow.full(CPUSet.union(waiting))
            excess = sum(waiting.values())
            while excess > 0:
                before, bytes_, wider = queue.widen(full)
                late = min(bytes_, waiting.get(before, 0))
                flow.take(before, bytes_ - late)
                if late:
                    waiting[before] -= late
                waiting[wider] = waiting.get(wider, 0) + bytes_
                excess -= bytes_
        return tuple(
            ZoneMove(id_, self._books.bookings[id_].zone, zone)
            for id_, zone in sorted(queue.moved.items())
        )


class _Queue:
    """The movable bookings, in the order in which they are moved."""

    def __init__(self, map_: MemoryMap, bookings: Iterable[Booking], rank: Rank) -> None:
        self.moved: dict[str, CPUSet] = {}  # id -> the new zone
        self._map = map_
        # Bookings with the same present and widest zone: moving them helps for all or for none.
        # Sorted in the order of moving; bookings of 0 bytes are left out.
        self._groups: dict[tuple[CPUSet, CPUSet], list[Booking]] = {}
        for booking in bookings:
            if booking.request.movable and booking.request.rank <= rank and booking.laid:
                widest = booking.zone | booking.home.widest
                self._groups.setdefault((booking.zone, widest), []).append(booking)
        for group in self._groups.values():
            group.sort(key=_order)

    def widen(self, full: CPUSet) -> tuple[CPUSet, int, CPUSet]:
        """Widen the first booking inside *full* that can leave it, as little as that takes.

        Return its zone, its bytes, and its new zone.
        """
        zone, widest = min(
            (
                (zone, widest)
                for (zone, widest), group in self._groups.items()
                if group and zone <= full and not widest <= full
            ),
            key=lambda key: _order(self._groups[key][0]),
        )
        booking = self._groups[zone, widest].pop(0)
        wider = zone
        while wider <= full:
            wider = self._map.grow(wider, booking.home.growth)
        self.moved[booking.request.id] = wider
        insort(self._groups.setdefault((wider, widest), []), booking, key=_order)
        return zone, booking.laid, wider


def _order(booking: Booking) -> tuple[int, int, int, str]:
    """Return the place among those that make way: lower QoS, smaller, younger ones first (§7)."""
    request = booking.request
    return request.rank, request.amount, -request.created, request.id
