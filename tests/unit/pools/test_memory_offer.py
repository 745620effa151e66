from __future__ import annotations

from typing import Any

import pytest

from nri_policy.hardware.machine import Machine
from nri_policy.pools.memory import MemorySupply
from nri_policy.pools.memory_offer import (
    Criteria,
    MemoryShortageError,
    Offer,
    Rank,
    ZoneMove,
)
from tests.support import nodes
from tests.support.memory_maps import (
    DEFAULT,
    DRAM,
    EVERY,
    GIB,
    HBM,
    PMEM,
    TIERED,
    book,
    ids,
    request,
    supply,
    with_nodes,
    zones,
)

# pools 0, 1: NUMA nodes #0, #1; 2: socket #0; 3, 4: NUMA nodes #2, #3; 5: socket #1; 6: root
PLAIN = "package:2 numa:2(memory=16GiB) core:2"
ONE_SIDED = "package:2 numa:1(memory=16GiB hugepages-1Gi=0,4) core:2"
BEST_EFFORT, BURSTABLE, GUARANTEED = Rank


def tiered() -> Machine:
    """pools 0, 1: sockets #0, #1; 2: root; all memory is normal"""
    return with_nodes(nodes.machine(TIERED), normal=True)


def moves(offer: Offer) -> dict[str, str]:
    return {move.id: str(move.zone) for move in offer.moves}


@pytest.mark.parametrize(
    ("kinds", "zone"),
    [(DEFAULT, "0,4"), ({DRAM}, "0"), ({HBM}, "2"), ({PMEM}, "4"), (EVERY, "0,2,4")],
)
def test_a_request_that_fits_gets_the_local_nodes_of_its_kinds(kinds: set[Any], zone: str) -> None:
    at = supply(machine=tiered())
    offer = at.offer(0, request(8, kinds=frozenset(kinds)))
    assert (offer.zone, offer.moves) == (ids(zone), ())


@pytest.mark.parametrize(
    ("kinds", "gib", "zone"),
    [
        ({DRAM}, 17, "0-1"),
        ({DRAM}, 33, "0-1,4-5"),
        ({HBM}, 9, "2-3"),
        ({HBM}, 17, "0-3"),
        ({PMEM}, 65, "4-5"),
        ({PMEM}, 129, "0-1,4-5"),
        (DEFAULT, 81, "0-1,4"),
        (DEFAULT, 161, "0-5"),
    ],
)
def test_a_request_larger_than_its_nodes_widens_to_the_siblings(
    kinds: set[Any], gib: int, zone: str
) -> None:
    at = supply(machine=tiered())
    assert at.offer(0, request(gib, kinds=frozenset(kinds))).zone == ids(zone)


def test_a_strict_request_never_changes_kind() -> None:
    at = supply(machine=tiered())
    assert at.offer(0, request(16, kinds=frozenset({HBM}), strict=True)).zone == ids("2-3")
    with pytest.raises(MemoryShortageError) as error:
        at.offer(0, request(17, kinds=frozenset({HBM}), strict=True))
    assert (error.value.shortage.missing, error.value.shortage.nodes) == (GIB, ids("2-3"))


def test_a_zone_has_the_nodes_of_its_huge_pages_as_well() -> None:
    at = supply(ONE_SIDED)
    pages = ((GIB, 4 * GIB),)
    assert [at.offer(pool, request(1, hugepages=pages)).zone for pool in (0, 1)] == [
        ids("0-1"),
        ids("1"),
    ]


def test_with_too_few_huge_pages_free_a_zone_has_all_nodes_with_such_unless_it_needs_them() -> None:
    at = supply(ONE_SIDED)
    pages = ((GIB, 5 * GIB),)
    assert at.offer(0, request(1, hugepages=pages)).zone == ids("0-1")
    with pytest.raises(MemoryShortageError):
        at.offer(0, request(1, hugepages=pages, needs_pages=True))


def test_no_bytes_always_fit() -> None:
    at = supply(PLAIN, availableResources={"memory": 0})
    assert at.offer(3, request(0)).zone == ids("2")
    with pytest.raises(MemoryShortageError):
        at.offer(3, request(1))


def test_others_make_way_before_the_requester_widens() -> None:
    at = supply(PLAIN)
    first = book(at, 0, 10)
    offer = at.offer(0, request(10))
    assert offer.moves == (ZoneMove(first, ids("0"), ids("0-1")),)
    # widening moves none of the other's pages, so it must be able to go where they may now
    assert offer.zone == ids("0-1")
    assert at.offer(0, request(10, strict=True)).zone == ids("0")


def test_a_guaranteed_newcomer_pushes_best_effort_wider_and_never_the_reverse() -> None:
    at = supply(PLAIN)
    low = book(at, 0, 10, rank=BEST_EFFORT)
    offer = at.offer(0, request(10, rank=GUARANTEED))
    assert (offer.zone, moves(offer)) == (ids("0-1"), {low: "0-1"})

    at = supply(PLAIN)
    book(at, 0, 10, rank=GUARANTEED)
    offer = at.offer(0, request(10, rank=BEST_EFFORT))
    assert (offer.zone, offer.moves) == (ids("0-1"), ())


def test_lower_classes_make_way_first_whatever_their_size_and_age() -> None:
    at = supply(PLAIN)
    low = book(at, 0, 6, rank=BEST_EFFORT)
    book(at, 0, 1, rank=GUARANTEED)
    middle = book(at, 0, 5)
    assert moves(at.offer(0, request(5, rank=GUARANTEED))) == {low: "0-1"}
    assert moves(at.offer(0, request(11, rank=GUARANTEED))) == {low: "0-1", middle: "0-1"}


def test_of_one_class_smaller_ones_make_way_first() -> None:
    at = supply(PLAIN)
    small, large = book(at, 0, 5), book(at, 0, 6)
    assert moves(at.offer(0, request(9))) == {small: "0-1"}
    assert moves(at.offer(0, request(11))) == {small: "0-1", large: "0-1"}


def test_of_one_size_younger_ones_make_way_first() -> None:
    at = supply(PLAIN)
    young = book(at, 0, 5, created=2000)
    book(at, 0, 5, created=1000)
    assert moves(at.offer(0, request(9))) == {young: "0-1"}


def test_immovable_ones_never_make_way() -> None:
    at = supply(PLAIN)
    book(at, 0, 10, rank=BEST_EFFORT, movable=False)
    offer = at.offer(0, request(10, rank=GUARANTEED))
    assert (offer.zone, offer.moves) == (ids("0-1"), ())


def test_a_moved_zone_grows_as_far_as_it_must() -> None:
    at = supply(PLAIN)
    low = book(at, 0, 10, rank=BEST_EFFORT)
    book(at, 1, 13, rank=GUARANTEED, movable=False)
    offer = at.offer(0, request(10, rank=GUARANTEED))
    assert (offer.zone, moves(offer)) == (ids("0-3"), {low: "0-3"})


def test_a_moved_zone_changes_kind_only_if_it_must_and_may() -> None:
    for strict, expected in ((False, "0-1,4-5"), (True, None)):
        at = supply(machine=tiered())
        fixed = {"kinds": frozenset({DRAM}), "movable": False}
        book(at, 1, 13, **fixed)
        low = book(at, 0, 10, kinds=frozenset({DRAM}), rank=BEST_EFFORT, strict=strict)
        offer = at.offer(0, request(10, kinds=frozenset({DRAM}), rank=GUARANTEED))
        if expected is None:
            assert (offer.zone, offer.moves) == (ids("0-1,4-5"), ())
        else:
            assert (offer.zone, moves(offer)) == (ids(expected), {low: expected})


def test_only_bookings_that_help_are_moved() -> None:
    at = supply(PLAIN)
    book(at, 1, 1, rank=BEST_EFFORT)  # lies elsewhere
    book(at, 2, 1, rank=BEST_EFFORT)  # has room elsewhere already
    book(at, 0, 0, rank=BEST_EFFORT)  # is nothing
    middle = book(at, 0, 10)
    assert moves(at.offer(0, request(10))) == {middle: "0-1"}


def test_if_no_move_helps_the_requester_widens_and_moves_as_few_as_then_must() -> None:
    at = supply(PLAIN)
    book(at, 0, 10, rank=GUARANTEED)
    book(at, 0, 3, rank=BEST_EFFORT)
    offer = at.offer(0, request(8))
    assert (offer.zone, offer.moves) == (ids("0-1"), ())


def test_nested_and_crossing_zones_count_together() -> None:
    at = supply(PLAIN)
    book(at, 0, 14, movable=False)
    book(at, 2, 10, movable=False)  # so node 1 has 6 left, and nodes 0-1 have 8
    assert at.free(ids("0")) == 2 * GIB
    assert at.free(ids("1")) == at.free(ids("0-1")) == 8 * GIB
    assert at.free(ids("1-2")) == 24 * GIB
    assert at.offer(1, request(8)).zone == ids("1")
    assert at.offer(1, request(9)).zone == ids("0-3")


def test_what_fits_nowhere_is_refused_with_the_sizes() -> None:
    at = supply(PLAIN)
    book(at, 6, 40, rank=GUARANTEED)
    book(at, 6, 10)
    before = at.snapshot()
    with pytest.raises(MemoryShortageError) as error:
        at.offer(0, request(25))
    assert str(error.value) == (
        "25 GiB of memory do not fit: nodes 0-3 have 64 GiB for containers, 50 GiB of it booked by"
        " containers that cannot move; 11 GiB are missing"
    )
    assert error.value.shortage.missing == 11 * GIB
    assert at.snapshot() == before


def test_available_memory_is_kept() -> None:
    at = supply(PLAIN, availableResources={"memory": "20Gi"})
    book(at, 0, 16)
    assert at.free(ids("1-3")) == 4 * GIB
    with pytest.raises(MemoryShortageError, match="0-3 have 20 GiB for containers, 16 GiB of it"):
        at.offer(5, request(5))


def test_a_held_zone_is_kept_while_it_is_wide_enough() -> None:
    at = supply(PLAIN)
    assert at.offer(0, request(1), ids("0-1")).zone == ids("0-1")
    assert at.offer(0, request(33), ids("0-1")).zone == ids("0-3")


def test_memory_kind_is_met_by_exactly_the_requested_kinds() -> None:
    at = supply(machine=tiered())
    hbm = at.offers(request(8, kinds=frozenset({HBM})))
    assert [hbm.criteria(pool) for pool in range(3)] == [
        Criteria(1, 0, -1, 1),
        Criteria(1, 0, -1, 1),
        Criteria(1, 0, -2, 1),
    ]
    assert at.offers(request(17, kinds=frozenset({HBM}))).criteria(0) == (0, 0, -4, 1)


def test_memory_burst_asks_whether_the_limit_fits_the_pools_own_nodes() -> None:
    at = supply(PLAIN)
    for limit, burst in ((8, [1, 1]), (17, [0, 1]), (33, [0, 0]), (4, [0, 0])):
        offers = at.offers(request(4, limit=limit * GIB))
        rows = [offers.criteria(0), offers.criteria(2)]
        assert [row.burst for row in rows if row is not None] == burst


def test_a_pool_without_an_offer_has_no_criteria_but_a_shortage() -> None:
    offers = supply(PLAIN).offers(request(65))
    assert offers.zone(0) is None
    assert offers.criteria(0) is None
    assert offers.shortage(0).missing == GIB


def test_a_strict_request_for_what_is_not_there_is_refused_with_the_kind() -> None:
    with pytest.raises(MemoryShortageError, match="this node has no memory of kind hbm"):
        supply(PLAIN).offer(0, request(1, kinds=frozenset({HBM}), strict=True))


def test_offers_do_not_depend_on_the_order_of_tables() -> None:
    at = supply(PLAIN)
    for number in range(40):
        kinds = (DEFAULT, frozenset({DRAM}))[number % 2]
        book(at, number % 7, 1.2, kinds=kinds, rank=Rank(number % 3), created=number // 3)
    twin = MemorySupply(at.map)
    for booking in reversed([*at.bookings.values()]):
        assert twin.adopt(booking.pool, booking.request, booking.zone) is None
    assert zones(twin) == zones(at)
    wanted = request(12, rank=GUARANTEED)
    for pool in range(7):
        one, other = at.offer(pool, wanted), twin.offer(pool, wanted)
        assert one.moves or pool > 0
        assert (one.booking, one.moves) == (other.booking, other.moves)


def test_pools_of_the_same_nodes_offer_the_same() -> None:
    at = supply("package:1 numa:2(memory=16GiB) l3:2 core:4")
    book(at, 0, 10)
    offers = at.offers(request(10))
    assert [str(offers.zone(pool)) for pool in range(3)] == ["0", "0", "0"]
    assert offers.offer(0).moves == offers.offer(2).moves


def test_machines_of_more_than_64_nodes_have_offers() -> None:
    at = supply("package:2 numa:40(memory=1GiB) core:1")
    low = book(at, 78, 1, rank=BEST_EFFORT)
    assert zones(at)[low] == "77"
    offer = at.offer(78, request(1, rank=GUARANTEED))
    assert (offer.zone, moves(offer)) == (ids("40-79"), {low: "40-79"})


def test_a_pool_in_which_nobody_has_to_make_way_is_told_apart() -> None:
    at = supply(PLAIN)
    book(at, 0, 10)
    offers = at.offers(request(10))
    assert [offers.criteria(pool).undisturbed for pool in (0, 1)] == [0, 1]  # type: ignore[union-attr]
    assert offers.columns().undisturbed is not None
    assert [offers.columns().undisturbed[pool] for pool in (0, 1, 6)] == [0, 1, 1]  # type: ignore[index]
    assert at.offers(request(1)).columns().undisturbed is None, "nobody is anywhere"


def test_what_was_booked_stays_its_own_whatever_is_short() -> None:
    """Node 0 holds 16 GiB; 20 are booked there, of one that is found with them."""
    at = supply(PLAIN)
    book(at, 0, 6, id="resized")
    at.adopt(0, request(14, id="found"), ids("0"))
    assert at.missing == 4 * GIB
    at.release("resized", settle=False)
    assert at.missing == 4 * GIB
    resized = request(6, id="resized")
    offer = at.offers(resized, ids("0"), booked=6 * GIB).offer(0)
    assert (offer.zone, offer.moves) == (ids("0"), ())
    more = at.offers(request(7, id="resized"), ids("0"), booked=6 * GIB).offer(0)
    assert more.zone == ids("0-1"), "what is more is no one's own"
    at.commit(offer)
    assert at.missing == 4 * GIB
