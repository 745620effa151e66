"""Which rows of the delivery state's table an exploration reaches.

A record is in the row that says what is next for it; the rows are those of
`nri_policy.delivery.next_actions`, in their order.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from unittest import mock

from nri_policy.delivery import next_actions
from nri_policy.delivery.delivery_state import DeliveryState
from nri_policy.delivery.record import Delivery, InFlight, Phase
from nri_policy.foundation.cpuset import EMPTY, CPUSet


class Row(Enum):
    """A row; the value is what is next, as the table says it."""

    SHRINK = "shrink before an answer or a start"
    GROW = "grow `SETTLE` after the event"
    MESSAGE = "INFORM: the next answer; else a call, or registering"
    FAILED = "INFORM; a file again after `RETRY_WRITE`"
    FLIGHT = "READ till it is in force; sent again after `GRACE`"
    LOST = "READ, then written at once"
    BLIND = "in force with the next request, or `GRACE`"
    RESIZE = "after `GRACE` its resize was refused: taken back"
    STARTING = "READ `FIRST_LOOK` after START: it runs"
    WRITTEN = "PERSIST; again after `RETRY_SCOPE`"
    UNRECORDED = "INFORM: few in each answer, or a call"
    PARTITION = "PARTITIONS; again with pauses"
    OVERLAP = "OVERLAPS, READ, then written at once"
    REFUSED = "nothing till it is decided anew or listed"
    DONE = "nothing"


def rows_of_table() -> list[str]:
    """Return what is next by the table in the head of that module, row by row."""
    assert next_actions.__doc__ is not None
    lines = [each for each in next_actions.__doc__.splitlines() if each.startswith("|")]
    return [each.split("|")[4].strip() for each in lines[2:]]


def row_of(state: DeliveryState, container_id: str) -> Row:
    """Return the row of a container."""
    known = state.records[container_id]
    if known.pending is not None:
        return _row_of_pending(state, container_id, known)
    if known.in_flight is not None:
        return _row_in_flight(known, known.in_flight)
    rows = (
        (container_id in state.starting, Row.STARTING),
        (known.refused is not None, Row.REFUSED),
        (bool(_surplus(state, container_id) & state.desired.taken), Row.OVERLAP),
        (known.partition.held != state.kernel_partitions.due(container_id), Row.PARTITION),
        (not known.persistent, Row.WRITTEN),
        (known.unrecorded is not None, Row.UNRECORDED),
    )
    return next((row for holds, row in rows if holds), Row.DONE)


def _row_of_pending(state: DeliveryState, container_id: str, known: Delivery) -> Row:
    if known.failed_at is not None:
        return Row.FAILED
    if container_id not in state.by_file:
        return Row.MESSAGE
    return Row.SHRINK if _surplus(state, container_id) else Row.GROW


def _row_in_flight(known: Delivery, flight: InFlight) -> Row:
    if flight.lost:
        return Row.LOST
    if known.phase is Phase.UPDATING:
        return Row.RESIZE
    return Row.FLIGHT if known.visible else Row.BLIND


def _surplus(state: DeliveryState, container_id: str) -> CPUSet:
    """Return the CPUs that a visible cgroup has too much, but for a container's own."""
    known, due = state.records[container_id], state.desired.placement(container_id)
    if due is None or not known.visible or known.observed is None:
        return EMPTY
    return known.observed.cpus - due.cpus - state.desired.own(container_id)


@contextmanager
def met(rows: set[Row]) -> Iterator[None]:
    """Add the rows of all records that are put into a table."""
    put = DeliveryState.put

    def and_note(self: DeliveryState, container_id: str, new: Delivery) -> None:
        put(self, container_id, new)
        if self.desired.placement(container_id) is not None:
            rows.add(row_of(self, container_id))

    with mock.patch.object(DeliveryState, "put", and_note):
        yield
