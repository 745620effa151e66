"""`cluster place`, `explain` and `plan` say where nodes that align pods refuse a group's pods."""

from __future__ import annotations

import json
from functools import partial
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from nri_policy.cluster.engine.engine import Engine
from nri_policy.cluster.numa.extender import BadRequestError
from nri_policy.cluster.numa.promises import LiveZones
from nri_policy.cluster.numa.zone_limits import ZoneLimits
from nri_policy.cluster.objects.pod import read_pod
from nri_policy.cluster.objects.settings import read_settings
from nri_policy.cluster.offline import cluster_of, engine_of
from nri_policy.cluster.planning.group_answers import explain_group
from nri_policy.cluster.requests.group import read_group
from nri_policy.cluster.service.queries import answer_explain, answer_place
from nri_policy.cluster.snapshot import read_snapshot
from nri_policy.cluster.workloads.workload import read_groups
from nri_policy.foundation.clock import Clock
from tests.unit.cli.test_cluster_questions import run, write
from tests.unit.cluster.numa.test_extender import node, pod, zones
from tests.unit.cluster.written import group, pod_set

LARGE = "zone:1 rack:2 host:2 cpu:32 memory:128Gi socket:2 numa:2"  # zones of 8 CPUs
LISTED = ({"name": "nri-policy/pods", "value": "2860be68e825c1c2"},)  # of another pod
HINT = '"cluster fit" shows which zones of each node take one of its pods'
TOO_SMALL = (
    "the node aligns pods to one NUMA node, and refuses its pods even if it is empty (host-1-1-1:"
    " cannot align container: cpu: 12 asked, 8 in an empty zone)"
)
FULL = (
    "the node aligns pods to one NUMA node, and refuses its pods while its zones are as full as now"
    " (n: cannot align container: cpu: 4 asked, 1 left in node-0, 8 in an empty zone)"
)


def asked(name: str, cpu: int, **spec: Any) -> Any:
    return {"kind": "Pod"} | pod(name, cpu, **spec)


def asked_pods(count: int, cpu: int) -> Any:
    """A pod set of such pods."""
    return pod_set(count) | {"template": {"spec": pod("p", cpu)["spec"]}}


def asked_group(count: int, cpu: int, **status: Any) -> Any:
    """A group of such pods."""
    return {"kind": "PlacementGroup"} | group(asked_pods(count, cpu), **status)


def labelled(name: str) -> Any:
    labels = {"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": "z"}
    return node(name) | {"kind": "Node", "metadata": {"name": name, "labels": labels}}


def cluster(*free: int, policy: str = "single-numa-node") -> Any:
    """A node `n` with zones of 8 CPUs, of which so many are free."""
    report = zones("n", *free)
    report["attributes"] = [{"name": "topologyManagerPolicy", "value": policy}]
    items = [labelled("n"), {"kind": "NodeResourceTopology"} | report]
    return {"kind": "List", "items": items}


def told(tmp_path: Path, of: Any, *where: str) -> tuple[Any, list[str]]:
    """The status and the notes of a group in JSON, which all commands say, and their exit codes."""
    file = write(tmp_path / "asked.yaml", of)
    answers = []
    for command in ("place", "explain", "plan"):
        code, text = run(command, "-f", file, *where, "-o", "json")
        found = json.loads(text)
        found = found[0] if isinstance(found, list) else found
        assert code == (found["status"]["state"] == "Unplaceable")
        answers.append((found["status"], found["notes"]))
    assert answers[0] == answers[1] == answers[2]
    return answers[0]


def refusals(tmp_path: Path, of: Any, *where: str) -> list[str]:
    """Why zones refuse a group, by its conditions; a note says what helps."""
    status, notes = told(tmp_path, of, *where)
    found = [each["message"] for each in status.get("conditions", ())]
    assert notes == [f"default/{of['metadata']['name']}: {HINT}"] * bool(found)
    assert all(each in status["message"] for each in found)
    return found


def fits(tmp_path: Path, of: Any, items: Any) -> bool:
    """Whether zones leave a place for a group in a cluster of these objects."""
    where = write(tmp_path / "cluster.json", {"kind": "List", "items": items})
    return not refusals(tmp_path, of, "--cluster", where)


def test_zones_that_are_too_small_are_named_in_every_form(tmp_path: Path) -> None:
    file = write(tmp_path / "asked.yaml", asked("big", 12))
    for command in ("place", "explain"):
        code, text = run(command, "-f", file, "--synthetic", LARGE)
        assert code == 1
        text = " ".join(text.split())
        assert f"pod set main: on 1 of 1 host {TOO_SMALL}" in text
        assert f"note: default/big: {HINT}" in text
        page = run(command, "-f", file, "--synthetic", LARGE, "-o", "html")[1]
        assert HINT in unescape(page)


def test_all_hosts_with_such_zones_count(tmp_path: Path) -> None:
    found = f"pod set main: on 4 of 4 hosts {TOO_SMALL}"
    assert refusals(tmp_path, asked_group(8, 12), "--synthetic", LARGE) == [found]


def test_pods_that_fit_their_zones_are_placed(tmp_path: Path) -> None:
    assert refusals(tmp_path, asked_group(8, 8), "--synthetic", LARGE) == []


def test_a_group_without_room_is_told_of_zones_that_are_too_small(tmp_path: Path) -> None:
    """Fewer pods would find room, but no node that takes them."""
    found = (
        "default/g, pod set main: 4 of 4 nodes would refuse its pods even when empty, as they align"
        " pods to one NUMA node (host-1-1-1: cannot align container: cpu: 12 asked, 8 in an empty"
        " zone)"
    )
    status, notes = told(tmp_path, asked_group(9, 12), "--synthetic", LARGE)
    assert (status["conditions"], notes) == ([], [found])
    assert told(tmp_path, asked_group(17, 8), "--synthetic", LARGE)[1] == []


def test_zones_are_not_counted_as_hosts(tmp_path: Path) -> None:
    request = {
        "required": "topology.kubernetes.io/zone",
        "slices": [{"level": "zone/Node", "size": 1}],
    }
    one = pod_set(1, request) | {"template": {"spec": pod("p", 12)["spec"]}}
    file = write(tmp_path / "asked.yaml", {"kind": "PlacementGroup"} | group(one))
    text = " ".join(run("explain", "-f", file, "--synthetic", LARGE)[1].split())
    assert 'Total zones: 16; excluded: resource "cpu": 16' in text
    assert "no room for one pod: 16 of 16 zones: " in text


@pytest.mark.parametrize(
    ("free", "policy", "found"),
    [
        ((1, 1), "single-numa-node", [f"pod set main: on 1 of 1 host {FULL}"]),
        ((1, 4), "single-numa-node", []),
        ((1, 1), "best-effort", []),
    ],
)
def test_zones_that_are_full_now_are_told_from_small_ones(
    tmp_path: Path, free: tuple[int, ...], policy: str, found: list[str]
) -> None:
    where = write(tmp_path / "cluster.json", cluster(*free, policy=policy))
    assert refusals(tmp_path, asked("p", 4), "--cluster", where) == found


@pytest.mark.parametrize(("cpu", "number"), [(4, 0), (12, 1)])
def test_what_a_group_itself_fills_is_not_held_against_it(
    tmp_path: Path, cpu: int, number: int
) -> None:
    where = write(tmp_path / "cluster.json", cluster(1, 1))
    file = write(tmp_path / "asked.yaml", asked_group(1, cpu, status=on("n", 1)))
    found = json.loads(run("explain", "-f", file, "--cluster", where, "-o", "json")[1])
    assert len(found["notes"]) == number


def test_the_service_says_it_as_well() -> None:
    report = zones("n", 1, 1)
    snapshot = read_snapshot({"nodes": [labelled("n")], "zones": [report]})
    engine = engine_of(snapshot, read_settings(None))
    body = json.dumps([asked("p", 4)]).encode()
    (placed,) = json.loads(answer_place(engine, body))
    explained = json.loads(answer_explain(engine, body))
    for each in (placed, explained):
        assert each["notes"] == [f"default/p: {HINT}"]
        [condition] = each["status"]["conditions"]
        assert condition["message"] == f"pod set main: on 1 of 1 host {FULL}"


def test_the_service_explains_one_of_several_groups_by_name() -> None:
    engine = engine_of(read_snapshot({"nodes": [labelled("n")]}), read_settings(None))
    objects = [asked("p", 4), asked("q", 40)]

    def states(question: object) -> str:
        found = json.loads(answer_explain(engine, json.dumps(question).encode()))
        return str(found["status"]["state"])

    assert states({"name": "p", "objects": objects}) == "Placed"
    assert states({"name": "q", "objects": objects}) == "Unplaceable"
    assert states(objects[:1]) == "Placed"
    wrong: list[tuple[object, str]] = [
        (objects, "2 groups in the objects: name one of default/p, default/q"),
        ({"name": "r", "objects": objects}, "there is no group 'r' in the objects"),
        ({"name": 1, "objects": objects}, "name: 1 is no name"),
        ({"name": "p"}, "null is not a list of objects"),
    ]
    for question, text in wrong:
        with pytest.raises(BadRequestError, match=text):
            states(question)


@pytest.mark.parametrize(
    ("free", "count", "found"),
    [((1, 8), 2, False), ((8, 8), 2, True), ((8, 8), 3, False), ((1, 1), 2, False)],
)
def test_pods_of_a_group_on_one_host_are_checked_together(
    tmp_path: Path, free: tuple[int, ...], count: int, found: bool
) -> None:
    """Each of two pods alone would fit into the only zone that is free."""
    items = cluster(*free)["items"]
    items[0]["status"]["allocatable"]["cpu"] = 32
    assert fits(tmp_path, asked_group(count, 5), items) == found


def test_the_headline_says_what_nodes_refuse(tmp_path: Path) -> None:
    where = write(tmp_path / "cluster.json", cluster(1, 8))
    assert explained(tmp_path, 2, 5, where).startswith(
        'default/g: topology "default" allows to fit only 1 out of 2 pod(s); pod set main: on 1 of'
        " 1 host the node aligns pods to one NUMA node, and refuses 1 of 2 of its pods while its"
        f" zones are as full as now (n: cannot align container: 1 of 2 fit together) note:"
        f" default/g: {HINT}"
    )
    assert "no room for one pod: 1 of 1 host: NUMA zones: n" in explained(tmp_path, 1, 12, where)
    assert explained(tmp_path, 1, 8, where).startswith("default/g: it fits ")


def explained(tmp_path: Path, count: int, cpu: int, where: str) -> str:
    file = write(tmp_path / "asked.yaml", asked_group(count, cpu))
    return " ".join(run("explain", "-f", file, "--cluster", where)[1].split())


@pytest.mark.parametrize(
    ("cpu", "count", "found"),
    [
        (12, 1, "it has its places, but their hosts would refuse all of its pods"),
        (5, 3, "it has its places, but their hosts would refuse 1 of 3 pods"),
        (5, 2, "it fits"),
    ],
)
def test_a_group_that_has_its_places_is_told_what_nodes_refuse_there(
    tmp_path: Path, cpu: int, count: int, found: str
) -> None:
    where = write(tmp_path / "cluster.json", cluster(1, 1))
    file = write(tmp_path / "asked.yaml", asked_group(count, cpu, status=on("n", count)))
    code, text = run("explain", "-f", file, "--cluster", where)
    assert text.startswith(f"default/g: {found}\n")
    assert code == (found != "it fits")


def test_groups_that_are_placed_before_take_zones(tmp_path: Path) -> None:
    where = write(tmp_path / "cluster.json", cluster(1, 8))
    file = write(tmp_path / "asked.yaml", asked("one", 5), asked("two", 5))
    found = json.loads(run("place", "-f", file, "--cluster", where, "-o", "json")[1])
    assert [each["status"]["state"] for each in found] == ["Placed", "Unplaceable"]


@pytest.mark.parametrize("there", [False, True])
def test_places_of_other_groups_count_until_their_pods_are_there(
    tmp_path: Path, there: bool
) -> None:
    """A pod that runs is in what its node reports."""
    other = asked_group(1, 5, status=on("n", 1))
    other["metadata"]["name"] = "other"
    items = [*cluster(1, 8)["items"], other]
    if there:
        one = asked("o-0", 5, at="n")
        one["metadata"]["labels"] = {"placement.nri/group": "other"}
        items.append(one | {"status": {"phase": "Running"}})
    assert fits(tmp_path, asked_group(1, 5), items) == there


def test_large_pods_are_tried_before_small_ones(tmp_path: Path) -> None:
    """A small one in each zone would leave none for the large one."""
    sets = [
        pod_set(count, name=name) | {"template": {"spec": pod("p", cpu)["spec"]}}
        for name, count, cpu in (("a-small", 2, 2), ("b-large", 1, 8))
    ]
    items = cluster(8, 8)["items"]
    assert fits(tmp_path, {"kind": "PlacementGroup"} | group(*sets), items)


def test_a_place_that_is_promised_to_a_pod_on_its_way_counts_once() -> None:
    """The extender has chosen the node for a pod whose group has its place there."""
    other = read_group(group(asked_pods(1, 5), name="other", status=on("n", 1)))
    snapshot = read_snapshot({"nodes": [labelled("n")], "zones": [zones("n", 8, 8)]})
    settings, view = read_settings(None), cluster_of(snapshot).view
    live = LiveZones(settings.extender, view, Clock(now=lambda: 0.0))
    engine = Engine(settings, view, partial(ZoneLimits, lambda: live))
    engine.state.set_group(other)
    mine = read_group(group(asked_pods(1, 5), name="mine"))
    assert engine.place(mine).assignments
    chosen = read_pod(pod("other-0", 5), "")
    assert live.choose(chosen, live.fits.request(chosen), ["n"]) == "n"
    assert engine.place(mine).assignments


def test_equal_nodes_differ_by_what_is_promised_there() -> None:
    """Two hosts alike, and one pod of the group on each; a zone of the second is promised."""
    names = ["m", "n"]
    snapshot = read_snapshot(
        {
            "nodes": [labelled(each) for each in names],
            "zones": [zones(each, 5, 1) for each in names],
        }
    )
    settings, view = read_settings(None), cluster_of(snapshot).view
    live = LiveZones(settings.extender, view, Clock(now=lambda: 0.0))
    engine = Engine(settings, view, partial(ZoneLimits, lambda: live))
    spread = {"spreadOver": ["kubernetes.io/hostname"]}
    mine = read_group(group(asked_pods(2, 5) | {"request": spread}, name="mine"))
    assert engine.place(mine).assignments
    chosen = read_pod(pod("other", 5), "")
    assert live.choose(chosen, live.fits.request(chosen), ["n"]) == "n"
    assert not engine.place(mine).assignments


def test_only_new_places_of_a_group_are_checked_as_zones_are_now(tmp_path: Path) -> None:
    """A second node takes what a failed one had: its zones are as full as they are."""
    other = zones("m", 1, 1)
    down = labelled("n")
    down["status"]["conditions"] = []
    items = [
        down,
        labelled("m"),
        *({"kind": "NodeResourceTopology"} | each for each in (zones("n", 1, 1), other)),
    ]
    of = asked_group(1, 5, status={**on("n", 1), "unhealthyNodes": ["n"], "state": "Degraded"})
    where = write(tmp_path / "cluster.json", {"kind": "List", "items": items})
    file = write(tmp_path / "asked.yaml", of)
    found = json.loads(run("explain", "-f", file, "--cluster", where, "-o", "json")[1])
    assert found["status"]["state"] == "Unplaceable"
    assert "refuses its pods while its zones are as full as now (m: " in found["status"]["message"]


def test_pods_have_the_zones_that_their_group_names(tmp_path: Path) -> None:
    """Three of 3 and 2 CPUs fill two zones if each goes where it is to be."""
    request = {"required": "zone/Node"}
    sets = [
        pod_set(count, request, name=name) | {"template": {"spec": pod("p", cpu)["spec"]}}
        for name, count, cpu in (("large", 2, 3), ("small", 3, 2))
    ]
    report = {"kind": "NodeResourceTopology"} | zones("n", 6, 6)
    levels = ["topology.kubernetes.io/zone", "kubernetes.io/hostname"]
    using = {"topologies": [{"name": "default", "levels": levels, "belowHost": ["Node"]}]}
    items = [labelled("n"), report, {"kind": "ClusterPlacement", "spec": using}]
    assert fits(tmp_path, {"kind": "PlacementGroup"} | group(*sets), items)


def test_reports_that_cannot_be_trusted_refuse() -> None:
    """The extender lets no aligned pod through to such a node."""
    using = read_settings(None)
    snapshot = read_snapshot(
        {"nodes": [labelled("n")], "zones": [zones("n", 8, 8)], "stale": ["n"]}
    )
    asked_for = read_groups([asked("p", 4)])[0]
    found = explain_group(engine_of(snapshot, using), asked_for)
    assert "(n: invalid node topology data)" in found.status.message


def test_hosts_are_found_by_their_hostnames(tmp_path: Path) -> None:
    here = labelled("n")
    here["metadata"]["labels"]["kubernetes.io/hostname"] = "other-name"
    items = [here, *cluster(1, 8)["items"][1:]]
    assert not fits(tmp_path, asked_group(2, 5), items)


def on(host: str, count: int) -> Any:
    """A status with that many pods of `main` on a host."""
    domains = [{"values": [host], "count": count}]
    places = [{"podSet": "main", "levels": ["kubernetes.io/hostname"], "domains": domains}]
    return {"state": "Placed", "assignments": places}


@pytest.mark.parametrize(("attributes", "placed"), [((), True), (LISTED, False)])
def test_a_pod_that_runs_counts_until_a_report_that_lists_pods_has_it(
    tmp_path: Path, attributes: tuple[Any, ...], placed: bool
) -> None:
    """The report is older than the pod, or its daemon has stopped."""
    host, report = cluster(8, 8)["items"]
    report["attributes"] += attributes
    ours = asked("p", 4, at="n") | {"status": {"phase": "Running"}}
    items = [host, report, ours]
    assert fits(tmp_path, asked_group(4, 3), items) == placed
    assert fits(tmp_path, asked_group(3, 3), items)


def test_the_service_names_the_levels_of_its_settings() -> None:
    """Nodes lack the label of a zone; the command line has an option for that, the service none."""
    one = node("n")
    one["metadata"]["labels"] = {"kubernetes.io/hostname": "n"}
    engine = engine_of(read_snapshot({"nodes": [one]}), read_settings(None))
    body = json.dumps([asked_group(1, 4)]).encode()
    (placed,) = json.loads(answer_place(engine, body))
    zone = "topology.kubernetes.io/zone"
    name = f"{placed['namespace']}/{placed['name']}"
    offer = f"the levels [kubernetes.io/hostname] in the settings would do without {zone}"
    assert placed["notes"] == [f"1 node left out: no label {zone} (n)", f"{name}: {offer}"]
    assert json.loads(answer_explain(engine, body))["notes"] == placed["notes"]
