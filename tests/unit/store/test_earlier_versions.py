"""Stores of earlier versions: all grants in one table, tables of criteria without names."""

from __future__ import annotations

import re
import sqlite3
import struct
from array import array
from base64 import b64decode
from itertools import islice
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from nri_policy.engine.event import Created
from nri_policy.engine.explanation import DecisionKind, Explanation
from nri_policy.engine.grant import Decision, Placement
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.pools.supply import Column, Table
from nri_policy.report import explanation_report
from nri_policy.store.compaction import compact
from nri_policy.store.database import checksum
from nri_policy.store.forms import decode_decision, encode_decision
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
_NAMES = (
    b"ISOLATED_FIT,AFFINITY,HINTS,HINTS_NONZERO,HINT_DEPTH,MEMORY_KIND,MEMORY_BURST,BURST_LEVEL,"
    b"BURST_ROOM,MEMORY_TIGHTNESS,CPU_CLASS,UNDISTURBED_MEMORY,DEPTH,PACKAGES,NODES,L3S,QUIET,"
    b"CAPACITY,CAPACITY_SECOND,ID,SHORTFALL,EXCLUDED"
)
# The same one, as it was stored when all its cells took eight bytes.
THIRD_VERSION = struct.pack("=QQ", (1 << 20) + 3, len(_NAMES)) + _NAMES + SECOND_VERSION[8:]
POOLS = 7
ADDED = b',"full_cores":"off"'
# What a stored grant had when a request was not yet two: of what steers, only that nothing does.
# And what was not left out where it was the usual.
NOT_STEERED = (
    b',"pod_memory":0,"isolated":0,"priority":"none","hints":[],"full_cores":"off","because":""'
)


def flatten(form: bytes) -> bytes:
    """Return a stored *form* as it was when a request had what steers beside what it asks for."""
    without = re.sub(rb'("request":\{[^{}]*"cold_start":null)\}', rb"\1" + NOT_STEERED + b"}", form)
    return re.sub(rb',"steering":\{([^{}]*)\}', rb",\1", without)


VERSION_1 = (
    "CREATE TABLE journal (seq INTEGER PRIMARY KEY, sum INTEGER NOT NULL,"
    " time REAL NOT NULL, size INTEGER NOT NULL, link INTEGER NOT NULL,"
    " layout INTEGER NOT NULL, name TEXT, kind TEXT NOT NULL, event TEXT NOT NULL,"
    " decision TEXT NOT NULL, scores BLOB)"
)

COLUMNS = "seq, sum, time, size, link, layout, name, kind, event, decision, scores"


def make_version_1(path: Path) -> None:
    """Make a store one of the first version, whose grants were all in their table."""
    compact(path)
    connection = sqlite3.connect(path)
    for statement in (
        "ALTER TABLE journal RENAME TO later",
        VERSION_1,
        f"INSERT INTO journal SELECT {COLUMNS} FROM later",
        "DROP TABLE later",
        "DROP TABLE snapshot",
        "PRAGMA user_version = 1",
    ):
        connection.execute(statement)
    connection.commit()
    connection.close()


def said(path: Path) -> list[tuple[object, ...]]:
    """Return what the records say, without what is made anew for each reader."""
    return [
        (each.seq, each.time, each.link, each.event, each.decision.grant, each.refusal)
        for each in stores.records(path)
    ]


def test_a_store_of_version_1_goes_on_with_its_grants_and_its_journal(tmp_path: Path) -> None:
    store, engine = stores.started(tmp_path)
    for event in islice(stores.life(engine, seed=4), 30):
        stores.commit(store, engine, event)
    store.close()
    before = said(store.path)
    make_version_1(store.path)
    assert stores.on_disk(store.path) == stores.grants(engine) != {}, "without changing it"
    assert said(store.path) == before
    running = [
        nodes.running(placed.container, *engine.state.sent[each], engine.state.quotas.get(each))
        for each, placed in engine.state.placed.items()
    ]
    again, later = stores.started(tmp_path, settings=engine.layout.settings, running=running)
    assert stores.grants(later) == stores.grants(engine)
    assert not (tmp_path / "store.aside-1").exists()
    for event in islice(stores.life(later, seed=5), 10):
        stores.commit(again, later, event)
    compact(again.path)
    assert stores.on_disk(again.path) == stores.grants(later)
    assert said(again.path)[: len(before)] == before
    connection = sqlite3.connect(again.path)
    (size,) = connection.execute("SELECT sum(size) FROM journal").fetchone()
    assert connection.execute("SELECT bytes FROM snapshot").fetchone() == (size,)
    connection.close()


def age(path: Path, added: bytes, packed: bytes) -> int:
    """Make a store's rows those of an earlier version; return how many it has changed.

    The version that had requests in one, without what was *added* to them, its table *packed* so.
    """
    connection = sqlite3.connect(path)
    connection.text_factory = bytes
    changed = 0
    for container, form in connection.execute("SELECT container, form FROM grants").fetchall():
        old = flatten(form).replace(added, b"")
        changed += old != form
        connection.execute(
            "UPDATE grants SET form = ?, sum = ? WHERE container = ?",
            (old.decode(), checksum(container, old), container.decode()),
        )
    query = "SELECT seq, time, link, layout, kind, event, decision, scores FROM journal"
    for seq, *cells, decision, scores in connection.execute(query).fetchall():
        old, table = flatten(decision).replace(added, b""), scores and packed
        changed += table != scores
        connection.execute(
            "UPDATE journal SET decision = ?, scores = ?, sum = ? WHERE seq = ?",
            (old.decode(), table, checksum(*cells, old, table), seq),
        )
    connection.commit()
    connection.close()
    return changed


@pytest.mark.parametrize(
    ("added", "packed"),
    [(ADDED, FIRST_VERSION), (b"\0", SECOND_VERSION), (b"\0", THIRD_VERSION)],
)
def test_a_store_of_an_earlier_version_keeps_every_grant_and_explanation(
    tmp_path: Path, added: bytes, packed: bytes
) -> None:
    store, engine = stores.started(tmp_path)
    container = nodes.container(2000)
    stores.commit(store, engine, Created(container=container))
    store.close()
    make_version_1(store.path)
    assert age(store.path, added, packed) == 2, "the grant of the first, and the table"
    again = Store(tmp_path, nodes.machine())
    again.close()
    assert dict(again.held.grants) == stores.grants(engine) != {}
    with open_journal(store.path) as journal:
        record = journal.latest(container.full_name)
    assert record is not None
    assert record.decision.explanation is not None
    shown = explanation_report(record.decision.explanation, record.decision.grant)
    assert (shown.decided_by, shown.pool) == ("id", "NUMA node #1")
    request = record.decision.explanation.request
    assert request == engine.state.placed[container.id].request


def test_an_outcome_that_has_another_name_now_is_read() -> None:
    layout = nodes.engine().layout
    kept = Explanation(
        container="shop/web/main",
        kind=DecisionKind.KEPT,
        request=None,
        tree=layout.tree,
        pool=None,
        scores=None,
    )
    form = encode_decision(Decision(), None, kept)
    earlier = form.replace(b"kept its place", b"kept what it ran on")
    assert earlier != form
    for text in (form, earlier):
        decision, *_ = decode_decision(text, None, layout)
        assert decision.explanation == kept
    with pytest.raises(ValueError, match="unknown"):
        decode_decision(form.replace(b"kept its place", b"unknown"), None, layout)


def test_changes_that_were_stored_one_by_one_are_read() -> None:
    """As they were before those who are told the same were stored together."""
    alike = Placement(cpus=CPUSet([1, 2]), mems=CPUSet([0]), shares=None, cause="x was placed")
    changes = dict.fromkeys(("a", "b"), alike) | {"c": replace(alike, cpus=CPUSet([3]))}
    decided = Decision(container_id="x", placement=alike, changes=changes)
    layout = nodes.engine().layout
    form = encode_decision(decided, None, None)
    assert form.count(b"x was placed") == 3, "once for the first two"
    rows = msgspec.json.decode(form)
    together = rows["changes"][0]
    assert together.pop("others") == ["b"]
    twice = {**together, "cpus": "5", "quota": 7}  # one could be told of twice in one decision
    rows["changes"][:1] = [twice, together, {**together, "container_id": "b"}]
    earlier, *_ = decode_decision(msgspec.json.encode(rows), None, layout)
    expected = {**changes, "a": replace(alike, quota=7)}
    assert earlier == replace(decided, changes=expected)
    assert [*earlier.changes] == ["a", "b", "c"]


def test_columns_that_the_first_version_did_not_have_are_zero() -> None:
    table = Table.unpack(FIRST_VERSION, POOLS)
    row = dict(zip(Column, table.row(0), strict=True))
    assert (row[Column.DEPTH], row[Column.CAPACITY], row[Column.MEMORY_TIGHTNESS]) == (2, 1, -1)
    assert not any(row[column] for column in (Column.PACKAGES, Column.L3S, Column.QUIET))
    assert table.best() == 1


def test_all_earlier_versions_of_a_table_are_the_same_one() -> None:
    tables = [Table.unpack(each, POOLS) for each in (FIRST_VERSION, SECOND_VERSION, THIRD_VERSION)]
    first, *later = [[each.row(pool) for pool in range(POOLS)] for each in tables]
    assert later == [first, first]


def test_whole_numbers_of_a_table_take_no_more_bytes_than_they_need() -> None:
    table = Table.unpack(THIRD_VERSION, POOLS)
    small = len(table.pack())
    assert small < len(THIRD_VERSION) / 2
    values = [0.0, -128.0, 127.0, 1.0, 2.0, 3.0, 4.0]
    for value, width in ((0.0, 1), (-129.0, 2), (40_000.0, 4), (-3e9, 8), (0.5, 8), (-0.0, 8)):
        table.fill(Column.CAPACITY, array("d", [*values[:-1], value]))
        assert len(table.pack()) - small == (width - 1) * POOLS
        again = Table.unpack(table.pack(), POOLS)
        assert str(again.row(POOLS - 1)) == str(table.row(POOLS - 1)), "-0 is not 0"


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
