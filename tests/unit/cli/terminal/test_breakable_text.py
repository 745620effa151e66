"""Where a text in a table may break."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console
from rich.table import Table

from nri_policy.cli.terminal.breakable_text import cpu_list, path
from nri_policy.foundation.cpuset import CPUSet


def in_a_column(content: object, width: int) -> list[str]:
    """Return the lines that a table of this width makes of it."""
    table = Table.grid()
    table.add_row(content)  # type: ignore[arg-type]  # a renderable
    out = StringIO()
    Console(file=out, width=width).print(table)
    return [line.rstrip() for line in out.getvalue().splitlines()]


@pytest.mark.parametrize(
    ("width", "lines"),
    [(20, ["0-15,64-79,128"]), (11, ["0-15,64-79,", "128"]), (6, ["0-15,", "64-79,", "128"])],
)
def test_a_list_of_cpus_breaks_after_commas_only(width: int, lines: list[str]) -> None:
    assert in_a_column(cpu_list(CPUSet.parse("0-15,64-79,128")), width) == lines


def test_an_empty_list_is_a_dash() -> None:
    assert in_a_column(cpu_list(CPUSet()), 10) == ["-"]


def test_a_name_breaks_after_slashes_but_not_at_blanks() -> None:
    assert in_a_column(path("NUMA node #0/L3 cache #1"), 15) == ["NUMA node #0/", "L3 cache #1"]


def test_a_piece_that_does_not_fit_is_folded() -> None:
    assert in_a_column(path("kube-system/x"), 6) == ["kube-s", "ystem/", "x"]
