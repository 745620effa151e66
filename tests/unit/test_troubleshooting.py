"""The messages in docs/troubleshooting.md are those that people get."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemon import pod, served
from tests.unit.cli.test_daemon_commands import run

PAGE = (Path(__file__).parents[2] / "docs" / "troubleshooting.md").read_text()
# what the first column of the table of refusals quotes, but for parts of a message
QUOTED = [*re.findall(r"^\| `([^`]{30,})` \|", PAGE, re.MULTILINE)]


def wishes(key: str, value: str) -> dict[str, str]:
    return {f"{key}.resource-policy.nri.io/pod": value}


REFUSED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (pod("huge", "99"), {}),
    (pod("any", "2"), {"reservedResources": {"cpu": "cpuset:0-15"}}),
    (pod("wide", "6"), {"alignment": "numa"}),
    (pod("own", "2", annotations=wishes("require-isolated-cpus", "true")), {}),
    (pod("whole", "15", annotations=wishes("full-cores", "require")), {}),
    (pod("big", "1", memory="64Gi"), {}),
    (pod("odd", "2", annotations=wishes("prefer-shared-cpus", "maybe")), {}),
]


def test_every_refusal_that_is_quoted_is_tried() -> None:
    assert len(QUOTED) == len(REFUSED)


@pytest.mark.parametrize(
    ("refused", "spec", "text"),
    [(*each, text) for each, text in zip(REFUSED, QUOTED, strict=False)],
)
def test_a_refusal_reads_as_it_is_quoted(
    refused: dict[str, Any], spec: dict[str, Any], text: str, tmp_path: Path
) -> None:
    async def errors() -> list[str]:
        async with served(tmp_path, listening=False, **spec) as node:
            return await node.start(refused)

    (error,) = asyncio.run(errors())
    assert text in error


def test_explain_says_why_a_container_shares_as_it_is_quoted(tmp_path: Path) -> None:
    (text,) = re.findall(r"though Guaranteed \| `explain`: `([^`]*)`", PAGE)

    async def explained() -> str:
        async with served(tmp_path) as node:
            await node.start(pod("small", "250m"))
            return (await asyncio.to_thread(run, node.socket, "explain", "small")).stdout

    assert text in asyncio.run(explained())


def test_other_messages_that_are_quoted_are_in_the_program() -> None:
    sources = "".join(
        path.read_text() for path in (Path(__file__).parents[2] / "nri_policy").rglob("*.py")
    )
    for text in (
        "not yet: waiting for the runtime",
        "the daemon cannot be reached",
        "Changed by others",
        "strict hints",
        "not isolated: ",
        "it ran on CPUs",
        "by the pod's object",
        "possible on this node:",
    ):
        assert text in PAGE, text
        assert text in sources, text
