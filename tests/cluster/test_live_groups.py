"""Groups of real Jobs and Deployments: refused, scaled, suspended, preempted, and without nodes."""

from __future__ import annotations

from collections.abc import Iterator
from http.client import OK
from typing import Any

import pytest

from tests.cluster.installation import CONFIGS
from tests.cluster.living import DEPLOYMENTS, DISRUPTED, Cluster, living
from tests.cluster.shop import GROUPS, JOBS, NODES, RACK, RACKS, SHOP
from tests.support.exchanges import MERGE


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with living(tmp_path_factory.mktemp("live-groups")) as made:
        yield made


@pytest.fixture(autouse=True)
def _is_clean(cluster: Cluster) -> Iterator[None]:
    with cluster.cleaned():
        yield


def test_no_node_is_ready_for_a_while(cluster: Cluster) -> None:
    cluster.shop.write_settings(failure={"failFast": False})
    with cluster.shop.service() as process:
        cluster.submit("one", 4)
        cluster.until_running("one", 4)
        cluster.set_ready(False)
        for pod in cluster.pods("job-name", "one")[:2]:
            cluster.delete(f"{SHOP}/pods/{pod['metadata']['name']}")
        cluster.submit("two", 2)
        cluster.shop.until_state("two", "Unplaceable")
        assert "no topology domains" in cluster.shop.status("two")["message"]
        cluster.set_ready(True)
        cluster.until_running("one", 4)
        cluster.until_running("two", 2)
        assert process.poll() is None
    assert cluster.said_no_error()


def test_a_quota_or_a_name_of_one_user_holds_nobody_up(cluster: Cluster) -> None:
    """The quota allows no PlacementGroup, and an Event says so."""
    quotas = f"{SHOP}/resourcequotas"
    kind = "count/placementgroups.placement.nri"
    quota = {"metadata": {"name": "q"}, "spec": {"hard": {kind: "0"}},
             "status": {"hard": {kind: "0"}, "used": {kind: "0"}}}  # fmt: skip
    made = cluster.api.asked("POST", quotas, quota)
    status = {"status": quota["status"]}  # as the controller of quotas would write it
    cluster.api.asked("PATCH", f"{quotas}/q/status", status, content=MERGE)
    assert made["metadata"]["name"] == "q"
    with cluster.shop.service(lease=""):
        cluster.submit("late", 2)
        cluster.api.until(
            lambda: any(
                cluster.reasons(each["metadata"]["name"])["Refused"]
                for each in cluster.pods("job-name", "late")
            ),
            "a pod is told of the quota",
        )
        cluster.api.asked("DELETE", f"{quotas}/q")
        cluster.until_running("late", 2)
        template = cluster.template(1, restartPolicy="Never")
        template["metadata"]["annotations"] |= {
            "placement.nri/group": "My_Group",
            "placement.nri/group-size": "3",
        }
        cluster.submit("named", 3, template=template)
        cluster.until_running("named", 3)
    assert cluster.said_no_error()


def test_deployments_and_jobs_are_scaled_and_deleted(cluster: Cluster) -> None:
    with cluster.shop.service(lease=""):
        selector = {"matchLabels": {"app": "web"}}
        template = cluster.template(4)
        template["metadata"]["labels"] = {"app": "web"}
        spec = {"replicas": 6, "selector": selector, "template": template}
        cluster.api.asked("POST", DEPLOYMENTS, {"metadata": {"name": "web"}, "spec": spec})

        def running() -> int:
            return sum("nodeName" in each["spec"] for each in cluster.pods("app", "web"))

        for turn in range(3):
            cluster.api.until(lambda: running() == 6, f"all run, {turn}")
            old = {each["metadata"]["name"] for each in cluster.pods("app", "web")}
            for name in old:
                cluster.delete(f"{SHOP}/pods/{name}")
            cluster.api.until(
                lambda old=old: (
                    running() == 6
                    and not old & {each["metadata"]["name"] for each in cluster.pods("app", "web")}
                ),
                f"all run again, {turn}",
            )
        cluster.api.asked("PATCH", f"{DEPLOYMENTS}/web", {"spec": {"replicas": 0}}, content=MERGE)
        cluster.submit("elastic", 2, completionMode="Indexed")
        cluster.until_running("elastic", 2)
        for pods in (4, 1, 6):
            cluster.patch_job("elastic", parallelism=pods, completions=pods)
            cluster.until_running("elastic", pods)
            cluster.api.until(
                lambda pods=pods: cluster.places("job-elastic") == pods, f"it has {pods} places"
            )
        cluster.submit("next", 6)
        cluster.until_running("next", 6)
        cluster.patch_job("elastic", suspend=True)
        cluster.api.until(lambda: not cluster.places("job-elastic"), "a suspended Job has no place")
        cluster.submit("third", 6)
        cluster.until_running("third", 6)
        cluster.patch_job("elastic", suspend=False)
        cluster.delete(f"{JOBS}/next")
        cluster.until_running("elastic", 6)
    assert cluster.said_no_error()


IGNORE_DISRUPTIONS: Any = {
    "podFailurePolicy": {"rules": [{"action": "Ignore", "onPodConditions": [DISRUPTED]}]},
    "backoffLimit": 0,
}


def has_not_failed(cluster: Cluster, job: str) -> bool:
    status = cluster.job(job)["status"]
    ended = [each for each in status.get("conditions", ()) if each["type"] == "Failed"]
    return not status.get("failed") and not ended


def test_a_job_without_room_beside_its_failed_node_runs_again_elsewhere(cluster: Cluster) -> None:
    """With `failFast`, the default: it loses all its places, and does not count as failed."""
    with cluster.shop.service(lease=""):
        cluster.submit("one", 3, cpu=4, **IGNORE_DISRUPTIONS)
        cluster.until_running("one", 3)
        before = {*cluster.hosts("job-one")}
        (failed, *_) = before
        cluster.set_ready(False, failed)
        for pod in cluster.pods("job-name", "one"):
            if pod["spec"]["nodeName"] == failed:
                cluster.evict(pod["metadata"]["name"])
        cluster.api.until(
            lambda: cluster.running("one") == 3 and not before & {*cluster.hosts("job-one")},
            "all run in the other rack",
        )
        assert has_not_failed(cluster, "one")
    assert cluster.said_no_error()


def test_a_preempted_job_runs_again_and_has_not_failed(cluster: Cluster) -> None:
    """It may not fail once; its failure policy ignores disruptions.

    The Job controller makes the pods anew after a while, which is longer the more there were.
    """
    cluster.shop.write_settings(groups={"preemption": True})
    with cluster.shop.service(lease=""):
        for name in ("low", "lower"):
            cluster.submit(name, 2, cpu=4, **IGNORE_DISRUPTIONS)
            cluster.until_running(name, 2)
        cluster.submit("urgent", 2, cpu=4, priority="urgent")
        cluster.until_running("urgent", 2)
        (evicted,) = [each for each in ("low", "lower") if not cluster.running(each)]
        assert cluster.api.asked("GET", f"{GROUPS}/job-urgent")["spec"]["priority"] == 1000
        cluster.delete(f"{JOBS}/urgent")
        cluster.until_running(evicted, 2)
        assert has_not_failed(cluster, evicted)
    assert cluster.said_no_error()


def test_a_group_waits_for_zones_and_goes_when_a_node_reports_room(cluster: Cluster) -> None:
    """By the nodes' totals it would fit anywhere, but kubelets would refuse its pods."""
    with cluster.aligned(), cluster.shop.service():
        cluster.submit("gang", 2, memory="1Gi")
        status = cluster.shop.until_state("gang", "Waiting")
        [condition] = status["conditions"]
        assert (condition["type"], condition["reason"]) == ("ZonesRefuse", "ZonesFull")
        assert "2 asked, 1 left in node-0, 2 in an empty zone" in status["message"]
        assert cluster.let_go("gang") == 0
        cluster.submit("other", 1)  # whose pod no node aligns
        cluster.until_running("other", 1)
        assert cluster.let_go("gang") == 0
        cluster.report("e", 2, 2)
        cluster.until_running("gang", 2)
        assert cluster.hosts("job-gang") == {"e": 2}
        assert not cluster.shop.status("gang").get("conditions")
        cluster.clear()
    assert cluster.said_no_error()


def test_a_gang_of_whole_hosts_beside_a_daemonset_closes_no_host(cluster: Cluster) -> None:
    """It fits an empty cluster, which there never is: nothing is set aside for it."""
    cluster.shop.write_settings(groups={"timeout": "1s", "holds": "all"})
    for node in NODES:
        container = {"name": "c", "image": "x", "resources": {"requests": {"cpu": "100m"}}}
        spec = {"nodeName": node, "containers": [container]}
        made = {"metadata": {"name": f"agent-{node}"}, "spec": spec}
        cluster.api.asked("POST", f"{SHOP}/pods", made)
    with cluster.shop.service(lease=""):
        cluster.submit("whole", 2, cpu=4)
        said = "fits nowhere beside what stays:"
        lack = f"{said} DaemonSets and services leave at most 3.9 of 4 CPUs on each host"
        cluster.api.until(
            lambda: cluster.shop.status("whole").get("message") == lack, "it says what it lacks"
        )
        for number in range(3):
            cluster.submit(f"small-{number}", 2, cpu=1)
            cluster.until_running(f"small-{number}", 2)
        status = cluster.shop.status("whole")
        assert (status["state"], status["reserved"]) == ("Waiting", [])
    assert cluster.said_no_error()
    for node in NODES:  # nothing runs there that would end them
        cluster.api.asked("DELETE", f"{SHOP}/pods/agent-{node}", {"gracePeriodSeconds": 0})


def test_the_jobs_of_an_exclusive_jobset_have_a_rack_each(cluster: Cluster) -> None:
    """They are as JobSet makes them."""
    exclusive = {"alpha.jobset.sigs.k8s.io/exclusive-topology": RACK}
    with cluster.shop.service(lease=""):
        for index in range(2):
            name = f"set-w-{index}"
            labels = {
                "jobset.sigs.k8s.io/jobset-name": "set",
                "jobset.sigs.k8s.io/replicatedjob-name": "w",
                "jobset.sigs.k8s.io/job-index": str(index),
            }
            metadata = {"labels": labels, "annotations": exclusive}
            template = cluster.template(2, restartPolicy="Never")
            spec = {
                "parallelism": 2,
                "completions": 2,
                "completionMode": "Indexed",
                "template": template | {"metadata": metadata},
            }
            cluster.api.asked("POST", JOBS, {"metadata": {"name": name, **metadata}, "spec": spec})
        for index in range(2):
            cluster.until_running(f"set-w-{index}", 2)
        racks = [
            {
                rack
                for rack, names in RACKS.items()
                if {*cluster.hosts(f"job-set-w-{index}")} & {*names}
            }
            for index in range(2)
        ]
        assert sorted(map(sorted, racks)) == [["r0"], ["r1"]]


def test_a_running_group_has_a_host_again_before_small_jobs_that_wait(cluster: Cluster) -> None:
    """The jobs on the only host that would do end one by one; the next ones do not get their CPUs.

    With `failFast: false`: what is left of the group runs meanwhile.
    """
    cluster.shop.write_settings(groups={"timeout": "1s"}, failure={"failFast": False})
    with cluster.shop.service(lease=""):
        cluster.submit("gang", 2, cpu=4)
        cluster.until_running("gang", 2)
        lost, kept = cluster.hosts("job-gang")
        (rack,) = [names for names in RACKS.values() if lost in names]
        (only,) = {*rack} - {lost, kept}
        small = [f"small-{number}" for number in range(16)]
        for name in small:
            cluster.submit(name, 1, cpu=1)
        for name in small:
            cluster.until_running(name, 1)
        (there, elsewhere) = (
            [name for name in small if (cluster.hosts(f"job-{name}") == {only: 1}) is on]
            for on in (True, False)
        )
        cluster.set_ready(False, lost)
        (pod,) = [
            each["metadata"]["name"]
            for each in cluster.pods("job-name", "gang")
            if each["spec"]["nodeName"] == lost
        ]
        cluster.evict(pod)
        cluster.api.until(
            lambda: cluster.shop.status("gang").get("reserved") == [only], "it is set aside"
        )
        assert cluster.shop.status("gang")["state"] == "Degraded"
        late = [f"late-{number}" for number in range(4)]
        for name in late:
            cluster.submit(name, 1, cpu=1)
            cluster.shop.until_state(name, "Waiting")
        for name in there:
            cluster.succeed(name)
        cluster.until_running("gang", 2)
        assert {*cluster.hosts("job-gang")} == {kept, only}
        assert not any(map(cluster.running, late))
        cluster.succeed(elsewhere[0])
        cluster.api.until(lambda: any(map(cluster.running, late)), "a small job runs")
    assert cluster.said_no_error()


def test_a_group_of_bare_pods_is_finished_when_they_went_and_can_be_deleted(
    cluster: Cluster,
) -> None:
    template = cluster.template(1, restartPolicy="Never")
    template["metadata"]["annotations"] |= {
        "placement.nri/group": "bare",
        "placement.nri/group-size": "2",
    }
    with cluster.shop.service(lease=""):
        for number in range(2):
            metadata = template["metadata"] | {"name": f"bare-{number}"}
            cluster.api.asked("POST", f"{SHOP}/pods", template | {"metadata": metadata})

        def state() -> str:
            answer = cluster.api.ask("GET", f"{GROUPS}/bare")
            return answer.body.get("status", {}).get("state", "") if answer.status == OK else ""

        cluster.api.until(lambda: state() == "Running", "it runs")
        for number in range(2):
            cluster.delete(f"{SHOP}/pods/bare-{number}")
        cluster.api.until(lambda: state() == "Finished", "it is finished")
    page = (CONFIGS.parent / "docs" / "cluster-live.md").read_text()
    (command,) = [
        line for line in page.splitlines() if line.startswith("kubectl delete placementgroups")
    ]
    assert "placementgroup.placement.nri" in cluster.api.kubectl(*command.split()[1:])
    assert not cluster.api.asked("GET", GROUPS)["items"]
    assert cluster.said_no_error()
