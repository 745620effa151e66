"""Memory supply: what is booked on the memory nodes, and what is left; spec placement.md §7.

Owns the bookings. A request gets offers, which change nothing, and at most one of them is
committed; an offer of an earlier generation is refused. Knows no container beyond its request.

Invariant (I6): for every set S of nodes, what is booked on zones inside S is no more than S holds.
Only what is adopted, because a container runs there already, can be more: the bytes that do not fit
are the `missing` ones of its booking. They count on no node until they fit. The same holds for the
huge pages of each size.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.foundation.units import format_bytes
from nri_policy.pools.memory_flow import Flow
from nri_policy.pools.memory_map import Home, MemoryMap
from nri_policy.pools.memory_offer import (
    Booking,
    Books,
    MemoryRequest,
    Offer,
    Offers,
    Pages,
    Shortage,
    StaleOfferError,
    ZoneMove,
)


class MemorySupply:
    """The bookings on one memory map."""

    def __init__(self, map_: MemoryMap) -> None:
        self.map = map_
        self._books = Books(
            bookings={},
            movable={},
            flow=Flow.empty(map_.capacity),
            pages={size: Flow.empty(nodes) for size, nodes in map_.hugepages.items()},
        )
        self._books.flow.lay(map_.nodes, map_.withheld)
        self._short: dict[str, None] = {}  # ids of those with missing bytes, of huge pages as well

    @property
    def bookings(self) -> Mapping[str, Booking]:
        """All bookings, by id."""
        return self._books.bookings

    @property
    def generation(self) -> int:
        """The number of changes."""
        return self._books.generation

    @property
    def missing(self) -> int:
        """The bytes that are booked beyond the capacity of the nodes."""
        return sum(self._books.bookings[each].missing for each in self._short)

    def snapshot(self) -> Books:
        """Return what `restore` needs to come back to this moment: the books go on as a copy."""
        books = self._books
        self._books = books.copy()
        return books

    def restore(self, snapshot: Books) -> None:
        """Go back to *snapshot*, which stays usable; offers made before are stale."""
        generation = self._books.generation
        self._books = snapshot.copy()
        self._books.generation = generation + 1
        self._short = {
            each: None for each, b in snapshot.bookings.items() if b.missing or b.missing_pages
        }

    def free(self, zone: CPUSet) -> int:
        """Return the bytes that a new booking on *zone* could have without any move."""
        zone &= self.map.nodes
        most = self.map.capacity_of(zone)
        return most - self._books.flow.copy().lay(zone, most)

    def free_pages(self, size: int, zone: CPUSet) -> int:
        """Return the bytes of huge pages of *size* that a new booking on *zone* could have."""
        zone &= self.map.nodes
        most = self.map.pages_of(size, zone)
        return most - self._books.pages[size].copy().lay(zone, most)

    def has_pages(self, zone: CPUSet, pages: Pages) -> bool:
        """Return whether a new booking on *zone* could have these huge *pages*."""
        return self._books.has_pages(zone & self.map.nodes, pages)

    def offers(self, request: MemoryRequest, held: CPUSet = EMPTY, *, booked: int = -1) -> Offers:
        """Return what the pools offer *request*; nothing changes.

        *held* is the present zone of a container in a resize, which should keep its nodes. Its
        booking of *booked* bytes was released before: up to as many are offered there even if
        memory is short; -1: no bytes are.
        """
        if not self.map.nodes:  # no amount can be accounted for
            request = replace(request, amount=0)
        keeps = False
        if held:
            keeps = held <= self.map.nodes and request.amount <= booked
            held &= self.map.nodes
        return Offers(self.map, self._books, request, held, keeps=keeps)

    def offer(self, pool: int, request: MemoryRequest, held: CPUSet = EMPTY) -> Offer:
        """Return what one *pool* offers; MemoryShortageError where that is nothing."""
        return self.offers(request, held).offer(pool)

    def commit(self, offer: Offer) -> None:
        """Book an offer and carry out its moves; StaleOfferError if bookings have changed since."""
        generation = self._books.generation
        if offer.generation != generation:
            raise StaleOfferError(
                f"the offer was made on generation {offer.generation} of the memory bookings, which"
                f" are at {generation} now: a new offer is needed"
            )
        self._expect_new(offer.booking)
        if offer.moves:
            moved = [self._lift(move.id) for move in offer.moves]
            for booking, move in zip(moved, offer.moves, strict=True):
                self._put(replace(booking, zone=move.zone))
        self._put(offer.booking)
        self._settle()

    def adopt(self, pool: int, request: MemoryRequest, zone: CPUSet) -> Shortage | None:
        """Book *zone*, where a container runs already; return what is missing there, if any.

        Nodes that are not handed out are left out of the zone; ValueError if none remains: such a
        container has to be placed anew.
        """
        nodes = self.map.nodes
        zone &= nodes
        if nodes and not zone:
            raise ValueError(f"none of these memory nodes can be used; those that can: {nodes}")
        home = self._home(request, pool)
        booking = Booking(
            request=replace(request, amount=request.amount if nodes else 0),
            pool=pool,
            zone=zone,
            home=home,
        )
        self._expect_new(booking)
        self._put(booking)
        missing = self._books.bookings[request.id].missing
        full = self._books.flow.full(zone)
        self._settle()
        if not missing:
            return None
        return Shortage(
            missing=missing,
            nodes=full,
            text=(
                f"memory nodes {full} have {format_bytes(self.map.capacity_of(full))} for"
                f" containers, but those that run there are booked with {format_bytes(missing)}"
                " more"
            ),
        )

    def release(self, booking_id: str, *, settle: bool = True) -> None:
        """Release a booking; give its bytes to bookings that miss some only if *settle*."""
        self._lift(booking_id)
        if settle:
            self._settle()
        else:
            self._books.generation += 1

    def resize(self, booking_id: str, amount: int) -> None:
        """Book another *amount* on the same zone; what has no room there counts as missing."""
        booking = self._lift(booking_id)
        request = replace(booking.request, amount=amount if self.map.nodes else 0)
        self._put(replace(booking, request=request, missing=0))
        self._settle()

    def release_pages(self, booking_id: str) -> None:
        """Take the huge pages of a booking back."""
        booking = self._lift(booking_id)
        request = replace(booking.request, hugepages=())
        self._put(replace(booking, request=request, missing_pages=()))
        self._settle()

    def rehome(self, booking_id: str, pool: int) -> CPUSet:
        """Count a booking with *pool*, as if adopted there, and return its zone.

        The zone stays; one on which nothing is booked gets the pool's nodes as well, so that new
        pages are beside the CPUs (placement.md §2).
        """
        booking = self._books.bookings[booking_id]
        request = booking.request
        home = self._home(request, pool)
        self._count(booking, -booking.laid)
        zone = booking.zone
        booked = request.amount or request.hugepages
        if not (booked or request.strict or home.refused or home.cold):
            zone |= home.zone
        booking = replace(booking, pool=pool, home=home, zone=zone)
        self._books.bookings[booking_id] = booking
        self._count(booking, booking.laid)
        self._books.generation += 1
        return zone

    def warm(self, booking_id: str) -> CPUSet:
        """End a booking's cold start and return its zone, which has dram now.

        No booking has to move: a wider zone takes no room from others.
        """
        booking = self._lift(booking_id)
        request = replace(booking.request, cold=False)
        home = self._home(request, booking.pool)
        self._put(replace(booking, request=request, home=home, zone=booking.zone | home.zone))
        self._settle()
        return self._books.bookings[booking_id].zone

    def shrink(self) -> tuple[ZoneMove, ...]:
        """Let widened zones shrink back as far as they fit, the oldest first; return the moves.

        Each container moves at most once. Only to be called where the settings allow it, once
        all bookings of an event are released.
        """
        moves = []
        for booking in sorted(self._books.bookings.values(), key=_age):
            zone = self._narrower(booking)
            if zone is not None:
                moves.append(ZoneMove(booking.request.id, booking.zone, zone))
        self._settle()
        return tuple(moves)

    def _narrower(self, booking: Booking) -> CPUSet | None:
        """Rebook on the narrowest zone that fits, and return it; None where none is narrower.

        A zone is kept if the machine lacks the requested kinds.
        """
        if not booking.request.movable or booking.missing or booking.home.refused:
            return None
        for zone in self.map.widths(booking.home.zone, booking.home.growth):
            if not zone < booking.zone:
                break
            self._lift(booking.request.id)
            fits = self._books.flow.holds(zone, booking.laid)
            self._put(replace(booking, zone=zone if fits else booking.zone))
            if fits:
                return zone
        return None

    def _home(self, request: MemoryRequest, pool: int) -> Home:
        homes = self.map.homes(request.kinds, strict=request.strict, cold=request.cold)
        return homes.each[pool]

    def _expect_new(self, booking: Booking) -> None:
        if booking.request.id in self._books.bookings:
            raise ValueError(f"{booking.request.id} has memory booked already")

    def _lift(self, booking_id: str) -> Booking:
        """Take a booking off the nodes and return it."""
        booking = self._books.bookings.pop(booking_id)
        self._short.pop(booking_id, None)
        self._books.flow.take(booking.zone, booking.laid)
        for size, amount in booking.laid_pages:
            if amount:
                self._books.pages[size].take(booking.zone, amount)
        self._count(booking, -booking.laid)
        return booking

    def _put(self, booking: Booking) -> None:
        """Lay a booking onto the nodes, as far as it fits."""
        books, booking_id, laid = self._books, booking.request.id, booking.laid
        assert booking_id not in books.bookings, "a booking is laid once"
        short = books.flow.lay(booking.zone, laid)
        if short:
            booking = replace(booking, missing=booking.missing + short)
        if pages := booking.request.hugepages:
            booking = replace(booking, missing_pages=self._lay_pages(booking.zone, pages))
        books.bookings[booking_id] = booking
        if booking.missing or booking.missing_pages:
            self._short[booking_id] = None
        self._count(booking, laid - short)

    def _lay_pages(self, zone: CPUSet, pages: Pages) -> Pages:
        """Lay huge *pages* onto *zone*, as far as they fit; return the rest."""
        flows = self._books.pages
        short = [
            (size, flows[size].lay(zone, amount) if size in flows else amount)
            for size, amount in pages
        ]
        return tuple((size, amount) for size, amount in short if amount)

    def _count(self, booking: Booking, amount: int) -> None:
        request = booking.request
        if request.movable:
            movable, zone = self._books.movable, booking.zone
            key = request.rank, zone, zone | booking.home.widest
            amount += movable.pop(key, 0)
            assert amount >= 0, "no more is taken than was laid"
            if amount:
                movable[key] = amount

    def _settle(self) -> None:
        """Close a change: book what was missing and fits now, the oldest first."""
        self._books.generation += 1
        if not self._short:
            return
        for booking in sorted((self._books.bookings[each] for each in self._short), key=_age):
            short = self._books.flow.lay(booking.zone, booking.missing)
            self._count(booking, booking.missing - short)
            pages = self._lay_pages(booking.zone, booking.missing_pages)
            self._books.bookings[booking.request.id] = replace(
                booking, missing=short, missing_pages=pages
            )
            if not (short or pages):
                del self._short[booking.request.id]


def _age(booking: Booking) -> tuple[int, str]:
    return booking.request.created, booking.request.id
