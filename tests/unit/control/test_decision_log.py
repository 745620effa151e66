from __future__ import annotations

import pytest

from nri_policy.control.decision_log import MAX_REFUSALS, MAX_WAITING, DecisionLog, LaggingError
from nri_policy.engine.choice.shortage import PlacementError
from nri_policy.engine.event import Created, Event, PodStopped, Resized, Stopped, Synchronized
from nri_policy.engine.grant import AGAIN
from nri_policy.node import view_of
from nri_policy.workload.annotations import ZONE
from nri_policy.workload.pod import Container
from tests.support import nodes, rooms
from tests.support.engine_driver import EngineDriver


class LoggedDriver(EngineDriver):
    """A life that a decision log follows."""

    def __init__(self, machine: str = nodes.SMALL) -> None:
        super().__init__(machine)
        self.decision_log = DecisionLog()

    def note(self, event: Event) -> None:
        """Apply *event* and tell the decision log what became of it."""
        try:
            outcome = self.handle(event)
        except PlacementError as refusal:
            self.decision_log.observe(event, refusal, view_of(self.engine))
        else:
            self.decision_log.observe(event, outcome, view_of(self.engine))


def created(container: Container) -> Created:
    return Created(container=container)


def test_the_oldest_refusals_are_forgotten() -> None:
    driver = LoggedDriver("package:1 core:2")
    refused = [nodes.container(9000) for _ in range(MAX_REFUSALS + 1)]
    for container in refused:
        driver.note(created(container))
    driver.note(created(refused[1]))
    names = list(driver.decision_log.refusals)
    assert len(names) == MAX_REFUSALS
    assert refused[0].full_name not in names
    assert names[-1] == refused[1].full_name, "refused again, it is the latest"


def test_a_refusal_outlives_its_pod_and_says_so() -> None:
    driver = LoggedDriver()
    one, other = nodes.container(99_000), nodes.container(98_000)
    driver.note(created(one))
    driver.note(created(other))
    driver.note(PodStopped(pod_id=one.pod.id))
    refusals = driver.decision_log.refusals
    assert not refusals[one.full_name].pod_exists
    assert refusals[other.full_name].pod_exists
    assert "98 exclusive CPUs" in refusals[other.full_name].reason
    driver.note(Synchronized(containers=()))
    assert not refusals[other.full_name].pod_exists


def test_a_refused_resize_is_forgotten_with_its_container() -> None:
    driver = LoggedDriver()
    container = nodes.container(1000)
    driver.note(created(container))
    driver.note(Resized(container_id=container.id, resources=nodes.resources(99_000, 99_000)))
    assert container.full_name in driver.decision_log.refusals
    driver.note(Stopped(container_id=container.id))
    assert not driver.decision_log.refusals


def test_a_refused_resize_of_a_pod_is_told_of_its_containers_until_the_pod_is_resized() -> None:
    driver, whole = LoggedDriver(), rooms.pod(3000)
    main, log = rooms.tenant(whole, "main", 2000), rooms.tenant(whole, "log", 500)
    for each in (main, log):
        driver.note(created(each))
    driver.note(Resized(container_id=whole.id, resources=nodes.resources(99_000, 99_000)))
    refusals = driver.decision_log.refusals
    assert [*refusals] == [main.full_name, log.full_name]
    assert "room of 3 CPUs cannot be resized to 99" in refusals[log.full_name].reason
    assert refusals[log.full_name].explanation.container == log.full_name
    driver.note(Resized(container_id=whole.id, resources=nodes.resources(4000, 4000)))
    assert not refusals


def test_who_was_changed_by_another_is_remembered_while_it_runs() -> None:
    driver = LoggedDriver("package:1 core:4")
    guest, own = nodes.best_effort(), nodes.container(2000)
    driver.note(created(guest))
    driver.note(created(own))
    cause = f"{own.full_name} was placed"
    assert driver.decision_log.causes == {guest.full_name: cause}
    driver.note(Stopped(container_id=own.id))
    assert driver.decision_log.causes == {guest.full_name: f"{own.full_name} stopped"}
    driver.note(Synchronized(containers=()))
    assert not driver.decision_log.causes


def test_what_the_runtime_is_told_again_keeps_its_cause() -> None:
    driver = LoggedDriver("package:1 core:4")
    guest, own = nodes.best_effort(), nodes.container(2000)
    driver.note(created(guest))
    before = driver.runtime.cpus[guest.id]
    driver.note(created(own))
    cause = f"{own.full_name} was placed"
    runtime = driver.runtime
    runtime.cpus[guest.id] = before  # the runtime has not applied the update
    listed = [
        nodes.running(
            each, runtime.cpus[each.id], runtime.mems[each.id], runtime.quotas.get(each.id)
        )
        for each in (guest, own)
    ]
    driver.note(Synchronized(containers=tuple(listed)))
    assert {each.cause for each in driver.decision.changes.values()} == {AGAIN}
    assert driver.decision_log.causes == {guest.full_name: cause}


async def test_a_watcher_hears_the_warnings_of_a_decision() -> None:
    driver = LoggedDriver()
    odd = nodes.container(1000, annotations={ZONE: "nowhere"})
    with driver.decision_log.watching() as watcher:
        driver.note(created(odd))
        heard = await watcher.next()
    assert [*heard.warnings] == [*driver.decision.warnings]
    assert "'nowhere' is not a zone of this node" in heard.warnings[0]


async def test_a_watcher_that_lags_loses_the_rest_and_hears_of_it() -> None:
    driver = LoggedDriver()
    stop = Stopped(container_id="none")
    with driver.decision_log.watching() as watcher:
        for _ in range(MAX_WAITING):
            driver.note(stop)
        assert (await watcher.next()).event == "stopped"
        driver.note(stop)
        driver.note(stop)
        with pytest.raises(LaggingError):
            await watcher.next()
