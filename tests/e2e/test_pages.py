"""Pages and pictures in a real browser. Where Chromium is not installed the tests skip."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from nri_policy.cli import main
from tests.e2e.browser import PROGRAM, Page, browser
from tests.e2e.waiting import eventually
from tests.support.daemon import pod

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="chromium is not installed")

SIZES = {
    4: "core:2 pu:2",
    128: "package:2 numa:2 l3:2 core:8 pu:2",
    512: "package:2 numa:4 l3:4 core:8 pu:2",
}
# Writing that is broader than the box it stands in, and letters that leave their square
STICKS_OUT = """
  Array.from(document.querySelectorAll(".pool > text, .cpu > text"), (text) => {
    const box = text.parentElement.querySelector(":scope > rect").getBoundingClientRect();
    const own = text.getBoundingClientRect();
    return own.left < box.left || own.right > box.right || own.top < box.top - 2
      || own.bottom > box.bottom + 2 ? text.textContent : "";
  }).filter((text) => text)
"""
# Writing of which a part is missing, though machines of these sizes have room for all of it
CUT = """
  Array.from(document.querySelectorAll(".pool > text"), (text) => text.textContent)
    .filter((text) => text.endsWith("\u2026"))
"""
# Rows of the containers' table in a picture whose cells run into each other
RUN_TOGETHER = """
  Array.from(document.querySelectorAll("text.row, text.changed, text.head"), (text) => {
    const next = text.nextElementSibling, own = text.getBBox();
    const same = next !== null && next.getAttribute("y") === text.getAttribute("y");
    return same && own.x + own.width > next.getBBox().x ? text.textContent : "";
  }).filter((text) => text)
"""
# CPUs of the pictures that windows of this width show
SHOWN = """
  Array.from(document.querySelectorAll(".cpu[data-cpu]"))
    .filter((cpu) => cpu.getClientRects().length).length
"""
VISIBLE = "Array.from(document.querySelectorAll('.step')).filter((s) => !s.hidden).map((s) => s.id)"


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with browser() as page:
        yield page


def drawn(folder: Path, spec: str, form: str, name: str = "own") -> Path:
    """Return the file of a simulation of three steps."""
    steps = [
        {"settings": {"reservedResources": {"cpu": "750m"}}},
        {"apply": [pod(name, "1"), pod("guest"), pod("some", "500m", shared=True)]},
        {"delete": ["guest"]},
    ]
    scenario = folder / "scenario.yaml"
    scenario.write_text(yaml.safe_dump(steps))
    args = ["simulate", str(scenario), "--synthetic", spec, "-o", form]
    result = CliRunner().invoke(main, args)
    assert result.exit_code == 0, result.output
    path = folder / f"picture.{form}"
    path.write_text(result.stdout)
    return path


@pytest.mark.parametrize("cpus", SIZES)
@pytest.mark.parametrize("form", ["svg", "html"])
def test_all_writing_is_within_its_box(page: Page, cpus: int, form: str, tmp_path: Path) -> None:
    path = drawn(tmp_path, SIZES[cpus], form)
    page.open(path)
    page.value("document.querySelectorAll('.step').forEach((step) => { step.hidden = false; })")
    assert page.value(SHOWN) == 3 * cpus
    assert page.value(STICKS_OUT) == []
    assert page.value(RUN_TOGETHER) == []
    assert page.value(CUT) == []
    assert page.value("document.querySelector('[data-cpu] text').getBoundingClientRect().width") > 5
    if form == "html":
        assert page.value("document.documentElement.scrollWidth") <= 1280
    assert page.complaints == []


def test_a_series_is_played_and_the_slider_goes_anywhere(page: Page, tmp_path: Path) -> None:
    page.open(drawn(tmp_path, SIZES[4], "html"))
    assert page.value(VISIBLE) == ["step-3"]
    page.value("document.querySelector('button').click()")
    assert page.value(VISIBLE) == ["step-1"]
    assert page.value("document.querySelector('button').textContent").endswith("Pause")
    assert eventually(lambda: page.value(VISIBLE), lambda shown: shown == ["step-3"]) == ["step-3"]
    assert page.value("document.querySelector('button').textContent").endswith("Play")
    assert page.value("document.querySelector('output').textContent") == "step 3 of 3"
    page.value("document.querySelector('input').value = 2")
    page.value("document.querySelector('input').dispatchEvent(new Event('input'))")
    assert page.value(VISIBLE) == ["step-2"]
    assert page.complaints == []


def test_the_pages_policy_lets_no_other_script_run(page: Page, tmp_path: Path) -> None:
    path = drawn(tmp_path, SIZES[4], "html")
    path.write_text(path.read_text().replace("</body>", "<script>window.ran = 1</script></body>"))
    page.open(path)
    assert page.value("typeof window.ran") == "undefined"
    assert any("Content Security Policy" in text for text in page.complaints)


@pytest.mark.parametrize("form", ["svg", "html"])
def test_colours_follow_the_readers_preference(page: Page, form: str, tmp_path: Path) -> None:
    path = drawn(tmp_path, SIZES[4], form)
    seen = {}
    for scheme in ("light", "dark"):
        page.open(path, scheme=scheme)
        grounds = page.value("getComputedStyle(document.querySelector('svg')).backgroundColor")
        letters = page.value("getComputedStyle(document.querySelector('svg .title')).fill")
        seen[scheme] = (brightness(grounds), brightness(letters))
    assert seen["light"][0] - seen["light"][1] > 150
    assert seen["dark"][1] - seen["dark"][0] > 150


def brightness(colour: str) -> float:
    """Return the mean of a colour's parts: 0 is black, 255 white."""
    red, green, blue = map(int, re.findall(r"\d+", colour)[:3])
    return (red + green + blue) / 3


def test_a_narrow_window_scrolls_the_picture_alone(page: Page, tmp_path: Path) -> None:
    page.open(drawn(tmp_path, SIZES[512], "html"), width=400)
    assert page.value("document.documentElement.scrollWidth") <= 400
    assert page.complaints == []
