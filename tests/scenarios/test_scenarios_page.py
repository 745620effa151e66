"""The examples of docs/scenarios.md play on the machine that the page names, as they stand."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from nri_policy.foundation import yamltext
from nri_policy.simulation.scenario import read_step
from tests.scenarios.test_scenarios import complaints, played
from tests.support import nodes

PROJECT = Path(__file__).resolve().parents[2]
PAGE = (PROJECT / "docs" / "scenarios.md").read_text()
EXAMPLES = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_of_the_page_plays(example: str, tmp_path: Path) -> None:
    (machine,) = re.findall(r'All examples below run on `--synthetic "(.*?)"`', PAGE)
    steps = [read_step(step, folder=PROJECT / "configs") for step in yamltext.read(example)]
    results = asyncio.run(played(nodes.machine(machine), steps, tmp_path))
    assert not complaints(steps, results)
    assert results[-1].containers
