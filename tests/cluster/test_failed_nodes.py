"""Nodes fail, or are drained, under groups of real LeaderWorkerSets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.living import Cluster, living
from tests.cluster.shop import ANNOTATIONS, GROUPS, HOSTNAME, NODES
from tests.cluster.test_job_sets import (
    GROUP_INDEX,
    LWSES,
    bound,
    lws,
    racks_of,
    running,
    template,
    uids,
)
from tests.support.exchanges import MERGE
from tools.job_sets import LWS

Object = dict[str, Any]

PAIRS = {
    "kueue.x-k8s.io/podset-slice-required-topology": HOSTNAME,
    "kueue.x-k8s.io/podset-slice-size": "2",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with living(tmp_path_factory.mktemp("failed-nodes")) as made, running(made.api, LWS, LWSES):
        yield made


@pytest.fixture(autouse=True)
def _is_clean(cluster: Cluster) -> Iterator[None]:
    with cluster.cleaned():
        yield
        for each in cluster.api.asked("GET", LWSES)["items"]:
            cluster.delete(f"{LWSES}/{each['metadata']['name']}")
        cluster.api.kubectl("uncordon", *NODES)


def start(cluster: Cluster, pods: Object, size: int) -> list[dict[str, str]]:
    """Run two replicas, whose pods are made anew one by one; return their hosts by pod."""
    made = lws("serve", 2, pods, pods, size)
    made["spec"]["leaderWorkerTemplate"]["restartPolicy"] = "None"
    cluster.api.asked("POST", LWSES, made)
    for index in ("0", "1"):
        cluster.api.until(
            lambda index=index: len(hosts(cluster, index)) == size, f"replica {index} runs"
        )
    return [hosts(cluster, index) for index in ("0", "1")]


def hosts(cluster: Cluster, index: str) -> dict[str, str]:
    """Where the pods of a replica are."""
    found = bound(cluster, GROUP_INDEX, index)
    return {each["metadata"]["name"]: each["spec"]["nodeName"] for each in found}


def fail(cluster: Cluster, host: str, how: str) -> Object:
    """Have a node fail, with its pods deleted as Kubernetes does; return it as it was."""
    path = f"/api/v1/nodes/{host}"
    node: Object = cluster.api.asked("GET", path)
    if how == "drained":
        cluster.api.kubectl("drain", host, "--force")
        return node
    if how == "deleted":
        cluster.api.asked("DELETE", path)
    else:
        cluster.set_ready(False, host)
    for index in ("0", "1"):
        for pod, on in hosts(cluster, index).items():
            if on == host:
                cluster.evict(pod)
    return node


def restore(cluster: Cluster, node: Object) -> None:
    """Register a node again, without the taint that a new one gets until it is ready."""
    for key in ("resourceVersion", "uid", "creationTimestamp"):
        del node["metadata"][key]
    path = "/api/v1/nodes"
    cluster.api.asked("POST", path, node)
    path += f"/{node['metadata']['name']}"
    status = {"status": node["status"]}
    cluster.api.asked("PATCH", f"{path}/status", status, content=MERGE)
    cluster.api.asked("PATCH", path, {"spec": {"taints": None}}, content=MERGE)


@pytest.mark.parametrize("how", ["deleted", "not ready", "drained"])
def test_lost_pods_go_in_whole_slices_beside_the_others_which_stay(
    cluster: Cluster, how: str
) -> None:
    with cluster.shop.service(lease=""):
        before = start(cluster, template(2, ANNOTATIONS | PAIRS), 4)
        stay = uids(cluster.pods(GROUP_INDEX, "1"))
        lost = before[0]["serve-0-3"]
        kept = {pod: host for pod, host in before[0].items() if host != lost}
        node = fail(cluster, lost, how)
        cluster.api.until(
            lambda: len(now := hosts(cluster, "0")) == 4 and lost not in now.values(),
            "its pods run elsewhere",
        )
        after = hosts(cluster, "0")
        assert kept.items() <= after.items()
        assert Counter(after.values()).most_common()[-1][1] == 2
        assert len(racks_of(cluster.pods(GROUP_INDEX, "0"))) == 1
        assert hosts(cluster, "1") == before[1]
        assert uids(cluster.pods(GROUP_INDEX, "1")) == stay
        if how == "deleted":
            restore(cluster, node)
    assert cluster.said_no_error()


def test_without_room_they_wait_until_the_host_is_back_beside_pods_on_a_cordoned_one(
    cluster: Cluster,
) -> None:
    """The service is killed meanwhile: the next one has never seen the hosts in use."""
    cluster.shop.write_settings(failure={"failFast": False})
    with cluster.shop.service(lease=""):
        before, _ = start(cluster, template(4, ANNOTATIONS), 3)
        fail(cluster, before["serve-0-2"], "drained")
        cluster.api.kubectl("cordon", before["serve-0-1"])

        def status() -> Object:
            found: Object = cluster.api.asked("GET", f"{GROUPS}/lws-serve-0")["status"]
            return found

        cluster.api.until(lambda: status()["state"] == "Degraded", "there is no room")
        assert status()["unhealthyNodes"] == [before["serve-0-2"]]
        assert "topologyDomain: 3" in status()["message"]
    with cluster.shop.service(lease=""):
        cluster.api.kubectl("uncordon", before["serve-0-2"])
        cluster.api.until(lambda: hosts(cluster, "0") == before, "all run where they were")
        cluster.api.until(lambda: status()["state"] == "Running", "it runs")
    assert cluster.said_no_error()
