"""PodGroups of Kubernetes 1.36 on a real API server that serves them; the feature is an alpha."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from nri_policy.cluster.objects.settings import read_settings
from nri_policy.cluster.service.service import Service
from nri_policy.kube.client import Client
from nri_policy.kube.connection import access
from tests.cluster.control_plane import ADMIN, ControlPlane, require
from tests.cluster.installation import CONFIGS, register
from tests.cluster.shop import ANNOTATIONS, GATE, HOSTNAME, SETTINGS
from tests.support.exchanges import MERGE
from tools.control_plane import NEWEST

Object = dict[str, Any]

SERVED = (
    "--feature-gates=GenericWorkload=true",
    "--runtime-config=scheduling.k8s.io/v1alpha2=true",
)
PODS = "/api/v1/namespaces/default/pods"
POD_GROUPS = "/apis/scheduling.k8s.io/v1alpha2/namespaces/default/podgroups"
PLACED = "/apis/placement.nri/v1alpha1/namespaces/default/placementgroups/podgroup-gang"


def prepare(plane: ControlPlane) -> None:
    crd = str(CONFIGS / "cluster" / "placement-groups-crd.yaml")
    plane.kubectl("apply", "-f", crd)
    plane.kubectl("wait", "--for=condition=Established", "-f", crd)
    account = {"metadata": {"name": "default"}}
    plane.asked("POST", "/api/v1/namespaces/default/serviceaccounts", account)
    amounts = {"cpu": "4", "memory": "8Gi", "pods": "110"}
    for rack, names in (("r0", "ab"), ("r1", "cd")):
        for name in names:
            register(plane, name, capacity=amounts, allocatable=amounts)
            patch = {"metadata": {"labels": {"example.com/rack": rack, HOSTNAME: name}}}
            plane.asked("PATCH", f"/api/v1/nodes/{name}", patch, content=MERGE)


def make_pods(plane: ControlPlane, *numbers: int) -> None:
    for number in numbers:
        container = {"name": "c", "image": "x", "resources": {"requests": {"cpu": "1"}}}
        spec = {
            "containers": [container],
            "schedulingGates": [{"name": GATE}],
            "schedulingGroup": {"podGroupName": "gang"},
        }
        new = {"metadata": {"name": f"p{number}", "annotations": ANNOTATIONS}, "spec": spec}
        plane.asked("POST", PODS, new)


def hosts(plane: ControlPlane) -> list[str]:
    """Return the hosts that the ungated pods select."""
    items = plane.asked("GET", PODS)["items"]
    return [
        each["spec"]["nodeSelector"][HOSTNAME]
        for each in items
        if not each["spec"].get("schedulingGates")
    ]


async def follow_a_gang(plane: ControlPlane) -> None:
    connect = access(plane.kubeconfig(ADMIN))
    assert connect is not None
    client = Client(connect)
    service = Service(read_settings(SETTINGS), client, None, groups=True)
    running = asyncio.create_task(service.run())
    try:
        await asyncio.to_thread(make_pods, plane, 0, 1)
        message = "2 of 3 pods are there"
        events = "/api/v1/namespaces/default/events"
        await asyncio.to_thread(
            plane.until, lambda: message in str(plane.asked("GET", events)), message
        )
        assert hosts(plane) == []
        await asyncio.to_thread(make_pods, plane, 2)
        await asyncio.to_thread(plane.until, lambda: len(hosts(plane)) == 3, "the gang goes")
        await asyncio.to_thread(make_pods, plane, 3, 4)
        await asyncio.to_thread(plane.until, lambda: len(hosts(plane)) == 5, "more pods go")
    finally:
        running.cancel()
        await asyncio.wait({running})
        await client.close()


def test_a_gang_is_a_group(tmp_path: Path) -> None:
    require("kube-apiserver", "kubectl", release=NEWEST)
    with ControlPlane(tmp_path, nodes="abcd", api_server=SERVED, release=NEWEST) as plane:
        prepare(plane)
        policy = {"schedulingPolicy": {"gang": {"minCount": 3}}}
        made = plane.asked("POST", POD_GROUPS, {"metadata": {"name": "gang"}, "spec": policy})
        asyncio.run(follow_a_gang(plane))
        assert {*hosts(plane)} in ({"a", "b"}, {"c", "d"})
        (owner,) = plane.asked("GET", PLACED)["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"]) == ("PodGroup", made["metadata"]["uid"])
