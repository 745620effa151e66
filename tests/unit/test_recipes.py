"""What docs/recipes.md shows of `explain` is what it prints of these pods.

python -m tests.unit.test_recipes     # takes what it prints into the page
"""

from __future__ import annotations

import asyncio
import re
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from nri_policy.cli import main
from nri_policy.simulation.node import SimulatedNode
from nri_policy.simulation.playback import Playback
from nri_policy.simulation.scenario import read_scenario
from tests.support import nodes

PAGE = Path(__file__).parents[2] / "docs" / "recipes.md"
MACHINE = "package:2 numa:2(memory=16GiB hbm=4GiB) core:4 pu:2"
RECIPE = re.compile(
    r"^## (?P<title>[^\n]*)\n.*?```yaml\n(?P<pods>.*?)```\n\n```text\n(?P<said>.*?)```",
    re.DOTALL | re.MULTILINE,
)
BEFORE: list[dict[str, Any]] = [
    {"settings": {"reservedResources": {"cpu": "cpuset:0"}, "agent": {"podResourceAPI": True}}},
    {"devices": {"nvidia.com/gpu": [{"id": "gpu0", "numa": 1}, {"id": "gpu1", "numa": 2}]}},
]
RECIPES = [each.groupdict() for each in RECIPE.finditer(PAGE.read_text())]


def explained(pods: str) -> str:
    """Return what `explain` says first of the last of some pods on a new node."""

    async def play(folder: Path) -> str:
        found = [{"apiVersion": "v1", "kind": "Pod", **each} for each in yaml.safe_load_all(pods)]
        async with AsyncExitStack() as stack:
            node = SimulatedNode(nodes.machine(MACHINE), None, folder, stack)
            await stack.enter_async_context(node.runtime)
            scenario = folder / "scenario.yaml"
            scenario.write_text(yaml.safe_dump([*BEFORE, {"apply": found}]))
            steps = read_scenario(scenario)
            _ = [result async for result in Playback(node.runtime, node).play(steps)]
            assert node.daemon is not None
            socket = folder / "control.sock"
            await stack.enter_async_context(node.daemon.listening(socket))
            name = found[-1]["metadata"]["name"]
            arguments = ["explain", name, "--control-socket", str(socket)]
            runner = CliRunner(env={"COLUMNS": "100"})
            done = await asyncio.to_thread(runner.invoke, main, arguments)
            return done.stdout

    with TemporaryDirectory() as folder:
        text = asyncio.run(play(Path(folder)))
    answers = re.split(r"(?m)^(?=\S+/\S+: )", text)
    return "\n".join(each.split("\n\n")[0].rstrip("\n") + "\n" for each in answers if each)


def test_there_are_eleven_recipes() -> None:
    assert len(RECIPES) == PAGE.read_text().count("\n## ") == 11


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe["title"])
def test_a_recipe_does_what_it_says(recipe: dict[str, str]) -> None:
    assert explained(recipe["pods"]) == recipe["said"]


if __name__ == "__main__":
    text = PAGE.read_text()
    for match in reversed([*RECIPE.finditer(text)]):
        at, end = match.span("said")
        text = text[:at] + explained(match["pods"]) + text[end:]
    PAGE.write_text(text)
