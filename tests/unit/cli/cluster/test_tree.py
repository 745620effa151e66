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


def test_a_cordoned_host_is_shown_without_room_and_with_its_groups(tmp_path: Path) -> None:
    """As in a service that has seen it in use."""
    own = group(
        pod_set(1, cpu=1),
        status={
            "state": "Running",
            "assignments": [
                {
                    "podSet": "main",
                    "levels": [HOSTNAME],
                    "domains": [{"values": ["a"], "count": 1}],
                }
            ],
        },
    )
    cordoned = node("a", RACK="r")
    cordoned["spec"]["unschedulable"] = True
    nodes = [{"kind": "Node"} | each for each in (cordoned, node("b", RACK="r"))]
    items = [*nodes, {"kind": "PlacementGroup"} | own]
    file = write(tmp_path / "cluster.json", {"kind": "List", "items": items})
    code, text = run("tree", "--cluster", file, *LEVELS, "-o", "json")
    rack, a, b = json.loads(text)["domains"]
    assert (code, [each["nodes"] for each in (rack, a, b)]) == (0, [1, 0, 1])
    assert a["groups"] == ["default/g"]
    assert (a["total"], rack["total"], rack["free"]) == ({}, b["total"], b["free"])


def test_what_is_overbooked_is_shown_and_named(tmp_path: Path) -> None:
    pods = [pod("heavy", "a", cpu=9), pod("light", "b", cpu=2)]
    file = cluster(tmp_path, *pods, levels=[HOSTNAME], values=["b"])
    code, text = run("tree", "--cluster", file, *LEVELS)
    assert (code, "  a " in text) == (0, True)
    rows = {line.split()[0]: line for line in text.splitlines() if line}
    assert "9 of 4" in rows["a"]
    assert "12 of 8" in rows["r"]
    assert "overbooked, more is requested than there is: a (cpu 9 of 4)\n" in text
    _, text = run("tree", "--cluster", file, *LEVELS, "-o", "json")
    rack, *hosts = json.loads(text)["domains"]
    assert [each["used"]["cpu"] for each in (rack, *hosts)] == [12_000, 9000, 3000]
    assert [each["free"]["cpu"] for each in (rack, *hosts)] == [1000, 0, 1000]
    _, page = run("tree", "--cluster", file, *LEVELS, "-o", "html")
    assert "overbooked, more is requested than there is: a (cpu 9 of 4)" in page


def test_an_overbooked_zone_is_named_with_its_host(tmp_path: Path) -> None:
    amounts = {"name": "cpu", "capacity": "4", "allocatable": "4", "available": "-2"}
    report: Any = {"kind": "NodeResourceTopology", "metadata": {"name": "a"}}
    report["zones"] = [{"name": "node-0", "type": "Node", "resources": [amounts]}]
    file = write(tmp_path / "zones.json", {"kind": "Node"} | node("a"), report)
    below = {"name": "default", "levels": [HOSTNAME], "belowHost": ["Node"]}
    kind = {"apiVersion": "config.nri/v1alpha1", "kind": "ClusterPlacement"}
    settings = write(tmp_path / "settings.json", kind | {"spec": {"topologies": [below]}})
    code, text = run("tree", "--cluster", file, "--settings", settings, "--zones")
    assert (code, "6 of 4" in text) == (0, True)
    assert "than there is: a/node-0 (cpu 6 of 4)\n" in text


def test_an_unknown_policy_is_noted(tmp_path: Path) -> None:
    zones: Any = {"kind": "NodeResourceTopology", "metadata": {"name": "a"}, "zones": []}
    zones["attributes"] = [{"name": "topologyManagerPolicy", "value": "SingleNUMANode"}]
    file = write(tmp_path / "zones.json", {"kind": "Node"} | node("a", RACK="r"), zones)
    code, text = run("tree", "--cluster", file, *LEVELS)
    said = "note: topologyManagerPolicy 'SingleNUMANode' is unknown (a)\n"
    assert (code, said in text) == (0, True)


def test_a_zone_with_more_available_than_there_is_is_noted(tmp_path: Path) -> None:
    amounts = {"name": "cpu", "capacity": "4", "allocatable": "4", "available": "99"}
    report: Any = {"kind": "NodeResourceTopology", "metadata": {"name": "a"}}
    report["zones"] = [{"name": "node-0", "type": "Node", "resources": [amounts]}]
    file = write(tmp_path / "zones.json", {"kind": "Node"} | node("a", RACK="r"), report)
    code, text = run("tree", "--cluster", file, *LEVELS)
    said = "note: more is available than allocatable: cpu of zone node-0 (a)\n"
    assert (code, said in text) == (0, True)
    amounts["available"] = "4"
    write(tmp_path / "zones.json", {"kind": "Node"} | node("a", RACK="r"), report)
    assert "allocatable" not in run("tree", "--cluster", file, *LEVELS)[1]


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


def test_a_column_is_for_what_pods_use_and_for_devices(tmp_path: Path) -> None:
    free = {"cpu": "8", "memory": "8Gi", "pods": "9", "ephemeral-storage": "9Gi", "x/gpu": "2"}
    host = node("a", RACK="r")
    host["status"]["allocatable"] = free
    items = [{"kind": "Node"} | host]
    file = write(tmp_path / "cluster.json", {"kind": "List", "items": items})
    heads = run("tree", "--cluster", file, *LEVELS)[1].splitlines()[1]
    assert heads.split("  ") == [
        "domain",
        "nodes",
        "cpu used",
        "memory used (GiB)",
        "pods used",
        "x/gpu used",
    ]
    stored = pod("p", "a", cpu=1)
    stored["spec"]["containers"][0]["resources"]["requests"]["ephemeral-storage"] = "1Gi"
    items.append({"kind": "Pod"} | stored)
    file = write(tmp_path / "used.json", {"kind": "List", "items": items})
    assert "ephemeral-storage used (GiB)" in run("tree", "--cluster", file, *LEVELS)[1]
