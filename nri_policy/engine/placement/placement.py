"""Placement: places a container, and moves others that make room; spec placement.md §2 to §4.

It works on a State inside a transaction: the caller restores the state after a `PlacementError`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from msgspec.structs import replace

from nri_policy.engine.choice.choice import Choice, check_hints, choose, find_failing
from nri_policy.engine.choice.comparison import Comparison
from nri_policy.engine.choice.memory_request import memory_request
from nri_policy.engine.choice.shortage import PlacementError
from nri_policy.engine.explanation import DecisionKind
from nri_policy.engine.grant import HeldGrant
from nri_policy.engine.placement.booking import book
from nri_policy.engine.placement.claim_users import place_by_claims
from nri_policy.engine.placement.making_way import (
    NARROWEST,
    cpus_to_keep,
    find_last_relocations,
    find_relocations,
    note_beyond,
    width_of,
)
from nri_policy.engine.placement.rebooking import last_resort, make_room, move_up
from nri_policy.engine.placement.room_shares import place_in_room
from nri_policy.engine.state.state import State
from nri_policy.pools.supply import Column
from nri_policy.pools.tree import Pool
from nri_policy.workload.pod import Container
from nri_policy.workload.request import Request, Sort


def place(
    state: State,
    container: Container,
    request: Request,
    held: HeldGrant | None = None,
    *,
    last: bool = True,
) -> Choice:
    """Book a grant for *request* and return the choice; raises PlacementError.

    The pool and CPUs that the container *held* before are kept as far as possible (§4, resize).
    Sharers are re-booked as a *last* resort, if allowed.
    """
    if container.claims:
        return place_by_claims(state, container, request)
    if state.rooms and (tenant := place_in_room(state, container, request, held)) is not None:
        return tenant
    try:
        choice = choose(state, container, request, held)
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
            choice = choose(state, container, request, held)
            choice = _note_movers(choice, f"it has room because {names} moved to a wider pool")
            return _book_grant(state, container, request, held, choice)
        except PlacementError:
            state.restore(before)
            raise refusal from None


def _choose_closer(
    state: State, container: Container, request: Request, held: HeldGrant | None, first: Choice
) -> Choice:
    """Return a choice closer together than *first*, for which few sharers have moved up (§2).

    If there is none, return *first*, without moves.
    """
    assert first.findings.table is not None, "pools were compared"
    found = find_relocations(state, request, first.grant, first.findings.table, held)
    for relocation in found.options:
        before = state.snapshot()
        for member in relocation.movers:
            move_up(
                state, member, relocation.to, f"{container.full_name} needs CPUs close together"
            )
        with suppress(PlacementError):
            closer = choose(state, container, request, held)
            better = _is_closer(state, request, held, first, closer)
            if better and find_failing(state, request, closer.grant) is None:
                names = ", ".join(
                    state.placed[each].container.full_name for each in relocation.movers
                )
                note = f"its CPUs are closer together because {names} moved to a wider pool"
                beyond = note_beyond(state.layout, found, closer.grant)
                return _note_movers(closer, note, *beyond)
        state.restore(before)
        for member in relocation.movers:
            del state.moved[member]
    if found.options:  # its memory offer is out of date
        first = choose(state, container, request, held)
    return _add_notes(first, *note_beyond(state.layout, found, first.grant))


def _is_closer(
    state: State, request: Request, held: HeldGrant | None, first: Choice, other: Choice
) -> bool:
    """Whether *other* is closer together than *first*, and no worse by criteria 1 to 10 (§4).

    Or as close, and keeps the CPUs that were *held* where *first* does not.
    """
    assert first.findings.table is not None, "pools were compared"
    assert other.findings.table is not None, "pools were compared"
    own, keeps = cpus_to_keep(state, request, held)
    if len(own & other.grant.exclusive) < keeps:
        return False
    before = first.findings.table.row(first.grant.pool)[: Column.DEPTH]
    if other.findings.table.row(other.grant.pool)[: Column.DEPTH] < before:
        return False
    wide, width = (width_of(state.layout, each.grant) for each in (first, other))
    return width < wide or (width == wide and len(own & first.grant.exclusive) < keeps)


def _note_movers(choice: Choice, *notes: str) -> Choice:
    """Return *choice* with *notes* on the containers that moved for it."""
    kind = choice.kind if choice.kind is DecisionKind.RESIZED else DecisionKind.MADE_ROOM
    return _add_notes(replace(choice, kind=kind), *notes)


def _add_notes(choice: Choice, *notes: str) -> Choice:
    if not notes:
        return choice
    findings = replace(choice.findings, notes=(*choice.findings.notes, *notes))
    return replace(choice, findings=findings)


def _book_grant(
    state: State, container: Container, request: Request, held: HeldGrant | None, choice: Choice
) -> Choice:
    """Book the grant of *choice*; preemptible containers in its way are moved."""
    if request.steering.strict_hints and not (held is not None and held.covers(request)):
        check_hints(state, container, request, choice.grant, choice.findings)
    book(state, container, request, choice)
    if choice.room:
        make_room(state, f"{container.full_name} took its CPUs")
    return choice


def _last_resort(state: State, container: Container, request: Request) -> Mapping[str, Pool]:
    """Return the containers to re-book, each with its new pool, so that *request* fits."""
    if request.sort is Sort.PRESERVE:
        return {}
    memory = memory_request(container, request, aligned=state.layout.aligned)
    offers = None if memory is None else state.memory.offers(memory)
    comparison = Comparison(state, replace(request, sort=Sort.NORMAL), None, offers)
    return last_resort(
        state,
        find_last_relocations(state, request),
        lambda: comparison.table(with_preemptible=False).best() is not None,
    )
