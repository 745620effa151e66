"""Pictures of a cluster for broad and for narrow screens."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

from nri_policy.picture.racks import Block, Cell, page_of

SVG = "{http://www.w3.org/2000/svg}"
PHONE = 390  # pixels


def test_a_page_has_a_picture_that_a_phone_shows_in_full_size() -> None:
    cells = [Cell(f"host-{number}", 0.5, "half") for number in range(40)]
    page = page_of("a cluster", [Block(f"rack {number}", cells) for number in range(9)], [])
    body = re.sub(r"<!DOCTYPE html>\n", "", page)
    broad, narrow = ET.fromstring(body).iter(f"{SVG}svg")
    assert (broad.get("class"), narrow.get("class")) == ("broad", "narrow")
    assert int(narrow.get("width", "")) <= PHONE - 2 * 16, "the page has a margin"
    for picture in (broad, narrow):
        width = int(picture.get("width", ""))
        titles = [each for each in picture.iter(f"{SVG}g") if each.get("class") == "rack"]
        assert len(titles) == 9
        for rack in titles:
            left = int(re.findall(r"\d+", rack.get("transform", ""))[0])
            hosts = [g for g in rack.iter(f"{SVG}g") if g.get("class") == "host"]
            assert len(hosts) == 40
            rights = [int(re.findall(r"\d+", g.get("transform", "0"))[0]) for g in hosts]
            assert left + max(rights) + 20 <= width
