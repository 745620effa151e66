"""Tables that fit: what is left out of a narrow terminal, and what is folded."""

from __future__ import annotations

import pytest
from rich.text import Text

from nri_policy.cli.terminal.breakable_text import cpu_list, path
from nri_policy.cli.terminal.fitting import Columns
from nri_policy.foundation.cpuset import CPUSet
from tests.support.pictures import printed


def table() -> Columns:
    made = Columns(
        "container", "class", "cpuset", "pool", right=("class",), dispensable=("class", "pool")
    )
    cpus = cpu_list(CPUSet.parse("0-15,64-79,128-143"))
    made.add_row(path("shop/web-server/main"), Text("Burstable"), cpus, path("NUMA node #1"))
    return made


@pytest.mark.parametrize(
    ("width", "lines"),
    [
        (
            70,
            [
                "container                 class  cpuset              pool",
                "shop/web-server/main  Burstable  0-15,64-79,128-143  NUMA node #1",
            ],
        ),
        (
            50,
            [
                "container             class  cpuset   pool",
                "shop/web-server/  Burstable  0-15,    NUMA node #1",
                "main                         64-79,",
                "                             128-143",
            ],
        ),
        (
            40,
            [
                "container          cpuset   pool",
                "shop/web-server/   0-15,    NUMA node #1",
                "main               64-79,",
                "                   128-143",
                "left out in this width: class",
            ],
        ),
        (
            24,
            [
                "container        cpuset",
                "shop/            0-15,",
                "web-server/main  64-79,",
                "                 128-143",
                "left out in this width:",
                "class, pool",
            ],
        ),
        (
            14,
            [
                "contai",
                "ner     cpuset",
                "shop/   0-15,",
                "web-se  64-79,",
                "rver/   128-14",
                "main    3",
                "left out in",
                "this width:",
                "class, pool",
            ],
        ),
    ],
)
def test_the_least_important_columns_go_first_and_nothing_is_cut(
    width: int, lines: list[str]
) -> None:
    assert printed(table(), width=width).splitlines() == lines


def test_a_name_that_must_stay_whole_is_not_folded() -> None:
    made = Columns("pool", "CPUs", whole=("pool",), dispensable=("CPUs",))
    made.add_row(Text("├─ socket #0"), Text("0-7,16-23"))
    assert printed(made, width=16).splitlines()[:2] == ["pool", "├─ socket #0"]


def test_headings_are_no_markup() -> None:
    made = Columns("[bold]a[/]")
    made.add_row("x")
    assert printed(made).splitlines()[0] == "[bold]a[/]"


def test_a_row_may_have_fewer_cells_than_there_are_columns() -> None:
    made = Columns("a", "b")
    made.add_row("1", "2")
    made.add_row("and 3 more")
    assert printed(made).splitlines() == ["a           b", "1           2", "and 3 more"]
