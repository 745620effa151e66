"""A store that was written before tables of criteria had a version and containers `full_cores`."""

from __future__ import annotations

import sqlite3
from base64 import b64decode
from pathlib import Path

import pytest

from nri_policy.engine.event import Created
from nri_policy.pools.supply import Column, Table
from nri_policy.report import explanation_report
from nri_policy.store.database import checksum
from nri_policy.store.journal import open_journal
from nri_policy.store.store import Store
from tests.support import nodes, stores

# The table of the first container on nodes.SMALL, which asks for 2 CPUs.
FIRST_VERSION = b64decode(
    b"AQAAAAAAAAAAAAAAAADwPwEAAAAAAAAAAAAAAAAAAAABAAAAAAAAAAAAAAAAAAAAAQAAAAAAAAAAAAAAAAAAAAEA"
    b"AAAAAAAAAAAAAAAAAAABAAAAAAAAAAAAAAAAAPA/AQAAAAAAAAAAAAAAAAAAAAEAAAAAAAAAAAAAAAAAAAABAAAA"
    b"AAAAAAAAAAAAAAAABwAAAAAAAAAAAAAAAADwvwAAAAAAAPC/AAAAAAAAAMAAAAAAAADwvwAAAAAAAPC/AAAAAAAA"
    b"AMAAAAAAAAAQwAEAAAAAAAAAAAAAAAAAAAAHAAAAAAAAAAAAAAAAAABAAAAAAAAAAEAAAAAAAADwPwAAAAAAAABA"
    b"AAAAAAAAAEAAAAAAAADwPwAAAAAAAAAABwAAAAAAAAAAAAAAAADwPwAAAAAAAABAAAAAAAAAFEAAAAAAAAAAQAAA"
    b"AAAAAABAAAAAAAAAGEAAAAAAAAAqQAEAAAAAAAAAAAAAAAAAAAAHAAAAAAAAAAAAAAAAAAAAAAAAAAAA8L8AAAAA"
    b"AAAAwAAAAAAAAAjAAAAAAAAAEMAAAAAAAAAUwAAAAAAAABjAAQAAAAAAAAAAAAAAAAAAAAEAAAAAAAAAAAAAAAAA"
    b"AAA="
)
POOLS = 7
ADDED = b',"full_cores":"off"'


def age(path: Path) -> int:
    """Make a store's rows those of the first version; return how many it has changed."""
    connection = sqlite3.connect(path)
    connection.text_factory = bytes
    changed = 0
    for container, form in connection.execute("SELECT container, form FROM grants").fetchall():
        old = form.replace(ADDED, b"")
        changed += old != form
        connection.execute(
            "UPDATE grants SET form = ?, sum = ? WHERE container = ?",
            (old.decode(), checksum(container, old), container.decode()),
        )
    query = "SELECT seq, time, link, layout, kind, event, decision, scores FROM journal"
    for seq, *cells, decision, scores in connection.execute(query).fetchall():
        old, table = decision.replace(ADDED, b""), scores and FIRST_VERSION
        changed += table != scores
        connection.execute(
            "UPDATE journal SET decision = ?, scores = ?, sum = ? WHERE seq = ?",
            (old.decode(), table, checksum(*cells, old, table), seq),
        )
    connection.commit()
    connection.close()
    return changed


def test_a_store_of_the_first_version_keeps_every_grant_and_explanation(tmp_path: Path) -> None:
    store, engine = stores.started(tmp_path)
    container = nodes.container(2000)
    stores.commit(store, engine, Created(container=container))
    store.close()
    assert age(store.path) == 2, "the grant and the table"
    again = Store(tmp_path, nodes.machine())
    again.close()
    assert dict(again.held.grants) == stores.grants(engine) != {}
    with open_journal(store.path) as journal:
        record = journal.latest(container.full_name)
    assert record is not None
    assert record.decision.explanation is not None
    shown = explanation_report(record.decision.explanation)
    assert (shown.decided_by, shown.pool) == ("id", "NUMA node #1")


def test_columns_that_the_first_version_did_not_have_are_zero() -> None:
    table = Table.unpack(FIRST_VERSION, POOLS)
    row = dict(zip(Column, table.row(0), strict=True))
    assert (row[Column.DEPTH], row[Column.CAPACITY], row[Column.MEMORY_TIGHTNESS]) == (2, 1, -1)
    assert not any(row[column] for column in (Column.PACKAGES, Column.L3S, Column.QUIET))
    assert table.best() == 1


def test_a_table_is_read_back_as_it_was_packed() -> None:
    table = Table.unpack(FIRST_VERSION, POOLS)
    table.exclude(3)
    packed = table.pack()
    again = Table.unpack(packed, POOLS)
    assert [again.row(pool) for pool in range(POOLS)] == [table.row(pool) for pool in range(POOLS)]
    assert not again.fits(3)
    for wrong in (packed[:-8], packed + bytes(8), FIRST_VERSION[8:], b"", bytes(8), packed[:8]):
        with pytest.raises(ValueError, match="not a table of criteria"):
            Table.unpack(wrong, POOLS)
