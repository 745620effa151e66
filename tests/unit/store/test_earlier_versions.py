"""Stores that were written before tables of criteria named their columns."""

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
# The same one, as it was stored when tables had a version and named no columns.
SECOND_VERSION = b64decode(
    b"AgAQAAAAAAABAAAAAAAAAAAAAAAAAPA/AQAAAAAAAAAAAAAAAAAAAAEAAAAAAAAAAAAAAAAAAAABAAAAAAAAAAAAAAAA"
    b"AAAAAQAAAAAAAAAAAAAAAAAAAAEAAAAAAAAAAAAAAAAA8D8BAAAAAAAAAAAAAAAAAAAAAQAAAAAAAAAAAAAAAAAAAAEA"
    b"AAAAAAAAAAAAAAAAAAAHAAAAAAAAAAAAAAAAAPC/AAAAAAAA8L8AAAAAAAAAwAAAAAAAAPC/AAAAAAAA8L8AAAAAAAAA"
    b"wAAAAAAAABDAAQAAAAAAAAAAAAAAAAAAAAEAAAAAAAAAAAAAAAAAAAAHAAAAAAAAAAAAAAAAAABAAAAAAAAAAEAAAAAA"
    b"AADwPwAAAAAAAABAAAAAAAAAAEAAAAAAAADwPwAAAAAAAAAAAQAAAAAAAAAAAAAAAAAAAAEAAAAAAAAAAAAAAAAAAAAB"
    b"AAAAAAAAAAAAAAAAAAAAAQAAAAAAAAAAAAAAAAAAAAcAAAAAAAAAAAAAAAAA8D8AAAAAAAAAQAAAAAAAABRAAAAAAAAA"
    b"AEAAAAAAAAAAQAAAAAAAABhAAAAAAAAAKkABAAAAAAAAAAAAAAAAAAAABwAAAAAAAAAAAAAAAAAAAAAAAAAAAPC/AAAA"
    b"AAAAAMAAAAAAAAAIwAAAAAAAABDAAAAAAAAAFMAAAAAAAAAYwAEAAAAAAAAAAAAAAAAAAAABAAAAAAAAAAAAAAAAAAAA"
)
POOLS = 7
ADDED = b',"full_cores":"off"'


def age(path: Path, added: bytes, packed: bytes) -> int:
    """Make a store's rows those of an earlier version; return how many it has changed.

    The version without what was *added* to containers, and with its table *packed* so.
    """
    connection = sqlite3.connect(path)
    connection.text_factory = bytes
    changed = 0
    for container, form in connection.execute("SELECT container, form FROM grants").fetchall():
        old = form.replace(added, b"")
        changed += old != form
        connection.execute(
            "UPDATE grants SET form = ?, sum = ? WHERE container = ?",
            (old.decode(), checksum(container, old), container.decode()),
        )
    query = "SELECT seq, time, link, layout, kind, event, decision, scores FROM journal"
    for seq, *cells, decision, scores in connection.execute(query).fetchall():
        old, table = decision.replace(added, b""), scores and packed
        changed += table != scores
        connection.execute(
            "UPDATE journal SET decision = ?, scores = ?, sum = ? WHERE seq = ?",
            (old.decode(), table, checksum(*cells, old, table), seq),
        )
    connection.commit()
    connection.close()
    return changed


@pytest.mark.parametrize(
    ("added", "packed", "changed"), [(ADDED, FIRST_VERSION, 2), (b"\0", SECOND_VERSION, 1)]
)
def test_a_store_of_an_earlier_version_keeps_every_grant_and_explanation(
    tmp_path: Path, added: bytes, packed: bytes, changed: int
) -> None:
    store, engine = stores.started(tmp_path)
    container = nodes.container(2000)
    stores.commit(store, engine, Created(container=container))
    store.close()
    assert age(store.path, added, packed) == changed, "the grant of the first, and the table"
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


def test_both_earlier_versions_of_a_table_are_the_same_one() -> None:
    first, second = Table.unpack(FIRST_VERSION, POOLS), Table.unpack(SECOND_VERSION, POOLS)
    assert [first.row(pool) for pool in range(POOLS)] == [second.row(pool) for pool in range(POOLS)]


def test_a_stored_table_names_its_columns_so_that_others_may_come_and_go() -> None:
    table = Table.unpack(FIRST_VERSION, POOLS)
    packed = table.pack()
    names = b",".join(column.name.encode() for column in Column)
    assert names in packed
    renamed = packed.replace(b",DEPTH,", b",WIDTH,")  # a store of a version that had WIDTH instead
    again = Table.unpack(renamed, POOLS)
    for pool in range(POOLS):
        expected = [*table.row(pool)]
        assert expected[Column.DEPTH] in {0, 1, 2}
        expected[Column.DEPTH] = 0
        assert [*again.row(pool)] == expected


def test_a_table_is_read_back_as_it_was_packed() -> None:
    table = Table.unpack(FIRST_VERSION, POOLS)
    table.exclude(3)
    packed = table.pack()
    again = Table.unpack(packed, POOLS)
    assert [again.row(pool) for pool in range(POOLS)] == [table.row(pool) for pool in range(POOLS)]
    assert not again.fits(3)
    for wrong in (
        packed[:-8],
        packed + bytes(8),
        FIRST_VERSION[8:],
        b"",
        bytes(8),
        packed[:8],
        packed[:40],
    ):
        with pytest.raises(ValueError, match="not a table of criteria"):
            Table.unpack(wrong, POOLS)
