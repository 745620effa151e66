"""The layout: what stands where, in a terminal's unit."""

from __future__ import annotations

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.picture.scene import scene
from nri_policy.picture.terminal import Drawing
from nri_policy.pools.capacity import Capacity
from nri_policy.pools.tree import build
from nri_policy.report import machine_report, pool_reports
from tests.support import nodes
from tests.support.pictures import holding, printed


def plan(spec: str, width: int, available: str | None = None, *, colour: bool = False) -> list[str]:
    """Return the lines of boxes of a machine where every odd CPU is somebody's own."""
    machine = nodes.machine(spec)
    cpus = machine.online if available is None else CPUSet.parse(available)
    capacity = Capacity(reserved=CPUSet(), isolated=CPUSet(), sharable=cpus)
    pools = pool_reports(build(machine, cpus), capacity)
    odd = CPUSet(cpu for cpu in cpus if cpu % 2)
    held = {"odd": holding(exclusive=str(odd), cpus=str(odd))} if odd else {}
    drawing = Drawing(scene(machine_report(machine), pools, held))
    text = printed(drawing, width=width, colour="256" if colour else None)
    return [line for line in text.splitlines() if line.strip("\x1b[2m")[:1] in {*"╭│╰┌└"}]


def test_without_colour_a_column_is_a_core_and_a_line_a_thread() -> None:
    assert plan("core:3 pu:2", 80) == [
        "╭ socket #0: 0-5 ───────╮",
        "│ ···                   │",
        "│ AAA                   │",
        "╰ mem 0 · shared 0 of 3 ╯",
    ]


def test_in_colour_threads_that_differ_share_a_cell_of_two_colours() -> None:
    (line,) = [line for line in plan("core:3 pu:2", 80, colour=True) if "▀" in line]
    assert line.count("▀") == 3
    assert "38;5;238;48;5;" in line


def test_in_colour_threads_that_are_alike_share_a_letter() -> None:
    lines = "".join(plan("core:2 pu:2 siblings=apart", 80, colour=True))
    assert "▀" not in lines
    assert lines.count("A") == 1


def test_in_colour_four_threads_take_two_lines() -> None:
    assert "".join(plan("core:2 pu:4", 80, colour=True)).count("▀") == 4


def test_a_thread_that_is_not_available_leaves_its_place_blank() -> None:
    assert plan("core:2 pu:2", 80, "1-3") == [
        "╭ socket #0: 1-3 ───────╮ ╭ in no pool: 0 ────────╮",
        "│  ·                    │ │ -                     │",
        "│ AA                    │ │                       │",
        "╰ mem 0 · shared 0 of 1 ╯ ╰───────────────────────╯",
    ]


def test_l3_domains_stand_apart_and_are_spread_evenly_over_the_lines() -> None:
    lines = plan("package:1 l3:4 core:5", 20)
    assert lines[1:-1] == ["│ ·A·A· A·A·A      │", "│ ·A·A· A·A·A      │"]


def test_boxes_stand_side_by_side_where_they_fit() -> None:
    assert plan("package:2 core:2", 52)[1] == "│ ·A                    │ │ ·A                    │"
    assert plan("package:2 core:2", 30)[1] == "│ ·A                    │"


def test_writing_that_is_too_long_is_cut() -> None:
    top, *_, bottom = plan("package:1 core:2", 14)
    assert (top, bottom) == ("╭ socket #0… ╮", "╰ mem 0 · s… ╯")
