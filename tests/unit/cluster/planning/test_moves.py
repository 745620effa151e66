"""Plans of moves: which pods may go, where to, and how few are enough."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from nri_policy.cluster.objects.document import DocumentError
from nri_policy.cluster.objects.settings import read_settings
from nri_policy.cluster.offline import engine_of
from nri_policy.cluster.planning.moves import MovePlan, _Search, plan_moves
from nri_policy.cluster.requests.group import read_group
from nri_policy.cluster.snapshot import read_snapshot
from tests.support.zone_reports import zone_report
from tests.unit.cluster.written import HOSTNAME, group, node, pod_set, pod_spec, settings

RACK = "example.com/rack"
NODES = [node(f"{rack}{at}", RACK=rack) for rack in "ab" for at in "12"]  # of 4 CPUs
GANG = group(pod_set(2, {"required": RACK}, cpu=4))
OWNER = {"kind": "ReplicaSet", "name": "web", "controller": True}


def pod(name: str, at: str, cpu: int = 1, *, movable: str = "true", **changes: Any) -> Any:
    made: dict[str, Any] = {
        "metadata": {
            "name": name,
            "labels": {"app": "web"},
            "annotations": {"placement.nri/movable": movable},
            "ownerReferences": changes.pop("owners", [OWNER]),
        },
        "spec": {"nodeName": at, **pod_spec({"cpu": cpu})},
        "status": {"phase": changes.pop("phase", "Running")},
    }
    made["spec"] |= changes
    return made


def plan(*pods: Any, asked: Any = GANG, most: int = 10, **cluster: Any) -> MovePlan:
    given = {"nodes": NODES, "pods": [*pods], **cluster}
    snapshot = read_snapshot(given)
    engine = engine_of(snapshot, read_settings(settings("rack", HOSTNAME)))
    return plan_moves(engine, read_group(asked), snapshot, most)


def moves(found: MovePlan) -> dict[str, str]:
    assert bool(found.moves) <= bool(found.status.assignments)
    return {each.name: each.to for each in found.moves}


def test_the_rack_with_the_fewest_pods_in_the_way_is_cleared() -> None:
    found = plan(pod("p", "a1"), pod("q", "a2"), pod("r", "b1"), pod("s", "b1"), pod("t", "b1"))
    assert found.movable == 5
    assert moves(found) == {"p": "b1", "q": "b2"}, "the fullest that has room"
    assert {each.source for each in found.moves} == {"a1", "a2"}
    assert {each.owner for each in found.moves} == {"ReplicaSet/web"}


def test_pods_go_to_the_fullest_nodes_so_that_empty_ones_stay_so() -> None:
    """Also of DaemonSets' pods; a node without the levels' labels takes what no other can."""
    daemons = {"kind": "DaemonSet", "name": "d", "controller": True}
    nodes = [*(node(f"c{at}", RACK="c") for at in "12"), node("other")]
    held = (
        pod("h", "c2", 2, movable="no"),
        *(pod(f"d{at}", f"c{at}", owners=[daemons]) for at in "12"),
    )
    found = plan(pod("p", "a1"), pod("b", "b1", 4, movable="no"), *held, nodes=[*NODES, *nodes])
    assert moves(found) == {"p": "c2"}
    others = [pod(f"x{at}", f"c{at}", 3, movable="no") for at in "12"]
    held = pod("b", "b1", 4, movable="no"), pod("y", "b2", 4, movable="no"), *others
    found = plan(pod("p", "a1", 2), *held, nodes=[*NODES, *nodes])
    assert moves(found) == {"p": "other"}


def test_moves_that_make_too_little_room_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """In each of both racks one host keeps a pod, so that no moves make room for both pods."""
    tried = []
    monkeypatch.setattr(_Search, "_fits_without", lambda _, pods: tried.append(pods))
    plan(*(pod(f"s{each}", f"{each}1", movable="") for each in "ab"), pod("p", "a2"))
    assert not tried
    plan(pod("p", "a1"), pod("s", "b1", movable=""))
    assert [each.name for each in tried[0]] == ["p"]


def test_a_group_that_fits_needs_no_move() -> None:
    found = plan(pod("p", "a1"))
    assert (found.status.state, found.moves) == ("Placed", [])


def test_a_group_without_pods_needs_no_move() -> None:
    found = plan(pod("p", "a1"), asked=group(pod_set(0, {"required": RACK})))
    assert (found.status.state, found.moves) == ("Placed", [])


def test_moves_make_no_zones_where_no_node_reports_any() -> None:
    request = {"required": RACK, "slices": [{"level": "zone/Node", "size": 1}]}
    using = settings("rack", HOSTNAME, topology={"belowHost": ["Node"]})
    snapshot = read_snapshot({"nodes": NODES, "pods": [pod("p", "a1")]})
    engine = engine_of(snapshot, read_settings(using))
    asked = read_group(group(pod_set(1, request, cpu=4)))
    assert plan_moves(engine, asked, snapshot).moves == []


def test_without_a_level_the_whole_cluster_is_one_domain() -> None:
    """One move is enough on both hosts; it is tried where most of the group's pods fit then."""
    nodes = [
        node("a", RACK="r", cpu=4, gpu=2),
        node("b", RACK="r", cpu=6, gpu=2),
        node("c", RACK="r", cpu=9),
    ]
    asked = group(pod_set(1, {"unconstrained": True}, cpu=3, gpu=1))
    assert moves(plan(pod("p", "a", 2), pod("q", "b", 4), asked=asked, nodes=nodes)) == {"q": "c"}


def test_no_more_pods_move_than_somebody_allows() -> None:
    pods = [pod("p", "a1"), pod("q", "a2"), pod("r", "b1"), pod("s", "b2")]
    assert len(moves(plan(*pods))) == 2
    found = plan(*pods, most=1)
    assert (found.status.state, found.moves, found.movable) == ("Unplaceable", [], 4)


def test_a_pod_without_a_place_elsewhere_stays() -> None:
    tight = [pod("x", "b1", 2), pod("y", "b2", 3, movable="false")]
    assert moves(plan(pod("p", "a1", 3), *tight)) == {}  # 2 and 1 CPUs are left
    assert moves(plan(pod("p", "a1", 2), *tight)) == {"p": "b1"}


def test_pods_that_move_share_no_room() -> None:
    """Both would fit on b1, one at a time."""
    full = [pod("x", "b1", 2, movable="false"), pod("y", "b2", 4, movable="false")]
    assert moves(plan(pod("p", "a1", 2), pod("q", "a2", 2), *full)) == {}
    assert moves(plan(pod("p", "a1", 1), pod("q", "a2", 1), *full)) == {"p": "b1", "q": "b1"}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"owners": []}, "no controller would make it again"),
        ({"owners": [OWNER | {"kind": "DaemonSet"}]}, "of a DaemonSet"),
        ({"phase": "Pending"}, "not running"),
        ({"volumes": [{"persistentVolumeClaim": {"claimName": "c"}}]}, "a persistent volume"),
        ({"volumes": [{"ephemeral": {"volumeClaimTemplate": {}}}]}, "a persistent volume"),
        (
            {
                "affinity": {
                    "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{}]}
                }
            },
            "pod affinity",
        ),
        (
            {"topologySpreadConstraints": [{"whenUnsatisfiable": "DoNotSchedule"}]},
            "topology spread constraints",
        ),
        ({"containers": [{"name": "c", "ports": [{"hostPort": 80}]}]}, "a host port"),
        ({"resourceClaims": [{"name": "gpu"}]}, "resource claims"),
    ],
)
def test_pods_that_must_stay_are_counted_by_reason(changes: Any, why: str) -> None:
    others = [pod("r", "b1", movable="false"), pod("s", "b2", movable="false")]
    found = plan(pod("p", "a1", **changes), *others)
    assert (moves(found), found.movable, found.staying) == ({}, 0, {why: 1})


def test_harmless_fields_do_not_keep_a_pod() -> None:
    affinity: dict[str, Any] = {"preferredDuringSchedulingIgnoredDuringExecution": [{}]}
    free = pod(
        "p",
        "a1",
        volumes=[{"emptyDir": {}}, {"configMap": {"name": "c"}}],
        affinity={"podAffinity": affinity},
        topologySpreadConstraints=[{"whenUnsatisfiable": "ScheduleAnyway"}],
    )
    assert moves(plan(free, pod("r", "b1", movable="false"))) == {"p": "b1"}


def test_a_pod_goes_only_where_its_selector_and_the_taints_let_it() -> None:
    taint = {"key": "mine", "effect": "NoSchedule"}
    tainted = [*NODES[:3], node("b2", RACK="b", taints=[taint])]
    others = [pod("r", "b1", movable="false"), pod("s", "b2", movable="false")]
    assert moves(plan(pod("p", "a1"), *others, nodes=tainted)) == {"p": "b1"}
    bound = pod("p", "a1", nodeSelector={RACK: "a"})
    assert moves(plan(bound, *others)) == {}


def budget(allowed: int | None, name: str = "web", **selector: Any) -> Any:
    labels = selector or {"matchLabels": {"app": "web"}}
    made = {"metadata": {"name": name}, "spec": {"selector": labels}}
    return made if allowed is None else made | {"status": {"disruptionsAllowed": allowed}}


def test_budgets_are_kept() -> None:
    pods = [pod("p", "a1"), pod("q", "a2"), pod("r", "b1"), pod("s", "b2")]
    assert len(moves(plan(*pods, budgets=[budget(2)]))) == 2
    assert moves(plan(*pods, budgets=[budget(1)])) == {}
    none = "PodDisruptionBudget web allows none now"
    assert plan(*pods, budgets=[budget(0)]).staying == {none: 4}
    assert plan(*pods, budgets=[budget(None)]).staying == {none: 4}
    both = [budget(2), budget(2, "other", matchExpressions=[{"key": "app", "operator": "Exists"}])]
    assert plan(*pods, budgets=both).staying == {"in two PodDisruptionBudgets": 4}
    others = [budget(0, matchLabels={"app": "db"}), {"metadata": {"name": "n"}, "spec": {}}]
    assert len(moves(plan(*pods, budgets=others))) == 2
    with pytest.raises(DocumentError, match=r"budgets\[0\].metadata.name: a budget has a name"):
        plan(*pods, budgets=[{"metadata": {}}])


def test_no_pod_moves_to_a_host_that_is_set_aside() -> None:
    """Not even for a group that the one which is asked about precedes."""
    full = pod("y", "b2", 4, movable="false")
    first = group(pod_set(2, {"required": RACK}, cpu=4), priority=1)
    assert moves(plan(pod("p", "a1"), full, asked=first)) == {"p": "b1"}
    behind = group(pod_set(1, cpu=9), name="late", status={"reserved": ["b1"]})
    assert moves(plan(pod("p", "a1"), full, asked=first, groups=[behind])) == {}


def test_a_budget_that_allows_one_lets_other_pods_go() -> None:
    free = pod("q", "a2")
    free["metadata"]["labels"] = {"app": "other"}
    pods = [pod("p", "a1"), free, pod("r", "b1"), pod("s", "b2")]
    assert moves(plan(*pods, budgets=[budget(1)])) == {"p": "b1", "q": "b1"}


def test_a_pod_needs_room_in_a_zone_where_the_node_aligns() -> None:
    report = partial(zone_report, cpus=2, memory=2)
    guaranteed = pod("p", "a1")
    resources = {"limits": {"cpu": 2, "memory": 1}, "requests": {"cpu": 2, "memory": 1}}
    guaranteed["spec"]["containers"][0]["resources"] = resources
    others = [pod("r", "b1", 2, movable="false"), pod("s", "b2", 1, movable="false")]
    split, whole = report("b1", 1, 1), report("b2", 2, 1)
    assert moves(plan(guaranteed, *others, zones=[split, whole])) == {"p": "b2"}
    apart = report("b2", 1, 1)
    assert moves(plan(guaranteed, *others, zones=[split, apart])) == {}


def test_hosts_that_are_set_aside_take_nobody() -> None:
    ahead = group(pod_set(1, cpu=4), name="ahead", priority=9)
    ahead["status"] = {"state": "Waiting", "reserved": ["b2"]}
    pods = [pod("p", "a1"), pod("r", "b1", 4, movable="false")]
    assert moves(plan(*pods)) == {"p": "b2"}
    assert moves(plan(*pods, groups=[ahead])) == {}


def test_pods_of_a_group_stay_and_a_group_with_places_has_no_plan() -> None:
    other = pod("p", "a1")
    other["metadata"]["labels"] = {"placement.nri/group": "g2"}
    found = plan(other, pod("r", "b1", movable="false"))
    assert found.staying == {"of a placement group": 1}
    status = {
        "state": "Placed",
        "assignments": [
            {"podSet": "main", "levels": [HOSTNAME], "domains": [{"values": ["a1"], "count": 2}]}
        ],
    }
    with pytest.raises(DocumentError, match="default/g has its places"):
        plan(asked=GANG | {"status": status})


def aligned(name: str, *totals: int, free: int = 0) -> Any:
    """The report of a node that aligns pods; its zones have so many CPUs."""
    memory = {"name": "memory", "capacity": 9, "allocatable": 9, "available": 9}
    amounts = [
        [memory, {"name": "cpu", "capacity": cpu, "allocatable": cpu, "available": free}]
        for cpu in totals
    ]
    return {
        "metadata": {"name": name},
        "attributes": [{"name": "topologyManagerPolicy", "value": "single-numa-node"}],
        "zones": [
            {"name": f"node-{at}", "type": "Node", "resources": each}
            for at, each in enumerate(amounts)
        ],
    }


def guaranteed(count: int, cpu: int) -> Any:
    """A group whose pods are aligned where nodes do so."""
    made = pod_set(count, {"required": RACK})
    limits = {"cpu": cpu, "memory": 1}
    made["template"]["spec"] = {"containers": [{"name": "c", "resources": {"limits": limits}}]}
    return group(made)


CROWD = [pod("p", "a1"), pod("q", "b1"), pod("r", "b1"), pod("s", "a2", 4, movable="false")]


def test_no_pod_moves_for_a_node_whose_empty_zones_are_too_small() -> None:
    """Without the report, clearing a1 takes one move and is the plan."""
    crowd = [*CROWD, pod("t", "b2", 1, movable="false")]
    assert moves(plan(*crowd, asked=guaranteed(1, 4))) == {"p": "b1"}
    found = plan(*crowd, asked=guaranteed(1, 4), zones=[aligned("a1", 2, 2)])
    assert moves(found).keys() == {"q", "r"}
    assert {each.source for each in found.moves} == {"b1"}
    assert "a1" in {each.to for each in found.moves}  # it takes small pods, which are not aligned
    assert found.notes == []


def test_it_is_said_where_that_leaves_no_plan() -> None:
    small = [aligned(each, 2, 2) for each in ("a1", "a2", "b1", "b2")]
    crowd = [*CROWD, pod("t", "b2", 1, movable="false")]
    found = plan(*crowd, asked=guaranteed(1, 4), zones=small)
    assert (found.status.state, found.moves) == ("Unplaceable", [])
    [note] = found.notes
    assert note.startswith("default/g, pod set main: 4 of 4 nodes would refuse its pods even when")
    assert "(a1: cannot align container: cpu: 4 asked, 2 in an empty zone)" in note


@pytest.mark.parametrize(("free", "found"), [(3, {"p": "a2"}), (2, {})])
def test_what_a_pod_has_in_a_zone_is_free_once_it_moves(free: int, found: Any) -> None:
    """It has one CPU to itself there; what else is in use stays."""
    alone = pod("p", "a1")
    resources = {"limits": {"cpu": 1, "memory": 1}}
    alone["spec"]["containers"][0]["resources"] = resources
    crowd = [alone, *(pod(name, name, 1, movable="false") for name in ("a2", "b1", "b2"))]
    plan_ = plan(*crowd, asked=guaranteed(1, 4), zones=[aligned("a1", 4, free=free)])
    assert moves(plan_) == found


def test_a_group_that_fits_but_in_no_zone_has_no_plan() -> None:
    zones = [aligned(each, 2, 2, free=2) for each in ("a1", "a2", "b1", "b2")]
    found = plan(asked=guaranteed(2, 4), zones=zones)
    assert (found.status.state, found.moves) == ("Unplaceable", [])
    assert "on 2 of 2 hosts the node aligns pods to one NUMA node" in found.status.message


def test_of_a_group_without_a_plan_it_is_said_how_many_pods_fit_by_zones() -> None:
    zones = [aligned(each, 3, free=3) for each in ("a1", "a2", "b1", "b2")]
    found = plan(asked=guaranteed(5, 2), zones=zones)
    assert found.status.message == (
        'topology "default" allows to fit only 2 out of 5 pod(s);'
        " nodes that align pods to one NUMA node count by their zones"
    )
