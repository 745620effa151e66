"""Choice: the pool, the CPUs and the memory of one request; spec placement.md §2 to §4, §6.

Books nothing.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from nri_policy.engine.choice.comparison import BestPool, compare
from nri_policy.engine.choice.exclusive_cpus import NOTHING_CUT, cut_cpus
from nri_policy.engine.choice.memory_request import memory_request
from nri_policy.engine.choice.memory_zone import near_cpus, near_devices
from nri_policy.engine.choice.placement_notes import shortcomings
from nri_policy.engine.choice.shortage import Lack, PlacementError, memory_shortage, shortage
from nri_policy.engine.explanation import DecisionKind, Explanation
from nri_policy.engine.grant import Grant, HeldGrant, Placement
from nri_policy.engine.state.state import State
from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.foundation.units import format_cpu
from nri_policy.pools.memory_offer import MemoryRequest, MemoryShortageError, Offer
from nri_policy.pools.supply import Table
from nri_policy.workload.peers import Pulls
from nri_policy.workload.pod import Container, parse_cpus
from nri_policy.workload.request import Request, Sort


class ChoiceFacts(Struct, frozen=True, kw_only=True):
    """The facts behind a choice, for its explanation."""

    table: Table | None = None  # None if pools were not compared
    pulls: Pulls | None = None
    uses: tuple[str, ...] = ()  # its parts of claims
    notes: tuple[str, ...] = ()  # on results that it may not expect


class _Case(Struct, frozen=True, kw_only=True):
    """A request of ordinary CPUs, and what is known of the container."""

    state: State
    container: Container
    request: Request
    memory: MemoryRequest | None  # None if it books no memory
    held: HeldGrant | None  # of ordinary CPUs
    pulls: Pulls | None
    notes: tuple[str, ...]

    def findings(self, found: BestPool, *notes: str) -> ChoiceFacts:
        """Return what a choice was made from."""
        return ChoiceFacts(table=found.table, pulls=self.pulls, notes=(*self.notes, *notes))


class Choice(Struct, frozen=True, kw_only=True):
    """A grant for a request, not yet booked."""

    grant: Grant
    kind: DecisionKind
    offer: Offer | None = None  # of memory; None if it books none
    findings: ChoiceFacts = ChoiceFacts()
    room: bool = False  # whether preemptible containers must make room


def choose(state: State, container: Container, request: Request, held: HeldGrant | None) -> Choice:
    """Choose for a container, which may have *held* something until now (§4); PlacementError.

    Reserved and preserve requests use the top pool. Where the reserved CPUs have too little left,
    or are too far from a strict hint, others are looked at.
    """
    layout = state.layout
    if request.sort is Sort.PRESERVE:
        choice = _at_top(state, container, request, DecisionKind.PRESERVED, ChoiceFacts())
        had = parse_cpus(container.resources.cpus)
        if held is not None and held.grant.sort is Sort.PRESERVE:
            had = held.grant.preserved
        return replace(choice, grant=replace(choice.grant, preserved=had))
    other_quota = request.steering.other_quota
    notes: tuple[str, ...] = (other_quota,) if other_quota else ()
    if not request.steering.strict_hints and not layout.memory.has(request.memory_kinds):
        kinds = ", ".join(request.memory_kinds)
        notes += (f"this node has no memory of kind {kinds}: it gets dram",)
    if request.sort is Sort.NORMAL:
        return _in_a_pool(state, container, request, held, notes)
    left = max(0, 1000 * len(layout.capacity.reserved) - state.reserved_milli)
    if request.shared <= left:
        choice = _at_top(state, container, request, DecisionKind.RESERVED, ChoiceFacts(notes=notes))
        why = find_failing(state, request, choice.grant)
        if why is None:
            return choice
    else:
        why = (
            f"asks for {format_cpu(request.shared)} of the reserved CPUs,"
            f" which have {format_cpu(left)} left"
        )
    notes = (*notes, why)
    try:
        return _in_a_pool(state, container, replace(request, sort=Sort.NORMAL), held, notes)
    except PlacementError:
        # the node's own pods are never refused for want of CPUs: they share the reserved ones more
        # tightly
        notes = (*notes, "no other CPUs are left: it shares the reserved ones")
        return _at_top(state, container, request, DecisionKind.RESERVED, ChoiceFacts(notes=notes))


def _at_top(
    state: State,
    container: Container,
    request: Request,
    kind: DecisionKind,
    findings: ChoiceFacts,
) -> Choice:
    """Return the choice of the top pool, without exclusive CPUs."""
    top = state.layout.tree.top.id
    memory = memory_request(container, request, aligned=state.layout.aligned, cold=False)
    try:
        offer = None if memory is None else state.memory.offer(top, memory)
    except MemoryShortageError as error:
        refusal = memory_shortage(request, state.layout.tree.top, error.shortage)
        raise explain(state, container, findings, refusal) from error
    grant = plain_grant(request, top, EMPTY if offer is None else offer.zone)
    return Choice(grant=grant, kind=kind, offer=offer, findings=findings)


def _in_a_pool(
    state: State,
    container: Container,
    request: Request,
    held: HeldGrant | None,
    notes: tuple[str, ...],
) -> Choice:
    """Choose a pool for a request of ordinary CPUs (§4); PlacementError in cases 2 and 5.

    1. The container holds ordinary CPUs of a pool that has room, or one below it has and the
       container only shares: a resize stays there, always if it asks for no more.
    2. These pools have no room, and the container must stay: refuse.
    3. Some pool has room: choose the best; for a resize, an equal one around its CPUs.
    4. No pool has room, but it requests no CPU: it shares the reserved ones if memory fits (§2).
    5. No pool has room: refuse.
    """
    affinities = request.steering.affinities
    cold = held is None or state.layout.memory.is_cold(held.grant.mems)
    case = _Case(
        state=state,
        container=container,
        request=request,
        memory=memory_request(container, request, aligned=state.layout.aligned, cold=cold),
        held=None if held is None or held.grant.sort is not Sort.NORMAL else held,
        pulls=state.peers.pulls(container, affinities) if affinities else None,
        notes=notes,
    )
    if case.held is not None:
        found = _search_near(case, case.held)
        if found.pool is not None:  # 1
            return _choice(case, found, found.pool)
        if case.held.stays:  # 2
            raise _refuse(case, found)
    offers = None if case.memory is None else state.memory.offers(case.memory)
    found = compare(state, request, case.pulls, offers)
    if found.pool is not None:  # 3
        return _choice(case, found, _stay_above(case, found, found.pool))
    if request.preemptible and _has_memory(case, found):  # 4
        return _at_top(state, container, request, DecisionKind.SPILLED, case.findings(found))
    raise _refuse(case, found)  # 5


def _search_near(case: _Case, held: HeldGrant) -> BestPool:
    """Return the pool that is held, or a better one below it for a container that only shares."""
    offers = None
    if case.memory is not None:
        offers = case.state.memory.offers(case.memory, held.grant.mems, booked=held.booked)
    home, request = held.grant.pool, case.request
    first = home if request.exclusive else case.state.layout.tree.first_below(home)
    found = compare(case.state, request, case.pulls, offers, first, home)
    if found.pool is not None and found.table.outranks(found.pool, home):
        return found
    stays = held.covers(request) or found.table.fits(home)
    return replace(found, pool=home if stays else None)


def _stay_above(case: _Case, found: BestPool, best: int) -> int:
    """Return the nearest pool above the one that is held, if it is as good as *best*; else *best*.

    Criteria 12 and later never move a container (§4), nor a room (§3.3.4).
    """
    if case.held is None:
        return best
    tree = case.state.layout.tree
    path = tree.path(tree.pools[case.held.grant.pool])
    above = next((each.id for each in path if found.table.fits(each.id)), best)
    return best if found.table.outranks(best, above) else above


def _has_memory(case: _Case, found: BestPool) -> bool:
    """Whether the top pool has the memory that is requested."""
    return found.offers is None or found.offers.zone(case.state.layout.tree.top.id) is not None


def _refuse(case: _Case, found: BestPool) -> PlacementError:
    """Return the error that no compared pool has room."""
    refusal = shortage(case.state.layout, case.request, found.table, found.offers)
    return explain(case.state, case.container, case.findings(found), refusal)


def _choice(case: _Case, found: BestPool, pool: int) -> Choice:
    """Return the choice of *pool*, with its CPUs and memory picked."""
    state, request, held, offers = case.state, case.request, case.held, found.offers
    cut = NOTHING_CUT
    if request.exclusive:
        cut = cut_cpus(state, request, pool, held, found.looks)
    at_home = held is not None and held.grant.pool == pool
    offer, zone = None, EMPTY
    if offers is not None:
        offer = offers.offer(pool)
        if request.steering.pick_by_hints:
            offer = near_devices(state, request, offer, cut.cpus)
        mems = held.grant.mems if held is not None and at_home else EMPTY
        offer = near_cpus(state, request, offer, cut.cpus, mems)
        zone = offer.booking.zone
    kind = DecisionKind.PLACED if cut.beside else DecisionKind.MADE_ROOM
    grant = plain_grant(request, pool, zone, exclusive=cut.cpus, isolated=cut.isolated)
    return Choice(
        grant=grant,
        kind=DecisionKind.RESIZED if at_home else kind,
        offer=offer,
        findings=ChoiceFacts(
            table=found.table,
            pulls=case.pulls,
            notes=(*case.notes, *shortcomings(state, request, grant, offer, found.table)),
        ),
        room=not cut.beside,
    )


def find_failing(state: State, request: Request, grant: Grant) -> str | None:
    """Return a strict hint that *grant* violates; None if there is none."""
    if not request.steering.strict_hints or request.sort is Sort.PRESERVE:
        return None
    cpus = state.cpus(grant, hide_hyperthreads=False)
    return state.layout.topology_hints.failing(request.steering.hints, cpus, grant.mems)


def check_hints(
    state: State, container: Container, request: Request, grant: Grant, findings: ChoiceFacts
) -> None:
    """Raise PlacementError if *grant* violates a strict hint."""
    wrong = find_failing(state, request, grant)
    if wrong is not None:
        pool = state.layout.tree.pools[grant.pool].name
        refusal = PlacementError(
            Lack.HINTS, request, pool=pool, available=request.milli, detail=wrong
        )
        raise explain(state, container, findings, refusal)


def explain(
    state: State, container: Container, findings: ChoiceFacts, refusal: PlacementError
) -> PlacementError:
    """Return *refusal* with its explanation."""
    refusal.explanation = Explanation(
        container=container.full_name,
        kind=DecisionKind.REFUSED,
        request=refusal.requested,
        tree=state.layout.tree,
        pool=None,
        scores=None if findings.table is None else findings.table.pack(),
        pulls=findings.pulls,
        notes=(*findings.notes, str(refusal)),
    )
    return refusal


def plain_grant(
    request: Request,
    pool: int,
    mems: CPUSet,
    *,
    exclusive: CPUSet = EMPTY,
    isolated: bool = False,
) -> Grant:
    """Return a grant of *request* with these *exclusive* CPUs."""
    shares = request.shares
    return Grant(
        pool=pool,
        sort=request.sort,
        exclusive=exclusive,
        isolated=isolated,
        shared=request.shared,
        shares=shares,
        preemptible=shares and request.preemptible,
        mems=mems,
    )


def interim_placement(state: State, request: Request) -> Placement:
    """Return the placement of a container before its decision: on CPUs that are not exclusive."""
    cpus = EMPTY
    if state.layout.settings.pin_cpu:
        top = state.layout.tree.top.id
        grant = replace(plain_grant(request, top, EMPTY), shares=request.sort is Sort.NORMAL)
        cpus = state.cpus(grant, request.hide_hyperthreads)
    return Placement(
        cpus=cpus,
        mems=EMPTY,
        shares=None,
        cause="there was no time to decide",
    )
