"""Placement groups on a real API server: `cluster run --groups` as it is installed, to the end.

The Jobs' pods are made and cleaned up by this test; kube-scheduler binds them.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.control_plane import ControlPlane, require
from tests.cluster.shop import (
    ANNOTATIONS,
    GATE,
    GROUPS,
    LEASE,
    MUTATING,
    NODES,
    RACK,
    RACKS,
    SCHEDULER,
    SHOP,
    Shop,
)
from tests.support.exchanges import MERGE

Object = dict[str, Any]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    require("kube-apiserver", "kube-scheduler", "kubectl")
    folder = tmp_path_factory.mktemp("groups")
    with ControlPlane(folder, nodes=NODES, api_server=MUTATING) as cluster:
        made = Shop(cluster)
        cluster.start_scheduler(SCHEDULER)
        yield made


EXCLUSIVE = (
    "alpha.jobset.sigs.k8s.io/exclusive-topology",
    "leaderworkerset.sigs.k8s.io/exclusive-topology",
    "leaderworkerset.sigs.k8s.io/subgroup-exclusive-topology",
)
LWS = "leaderworkerset.sigs.k8s.io/name"


def gates(shop: Shop, namespace: str, **metadata: Any) -> list[str]:
    """The gates that a pod would get."""
    spec = {"containers": [{"name": "c", "image": "x"}]}
    new = {"metadata": {"name": "asked", **metadata}, "spec": spec}
    path = f"/api/v1/namespaces/{namespace}/pods?dryRun=All"
    made = shop.cluster.asked("POST", path, new)
    return [each["name"] for each in made["spec"].get("schedulingGates", ())]


def test_who_gets_the_gate(shop: Shop) -> None:
    """Nothing says when a policy is in force: it is asked until it is."""
    shop.cluster.until(lambda: gates(shop, "shop", annotations=ANNOTATIONS), "it is in force")
    assert gates(shop, "shop", annotations=ANNOTATIONS) == [GATE]
    assert gates(shop, "shop", annotations={"placement.nri/group": "g"}) == [GATE]
    movable = {"placement.nri/movable": "true"}
    assert gates(shop, "shop", annotations=movable) == []
    assert gates(shop, "shop", annotations=ANNOTATIONS | movable) == [GATE]
    for key in EXCLUSIVE:
        assert gates(shop, "shop", annotations={key: RACK}) == [GATE]
    assert gates(shop, "shop") == []
    assert gates(shop, "default", annotations=ANNOTATIONS) == []
    managed = {"kueue.x-k8s.io/managed": "true"}
    assert gates(shop, "shop", annotations=ANNOTATIONS, labels=managed) == []


def test_pods_of_a_service_that_ask_only_to_be_spread_get_no_gate(shop: Shop) -> None:
    """The extender spreads them; behind the gate each would be a group by itself."""
    shop.cluster.until(lambda: gates(shop, "shop", annotations=ANNOTATIONS), "it is in force")
    spread = {
        "placement.nri/spread-over": RACK,
        "placement.nri/max-per-host": "1",
        "placement.nri/movable": "true",
    }

    def made_by(kind: str, *, controller: bool = True) -> list[Object]:
        owner = {"apiVersion": "apps/v1", "kind": kind, "name": "w", "uid": "1"}
        return [{**owner, "controller": controller}]

    for kind in ("ReplicaSet", "StatefulSet"):
        owned = {"ownerReferences": made_by(kind)}
        assert gates(shop, "shop", annotations=spread, **owned) == []
        for key in ("placement.nri/group", "placement.nri/algorithm", *ANNOTATIONS, *EXCLUSIVE):
            assert gates(shop, "shop", annotations=spread | {key: RACK}, **owned) == [GATE]
        for key in ("placement.nri/group", "kueue.x-k8s.io/pod-group-name", LWS):
            labels = {key: "g"}
            assert gates(shop, "shop", annotations=spread, labels=labels, **owned) == [GATE]
    assert gates(shop, "shop", annotations=spread) == [GATE]
    assert gates(shop, "shop", annotations=spread, ownerReferences=made_by("Job")) == [GATE]
    guest = made_by("ReplicaSet", controller=False)
    assert gates(shop, "shop", annotations=spread, ownerReferences=guest) == [GATE]


def test_nobody_else_writes_a_status(shop: Shop) -> None:
    """Not even an admin: what is there is taken for promised."""
    new = {
        "apiVersion": "placement.nri/v1alpha1",
        "kind": "PlacementGroup",
        "metadata": {"name": "by-hand"},
        "spec": {"podSets": []},
    }
    shop.cluster.asked("POST", GROUPS, new)
    path, patch = f"{GROUPS}/by-hand/status", {"status": {"state": "Placed"}}

    def refused() -> bool:
        answer = shop.cluster.ask("PATCH", path, patch, content=MERGE)
        return answer.status == 403 and "only nri-policy may write" in answer.body["message"]

    shop.cluster.until(refused, "the status is protected")
    shop.cluster.asked("DELETE", f"{GROUPS}/by-hand")


def test_jobs_come_a_node_fails_and_the_service_is_killed(shop: Shop) -> None:
    cluster = shop.cluster
    stranger = {
        "metadata": {"name": "web", "annotations": {"example.com/ours": "no"}},
        "spec": {"containers": [{"name": "c", "image": "x"}]},
    }
    cluster.asked("POST", "/api/v1/namespaces/default/pods", stranger)
    cluster.until(
        lambda: "nodeName" in cluster.asked("GET", "/api/v1/namespaces/default/pods/web")["spec"],
        "the stranger is bound",
    )
    before = cluster.asked("GET", "/api/v1/namespaces/default/pods/web")
    with shop.service():
        shop.submit("one", 4)
        placed = shop.until_bound("one")
        (rack,) = [rack for rack, names in RACKS.items() if {*placed} <= {*names}]
        assert placed == sorted(placed), "ranks are in the order of the assignment"
        assert Counter(Counter(placed).values()) == {2: 2}
        shown = cluster.kubectl("get", "placementgroups", "-n", "shop", "--no-headers").split()
        assert shown[:4] == ["job-one", "Placed", "4", "2"]
        group = cluster.asked("GET", f"{GROUPS}/job-one")
        assert [each["name"] for each in group["metadata"]["ownerReferences"]] == ["one"]
        events = cluster.asked("GET", f"{SHOP}/events")["items"]
        assert ("job-one", "Placed") in {
            (each["involvedObject"]["name"], each["reason"]) for each in events
        }
        shop.submit("other", 5)
        assert {*shop.until_bound("other")} == {*NODES} - {*RACKS[rack]}
    # it was killed; another one goes on, once the Lease is over
    shop.submit("third", 6)
    assert shop.hosts("third") == [""] * 6
    failed = placed[0]
    cluster.asked("DELETE", f"/api/v1/nodes/{failed}")
    with shop.service() as process:
        waits = shop.until_state("third", "Waiting")
        assert "allow" in waits["message"]
        spare = next(iter({*RACKS[rack]} - {*placed}))
        cluster.until(
            lambda: not Counter({failed: 1}) & assigned(shop.status("one")), "it is replaced"
        )
        assert assigned(shop.status("one")) == {placed[2]: 2, spare: 2}
        now = {"gracePeriodSeconds": 0}
        for at in (0, 1):  # as Kubernetes deletes the pods of a node that no longer exists
            cluster.asked("DELETE", f"{SHOP}/pods/one-{at}", now)
            shop.make_pod("one", at, f"one-{at}-again")
        cluster.until(lambda: sorted(shop.hosts("one")) == sorted([spare] * 2 + placed[2:]), "")
        shop.finish("other")
        third = shop.until_bound("third")
        assert {*third} == {*NODES} - {*RACKS[rack]}
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    said = shop.log.read_text()
    assert "forbidden" not in said.lower(), said
    assert "event=not-" not in said, said
    assert cluster.asked("GET", "/api/v1/namespaces/default/pods/web") == before
    lease = cluster.asked(
        "GET", f"/apis/coordination.k8s.io/v1/namespaces/{LEASE.replace('/', '/leases/')}"
    )
    assert not lease["spec"].get("holderIdentity"), "it was let go"


def assigned(status: Object) -> Counter[str]:
    """The pods by host that a status has."""
    return Counter(
        {
            one["values"][-1]: one["count"]
            for each in status.get("assignments", ())
            for one in each["domains"]
        }
    )
