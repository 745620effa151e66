from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from nri_policy.engine.choice.shortage import PlacementError
from nri_policy.engine.event import Created, Event, PodStopped, Reconfigured, Resized, Stopped, kind
from nri_policy.engine.grant import Decision
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.node import view_of
from nri_policy.pools.capacity import CapacityError
from nri_policy.report import explanation_report
from nri_policy.settings import CPUQuantity
from nri_policy.store.encoding import decode_event, encode_event
from nri_policy.store.errors import DamagedStoreError
from nri_policy.store.journal import open_journal
from nri_policy.workload.annotations import AnnotationError
from tests.support import nodes, stores


def test_a_past_decision_is_explained_as_it_was_then(tmp_path: Path) -> None:
    store, engine = stores.started(tmp_path)
    container = nodes.container(2000)
    decided = stores.commit(store, engine, Created(container=container), now=17.25)
    assert isinstance(decided, Decision)
    assert decided.explanation is not None
    for _ in range(5):
        stores.commit(store, engine, Created(container=nodes.container(1000)))
    with open_journal(store.path) as journal:
        record = journal.latest(container.full_name)
    assert record is not None
    assert record.decision.explanation is not None
    assert explanation_report(
        record.decision.explanation, record.decision.grant
    ) == explanation_report(decided.explanation, decided.grant)
    assert (record.time, record.refusal) == (17.25, None)
    assert record.event == Created(container=container)
    assert (record.decision.grant, record.decision.placement) == (decided.grant, decided.placement)


def test_what_is_the_usual_takes_no_bytes_of_a_record() -> None:
    event = Created(container=nodes.container(1000))
    assert b"stands_for_pod" not in encode_event(event)
    assert decode_event(kind(event), encode_event(event), "a test") == event
    odd = replace(event, container=replace(event.container, stands_for_pod=True))
    assert b"stands_for_pod" in encode_event(odd)


def test_a_past_explanation_names_the_container_of_an_affinity(tmp_path: Path) -> None:
    store, engine = stores.started(tmp_path)
    stores.commit(store, engine, Created(container=nodes.container(1000, name="cache")))
    near = {
        "resource-policy.nri.io/affinity": "c0: [{scope: {operator: AlwaysTrue}, match: "
        "{key: name, operator: Equals, values: [cache]}, weight: 5}]"
    }
    container = nodes.container(1000, annotations=near)
    decided = stores.commit(store, engine, Created(container=container))
    assert isinstance(decided, Decision)
    assert decided.explanation is not None
    with open_journal(store.path) as journal:
        record = journal.latest(container.full_name)
    assert record is not None
    assert record.decision.explanation is not None
    assert (
        explanation_report(record.decision.explanation, record.decision.grant).affinity
        == explanation_report(decided.explanation, decided.grant).affinity
    )
    assert "cache (+5)" in str(
        explanation_report(record.decision.explanation, record.decision.grant).affinity
    )


def test_a_past_refusal_is_explained(tmp_path: Path) -> None:
    store, engine = stores.started(tmp_path)
    container = nodes.container(99_000)
    refusal = stores.commit(store, engine, Created(container=container))
    assert isinstance(refusal, PlacementError)
    assert refusal.explanation is not None
    with open_journal(store.path) as journal:
        record = journal.latest(container.full_name)
    assert record is not None
    assert record.refusal == str(refusal)
    assert record.decision.explanation is not None
    assert explanation_report(
        record.decision.explanation, record.decision.grant
    ) == explanation_report(refusal.explanation, None)


def test_a_refused_annotation_is_remembered_by_the_containers_name(tmp_path: Path) -> None:
    store, engine = stores.started(tmp_path)
    event = Created(container=nodes.container(1000))
    store.commit(event, AnnotationError("key", "text", "accepted"), view_of(engine), 0.0)
    with open_journal(store.path) as journal:
        record = journal.latest(event.container.full_name)
    assert record is not None
    assert record.refusal == "annotation key: 'text' is not accepted"


def test_what_was_never_decided_has_no_record(tmp_path: Path) -> None:
    store, _ = stores.started(tmp_path)
    with open_journal(store.path) as journal:
        assert journal.latest("default/nobody/c0") is None


def test_the_end_of_a_pod_is_recorded_only_if_something_of_it_was_left(tmp_path: Path) -> None:
    store, engine = stores.started(tmp_path)
    stopped, left = nodes.container(100), nodes.container(100)
    events: list[Event] = [
        *(Created(container=each) for each in (stopped, left)),
        Stopped(container_id=stopped.id),
        *(PodStopped(pod_id=each.pod.id) for each in (stopped, left)),
    ]
    for event in events:
        stores.commit(store, engine, event)
    with open_journal(store.path) as journal:
        ends = [each.event for each in journal.records(0) if isinstance(each.event, PodStopped)]
    assert ends == [PodStopped(pod_id=left.pod.id)]
    assert stores.grants(engine) == {}


def test_records_are_read_on_from_a_number(tmp_path: Path) -> None:
    store, engine = stores.started(tmp_path)
    for _ in range(5):
        stores.commit(store, engine, Created(container=nodes.container(100)))
    numbers = [record.seq for record in stores.records(store.path)]
    assert numbers == sorted(set(numbers))
    with open_journal(store.path) as journal:
        assert [record.seq for record in journal.records(after=numbers[3])] == numbers[4:]


def test_every_record_has_the_settings_and_the_machine_that_were_in_force(tmp_path: Path) -> None:
    store, engine = stores.started(tmp_path)
    smaller = nodes.machine().restricted(CPUSet(range(12)))
    settings = nodes.settings(preferSharedCPUs=True)
    stores.commit(store, engine, Reconfigured(settings=settings))
    stores.commit(store, engine, Reconfigured(machine=smaller))
    *_, one, other = stores.records(store.path)
    assert one.layout.settings.prefer_shared_cpus
    assert one.layout.machine == nodes.machine()
    assert other.layout.machine == smaller
    assert isinstance(one.event, Reconfigured)
    assert one.event.settings is not None
    assert one.event.settings.prefer_shared_cpus
    assert isinstance(other.event, Reconfigured)
    assert other.event.machine == smaller


@pytest.mark.parametrize("cpus", [5, 99], ids=["no place", "impossible"])
def test_refused_settings_are_in_the_journal_with_the_reason(cpus: int, tmp_path: Path) -> None:
    store, engine = stores.started(tmp_path)
    for _ in range(3):
        stores.commit(store, engine, Created(container=nodes.container(4000)))
    event = Reconfigured(settings=nodes.settings(reservedResources={"cpu": cpus}))
    with pytest.raises((PlacementError, CapacityError)) as raised:
        engine.handle(event)
    refusal = raised.value
    store.commit(event, refusal, view_of(engine), 0.0)
    record = stores.records(store.path)[-1]
    assert isinstance(record.event, Reconfigured)
    assert record.refusal == str(refusal)
    assert record.layout.settings.reserved.cpu == CPUQuantity(750), "the old ones are in force"


def test_annotations_of_others_are_not_kept(tmp_path: Path) -> None:
    store, engine = stores.started(tmp_path)
    ours = {"static-cpus.resource-policy.nri.io/pod": "true"}
    annotations = {**ours, "kubectl.kubernetes.io/last-applied-configuration": "{}"}
    stores.commit(store, engine, Created(container=nodes.container(100, annotations=annotations)))
    event = stores.records(store.path)[-1].event
    assert isinstance(event, Created)
    assert event.container.pod.annotations == ours


def test_a_map_of_endless_texts_is_cut(tmp_path: Path) -> None:
    store, engine = stores.started(tmp_path)
    many = {f"resource-policy.nri.io/{number}": "x" * 1000 for number in range(1000)}
    stores.commit(store, engine, Created(container=nodes.container(100, annotations=many)))
    event = stores.records(store.path)[-1].event
    assert isinstance(event, Created)
    assert 50 < len(event.container.pod.annotations) < 70


def test_a_record_that_was_changed_is_an_error_that_names_it(tmp_path: Path) -> None:
    store, engine = stores.started(tmp_path)
    container = nodes.container(100)
    stores.commit(store, engine, Created(container=container))
    stores.commit(
        store, engine, Resized(container_id=container.id, resources=nodes.resources(200, None))
    )
    assert store._connection is not None
    store._connection.execute("UPDATE journal SET time = 5 WHERE seq = 3")
    with pytest.raises(DamagedStoreError, match="record 3 of the journal cannot be read"):
        stores.records(store.path)
