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
