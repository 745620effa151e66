"""The agenda of a simulation: time goes from event to event."""

from __future__ import annotations

from math import inf

from nri_policy.cluster.simulation.agenda import Agenda

ONE, OTHER = ("default", "one"), ("default", "other")


def test_time_goes_to_the_next_event_and_takes_all_that_is_due_then() -> None:
    agenda = Agenda()
    agenda.schedule(5.0, OTHER)
    agenda.schedule(3.0)
    agenda.schedule(5.0, ONE)
    assert agenda.next() == 3.0
    assert (agenda.take_due(), agenda.now) == ([], 3.0)
    assert (agenda.take_due(), agenda.now) == ([OTHER, ONE], 5.0)
    assert agenda.next() == inf


def test_a_group_ends_at_its_latest_time_and_not_once_that_is_cancelled() -> None:
    agenda = Agenda()
    agenda.schedule(1.0, ONE)
    agenda.schedule(2.0, ONE)
    agenda.schedule(2.0, OTHER)
    agenda.cancel_end(OTHER)
    agenda.cancel_end(OTHER)
    assert agenda.take_due() == []
    assert agenda.take_due() == [ONE]
