"""docs/recipes.md shows the output of `explain` for its pods as it is printed.

python -m tests.unit.test_recipes     # writes the present output into the page
"""

from __future__ import annotations

import asyncio
import re
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import yaml
from click.testing import CliRunner, Result

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
NODE = Path(__file__).parents[2] / "configs" / "recipes.yaml"
RECIPES = [each.groupdict() for each in RECIPE.finditer(PAGE.read_text())]


def asked(pods: str) -> tuple[int, str]:
    """Return how `what-if` ends of some pods, and what `explain` then says first of the last."""

    async def play(folder: Path) -> tuple[int, str]:
        async with AsyncExitStack() as stack:
            node = SimulatedNode(nodes.machine(MACHINE), None, folder, stack)
            await stack.enter_async_context(node.runtime)
            playback, socket = Playback(node.runtime, node), folder / "control.sock"
            _ = [result async for result in playback.play(read_scenario(NODE))]
            assert node.daemon is not None
            await stack.enter_async_context(node.daemon.listening(socket))

            async def ask(*arguments: str, given: str = "") -> Result:
                runner = CliRunner(env={"COLUMNS": "100"})
                arguments = (*arguments, "--control-socket", str(socket))
                return await asyncio.to_thread(runner.invoke, main, arguments, given)

            tried = await ask("what-if", "-f", "-", given=pods)
            found = [*yaml.safe_load_all(pods)]
            scenario = folder / "scenario.yaml"
            scenario.write_text(yaml.safe_dump([{"apply": found}]))
            _ = [result async for result in playback.play(read_scenario(scenario))]
            said = await ask("explain", found[-1]["metadata"]["name"])
            return tried.exit_code, said.stdout

    with TemporaryDirectory() as folder:
        tried, text = asyncio.run(play(Path(folder)))
    answers = re.split(r"(?m)^(?=\S+/\S+: )", text)
    said = "\n".join(each.split("\n\n")[0].rstrip("\n") + "\n" for each in answers if each)
    return tried, said


def test_there_are_thirteen_recipes() -> None:
    assert len(RECIPES) == PAGE.read_text().count("\n## ") == 13


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe["title"])
def test_a_recipe_does_what_it_says_and_can_be_pasted(recipe: dict[str, str]) -> None:
    tried, said = asked(recipe["pods"])
    assert said == recipe["said"]
    assert (tried == 0) == ("refused" not in said)
    assert "equally good" not in said, "the node shows something"


if __name__ == "__main__":
    text = PAGE.read_text()
    for match in reversed([*RECIPE.finditer(text)]):
        at, end = match.span("said")
        text = text[:at] + asked(match["pods"])[1] + text[end:]
    PAGE.write_text(text)
