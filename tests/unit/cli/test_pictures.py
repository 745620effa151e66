"""The commands that print pictures, as files."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import yaml
from click.testing import CliRunner, Result

from nri_policy.cli import main
from tests.support.daemon import pod, served
from tests.support.nodes import SMALL

SVG = "{http://www.w3.org/2000/svg}"
PLAN = (("settings", {"reservedResources": {"cpu": 1}}), ("apply", [pod("a", "2")]))


def run(*args: str, given: str = "") -> Result:
    return CliRunner().invoke(main, args, input=given, prog_name="nri-policy")


def read(result: Result, code: int = 0, said: str = "") -> ET.Element:
    """Return the root of what was printed, an SVG file or a page."""
    assert (result.exit_code, result.stderr) == (code, said)
    return ET.fromstring(result.stdout)


def owners(root: ET.Element) -> dict[str, str]:
    """Return the owner of each CPU by its id."""
    return {
        each.attrib["id"]: each.attrib["data-container"]
        for each in root.iter(f"{SVG}g")
        if "data-container" in each.attrib and "narrow-" not in each.attrib["id"]
    }


@pytest.fixture
def scenario(tmp_path: Path) -> str:
    path = tmp_path / "scenario.yaml"
    path.write_text(yaml.safe_dump([dict([step]) for step in PLAN]))
    return str(path)


@pytest.mark.parametrize(("form", "prefix"), [("svg", "s2-"), ("html", "s2-")])
def test_a_simulation_has_a_strip_a_step(form: str, prefix: str, scenario: str) -> None:
    root = read(run("simulate", scenario, "--synthetic", SMALL, "-o", form))
    assert owners(root) == dict.fromkeys((f"{prefix}cpu-4", f"{prefix}cpu-5"), "default/a/main")
    texts = [*root.itertext()]
    assert "Step 1: new settings" in texts
    assert "Step 2: apply a" in texts


def test_a_simulation_that_fails_ends_with_1_and_its_picture_says_why(scenario: str) -> None:
    path = Path(scenario)
    expected = [*(dict([step]) for step in PLAN), {"expect": {"a/main": {"cpus": "9"}}}]
    path.write_text(yaml.safe_dump(expected))
    for form in ("svg", "html"):
        said = "simulate: step 3: not as expected: default/a/main: cpus want '9', got '4-5'\n"
        result = run("simulate", scenario, "--synthetic", SMALL, "-o", form)
        root = read(result, code=1, said=said)
        assert any("want '9', got '4-5'" in text for text in root.itertext())


def test_a_topology_is_drawn_without_containers() -> None:
    root = read(run("topology", "--synthetic", f"{SMALL} isolated=4", "-o", "svg"))
    assert owners(root) == {}
    isolated = root.find(f".//{SVG}g[@id='cpu-4']")
    assert isolated is not None
    assert isolated.attrib["class"] == "cpu isolated"
    page = read(run("topology", "--synthetic", SMALL, "-o", "html"))
    assert page.findtext("body/h1") == f"Topology of --synthetic '{SMALL}'"


def test_the_daemons_pools_and_what_would_be_are_drawn(tmp_path: Path) -> None:
    async def both() -> None:
        async with served(tmp_path, SMALL) as node:
            await node.start(pod("a", "2"), pod("guest"), pod("huge", "99"))
            await asyncio.to_thread(check, "--control-socket", str(node.socket))

    def check(*at: str) -> None:
        own = {"cpu-4": "default/a/main", "cpu-5": "default/a/main"}
        assert owners(read(run("pools", *at, "-o", "svg"))) == own
        page = read(run("pools", *at, "-o", "html"))
        assert owners(page) == own
        assert any("refused: no pool has room" in text for text in page.itertext())
        assert [each.text for each in page.iter("h2")] == ["Who runs where", "Pools"]

        new = yaml.safe_dump(pod("new", "4"))
        drawn = read(run("what-if", "-f", "-", *at, "-o", "svg", given=new))
        before = {name: who for name, who in owners(drawn).items() if name.startswith("s1-")}
        after = {name: who for name, who in owners(drawn).items() if name.startswith("s2-")}
        assert set(before.values()) == {"default/a/main"}
        came = {name for name, who in after.items() if who == "default/new/main"}
        assert len(came) == 4
        moved = {each.attrib["id"] for each in drawn.iter() if "moved" in each.get("class", "")}
        assert moved == came | {f"s1{name.removeprefix('s2')}" for name in came}

        page = read(run("what-if", "-f", "-", *at, "-o", "html", given=new))
        assert [each.text for each in page.iter("h2")] == ["Before", "After", "Why there"]
        none = yaml.safe_dump(pod("none", "99"))
        page = read(run("what-if", "-f", "-", *at, "-o", "html", given=none), code=1)
        said = [
            each for each in page.itertext() if each.startswith("none would be refused: no pool")
        ]
        assert said
        text = run("what-if", "-f", "-", *at, given=new).stdout
        assert re.search(r"would fit.*Before\n.*After\n.*Nobody else would", text, re.DOTALL)
        text = run("what-if", "-f", "-", *at, given=none).stdout
        assert "Before" not in text

    asyncio.run(both())


def test_a_page_has_a_picture_for_a_phone_too(scenario: str) -> None:
    root = read(run("simulate", scenario, "--synthetic", SMALL, "-o", "html"))
    narrow = [each for each in root.iter(f"{SVG}svg") if each.get("class") == "narrow"]
    assert len(narrow) == 2
    assert all(int(each.attrib["width"]) <= 350 for each in narrow)


def test_every_cpu_has_its_number(scenario: str) -> None:
    root = read(run("simulate", scenario, "--synthetic", SMALL, "-o", "svg"))
    cpus = [each for each in root.iter(f"{SVG}g") if "data-cpu" in each.attrib]
    numbers = [[t.text for t in each if t.get("class") == "number"] for each in cpus]
    assert numbers == [[each.attrib["data-cpu"]] for each in cpus]
