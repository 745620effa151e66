"""Degraded admission: places for running containers that can no longer be refused.

Owns which wishes are dropped if there is too little. Such a container is booked anyway, because its
CPUs could otherwise become exclusive to another.
"""

from __future__ import annotations

from msgspec.structs import replace

from nri_policy.engine.choice.choice import Choice
from nri_policy.engine.choice.memory_request import memory_request, pages_request
from nri_policy.engine.choice.shortage import PlacementError
from nri_policy.engine.explanation import DecisionKind, Explanation
from nri_policy.engine.grant import Grant
from nri_policy.engine.placement.booking import book
from nri_policy.engine.placement.candidate import Candidate
from nri_policy.engine.placement.placement import place
from nri_policy.engine.state.state import State
from nri_policy.foundation.cpuset import EMPTY
from nri_policy.foundation.units import format_cpu
from nri_policy.workload.pod import Container
from nri_policy.workload.request import Isolation, Request


def keep(
    state: State, candidate: Candidate, grant: Grant, kind: DecisionKind = DecisionKind.KEPT
) -> list[str]:
    """Book a grant that is held already, and the memory with it; return what is odd about that."""
    container, request, map_ = candidate.container, candidate.booked, state.layout.memory
    if grant.tenant:
        memory = pages_request(state, container, request)
    else:
        cold = map_.is_cold(grant.mems)
        memory = memory_request(container, request, aligned=state.layout.aligned, cold=cold)
    if memory is None:
        _book(state, candidate, grant, kind)
        return []
    home = map_.homes(memory.kinds, strict=memory.strict, cold=memory.cold).each[grant.pool]
    grant = replace(grant, mems=grant.mems or home.zone)
    _book(state, candidate, grant, kind)
    if home.cold:
        state.cold[container.id] = None
    zone = grant.mems
    if grant.tenant:  # its pages are where there are any
        zone = zone & map_.with_pages_of(memory.hugepages) or zone
    shortage = state.memory.adopt(grant.pool, memory, zone)
    return [] if shortage is None else [shortage.text]


def _book(state: State, candidate: Candidate, grant: Grant, kind: DecisionKind) -> None:
    """Book a grant with the reasons for it, as far as they are known."""
    book(state, candidate.container, candidate.booked, Choice(grant=grant, kind=kind))
    why = candidate.explanation
    if why is None:
        why = replace(_explanation(state, candidate.container.id), request=candidate.request)
    elif grant.tenant:  # its room may have moved
        room = state.rooms[candidate.container.pod.id]
        why = why.of_tenant(room.explanation, room.request)
    _explain(state, candidate.container.id, why)


def admit_degraded(
    state: State, container: Container, request: Request, refusal: PlacementError
) -> tuple[str, ...]:
    """Book what is left for a container after its *refusal*; return notes on what it lacks.

    Strict hints are dropped first, then the place of its memory, last its exclusive CPUs.
    """
    steering = replace(request.steering, strict_hints=False)
    whole = replace(request, steering=steering)
    refused: Explanation | None = None
    left = min(whole.milli, max(0, state.supply.allocatable_shared(state.layout.tree.top.id)))
    # a container without a shared part may use the reserved CPUs, if it may be moved there
    shared = replace(
        whole,
        exclusive=0,
        shared=left,
        movable=whole.movable or not left,
        steering=replace(steering, isolated=Isolation.NO),
    )
    for less, text in (
        (whole, "it runs all the same"),
        (shared, f"it shares {format_cpu(left)} CPU now"),
    ):
        for memory in dict.fromkeys((less.memory, 0)):
            try:
                choice = place(state, container, replace(less, memory=memory), last=False)
            except PlacementError as error:
                refused = error.explanation
                continue
            why = _explanation(state, container.id)
            if less is shared and refused is not None:  # pools were compared for the whole request
                why = replace(why, request=whole, scores=refused.scores)
                _explain(state, container.id, why)
            short: list[str] = []
            if memory != less.memory:  # the memory is in use, so it must be booked somewhere
                state.drop(container.id)
                again = Candidate(
                    container=container, request=less, cpus=EMPTY, mems=EMPTY, explanation=why
                )
                short = keep(state, again, choice.grant)
            add_notes(state, container.id, f"{refusal}; {text}")
            return *short, f"{refusal}; {text}"
    raise AssertionError("a request of nothing fits on the reserved CPUs")


def add_notes(state: State, holder_id: str, *notes: str) -> None:
    """Add *notes* to the explanation of the place of a container, or of a room."""
    why = _explanation(state, holder_id)
    _explain(state, holder_id, replace(why, notes=(*why.notes, *notes)))


def _explanation(state: State, holder_id: str) -> Explanation:
    """Return why a holder is where it is."""
    placed = state.holder(holder_id)
    assert placed is not None, "the holder was placed before"
    return placed.explanation


def _explain(state: State, holder_id: str, why: Explanation) -> None:
    """Let *why* be the explanation of the place of a holder."""
    placed = state.holder(holder_id)
    assert placed is not None, "the holder was placed before"
    state.enter(replace(placed, explanation=why))
