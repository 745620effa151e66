"""Pictures of a cluster for broad and for narrow screens."""

from __future__ import annotations

import re
from collections.abc import Mapping
from xml.etree import ElementTree as ET

import pytest

from nri_policy.picture.racks import BROAD, NARROW, Map, Path, Place, figure, legend_of
from nri_policy.picture.racks_page import GroupLine, Moment, Parts, cluster_page

SVG = "{http://www.w3.org/2000/svg}"
NOBODY: Mapping[str, int] = {}


def place(
    *path: str, share: float = 0.0, pods: Mapping[str, int] = NOBODY, failed: bool = False
) -> Place:
    return Place(path=path, share=share, detail="free", pods=pods, failed=failed)


def cluster(*sizes: int, pods: Mapping[Path, Mapping[str, int]] = {}) -> Map:
    """Return a topology with so many domains in each of a level above."""
    paths: list[Path] = [()]
    every: list[Path] = []
    for size in sizes:
        paths = [(*path, f"{len(path)}-{at}") for path in paths for at in range(size)]
        every += paths
    places = [place(*each, share=0.5, pods=pods.get(each, NOBODY)) for each in sorted(every)]
    return Map("default", ["zone", "rack", "host"][-len(sizes) :], places)


def pictures(shown: Map) -> tuple[ET.Element, ET.Element]:
    """Return the picture for a screen, and that for a phone."""
    legend = legend_of({name: 1 for host in shown.hosts() for name in host.pods})
    broad, narrow = ET.fromstring(str(figure(shown, legend))).iter(f"{SVG}svg")
    return broad, narrow


def groups(picture: ET.Element, class_: str) -> list[ET.Element]:
    return [each for each in picture.iter(f"{SVG}g") if each.get("class") == class_]


def titles(picture: ET.Element) -> list[str]:
    return [each.text or "" for each in picture.iter(f"{SVG}text") if each.get("class") == "title"]


def test_every_host_is_within_its_picture() -> None:
    for picture, sheet in zip(pictures(cluster(9, 40)), (BROAD, NARROW), strict=True):
        width = int(picture.get("width", ""))
        assert width <= sheet.width
        racks = groups(picture, "rack")
        assert len(racks) == 9
        for rack in racks:
            left = int(re.findall(r"\d+", rack.get("transform", ""))[0])
            hosts = groups(rack, "host")
            assert len(hosts) == 40
            rights = [int(re.findall(r"\d+", g.get("transform", "0"))[0]) for g in hosts]
            assert left + max(rights) + 20 <= width


@pytest.mark.parametrize("sizes", [(625, 16), (5, 125, 16), (3, 3334), (10_000,), (100, 100, 1)])
def test_ten_thousand_hosts_are_no_higher_than_three_screens(sizes: tuple[int, ...]) -> None:
    touched = tuple(f"{depth}-0" for depth in range(len(sizes)))
    shown = cluster(*sizes, pods={touched: {"default/g": 3}})
    for picture, sheet in zip(pictures(shown), (BROAD, NARROW), strict=True):
        assert int(picture.get("height", "")) <= sheet.height
        assert "3" in [each.text for each in picture.iter(f"{SVG}text")], "where the pods are"


def test_racks_in_which_nothing_happens_are_folded_first() -> None:
    shown = cluster(5, 125, 16, pods={("0-1", "1-2", "2-3"): {"default/g": 3}})
    broad, _ = pictures(shown)
    assert titles(broad)[:3] == ["0-1 / 1-2", "0-0: 125 racks", "0-1: 124 racks"]
    folded = groups(groups(broad, "rack")[1], "host")
    assert (len(folded), folded[0].get("id")) == (125, "at-0-0/1-0")


def test_a_cell_is_filled_by_group_as_far_as_its_host_is_full() -> None:
    host = Place(
        path=("h",), share=0.5, detail="50% of gpu", pods={"a": 3, "b": 1}, others=4, changed=True
    )
    broad, _ = pictures(Map("default", ["host"], [host]))
    (cell,) = groups(broad, "host")
    bars = [(part.get("class"), part[0].attrib) for part in cell.iter(f"{SVG}g") if part != cell]
    widths = [float(bar["width"]) for _, bar in bars]
    assert [class_ for class_, _ in bars] == ["k39", "k208", "used"]
    assert widths == [7.5, 2.5, 10.0]
    assert {bar["height"] for _, bar in bars} == {"10"}
    title = cell.find(f"{SVG}title")
    assert title is not None
    assert title.text == "h: 50% of gpu; a: 3 pods; b: 1 pod; changed"


def test_a_full_cluster_has_colours_for_the_largest_groups() -> None:
    legend = legend_of({f"g{at}": at for at in range(20)})
    assert (legend["g19"], legend["g0"], legend["g3"]) == ("k39", "k-more", "k-more")
    assert len({*legend.values()}) == 17


def test_a_page_plays_moments_and_links_groups_to_their_racks() -> None:
    shown = cluster(2, 3, pods={("1-0",): NOBODY, ("0-1", "1-2"): {"default/g": 3}})
    line = GroupLine(
        name="default/g", state="Placed", domains={("0-1",): 3}, message="", change="new"
    )
    moments = [
        Moment(heading=f"step {at}", problems=[], groups=[line], cluster=shown) for at in (1, 2)
    ]
    text = cluster_page("a page", legend_of({"default/g": 3}), Parts(notes=["n"]), moments)
    page = ET.fromstring(text.removeprefix("<!DOCTYPE html>\n"))
    steps = [each for each in page.iter("section") if each.get("class") == "step"]
    assert [each.get("id") for each in steps] == ["step-1", "step-2"]
    ids = [found for each in page.iter() if (found := each.get("id")) is not None]
    assert len(ids) == len({*ids})
    links = [each.get("href", "") for each in page.iter("a")]
    assert links[:2] == ["#s1-at-0-1", "#n-s1-at-0-1"]
    assert {link[1:] for link in links} <= {*ids}


def test_a_page_names_the_hosts_with_pods_and_how_full_they_are_for_readers_without_a_pointer() -> (
    None
):
    busy = Place(
        path=("r1", "h1"),
        share=1.0,
        detail="all",
        pods={"default/train": 8},
        others=1,
        fullest="100% of cpu",
    )
    shown = Map("default", ["rack", "host"], [busy, place("r1", "h2"), place("r1", "h3")])
    text = cluster_page("t", legend_of({"default/train": 8}), Parts(cluster=shown))
    rows = re.findall(r"<tr>\n(.*?)\n</tr>", text, re.DOTALL)
    named = [re.sub(r"<[^>]*>", "", row).splitlines() for row in rows]
    assert ["r1 / h1", "100% of cpu", "train 8"] in named
    assert not any("h2" in row or "h3" in row for row in rows)


def test_the_title_of_a_block_is_whole() -> None:
    name = "europe-west-4-a-with-a-long-name"
    shown = Map("default", ["rack", "host"], [place(name, "h1"), place("other", "h2")])
    broad, _ = pictures(shown)
    assert titles(broad) == [name, "other"]
