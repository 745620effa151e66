"""What is not a whole store of this version is set aside, and nothing else ever comes of it."""

from __future__ import annotations

import os
import random
import sqlite3
from itertools import islice
from pathlib import Path

import pytest

from nri_policy.engine.event import Created
from nri_policy.store.compaction import compact
from nri_policy.store.database import VERSION
from nri_policy.store.errors import DamagedStoreError, StoreError
from nri_policy.store.journal import open_journal
from nri_policy.store.store import Store
from tests.support import nodes, stores

ROUNDS = int(os.environ.get("NRI_POLICY_DAMAGES", "150"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file of a store that was closed: a snapshot, and records after it."""
    store, engine = stores.started(tmp_path)
    for number, event in enumerate(islice(stores.life(engine, seed=11), 60)):
        stores.commit(store, engine, event)
        if number == 40:
            compact(store.path)
    store.close()
    return store.path


def set_aside(path: Path) -> bool:
    """Open the store as a daemon does, see that it works; return whether it was set aside."""
    aside = path.parent.with_name("store.aside-1")
    store, engine = stores.started(path.parent.parent)
    stores.commit(store, engine, Created(container=nodes.container(1000)))
    store.close()
    assert stores.on_disk(path) == stores.grants(engine)
    return aside.exists()


def execute(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(statement)
    connection.close()


def test_a_whole_store_stays(path: Path) -> None:
    assert not set_aside(path)


def test_a_file_that_is_no_database_is_set_aside(path: Path) -> None:
    path.write_text("containers: {}\n")
    assert set_aside(path)


def test_a_schema_that_is_no_text_is_set_aside(path: Path) -> None:
    """SQLite quotes the schema in its error message, which is no valid UTF-8 then."""
    data = path.read_bytes().replace(b"tablejournal", b"table\xc6\xffurnal")
    path.write_bytes(data.replace(b"CREATE TABLE journal", b"CROATE TABLE journal"))
    assert set_aside(path)


def test_another_programs_database_is_set_aside_as_it_is(path: Path) -> None:
    path.unlink()
    execute(path, "CREATE TABLE grants (container TEXT)")
    content = path.read_bytes()
    assert set_aside(path)
    assert (path.parent.with_name("store.aside-1") / "state.db").read_bytes() == content


def test_a_store_of_a_newer_version_is_set_aside_with_one_message(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    execute(path, f"PRAGMA user_version = {VERSION + 1}")
    assert set_aside(path)
    (message,) = caplog.text.splitlines()
    assert f"it is of version {VERSION + 1}, this program's is {VERSION}" in message
    assert str(path) in message
    assert "store.aside-1" in message


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE grants SET form = replace(form, '4', '5')",
        "UPDATE grants SET form = 7",
        "UPDATE journal SET held = replace(held, '4', '5')",
        "UPDATE journal SET held = NULL WHERE held IS NOT NULL",
        "UPDATE journal SET held_sum = NULL WHERE held IS NOT NULL",
        "UPDATE journal SET held = 7 WHERE held IS NOT NULL",
        "UPDATE snapshot SET seq = seq + 1",
        "UPDATE snapshot SET bytes = 7",
        "DELETE FROM snapshot",
        "UPDATE layouts SET reserved = 7",
        "UPDATE grants SET container = container || 'x'",
        "UPDATE layouts SET machine = '{}'",
        "CREATE TRIGGER t AFTER INSERT ON grants BEGIN DELETE FROM journal; END",
        "DELETE FROM journal WHERE seq = (SELECT seq + 2 FROM snapshot)",
        "DROP TABLE layouts",
    ],
)
def test_a_store_that_was_edited_is_set_aside(path: Path, statement: str) -> None:
    execute(path, statement)
    assert set_aside(path)


@pytest.mark.parametrize("kept", [1, 99, 100, 4095, 4096, 9000])
def test_a_file_that_was_cut_short_is_set_aside(path: Path, kept: int) -> None:
    with path.open("r+b") as file:
        file.truncate(kept)
    assert set_aside(path)


def test_an_empty_file_is_a_new_store(path: Path) -> None:
    path.write_bytes(b"")
    assert not set_aside(path)


def test_bytes_that_flip_never_do_more_than_set_the_store_aside(path: Path) -> None:
    whole, choices = path.read_bytes(), random.Random(5)
    truth = stores.on_disk(path)
    aside = 0
    for _ in range(ROUNDS):
        torn = bytearray(whole)
        for _ in range(choices.choice((1, 8, 64))):
            at = choices.choice((choices.randrange(100), choices.randrange(len(torn))))
            torn[at] ^= 1 << choices.randrange(8)
        path.write_bytes(torn)
        _read_all(path)
        store = Store(path.parent.parent, nodes.machine())
        assert dict(store.held.grants) in ({}, truth), "a grant that was never given"
        store.close()
        aside += not store.held.grants
    assert 0 < aside < ROUNDS


def test_a_torn_log_gives_an_earlier_state(tmp_path: Path) -> None:
    store, engine = stores.started(tmp_path)
    states = []
    for event in islice(stores.life(engine, seed=1), 40):
        stores.commit(store, engine, event)
        states.append(stores.grants(engine))
    log = store.path.with_name("state.db-wal").read_bytes()
    copy = tmp_path / "copy" / "store"
    copy.mkdir(parents=True, mode=0o700)
    for cut in range(len(log) // 2, len(log), len(log) // 16):
        (copy / "state.db").write_bytes(store.path.read_bytes())
        (copy / "state.db-wal").write_bytes(log[:cut])
        again = Store(tmp_path / "copy", nodes.machine())
        assert dict(again.held.grants) in states
        again.close()
    store.close()


def test_a_journal_is_read_from_stores_only(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("{}")
    with pytest.raises(DamagedStoreError, match="other"), open_journal(tmp_path / "other"):
        pass
    with pytest.raises(StoreError, match="absent"), open_journal(tmp_path / "absent"):
        pass
    assert not (tmp_path / "absent").exists()


def _read_all(path: Path) -> None:
    """Read whatever can be; nothing but StoreError may come of it."""
    try:
        with open_journal(path) as journal:
            journal.latest("default/pod1/c0")
            for _ in journal.records():
                pass
    except StoreError:
        pass
