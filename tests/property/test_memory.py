"""Memory bookings under random requests and releases, against every subset of the nodes."""

from __future__ import annotations

from random import Random

import pytest
from msgspec.structs import replace

from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.pools.memory import MemorySupply
from nri_policy.pools.memory_offer import Booking, MemoryRequest, MemoryShortageError, Offer, Rank
from tests.property.seeds import seeds
from tests.support import memory_maps, nodes
from tests.support.memory_maps import DRAM, HBM, PMEM

OPERATIONS = 300

MACHINES = (
    "package:1 core:2",
    "package:2 numa:2 core:1",
    "package:3 numa:1 core:1",
    memory_maps.TIERED,
    "package:2(pmem=1GiB) numa:2(hbm=1GiB) core:1",
    "package:2 numa:5 core:1",
    "package:2 numa:2 l3:2 core:2 distances=10,20,30,30/20,10,40,20/30,40,10,20/30,20,20,10",
)
KINDS = [frozenset(kinds) for kinds in ({DRAM}, {PMEM}, {HBM}, {DRAM, PMEM}, {DRAM, PMEM, HBM})]


class Model:
    """Hall's condition by brute force."""

    def __init__(self, supply: MemorySupply, size: int = 0) -> None:
        """Of ordinary memory, or of huge pages of *size*."""
        self.map = supply.map
        amounts = supply.map.hugepages[size] if size else supply.map.capacity
        self.bits = {node: 1 << place for place, node in enumerate(supply.map.nodes)}
        self.every = (1 << len(self.bits)) - 1
        self.capacity = [0] * (self.every + 1)
        for subset in range(1, self.every + 1):
            node = [*self.bits][subset.bit_length() - 1]
            rest = subset & ~self.bits[node]
            self.capacity[subset] = self.capacity[rest] + amounts[node]
        self.capacity[self.every] -= 0 if size else supply.map.withheld

    def excess(self, demands: list[tuple[CPUSet, int]]) -> int:
        """Return by how much the worst set of nodes is overbooked, 0 if none is."""
        inside = [0] * (self.every + 1)
        for zone, amount in demands:
            inside[sum(self.bits[node] for node in zone)] += amount
        for bit in self.bits.values():
            for subset in range(self.every + 1):
                if subset & bit:
                    inside[subset] += inside[subset ^ bit]
        return max(0, *(inside[at] - self.capacity[at] for at in range(self.every + 1)))

    def fits(
        self, supply: MemorySupply, request: MemoryRequest, zone: CPUSet, most: int | None
    ) -> bool:
        """Return whether *zone* will do with all movable ones up to rank *most* at their widest."""
        demands = [
            (
                booking.zone | booking.home.widest
                if most is not None
                and booking.request.movable
                and booking.request.rank <= min(most, request.rank)
                else booking.zone,
                booking.request.amount - booking.missing,
            )
            for booking in supply.bookings.values()
        ]
        return not self.excess([*demands, (zone, request.amount)])


def check_rehome(supply: MemorySupply, pool: int, booking_id: str) -> None:
    """Count a booking with another pool: the same as if it were adopted there on its zone."""
    before = supply.snapshot()
    booking = supply.bookings[booking_id]
    zone = supply.rehome(booking_id, pool)
    assert zone == booking.zone or (zone > booking.zone and not booking.request.amount)
    rehomed = supply.snapshot()
    supply.restore(before)
    supply.release(booking_id, settle=False)
    supply.adopt(pool, booking.request, zone)
    assert supply.snapshot() == rehomed


def check_books(model: Model, supply: MemorySupply) -> None:
    booked = [(b.zone, b.request.amount - b.missing) for b in supply.bookings.values()]
    assert model.excess(booked) == 0, "I6: a set of nodes is overbooked"
    in_use = [(b.zone, b.request.amount) for b in supply.bookings.values()]
    missing = {each: b.missing for each, b in supply.bookings.items() if b.missing}
    excess = model.excess(in_use)
    assert sum(missing.values()) == excess, "more or less is flagged than does not fit"
    assert supply._short.keys() == missing.keys(), "who misses nothing is not looked at again"


def check_offer(
    model: Model, supply: MemorySupply, pool: int, request: MemoryRequest
) -> Offer | None:
    """Return the offer, which is the narrowest zone that can be made to fit, or rightly none."""
    home = model.map.homes(request.kinds, strict=request.strict, cold=request.cold).each[pool]
    widths = () if home.refused else model.map.widths(home.zone, home.growth)
    right = next((z for z in widths if model.fits(supply, request, z, Rank.GUARANTEED)), None)
    if right is None:
        with pytest.raises(MemoryShortageError) as refused:
            supply.offer(pool, request)
        assert home.refused or refused.value.shortage.missing > 0
        return None
    offer = supply.offer(pool, request)
    pages = () if request.strict else (move.zone for move in offer.moves)
    assert offer.zone == right | CPUSet.union(pages), "no room where others were widened to"
    assert (offer.moves == ()) == model.fits(supply, request, right, None)
    assert supply.offers(request).criteria(pool).undisturbed == (offer.moves == ())  # type: ignore[union-attr]
    ranks = [check_move(supply.bookings[move.id], move.zone) for move in offer.moves]
    if ranks:
        assert max(ranks) <= request.rank, "a higher class was pushed"
        lower = max(ranks) - 1
        assert not model.fits(supply, request, right, lower), "lower classes would have done"
    return offer


def check_columns(supply: MemorySupply, pools: int, request: MemoryRequest, held: CPUSet) -> None:
    """The criteria of all pools at once are those of each alone, by offers of their own."""
    columns = supply.offers(request, held).columns()
    for pool in range(pools):
        criteria = supply.offers(request, held).criteria(pool)
        assert (pool in columns.none) == (criteria is None)
        if criteria is not None:
            undisturbed = 1 if columns.undisturbed is None else columns.undisturbed[pool]
            assert undisturbed == criteria.undisturbed
            assert (columns.kind[pool], columns.tightness[pool]) == (
                criteria.kind,
                criteria.tightness,
            )
            if columns.burst is None:
                assert (request.limit or request.amount) == request.amount
            else:
                assert columns.burst[pool] == criteria.burst


def check_move(booking: Booking, zone: CPUSet) -> Rank:
    assert booking.zone < zone
    assert booking.request.movable
    assert zone <= booking.zone | booking.home.widest, "a strict one has changed kind"
    return booking.request.rank


def random_request(random: Random, number: int, scale: int) -> MemoryRequest:
    amount = random.randrange(random.choice((1, 2, scale // 10, scale // 10, scale // 3)))
    return MemoryRequest(
        id=f"ctr-{number}",
        amount=amount,
        limit=random.choice((None, amount, amount + random.randrange(scale))),
        kinds=random.choice(KINDS),
        rank=random.choice([*Rank]),
        created=random.randrange(50),  # ties are wanted
        strict=random.random() < 0.2,
        movable=random.random() < 0.8,
        cold=random.random() < 0.1,
    )


def operate(random: Random, model: Model, supply: MemorySupply, pools: int, number: int) -> None:
    """Do something at random."""
    request = random_request(random, number, max(20, model.capacity[model.every]))
    pool = min(random.randrange(pools), random.randrange(pools))  # rather a small one
    held, action = [*supply.bookings], random.random()
    if action < 0.6:
        before = supply.snapshot()
        offer = check_offer(model, supply, pool, request)
        keeping = CPUSet(node for node in model.bits if random.random() < 0.2)
        check_columns(supply, pools, request, random.choice((EMPTY, keeping)))
        assert supply.snapshot() == before
        if offer is not None:
            supply.commit(offer)
    elif action < 0.62:
        zone = CPUSet(node for node in model.bits if random.random() < 0.4)
        if zone:
            supply.adopt(pool, request, zone)
    elif action < 0.67:
        for move in supply.shrink():
            assert EMPTY < move.zone < move.before
    elif held and action < 0.7:
        supply.warm(random.choice(held))
    elif held and action < 0.73:
        check_rehome(supply, pool, random.choice(held))
    elif held:
        supply.release(random.choice(held))


@pytest.mark.parametrize("spec", MACHINES)
@seeds(2)
def test_books_and_offers_agree_with_every_subset_of_nodes(spec: str, seed: int) -> None:
    random = Random(seed)
    machine = nodes.machine(spec)
    sizes = {node.id: random.randrange(1, 1000) for node in machine.nodes}
    all_normal, all_available = random.random() < 0.5, random.random() < 0.5
    normal = {node.id: node.normal or all_normal for node in machine.nodes}
    machine = memory_maps.with_nodes(machine, memory=sizes, normal=normal)
    available = {} if all_available else {"memory": sum(sizes.values()) * 3 // 4}
    supply = memory_maps.supply(machine=machine, availableResources=available)
    model, start = Model(supply), supply.snapshot()
    pools = len(memory_maps.tree(machine).pools)
    for number in range(OPERATIONS):
        operate(random, model, supply, pools, number)
        check_books(model, supply)
    for id_ in [*supply.bookings]:
        supply.release(id_)
    assert supply.snapshot() == start
    assert supply.free(supply.map.nodes) == model.capacity[model.every]


PAGE_SIZES = (2, 8)


def check_pages(models: dict[int, Model], supply: MemorySupply) -> None:
    """Assert I5 and I6 of the huge pages of each size."""
    bookings = supply.bookings.values()
    for size, model in models.items():
        booked = [(b.zone, dict(b.laid_pages).get(size, 0)) for b in bookings]
        assert model.excess(booked) == 0, "I6: a set of nodes has more pages booked than it has"
        excess = model.excess([(b.zone, dict(b.request.hugepages).get(size, 0)) for b in bookings])
        assert sum(dict(b.missing_pages).get(size, 0) for b in bookings) == excess
    short = {each for each, b in supply.bookings.items() if b.missing or b.missing_pages}
    assert supply._short.keys() == short, "who misses nothing is not looked at again"


def check_pages_offered(
    models: dict[int, Model], supply: MemorySupply, pool: int, request: MemoryRequest
) -> None:
    """Book what is offered: a zone with the pages, or all nodes with any, or rightly nothing."""
    before = supply.snapshot()

    def has(zone: CPUSet) -> bool:
        return all(
            not models[size].excess(
                [(b.zone, dict(b.laid_pages).get(size, 0)) for b in supply.bookings.values()]
                + [(zone, amount)]
            )
            for size, amount in request.hugepages
        )

    home = supply.map.homes(request.kinds, strict=request.strict, cold=request.cold).each[pool]
    try:
        offer = supply.offer(pool, request)
    except MemoryShortageError as refused:
        assert supply.snapshot() == before
        if refused.shortage.pages:
            assert request.needs_pages
            assert not has(home.widest)
        return
    if not has(offer.zone):
        assert not request.needs_pages
        assert not has(home.widest)
        every = CPUSet.union(supply.map.with_pages(size) for size, _ in request.hugepages)
        assert every & home.widest <= offer.zone
    assert not any(supply.bookings[move.id].request.hugepages for move in offer.moves)
    supply.commit(offer)


@pytest.mark.parametrize("spec", MACHINES)
@seeds(2)
def test_huge_pages_are_amounts_of_their_own(spec: str, seed: int) -> None:
    random = Random(seed)
    machine = nodes.machine(spec)
    pages = [
        tuple((size, random.choice((0, random.randrange(30)))) for size in PAGE_SIZES)
        for _ in machine.nodes
    ]
    machine = replace(
        machine,
        nodes=tuple(
            replace(node, memory=400 + random.randrange(400), hugepages=each)
            for node, each in zip(machine.nodes, pages, strict=True)
        ),
    )
    supply = memory_maps.supply(machine=machine)
    models, start = {size: Model(supply, size) for size in supply.map.hugepages}, supply.snapshot()
    pools = len(memory_maps.tree(machine).pools)
    for number in range(OPERATIONS // 3):
        request = random_request(random, number, 200)
        asked = tuple((size, size * random.randrange(1, 20)) for size in models)
        asked = tuple(each for each in asked if random.random() < 0.7)
        request = replace(
            request,
            hugepages=asked,
            movable=request.movable and not asked,
            needs_pages=random.random() < 0.5,
        )
        pool, held = random.randrange(pools), [*supply.bookings]
        if random.random() < 0.6:
            check_pages_offered(models, supply, pool, request)
        elif random.random() < 0.2:
            supply.adopt(pool, request, random.choice(supply.map.homes(request.kinds).each).zone)
        elif held:
            supply.release(random.choice(held))
        check_pages(models, supply)
    for id_ in [*supply.bookings]:
        supply.release(id_)
    assert supply.snapshot() == start
    for size, model in models.items():
        assert supply.free_pages(size, supply.map.nodes) == model.capacity[model.every]
