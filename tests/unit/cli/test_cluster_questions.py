"""`nri-policy cluster tree`, `place`, `explain`: a cluster and groups in, answers out."""

from __future__ import annotations

import asyncio
import json
import re
from datetime import UTC, datetime
from html import unescape
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner
from msgspec.structs import replace
from rich.console import Console

from nri_policy.cli import main
from nri_policy.cli.cluster.top import drawn
from nri_policy.cluster.report.group_rows import GroupRow
from nri_policy.cluster.service.kinds import OF_GROUPS
from tests.support.cluster_api import ClusterAPI
from tests.unit.cluster.numa.test_extender import replica
from tests.unit.cluster.written import group, node, pod, pod_set, pod_spec

RACK = "example.com/rack"
HOST = "kubernetes.io/hostname"
SPEC = "zone:2 rack:2 host:2 cpu:4 memory:8Gi"
SVG = "{http://www.w3.org/2000/svg}"


def run(*arguments: str, given: str = "", columns: int = 160) -> tuple[int, str]:
    done = CliRunner(env={"COLUMNS": f"{columns}"}).invoke(
        main, ["cluster", *arguments], input=given, prog_name="nri-policy"
    )
    assert done.exception is None or isinstance(done.exception, SystemExit)
    return done.exit_code, done.output


def write(path: Path, *documents: Any) -> str:
    path.write_text("".join(f"---\n{json.dumps(each)}\n" for each in documents))
    return str(path)


def named(kind: str, value: Any) -> Any:
    return {"kind": kind, **value}


def job(name: str, count: int, *, kind: str = "Job", cpu: Any = 1, **annotations: str) -> Any:
    known = {"required": "kueue.x-k8s.io/podset-required-topology"}
    known |= {"spread": "placement.nri/spread-over"}
    meta = {"annotations": {known[key]: value for key, value in annotations.items()}}
    counts = {"parallelism": count} if kind == "Job" else {"replicas": count}
    template = {"metadata": meta, "spec": pod_spec({"cpu": cpu})}
    return {"kind": kind, "metadata": {"name": name}, "spec": {**counts, "template": template}}


@pytest.fixture
def cluster(tmp_path: Path) -> str:
    """Two racks of two hosts and a host that lacks the label; a group and a pod."""
    settings = {"topologies": [{"name": "default", "levels": [RACK, HOST]}]}
    assigned = {
        "state": "Placed",
        "assignments": [
            {"podSet": "main", "levels": [HOST], "domains": [{"values": ["a1"], "count": 2}]}
        ],
    }
    items = [
        *(named("Node", node(f"{rack}{at}", RACK=rack)) for rack in "ab" for at in (1, 2)),
        named("Node", node("lost")),
        named("Pod", pod("p", "b1", cpu=1)),
        named("PlacementGroup", group(pod_set(2, cpu=1), name="old", status=assigned)),
        {"kind": "ClusterPlacement", "spec": settings},
    ]
    return write(tmp_path / "cluster.json", {"kind": "List", "items": items})


def test_a_tree_says_what_is_used_and_who_is_left_out(cluster: str) -> None:
    code, text = run("tree", "--cluster", cluster)
    assert code == 0
    rows = [line.split() for line in text.splitlines()]
    assert rows[2][:5] == ["a", "2", "2", "of", "8"]
    assert rows[2][-1] == "default/old"
    assert rows[5][:5] == ["b", "2", "1", "of", "8"]
    assert text.splitlines()[-1] == f"1 node left out: no label {RACK} (lost)"


def test_a_tree_as_a_document(cluster: str) -> None:
    report = json.loads(run("tree", "--cluster", cluster, "-o", "json")[1])
    assert report["leftOut"] == [{"reason": f"no label {RACK}", "nodes": ["lost"]}]
    first = report["domains"][1]
    assert (first["values"], first["free"]["cpu"], first["total"]["pods"]) == (
        ["a", "a1"],
        2000,
        110,
    )


def test_a_tree_shows_zones_below_their_hosts() -> None:
    where = ["tree", "--synthetic", "rack:1 host:2 cpu:8 memory:8Gi socket:2 numa:1", "--zones"]
    rows = [line.split() for line in run(*where)[1].splitlines()]
    del rows[: [row[0] for row in rows].index("domain") + 1]  # a long first line may be two
    assert [(row[0], row[1], " ".join(row[2:5])) for row in rows[:4]] == [
        ("rack-1", "2", "0 of 16"),
        ("host-1-1", "1", "0 of 8"),
        ("socket", "#0", "1 0 of"),
        ("node-0", "1", "0 of 4"),
    ]
    assert len(rows) == 1 + 2 * (1 + 2 + 2)
    hosts = json.loads(run(*where[:-1], "-o", "json")[1])
    zones = json.loads(run(*where, "-o", "json")[1])
    assert [each for each in zones["domains"] if each in hosts["domains"]] == hosts["domains"]


def test_a_tree_goes_as_deep_as_a_person_can_read() -> None:
    spec = "rack:7 host:9"
    assert "63 domains below example.com/rack not shown" in run("tree", "--synthetic", spec)[1]
    text = run("tree", "--synthetic", spec, "--all")[1]
    assert len(text.splitlines()) == 2 + 7 + 63


def test_groups_are_placed_one_after_another(tmp_path: Path) -> None:
    asked = write(
        tmp_path / "asked.yaml",
        job("one", 8, required=RACK),
        job("two", 8, kind="StatefulSet", required=RACK),
        job("three", 16, required=RACK),
    )
    code, text = run("place", "-f", asked, "--synthetic", SPEC)
    assert code == 1
    rows = [" ".join(line.split()) for line in text.splitlines()[1:]]
    assert rows[:2] == [
        "default/one main zone zone-1, rack rack-1-1: 8 pods on 2 hosts",
        "default/two main zone zone-1, rack rack-1-2: 8 pods on 2 hosts",
    ]
    assert rows[2].startswith('default/three topology "default" allows to fit only 8 out of 16')


def test_a_deployment_is_spread(tmp_path: Path) -> None:
    asked = write(tmp_path / "web.yaml", job("web", 4, kind="Deployment", spread=RACK))
    code, text = run("place", "-f", asked, "--synthetic", SPEC, "-o", "json")
    assert code == 0
    (tried,) = json.loads(text)
    assert [(part["values"][-1], part["pods"]) for part in tried["parts"]] == [
        (f"rack-{zone}-{rack}", 1) for zone in (1, 2) for rack in (1, 2)
    ]
    asked = write(tmp_path / "web.yaml", job("web", 40, kind="Deployment", spread=RACK))
    code, text = run("place", "-f", asked, "--synthetic", SPEC)
    assert code == 1
    assert "allows to fit only 32 out of 40" in text


def test_pods_that_name_a_group_are_one() -> None:
    member = {"placement.nri/group": "g", "placement.nri/group-size": "5"}
    one = {"kind": "Pod", "metadata": {"name": "p0", "annotations": member}, "spec": pod_spec({})}
    code, text = run("place", "--synthetic", SPEC, "-o", "json", "-f", "-", given=json.dumps(one))
    assert code == 0
    (tried,) = json.loads(text)
    assert (tried["name"], sum(part["pods"] for part in tried["parts"])) == ("g", 5)


@pytest.mark.parametrize(
    ("document", "error"),
    [
        ({"kind": "Deploymnt"}, "kind: 'Deploymnt' cannot be placed; did you mean 'Deployment'?"),
        ({"metadata": {"name": "j"}}, "kind: it is missing; there are: Deployment, ReplicaSet, "),
        ({"kind": ["Job"]}, "kind: a list (1 entry) is no kind; there are: Deployment, "),
        (job("j", -1), "spec: -1 pods are not from 0 to 2147483647"),
        (job("", 1), "metadata.name: a group has a name"),
        (job("j", 1, cpu="x"), "spec.template.spec.containers[0].resources.requests.cpu: 'x'"),
        (job("j", 1, required=""), "spec.template.metadata.annotations.kueue.x-k8s.io/podset-re"),
    ],
)
def test_what_is_wrong_is_said_with_its_path(tmp_path: Path, document: Any, error: str) -> None:
    asked = write(tmp_path / "asked.yaml", document)
    code, text = run("place", "-f", asked, "--synthetic", SPEC)
    assert code == 2
    assert text.startswith(f"nri-policy: {asked}: {error}")
    assert len(text.splitlines()) == 1


NOWHERE: list[dict[str, Any]] = [
    {
        "kind": "List",
        "items": [
            named("Node", node("n", labels={"topology.kubernetes.io/zone": "z"}, ready=False))
        ],
    },
    {"kind": "List", "items": [named("Node", node("n"))]},  # without the label of a level
]


@pytest.mark.parametrize("form", ["table", "json", "svg", "html"])
@pytest.mark.parametrize("cluster", NOWHERE)
def test_a_cluster_without_a_node_that_takes_part_is_shown(
    tmp_path: Path, cluster: dict[str, Any], form: str
) -> None:
    where = ["--cluster", write(tmp_path / "cluster.json", cluster), "-o", form]
    assert run("tree", *where)[0] == run("tree", "--zones", *where)[0] == 0
    lost = group(
        pod_set(2, {"required": HOST}),
        status={
            "assignments": [
                {
                    "podSet": "main",
                    "levels": [HOST],
                    "domains": [{"values": ["n"], "count": 2}],
                }
            ],
            "unhealthyNodes": ["n"],
        },
    )
    for asked, expected in (
        (job("one", 1, required=RACK), 2),  # no level of the settings
        (named("PlacementGroup", lost), 1),
    ):
        file = write(tmp_path / "asked.yaml", asked)
        for command in ("place", "explain"):
            code, text = run(command, "-f", file, *where)
            assert code == expected
            assert form in {"svg", "html"} or "no " in text
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text("- apply: [{file: asked.yaml}]\n- advance: 10m\n")
    assert run("simulate", str(scenario), *where)[0] == 0


def test_an_explanation_says_what_limits_and_what_would_help(tmp_path: Path) -> None:
    asked = write(tmp_path / "job.yaml", job("big", 12, required=RACK))
    code, text = run("explain", "-f", asked, "--synthetic", SPEC)
    assert code == 1
    rows = [" ".join(line.split()) for line in text.splitlines()]
    assert f"{RACK} 4 0 8 32" in rows
    assert rows[-3:] == [
        "if pod set main had only 8 pods",
        "if pod set main required only one topology.kubernetes.io/zone",
        "with 1 more host like host-1-1-1",
    ]


def test_a_toleration_that_would_help_is_written_out_and_wraps_below_itself(
    tmp_path: Path,
) -> None:
    taint = {"key": "dedicated", "value": "ml", "effect": "NoSchedule"}
    nodes = [node("n1", RACK="r"), node("n2", RACK="r", taints=[taint])]
    where = write(tmp_path / "c.json", *(named("Node", each) for each in nodes))
    file = write(tmp_path / "job.yaml", job("j", 8, required=RACK))
    levels = f"{RACK},{HOST}"
    _, text = run("explain", "-f", file, "--cluster", where, "--levels", levels, columns=80)
    assert (
        "  if its pods tolerated dedicated=ml:NoSchedule; in the pod template:\n"
        "  tolerations: [{key: dedicated, operator: Equal, value: ml, effect:\n"
        "  NoSchedule}]\n"
    ) in text


def test_overbooked_hosts_and_the_hosts_that_would_help_are_said_as_they_are(
    tmp_path: Path,
) -> None:
    """A new host has what its DaemonSets put there, which is why one is not enough."""
    bound = [pod("a", "n1", cpu=6), pod("b", "n2", cpu=5)]
    bound[1]["metadata"]["ownerReferences"] = [{"kind": "DaemonSet", "name": "d"}]
    nodes = [node("n1", RACK="r", cpu=4), node("n2", RACK="s", cpu=8)]
    settings = {"topologies": [{"name": "default", "levels": [RACK, HOST]}]}
    items = [*(named("Node", each) for each in nodes), *(named("Pod", each) for each in bound)]
    where = write(
        tmp_path / "c.json",
        {"kind": "List", "items": [*items, {"kind": "ClusterPlacement", "spec": settings}]},
    )
    file = write(tmp_path / "job.yaml", job("j", 4, cpu=3, required=RACK))
    text = run("explain", "-f", file, "--cluster", where)[1]
    assert "  with 3 more hosts like n2" in text.splitlines()
    bound.append(pod("c", "n2", cpu=4))
    items = [*(named("Node", each) for each in nodes), *(named("Pod", each) for each in bound)]
    items.append({"kind": "ClusterPlacement", "spec": settings})
    text = run("explain", "-f", file, "--cluster", write(tmp_path / "d.json", *items))[1]
    line = 'no room for one pod: 2 of 2 hosts: resource "cpu": all are overbooked, by 1 at least'
    assert f"{line}, on n2" in text.splitlines()


@pytest.mark.parametrize("form", ["table", "html"])
def test_an_explanation_has_amounts_and_hosts(tmp_path: Path, form: str) -> None:
    taint = {"key": "mine", "effect": "NoSchedule"}
    nodes = [node(f"n{at}", RACK="r", cpu=at, memory="4Gi") for at in range(1, 4)]
    nodes += [node(f"t{at}", RACK="r", taints=[taint]) for at in range(5)]
    settings = {"topologies": [{"name": "default", "levels": [RACK, HOST]}]}
    items = [*(named("Node", each) for each in nodes)]
    where = write(
        tmp_path / "c.json",
        {"kind": "List", "items": [*items, {"kind": "ClusterPlacement", "spec": settings}]},
    )
    asked = job("big", 1)
    asked["spec"]["template"]["spec"] = pod_spec({"cpu": 3, "memory": "8Gi"})
    file = write(tmp_path / "job.yaml", asked)
    text = unescape(run("explain", "-f", file, "--cluster", where, "-o", form)[1])
    for line in (
        "each pod asks for cpu 3, memory 8 GiB",
        'no room for one pod: 2 of 8 hosts: resource "cpu": at most 2 left, on n2',
        'no room for one pod: 1 of 8 hosts: resource "memory": at most 4 GiB left, on n3',
        'no room for one pod: 5 of 8 hosts: taint "mine:NoSchedule": t0, t1, t2 and 2 more',
    ):
        assert line in text
    (found,) = json.loads(run("explain", "-f", file, "--cluster", where, "-o", "json")[1])[
        "podSets"
    ]
    assert found["asks"] == {"cpu": 3000, "memory": 8 << 30}
    assert found["examples"]['resource "cpu"'] == {
        "leaves": ["n2", "n1"],
        "resource": "cpu",
        "left": 2000,
    }


def test_an_explanation_of_what_fits_names_the_hosts(tmp_path: Path, cluster: str) -> None:
    file = write(tmp_path / "job.yaml", job("wide", 30, required="topology.kubernetes.io/zone"))
    where = ("--synthetic", "zone:2 rack:2 host:4 cpu:4 memory:8Gi")
    text = " ".join(run("explain", "-f", file, *where)[1].split())
    assert text.endswith(
        "places of main: host-1-1-1 (4), host-1-1-2 (4), host-1-1-3 (4), host-1-1-4 (4),"
        " host-1-2-1 (4), host-1-2-2 (4) and 2 more"
    )
    assert "places of main: a1 (2)" in run("explain", "old", "--cluster", cluster)[1]


def test_an_explanation_points_at_a_plan_where_pods_may_move(tmp_path: Path) -> None:
    crowded = str(Path(__file__).parents[3] / "configs/groups/crowded.yaml")
    hint = '7 pods may move: "nri-policy cluster plan" finds whether that helps'
    assert hint in run("explain", "render", "--cluster", crowded)[1]
    assert hint in unescape(run("explain", "render", "--cluster", crowded, "-o", "html")[1])
    found = json.loads(run("explain", "render", "--cluster", crowded, "-o", "json")[1])
    assert found["movable"] == 7
    file = write(tmp_path / "job.yaml", job("small", 1))
    assert "may move" not in run("explain", "-f", file, "--cluster", crowded)[1]


def test_a_group_of_the_cluster_is_explained_by_name(cluster: str) -> None:
    assert run("explain", "old", "--cluster", cluster)[1].startswith("default/old: it fits\n")
    code, text = run("explain", "olds", "--cluster", cluster)
    assert code == 2
    assert "there is no group 'olds' in the cluster; did you mean 'old'?" in text
    for command in ("explain", "plan"):
        code, text = run(command, "training", "--cluster", cluster)
        assert code == 2
        assert "no group 'training' in the cluster; there are: default/old (pods in a" in text
    text = run("explain", "big", "--synthetic", SPEC)[1]
    assert "there is no group 'big' in the cluster, which has none (pods in a file" in text


def test_one_pod_is_one_pod(tmp_path: Path) -> None:
    asked = write(tmp_path / "job.yaml", job("one", 1, required=RACK))
    assert (
        "pod set main: 1 pod; each pod asks for cpu 1\n"
        in run("explain", "-f", asked, "--synthetic", SPEC)[1]
    )
    page = run("explain", "-f", asked, "--synthetic", SPEC, "-o", "html")[1]
    assert f"main: 1 pod; {RACK}" in page


def test_a_picture_has_a_cell_for_each_host(tmp_path: Path) -> None:
    asked = write(tmp_path / "job.yaml", job("j", 6, required=RACK))
    code, text = run("place", "-f", asked, "--synthetic", SPEC, "-o", "svg")
    assert code == 0
    root = ET.fromstring(text)
    racks = [each for each in root.iter(f"{SVG}g") if each.get("class") == "rack"]
    assert [len(rack.findall(f"{SVG}g")) for rack in racks] == [2, 2, 2, 2]
    bars = [each.find(f"{SVG}g/{SVG}rect") for each in racks[0].findall(f"{SVG}g")]
    assert [each.get("height") for each in bars if each is not None] == ["20", "10"]
    page = run("tree", "--synthetic", SPEC, "-o", "html")[1]
    assert ET.fromstring(page.removeprefix("<!DOCTYPE html>")).tag == "html"


def test_a_cluster_has_to_be_named(tmp_path: Path) -> None:
    assert run("tree")[0] == 2
    code, text = run("tree", "--synthetic", "rack:2")
    assert (code, text) == (
        2,
        "nri-policy: --synthetic: 'rack:2' has no host:COUNT, the last of the levels\n",
    )
    assert run("tree", "--synthetic", SPEC, "--topology", "x")[0] == 2
    bad = write(tmp_path / "bad.json", {"kind": "Node", "metadata": {"name": ""}})
    assert "nodes[0].metadata.name: a node has a name" in run("tree", "--cluster", bad)[1]


def test_a_live_cluster_is_asked(tmp_path: Path) -> None:
    """It reads nodes, groups and Kueue's topologies; a kind without a CRD counts as empty."""
    topology = {
        "metadata": {"name": "racks"},
        "spec": {"levels": [{"nodeLabel": RACK}, {"nodeLabel": HOST}]},
    }
    other = pod("p", "a1", cpu=3)

    async def asked() -> tuple[int, str]:
        async with ClusterAPI(tmp_path) as api:
            api.refuse = lambda _, path: 404 if "topology.node" in path else 0
            for rack in "ab":
                await api.put("nodes", node(f"{rack}1", RACK=rack))
            await api.put("pods", {**other, "metadata": {**other["metadata"], "namespace": "x"}})
            await api.put("topologies", topology)
            arguments = ["tree", "--kubeconfig", str(api.kubeconfig), "--topology", "racks"]
            return await asyncio.to_thread(run, *arguments, "-o", "json")

    code, text = asyncio.run(asked())
    assert code == 0
    report = json.loads(text[text.index("{") :])  # behind the note that the defaults count
    racks = {each["values"][0]: each["free"]["cpu"] for each in report["domains"]}
    assert racks == {"a": 1000, "b": 4000}


def test_a_live_cluster_is_found_as_kubectl_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)

    async def asked(found: Path) -> tuple[int, str]:
        async with ClusterAPI(tmp_path) as api:
            await api.put("nodes", node("a1", RACK="a"))
            await asyncio.to_thread(found.symlink_to, api.kubeconfig)
            return await asyncio.to_thread(run, "tree")

    code, text = run("tree")
    assert code == 2
    assert "no cluster is named" in text
    (tmp_path / ".kube").mkdir()
    code, text = asyncio.run(asked(tmp_path / ".kube" / "config"))
    assert (code, "a1" in text) == (0, True), text
    named = tmp_path / "named"
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'none'}:{named}")
    (tmp_path / ".kube" / "config").unlink()
    (tmp_path / ".kube" / "config").write_text("not used")
    code, text = asyncio.run(asked(named))
    assert (code, "a1" in text) == (0, True), text


def test_a_cluster_that_does_not_answer_is_said_so(tmp_path: Path) -> None:
    async def asked() -> tuple[int, str]:
        async with ClusterAPI(tmp_path) as api:
            api.refuse = lambda _method, _path: 403
            return await asyncio.to_thread(run, "tree", "--kubeconfig", str(api.kubeconfig))

    code, text = asyncio.run(asked())
    assert code == 3
    assert re.search(r"https?://127\.0\.0\.1:\d+ \(context .+\): 403: ", text), text


def test_scarce_resources_fill_a_host(tmp_path: Path) -> None:
    asked = job("j", 2, required=RACK)
    amounts = {"cpu": "1", "gpu": "4"}
    resources = {"requests": amounts, "limits": amounts}
    asked["spec"]["template"]["spec"]["containers"][0]["resources"] = resources
    where = ["--synthetic", "rack:1 host:2 cpu:128 gpu:8", "-o", "html"]
    code, text = run("place", "-f", write(tmp_path / "asked.yaml", asked), *where)
    assert code == 0
    assert "rack-1 / host-1-1: 100% of gpu; cpu 2 of 128; memory 0 of 64 GiB; " in text
    assert "gpu 8 of 8; default/j: 2 pods" in text
    cells = re.findall(r"<td[^>]*>(gpu|8|16|50.0%)</td>", text)
    assert cells == ["gpu", "8", "16", "50.0%"]


def test_hosts_have_a_row_each(tmp_path: Path) -> None:
    asked = write(tmp_path / "asked.yaml", job("j", 6, required=RACK))
    code, text = run("place", "-f", asked, "--synthetic", SPEC, "--hosts")
    assert code == 0
    rows = [" ".join(line.split()) for line in text.splitlines()]
    assert rows == [
        "group pod set where host pods",
        "default/j main zone zone-1, rack rack-1-1 host-1-1-1 4",
        "default/j main zone zone-1, rack rack-1-1 host-1-1-2 2",
    ]


def test_a_column_has_one_unit() -> None:
    text = run("tree", "--synthetic", "rack:2 host:2 cpu:4 memory:1.5Ti")[1]
    rows = [line.split() for line in text.splitlines()[1:]]
    assert rows[0][4:7] == ["memory", "used", "(TiB)"]
    assert [row[5:8] for row in rows[1:3]] == [["0", "of", "3"], ["0", "of", "1.5"]]


def test_a_label_that_is_no_level_can_be_made_one(tmp_path: Path) -> None:
    """The error says how, and an option does it for a try."""
    asked = write(tmp_path / "asked.yaml", job("j", 4, required=RACK))
    zones = "topology.kubernetes.io/zone"
    levels = ["--levels", f"{zones},{HOST}"]
    code, text = run("place", "-f", asked, "--synthetic", SPEC, *levels, "-o", "json")
    assert code == 2
    message = json.loads(text)[0]["status"]["message"]
    whole = f"{zones},{RACK},{HOST}"
    offer = f"`nri-policy cluster place --levels {whole}` tries it as one; a ClusterPlacement with"
    assert f'{offer} these levels in topology "default" makes it one' in message
    assert run("place", "-f", asked, "--synthetic", SPEC, "--levels", whole)[0] == 0
    code, text = run("tree", "--synthetic", SPEC, "--levels", "a,a")
    assert (code, "'a' is given twice" in text) == (2, True)


def test_a_file_without_a_group_is_an_error() -> None:
    code, text = run("place", "-f", "/dev/null", "--synthetic", SPEC)
    assert (code, text) == (2, "nri-policy: /dev/null: there is no object to place in it\n")
    assert run("place", "-f", "/dev/null", "--service", "http://localhost:1") == (code, text)


def test_a_file_of_kinds_that_are_not_placed_is_told_those_that_are(tmp_path: Path) -> None:
    kinds = ["Service", "VirtualService", "ResourceFlavor", "RayCronJob"]
    items = [{"kind": kind, "metadata": {"name": "s"}} for kind in kinds]
    asked = write(tmp_path / "asked.yaml", {"kind": "List", "items": items})
    code, text = run("place", "-f", asked, "--synthetic", SPEC)
    assert code == 2
    left_out = ", ".join(f"1 {kind}" for kind in kinds)
    assert (
        f"there is no object to place in it: {left_out}; these can be placed: Deployment, " in text
    )
    assert ", JobSet, " in text
    write(tmp_path / "asked.yaml", {"kind": "RayServce", "metadata": {"name": "s"}})
    code, text = run("place", "-f", asked, "--synthetic", SPEC)
    assert (code, "did you mean 'RayService'?" in text) == (2, True)


def numbers(svg: str) -> list[str]:
    """Return the numbers of pods on the hosts of a picture."""
    hosts = [each for each in ET.fromstring(svg).iter() if each.get("class") == "host"]
    return [text.text or "" for host in hosts for text in host.iter(f"{SVG}text")]


def test_explain_and_simulate_draw_where_pods_would_go(tmp_path: Path) -> None:
    asked = write(tmp_path / "asked.yaml", job("j", 6, required=RACK))
    code, text = run("explain", "-f", asked, "--synthetic", SPEC, "-o", "svg")
    assert (code, numbers(text)) == (0, ["4", "2"])
    code, text = run("explain", "-f", asked, "--synthetic", SPEC, "-o", "html")
    assert "main: 6 pods; example.com/rack: 4 of 4 domains fit the whole pod set, at most 8" in text
    steps = [{"apply": [job("j", 3)]}, {"expect": {"j": {"state": "Waiting"}}}]
    (tmp_path / "steps.yaml").write_text(json.dumps(steps))
    code, text = run("simulate", str(tmp_path / "steps.yaml"), "--synthetic", SPEC, "-o", "svg")
    assert (code, numbers(text)) == (1, ["3"])
    code, text = run("simulate", str(tmp_path / "steps.yaml"), "--synthetic", SPEC, "-o", "html")
    assert "not as expected: default/j is Placed, not Waiting" in text


def test_groups_are_listed_those_in_need_first(tmp_path: Path) -> None:
    def of_state(name: str, state: str) -> Any:
        made = group(pod_set(2), name=name, status={"state": state, "message": f"it is {name}"})
        made["metadata"] |= {"creationTimestamp": f"2026-01-0{len(name)}T00:00:00Z"}
        return made | {"kind": "PlacementGroup", "apiVersion": "placement.nri/v1alpha1"}

    items = [
        of_state("runs", "Running"),
        of_state("late", "Waiting"),
        of_state("odd", "Waiting"),
        of_state("hurt", "Degraded"),
        of_state("over", "Finished"),
        {"kind": "Pod", "apiVersion": "v1"} | pod("p", "h1", group="runs"),
    ]
    path = write(tmp_path / "cluster.json", {"kind": "List", "items": items})
    rows = json.loads(run("top", "--cluster", path, "-o", "json")[1])
    assert [each["name"] for each in rows] == ["hurt", "odd", "late", "runs", "over"]
    assert (rows[-2]["running"], rows[-2]["pods"], rows[0]["message"]) == (1, 2, "it is hurt")
    code, text = run("top", "--cluster", path)
    assert code == 0
    assert "1 Degraded, 2 Waiting, 1 Running, 1 Finished" in text
    assert "over" not in text, "one that is finished is only counted"


def test_a_finished_group_is_in_no_queue_and_in_no_simulation(tmp_path: Path) -> None:
    items = [named("Node", node("h1", RACK="r"))]
    items += [
        named("PlacementGroup", group(pod_set(2, cpu=1), name=name, status={"state": state}))
        for name, state in (("over", "Finished"), ("waits", "Waiting"))
    ]
    items.append({"kind": "ClusterPlacement", "spec": {"topologies": [{"levels": [RACK, HOST]}]}})
    path = write(tmp_path / "cluster.json", {"kind": "List", "items": items})
    explained = json.loads(run("explain", "waits", "--cluster", path, "-o", "json")[1])
    assert (explained["standing"]["ahead"], explained["standing"]["waiting"]) == (0, 1)
    steps = write(tmp_path / "steps.yaml", [{"expect": {"waits": {"state": "Placed"}}}])
    played = run("simulate", steps, "--cluster", path, "--steps", "-o", "json")[1]
    (step,) = json.loads(played)["steps"]
    assert [each["name"] for each in step["groups"]] == ["default/waits"]


def test_groups_are_readable_in_a_narrow_terminal() -> None:
    """Names, states and ages are whole, and each message has a line of its own."""
    message = 'topology "default" allows to fit only 3 out of 7 pod(s)'
    row = GroupRow(
        namespace="default",
        name="job-training",
        state="Unplaceable",
        pods=7,
        running=0,
        hosts=0,
        priority=5,
        created="",
        message=message,
    )
    aged = replace(row, created="2026-11-20T00:00:00Z")
    rows = [aged, replace(row, name="job-b", message="", state="Running")]
    console = Console(width=80, highlight=False)
    with console.capture() as shown:
        for each in drawn(rows, datetime(2026, 11, 27, tzinfo=UTC).timestamp()):
            console.print(each)
    assert [line.split() for line in shown.get().splitlines()] == [
        ["group", "state", "pods", "running", "hosts", "priority", "age"],
        ["default/job-training", "Unplaceable", "7", "0", "0", "5", "7d"],
        ["default/job-b", "Running", "7", "0", "0", "5"],
        ["1", "Unplaceable,", "1", "Running"],
        ["default/job-training:", *message.split()],
    ]


def test_the_running_service_is_asked(tmp_path: Path) -> None:
    """It answers from its own state, and a tried group leaves no trace in it."""
    asked = write(tmp_path / "job.yaml", job("big", 6))
    large = write(tmp_path / "large.yaml", job("large", 9))

    async def play() -> list[tuple[int, str]]:
        async with ClusterAPI(tmp_path) as api:
            for name in ("h1", "h2"):
                await api.put("nodes", node(name))
            async with replica(api, groups=True) as at, replica(api) as other:
                controller = at.service.controller
                assert controller is not None
                await at.until(lambda: not at.service.watch.problem(*OF_GROUPS))
                where = ["--service", f"http://127.0.0.1:{at.port}"]
                others = ["--service", f"http://127.0.0.1:{other.port}"]
                found = [
                    await asyncio.to_thread(run, *arguments)
                    for arguments in (
                        ["place", "-f", asked, *where, "-o", "json"],
                        ["place", "-f", large, *where],
                        ["explain", "-f", large, *where],
                        ["explain", "nobody", *where],
                        ["place", "-f", asked, *others],
                        ["place", "-f", asked, *where, "--synthetic", SPEC],
                        ["place", "-f", asked, *where, "-o", "svg"],
                    )
                ]
                assert not controller.engine.state.groups
                return found

    placed, refused, explained, unknown, none, twice, picture = asyncio.run(play())
    (tried,) = json.loads(placed[1])
    assert (placed[0], tried["status"]["state"], tried["parts"][0]["pods"]) == (0, "Placed", 4)
    assert (refused[0], "fit only 8 out of 9" in refused[1]) == (1, True)
    assert explained[1].startswith('default/large: topology "default"')
    assert "  if pod set main had only 8 pods" in explained[1]
    assert (unknown[0], "there is no group 'nobody' in the cluster" in unknown[1]) == (3, True)
    assert (none[0], "it runs without --groups" in none[1]) == (3, True)
    assert (twice[0], picture[0]) == (2, 2)


def test_zones_that_no_topology_names_are_noted() -> None:
    code, text = run("tree", "--synthetic", SPEC, "--zones")
    assert (code, text.splitlines()[0]) == (
        0,
        "note: no zones: set belowHost: [Node] in the topology default",
    )
    assert "note" not in run("tree", "--synthetic", f"{SPEC} numa:2", "--zones")[1]


def test_a_level_that_is_no_label_of_a_node_is_noted_with_those_that_are_near() -> None:
    code, text = run("tree", "--synthetic", SPEC, "--levels", f"example.com/rak,{HOST}")
    assert code == 0
    assert (
        "note: no node has the label 'example.com/rak'; did you mean 'example.com/rack'?\n" in text
    )
    text = run("tree", "--synthetic", SPEC, "--levels", f"x,{HOST}")[1]
    assert "note: no node has the label 'x'; there are: example.com/rack, kubernetes.io/h" in text
    assert "note" not in run("tree", "--synthetic", SPEC, "--levels", f"{RACK},{HOST}")[1]


def test_a_type_of_zones_that_no_node_reports_is_noted(tmp_path: Path) -> None:
    topology = {"levels": [RACK, HOST], "belowHost": ["numa", "node"]}
    spec = {"topologies": [topology]}
    document = {"apiVersion": "config.nri/v1alpha1", "kind": "ClusterPlacement", "spec": spec}
    given = ["--synthetic", f"{SPEC} socket:2", "--settings"]
    text = run("tree", *given, write(tmp_path / "s.yaml", document))[1]
    note = "note: no node reports zones of type"
    assert f"{note} 'numa' (belowHost); there are: Node, socket, virtual node\n" in text
    assert f"{note} 'node' (belowHost); did you mean 'Node'?\n" in text
    topology["belowHost"] = ["Node"]
    assert note not in run("tree", *given, write(tmp_path / "s.yaml", document))[1]


def test_pods_of_a_deployment_are_placed_one_by_one(tmp_path: Path) -> None:
    asked = write(tmp_path / "web.yaml", job("web", 40, kind="Deployment", required=RACK))
    code, text = run("place", "-f", asked, "--synthetic", SPEC, "-o", "json")
    assert code == 1
    (tried,) = json.loads(text)
    assert sum(part["pods"] for part in tried["parts"]) == 32
    assert tried["status"]["message"].startswith("32 of 40 pods fit; the next one: topology ")
    assert tried["notes"][0].startswith("default/web: each of its pods is placed alone; ")
    for command in ("explain", "plan"):
        code, text = run(command, "-f", asked, "--synthetic", SPEC)
        words = " ".join(text.split())
        assert code == 1
        assert "each of its 40 pods is placed alone; 32 fit, and this is the next one" in words
    code, text = run("explain", "-f", asked, "--synthetic", "zone:3 rack:2 host:4 cpu:8")
    assert (code, "40 pods is placed alone; all of them fit" in " ".join(text.split())) == (0, True)


def test_a_level_of_the_settings_that_looks_misspelt_is_noted(tmp_path: Path) -> None:
    spec = {"topologies": [{"levels": ["example.com/rak", HOST]}]}
    document = {"apiVersion": "config.nri/v1alpha1", "kind": "ClusterPlacement", "spec": spec}
    given = ["--synthetic", SPEC, "--settings", write(tmp_path / "s.yaml", document)]
    note = "note: no node has the label 'example.com/rak'; did you mean 'example.com/rack'?\n"
    assert note in run("tree", *given)[1]
    spec["topologies"] = [{"levels": ["block", HOST]}]
    write(tmp_path / "s.yaml", document)
    assert "note" not in run("tree", *given)[1]
