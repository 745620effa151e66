"""What docs/dra.md shows of `what-if` is what it prints of the page's example."""

from __future__ import annotations

import asyncio
import re
from contextlib import AsyncExitStack
from pathlib import Path

import yaml
from click.testing import CliRunner

from nri_policy.cli import main
from nri_policy.simulation.node import SimulatedNode
from nri_policy.simulation.playback import Playback
from nri_policy.simulation.scenario import read_scenario
from tests.support import nodes

PROJECT = Path(__file__).parents[2]
PAGE = (PROJECT / "docs" / "dra.md").read_text()
EXAMPLE = PROJECT / "configs" / "claims" / "near-gpu.yaml"
YAML = re.compile(r"^```yaml\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SAID = re.compile(r"^```text\n(These settings.*?)^```$", re.DOTALL | re.MULTILINE)
MACHINE = re.compile(r'--synthetic "(.*?)"')


def test_the_example_is_the_file() -> None:
    shown = YAML.findall(PAGE)[0]
    assert [*yaml.safe_load_all(shown)] == [*yaml.safe_load_all(EXAMPLE.read_text())]


def test_what_if_says_of_the_example_what_the_page_shows(tmp_path: Path) -> None:
    (settings,) = (each for each in YAML.findall(PAGE) if "TopologyAwarePolicy" in each)
    assert what_if(tmp_path, settings, EXAMPLE).startswith(SAID.findall(PAGE)[0] + "\nBefore\n")


def test_the_requests_of_the_page_can_be_tried(tmp_path: Path) -> None:
    (settings,) = (each for each in YAML.findall(PAGE) if "TopologyAwarePolicy" in each)
    template, pod = yaml.safe_load_all(EXAMPLE.read_text())
    variants = [each for each in YAML.findall(PAGE) if each.startswith("requests:")]
    said = []
    for number, variant in enumerate(variants):
        template["spec"]["spec"]["devices"] = yaml.safe_load(variant)
        manifest = tmp_path / f"{number}.yaml"
        manifest.write_text(yaml.safe_dump_all([template, pod]))
        folder = tmp_path / str(number)
        folder.mkdir()
        said.append(what_if(folder, settings, manifest))
    preferred, two = said
    assert "8 CPU of numa0 by claim default/training-near (cpu/near)" in preferred
    assert "4 CPU of numa0 by claim default/training-near (one)" in two
    assert "4 CPU of numa1 by claim default/training-near (two)" in two


def what_if(folder: Path, settings: str, manifest: Path) -> str:
    """Return what `what-if` prints of a manifest on the page's simulated node."""

    async def ask() -> str:
        async with AsyncExitStack() as stack:
            machine = nodes.machine(MACHINE.findall(PAGE)[0])
            node = SimulatedNode(machine, None, folder / "node", stack)
            await stack.enter_async_context(node.runtime)
            steps = read_scenario(PROJECT / "configs" / "demo.yaml")
            _ = [result async for result in Playback(node.runtime, node).play(steps)]
            assert node.daemon is not None
            socket = folder / "s"
            await stack.enter_async_context(node.daemon.listening(socket))
            new = folder / "new.yaml"
            new.write_text(settings)
            arguments = ["what-if", "-f", str(manifest), "--settings", str(new)]
            done = await asyncio.to_thread(
                CliRunner(env={"COLUMNS": "200"}).invoke,
                main,
                [*arguments, "--control-socket", str(socket)],
            )
            assert done.exit_code == 0, done.output
            return done.stdout

    return asyncio.run(ask())
