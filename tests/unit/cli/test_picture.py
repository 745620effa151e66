"""Picture: who runs where, with and without colour, and what changed from one to the next."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from nri_policy.cli.picture import Occupant, Picture, picture, picture_of
from nri_policy.cpuset import CPUSet
from nri_policy.engine.engine import Engine
from nri_policy.engine.event import Created, Stopped
from nri_policy.pools.tree import PoolTree
from nri_policy.workload.pod import Container, Pod, QoS
from nri_policy.workload.request import Sort
from tests import nodes

SPEC = "package:2 numa:2 l3:2 core:2 pu:2 isolated=6 offline=31"


GOLDEN = """\
2 packages · 4 NUMA nodes · 16 cores · 31 CPUs · 16 GiB dram
root: 0-23,26-30 · mem 0-3 · shared 800m of 19
┌ socket #0: 0-15 ──────────────────────────────────────────┐
│ ╭ NUMA node #0: 0-7 ───────╮ ╭ NUMA node #1: 8-15 ──────╮ │
│ │ rC Ci                    │ │ A· Bs                    │ │
│ │ CC C·                    │ │ A· ss                    │ │
│ ╰ mem 0 · shared 0 of 1 ───╯ ╰ mem 1 · shared 500m of 5 ╯ │
└ mem 0-1 · shared 500m of 6 ───────────────────────────────┘
┌ socket #1: 16-23,26-30 ───────────────────────────────────┐
│ ╭ NUMA node #2: 16-23 ─────╮ ╭ NUMA node #3: 26-30 ─────╮ │
│ │ ss ss                    │ │ · ··                     │ │
│ │ ss ss                    │ │ · ·                      │ │
│ ╰ mem 2 · shared 300m of 8 ╯ ╰ mem 3 · shared 0 of 5 ───╯ │
└ mem 2-3 · shared 300m of 13 ──────────────────────────────┘
╭ in no pool: 24-25,31 ─────────────────────────────────────╮
│ --x                                                       │
╰───────────────────────────────────────────────────────────╯
A… a container's own   s shared, in use   · shared, idle                     r reserved   i isolated
x offline              - not available    a column a core, a line a thread

   container             class       own + shared   cpuset  mems  pool                      changed
A  db/main               Guaranteed  2              8-9     1     NUMA node #1/L3 cache #0
B  cache/main            Guaranteed  1 + 500m       12-15   1     NUMA node #1/L3 cache #1
   shop/web/main         Burstable   300m           16-19   2     NUMA node #2/L3 cache #0
   kube-system/dns/main  Burstable   100m reserved  0       0-3   root
   batch/main            BestEffort  0              20-23   2     NUMA node #2/L3 cache #1
C  ml/main               Guaranteed  5              1-5     0     NUMA node #0              new"""


def shown(picture: Picture, *, colour: str | None = None, width: int = 100) -> str:
    """Return the picture as it is printed."""
    out = StringIO()
    console = Console(
        file=out,
        width=width,
        color_system=colour,  # type: ignore[arg-type]  # one of rich's names
        force_terminal=colour is not None,
        highlight=False,
        _environ={},
    )
    console.print(picture)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def container(name: str, request: int, limit: int | None, namespace: str, qos: QoS) -> Container:
    """Return a container of a pod with a name that does not change from run to run."""
    pod = Pod(id=name, uid=name, name=name, namespace=namespace, qos=qos, labels={}, annotations={})
    made = nodes.container(request, limit, qos=qos, pod=pod, name="main")
    return replace(made, id=name)


@pytest.fixture
def engine() -> Engine:
    """An engine with containers of all sorts."""
    engine = Engine(
        nodes.machine(SPEC),
        nodes.settings(
            availableResources={"cpu": "exclude-cpuset:24-25"},
            reservedResources={"cpu": "cpuset:0"},
        ),
    )
    for made in (
        container("db", 2000, None, "default", QoS.GUARANTEED),
        container("cache", 1500, None, "default", QoS.GUARANTEED),
        container("web", 300, 1000, "shop", QoS.BURSTABLE),
        container("dns", 100, None, "kube-system", QoS.BURSTABLE),
        container("batch", 0, None, "default", QoS.BEST_EFFORT),
    ):
        engine.handle(Created(container=made))
    return engine


def test_the_picture_is_legible_without_colour(engine: Engine) -> None:
    before = picture_of(engine.state)
    engine.handle(Created(container=container("ml", 5000, None, "default", QoS.GUARANTEED)))
    assert shown(picture_of(engine.state, before)) == GOLDEN


def test_in_colour_a_core_is_one_cell(engine: Engine) -> None:
    text = shown(picture_of(engine.state), colour="256")
    db, shared, reserved, idle = "38;5;232;48;5;39mA", "48;5;250ms", "38;5;60;48;5;238m▀", "·"
    for cell in (db, shared, reserved, idle):
        assert cell in text
    assert "▀ threads differ" in text


def test_without_colours_a_terminal_gets_no_half_cells(engine: Engine) -> None:
    assert "▀" not in shown(picture_of(engine.state))


def test_no_color_is_heeded_on_a_terminal(engine: Engine) -> None:
    out = StringIO()
    environment = {"NO_COLOR": "1", "TERM": "xterm-256color"}
    Console(file=out, width=100, force_terminal=True, _environ=environment).print(
        picture_of(engine.state)
    )
    assert "▀" not in out.getvalue()
    assert "a column a core, a line a thread" in out.getvalue()


def test_marks_stay_through_a_series_of_pictures(engine: Engine) -> None:
    first = picture_of(engine.state)
    assert first.marks == {"default/db/main": "A", "default/cache/main": "B"}
    engine.handle(Stopped(container_id="db"))
    engine.handle(Created(container=container("ml", 2000, None, "default", QoS.GUARANTEED)))
    second = picture_of(engine.state, first)
    assert second.marks["default/cache/main"] == "B"
    assert second.marks["default/ml/main"] == "C"
    engine.handle(Created(container=container("db", 2000, None, "default", QoS.GUARANTEED)))
    assert picture_of(engine.state, second).marks["default/db/main"] == "A"


def occupant(name: str, **fields: object) -> Occupant:
    """Return an occupant with one exclusive CPU, or as *fields* say."""
    given: dict[str, object] = {
        "qos": QoS.GUARANTEED,
        "sort": Sort.NORMAL,
        "pool": 0,
        "cpus": CPUSet([1]),
        "exclusive": CPUSet([1]),
        "shared": 0,
        "mems": CPUSet([0]),
    }
    return Occupant(name=name, **{**given, **fields})  # type: ignore[arg-type]  # any of them


def of(engine: Engine, occupants: list[Occupant], before: Picture | None = None) -> Picture:
    layout = engine.layout
    return picture(layout.machine, layout.tree, layout.capacity, occupants, before)


def test_a_mark_is_used_again_only_when_all_are(engine: Engine) -> None:
    full = of(engine, [occupant(f"c{number}") for number in range(36)])
    assert len(set(full.marks.values())) == 36
    later = of(engine, [occupant("c35"), occupant("new")], full)
    assert later.marks == {"c35": full.marks["c35"], "new": "A"}


def test_those_for_whom_no_mark_is_left_share_one(engine: Engine) -> None:
    crowd = of(engine, [occupant(f"c{number}") for number in range(40)])
    assert list(crowd.marks.values())[35:] == ["9", "#", "#", "#", "#"]


def pool_named(tree: PoolTree, name: str) -> int:
    return next(pool.id for pool in tree.pools if pool.name == name)


@pytest.mark.parametrize(
    ("fields", "change"),
    [
        ({}, ""),
        ({"cpus": CPUSet.parse("1-3")}, "got CPU 2-3"),
        ({"cpus": CPUSet([2])}, "left CPU 1; got CPU 2"),
        ({"cpus": CPUSet(range(1, 31, 2))}, "got 14 CPUs"),
        ({"shared": 500}, "shared 0 before"),
        ({"mems": CPUSet()}, "mems 0 before"),
    ],
)
def test_a_change_is_said_in_a_few_words(
    engine: Engine, fields: dict[str, object], change: str
) -> None:
    before = of(engine, [occupant("c")])
    assert of(engine, [occupant("c", **fields)], before).occupants[0].change == change


def test_a_newcomer_and_a_move_are_said(engine: Engine) -> None:
    before = of(engine, [occupant("moved")])
    root = pool_named(engine.layout.tree, "root")
    after = of(engine, [occupant("moved", pool=root), occupant("new")], before)
    old = engine.layout.tree.pools[0].name
    assert [each.change for each in after.occupants] == [f"from {old}", "new"]


def test_the_first_picture_says_of_no_change(engine: Engine) -> None:
    assert "changed" not in shown(picture_of(engine.state))


def test_an_empty_machine_has_no_table() -> None:
    text = shown(picture_of(Engine(nodes.machine("core:4"), nodes.settings()).state))
    assert text.splitlines()[1:] == [
        "╭ socket #0: 0-3 ───────╮",
        "│ r···                  │",
        "╰ mem 0 · shared 0 of 3 ╯",
        "· shared, idle   r reserved",
    ]
