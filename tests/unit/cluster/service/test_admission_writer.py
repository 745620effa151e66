"""Kueue's admission checks through the API server; the tests' server stands for Kueue's."""

from __future__ import annotations

import asyncio
import json
import math
from http.client import FORBIDDEN
from pathlib import Path

import pytest

from nri_policy.cluster import offline
from nri_policy.cluster.cluster_files import ClusterFiles
from nri_policy.cluster.engine.engine import Engine
from nri_policy.cluster.requests.group import read_group
from nri_policy.cluster.service.kinds import OF_KUEUE
from tests.support.cluster_api import ClusterAPI
from tests.support.zone_reports import zone_report
from tests.unit.cluster import written as objects
from tests.unit.cluster.kueue_objects import admission_check, check_state, pod_set, workload
from tests.unit.cluster.numa.test_extender import replica
from tests.unit.cluster.written import HOSTNAME, Object, pod_spec


async def prepare(api: ClusterAPI) -> None:
    for name in ("n0", "n1"):
        await api.put("nodes", objects.node(name))
        await api.put("noderesourcetopologies", zone_report(name, 4, memory="8Gi"))
    await api.put("admissionchecks", admission_check())


def state(api: ClusterAPI, name: str) -> str:
    (check,) = api.objects["workloads"][f"default/{name}"]["status"]["admissionChecks"]
    return str(check["state"])


def test_a_workload_is_admitted_if_its_pods_fit(tmp_path: Path) -> None:
    async def play() -> None:
        async with ClusterAPI(tmp_path) as api:
            await prepare(api)
            await api.put("workloads", workload("fits", pod_set(2, 3)))
            async with replica(api, kueue=True) as at:
                await at.until(lambda: state(api, "fits") == "Ready")
                await api.put("workloads", workload("late", pod_set(1, 3)))
                await at.until(lambda: state(api, "late") == "Retry")
                (condition,) = api.objects["admissionchecks"]["numa"]["status"]["conditions"]
                assert (condition["type"], condition["status"]) == ("Active", "True")
                assert condition["observedGeneration"] == 1
                scheduler = await at.connect()
                _, text = await scheduler.get("/metrics")
                assert 'nri_policy_cluster_admission_checks_total{state="Ready"} 1.0' in text
                assert 'nri_policy_cluster_admission_checks_total{state="Retry"} 1.0' in text
            # Another replica keeps the places of what was admitted.
            item = api.objects["workloads"]["default/late"]
            item["status"]["admissionChecks"] = [check_state("Pending", retryCount=1)]
            await api.put("workloads", item)
            async with replica(api, kueue=True) as at:
                await at.until(lambda: state(api, "late") == "Retry")

    asyncio.run(play())


def forbid(api: ClusterAPI, part: str, most: float = math.inf) -> list[str]:
    """Have the API forbid patches of paths with *part*, *most* of them; return these paths."""
    refused: list[str] = []

    def refuse(method: str, path: str) -> int:
        if method == "PATCH" and part in path and len(refused) < most:
            refused.append(path)
            return FORBIDDEN
        return 0

    api.refuse = refuse
    return refused


def test_an_answer_that_is_refused_is_tried_again(tmp_path: Path) -> None:
    async def play() -> None:
        async with ClusterAPI(tmp_path) as api:
            await prepare(api)
            refused = forbid(api, "/workloads/", most=2)
            await api.put("workloads", workload("a", pod_set(1, 3)))
            async with replica(api, kueue=True) as at:
                await at.until(lambda: state(api, "a") == "Ready")
                assert len(refused) == 2

    asyncio.run(play())


def test_an_answer_that_is_always_refused_holds_up_no_other(tmp_path: Path) -> None:
    async def play() -> None:
        async with ClusterAPI(tmp_path) as api:
            await prepare(api)
            refused = forbid(api, "/workloads/bad")
            await api.put("workloads", workload("bad", pod_set(1, 1)))
            times = [0.0]
            async with replica(api, kueue=True, now=lambda: times[0]) as at:
                for number in range(3):
                    await at.until(lambda: len(refused) == number + 1)  # noqa: B023 - at once
                    name = f"good-{number}"
                    await api.put("workloads", workload(name, pod_set(1, 1)))
                    await at.until(lambda: state(api, name) == "Ready")  # noqa: B023 - at once
                    assert len(refused) == number + 1, "it is left alone meanwhile"
                    times[0] += 60.0

    asyncio.run(play())


def test_in_files_assigned_places_are_in_use_once_too() -> None:
    slices = [
        {
            "domainCount": 1,
            "valuesPerLevel": [{"universal": "n0"}],
            "podCounts": {"universal": 3},
        }
    ]
    item = workload("w", pod_set(3, 1), topology={"levels": [HOSTNAME], "slices": slices})
    pod = objects.pod("w-0", "n0", cpu=1)
    pod["metadata"]["annotations"] = {"kueue.x-k8s.io/workload": "w"}
    files = ClusterFiles()
    for each in (
        {"kind": "Node", **objects.node("n0")},
        {"kind": "Pod", **pod},
        item,
        {"kind": "Workload", "apiVersion": "scheduling.k8s.io/v1alpha1", "metadata": {"name": "w"}},
    ):
        files.add(json.dumps(each).encode(), "cluster.json")
    assert files.ignored == {"Workload": 1}
    for count, state in ((1, "Placed"), (2, "Unplaceable")):
        asked = objects.group(objects.pod_set(count))
        found = offline.place(files.cluster, asked, objects.settings(HOSTNAME))
        assert found["state"] == state, count


def test_a_cluster_without_kueue_is_followed_all_the_same(tmp_path: Path) -> None:
    async def play() -> None:
        async with ClusterAPI(tmp_path) as api:
            await api.put("nodes", objects.node("n0"))
            api.refuse = lambda _method, path: 404 if "kueue" in path else 0
            async with replica(api, kueue=True) as at:
                await at.until(lambda: not at.service.watch.problem(*OF_KUEUE))

    asyncio.run(play())


@pytest.mark.parametrize("bound", [False, True])
def test_topology_assignments_of_kueue_count_as_groups(tmp_path: Path, bound: bool) -> None:
    """Whether the pods are there or not, their places are in use, once."""

    def free(engine: Engine) -> int:
        """How many pods of one CPU would fit."""
        return max(
            count
            for count in range(9)
            if not count
            or engine.place(read_group(objects.group(objects.pod_set(count)))).assignments
        )

    async def play() -> None:
        async with ClusterAPI(tmp_path) as api:
            await prepare(api)
            levels = {
                "levels": [HOSTNAME],
                "slices": [
                    {
                        "domainCount": 1,
                        "valuesPerLevel": [{"universal": "n0"}],
                        "podCounts": {"universal": 3},
                    }
                ],
            }
            item = workload("w", pod_set(3, 1), topology=levels, checks=[])
            if bound:
                metadata: Object = {
                    "name": "w-0",
                    "namespace": "default",
                    "annotations": {"kueue.x-k8s.io/workload": "w"},
                    "ownerReferences": [
                        {"kind": "Job", "name": "j", "uid": "u", "controller": True}
                    ],
                }
                spec = pod_spec({"cpu": 1}, nodeName="n0")
                await api.put(
                    "jobs", {"metadata": {"name": "j", "namespace": "default"}, "spec": {}}
                )
                await api.put(
                    "pods", {"metadata": metadata, "spec": spec, "status": {"phase": "Running"}}
                )
            await api.put("workloads", item)
            async with replica(api, groups=True, kueue=True) as at:
                assert at.service.controller is not None
                engine = at.service.controller.engine
                await at.until(lambda: ("default", "kueue/w") in engine.state.groups)
                await at.until(lambda: not at.service.watch.problem(*OF_KUEUE))
                await at.until(lambda: free(engine) == 5)
                item["status"]["conditions"] = [{"type": "Finished", "status": "True"}]
                await api.put("workloads", item)
                await at.until(lambda: free(engine) == (7 if bound else 8))

    asyncio.run(play())
