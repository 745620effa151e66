"""`nri-policy cluster tree`: what is used, of groups whose places and pods differ, too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.test_cluster_questions import run, write
from tests.unit.cluster.written import HOSTNAME, group, node, pod, pod_set

LEVELS = ("--levels", f"example.com/rack,{HOSTNAME}")


def cluster(folder: Path, *pods: Any, levels: list[str], values: list[str]) -> str:
    """Two hosts in a rack, a group with a place for one pod, and some pods."""
    domains = [{"values": values, "count": 1}]
    assigned = [{"podSet": "main", "levels": levels, "domains": domains}]
    own = group(pod_set(1, cpu=1), status={"state": "Running", "assignments": assigned})
    items = [{"kind": "Node"} | node(name, RACK="r") for name in ("a", "b")]
    items += [{"kind": "PlacementGroup"} | own, *({"kind": "Pod"} | each for each in pods)]
    return write(folder / "cluster.json", {"kind": "List", "items": items})


def used(text: str) -> dict[str, int]:
    """Milli CPUs that are used on each host."""
    found = json.loads(text[text.index("{") :])["domains"]
    return {
        each["values"][-1]: each["total"]["cpu"] - each["free"]["cpu"]
        for each in found
        if each["level"] == HOSTNAME
    }


def test_a_place_that_names_its_rack_is_used(tmp_path: Path) -> None:
    file = cluster(tmp_path, levels=["example.com/rack", HOSTNAME], values=["r", "a"])
    code, text = run("tree", "--cluster", file, *LEVELS, "-o", "json")
    assert (code, used(text)) == (0, {"a": 1000, "b": 0})


def test_an_unknown_policy_is_noted(tmp_path: Path) -> None:
    zones: Any = {"kind": "NodeResourceTopology", "metadata": {"name": "a"}, "zones": []}
    zones["attributes"] = [{"name": "topologyManagerPolicy", "value": "SingleNUMANode"}]
    file = write(tmp_path / "zones.json", {"kind": "Node"} | node("a", RACK="r"), zones)
    code, text = run("tree", "--cluster", file, *LEVELS)
    said = "note: topologyManagerPolicy 'SingleNUMANode' is unknown (a)\n"
    assert (code, said in text) == (0, True)


@pytest.mark.parametrize(
    ("at", "expected"),
    [("a", {"a": 1000, "b": 2000}), ("gone", {"a": 0, "b": 2000})],
)
def test_a_pod_counts_where_it_runs(tmp_path: Path, at: str, expected: dict[str, int]) -> None:
    file = cluster(
        tmp_path,
        pod("stray", "b", group="g", cpu=2),
        pod("over", "b", group="g", cpu=1, phase="Succeeded"),
        levels=[HOSTNAME],
        values=[at],
    )
    code, text = run("tree", "--cluster", file, *LEVELS, "-o", "json")
    assert (code, used(text)) == (0, expected)
    assert "note: pods outside their groups' places count where they run: default/stray\n" in text
