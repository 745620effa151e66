from __future__ import annotations

from collections.abc import Callable

import pytest

from nri_policy.foundation.cpuset import EMPTY
from nri_policy.pools.memory import MemorySupply
from nri_policy.pools.memory_offer import Rank, StaleOfferError
from tests.support import nodes
from tests.support.memory_maps import (
    DRAM,
    GIB,
    PMEM,
    TIERED,
    book,
    ids,
    request,
    supply,
    with_nodes,
    zones,
)

PLAIN = "package:2 numa:2(memory=16GiB) core:2"


def test_a_commit_books_the_zone_and_moves_the_others() -> None:
    at = supply(PLAIN)
    low = book(at, 0, 10, rank=Rank.BEST_EFFORT)
    high = book(at, 0, 10, rank=Rank.GUARANTEED)
    assert zones(at) == {low: "0-1", high: "0-1"}
    assert [at.free(ids(text)) // GIB for text in ("0", "1", "0-1", "0-3")] == [12, 12, 12, 44]


def test_an_offer_changes_nothing() -> None:
    at = supply(PLAIN)
    book(at, 0, 10)
    before = at.snapshot()
    assert at.offer(0, request(10)).moves
    assert at.snapshot() == before


def test_a_stale_offer_is_refused() -> None:
    at = supply(PLAIN)
    one, other = at.offer(0, request(1)), at.offer(0, request(1))
    at.commit(one)
    for stale in (one, other):
        with pytest.raises(StaleOfferError, match="generation 0 of the memory bookings, which are"):
            at.commit(stale)
    at.restore(at.snapshot())
    late = at.offer(0, request(1))
    at.restore(at.snapshot())
    with pytest.raises(StaleOfferError):
        at.commit(late)


@pytest.mark.parametrize(
    "change",
    [
        lambda at: at.adopt(0, request(1), ids("0")),
        lambda at: at.release("there"),
        lambda at: at.release("there", settle=False),
        lambda at: at.resize("there", GIB),
        lambda at: at.rehome("there", 1),
        lambda at: at.warm("there"),
        lambda at: at.shrink(),
    ],
)
def test_an_offer_is_stale_after_any_change(change: Callable[[MemorySupply], object]) -> None:
    at = supply(PLAIN)
    at.adopt(0, request(1, id="there"), ids("0"))
    offer = at.offer(0, request(1))
    change(at)
    with pytest.raises(StaleOfferError):
        at.commit(offer)


def test_an_id_is_booked_once() -> None:
    at = supply(PLAIN)
    wanted = request(1)
    at.commit(at.offer(0, wanted))
    with pytest.raises(ValueError, match=f"{wanted.id} has memory booked already"):
        at.commit(at.offer(1, wanted))
    with pytest.raises(ValueError, match="has memory booked already"):
        at.adopt(0, wanted, ids("0"))


def test_release_of_all_restores_the_start() -> None:
    at = supply(PLAIN, availableResources={"memory": "50Gi"})
    start, free = at.snapshot(), [at.free(ids(text)) for text in ("0", "1-2", "0-3")]
    for number in range(12):
        book(at, number % 7, 4, rank=Rank(number % 3))
    for id_ in [*at.bookings]:
        at.release(id_)
    assert at.snapshot() == start
    assert [at.free(ids(text)) for text in ("0", "1-2", "0-3")] == free


def test_a_snapshot_stays_as_it_is() -> None:
    at = supply(PLAIN)
    kept = book(at, 0, 10)
    snapshot = at.snapshot()
    book(at, 0, 10)
    at.release(kept)
    at.restore(snapshot)
    assert zones(at) == {kept: "0"}
    assert at.free(ids("0")) == 6 * GIB
    book(at, 0, 6)
    at.restore(snapshot)
    assert zones(at) == {kept: "0"}


def test_a_running_container_keeps_its_zone() -> None:
    at = supply(PLAIN)
    assert at.adopt(0, request(20, id="a"), ids("1,3")) is None
    assert zones(at) == {"a": "1,3"}
    assert at.free(ids("1")) == 12 * GIB


def test_more_in_use_than_there_is_is_flagged_and_never_fatal() -> None:
    at = supply(PLAIN)
    assert at.adopt(0, request(10, id="a"), ids("0")) is None
    shortage = at.adopt(0, request(10, id="b", movable=False), ids("0"))
    assert shortage is not None
    assert (shortage.missing, shortage.nodes) == (4 * GIB, ids("0"))
    assert shortage.text == (
        "memory nodes 0 have 16 GiB for containers, but those that run there are booked with 4 GiB"
        " more"
    )
    assert at.bookings["b"].missing == 4 * GIB
    assert at.free(ids("0")) == 0
    assert at.free(ids("0-1")) == 16 * GIB  # it is not the neighbours' loss
    at.release("a")
    assert at.bookings["b"].missing == 0
    assert at.free(ids("0")) == 6 * GIB


def test_what_is_missing_is_known_again_from_a_snapshot() -> None:
    at, twin = supply(PLAIN), supply(PLAIN)
    at.adopt(0, request(10, id="a"), ids("0"))
    at.adopt(0, request(10, id="b", movable=False), ids("0"))
    twin.restore(at.snapshot())
    assert twin.missing == at.missing == 4 * GIB
    twin.release("a")
    assert twin.missing == 0, "it is booked as soon as it fits"
    twin.restore(at.snapshot())
    assert twin.missing == 4 * GIB


def test_nodes_that_are_gone_are_left_out_of_an_adopted_zone() -> None:
    machine = with_nodes(nodes.machine(PLAIN), memory={3: 0})
    at = supply(machine=machine)
    at.adopt(0, request(1, id="a"), ids("2-3,9"))
    assert zones(at) == {"a": "2"}
    with pytest.raises(ValueError, match="none of these memory nodes can be used"):
        at.adopt(0, request(1), ids("3"))


def test_where_no_memory_shows_nothing_is_booked_and_nobody_refused() -> None:
    at = supply(machine=with_nodes(nodes.machine(PLAIN), memory=0))
    wanted = request(100)
    at.commit(at.offer(0, wanted))
    assert at.bookings[wanted.id].zone == EMPTY
    assert at.adopt(0, request(100), ids("0-3")) is None


def test_a_cold_start_gets_its_dram_later() -> None:
    at = supply(machine=with_nodes(nodes.machine(TIERED), normal=True))
    offer = at.offer(0, request(20, id="cold", cold=True))
    assert (offer.zone, offer.booking.home.cold) == (ids("4"), True)
    at.commit(offer)
    assert at.free(ids("0")) == 16 * GIB
    assert at.warm("cold") == ids("0,4")
    assert at.free(ids("4")) == 60 * GIB
    assert at.warm("cold") == ids("0,4")  # told twice


def test_a_cold_start_goes_on_after_a_restart() -> None:
    at = supply(machine=with_nodes(nodes.machine(TIERED), normal=True))
    at.adopt(0, request(20, id="cold", cold=True), ids("4"))
    assert at.warm("cold") == ids("0,4")


def test_dram_is_added_to_a_cold_start_that_had_to_make_way() -> None:
    at = supply(machine=with_nodes(nodes.machine(TIERED), normal=True))
    book(at, 0, 20, id="cold", cold=True, rank=Rank.BEST_EFFORT)
    book(at, 0, 60, kinds=frozenset({PMEM}))
    assert zones(at)["cold"] == "4-5"
    assert at.warm("cold") == ids("0,4-5")


def crowded() -> MemorySupply:
    """Nodes 0 and 1 are widened to, from 0, by `old` and `young`; `big` is the reason."""
    at = supply(PLAIN)
    for created, id_ in ((2, "young"), (1, "old")):
        book(at, 0, 6, id=id_, created=created)
    book(at, 0, 16, id="big", rank=Rank.GUARANTEED)
    assert zones(at) == {"old": "0-1", "young": "0-1", "big": "0-1"}
    return at


def test_widened_zones_shrink_back_oldest_first_as_far_as_they_fit() -> None:
    at = crowded()
    at.release("big")
    book(at, 0, 8, id="rest", movable=False)
    assert [move.id for move in at.shrink()] == ["old"]
    assert zones(at) == {"old": "0", "young": "0-1", "rest": "0"}
    assert at.shrink() == ()
    at.release("rest")
    assert at.shrink() == (("young", ids("0-1"), ids("0")),)


def test_zones_shrink_to_the_narrowest_step_of_their_growth_that_fits() -> None:
    at = supply(PLAIN)
    at.adopt(0, request(6, id="a"), ids("0-3"))
    book(at, 0, 12, movable=False)
    assert at.shrink() == (("a", ids("0-3"), ids("0-1")),)


def test_immovable_and_overcommitted_zones_do_not_shrink() -> None:
    at = supply(PLAIN)
    at.adopt(0, request(6, id="a", movable=False), ids("0-3"))
    at.adopt(0, request(60, id="b"), ids("0-1"))
    assert at.shrink() == ()


def test_whose_kinds_of_memory_are_not_there_keeps_its_zone() -> None:
    at = supply(PLAIN)
    at.adopt(0, request(0, id="a", kinds=frozenset({PMEM}), strict=True), ids("0-1"))
    assert at.shrink() == ()
    assert zones(at) == {"a": "0-1"}


def test_a_zone_that_is_not_one_of_its_growth_stays() -> None:
    at = supply(machine=with_nodes(nodes.machine(TIERED), normal=True))
    at.adopt(0, request(1, id="a", kinds=frozenset({DRAM}), strict=True), ids("0,2"))
    at.adopt(0, request(1, id="b", kinds=frozenset({DRAM})), ids("1,5"))
    assert at.shrink() == (("a", ids("0,2"), ids("0")),)
