from __future__ import annotations

from array import array
from typing import Any

import pytest

from nri_policy.pools.supply import Column, Table


def test_a_column_is_filled_for_all_pools() -> None:
    table = Table(3)
    table.fill(Column.HINTS, array("d", [1, 0.5, -2]))
    assert [table.row(pool)[Column.HINTS] for pool in range(3)] == [1, 0.5, -2]
    assert table.best() == 0


@pytest.mark.parametrize(
    ("values", "why"),
    [
        (array("d", [1, 2]), "2 values for 3 pools"),
        (array("q", [1, 2, 3]), "no doubles"),
        (array("f", [1, 2, 3]), "no doubles"),
        (b"123", "no doubles"),
    ],
)
def test_a_column_is_not_filled_with_anything_else(values: Any, why: str) -> None:
    table = Table(3)
    with pytest.raises(ValueError, match=why):
        table.fill(Column.HINTS, values)
    assert table.row(0)[Column.HINTS] == 0


def test_there_are_no_columns_but_those_of_the_table() -> None:
    with pytest.raises(IndexError, match="no column"):
        Table(3).fill(99, array("d", [1, 2, 3]))  # type: ignore[arg-type]


POOLS = 7


def filled() -> Table:
    table = Table(POOLS)
    table.fill(Column.DEPTH, array("d", [2, 2, 1, 1, 0, 0, 0]))
    table.fill(Column.MEMORY_TIGHTNESS, array("d", [-1, -1, -2, -1, -1, -2, -4]))
    table.fill(Column.HINTS, array("d", [0.5, 0.25, 0, 1, -2, 0, 0]))
    table.exclude(3)
    return table


def test_a_table_is_read_back_as_it_was_packed() -> None:
    table = filled()
    packed = table.pack()
    again = Table.unpack(packed, POOLS)
    assert [again.row(pool) for pool in range(POOLS)] == [table.row(pool) for pool in range(POOLS)]
    assert [again.fits(pool) for pool in range(POOLS)] == [pool != 3 for pool in range(POOLS)]
    names = packed.index(b",DEPTH,")
    for wrong in (packed[:-8], packed + bytes(8), b"", bytes(8), packed[:8], packed[:names]):
        with pytest.raises(ValueError, match="not a table of criteria"):
            Table.unpack(wrong, POOLS)


def test_whole_numbers_of_a_table_take_no_more_bytes_than_they_need() -> None:
    table = filled()
    values = [0.0, -128.0, 127.0, 1.0, 2.0, 3.0, 4.0]
    table.fill(Column.CAPACITY, array("d", values))
    small = len(table.pack())
    for value, width in ((0.0, 1), (-129.0, 2), (40_000.0, 4), (-3e9, 8), (0.5, 8), (-0.0, 8)):
        table.fill(Column.CAPACITY, array("d", [*values[:-1], value]))
        assert len(table.pack()) - small == (width - 1) * POOLS
        again = Table.unpack(table.pack(), POOLS)
        assert str(again.row(POOLS - 1)) == str(table.row(POOLS - 1)), "-0 is not 0"


def test_a_packed_table_names_its_columns_so_that_columns_may_come_and_go() -> None:
    table = filled()
    packed = table.pack()
    assert b",".join(column.name.encode() for column in Column) in packed
    renamed = packed.replace(b",DEPTH,", b",WIDTH,")  # of a version with WIDTH instead of DEPTH
    again = Table.unpack(renamed, POOLS)
    for pool in range(POOLS):
        expected = [*table.row(pool)]
        expected[Column.DEPTH] = 0
        assert [*again.row(pool)] == expected
