"""Files of a cluster: every form that kubectl prints, and clear errors for all else."""

from __future__ import annotations

import json
import re
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from nri_policy.cluster import cluster_files
from nri_policy.cluster.cluster_files import ClusterFiles
from nri_policy.cluster.objects.document import DocumentError
from nri_policy.cluster.snapshot import read_snapshot

NODE = {"kind": "Node", "metadata": {"name": "a"}}
POD = {"kind": "Pod", "metadata": {"name": "p"}}
ZONES = {"kind": "NodeResourceTopology", "metadata": {"name": "a"}, "zones": []}
SETTINGS = {"kind": "ClusterPlacement", "spec": {}}


def read(*texts: str | bytes) -> ClusterFiles:
    files = ClusterFiles()
    for number, text in enumerate(texts):
        files.add(text.encode() if isinstance(text, str) else text, f"file{number}")
    return files


def plain(files: ClusterFiles) -> Any:
    return json.loads(msgspec.json.encode(files.cluster))


def test_a_list_of_several_kinds_is_sorted_into_a_cluster() -> None:
    service = {"kind": "Service", "metadata": {"name": "s"}}
    files = read(json.dumps({"kind": "List", "items": [NODE, POD, ZONES, service, SETTINGS]}))
    assert plain(files) == {"nodes": [NODE], "pods": [POD], "zones": [ZONES]}
    assert files.settings == SETTINGS
    assert files.ignored == {"Service": 1}


def test_a_workload_of_another_version_is_told_from_one_of_kubernetes() -> None:
    versions = ("kueue.x-k8s.io/v1beta1", "scheduling.k8s.io/v1alpha1")
    items = [{"kind": "Workload", "apiVersion": each} for each in versions]
    files = read(json.dumps({"kind": "List", "items": items}))
    assert files.ignored == {
        "Workload of kueue.x-k8s.io/v1beta1 (v1beta2 is read)": 1,
        "Workload": 1,
    }


def test_the_items_of_a_typed_list_need_no_kind() -> None:
    files = read(json.dumps({"kind": "NodeList", "items": [{"metadata": {"name": "a"}}]}))
    assert files.cluster == {"nodes": [NODE]}
    assert read('{"kind": "PodList", "items": null}').cluster == {}


def test_several_files_add_up_whatever_their_form() -> None:
    yaml = "kind: Node\nmetadata: {name: a}\n---\nkind: Pod\nmetadata: {name: p}\n"
    plain = json.dumps({"nodes": [NODE], "failures": {"a": 2}, "stale": ["a"]})
    files = read(yaml, plain, plain)
    assert files.cluster == {
        "nodes": [NODE, NODE, NODE],
        "pods": [POD],
        "failures": {"a": 2},
        "stale": ["a", "a"],
    }


def test_the_items_of_a_list_are_read_as_the_same_objects_alone_are() -> None:
    items = [NODE, POD, ZONES]
    listed = read(json.dumps({"kind": "List", "items": items}))
    alone = read(*map(json.dumps, items))
    for of in (attrgetter("nodes"), attrgetter("pods"), attrgetter("zones")):
        assert of(read_snapshot(listed.cluster)) == of(read_snapshot(alone.cluster))


def test_the_kind_of_an_item_counts_wherever_it_stands() -> None:
    by_kubectl = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a"}}
    last = {"apiVersion": "v1", "metadata": {"name": "p"}, "kind": "Pod"}
    for indent in (None, 4):
        files = read(json.dumps({"kind": "List", "items": [by_kubectl, last]}, indent=indent))
        assert plain(files) == {"nodes": [by_kubectl], "pods": [last]}


@pytest.mark.parametrize("chunk", [1, 2, 3, 1 << 20])
def test_a_character_may_lie_across_the_parts_that_are_checked(
    monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(cluster_files, "_CHUNK", chunk)
    node = {**NODE, "x": "é€😀"}
    listed = json.dumps({"kind": "List", "items": [node]}, ensure_ascii=False)
    assert plain(read(listed)) == {"nodes": [node]}
    with pytest.raises(DocumentError, match=r"file0: .*UTF-8"):
        read(listed.encode().replace("é".encode(), b"\xc3"))


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ('"spec": {"unschedulable": 7}', r"nodes\[1\]\.spec.*whole number \(in Node 'b'\)"),
        ('"spec": {"taints": [{"key": 1e999}]}', r"nodes\[1\]\.spec.* out of range"),
    ],
)
def test_a_wrong_item_of_a_list_is_named(wrong: str, problem: str) -> None:
    text = '{"kind": "Node", "metadata": {"name": "b"}, %s}' % wrong  # noqa: UP031 - has braces
    files = read('{"kind": "List", "items": [%s, %s]}' % (json.dumps(NODE), text))  # noqa: UP031
    with pytest.raises(DocumentError, match=problem):
        read_snapshot(files.cluster)


def test_a_list_is_text_also_where_nothing_is_read() -> None:
    wrong = b'{"kind": "List", "items": [{"kind": "Node", "metadata": {"name": "a"}, "x": "\xff"}]}'
    with pytest.raises(DocumentError, match=r"file0: .*UTF-8"):
        read(wrong)


@pytest.mark.parametrize(
    ("texts", "problem"),
    [
        (['{"kind": '], "file0: .*"),
        (["- {{ .Values.name }}: 1"], "file0: line 1.*; render the template first"),
        (
            ['{"kind": "Status", "message": "nodes is forbidden"}'],
            "file0: an error of the API server, and no object: nodes is forbidden",
        ),
        (["[1]"], "file0: 1 is not a Kubernetes object"),
        (["name of it"], "file0: 'name of it' is not a Kubernetes object$"),
        (
            ["NAMESPACE NAME\nn a"],
            "is not a Kubernetes object; give the output of kubectl get … -o json$",
        ),
        (["a: 1"], "file0: is neither a Kubernetes object nor a cluster"),
        ([b"a: \xff"], "file0: .*"),
        (['{"nodes": {}}', '{"nodes": []}'], "file1: nodes: .* is of the wrong type"),
        (['{"kind": "List", "items": ["a"]}'], "file0: .*is not a Kubernetes object"),
        (['{"kind": "PodList", "items": 7}'], "file0: items: 7 is not a list"),
    ],
)
def test_what_is_no_cluster_is_refused_by_name(texts: list[str | bytes], problem: str) -> None:
    with pytest.raises(DocumentError, match=problem):
        read(*texts)


def test_the_page_on_clusters_names_each_kind_that_is_read() -> None:
    page = (Path(__file__).parents[3] / "docs" / "cluster.md").read_text()
    named = {
        each.partition(".")[0]
        for row in re.findall(r"^\| (`.*?) \|", page, re.MULTILINE)
        for each in re.findall(r"`(\S+)`", row)
    }
    kinds = {
        *("Node", "Pod", "NodeResourceTopology", "PlacementGroup", "PodDisruptionBudget"),
        *("Topology", "Workload", "ClusterPlacement"),
    }
    found = [{"kind": kind, "apiVersion": "kueue.x-k8s.io/v1beta2"} for kind in kinds]
    files = read(json.dumps({"kind": "List", "items": found}))
    assert not files.ignored
    assert {re.sub("ys$", "ies", f"{kind.lower()}s") for kind in kinds} <= named


def test_a_bare_list_of_objects_is_read_as_they_are() -> None:
    assert plain(read(json.dumps([NODE, POD]))) == {"nodes": [NODE], "pods": [POD]}
