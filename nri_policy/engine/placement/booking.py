"""Booking: enters a choice in the state, with its explanation."""

from __future__ import annotations

from nri_policy.engine.choice.choice import Choice
from nri_policy.engine.choice.scheduler_hint import zone_note
from nri_policy.engine.explanation import Explanation
from nri_policy.engine.state.state import Placed, State
from nri_policy.workload.pod import Container
from nri_policy.workload.request import Request


def book(state: State, container: Container, request: Request, choice: Choice) -> None:
    """Book the grant of *choice* with its explanation: a tenant is where its pod's room is."""
    findings, grant = choice.findings, choice.grant
    notes = findings.uses + findings.notes
    if request.steering.zone is not None and not (grant.tenant or container.claims):
        notes += zone_note(state, request, grant, findings.table)
    explanation = Explanation(
        container=container.full_name,
        kind=choice.kind,
        request=request,
        tree=state.layout.tree,
        pool=grant.pool,
        scores=None if findings.table is None else findings.table.pack(),
        pulls=findings.pulls,
        notes=notes,
    )
    if grant.tenant:
        room = state.rooms[container.pod.id]
        explanation = explanation.of_tenant(room.explanation, room.request)
    placed = Placed(container=container, request=request, grant=grant, explanation=explanation)
    state.put(placed, choice.offer)
