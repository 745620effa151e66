"""The pictures of the documentation, made by the program itself.

python -m tests.drawn     # writes them; `make pictures` does it
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryDirectory

import yaml
from click.testing import CliRunner

from nri_policy.cli import main
from tests.nodes import SMALL
from tests.served import pod, served

PROJECT = Path(__file__).parent.parent
IMAGES = PROJECT / "docs/images"
MACHINE = "package:2 numa:2 core:4 pu:2"


def printed(*args: str, given: str = "") -> str:
    """Return what the program prints."""
    result = CliRunner().invoke(main, args, input=given)
    assert result.exit_code == 0, result.output
    return result.stdout


def images() -> dict[str, str]:
    """Return the text of every picture by the name of its file."""
    memory = "package:2(pmem=256GiB) numa:2(memory=64GiB) core:4 pu:2 isolated=6-7 offline=31"
    return {
        "topology.svg": printed("topology", "--synthetic", memory, "-o", "svg"),
        "simulate.svg": _of_a_simulation(),
        **asyncio.run(_of_a_daemon()),
    }


def _of_a_simulation() -> str:
    steps = [
        {"settings": {"reservedResources": {"cpu": "750m"}}},
        {"apply": [pod("logs"), pod("web", "500m", shared=True), pod("database", "3")]},
        {"apply": [pod("cache", "6")]},
        {"delete": ["database"]},
    ]
    with NamedTemporaryFile("w", suffix=".yaml") as scenario:
        yaml.safe_dump(steps, scenario)
        scenario.flush()
        return printed("simulate", scenario.name, "--synthetic", SMALL, "-o", "svg")


async def _of_a_daemon() -> dict[str, str]:
    with TemporaryDirectory() as folder:
        async with served(Path(folder), MACHINE) as node:
            for name in ("best-effort", "reserved", "guaranteed", "burstable", "shared"):
                text = (PROJECT / f"configs/pods/{name}.yaml").read_text()
                assert not await node.start(*yaml.safe_load_all(text))
            at = ["--control-socket", str(node.socket), "-o", "svg"]
            new = yaml.safe_dump(pod("new", "6"))
            return {
                "pools.svg": await asyncio.to_thread(printed, "pools", *at),
                "what-if.svg": await asyncio.to_thread(
                    lambda: printed("what-if", "-f", "-", *at, given=new)
                ),
            }


if __name__ == "__main__":
    IMAGES.mkdir(exist_ok=True)
    for name, text in images().items():
        (IMAGES / name).write_text(text)
