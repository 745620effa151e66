"""`nri-policy cluster fit`: files in, a table or a document out."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from nri_policy.cli import main
from nri_policy.cluster.service.server import Listen
from tests.support.certificates import demand_rfc5280, write_certificates
from tests.support.cluster_api import ClusterAPI
from tests.unit.cluster import written as objects
from tests.unit.cluster.numa.test_extender import asking, cluster, node, pod, replica, zones


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    cluster: dict[str, Any] = {"kind": "List", "items": []}
    for name, free in (("full", (1, 1)), ("free", (3, 8))):
        cluster["items"].append({"kind": "Node"} | node(name))
        cluster["items"].append({"kind": "NodeResourceTopology"} | zones(name, *free))
    (tmp_path / "cluster.json").write_text(json.dumps(cluster))
    (tmp_path / "pod.yaml").write_text(json.dumps({"kind": "Pod"} | pod("p", 4)))
    return ["-f", str(tmp_path / "pod.yaml"), "--cluster", str(tmp_path / "cluster.json")]


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner(env={"COLUMNS": "300"}).invoke(main, ["cluster", "fit", *arguments])
    return done.exit_code, done.output


def test_a_row_for_each_node(files: list[str]) -> None:
    code, text = run(*files)
    assert code == 0
    first, *rows = text.splitlines()
    assert first == "default/p fits on 1 of 2 nodes, best on free"
    assert [re.split("  +", line) for line in rows] == [
        ["node", "fits", "score", "zones", "reason"],
        ["free", "yes", "33", "node-1"],
        [
            "full",
            "no",
            "cannot align container: cpu: 4 asked, 1 left in node-0, 8 in an empty zone",
        ],
    ]


@pytest.mark.parametrize("kind", ["List", "PodList"])
def test_a_list_of_one_pod_is_that_pod(files: list[str], kind: str) -> None:
    """As kubectl prints it, or the API server, whose items have no kind."""
    alone = run(*files)
    one = pod("p", 4) | ({"kind": "Pod"} if kind == "List" else {})
    Path(files[1]).write_text(json.dumps({"kind": kind, "items": [one]}))
    assert run(*files) == alone


@pytest.fixture
def one_node(tmp_path: Path) -> Callable[..., tuple[int, list[str]]]:
    """A cluster of one node without a report: what is asked about it, and its row."""

    def ask(asked: Any, *others: Any, **changes: Any) -> tuple[int, list[str]]:
        large = objects.node("n", cpu=128, memory="512Gi", **changes)
        items = [{"kind": "Node"} | large, *others]
        (tmp_path / "cluster.json").write_text(json.dumps({"kind": "List", "items": items}))
        (tmp_path / "asked.json").write_text(json.dumps(asked))
        where = ["--cluster", str(tmp_path / "cluster.json")]
        code, text = run("-f", str(tmp_path / "asked.json"), *where)
        return code, re.split("  +", text.splitlines()[2])

    return ask


def asked(spec: Any = (), **requests: Any) -> dict[str, Any]:
    return {
        "kind": "Pod",
        "metadata": {"name": "p"},
        "spec": objects.pod_spec(requests, **dict(spec)),
    }


def test_a_node_without_a_report_aligns_nothing(one_node: Any, files: list[str]) -> None:
    whole = json.loads(Path(files[1]).read_text())
    assert one_node(whole) == (0, ["n", "yes", "-", "not aligned here: any zone"])
    without = "not aligned (Burstable): any zone"
    assert one_node(asked(cpu=128)) == (0, ["n", "yes", "-", without])


def test_zones_and_scores_are_for_pods_that_are_aligned(files: list[str], tmp_path: Path) -> None:
    """Of a Burstable pod the extender's score is 100 everywhere, and no zone has room for it."""
    (tmp_path / "pod.yaml").write_text(json.dumps(asked(cpu=9)))
    code, text = run(*files, "-o", "json")
    assert code == 0
    found = [(row["score"], row["aligned"], row["zones"]) for row in json.loads(text)]
    assert found == [(None, False, [])] * 2
    text = run(*files)[1]
    assert text.startswith("default/p fits on 2 of 2 nodes\n")
    assert text.count("  -  not aligned (Burstable): any zone") == 2


def test_a_node_that_does_not_take_the_pod_has_no_score(files: list[str]) -> None:
    scores = {row["node"]: row["score"] for row in json.loads(run(*files, "-o", "json")[1])}
    assert scores == {"free": 33, "full": None}


@pytest.mark.parametrize(
    ("requests", "reason"),
    [
        ({"cpu": 500}, 'resource "cpu": 500 asked, 128 of 128 left'),
        ({"cpu": 1, "memory": "9Ti"}, 'resource "memory": 9 TiB asked, 512 GiB of 512 GiB left'),
        ({"cpu": 1, "gpu": 64}, 'resource "x/gpu": 64 asked, the node has none'),
    ],
)
def test_what_a_node_has_in_all_counts(one_node: Any, requests: Any, reason: str) -> None:
    assert one_node(asked(**requests)) == (1, ["n", "no", reason])


def test_a_resource_of_another_vendor_is_named(tmp_path: Path) -> None:
    host: Any = {"kind": "Node"} | objects.node("n")
    host["status"]["allocatable"]["example.com/gpu"] = "4"
    document: Any = asked(cpu=1)
    document["spec"]["containers"][0]["resources"]["requests"]["nvidia.com/gpu"] = "1"
    (tmp_path / "pod.yaml").write_text(json.dumps(document))
    (tmp_path / "cluster.json").write_text(json.dumps({"kind": "List", "items": [host]}))
    _, text = run("-f", str(tmp_path / "pod.yaml"), "--cluster", str(tmp_path / "cluster.json"))
    assert "1 asked, the node has none; it offers example.com/gpu" in text


def test_what_other_pods_use_of_a_node_counts(one_node: Any) -> None:
    bound = {"kind": "Pod"} | objects.pod("other", "n", cpu=100)
    assert one_node(asked(cpu=30), bound)[1][1] == "no"
    ended = {"kind": "Pod"} | objects.pod("other", "n", cpu=100, phase="Succeeded")
    assert one_node(asked(cpu=30), ended)[1][1] == "yes"


@pytest.mark.parametrize(
    ("changes", "spec", "reason"),
    [
        ({"ready": False}, {}, "not ready"),
        ({"taints": [{"key": "k", "effect": "NoSchedule"}]}, {}, 'taint "k:NoSchedule"'),
        ({}, {"nodeSelector": {"disk": "ssd"}}, "nodeSelector: no label disk=ssd"),
    ],
)
def test_readiness_taints_and_selectors_count(
    one_node: Any, changes: Any, spec: Any, reason: str
) -> None:
    assert one_node(asked(spec, cpu=1), **changes) == (1, ["n", "no", reason])
    tolerant = asked({"tolerations": [{"operator": "Exists"}]}, cpu=1)
    assert one_node(tolerant, **changes)[0] == (1 if reason == "not ready" else 0)


@pytest.mark.parametrize("kind", ["Job", "Deployment", "ReplicaSet", "StatefulSet"])
def test_one_pod_of_a_workload_is_tried(one_node: Any, kind: str) -> None:
    workload = {
        "kind": kind,
        "metadata": {"name": "w"},
        "spec": {"template": {"spec": objects.pod_spec({"cpu": 500})}},
    }
    assert one_node(workload) == (
        1,
        ["n", "no", 'resource "cpu": 500 asked, 128 of 128 left'],
    )


def test_where_a_pod_fits_nowhere_the_reasons_are_counted(files: list[str], tmp_path: Path) -> None:
    (tmp_path / "pod.yaml").write_text(json.dumps({"kind": "Pod"} | pod("p", 9)))
    code, text = run(*files)
    assert code == 1
    assert text.startswith("default/p fits on none of 2 nodes: cannot align container (2)\n")


def test_a_container_may_find_each_resource_in_another_zone(tmp_path: Path) -> None:
    report = zones("n", 1, 4)
    for zone, memory in zip(report["zones"], ("8Gi", "1Gi"), strict=True):
        zone["resources"].append({"name": "memory", "allocatable": "8Gi", "available": memory})
    large = node("n")
    large["status"]["allocatable"] |= {"memory": "16Gi"}
    items = [{"kind": "Node"} | large, {"kind": "NodeResourceTopology"} | report]
    (tmp_path / "cluster.json").write_text(json.dumps({"kind": "List", "items": items}))
    amounts = {"cpu": 4, "memory": "4Gi"}
    spec = {"containers": [{"name": "c", "resources": {"requests": amounts, "limits": amounts}}]}
    asked = {"kind": "Pod", "metadata": {"name": "p"}, "spec": spec}
    (tmp_path / "pod.json").write_text(json.dumps(asked))
    where = ["--cluster", str(tmp_path / "cluster.json")]
    assert (
        "cannot align container: node-0 comes closest: cpu: 4 asked, 1 left"
        in run("-f", f"{tmp_path}/pod.json", *where)[1]
    )


def test_a_cluster_may_be_made_up(files: list[str]) -> None:
    code, text = run(*files[:2], "--synthetic", "rack:2 host:40 cpu:16 memory:64Gi numa:2")
    assert code == 0
    first, _, *rows, last = text.splitlines()
    assert first == "default/p fits on 80 of 80 nodes, best on host-1-01"
    assert (len(rows), last) == (60, "20 nodes not shown: --all shows them")
    made = ["--synthetic", "rack:2 host:40 cpu:16 memory:64Gi numa:2", "--all"]
    assert len(run(*files[:2], *made)[1].splitlines()) == 82


def test_one_pod_is_tried_in_one_cluster(files: list[str]) -> None:
    code, text = run(*files, "-f", files[1])
    assert (code, "2 files with -f; one pod is tried at a time" in text) == (2, True)
    code, text = run(*files, "--synthetic", "host:1")
    assert (code, "only one of --cluster and --synthetic" in text) == (2, True)


def test_a_live_cluster_without_nodes_is_said(files: list[str], tmp_path: Path) -> None:
    async def asked() -> tuple[int, str]:
        async with ClusterAPI(tmp_path) as api:
            where = ["--kubeconfig", str(api.kubeconfig)]
            return await asyncio.to_thread(run, *files[:2], *where)

    code, text = asyncio.run(asked())
    assert (code, text) == (1, "default/p fits nowhere: the cluster has no nodes\n")


def test_without_a_cluster_it_says_how_to_name_one(
    files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    code, text = run(*files[:2])
    assert code == 2
    assert "there is no ~/.kube/config: give --cluster, --synthetic or --kubeconfig" in text
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nowhere"))
    assert "KUBECONFIG names no file: give --cluster" in run(*files[:2])[1]


def test_what_bound_pods_are_promised_counts(files: list[str], tmp_path: Path) -> None:
    bound = tmp_path / "bound.json"
    bound.write_text(json.dumps({"kind": "Pod"} | pod("on-its-way", 6, at="free")))
    files += ["--cluster", str(bound)]
    code, text = run(*files, "-o", "json")
    assert code == 1
    assert [(row["node"], row["fits"], row["promised"]) for row in json.loads(text)] == [
        ("free", False, 1),
        ("full", False, 0),
    ]
    assert run(*files)[1].splitlines()[1].split() == [
        "node",
        "fits",
        "score",
        "zones",
        "promised",
        "reason",
    ]


def test_the_running_service_says_what_it_has_promised(files: list[str], tmp_path: Path) -> None:
    async def play() -> list[tuple[int, str]]:
        async with cluster(tmp_path) as api, replica(api, choose=True) as at:
            scheduler = await at.connect()
            await scheduler.ask("/filter", asking(6, "b", "c", name="chosen"))
            found = []
            for port in (at.port, 1):
                service = f"http://127.0.0.1:{port}"
                found.append(await asyncio.to_thread(run, *files[:2], "--service", service))
            body = json.dumps({"spec": 3}).encode()
            assert (await scheduler.send("/fit", body))[0] == 400
            return found

    (code, text), (gone, error) = asyncio.run(play())
    assert code == 0
    assert [line.split()[:5] for line in text.splitlines()[2:]] == [
        ["b", "yes", "58", "node-1", "0"],
        ["c", "yes", "42", "node-1", "1"],
        ["a", "no", "0", "cannot", "align"],
    ]
    assert (gone, "refused" in error) == (3, True)


def test_a_service_with_an_authority_without_a_key_usage_is_trusted(
    files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    demand_rfc5280(monkeypatch)
    write_certificates(tmp_path)
    pem, ca = tmp_path / "server.pem", tmp_path / "ca.crt"

    async def play() -> tuple[int, str]:
        listen = Listen(port=0, certificate=pem, key=pem)
        async with cluster(tmp_path) as api, replica(api, listen=listen) as at:
            service = f"https://127.0.0.1:{at.port}"
            return await asyncio.to_thread(run, *files[:2], "--service", service, "--ca", str(ca))

    code, text = asyncio.run(play())
    assert code == 0, text


@pytest.mark.parametrize("url", ["x", "ftp://x", "http://"])
def test_a_service_is_a_url(files: list[str], url: str) -> None:
    code, text = run(*files[:2], "--service", url)
    assert (code, "--service" in text) == (2, True)
    assert run(*files, "--service", "http://x")[0] == 2


def test_places_of_groups_are_noted_as_they_do_not_count(files: list[str], tmp_path: Path) -> None:
    domains = [{"values": ["free"], "count": 3}]
    assigned = [{"podSet": "main", "levels": ["kubernetes.io/hostname"], "domains": domains}]
    own = objects.group(objects.pod_set(3, cpu=1), status={"assignments": assigned})
    there = objects.pod("there", "free", group="g", cpu=1)
    items = [{"kind": "PlacementGroup"} | own, {"kind": "Pod"} | there]
    (tmp_path / "groups.json").write_text(json.dumps({"kind": "List", "items": items}))
    _, text = run(*files, "--cluster", str(tmp_path / "groups.json"))
    assert "note: not counted: 2 places of groups, whose pods are not there yet\n" in text


@pytest.mark.parametrize("code", [0, 403, 404, 500])
def test_a_live_cluster_is_asked_for_groups_where_it_may_be(
    files: list[str], tmp_path: Path, code: int
) -> None:
    async def asked() -> tuple[int, str]:
        async with ClusterAPI(tmp_path) as api:
            await api.put("nodes", node("free"))
            domains = [{"values": ["free"], "count": 3}]
            places = [{"podSet": "main", "levels": ["kubernetes.io/hostname"], "domains": domains}]
            own = objects.group(objects.pod_set(3, cpu=1), status={"assignments": places})
            own["metadata"]["namespace"] = "default"
            await api.put("placementgroups", own)
            api.refuse = lambda _, path: code if "placementgroups" in path else 0
            return await asyncio.to_thread(run, *files[:2], "--kubeconfig", str(api.kubeconfig))

    found, text = asyncio.run(asked())
    assert (found == 0) == (code != 500)
    assert ("note: not counted: 3 places of groups" in text) == (code == 0)


def test_settings_count(files: list[str], tmp_path: Path) -> None:
    settings = tmp_path / "settings.yaml"
    head = "apiVersion: config.nri/v1alpha1\nkind: ClusterPlacement\n"
    settings.write_text(f"{head}spec: {{extender: {{strategy: MostAllocated}}}}\n")
    assert "  16  node-1" in run(*files, "--settings", str(settings))[1]
    settings.write_text(f"{head}spec: {{extender: {{strategy: Most}}}}\n")
    code, text = run(*files, "--settings", str(settings))
    assert code == 78
    assert "line 3, column 19: spec.extender.strategy: 'Most' is not one of" in text


def test_what_cannot_be_read_is_said(files: list[str], tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("a: [")
    code, text = run(*files, "--cluster", str(bad))
    assert code == 2
    assert "bad.yaml" in text


def test_the_service_does_not_listen_in_the_open() -> None:
    done = CliRunner().invoke(main, ["cluster", "run", "--listen", "0.0.0.0"])
    assert done.exit_code == 2
    assert "without a certificate only loopback is listened on" in done.output


def _of(cpu: int) -> Any:
    container = {"name": "c", "resources": {"requests": {"cpu": str(cpu)}}}
    return {"spec": {"containers": [container]}}


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        (
            "PyTorchJob",
            {
                "pytorchReplicaSpecs": {
                    "Master": {"replicas": 1, "template": _of(1)},
                    "Worker": {"replicas": 3, "template": _of(9)},
                }
            },
        ),
        (
            "JobSet",
            {
                "replicatedJobs": [
                    {"name": "a", "template": {"spec": {"template": _of(1)}}},
                    {"name": "b", "replicas": 2, "template": {"spec": {"template": _of(9)}}},
                ]
            },
        ),
        (
            "LeaderWorkerSet",
            {"leaderWorkerTemplate": {"leaderTemplate": _of(1), "workerTemplate": _of(9)}},
        ),
        (
            "RayCluster",
            {
                "headGroupSpec": {"template": _of(1)},
                "workerGroupSpecs": [{"groupName": "w", "replicas": 2, "template": _of(9)}],
            },
        ),
    ],
)
def test_a_pod_of_the_template_of_most_pods_is_tried(tmp_path: Path, kind: str, spec: Any) -> None:
    made = {"kind": kind, "metadata": {"name": "j"}, "spec": spec}
    (tmp_path / "j.json").write_text(json.dumps(made))
    arguments = ["fit", "-f", str(tmp_path / "j.json"), "--synthetic", "host:2 cpu:8", "-o", "json"]
    done = CliRunner().invoke(main, ["cluster", *arguments])
    found = [each["reason"] for each in json.loads(done.output)]
    assert (done.exit_code, found) == (1, ['resource "cpu"'] * 2)


@pytest.mark.parametrize(
    ("kind", "spec", "error"),
    [
        ("PyTorchJob", {"pytorchReplicaSpecs": {}}, "spec: it has no pod template"),
        ("JobSet", {"replicatedJobs": []}, "spec.replicatedJobs: it is empty"),
        ("TrainJob", {}, "kind: 'TrainJob' does not stand for one pod; there are: Pod, Depl"),
    ],
)
def test_an_object_without_a_template_is_refused(
    tmp_path: Path, kind: str, spec: Any, error: str
) -> None:
    made = {"kind": kind, "metadata": {"name": "j"}, "spec": spec}
    (tmp_path / "j.json").write_text(json.dumps(made))
    arguments = ["cluster", "fit", "-f", str(tmp_path / "j.json"), "--synthetic", "host:2 cpu:8"]
    done = CliRunner().invoke(main, arguments)
    assert (done.exit_code, error in done.output) == (2, True), done.output
