"""`cluster place` and `explain` say where nodes that align pods refuse what was placed there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nri_policy.cluster.objects.settings import read_settings
from nri_policy.cluster.objects.snapshot import read_snapshot
from nri_policy.cluster.offline import engine_of
from nri_policy.cluster.service.questions import answer_explain, answer_place
from tests.unit.cli.test_cluster_questions import run, write
from tests.unit.cluster.numa.test_extender import node, pod, zones
from tests.unit.cluster.written import group, pod_set

LARGE = "zone:1 rack:2 host:2 cpu:32 memory:128Gi socket:2 numa:2"  # zones of 8 CPUs
HINT = 'name a level of zones in the request, or see "cluster fit"'
TOO_SMALL = (
    "its pods are aligned to one NUMA node, and refused even if the host is empty (host-1-1-1:"
    f" cannot align container: cpu: 12 asked, 8 in an empty zone); {HINT}"
)
FULL = (
    "its pods are aligned to one NUMA node, and refused while its zones are as full as now (n:"
    f" cannot align container: cpu: 4 asked, 1 left in node-0, 8 in an empty zone); {HINT}"
)


def asked(name: str, cpu: int, **spec: Any) -> Any:
    return {"kind": "Pod"} | pod(name, cpu, **spec)


def asked_group(count: int, cpu: int, **status: Any) -> Any:
    """A group of such pods."""
    one = pod_set(count) | {"template": {"spec": pod("p", cpu)["spec"]}}
    return {"kind": "PlacementGroup"} | group(one, **status)


def labelled(name: str) -> Any:
    labels = {"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": "z"}
    return node(name) | {"kind": "Node", "metadata": {"name": name, "labels": labels}}


def cluster(*free: int, policy: str = "single-numa-node") -> Any:
    """A node `n` with zones of 8 CPUs, of which so many are free."""
    report = zones("n", *free)
    report["attributes"] = [{"name": "topologyManagerPolicy", "value": policy}]
    items = [labelled("n"), {"kind": "NodeResourceTopology"} | report]
    return {"kind": "List", "items": items}


def notes(tmp_path: Path, of: Any, *where: str) -> tuple[list[str], list[str]]:
    """What `place` and `explain` note of a group in JSON."""
    file = write(tmp_path / "asked.yaml", of)
    placed = json.loads(run("place", "-f", file, *where, "-o", "json")[1])
    explained = json.loads(run("explain", "-f", file, *where, "-o", "json")[1])
    return placed[0]["notes"], explained["notes"]


def test_zones_that_are_too_small_are_noted_in_every_form(tmp_path: Path) -> None:
    file = write(tmp_path / "asked.yaml", asked("big", 12))
    for command in ("place", "explain"):
        sentence = f"default/big, pod set main: on 1 of 1 host {TOO_SMALL}"
        code, text = run(command, "-f", file, "--synthetic", LARGE)
        assert code == 0
        assert f"note: {sentence}" in " ".join(text.split())
        page = run(command, "-f", file, "--synthetic", LARGE, "-o", "html")[1]
        assert "8 in an empty zone" in page


def test_all_hosts_with_such_zones_count(tmp_path: Path) -> None:
    found = f"default/g, pod set main: on 4 of 4 hosts {TOO_SMALL}"
    of = asked_group(8, 12)
    assert notes(tmp_path, of, "--synthetic", LARGE) == ([found], [found])


def test_pods_that_fit_their_zones_have_no_note(tmp_path: Path) -> None:
    assert notes(tmp_path, asked_group(8, 8), "--synthetic", LARGE) == ([], [])


@pytest.mark.parametrize(
    ("free", "policy", "found"),
    [
        ((1, 1), "single-numa-node", [f"default/p, pod set main: on 1 of 1 host {FULL}"]),
        ((1, 4), "single-numa-node", []),
        ((1, 1), "best-effort", []),
    ],
)
def test_zones_that_are_full_now_are_told_from_small_ones(
    tmp_path: Path, free: tuple[int, ...], policy: str, found: list[str]
) -> None:
    where = write(tmp_path / "cluster.json", cluster(*free, policy=policy))
    assert notes(tmp_path, asked("p", 4), "--cluster", where) == (found, found)


@pytest.mark.parametrize(("cpu", "number"), [(4, 0), (12, 1)])
def test_what_a_group_itself_fills_is_not_held_against_it(
    tmp_path: Path, cpu: int, number: int
) -> None:
    where = write(tmp_path / "cluster.json", cluster(1, 1))
    domains = [{"values": ["n"], "count": 1}]
    places = [{"podSet": "main", "levels": ["kubernetes.io/hostname"], "domains": domains}]
    file = write(tmp_path / "asked.yaml", asked_group(1, cpu, status={"assignments": places}))
    found = json.loads(run("explain", "-f", file, "--cluster", where, "-o", "json")[1])
    assert len(found["notes"]) == number


def test_the_service_notes_it_as_well() -> None:
    report = zones("n", 1, 1)
    snapshot = read_snapshot({"nodes": [labelled("n")], "zones": [report]})
    engine = engine_of(snapshot, read_settings(None))
    body = json.dumps([asked("p", 4)]).encode()
    found = [f"default/p, pod set main: on 1 of 1 host {FULL}"]
    assert json.loads(answer_place(engine, body))[0]["notes"] == found
    assert json.loads(answer_explain(engine, body))["notes"] == found
