"""Resizes that the kubelet asks for again each second: one record, with a count and the last time.

More than one is needed where something else came to the same container, or came of it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from nri_policy.engine.engine import Engine
from nri_policy.engine.event import Created, Event, PodStopped, Reconfigured, Resized, Stopped
from nri_policy.store import compaction
from nri_policy.store.compaction import compact
from nri_policy.store.encoding import ResizeRepeats
from nri_policy.store.errors import DamagedStoreError
from nri_policy.store.journal import Record
from nri_policy.workload.pod import Container
from tests.support import nodes, stores


class Life:
    """A node with one container, and its journal."""

    def __init__(self, folder: Path) -> None:
        self.store, self.engine = stores.started(folder)
        self.container = nodes.container(2000)
        self.now = 0.0
        self.meet(Created(container=self.container))

    def meet(self, *events: Event) -> None:
        for event in events:
            self.now += 1
            stores.commit(self.store, self.engine, event, self.now)

    def resize(self, milli: int, container: Container | None = None) -> Resized:
        asked = nodes.resources(milli, milli)
        return Resized(container_id=(container or self.container).id, resources=asked)

    def resizes(self) -> list[Record]:
        found = stores.records(self.store.path)
        return [each for each in found if isinstance(each.event, Resized)]

    def replayed(self) -> Engine:
        engine = stores.replayed(self.store.path)
        assert stores.grants(engine) == stores.grants(self.engine)
        assert stores.on_disk(self.store.path) == stores.grants(self.engine)
        return engine


def counts(records: Sequence[Record]) -> list[int]:
    return [each.count for each in records]


def test_a_resize_that_is_refused_again_is_counted_in_its_record(tmp_path: Path) -> None:
    life = Life(tmp_path)
    for _ in range(10):
        life.meet(life.resize(99_000))
    (record,) = life.resizes()
    assert record.refusal is not None
    assert record.time == 2
    assert record.repeats == ResizeRepeats(count=9, last=11.0)
    life.replayed()


def test_others_may_come_and_go_between_two_refusals(tmp_path: Path) -> None:
    life = Life(tmp_path)
    second = nodes.container(1000)
    life.meet(Created(container=second))
    for _ in range(4):
        other = nodes.container(100)
        life.meet(life.resize(99_000), life.resize(98_000, second))
        life.meet(Created(container=other), Stopped(container_id=other.id))
    assert counts(life.resizes()) == [4, 4]
    life.replayed()


@pytest.mark.parametrize("between", ["another size", "a resize that is met", "settings"])
def test_a_refusal_after_something_else_has_a_record_of_its_own(
    between: str, tmp_path: Path
) -> None:
    life = Life(tmp_path)
    events: dict[str, Event] = {
        "another size": life.resize(98_000),
        "a resize that is met": life.resize(3000),
        "settings": Reconfigured(settings=nodes.settings(preferSharedCPUs=True)),
    }
    life.meet(life.resize(99_000), life.resize(99_000), events[between])
    life.meet(life.resize(99_000), life.resize(99_000))
    refused = [each for each in life.resizes() if each.event == life.resize(99_000)]
    assert counts(refused) == [2, 2]
    life.replayed()


def test_a_refusal_for_another_reason_has_a_record_of_its_own(tmp_path: Path) -> None:
    life = Life(tmp_path)
    life.meet(life.resize(16_000), life.resize(16_000), Created(container=nodes.container(4000)))
    life.meet(life.resize(16_000), life.resize(16_000))
    first, second = life.resizes()
    assert first.refusal != second.refusal
    assert counts([first, second]) == [2, 2]
    life.replayed()


def test_the_resize_of_a_whole_pod_that_changes_nothing_any_more_is_counted(
    tmp_path: Path,
) -> None:
    """The kubelet asks for it before each try of a container."""
    life = Life(tmp_path)
    two = replace(nodes.container(1000), pod=life.container.pod, name="second")
    life.meet(Created(container=two))
    pod = Resized(container_id=two.pod.id, resources=nodes.resources(99_000, 99_000))
    for _ in range(10):
        life.meet(pod, replace(life.resize(98_000), pod=pod.resources))
    records = life.resizes()
    assert len(records) <= 3, "its first one can change what the pod's containers ask for"
    assert sum(counts(records)) == 20
    life.meet(Created(container=nodes.container(100)))
    life.meet(pod, pod)
    assert counts(life.resizes())[len(records) :] == [2]
    life.replayed()


def test_a_container_of_the_same_id_that_came_later_has_records_of_its_own(tmp_path: Path) -> None:
    life = Life(tmp_path)
    life.meet(life.resize(99_000))
    life.meet(Stopped(container_id=life.container.id), PodStopped(pod_id=life.container.pod.id))
    life.meet(Created(container=life.container), life.resize(99_000))
    assert counts(life.resizes()) == [1, 1]


def test_a_refusal_whose_record_was_dropped_gets_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "MAX_RECORDS", 5)
    life = Life(tmp_path)
    life.meet(life.resize(99_000), life.resize(99_000))
    life.meet(*[Created(container=nodes.container(0)) for _ in range(10)])
    compact(life.store.path)
    assert life.resizes() == []
    life.meet(life.resize(99_000), life.resize(99_000))
    assert counts(life.resizes()) == [2]


def test_a_daemon_that_restarts_begins_another_record(tmp_path: Path) -> None:
    life = Life(tmp_path)
    life.meet(life.resize(99_000), life.resize(99_000))
    life.store.close()
    store, engine = stores.started(tmp_path, running=[life.container])
    for _ in range(2):
        stores.commit(store, engine, life.resize(99_000), now=50.0)
    assert counts(life.resizes()) == [2, 2]


def test_a_damaged_record_is_not_counted_on(tmp_path: Path) -> None:
    life = Life(tmp_path)
    life.meet(life.resize(99_000))
    connection = sqlite3.connect(life.store.path)
    with connection:
        connection.execute("UPDATE journal SET sum = sum + 1 WHERE kind = 'resized'")
    connection.close()
    with pytest.raises(Exception, match="checksum"):
        life.meet(life.resize(99_000))
    with pytest.raises(DamagedStoreError):
        life.resizes()
