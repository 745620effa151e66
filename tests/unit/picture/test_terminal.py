"""The terminal's picture: who runs where, with and without colour."""

from __future__ import annotations

from io import StringIO

from rich.console import Console, Group

from nri_policy.cli.node.occupants import occupants
from nri_policy.engine.engine import Engine
from nri_policy.engine.event import Created
from nri_policy.manifests.quality_of_service import QoS
from nri_policy.picture.terminal import Drawing, Rows
from tests.support import nodes
from tests.support.pictures import container, printed, scene_of

GOLDEN = """\
2 sockets · 4 NUMA nodes · 16 cores · 31 CPUs · 16 GiB dram
root: 0-23,26-30 · mem 0-3 · shared 0.8 of 19
┌ socket #0: 0-15 ────────────────────────────────────────┐
│ ╭ NUMA node #0: 0-7 ──────╮ ╭ NUMA node #1: 8-15 ─────╮ │
│ │ rC Ci                   │ │ A· Bs                   │ │
│ │ CC C·                   │ │ A· ss                   │ │
│ ╰ mem 0 · shared 0 of 1 ──╯ ╰ mem 1 · shared 0.5 of 5 ╯ │
└ mem 0-1 · shared 0.5 of 6 ──────────────────────────────┘
┌ socket #1: 16-23,26-30 ─────────────────────────────────┐
│ ╭ NUMA node #2: 16-23 ────╮ ╭ NUMA node #3: 26-30 ────╮ │
│ │ ss ss                   │ │ · ··                    │ │
│ │ ss ss                   │ │ · ·                     │ │
│ ╰ mem 2 · shared 0.3 of 8 ╯ ╰ mem 3 · shared 0 of 5 ──╯ │
└ mem 2-3 · shared 0.3 of 13 ─────────────────────────────┘
╭ in no pool: 24-25,31 ───────────────────────────────────╮
│ --x                                                     │
╰─────────────────────────────────────────────────────────╯
A… exclusive   s shared, in use   · shared, idle                            r reserved   i isolated
x offline      - not available    one column per core, one row per thread

   container             QoS         amount         exclusive  cpuset  mems  pool            changed
A  db/main               Guaranteed  2              8-9        8-9     1     NUMA node #1/
                                                                             L3 cache #0
B  cache/main            Guaranteed  1 + 500m       12         12-15   1     NUMA node #1/
                                                                             L3 cache #1
   shop/web/main         Burstable   300m           -          16-19   2     NUMA node #2/
                                                                             L3 cache #0
   kube-system/dns/main  Burstable   100m reserved  -          0       0-3   root
   batch/main            BestEffort  0              -          20-23   2     NUMA node #2/
                                                                             L3 cache #1
C  ml/main               Guaranteed  5              1-5        1-5     0     NUMA node #0    new"""


def test_the_picture_is_legible_without_colour(engine: Engine) -> None:
    before = scene_of(engine)
    engine.handle(Created(container=container("ml", 5000, None, "default", QoS.GUARANTEED)))
    after = scene_of(engine, before)
    assert printed(Group(Drawing(after), "", occupants(after))) == GOLDEN


def test_in_colour_a_core_is_one_cell(engine: Engine) -> None:
    scene = scene_of(engine)
    text = printed(Drawing(scene), colour="256")
    own = f"38;5;232;48;5;{scene.marks['default/db/main'].colour}mA"
    shared, reserved, idle = "48;5;250ms", "38;5;60;48;5;238m▀", "·"
    for cell in (own, shared, reserved, idle):
        assert cell in text
    assert "▀ threads differ" in text


def test_in_colour_cpus_that_changed_hands_are_underlined(engine: Engine) -> None:
    before = scene_of(engine)
    assert "changed hands" not in printed(Drawing(before), colour="256")
    engine.handle(Created(container=container("ml", 2000, None, "default", QoS.GUARANTEED)))
    after = scene_of(engine, before)
    text = printed(Drawing(after), colour="256")
    assert f"\x1b[4;38;5;232;48;5;{after.marks['default/ml/main'].colour}mC" in text
    assert "changed hands" in text


def test_without_colours_a_terminal_gets_no_half_cells(engine: Engine) -> None:
    assert "▀" not in printed(Drawing(scene_of(engine)))


def test_no_color_is_heeded_on_a_terminal(engine: Engine) -> None:
    out = StringIO()
    environment = {"NO_COLOR": "1", "TERM": "xterm-256color"}
    Console(file=out, width=100, force_terminal=True, _environ=environment).print(
        Drawing(scene_of(engine))
    )
    assert "▀" not in out.getvalue()
    assert "one column per core, one row per thread" in out.getvalue()


def test_the_first_picture_says_of_no_change(engine: Engine) -> None:
    assert "changed" not in printed(occupants(scene_of(engine)))


def test_an_empty_machine_has_its_floor_plan() -> None:
    text = printed(Drawing(scene_of(Engine(nodes.machine("core:4"), nodes.settings()))))
    assert text.splitlines()[1:] == [
        "╭ socket #0: 0-3 ───────╮",
        "│ r···                  │",
        "╰ mem 0 · shared 0 of 3 ╯",
        "· shared, idle   r reserved",
    ]


def test_rows_have_the_cores_of_each_box_behind_its_name(engine: Engine) -> None:
    scene = scene_of(engine)
    assert printed(Rows(scene)).splitlines() == [
        "NUMA node #0 r· ·i",
        "             ·· ··",
        "NUMA node #1 A· Bs",
        "             A· ss",
        "NUMA node #2 ss ss",
        "             ss ss",
        "NUMA node #3 · ··",
        "             · ·",
        "in no pool   --x",
    ]
    assert len(printed(Rows(scene), colour="256").splitlines()) == 5
