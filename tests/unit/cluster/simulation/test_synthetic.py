"""Synthetic clusters: what a specification says is what the documents say."""

from __future__ import annotations

import re

import pytest

from nri_policy.cluster.objects.document import DocumentError
from nri_policy.cluster.objects.settings import read_settings
from nri_policy.cluster.simulation.synthetic import make_cluster
from nri_policy.cluster.snapshot import read_snapshot
from nri_policy.cluster.zones.zone import read_zones
from nri_policy.engine.engine import Engine
from tests.support import nodes
from tests.support.daemon_report import daemon_report


def test_levels_become_labels_and_values_sort_by_number() -> None:
    made = make_cluster("zone:2 rack:11 cloud.example/block:1 host:2 cpu:8")
    nodes = read_snapshot(made.cluster).nodes
    assert len(nodes) == 2 * 11 * 2
    assert nodes[0].labels == {
        "topology.kubernetes.io/zone": "zone-1",
        "example.com/rack": "rack-1-01",
        "cloud.example/block": "block-1-01-1",
        "kubernetes.io/hostname": "host-1-01-1-1",
    }
    names = [each.name for each in nodes]
    assert names == sorted(names)
    assert read_settings(made.settings).topologies[0].levels == [*nodes[0].labels]


def test_what_is_not_given_has_a_default() -> None:
    (node,) = read_snapshot(make_cluster("host:1").cluster).nodes
    assert node.allocatable == {"cpu": 16000, "memory": 64 << 30, "pods": 110}
    assert make_cluster("host:1").cluster["zones"] == []


def test_resources_are_split_over_numa_nodes_and_summed_for_sockets() -> None:
    made = make_cluster("host:1 cpu:66 memory:10Mi nvidia.com/gpu:3 socket:2 numa:2")
    (host,) = read_snapshot(made.cluster).zones
    shares = {each.name: dict(each.available) for each in host.zones if each.type != "numa node"}
    assert shares == {
        "node-0": {"cpu": 17000, "memory": 5 << 19, "nvidia.com/gpu": 1},
        "node-1": {"cpu": 17000, "memory": 5 << 19, "nvidia.com/gpu": 1},
        "node-2": {"cpu": 16000, "memory": 5 << 19, "nvidia.com/gpu": 1},
        "node-3": {"cpu": 16000, "memory": 5 << 19, "nvidia.com/gpu": 0},
        "root": {"cpu": 66000, "memory": 10 << 20},
        "socket #0": {"cpu": 34000, "memory": 5 << 20},
        "socket #1": {"cpu": 32000, "memory": 5 << 20},
    }
    assert read_settings(made.settings).topologies[0].below_host == ["socket", "Node"]


@pytest.mark.parametrize(
    ("spec", "machine"),
    [
        ("socket:2 numa:2", "package:2 numa:2 core:4"),
        ("socket:2", "package:2 numa:1 core:4"),
        ("numa:2", "package:1 numa:2 core:4"),
        ("socket:1", "package:1 numa:1 core:4"),
    ],
)
def test_zones_are_named_and_nested_as_in_a_daemons_report(spec: str, machine: str) -> None:
    (host,) = make_cluster(f"host:1 cpu:16 {spec}").cluster["zones"]

    def nested(report: object) -> set[tuple[str, str, str, frozenset[int]]]:
        zones = read_zones(report, "").zones
        return {(each.name, each.type, each.parent, each.nodes) for each in zones}

    assert nested(host) == nested(daemon_report(Engine(nodes.machine(machine), nodes.settings())))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("zone:2 rack:4", "has no host:COUNT"),
        ("", "has no host:COUNT"),
        ("host:0", "needs a count from 1"),
        ("host:x", "needs a count from 1"),
        ("host:²", "needs a count from 1"),
        ("zone", "is not NAME:VALUE"),
        ("host:2 cpu:8 cpu:9", "names cpu again"),
        ("host:2 numa:65", "more than 64 NUMA nodes"),
        ("zone:1000 host:1000", "more than 200000 hosts"),
        ("host:1 cpu:lots", "is not a CPU quantity"),
        ("host:2 cpus:32", "'cpus:32' names nothing; did you mean 'cpu'?"),
        ("host:2 memry:12Gi", "did you mean 'memory'?"),
        ("host:2 Memory:12Gi", "did you mean 'memory'?"),
        ("host:2 mem:12Gi", "did you mean 'memory'?"),
        ("host:2 rack:2", "'rack:2' is a level; levels stand before host:COUNT"),
        ("cpu:64 host:2", "'cpu:64' is of a host; what a host has stands after host:COUNT"),
        ("zones:2 host:2", "did you mean 'zone'?"),
        ("rack:2 hosts:2", "did you mean 'host'?"),
        ("host:2 memory:64", "'memory:64' is less than 1Mi; write it as memory:64Gi"),
        ("package:2 numa:2 core:4 pu:2", "'package:2' describes a machine; a cluster looks like"),
        ("numa:2 core:4", "'core:4' describes a machine"),
        ("host:2 core:4", "'core:4' describes a machine"),
    ],
)
def test_a_wrong_word_is_named(text: str, problem: str) -> None:
    with pytest.raises(DocumentError, match=re.escape(problem)):
        make_cluster(text)


def test_words_that_are_like_no_usual_one_are_levels_and_resources() -> None:
    made = make_cluster("room:1 zones.example/zones:1 host:1 gpu:8 fpga:2 nvidia.com/cpus:1")
    (node,) = read_snapshot(made.cluster).nodes
    assert {"gpu", "fpga", "nvidia.com/cpus"} < node.allocatable.keys()
    assert [*node.labels][:2] == ["example.com/room", "zones.example/zones"]
