"""A gang that is placed is bound whole, whatever ordinary pods come in the same second.

Kubernetes' own controllers make the pods, and its scheduler binds them; kubelets are played. The
scheduler packs: so both fit, whichever comes first, and the pods that it has let through before the
gang has its places are on their way to the hosts that the gang prefers, too.
NRI_POLICY_ROUNDS=20 plays more rounds.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.cluster.control_plane import ControlPlane, require
from tests.cluster.installation import CONFIGS, register
from tests.cluster.living import CONTROLLERS, DEPLOYMENTS, GATES, Kubelets
from tests.cluster.schedulers import configuration_of_extender, extending
from tests.cluster.shop import GROUPS, HOSTNAME, JOBS, SHOP
from tests.support.exchanges import NRT

ROUNDS = int(os.environ.get("NRI_POLICY_ROUNDS", "3"))
NODES = [f"n{at:02}" for at in range(16)]  # of 16 CPUs
GANG, REPLICAS = 8, 40  # pods of 14 CPUs, and of 2
PACKING = {
    "schedulerName": "default-scheduler",
    "plugins": {"score": {"disabled": [{"name": "*"}], "enabled": [{"name": "NodeResourcesFit"}]}},
    "pluginConfig": [
        {
            "name": "NodeResourcesFit",
            "args": {
                "scoringStrategy": {
                    "type": "MostAllocated",
                    "resources": [{"name": "cpu", "weight": 1}],
                }
            },
        }
    ],
}

Object = dict[str, Any]
Record = Callable[[str, object], None]


def template(cpus: int, **spec: Any) -> Object:
    amounts = {"cpu": str(cpus)}
    container = {"name": "c", "image": "x", "resources": {"requests": amounts, "limits": amounts}}
    labels = {"app": f"of-{cpus}"}
    return {"metadata": {"labels": labels}, "spec": {"containers": [container], **spec}}


def prepare(plane: ControlPlane) -> None:
    for kind in ("cluster/placement-groups-crd.yaml", "cluster/settings-crd.yaml"):
        plane.kubectl("apply", "-f", str(CONFIGS / kind))
    plane.kubectl("apply", "-f", str(CONFIGS / "kubernetes" / "crd.yaml"))
    plane.asked("POST", "/api/v1/namespaces", {"metadata": {"name": "shop"}})
    account = {"metadata": {"name": "default"}}
    plane.asked("POST", "/api/v1/namespaces/shop/serviceaccounts", account)
    for path in (GROUPS, NRT):
        plane.until(lambda path=path: plane.ask("GET", path).status == 200, f"{path} is served")
    amounts = {"cpu": "16", "memory": "64Gi", "pods": "110"}
    for name in NODES:
        register(plane, name, capacity=amounts, allocatable=amounts)


def submit(plane: ControlPlane) -> None:
    """Both at once: the pods of each come while those of the other are made and bound."""
    gang = template(14, restartPolicy="Never", schedulingGates=GATES)
    job = {"parallelism": GANG, "completions": GANG, "backoffLimit": 99, "template": gang}
    plane.asked("POST", JOBS, {"metadata": {"name": "train"}, "spec": job})
    web = template(2)
    selector = {"matchLabels": web["metadata"]["labels"]}
    deployment = {"replicas": REPLICAS, "selector": selector, "template": web}
    plane.asked("POST", DEPLOYMENTS, {"metadata": {"name": "web"}, "spec": deployment})


def bound(plane: ControlPlane, cpus: int) -> int:
    items = plane.asked("GET", f"{SHOP}/pods?labelSelector=app%3Dof-{cpus}")["items"]
    return sum(bool(each["spec"].get("nodeName")) for each in items)


def clear(plane: ControlPlane) -> None:
    body = {"propagationPolicy": "Background"}
    plane.asked("DELETE", f"{JOBS}/train", body)
    plane.asked("DELETE", f"{DEPLOYMENTS}/web", body)
    plane.until(lambda: not plane.asked("GET", f"{SHOP}/pods")["items"], "pods go")
    plane.until(lambda: not plane.asked("GET", GROUPS)["items"], "groups go")


async def play(plane: ControlPlane) -> list[int]:
    """Return, by round, how many pods were not bound in time, and got places elsewhere."""

    async def until(condition: Any, what: str) -> None:
        await asyncio.to_thread(plane.until, condition, what)

    late: list[int] = []
    async with extending(plane, choose=False, levels=[HOSTNAME]) as (port, _):
        plane.start_scheduler({**configuration_of_extender(port), "profiles": [PACKING]})
        for number in range(ROUNDS):
            await asyncio.to_thread(submit, plane)
            for cpus, pods in ((14, GANG), (2, REPLICAS)):
                await until(lambda cpus=cpus, pods=pods: bound(plane, cpus) == pods,
                            f"round {number}: {pods} pods of {cpus} CPUs are bound")  # fmt: skip
            events = await asyncio.to_thread(plane.asked, "GET", f"{SHOP}/events")
            late.append(
                sum(each["reason"] == "PodsNotBound" for each in events["items"]) - sum(late)
            )
            await asyncio.to_thread(clear, plane)
    return late


def test_a_gang_is_bound_whole_beside_pods_of_the_same_second(
    tmp_path: Path, record_property: Record
) -> None:
    require("kube-apiserver", "kube-scheduler", "kube-controller-manager", "kubectl")
    with ControlPlane(tmp_path, nodes=NODES) as plane:
        prepare(plane)
        plane.start_controllers(*CONTROLLERS)
        with Kubelets(plane):
            late = asyncio.run(play(plane))
    record_property("figures", f"{ROUNDS} rounds, all bound; pods not bound in time: {late}")
