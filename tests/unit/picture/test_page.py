"""Pages: strictly well-formed, one file, and nothing from outside becomes markup."""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256
from html import unescape
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import pytest
from msgspec.structs import replace

from nri_policy.engine.engine import Engine
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.picture.machine_page import machine_sections
from nri_policy.picture.page import (
    containers,
    heat_map,
    page,
    picture_parts,
    played_page,
    section,
    table,
)
from nri_policy.picture.svg import Strip
from nri_policy.report import DeviceReport, machine_report, pool_reports, refusal_report
from tests.support import nodes
from tests.support.pictures import held_by, holding, made_up, scene_of

EVIL = "default/<script>alert(1)</script>&\"'\x00\x1b[2J\u202e\ud800]]>/c"
VOID = {"meta", "input", "rect", "circle", "line", "path", "wbr"}


class Strict(HTMLParser):
    """Reads HTML as browsers do, and insists that every element is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.names: list[str] = []
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes |= {name for name, _ in attrs}
        self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in VOID, tag
        self.names.append(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def read(text: str) -> Strict:
    """Return what is in a page, which is well-formed by the rules of HTML and of XML."""
    parser = Strict()
    parser.feed(text)
    parser.close()
    assert not parser.open
    ids = [each.attrib["id"] for each in ET.fromstring(text).iter() if "id" in each.attrib]
    assert len(set(ids)) == len(ids)
    return parser


def topology(engine: Engine) -> str:
    layout = engine.layout
    machine, pools = machine_report(layout.machine), pool_reports(layout.tree, layout.capacity)
    return page("Topology", *machine_sections(machine, pools))


def test_a_page_of_a_picture_has_the_table_of_containers(engine: Engine) -> None:
    held = held_by(engine)
    refused = {"default/huge/main": refusal_report("no pool has room")}
    scene = made_up(engine, {**held, **refused})
    text = page("Pools", section("Now", *picture_parts(scene), containers(scene)))
    read(text)
    rows = [
        ["".join(cell.itertext()).strip() for cell in row.iter("td")]
        for row in ET.fromstring(text).iter("tr")
    ]
    pool = "NUMA node #1/L3 cache #0"
    assert rows[1] == ["A", "db/main", "Guaranteed", "2", "8-9", "8-9", "1", pool]
    assert rows[-1] == ["", "huge/main", "refused: no pool has room"]


def test_the_page_of_a_machine_has_all_that_is_known_of_it() -> None:
    text = topology(nodes.engine("package:2(pmem=256GiB) numa:2 core:2 pu:2 isolated=4"))
    read(text)
    headings = re.findall("<h2>(.*?)</h2>", text)
    assert headings == [
        *("Pools", "CPUs", "Memory nodes", "Distances between memory nodes", "Caches")
    ]
    assert "dax4.0 lies in persistent memory" in text
    assert ">· · NUMA node #1</td>" in text


def test_a_page_of_devices_and_notes_lists_them() -> None:
    engine = nodes.engine()
    device = DeviceReport(
        address="0000:3b:00.0", class_="020000", name=EVIL, numa_nodes=CPUSet([1]), cpus=CPUSet([4])
    )
    machine = replace(machine_report(engine.layout.machine), devices=(device,), notes=(EVIL,))
    pools = pool_reports(engine.layout.tree, engine.layout.capacity)
    text = page("Topology", *machine_sections(machine, pools))
    assert "script" not in read(text).names
    assert "0000:3b:00.0" in text


def test_a_heat_map_is_deeper_the_larger_the_number_is() -> None:
    text = str(heat_map(["0", "1"], [[10, 21], [32, 10]]))
    assert re.findall(r'class="heat(\d)">(\d+)', text) == [
        ("0", "10"),
        ("4", "21"),
        ("9", "32"),
        ("0", "10"),
    ]
    assert str(heat_map(["0"], [[10]])).count("heat0") == 1


def test_a_series_can_be_played_by_its_own_script_alone(engine: Engine) -> None:
    scene = scene_of(engine)
    text = played_page("demo", [Strip(heading=f"Step {n}", scene=scene) for n in (1, 2)])
    read(text)
    script = text[text.index("<script>") + 8 : text.index("</script>")]
    digest = b64encode(sha256(script.encode()).digest()).decode()
    (policy,) = re.findall('Security-Policy" content="(.*?)"', text)
    assert unescape(policy).split("; ") == [
        "default-src 'none'",
        "style-src 'unsafe-inline'",
        f"script-src 'sha256-{digest}'",
    ]
    assert re.findall('<section id="(.*?)" class="step">', text) == ["step-1", "step-2"]
    assert '<div class="player" hidden="">' in text, "without the script there is nothing to play"


def test_a_step_says_what_went_wrong(engine: Engine) -> None:
    strips = [
        Strip(heading="Step 1", problems=("error: short", f"error: {'long ' * 50}"), scene=None),
        Strip(heading="Step 2", scene=scene_of(engine)),
    ]
    text = played_page("demo", strips)
    read(text)
    assert '<p class="problem">error: short</p>' in text
    assert re.search("<summary>error: (long )*.*…</summary>", text)


@pytest.mark.parametrize("script", [False, True])
def test_what_comes_from_outside_stays_text(engine: Engine, *, script: bool) -> None:
    scene = made_up(
        engine,
        {EVIL: holding(pool=f"root {EVIL}"), f"{EVIL}2": refusal_report(EVIL)},
        made_up(engine, {}),
    )
    strip = Strip(heading=EVIL, problems=(EVIL,), scene=scene)
    text = (
        played_page(EVIL, [strip])
        if script
        else page(EVIL, section(EVIL, *picture_parts(scene), containers(scene)))
    )
    seen = read(text)
    assert seen.names.count("script") == script
    assert not [name for name in seen.attributes if name.startswith("on")]
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f\u202e\ud800]", text)


def test_a_page_needs_nothing_from_elsewhere(engine: Engine) -> None:
    text = topology(engine) + played_page("x", [Strip(heading="x", scene=scene_of(engine))])
    assert set(re.findall(r"https?://[^\"]*", text)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"url\(|@import|href|src=", text)


def test_a_long_list_of_cpus_breaks_after_its_commas_only() -> None:
    text = str(table(["CPUs"], [["0-3,8-11,64-127,192"]]))
    assert "0-3,<wbr/>8-11,<wbr/>64-127,<wbr/>192" in text
    assert 'class="cpus" data-head="CPUs"' in text


def test_a_short_list_of_cpus_takes_no_more_room_than_it_needs() -> None:
    text = str(table(["mems"], [["0,4"]]))
    assert 'data-head="mems">0,4</td>' in text
    assert "cpus" not in text
