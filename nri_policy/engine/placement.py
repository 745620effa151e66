"""Placement: choosing the pool and the CPUs of one request; spec placement.md §2 to §4, §6.

Owns the choice. It works on a State inside a transaction: the caller restores the state if
`PlacementError` is raised.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from msgspec import Struct
from msgspec.structs import replace

from nri_policy.engine.claimants import claimed_grant
from nri_policy.engine.comparison import Comparison, Found
from nri_policy.engine.exclusive_cpus import cut
from nri_policy.engine.explanation import DecisionKind, Explanation
from nri_policy.engine.grant import Grant, Held
from nri_policy.engine.making_way import (
    NARROWEST,
    find_last_ways,
    find_ways,
    kept_cpus,
    note_beyond,
    width_of,
)
from nri_policy.engine.placement_notes import confinement_notes, isolation_notes, not_cold
from nri_policy.engine.rebooking import last_resort, make_room, move_up
from nri_policy.engine.shortage import Lack, PlacementError, memory_shortage, shortage
from nri_policy.engine.state import Placed, State
from nri_policy.engine.tenancy import room_of, settle, tenant_grant
from nri_policy.engine.zone import memory_request, near_cpus, near_devices
from nri_policy.engine.zone_hint import zone_note
from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.foundation.units import format_cpu
from nri_policy.pools.memory_offer import MemoryRequest, MemoryShortageError, Offer
from nri_policy.pools.supply import Column, Table
from nri_policy.pools.tree import Pool
from nri_policy.workload.peers import Pulls
from nri_policy.workload.pod import Container
from nri_policy.workload.request import Request, Sort


class Findings(Struct, frozen=True, kw_only=True):
    """What a choice was made from, to be explained."""

    table: Table | None = None  # None where pools were not compared
    pulls: Pulls | None = None
    notes: tuple[str, ...] = ()

    @property
    def scores(self) -> bytes | None:
        """The table as an explanation keeps it: a container lives for long, and has few bytes."""
        return None if self.table is None else self.table.pack()


class _Case(Struct, frozen=True, kw_only=True):
    """A request of ordinary CPUs, and what is known of the container."""

    state: State
    container: Container
    request: Request
    memory: MemoryRequest | None  # None where none is booked
    held: Held | None  # of ordinary CPUs
    pulls: Pulls | None
    notes: tuple[str, ...]

    def findings(self, found: Found, *notes: str) -> Findings:
        """Return what a choice was made from."""
        return Findings(table=found.table, pulls=self.pulls, notes=(*self.notes, *notes))


class Choice(Struct, frozen=True, kw_only=True):
    """A grant for a request, not yet booked."""

    grant: Grant
    kind: DecisionKind
    offer: Offer | None = None  # of memory; None where none is booked
    findings: Findings = Findings()
    room: bool = False  # whether preemptible containers must make room


def place(
    state: State,
    container: Container,
    request: Request,
    held: Held | None = None,
    *,
    last: bool = True,
) -> Choice:
    """Book a grant for *request* and return how it came about; PlacementError where none can be.

    What the container *held* until now, its pool and its CPUs, is kept as far as possible (§4,
    resize). Sharers are re-booked as a *last* resort, if allowed.
    """
    if container.claims:
        return _book_claimant(state, container, request)
    if (room := room_of(state, container, request)) is not None:
        return _book_tenant(state, room, container, request, held)
    try:
        choice = _choose(state, container, request, held)
        if (
            last
            and choice.grant.exclusive
            and (held is not None or state.layout.widths.pools[choice.grant.pool] != NARROWEST)
        ):
            choice = _choose_closer(state, container, request, held, choice)
        return _book_grant(state, container, request, held, choice)
    except PlacementError as refusal:
        moves = _last_resort(state, container, request) if last else {}
        if not moves:
            raise
        before = state.snapshot()
        for member, above in moves.items():
            move_up(state, member, above, f"{container.full_name} had no room otherwise")
        names = ", ".join(state.placed[member].container.full_name for member in moves)
        try:
            choice = _choose(state, container, request, held)
            choice = _note_movers(
                choice, f"it has room because these moved to wider pools: {names}"
            )
            return _book_grant(state, container, request, held, choice)
        except PlacementError:
            state.restore(before)
            raise refusal from None


def _book_claimant(state: State, container: Container, request: Request) -> Choice:
    """Book what a container has by its claims, and memory as near to these as there is."""
    try:
        claimed = claimed_grant(state, container, request)
    except PlacementError as refusal:
        raise _explain(state, container, Findings(), refusal) from None
    grant, pool = claimed.grant, state.layout.tree.pools[claimed.grant.pool]
    memory, offer = memory_request(container, request, aligned=False), None
    if memory is not None:
        try:
            offer = state.memory.offer(pool.id, memory)
        except MemoryShortageError as error:
            short = memory_shortage(request, pool, error.shortage)
            raise _explain(state, container, Findings(), short) from error
        grant = replace(grant, mems=offer.zone)
    findings = Findings(notes=claimed.notes)
    choice = Choice(grant=grant, kind=DecisionKind.CLAIMED, offer=offer, findings=findings)
    book(state, container, request, choice)
    return choice


def _book_tenant(
    state: State, room: Placed, container: Container, request: Request, held: Held | None
) -> Choice:
    """Book what a container gets of its pod's *room* (§3.3)."""
    try:
        grant = tenant_grant(state, room, container, request, held)
    except PlacementError as refusal:
        raise _explain(state, container, Findings(), refusal) from None
    if wrong := _find_failing(state, request, grant):
        raise _explain(state, container, Findings(), _misfit(state, request, grant, wrong))
    notes = ("its pod's room has no CPUs left to share: it shares others",) if grant.shares else ()
    choice = Choice(grant=grant, kind=DecisionKind.TENANT, findings=Findings(notes=notes))
    book(state, container, request, choice)
    settle(state, container.pod.id)
    return choice


def _choose_closer(
    state: State, container: Container, request: Request, held: Held | None, first: Choice
) -> Choice:
    """Return a choice closer together than *first*, for which few sharers have moved up (§2).

    Else *first*, and nobody has moved.
    """
    assert first.findings.table is not None, "pools were compared"
    found = find_ways(state, request, first.grant, first.findings.table, held)
    for way in found.ways:
        before = state.snapshot()
        for member in way.movers:
            move_up(state, member, way.to, f"{container.full_name} needs CPUs close together")
        with suppress(PlacementError):
            closer = _choose(state, container, request, held)
            better = _is_closer(state, request, held, first, closer)
            if better and _find_failing(state, request, closer.grant) is None:
                names = ", ".join(state.placed[each].container.full_name for each in way.movers)
                note = f"its CPUs are closer together because these moved to wider pools: {names}"
                beyond = note_beyond(state.layout, found, closer.grant)
                return _note_movers(closer, note, *beyond)
        state.restore(before)
        for member in way.movers:
            del state.moved[member]
    if found.ways:  # what it was offered of the memory is out of date
        first = _choose(state, container, request, held)
    return _add_notes(first, *note_beyond(state.layout, found, first.grant))


def _is_closer(
    state: State, request: Request, held: Held | None, first: Choice, other: Choice
) -> bool:
    """Whether *other* is closer together than *first*, and no worse by criteria 1 to 10 (§4).

    Or as close, and keeps the CPUs that were *held* where *first* does not.
    """
    assert first.findings.table is not None, "pools were compared"
    assert other.findings.table is not None, "pools were compared"
    own, keeps = kept_cpus(state, request, held)
    if len(own & other.grant.exclusive) < keeps:
        return False
    before = first.findings.table.row(first.grant.pool)[: Column.DEPTH]
    if other.findings.table.row(other.grant.pool)[: Column.DEPTH] < before:
        return False
    wide, width = (width_of(state.layout, each.grant) for each in (first, other))
    return width < wide or (width == wide and len(own & first.grant.exclusive) < keeps)


def _note_movers(choice: Choice, *notes: str) -> Choice:
    """Return *choice* with *notes* on who has moved for it."""
    kind = choice.kind if choice.kind is DecisionKind.RESIZED else DecisionKind.MADE_ROOM
    return _add_notes(replace(choice, kind=kind), *notes)


def _add_notes(choice: Choice, *notes: str) -> Choice:
    if not notes:
        return choice
    findings = replace(choice.findings, notes=(*choice.findings.notes, *notes))
    return replace(choice, findings=findings)


def _book_grant(
    state: State, container: Container, request: Request, held: Held | None, choice: Choice
) -> Choice:
    """Book the grant of *choice*; preemptible containers in its way are moved."""
    covered = held is not None and held.covers(request)
    wrong = None if covered else _find_failing(state, request, choice.grant)
    if wrong is not None:
        refusal = _misfit(state, request, choice.grant, wrong)
        raise _explain(state, container, choice.findings, refusal)
    book(state, container, request, choice)
    if choice.room:
        make_room(state, f"{container.full_name} took its CPUs")
    return choice


def _misfit(state: State, request: Request, grant: Grant, wrong: str) -> PlacementError:
    """Return the error that *grant* does not keep to a strict hint: what is *wrong*."""
    pool = state.layout.tree.pools[grant.pool].name
    return PlacementError(Lack.HINTS, request, pool=pool, available=request.milli, detail=wrong)


def _find_failing(state: State, request: Request, grant: Grant) -> str | None:
    """Return which strict hint *grant* does not keep to, None if all are kept to."""
    if not request.steering.strict_hints or request.sort is Sort.PRESERVE:
        return None
    cpus = state.cpus(grant, hide_hyperthreads=False)
    return state.layout.topology_hints.failing(request.steering.hints, cpus, grant.mems)


def _last_resort(state: State, container: Container, request: Request) -> Mapping[str, Pool]:
    """Return who has to be re-booked, and where to, for *request* to fit."""
    if request.sort is Sort.PRESERVE:
        return {}
    memory = memory_request(container, request, aligned=state.layout.aligned)
    offers = None if memory is None else state.memory.offers(memory)
    comparison = Comparison(state, replace(request, sort=Sort.NORMAL), None, offers)
    return last_resort(
        state,
        find_last_ways(state, request),
        lambda: comparison.table(with_preemptible=False).best() is not None,
    )


def book(state: State, container: Container, request: Request, choice: Choice) -> None:
    """Book the grant of *choice* with its explanation."""
    explanation = Explanation(
        container=container.full_name,
        kind=choice.kind,
        request=request,
        tree=state.layout.tree,
        pool=choice.grant.pool,
        scores=choice.findings.scores,
        pulls=choice.findings.pulls,
        notes=(
            *choice.findings.notes,
            *(
                ()
                if choice.grant.tenant or container.claims
                else zone_note(state, request, choice.grant, choice.findings.table)
            ),
        ),
    )
    placed = Placed(
        container=container, request=request, grant=choice.grant, explanation=explanation
    )
    state.put(placed, choice.offer)


def _choose(state: State, container: Container, request: Request, held: Held | None) -> Choice:
    layout = state.layout
    if request.sort is Sort.PRESERVE:
        return _at_top(state, container, request, DecisionKind.PRESERVED, Findings())
    notes: tuple[str, ...] = ()
    if not request.steering.strict_hints and not layout.memory.has(request.memory_kinds):
        kinds = ", ".join(sorted(request.memory_kinds))
        notes = (f"this node has no memory of kind {kinds}: it gets dram",)
    if request.sort is Sort.NORMAL:
        return _in_a_pool(state, container, request, held, notes)
    left = max(0, 1000 * len(layout.capacity.reserved) - state.reserved_milli)
    if request.shared <= left:
        choice = _at_top(state, container, request, DecisionKind.RESERVED, Findings(notes=notes))
        why = _find_failing(state, request, choice.grant)
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
        return _at_top(state, container, request, DecisionKind.RESERVED, Findings(notes=notes))


def _at_top(
    state: State,
    container: Container,
    request: Request,
    kind: DecisionKind,
    findings: Findings,
) -> Choice:
    """Return the choice of the top pool, without exclusive CPUs."""
    top = state.layout.tree.top.id
    memory = memory_request(container, request, aligned=state.layout.aligned, cold=False)
    try:
        offer = None if memory is None else state.memory.offer(top, memory)
    except MemoryShortageError as error:
        refusal = memory_shortage(request, state.layout.tree.top, error.shortage)
        raise _explain(state, container, findings, refusal) from error
    grant = plain_grant(request, top, EMPTY if offer is None else offer.zone)
    return Choice(grant=grant, kind=kind, offer=offer, findings=findings)


def _in_a_pool(
    state: State,
    container: Container,
    request: Request,
    held: Held | None,
    notes: tuple[str, ...],
) -> Choice:
    """Choose a pool for a request of ordinary CPUs (§4); PlacementError in cases 2 and 5.

    1. The pool that it holds ordinary CPUs of has room, or one below it for a container that only
       shares: a resize stays there, always if it asks for no more.
    2. These have none, and it is to stay: refused.
    3. Some pool has room: the best one.
    4. None has, and it requests no CPU: it shares the reserved ones, if there is memory (§2).
    5. None has: refused.
    """
    case = _case(state, container, request, held, notes)
    if case.held is not None:
        found = _search_near(case, case.held)
        if found.pool is not None:  # 1
            return _choice(case, found, found.pool)
        if case.held.stays:  # 2
            raise _refuse(case, found)
    found = _search(case)
    if found.pool is not None:  # 3
        return _choice(case, found, found.pool)
    if request.preemptible and _has_memory(case, found):  # 4
        return _at_top(state, container, request, DecisionKind.SPILLED, case.findings(found))
    raise _refuse(case, found)  # 5


def _case(
    state: State,
    container: Container,
    request: Request,
    held: Held | None,
    notes: tuple[str, ...],
) -> _Case:
    affinities = request.steering.affinities
    cold = held is None or state.layout.memory.is_cold(held.grant.mems)
    return _Case(
        state=state,
        container=container,
        request=request,
        memory=memory_request(container, request, aligned=state.layout.aligned, cold=cold),
        held=None if held is None or held.grant.sort is not Sort.NORMAL else held,
        pulls=state.peers.pulls(container, affinities) if affinities else None,
        notes=notes,
    )


def _search_near(case: _Case, held: Held) -> Found:
    """Return the pool that is held, or one below it that is better for who only shares."""
    offers = None
    if case.memory is not None:
        offers = case.state.memory.offers(case.memory, held.grant.mems, booked=held.booked)
    home, request = held.grant.pool, case.request
    first = home if request.exclusive else case.state.layout.tree.first_below(home)
    found = Comparison(case.state, request, case.pulls, offers).search(first, home)
    if found.pool is not None and found.table.outranks(found.pool, home):
        return found
    stays = held.covers(request) or found.table.fits(home)
    return replace(found, pool=home if stays else None)


def _search(case: _Case) -> Found:
    """Return the best pool of all."""
    offers = None if case.memory is None else case.state.memory.offers(case.memory)
    return Comparison(case.state, case.request, case.pulls, offers).search()


def _has_memory(case: _Case, found: Found) -> bool:
    """Whether the top pool has the memory that is requested."""
    return found.offers is None or found.offers.zone(case.state.layout.tree.top.id) is not None


def _refuse(case: _Case, found: Found) -> PlacementError:
    """Return the error that none of the pools that were compared has room."""
    refusal = shortage(case.state.layout, case.request, found.table, found.offers)
    return _explain(case.state, case.container, case.findings(found), refusal)


def _choice(case: _Case, found: Found, pool: int) -> Choice:
    """Return the choice of *pool*, with its CPUs and memory picked."""
    state, request, held, offers = case.state, case.request, case.held, found.offers
    offer = None if offers is None else near_devices(state, request, offers.offer(pool))
    grant, with_preemptible = cut(
        state, request, plain_grant(request, pool, EMPTY), held, found.looks
    )
    at_home = held is not None and held.grant.pool == pool
    if offer is not None:
        mems = held.grant.mems if held is not None and at_home else EMPTY
        offer = near_cpus(state, request, offer, grant.exclusive, mems)
        grant = replace(grant, mems=offer.zone)
    kind = DecisionKind.PLACED if with_preemptible else DecisionKind.MADE_ROOM
    return Choice(
        grant=grant,
        kind=DecisionKind.RESIZED if at_home else kind,
        offer=offer,
        findings=case.findings(
            found,
            *confinement_notes(state.layout, request, found.table, pool),
            *not_cold(offer),
            *isolation_notes(state.layout, request, grant),
        ),
        room=not with_preemptible,
    )


def _explain(
    state: State, container: Container, findings: Findings, refusal: PlacementError
) -> PlacementError:
    """Return *refusal* with its explanation."""
    refusal.explanation = Explanation(
        container=container.full_name,
        kind=DecisionKind.REFUSED,
        request=refusal.requested,
        tree=state.layout.tree,
        pool=None,
        scores=findings.scores,
        pulls=findings.pulls,
        notes=(*findings.notes, str(refusal)),
    )
    return refusal


def plain_grant(request: Request, pool: int, mems: CPUSet) -> Grant:
    """Return a grant of *request* without exclusive CPUs."""
    return Grant(
        pool=pool,
        sort=request.sort,
        exclusive=EMPTY,
        isolated=False,
        shared=request.shared,
        shares=request.shares,
        preemptible=request.preemptible,
        mems=mems,
    )
