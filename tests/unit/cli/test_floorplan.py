"""The floor plan: what is drawn where."""

from __future__ import annotations

from nri_policy.cli.floorplan import FloorPlan, Look
from nri_policy.cpuset import CPUSet
from nri_policy.pools.tree import build
from tests import nodes

EVEN = Look("e", "black on red", "red")
ODD = Look("o", "black on blue", "blue")


def plan(spec: str, available: str | None = None) -> FloorPlan:
    machine = nodes.machine(spec)
    cpus = machine.online if available is None else CPUSet.parse(available)
    return FloorPlan(
        machine=machine,
        tree=build(machine, cpus),
        looks={cpu: ODD if cpu % 2 else EVEN for cpu in machine.online | machine.offline},
        writing=lambda pool: (pool.name, ""),
    )


def test_without_colour_a_column_is_a_core_and_a_line_a_thread() -> None:
    assert plan("core:3 pu:2").drawn(80, colour=False).plain.splitlines() == [
        "╭ socket #0 ╮",
        "│ eee       │",
        "│ ooo       │",
        "╰───────────╯",
    ]


def test_in_colour_threads_that_differ_share_a_cell_of_two_colours() -> None:
    drawn = plan("core:3 pu:2").drawn(80, colour=True)
    assert drawn.plain.splitlines()[1] == "│ ▀▀▀       │"
    assert [span.style for span in drawn.spans].count("red on blue") == 3


def test_in_colour_threads_that_are_alike_share_a_letter() -> None:
    drawn = plan("core:2 pu:2 siblings=apart").drawn(80, colour=True)
    assert drawn.plain.splitlines()[1] == "│ eo        │"


def test_in_colour_four_threads_take_two_lines() -> None:
    assert plan("core:2 pu:4").drawn(80, colour=True).plain.count("▀") == 4


def test_a_thread_that_is_not_available_leaves_its_place_blank() -> None:
    assert plan("core:2 pu:2", "1-3").drawn(80, colour=False).plain.splitlines() == [
        "╭ socket #0 ────╮ ╭ in no pool: 0 ╮",
        "│  e            │ │ e             │",
        "│ oo            │ │               │",
        "╰───────────────╯ ╰───────────────╯",
    ]


def test_l3_domains_stand_apart_and_are_spread_evenly_over_the_lines() -> None:
    lines = plan("package:1 l3:4 core:5").drawn(20, colour=False).plain.splitlines()
    assert lines[1:-1] == ["│ eoeoe oeoeo │", "│ eoeoe oeoeo │"]


def test_boxes_stand_side_by_side_where_they_fit() -> None:
    wide = plan("package:2 core:2").drawn(40, colour=False).plain.splitlines()
    assert wide[1] == "│ eo        │ │ eo        │"
    narrow = plan("package:2 core:2").drawn(20, colour=False).plain.splitlines()
    assert narrow[1] == "│ eo        │"


def test_writing_that_is_too_long_is_cut() -> None:
    (top, *_) = plan("package:1 core:2").drawn(10, colour=False).plain.splitlines()
    assert top == "╭ socke… ╮"
