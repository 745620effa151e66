from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path

import pytest
from msgspec.structs import replace

from nri_policy.engine.engine import Engine
from nri_policy.engine.event import (
    Created,
    Elapsed,
    Reconfigured,
    Resized,
    Started,
    Stopped,
    Synchronized,
)
from nri_policy.engine.state.quota import NO_QUOTA
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.hardware.machine import Machine
from nri_policy.node import view_of
from nri_policy.store import compaction, encoding, writer
from nri_policy.store import store as store_module
from nri_policy.store.compaction import compact
from nri_policy.store.database import RecordLink, open_for_reading, read_contents
from nri_policy.store.errors import NOT_STORED, StoreError
from nri_policy.store.replay import handle
from nri_policy.store.store import RETRY_AFTER, Store
from nri_policy.workload.annotations import AnnotationError
from tests.support import nodes, stores

COLD = {"cold-start.resource-policy.nri.io/pod": "duration: 60s"}


def with_pmem(spec: str) -> Machine:
    """Return a machine whose pmem a container can start on."""
    machine = nodes.machine(spec)
    return replace(machine, nodes=tuple(replace(node, normal=True) for node in machine.nodes))


def asides(state_dir: Path) -> list[str]:
    return sorted(entry.name for entry in state_dir.iterdir() if "aside" in entry.name)


def test_another_life_finds_what_was_committed(tmp_path: Path) -> None:
    store, engine = stores.started(tmp_path)
    for request in (500, 1000, 2000):
        stores.commit(store, engine, Created(container=nodes.container(request)))
    store.close()
    assert dict(Store(tmp_path, nodes.machine()).held.grants) == stores.grants(engine)


def test_a_commit_is_found_by_a_life_after_one_that_ended_without_closing(tmp_path: Path) -> None:
    store, engine = stores.started(tmp_path)
    stores.commit(store, engine, Created(container=nodes.container(1000)))
    assert stores.on_disk(store.path) == stores.grants(engine) != {}


def test_a_writer_that_is_wrong_about_the_database_reads_it_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store, engine = stores.started(tmp_path)
    container = nodes.container(1000)
    stores.commit(store, engine, Created(container=container))
    assert store._writer is not None
    store._writer._stored["nobody"] = store._writer._stored[container.id]
    with pytest.raises(StoreError, match="the database holds the containers of the node"):
        stores.commit(store, engine, Created(container=nodes.container(1000)))
    stores.commit(store, engine, Created(container=nodes.container(500)), now=RETRY_AFTER)
    assert stores.on_disk(store.path) == stores.grants(engine)
    assert f"event=store-available path={store.path}" in caplog.text


def test_a_record_has_no_grant_that_is_stored_already(tmp_path: Path) -> None:
    """A start changes what a container does, and nothing that it holds."""
    store, engine = stores.started(tmp_path)
    container = nodes.container(1000)
    stores.commit(store, engine, Created(container=container))
    stores.commit(store, engine, Started(container_id=container.id, now=0.0))
    with closing(open_for_reading(store.path)) as connection:
        rows = connection.execute("SELECT kind, held IS NULL FROM journal WHERE link = 0")
        assert rows.fetchall()[-2:] == [(b"created", 0), (b"started", 1)]
    assert stores.on_disk(store.path) == stores.grants(engine)


def test_a_stopped_container_leaves_the_store(tmp_path: Path) -> None:
    store, engine = stores.started(tmp_path)
    container = nodes.container(1000)
    stores.commit(store, engine, Created(container=container))
    stores.commit(store, engine, Stopped(container_id=container.id))
    assert stores.on_disk(store.path) == {}


def test_what_the_runtime_no_longer_has_is_forgotten_at_synchronisation(tmp_path: Path) -> None:
    store, engine = stores.started(tmp_path)
    stays, goes = nodes.container(1000), nodes.container(1000)
    for container in (stays, goes):
        stores.commit(store, engine, Created(container=container))
    store.close()
    store, again = Store(tmp_path, nodes.machine()), Engine(nodes.machine(), nodes.settings())
    event = Synchronized(
        containers=(nodes.running(stays, CPUSet(), CPUSet()),), held=store.held.grants
    )
    stores.commit(store, again, event)
    assert stores.on_disk(store.path) == {stays.id: stores.grants(engine)[stays.id]}


def test_what_an_earlier_life_knew_stands_until_the_runtime_was_heard(tmp_path: Path) -> None:
    store, engine = stores.started(tmp_path)
    stores.commit(store, engine, Created(container=nodes.container(1000)))
    store.close()
    store = Store(tmp_path, nodes.machine())
    stores.commit(store, Engine(nodes.machine(), nodes.settings()), Stopped(container_id="x"))
    assert stores.on_disk(store.path) == stores.grants(engine)


def test_a_cold_start_ends_in_a_later_life_when_it_was_to_end(tmp_path: Path) -> None:
    machine = with_pmem("package:2(pmem=8GiB) numa:2 core:2")
    store, engine = stores.started(tmp_path, machine)
    container = nodes.container(500, annotations=COLD)
    stores.commit(store, engine, Created(container=container))
    stores.commit(store, engine, Started(container_id=container.id, now=1000.0))
    on_pmem = engine.state.placed[container.id].grant
    assert stores.on_disk(store.path)[container.id].deadline == 1060.0
    store.close()
    listed = nodes.running(container, *engine.state.sent[container.id])
    store = Store(tmp_path, machine)
    again = Engine(machine, nodes.settings(), store.held.earlier)
    event = Synchronized(containers=(listed,), held=store.held.grants, now=1050.0)
    stores.commit(store, again, event)
    assert again.state.placed[container.id].grant == on_pmem
    assert view_of(again).next_deadline == 1060.0
    stores.commit(store, again, Elapsed(now=1060.0))
    (warm,) = stores.on_disk(store.path).values()
    assert warm.grant.mems > on_pmem.mems
    assert warm.deadline is None


def test_a_guest_that_was_moved_is_stored_where_it_is(tmp_path: Path) -> None:
    store, engine = stores.started(tmp_path, nodes.machine("package:2 numa:1 core:2 pu:1"))
    for _ in range(3):
        stores.commit(store, engine, Created(container=nodes.best_effort()))
    before = stores.grants(engine)
    stores.commit(store, engine, Created(container=nodes.container(2000)))
    after = stores.grants(engine)
    assert any(after[i] != before[i] for i in before)
    assert stores.on_disk(store.path) == after


def test_the_journal_replays_to_what_is_stored(tmp_path: Path) -> None:
    store, engine = stores.started(tmp_path)
    for event in islice(stores.life(engine, seed=7), 120):
        stores.commit(store, engine, event)
    assert stores.grants(stores.replayed(store.path)) == stores.on_disk(store.path)


def test_the_journal_is_bounded_and_can_still_be_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "MAX_RECORDS", 50)
    monkeypatch.setattr(writer, "BASE_EVERY", 10)
    store, engine = stores.started(tmp_path)
    for event in islice(stores.life(engine, seed=3), 200):
        stores.commit(store, engine, event)
    compact(store.path)
    journal = stores.records(store.path)
    assert len(journal) == 50
    assert any(record.link is RecordLink.BASE for record in journal[:12])
    assert stores.grants(stores.replayed(store.path)) == stores.on_disk(store.path)
    connection = sqlite3.connect(store.path)
    (layouts,) = connection.execute("SELECT count(*) FROM layouts").fetchone()
    connection.close()
    assert 1 <= layouts <= 50


def test_the_journal_is_bounded_in_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "MAX_BYTES", 40_000)
    monkeypatch.setattr(writer, "MAX_BASE", 10_000)
    store, engine = stores.started(tmp_path)
    annotations = {"prefer-isolated-cpus.resource-policy.nri.io/pod": "true" + " " * 2000}
    for _ in range(60):
        event = Created(container=nodes.container(0, annotations=annotations))
        store.commit(event, AnnotationError("key", "text", "accepted"), view_of(engine), 0.0)
        compact(store.path)
    connection = sqlite3.connect(store.path)
    (size,) = connection.execute("SELECT sum(size) FROM journal").fetchone()
    assert connection.execute("SELECT bytes FROM snapshot").fetchone() == (size,)
    connection.close()
    assert 30_000 < size <= 40_000


def test_a_record_larger_than_the_journal_may_be_stays_until_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "MAX_BYTES", 100)
    store, engine = stores.started(tmp_path)
    for request in (500, 1000):
        stores.commit(store, engine, Created(container=nodes.container(request)))
        compact(store.path)
        assert len(stores.records(store.path)) == 1
    assert stores.on_disk(store.path) == stores.grants(engine)


def test_compacting_changes_nothing_that_is_stored(tmp_path: Path) -> None:
    store, engine = stores.started(tmp_path)
    for event in islice(stores.life(engine, seed=9), 60):
        stores.commit(store, engine, event)
        before = stores.records(store.path)
        if len(before) % 7 == 0:
            compact(store.path)
        assert stores.on_disk(store.path) == stores.grants(engine)
        assert [each.seq for each in stores.records(store.path)] == [each.seq for each in before]


def test_what_is_read_while_another_compacts_is_of_one_moment(tmp_path: Path) -> None:
    store, engine = stores.started(tmp_path)
    for event in islice(stores.life(engine, seed=9), 60):
        stores.commit(store, engine, event)
    connection = open_for_reading(store.path)

    def compact_between(statement: str) -> None:
        if "FROM snapshot" in statement:
            compact(store.path)

    connection.set_trace_callback(compact_between)
    assert read_contents(connection, store.path).grants == stores.grants(engine) != {}
    connection.close()


def test_a_start_needs_no_record_that_the_snapshot_has(tmp_path: Path) -> None:
    store, engine = stores.started(tmp_path)
    for event in islice(stores.life(engine, seed=9), 60):
        stores.commit(store, engine, event)
    compact(store.path)
    assert store._connection is not None
    store._connection.execute("DELETE FROM journal")
    assert stores.on_disk(store.path) == stores.grants(engine) != {}


def test_a_journal_that_cannot_be_read_is_set_aside_and_everything_stored_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, engine = stores.started(tmp_path)
    stores.commit(store, engine, Created(container=nodes.container(1000)))
    assert store._connection is not None
    store._connection.execute("UPDATE journal SET held = replace(held, '1', '2')")
    monkeypatch.setattr(store_module, "COMPACT_EVERY", 1)
    stores.commit(store, engine, Created(container=nodes.container(500)))
    assert store._compacting is not None
    store._compacting.join()
    assert "store-not-compacted" in caplog.text
    stores.commit(store, engine, Created(container=nodes.container(500)))
    assert asides(tmp_path) == ["store.aside-1"]
    assert stores.on_disk(store.path) == stores.grants(engine)
    assert len(stores.grants(engine)) == 3


def test_without_a_thread_to_compact_decisions_are_stored_and_the_next_time_compacts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    store, engine = stores.started(tmp_path)
    monkeypatch.setattr(store_module, "COMPACT_EVERY", 1)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        stores.commit(store, engine, Created(container=nodes.container(1000)))
    assert "store-not-compacted" in caplog.text
    stores.commit(store, engine, Created(container=nodes.container(500)))
    assert store._compacting is not None
    store.close()
    assert stores.on_disk(store.path) == stores.grants(engine)
    assert len(stores.grants(engine)) == 2


@pytest.mark.parametrize(("sync", "level"), [("background", 1), ("commit", 2)])
def test_commits_wait_for_the_disk_where_the_settings_want_it(
    tmp_path: Path, sync: str, level: int
) -> None:
    store, engine = stores.started(tmp_path, settings=nodes.settings(journal={"sync": sync}))
    assert store._connection is not None
    assert store._connection.execute("PRAGMA synchronous").fetchone() == (level,)
    stores.commit(store, engine, Reconfigured(settings=nodes.settings(journal={"sync": "commit"})))
    assert store._connection.execute("PRAGMA synchronous").fetchone() == (2,)


def test_a_store_of_another_machine_is_set_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store, engine = stores.started(tmp_path)
    stores.commit(store, engine, Created(container=nodes.container(1000)))
    store.close()
    other = nodes.machine("package:1 core:4 pu:1")
    assert Store(tmp_path, other).held.grants == {}
    assert asides(tmp_path) == ["store.aside-1"]
    (message,) = caplog.text.splitlines()
    assert "another machine" in message


def test_a_machine_that_lost_a_cpu_is_the_same(tmp_path: Path) -> None:
    store, engine = stores.started(tmp_path)
    stores.commit(store, engine, Created(container=nodes.container(1000)))
    smaller = nodes.machine().restricted(nodes.machine().online - CPUSet([0, 5]))
    stores.commit(store, engine, Reconfigured(machine=smaller))
    store.close()
    store = Store(tmp_path, nodes.machine())
    assert dict(store.held.grants) == stores.grants(engine) != {}
    assert asides(tmp_path) == []


@pytest.fixture
def full(tmp_path: Path) -> Iterator[tuple[Store, Engine]]:
    """A store whose database cannot grow any more."""
    store, engine = stores.started(tmp_path)
    stores.commit(store, engine, Created(container=nodes.container(1000)))
    assert store._connection is not None
    (pages,) = store._connection.execute("PRAGMA page_count").fetchone()
    store._connection.execute(f"PRAGMA max_page_count = {pages}")
    yield store, engine
    store.close()


def fill(store: Store, engine: Engine, now: float) -> None:
    """Commit until there is no room."""
    commits = (stores.commit(store, engine, event, now) for event in stores.life(engine, seed=1))
    with pytest.raises(StoreError, match="full"):
        deque(commits)


def test_a_full_disk_is_an_error_and_made_up_for_when_there_is_room(
    full: tuple[Store, Engine],
) -> None:
    store, engine = full
    fill(store, engine, now=100.0)
    missed = stores.life(engine, seed=2)
    for event in islice(missed, 20):
        with pytest.raises(StoreError, match="full"):
            stores.commit(store, engine, event, 100.0 + RETRY_AFTER / 2)
    assert stores.on_disk(store.path) != stores.grants(engine)
    assert "is full; a restart may place containers again" in store.trouble
    stores.commit(store, engine, next(missed), 100.0 + RETRY_AFTER)
    assert stores.on_disk(store.path) == stores.grants(engine)
    assert not store.trouble
    assert stores.records(store.path)[-1].link is RecordLink.BASE, (
        "a replay could not go on over the gap"
    )


def test_a_clock_that_jumps_back_does_not_stop_the_retries(full: tuple[Store, Engine]) -> None:
    store, engine = full
    fill(store, engine, now=1e9)
    stores.commit(store, engine, Stopped(container_id="x"), 1.0)
    assert stores.on_disk(store.path) == stores.grants(engine)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    if os.geteuid():
        pytest.skip("mounting needs root")
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k,mode=0700", "tmpfs", str(folder)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"mounting is not allowed here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def remount(folder: Path, option: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{option}", str(folder)], check=True)


def test_a_real_disk_that_is_full(small_disk: Path) -> None:
    store, engine = stores.started(small_disk)
    fill(store, engine, now=0.0)
    with pytest.raises(StoreError):  # it is still full
        stores.commit(store, engine, Created(container=nodes.container(500)), RETRY_AFTER)
    remount(small_disk, "size=16m")
    stores.commit(store, engine, Stopped(container_id="x"), 2 * RETRY_AFTER)
    assert stores.on_disk(store.path) == stores.grants(engine)
    store.close()


def remove_folder(path: Path) -> None:
    shutil.rmtree(path.parents[1])


def remove_log(path: Path) -> None:
    path.with_name(f"{path.name}-wal").unlink()


def empty(path: Path) -> None:
    os.truncate(path, 0)


def replace_folder(path: Path) -> None:
    """Put a copy in the place of a folder, as who restores a backup."""
    copy = path.parents[2] / "copy"
    shutil.copytree(path.parent, copy)
    shutil.rmtree(path.parent)
    copy.rename(path.parent)


@pytest.mark.parametrize("harm", [remove_folder, Path.unlink, remove_log, empty, replace_folder])
def test_files_that_are_removed_while_the_daemon_runs_are_made_again(
    harm: Callable[[Path], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """SQLite goes on writing to removed files, and reports no error."""
    store, engine = stores.started(tmp_path / "state")
    for _ in range(2):
        stores.commit(store, engine, Created(container=nodes.container(1000)))
    assert not store.trouble
    assert "store-" not in caplog.text
    harm(store.path)
    assert store.trouble.startswith(NOT_STORED)
    assert "were removed or replaced" in store.trouble
    stores.commit(store, engine, Created(container=nodes.container(500)))
    assert not store.trouble
    assert "store-removed" in caplog.text
    assert stores.on_disk(store.path) == stores.grants(engine) != {}
    store.close()


def test_removed_files_that_cannot_be_made_again_are_an_error(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    store, engine = stores.started(folder)
    shutil.rmtree(folder)
    folder.touch()
    with pytest.raises(StoreError, match="File exists"):
        stores.commit(store, engine, Created(container=nodes.container(500)))
    assert "File exists" in store.trouble
    folder.unlink()
    stores.commit(store, engine, Stopped(container_id="x"), RETRY_AFTER)
    assert stores.on_disk(store.path) == stores.grants(engine) != {}
    store.close()


def test_a_disk_that_is_read_only_from_the_start(
    small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    remount(small_disk, "ro")
    store, engine = Store(small_disk, nodes.machine()), Engine(nodes.machine(), nodes.settings())
    assert "store-unavailable" in caplog.text
    assert store.trouble.startswith(NOT_STORED)
    with pytest.raises(StoreError):
        stores.commit(store, engine, Synchronized(containers=()))
    handle(engine, Created(container=nodes.container(1000)))
    remount(small_disk, "rw")
    stores.commit(store, engine, Stopped(container_id="x"), RETRY_AFTER)
    assert stores.on_disk(store.path) == stores.grants(engine) != {}
    store.close()


def test_a_store_on_a_read_only_disk_is_read(small_disk: Path) -> None:
    store, engine = stores.started(small_disk)
    stores.commit(store, engine, Created(container=nodes.container(1000)))
    store.close()
    remount(small_disk, "ro")
    store = Store(small_disk, nodes.machine())
    assert dict(store.held.grants) == stores.grants(engine) != {}
    assert asides(small_disk) == []


def test_the_log_is_moved_to_the_database_behind_the_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "COMPACT_EVERY", 500_000)
    store, engine = stores.started(tmp_path)
    for event in islice(stores.life(engine, seed=5), 300):
        stores.commit(store, engine, event)
        if store._compacting is not None:
            store._compacting.join()
    log = store.path.with_name("state.db-wal")
    assert log.stat().st_size < 3_000_000, "it never started anew"
    assert stores.on_disk(store.path) == stores.grants(engine)
    store.close()


def test_the_log_is_bounded_where_commits_leave_no_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound, interval = 1_000_000, 200_000
    monkeypatch.setattr(store_module, "COMPACT_EVERY", interval)
    monkeypatch.setattr(store_module, "MAX_LOG", bound)
    monkeypatch.setattr(store_module, "PATIENCE", 60.0)
    monkeypatch.setattr(compaction, "MAX_RECORDS", 100)
    store, engine = stores.started(tmp_path)
    log, largest, written = store.path.with_name("state.db-wal"), 0, 0
    for event in islice(stores.life(engine, seed=5), 1500):
        before = store._log_bytes
        stores.commit(store, engine, event)
        written += max(0, store._log_bytes - before)
        largest = max(largest, log.stat().st_size)
    assert written > 10 * bound
    assert bound / 4 < largest < bound + 2 * interval
    assert stores.on_disk(store.path) == stores.grants(engine)


def test_a_value_without_a_stored_form_is_an_error_that_passes(tmp_path: Path) -> None:
    store, engine = stores.started(tmp_path)
    container = nodes.container(1000)
    odd = replace(container, labels={"\ud800": ""})
    with pytest.raises(StoreError, match="no stored form"):
        stores.commit(store, engine, Created(container=odd))
    stores.commit(store, engine, Stopped(container_id=odd.id), RETRY_AFTER)
    assert stores.on_disk(store.path) == {}


def test_a_resize_outlives_the_annotation_with_the_old_amounts(tmp_path: Path) -> None:
    exact = {
        "noderesource.dev/resources": (
            '{"containers": {"c0": {"requests": {"cpu": "1"}, "limits": {"cpu": "1"}}}}'
        )
    }
    store, engine = stores.started(tmp_path)
    container = nodes.container(1000, annotations=exact)
    stores.commit(store, engine, Created(container=container))
    larger = nodes.resources(2000, 2000)
    stores.commit(store, engine, Resized(container_id=container.id, resources=larger))
    grant = engine.state.placed[container.id].grant
    assert len(grant.exclusive) == 2
    store.close()
    held = Store(tmp_path, nodes.machine()).held.grants
    larger = replace(larger, cpu_quota=NO_QUOTA)
    listed = nodes.running(replace(container, resources=larger), grant.exclusive, grant.mems)
    again = Engine(nodes.machine(), nodes.settings())
    decision = again.handle(Synchronized(containers=(listed,), held=held))
    assert again.state.placed[container.id].grant == grant
    assert decision.changes == {}


def test_only_what_an_event_touches_is_written_however_many_there_are(tmp_path: Path) -> None:
    machine = with_pmem("package:2(pmem=8GiB) numa:4 core:8 pu:2")
    store, engine = stores.started(tmp_path, machine)

    def held() -> dict[str, bytes]:
        """What the latest record says of grants."""
        assert store._connection is not None
        query = "SELECT held FROM journal ORDER BY seq DESC LIMIT 1"
        (text,) = store._connection.execute(query).fetchone()
        return {} if text is None else encoding.decode_held(text)

    running = [nodes.container(100, annotations=COLD) for _ in range(20)]
    for container in running:
        stores.commit(store, engine, Created(container=container))
    assert len(engine.state.cold) == 20
    engine.fork().handle(Stopped(container_id=running[0].id))
    newcomer = nodes.container(1000)
    stores.commit(store, engine, Created(container=newcomer))
    assert held().keys() == {newcomer.id}
    stores.commit(store, engine, Stopped(container_id=newcomer.id))
    assert held() == {newcomer.id: encoding.GONE}
    refused = nodes.container(0, annotations={"hide-hyperthreads.resource-policy.nri.io/pod": "?"})
    assert isinstance(stores.commit(store, engine, Created(container=refused)), AnnotationError)
    assert held() == {}
    engine.handle(Stopped(container_id=running[1].id))  # nobody has stored these
    more = nodes.container(200).resources
    engine.handle(Resized(container_id=running[3].id, resources=more))
    stores.commit(store, engine, Stopped(container_id=running[2].id))
    gone = {each for each, form in held().items() if form == encoding.GONE}
    assert gone == {running[1].id, running[2].id}
    assert held().keys() - gone == {running[3].id}
    assert stores.on_disk(store.path) == stores.grants(engine)
