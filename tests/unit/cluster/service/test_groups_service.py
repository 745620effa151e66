"""Placement groups through the API server: written in order, finished by another replica."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http.client import BAD_REQUEST, FORBIDDEN, NOT_FOUND
from pathlib import Path

import yaml
from click.testing import CliRunner

from nri_policy.cli import main
from nri_policy.cluster.objects.node import HOSTNAME
from nri_policy.cluster.service.kinds import OF_GROUPS
from nri_policy.cluster.service.lease import LASTS, LeaseName
from tests.support.cluster_api import ClusterAPI
from tests.unit.cluster import written as objects
from tests.unit.cluster.numa.test_extender import replica
from tests.unit.cluster.written import Object, pod_spec

INDEX = "batch.kubernetes.io/job-completion-index"
CONFIGS = Path(__file__).parents[4] / "configs" / "cluster"
PODS = "/api/v1/namespaces/default/pods/"


@asynccontextmanager
async def job_of_three(tmp_path: Path) -> AsyncIterator[ClusterAPI]:
    """Two nodes of four CPUs, a Job of three pods that ask for two each, and a pod of nobody's."""
    async with ClusterAPI(tmp_path) as api:
        for name in ("h1", "h2"):
            await api.put("nodes", objects.node(name))
        metadata: Object = {"name": "j", "namespace": "default"}
        await api.put("jobs", {"metadata": metadata, "spec": {"parallelism": 3}})
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "uj"}
        for at in range(3):
            metadata = {
                "name": f"j-{at}",
                "namespace": "default",
                "uid": f"u{at}",
                "labels": {INDEX: str(at)},
                "ownerReferences": [owner | {"controller": True}],
            }
            gates = [{"name": "placement.nri/group"}]
            spec = pod_spec({"cpu": 2}, schedulingGates=gates)
            await api.put("pods", {"metadata": metadata, "spec": spec})
        stranger = {"metadata": {"name": "web", "namespace": "default"}, "spec": pod_spec({})}
        await api.put("pods", stranger)
        yield api


def gone(api: ClusterAPI) -> dict[str, str]:
    """The pods that were let go, and where to."""
    return {
        name: item["spec"]["nodeSelector"][HOSTNAME]
        for name, item in api.objects["pods"].items()
        if "nodeSelector" in item["spec"]
    }


def writes(api: ClusterAPI) -> list[tuple[str, str]]:
    return [
        (method, path)
        for method, path, _ in api.requests
        if method != "GET" and "/leases" not in path
    ]


def group_of(api: ClusterAPI) -> Object:
    return api.objects["placementgroups"]["default/job-j"]


def test_who_places_no_groups_says_so_when_asked_where_they_would_go(tmp_path: Path) -> None:
    async def play() -> None:
        async with job_of_three(tmp_path) as api, replica(api) as at:
            person = await at.connect()
            for path in ("/place", "/explain"):
                status, answer = await person.send(path, b"[]")
                assert status == BAD_REQUEST
                assert b"it places no groups: it runs without --groups" in answer

    asyncio.run(play())


PLACED = {"default/j-0": "h1", "default/j-1": "h1", "default/j-2": "h2"}


def test_a_group_is_stored_before_its_gates_are_opened(tmp_path: Path) -> None:
    async def play() -> None:
        async with job_of_three(tmp_path) as api, replica(api, groups=True) as at:
            await at.until(lambda: len(gone(api)) == 3)
            assert gone(api) == PLACED
            status = group_of(api)["status"]
            assert (status["state"], status["pods"], status["domains"]) == ("Placed", 3, 2)
            assert group_of(api)["metadata"]["ownerReferences"][0]["uid"] == "uj"
            done = [path for _, path in writes(api) if not path.endswith("/events")]
            root = "/apis/placement.nri/v1alpha1/namespaces/default/placementgroups"
            assert done[:2] == [root, f"{root}/job-j/status"]
            assert sorted(done[2:]) == [f"{PODS}j-{number}" for number in range(3)]
            (event,) = api.objects["events"].values()
            assert (event["reason"], event["involvedObject"]["name"]) == ("Placed", "job-j")
            pod = api.objects["pods"]["default/j-0"]
            assert pod["metadata"]["annotations"] == {"placement.nri/group": "job-j"}
            assert "schedulingGates" not in pod["spec"]
            for number in range(3):
                bound = api.objects["pods"][f"default/j-{number}"]
                bound["spec"]["nodeName"] = bound["spec"]["nodeSelector"][HOSTNAME]
                await api.put("pods", bound | {"status": {"phase": "Running"}})
            await at.until(lambda: group_of(api)["status"]["state"] == "Running")
            scheduler = await at.connect()
            _, text = await scheduler.get("/metrics")
            for line in (
                'nri_policy_cluster_groups{state="Running"} 1.0',
                'nri_policy_cluster_groups{state="Waiting"} 0.0',
                'nri_policy_cluster_tries_total{outcome="placed"} 1.0',
                "nri_policy_cluster_time_to_placement_seconds_count 1.0",
                "nri_policy_cluster_gates_opened_total 3.0",
                "nri_policy_cluster_replacements_total 0.0",
                "nri_policy_cluster_preemptions_total 0.0",
                "nri_policy_cluster_queue_oldest_seconds 0.0",
            ):
                assert line in text

    asyncio.run(play())


def rights() -> set[tuple[str, str]]:
    """Verbs and resources that the service has by its roles, those with names apart."""
    found = set()
    for name in ("rbac.yaml", "bind.yaml", "../kustomize/cluster-groups/rbac.yaml"):
        for each in yaml.safe_load_all((CONFIGS / name).read_text()):
            for rule in each.get("rules", ()):
                found |= {
                    (verb, f"{group}/{resource}")
                    for verb in rule["verbs"]
                    for group in rule["apiGroups"]
                    for resource in rule["resources"]
                }
    return found


def needed(method: str, path: str, query: dict[str, str]) -> tuple[str, str]:
    """The verb and the resource of a request."""
    match = re.fullmatch(
        r"/(?:api|apis/([^/]+))/[^/]+(?:/namespaces/[^/]+)?/([^/]+)(/[^/]+)?(/[^/]+)?", path
    )
    assert match is not None, path
    group, resource, name, part = match.groups(default="")
    verbs = {"POST": "create", "PATCH": "patch", "DELETE": "delete"}
    verb = verbs.get(method, "get" if name else "list")
    return "watch" if "watch" in query else verb, f"{group}/{resource}{part}"


def test_it_has_the_rights_that_it_uses_and_no_others(tmp_path: Path) -> None:
    async def play() -> None:
        async with job_of_three(tmp_path) as api:
            lease = LeaseName("kube-system", "x", "one")
            spec = {"topologies": [{"levels": [HOSTNAME]}]}
            settings = {"metadata": {"name": "default", "generation": 1}, "spec": spec}
            await api.put("clusterplacements", settings)
            async with replica(api, groups=True, lease=lease) as at:
                await at.until(lambda: len(gone(api)) == 3)
                await at.until(lambda: "status" in api.objects["clusterplacements"]["default"])
                await at.until(lambda: len(api.objects["leases"]) == 1)
                spec = group_of(api)["spec"] | {"priority": 7}  # by somebody else
                await api.put("placementgroups", {**group_of(api), "spec": spec})
                await at.until(lambda: group_of(api)["spec"]["priority"] == 0)
                scheduler = await at.connect()
                pod = api.objects["pods"]["default/web"]
                asked = {"PodName": "web", "PodNamespace": "default", "PodUID": "u", "Node": "h1"}
                assert await scheduler.ask("/bind", asked) == {"Error": ""}, pod
                await api.delete("nodes", "h2")  # where j-2 is not yet; nor is room elsewhere
                await at.until(lambda: len(api.objects["pods"]) == 2)
                assert api.objects["pods"]["default/j-2"]["status"]["phase"] == "Failed"
                assert group_of(api)["status"]["state"] == "Unplaceable"
            used = {needed(*each) for each in api.requests}
            assert used == rights()

    asyncio.run(play())


def test_a_command_with_its_account_may_read_the_cluster(tmp_path: Path) -> None:
    async def play() -> None:
        async with job_of_three(tmp_path) as api:
            command = ["cluster", "tree", "--kubeconfig", str(api.kubeconfig)]
            result = await asyncio.to_thread(CliRunner().invoke, main, command)
            assert result.exit_code == 0, result.output
            # the former may be forbidden, and the latter comes with Kueue (kustomize/cluster-kueue)
            more = {"scheduling.k8s.io/priorityclasses", "kueue.x-k8s.io/workloads"}
            asked = {needed(*each) for each in api.requests}
            assert asked - {("list", each) for each in more} <= rights()

    asyncio.run(play())


def test_a_cluster_in_which_nobody_reports_zones_places_groups_too(tmp_path: Path) -> None:
    """If the kind does not exist. If it exists but cannot be read, nothing is placed."""

    async def play(code: int) -> bool:
        async with job_of_three(tmp_path) as api:
            api.refuse = lambda _method, path: code * path.endswith("/noderesourcetopologies")
            async with replica(api, groups=True, ready=False) as at:
                if code == NOT_FOUND:
                    await at.until(lambda: len(gone(api)) == 3)
                else:
                    await at.until(lambda: bool(at.service.watch.lost_seconds()))
                return not at.service.watch.problem(*OF_GROUPS)

    assert asyncio.run(play(NOT_FOUND))
    assert not asyncio.run(play(FORBIDDEN))


def test_what_does_not_fit_waits_and_says_why(tmp_path: Path) -> None:
    async def play() -> None:
        async with job_of_three(tmp_path) as api:
            await api.delete("nodes", "h2")
            async with replica(api, groups=True) as at:
                groups = api.objects["placementgroups"]
                await at.until(lambda: "status" in groups.get("default/job-j", {}))
                status = group_of(api)["status"]
                assert status["state"] == "Unplaceable"  # not even in an empty cluster
                assert "allows to fit only 2 out of 3 pod(s)" in status["message"]
                assert not gone(api)
                await api.put("nodes", objects.node("h2"))
                await at.until(lambda: gone(api) == PLACED)

    asyncio.run(play())


def test_another_replica_opens_the_gates_that_are_left(tmp_path: Path) -> None:
    """The first one dies after the first gate, and may write no more once its time is over."""
    offset = 0.0

    def now() -> float:
        return time.monotonic() + offset

    def only_the_first(method: str, path: str) -> int:
        return 500 if method == "PATCH" and path in (f"{PODS}j-1", f"{PODS}j-2") else 0

    async def play() -> None:
        nonlocal offset
        async with job_of_three(tmp_path) as api:
            one, two = (LeaseName("kube-system", "x", name) for name in ("one", "two"))
            api.refuse = only_the_first
            async with replica(api, groups=True, lease=one, now=now) as first:
                await first.until(lambda: len(gone(api)) == 1)
                lease = first.service.lease
                assert lease is not None
                lease.take = lambda: asyncio.sleep(0)  # type: ignore[method-assign]
                offset = LASTS
                assert not lease.leading
                writer = first.service.writer
                assert writer is not None
                await first.until(lambda: not writer._writes)  # nothing is on its way
                api.refuse = lambda _method, _path: 0
                before = len(writes(api))
                writer.wake()
                for _ in range(20):
                    await asyncio.sleep(0.001)
                assert len(writes(api)) == before
                async with replica(api, groups=True, lease=two, now=now) as second:
                    offset += LASTS
                    await second.until(lambda: gone(api) == PLACED)
            assert len([path for _, path in writes(api) if path.endswith("/status")]) == 1

    asyncio.run(play())
