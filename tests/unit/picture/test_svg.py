"""SVG: what is in the file, and that nothing from outside can become markup."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import pytest

from nri_policy.engine.engine import Engine
from nri_policy.engine.event import Created
from nri_policy.manifests.quality_of_service import QoS
from nri_policy.picture.mark import COLOURS
from nri_policy.picture.scene import Purpose, Scene
from nri_policy.picture.svg import Strip, document
from tests.support import nodes
from tests.support.pictures import container, holding, made_up, scene_of

SVG = "{http://www.w3.org/2000/svg}"
EVIL = "default/<script>alert(1)</script>&\"'\x00\x1b[2J\u202e\ud800]]>/c"


def drawn(*scenes: Scene) -> ET.Element:
    """Return the root of the picture of *scenes*, which is well-formed XML."""
    text = document([Strip(heading=f"Step {n}", scene=scene) for n, scene in enumerate(scenes, 1)])
    return ET.fromstring(text)


def cpus(root: ET.Element) -> dict[str, ET.Element]:
    return {each.attrib["id"]: each for each in root.iter(f"{SVG}g") if "data-cpu" in each.attrib}


def tooltip(element: ET.Element) -> str:
    text = element.findtext(f"{SVG}title")
    assert text is not None
    return text


def test_every_cpu_is_an_element_that_says_what_it_is(engine: Engine) -> None:
    scene = scene_of(engine)
    found = cpus(drawn(scene))
    assert [*found] == [
        f"cpu-{cpu}" for cpu in sorted(scene.places, key=lambda cpu: (cpu in {24, 25, 31}, cpu))
    ]
    own = found["cpu-8"]
    colour = scene.marks["default/db/main"].colour
    assert own.attrib["class"] == f"cpu own k{colour}"
    assert own.attrib["data-container"] == "default/db/main"
    assert own.findtext(f"{SVG}text") == "A"
    assert tooltip(own) == "CPU 8: default/db/main\ncore of CPUs 8-9\nNUMA node #1/L3 cache #0"
    shared = found["cpu-16"]
    assert shared.attrib["class"] == "cpu shared"
    assert tooltip(shared).splitlines()[:2] == ["CPU 16: shared, in use", "shop/web/main"]
    assert tooltip(found["cpu-31"]) == "CPU 31: offline"
    assert {each.attrib["class"].split()[1] for each in found.values()} == {*Purpose}


def test_every_pool_is_an_element_with_its_name(engine: Engine) -> None:
    root = drawn(scene_of(engine))
    named = [
        each.attrib["data-pool"] for each in root.iter(f"{SVG}g") if "data-pool" in each.attrib
    ]
    sockets = [f"socket #{number}" for number in range(2)]
    assert sorted(named) == sorted([*sockets, *(f"NUMA node #{n}" for n in range(4)), "in no pool"])


def test_a_pools_tooltip_has_its_memory_and_caches(engine: Engine) -> None:
    box = drawn(scene_of(engine)).find(f".//{SVG}g[@data-pool='NUMA node #1']")
    assert box is not None
    assert tooltip(box).splitlines() == [
        "NUMA node #1: 8-15",
        "mem 1 · shared 0.5 of 5",
        "memory node 1: 4 GiB dram",
        "2 L3 caches of 32 MiB",
    ]


def test_the_containers_stand_below_with_their_marks(engine: Engine) -> None:
    texts = [each.text for each in drawn(scene_of(engine)).iter(f"{SVG}text")]
    row = texts.index("shop/web/main")
    assert texts[row : row + 7] == [
        *("shop/web/main", "Burstable", "300m", "-", "16-19", "2", "NUMA node #2/L3 cache #0")
    ]


def test_where_there_are_too_many_containers_those_with_a_mark_come_first(engine: Engine) -> None:
    held = {f"guest{number}": holding(exclusive="") for number in range(50)}
    texts = [each.text for each in drawn(made_up(engine, {**held, "own": holding()})).iter()]
    assert "own" in texts
    assert "guest38" in texts
    assert "guest39" not in texts
    assert "and 11 more: see -o html" in texts


def test_cpus_that_change_hands_have_an_edge(engine: Engine) -> None:
    before = scene_of(engine)
    engine.handle(Created(container=container("ml", 2000, None, "default", QoS.GUARANTEED)))
    after = scene_of(engine, before)
    root = drawn(before, after)
    edged = {
        name
        for name, each in cpus(root).items()
        if each.find(f"{SVG}rect[@class='edge']") is not None
    }
    assert edged == {f"s2-cpu-{cpu}" for cpu in after.moved} != set()
    assert "changed hands" in [each.text for each in root.iter(f"{SVG}text")]


def test_no_id_is_there_twice(engine: Engine) -> None:
    root = drawn(scene_of(engine), scene_of(engine))
    ids = [each.attrib["id"] for each in root.iter() if "id" in each.attrib]
    assert len(set(ids)) == len(ids) == 2 * 32


def test_what_comes_from_outside_stays_text(engine: Engine) -> None:
    text = document(
        [
            Strip(
                heading=EVIL,
                problems=(EVIL,),
                scene=made_up(engine, {EVIL: holding(pool="root\n<b>")}, made_up(engine, {})),
            )
        ]
    )
    assert "<script" not in text
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f\u202e\ud800]", text)
    names = {each.tag.removeprefix(SVG) for each in ET.fromstring(text).iter()}
    assert names == {"svg", "style", "g", "rect", "text", "title"}
    assert text.encode()


def test_a_picture_needs_nothing_from_elsewhere(engine: Engine) -> None:
    text = document([Strip(heading="", scene=scene_of(engine))])
    assert set(re.findall(r"https?://[^\"]*", text)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"url\(|@import|href", text)


def test_every_colour_of_a_mark_is_in_the_style(engine: Engine) -> None:
    text = document([Strip(heading="", scene=scene_of(engine))])
    for number, colour in COLOURS.items():
        assert f".k{number} rect {{ fill: {colour}; }}" in text


def test_light_and_dark_have_a_colour_for_everything() -> None:
    text = document([])
    light, dark = (
        set(re.findall(r"(--[a-z-]+):", part)) for part in text.split("prefers-color-scheme: dark")
    )
    assert light == dark == set(re.findall(r"var\((--[a-z-]+)\)", text))


@pytest.mark.parametrize(
    "spec", ["core:4", "package:2 numa:2 core:16 pu:2", "package:2 numa:4 core:32 pu:2"]
)
def test_all_of_a_machine_of_any_size_is_within_the_picture(spec: str) -> None:
    root = drawn(scene_of(Engine(nodes.machine(spec), nodes.settings())))
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    assert width <= 1220

    def walk(element: ET.Element, x: float, y: float) -> None:
        place = re.match(r"translate\((.*),(.*)\)", element.get("transform", ""))
        if place:
            x, y = x + float(place[1]), y + float(place[2])
        if element.tag == f"{SVG}rect":
            assert 0 <= x <= x + float(element.attrib["width"]) <= width
            assert 0 <= y <= y + float(element.attrib["height"]) <= height
        for child in element:
            walk(child, x, y)

    walk(root, 0, 0)


def test_the_key_shows_a_containers_own_cpus_as_the_picture_does(engine: Engine) -> None:
    scene = scene_of(engine)
    keys = [each for each in drawn(scene).iter(f"{SVG}g") if "own" in (each.get("class") or "")]
    colour = scene.marks["default/db/main"].colour
    own = [each.get("class") for each in keys if each.get("data-cpu") is None]
    assert f"cpu own k{colour}" in own
    assert "cpu own" not in own, "a colour that nobody has"


def test_cpus_of_a_kernel_partition_have_a_border() -> None:
    engine = Engine(nodes.machine(), nodes.settings(exclusivePartitions="root"))
    engine.handle(Created(container=nodes.container(2000)))
    root = drawn(scene_of(engine))
    bordered = {
        name: each
        for name, each in cpus(root).items()
        if "partition" in each.attrib["class"].split()
    }
    assert [*bordered] == ["cpu-4", "cpu-5"]
    assert "kernel partition, root" in tooltip(bordered["cpu-4"])
