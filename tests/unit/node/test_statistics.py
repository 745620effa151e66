"""What is counted of each container: as it was last, before it stopped."""

from __future__ import annotations

from nri_policy.engine.choice.shortage import PlacementError
from nri_policy.engine.event import Created, Event, Resized, Stopped
from nri_policy.engine.grant import Decision
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.node import Statistics, view_of
from nri_policy.workload.pod import Container
from tests.support import nodes
from tests.support.engine_driver import EngineDriver


class Counted:
    """An engine whose decisions are counted."""

    def __init__(self) -> None:
        self.driver = EngineDriver()
        self.statistics = Statistics()

    def handle(self, event: Event) -> None:
        outcome: Decision | PlacementError
        try:
            outcome = self.driver.engine.handle(event)
        except PlacementError as error:
            outcome = error
        self.statistics.observe(event, outcome, view_of(self.driver.engine))

    def create(self, container: Container) -> Container:
        self.handle(Created(container=container))
        return container

    def cpus(self, container: Container) -> CPUSet:
        return self.statistics.outcomes[container.full_name].cpus


def test_others_are_counted_as_they_are_after_a_change() -> None:
    node = Counted()
    sharers = [node.create(nodes.container(100, 200)) for _ in range(4)]
    before = [node.cpus(each) for each in sharers]
    own = node.create(nodes.container(2000))
    view = view_of(node.driver.engine)
    assert [node.cpus(each) for each in sharers] == [
        view.cpus(view.placed[each.id]) for each in sharers
    ]
    assert not any(node.cpus(each) & node.cpus(own) for each in sharers)
    changed = [
        now for now, then in zip(map(node.cpus, sharers), before, strict=True) if now != then
    ]
    score = node.statistics.score()
    assert score.updates == len(changed) > 0
    assert score.moves == 0, "they share other CPUs, and have none of their own"


def test_who_has_stopped_is_counted_as_it_was() -> None:
    node = Counted()
    own = node.create(nodes.container(2000))
    had = node.cpus(own)
    node.handle(Stopped(container_id=own.id))
    assert node.cpus(own) == had
    assert node.statistics.score().placed == 1


def test_a_refusal_counts_until_there_is_a_place_and_not_after() -> None:
    node, pod = Counted(), nodes.container(1000).pod
    large, fits = (nodes.container(milli, pod=pod) for milli in (99_000, 2000))
    node.create(large)
    score = node.statistics.score()
    assert (score.placed, score.refused) == (0, 1)
    node.create(fits)
    node.handle(Stopped(container_id=fits.id))
    node.create(large)
    score = node.statistics.score()
    assert (score.placed, score.refused) == (1, 0), "it had a place once"


def test_a_refused_resize_is_counted_beside_the_place_that_was_kept() -> None:
    node = Counted()
    own = node.create(nodes.container(2000))
    had = node.cpus(own)
    node.handle(Resized(container_id=own.id, resources=nodes.container(99_000).resources))
    score = node.statistics.score()
    assert (score.placed, score.refused, score.refused_resizes) == (1, 0, 1)
    assert node.cpus(own) == had


def test_everybody_there_is_can_be_taken_as_they_are() -> None:
    node = Counted()
    own = node.create(nodes.container(2000))
    other = Statistics()
    other.record_all(view_of(node.driver.engine))
    assert other.outcomes == node.statistics.outcomes
    assert other.outcomes.keys() == {own.full_name}
