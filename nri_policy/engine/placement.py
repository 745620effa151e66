"""Placement: choosing the pool and the CPUs of one request; spec placement.md §2 to §4, §6.

Owns the choice. It works on a State inside a transaction: the caller restores the state if
`RefusalError` is raised.
"""

from __future__ import annotations

from contextlib import suppress

from msgspec import Struct
from msgspec.structs import replace

from nri_policy.cpuset import EMPTY, CPUSet
from nri_policy.engine.comparison import Lack, search, shortage
from nri_policy.engine.explanation import Explanation, Outcome
from nri_policy.engine.grant import Grant
from nri_policy.engine.layout import Layout
from nri_policy.engine.nearness import pick_cpus
from nri_policy.engine.state import Placed, State
from nri_policy.pools.memory_offer import (
    MemoryRequest,
    MemoryShortageError,
    Offer,
    Rank,
)
from nri_policy.pools.supply import COLUMNS, Table
from nri_policy.pools.tree import Pool
from nri_policy.units import format_cpu
from nri_policy.workload.peers import Pulls
from nri_policy.workload.pod import Container, QoS
from nri_policy.workload.request import Isolation, Request, Sort

_BURST_ROOM = COLUMNS.index("burst_room")
_RANKS = {
    QoS.BEST_EFFORT: Rank.BEST_EFFORT,
    QoS.BURSTABLE: Rank.BURSTABLE,
    QoS.GUARANTEED: Rank.GUARANTEED,
}


class RefusalError(Exception):
    """A request that cannot be met; the text says what is missing, for the container's owner."""

    def __init__(
        self, message: str, explanation: Explanation | None = None, lack: Lack | None = None
    ) -> None:
        super().__init__(message)
        self.explanation = explanation
        self.lack = lack  # None where it is not about a container


class Findings(Struct, frozen=True, kw_only=True):
    """What a choice was made from, to be explained."""

    table: Table | None = None  # None where pools were not compared
    pulls: Pulls | None = None
    notes: tuple[str, ...] = ()


class Choice(Struct, frozen=True, kw_only=True):
    """A grant for a request, not yet booked."""

    grant: Grant
    outcome: Outcome
    offer: Offer | None = None  # of memory; None where none is booked
    findings: Findings = Findings()
    room: bool = False  # whether guests must make room


def place(
    state: State, container: Container, request: Request, before: Grant | None = None
) -> Choice:
    """Book a grant for *request* and return how it came about; RefusalError where none can be.

    *before* is the grant that the container held until now, taken back already: its pool and its
    CPUs are kept as far as possible (§4, resize).
    """
    choice = _choose(state, container, request, before)
    if request.strict_hints and request.sort is not Sort.PRESERVE:
        cpus = state.cpus(choice.grant, hide_hyperthreads=False)
        wrong = state.layout.nearness.failing(request.hints, cpus, choice.grant.mems)
        if wrong is not None:
            raise _refusal(state, container, request, choice.findings, (Lack.HINTS, wrong))
    book(state, container, request, choice)
    if choice.room:
        make_room(state, f"{container.full_name} took its CPUs")
    return choice


def book(state: State, container: Container, request: Request, choice: Choice) -> None:
    """Book the grant of *choice* with its explanation."""
    explanation = Explanation(
        container=container.full_name,
        outcome=choice.outcome,
        request=request,
        tree=state.layout.tree,
        pool=choice.grant.pool,
        table=choice.findings.table,
        pulls=choice.findings.pulls,
        notes=choice.findings.notes,
    )
    placed = Placed(
        container=container, request=request, grant=choice.grant, explanation=explanation
    )
    state.put(placed, choice.offer)


def make_room(state: State, cause: str) -> None:
    """Re-book guests that are left without a CPU to the nearest pool above that has one (§2)."""
    free = state.supply.free_cpus()
    tree = state.layout.tree
    for pool in tree.pools[:-1]:
        for member in [*state.members(pool.id)] if pool.cpus.isdisjoint(free) else ():
            above = next((p for p in tree.path(pool) if not p.cpus.isdisjoint(free)), tree.top)
            _move(state, member, above, f"moved from {pool.name} to {above.name}: {cause}")


def _move(state: State, member: str, above: Pool, note: str) -> None:
    """Re-book a guest to *above*, with no less memory than it has."""
    cold, deadline = member in state.cold, state.cold.get(member)
    placed = state.drop(member)
    zone = placed.grant.mems
    memory = memory_request(state, placed.container, placed.request, cold=cold)
    offer = None
    if memory is not None:
        # who has been found with more than there is keeps what it has
        with suppress(MemoryShortageError):
            offer = state.memory.offer(above.id, memory, zone)
    grant = replace(placed.grant, pool=above.id, mems=zone if offer is None else offer.zone)
    notes = (*placed.explanation.notes, note)
    explanation = replace(placed.explanation, pool=above.id, notes=notes)
    state.put(replace(placed, grant=grant, explanation=explanation), offer)
    if memory is not None and offer is None:
        state.memory.adopt(above.id, memory, zone)
    if cold and (offer is None or offer.booking.home.cold):
        state.cold[member] = deadline


def memory_request(
    state: State, container: Container, request: Request, *, cold: bool = True
) -> MemoryRequest | None:
    """Return what *container* asks of the memory nodes, None if it keeps to itself.

    It starts cold if it wishes so and *cold* does not say that it is past that.
    """
    if request.memory_preserve:
        return None
    state.serial += 1
    return MemoryRequest(
        id=container.id,
        amount=request.memory,
        limit=request.memory_limit,
        kinds=request.memory_kinds,
        rank=_RANKS[request.qos],
        created=state.serial,
        strict=request.strict_hints,
        movable=request.movable and not (request.strict_hints and request.hints),
        cold=cold and request.cold_start is not None,
    )


def _choose(state: State, container: Container, request: Request, before: Grant | None) -> Choice:
    layout = state.layout
    if request.sort is Sort.PRESERVE:
        return _at_top(state, container, request, Outcome.PRESERVED, Findings())
    notes: tuple[str, ...] = ()
    if not request.strict_hints and not layout.memory.has(request.memory_kinds):
        kinds = ", ".join(sorted(request.memory_kinds))
        notes = (f"this node has no memory of kind {kinds}: dram instead",)
    if request.sort is Sort.NORMAL:
        return _in_a_pool(state, container, request, before, notes)
    left = max(0, 1000 * len(layout.capacity.reserved) - state.reserved_milli)
    if request.shared <= left:
        return _at_top(state, container, request, Outcome.RESERVED, Findings(notes=notes))
    notes = (*notes, f"asks for {request.shared}m of the reserved CPUs, which have {left}m left")
    try:
        return _in_a_pool(state, container, replace(request, sort=Sort.NORMAL), before, notes)
    except RefusalError:
        # the node's own pods are never refused for want of CPUs: they share the reserved ones more
        # tightly
        notes = (*notes, "no other CPUs are left: sharing the reserved ones")
        return _at_top(state, container, request, Outcome.RESERVED, Findings(notes=notes))


def _at_top(
    state: State,
    container: Container,
    request: Request,
    outcome: Outcome,
    findings: Findings,
) -> Choice:
    """Return the choice of the top pool, without exclusive CPUs."""
    top = state.layout.tree.top.id
    memory = memory_request(state, container, request, cold=False)
    try:
        offer = None if memory is None else state.memory.offer(top, memory)
    except MemoryShortageError as error:
        short = Lack.MEMORY, str(error)
        raise _refusal(state, container, request, findings, short) from error
    grant = plain_grant(request, top, EMPTY if offer is None else offer.zone)
    return Choice(grant=grant, outcome=outcome, offer=offer, findings=findings)


def _in_a_pool(
    state: State,
    container: Container,
    request: Request,
    before: Grant | None,
    notes: tuple[str, ...],
) -> Choice:
    """Choose a pool for a request of ordinary CPUs.

    As things are, else, as a last resort, as if guests were not there: they make room. A resize
    looks at the pool that the container is in first, both ways.
    """
    layout = state.layout
    pulls = state.peers.pulls(container, request.affinities) if request.affinities else None
    cold = before is None or layout.memory.is_cold(before.mems)
    memory = memory_request(state, container, request, cold=cold)
    home = before.pool if before is not None and before.sort is Sort.NORMAL else None
    for only in (None,) if home is None else (home, None):
        held = before.mems if before is not None and only is not None else EMPTY
        offers = None if memory is None else state.memory.offers(memory, held)
        table, pool, with_guests = search(state, request, pulls, offers, only)
        if pool is None:
            continue
        offer = None if offers is None else _nearer(state, request, offers.offer(pool))
        plain = plain_grant(request, pool, EMPTY if offer is None else offer.zone)
        grant = _cut(state, request, plain, before, with_guests=with_guests)
        outcome = Outcome.PLACED if with_guests else Outcome.MADE_ROOM
        return Choice(
            grant=grant,
            outcome=Outcome.RESIZED if pool == home else outcome,
            offer=offer,
            findings=Findings(
                table=table,
                pulls=pulls,
                notes=(
                    *notes,
                    *_confined(layout, request, table, pool),
                    *_not_cold(offer),
                    *_not_isolated(layout, request, grant),
                ),
            ),
            room=not with_guests,
        )
    findings = Findings(table=table, pulls=pulls, notes=notes)
    if request.guest and (offers is None or offers.zone(layout.tree.top.id) is not None):
        return _at_top(state, container, request, Outcome.SPILLED, findings)
    raise _refusal(state, container, request, findings, shortage(layout, request, table, offers))


def _nearer(state: State, request: Request, offer: Offer) -> Offer:
    """Return *offer* on the nodes of its devices alone, if the request wants that and it fits."""
    if not request.pick_by_hints:
        return offer
    zone = state.layout.nearness.pick_memory(request.hints, offer.zone)
    if zone is None or state.memory.free(zone) < request.memory:
        return offer
    return replace(offer, booking=replace(offer.booking, zone=zone), moves=())


def _refusal(
    state: State,
    container: Container,
    request: Request,
    findings: Findings,
    short: tuple[Lack, str],
) -> RefusalError:
    """Return the error with its explanation."""
    lack, message = short
    refused = Explanation(
        container=container.full_name,
        outcome=Outcome.REFUSED,
        request=request,
        tree=state.layout.tree,
        pool=None,
        table=findings.table,
        pulls=findings.pulls,
        notes=(*findings.notes, message),
    )
    return RefusalError(message, refused, lack)


def _not_cold(offer: Offer | None) -> tuple[str, ...]:
    """Return why a wished cold start has no effect."""
    refused = "" if offer is None else offer.booking.home.cold_refused
    return (refused,) if refused else ()


def _not_isolated(layout: Layout, request: Request, grant: Grant) -> tuple[str, ...]:
    """Return why exclusive CPUs are not isolated ones, on a machine that has some."""
    if not request.exclusive or grant.isolated or not layout.capacity.isolated:
        return ()
    if request.isolated is Isolation.NO:
        return (f"its CPUs are not isolated ones because {request.because}",)
    name = layout.tree.pools[grant.pool].name
    return (f"its CPUs are not isolated ones: {name} has too few of them left",)


def confined_by(request: Request, table: Table, pool: int) -> int:
    """Return the milli-CPU that a Burstable container's limit is above what *pool* leaves it."""
    if request.qos is not QoS.BURSTABLE or request.cpu_limit is None:
        return 0
    return -int(table.row(pool)[_BURST_ROOM])


def _confined(layout: Layout, request: Request, table: Table, pool: int) -> tuple[str, ...]:
    """Return a note if a Burstable container cannot reach its limit in *pool* (§4)."""
    short = confined_by(request, table, pool)
    if request.cpu_limit is None or not short:
        return ()
    limit, left = format_cpu(request.cpu_limit), format_cpu(request.cpu_limit - short)
    name = layout.tree.pools[pool].name
    return (f"its limit of {limit} CPU does not fit: {name} leaves it {left} at most",)


def _cut(
    state: State, request: Request, grant: Grant, before: Grant | None, *, with_guests: bool
) -> Grant:
    """Return *grant*, on a pool that can hold the request, with its exclusive CPUs picked."""
    layout, supply = state.layout, state.supply
    if not request.exclusive:
        return grant
    cpus = layout.tree.pools[grant.pool].cpus
    candidates, slack = supply.free_isolated_cpus() & cpus, None
    isolated = request.isolated is not Isolation.NO and len(candidates) >= request.exclusive
    if not isolated:
        candidates = supply.free_cpus() & cpus
        slack = supply.slack(grant.pool, request.shared, request.shares, with_guests)
    if request.strict_hints:
        candidates &= layout.nearness.bounds(request.hints).cpus
    classes = layout.classes.order(request.priority)
    held = before.exclusive if before else EMPTY
    if held:
        classes = (held, *(each - held for each in classes))
    exclusive = None
    if request.pick_by_hints and not held:
        places = layout.nearness.localities(request.hints)
        exclusive = pick_cpus(layout.picker, request.exclusive, candidates, places, classes, slack)
        if exclusive is None and slack is not None:  # used up by the attempt
            slack = supply.slack(grant.pool, request.shared, request.shares, with_guests)
    if exclusive is None:
        try:
            exclusive = layout.picker.pick(request.exclusive, candidates, classes, slack, held)
        except ValueError as error:
            if not request.strict_hints:
                raise
            message = f"strict hints leave too few CPUs: {error}"
            raise RefusalError(message, lack=Lack.HINTS) from error
    return replace(grant, exclusive=exclusive, isolated=isolated)


def plain_grant(request: Request, pool: int, mems: CPUSet) -> Grant:
    """Return a grant of *request* without exclusive CPUs."""
    return Grant(
        pool=pool,
        sort=request.sort,
        exclusive=EMPTY,
        isolated=False,
        shared=request.shared,
        shares=request.shares,
        guest=request.guest,
        mems=mems,
    )
