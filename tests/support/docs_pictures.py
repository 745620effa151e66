"""The pictures of the documentation, made by the program itself.

python -m tests.support.docs_pictures     # writes them; `make pictures` does it
"""

from __future__ import annotations

import asyncio
import json
import re
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryDirectory
from typing import Any

import yaml
from click.testing import CliRunner
from rich.console import Console

from nri_policy.cli import main
from nri_policy.cli.node.live import DaemonWatcher, Frame
from tests.support import docs_diagrams
from tests.support.architecture_picture import picture
from tests.support.daemon import Served, pod, served
from tests.support.demo_film import film
from tests.support.nodes import SMALL

PROJECT = Path(__file__).parents[2]
IMAGES = PROJECT / "docs/images"
_MORE = {"model": "8", "render": "5", "search": "3", "cache": "2"}  # pods that fill the node
_DECISIONS = 2  # of a pod that comes: created, started
_CLUSTER = [
    *("--synthetic", "zone:2 rack:4 host:16 cpu:64 memory:256Gi socket:2 numa:2"),
    *("-o", "svg"),
]
_GROUPS = [
    option
    for name in ("training", "leader", "service")
    for option in ("-f", str(PROJECT / f"configs/groups/{name}.yaml"))
]
MACHINE = "package:2 numa:2 core:4 pu:2"


def printed(*args: str, given: str = "") -> str:
    """Return what the program prints."""
    result = CliRunner().invoke(main, args, input=given)
    assert result.exit_code == 0, result.output
    return result.stdout


def documents() -> dict[Path, str]:
    """Return the text of every file that pictures are in: SVG files, and the page about them."""
    memory = "package:2(pmem=256GiB) numa:2(memory=64GiB) core:4 pu:2 isolated=6-7 offline=31"
    pools, what_if, decision, top = asyncio.run(_of_a_daemon())
    page = PROJECT / "docs/pictures.md"
    return {
        IMAGES / "architecture.svg": picture(),
        IMAGES / "demo.svg": film(),
        IMAGES / "topology.svg": printed("topology", "--synthetic", memory, "-o", "svg"),
        IMAGES / "simulate.svg": _of_a_simulation(),
        IMAGES / "sidecars-containers.svg": _of_sidecars(),
        IMAGES / "sidecars-room.svg": _of_sidecars("pod-room"),
        IMAGES / "sidecars-shared.svg": _of_sidecars("prefer-shared-cpus"),
        IMAGES / "calls.svg": docs_diagrams.calls(),
        IMAGES / "criteria.svg": docs_diagrams.criteria(),
        IMAGES / "life.svg": _of_a_life(),
        IMAGES / "cluster-place.svg": printed("cluster", "place", *_GROUPS, *_CLUSTER),
        IMAGES / "pools.svg": pools,
        IMAGES / "what-if.svg": what_if,
        IMAGES / "decision.svg": decision,
        page: re.sub(
            "```text\nnri-policy [0-9].*?```",
            lambda _: f"```text\n{top}```",
            page.read_text(),
            flags=re.DOTALL,
        ),
    }


def _of_a_simulation() -> str:
    return _simulated(
        {"apply": [pod("logs"), pod("web", "500m", shared=True), pod("database", "3")]},
        {"apply": [pod("cache", "6")]},
        {"delete": ["database"]},
    )


def _of_sidecars(annotation: str = "") -> str:
    """Return where the containers of a pod are that has this *annotation*, beside another pod."""
    key = f"{annotation}.resource-policy.nri.io/pod"
    shop = pod("shop", annotations={key: "true"} if annotation else {})
    amounts = {"main": "2", "log": "500m", "mesh": "500m"}
    shop["spec"]["containers"] = [
        {"name": name, "resources": {"limits": {"cpu": cpu, "memory": "1Mi"}}}
        for name, cpu in amounts.items()
    ]
    return _simulated({"apply": [shop, pod("other", "1500m", shared=True)]})


def _simulated(*events: dict[str, Any]) -> str:
    """Return the picture of a scenario of *events*."""
    steps = [{"settings": {"reservedResources": {"cpu": "750m"}}}, *events]
    with NamedTemporaryFile("w", suffix=".yaml") as scenario:
        yaml.safe_dump(steps, scenario)
        scenario.flush()
        return printed("simulate", scenario.name, "--synthetic", SMALL, "-o", "svg")


def _of_a_life() -> str:
    """Return the CPUs of a container that shares, while others come and go."""
    steps: list[tuple[str, dict[str, Any]]] = [
        ("it starts", {"apply": [pod("web", "500m", shared=True)]}),
        ("a database with 3 exclusive CPUs starts", {"apply": [pod("database", "3")]}),
        ("another one with 2 starts", {"apply": [pod("second", "2")]}),
        ("the daemon restarts", {"restart": "daemon"}),
        ("CPU 7 goes offline", {"offline": 7}),
        ("the first database ends", {"delete": ["database"]}),
        ("CPU 7 is back", {"online": 7}),
    ]
    settings = {"reservedResources": {"cpu": "750m"}}
    with NamedTemporaryFile("w", suffix=".yaml") as scenario:
        yaml.safe_dump([{"settings": settings}, *(step for _, step in steps)], scenario)
        scenario.flush()
        machine = "package:1 core:4 pu:2"
        played = printed("simulate", scenario.name, "--synthetic", machine, "-o", "json")
    titles = [title for title, _ in steps]
    return docs_diagrams.life(json.loads(played)[1:], titles, "default/web/main")


async def _of_a_daemon() -> tuple[str, str, str, str]:
    with TemporaryDirectory() as folder:
        async with served(Path(folder), MACHINE) as node:
            for name in ("best-effort", "reserved", "guaranteed", "burstable", "shared"):
                text = (PROJECT / f"configs/pods/{name}.yaml").read_text()
                assert not await node.start(*yaml.safe_load_all(text))
            at = ("--control-socket", str(node.socket), "-o", "svg")
            new = yaml.safe_dump(pod("new", "6"))
            what_if = await asyncio.to_thread(printed, "what-if", "-f", "-", *at, given=new)
            decision = await asyncio.to_thread(printed, "explain", "gateway/main", *at)
            top = await _top(node)
            for name, amount in _MORE.items():
                await node.start(pod(name, amount))
            return await asyncio.to_thread(printed, "pools", *at), what_if, decision, top


async def _top(node: Served) -> str:
    """Return the screen of `top` right after another pod came."""
    then = datetime(2026, 1, 2, 12, 34, 56, tzinfo=UTC)
    feed = DaemonWatcher(node.socket, lambda: then)
    await asyncio.to_thread(feed.look)
    await node.start(pod("extra", "1"))
    while len((snapshot := await asyncio.to_thread(feed.look)).decisions) < _DECISIONS:
        pass
    await asyncio.to_thread(feed.close)
    screen = StringIO()
    Console(file=screen, width=90, height=34, _environ={}).print(Frame(then, snapshot), end="")
    return "".join(f"{line.rstrip()}\n" for line in screen.getvalue().splitlines())


if __name__ == "__main__":
    for path, text in documents().items():
        path.write_text(text)
