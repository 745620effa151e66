"""Groups of real controllers whose pods are replaced, added or removed while others run.

StatefulSets and Jobs are Kubernetes' own, LeaderWorkerSets those of LWS.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.living import Cluster, living
from tests.cluster.shop import ANNOTATIONS, GROUPS
from tests.cluster.test_job_sets import (
    GROUP_INDEX,
    LWSES,
    bound,
    fail,
    lws,
    racks_of,
    running,
    template,
    uids,
)
from tests.support.exchanges import MERGE
from tools.job_sets import LWS

Object = dict[str, Any]

STATEFUL_SETS = "/apis/apps/v1/namespaces/shop/statefulsets"
INDEX = "batch.kubernetes.io/job-completion-index"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with living(tmp_path_factory.mktemp("rolling")) as made, running(made.api, LWS, LWSES):
        yield made


@pytest.fixture(autouse=True)
def _is_clean(cluster: Cluster) -> Iterator[None]:
    with cluster.cleaned():
        yield
        for path in (LWSES, STATEFUL_SETS):
            for each in cluster.api.asked("GET", path)["items"]:
                cluster.delete(f"{path}/{each['metadata']['name']}")


def cpus(pods: list[Object]) -> list[str]:
    return [each["spec"]["containers"][0]["resources"]["requests"]["cpu"] for each in pods]


def hosts(cluster: Cluster, label: str, value: str) -> dict[str, str]:
    found = bound(cluster, label, value)
    return {each["metadata"]["name"]: each["spec"]["nodeName"] for each in found}


def stateful_set(cpu: int) -> Object:
    """A StatefulSet whose three pods are a group."""
    of_group = {"placement.nri/group": "db", "placement.nri/group-size": "3"}
    pods = template(cpu, ANNOTATIONS | of_group)
    pods["metadata"]["labels"] = {"app": "db"}
    pods["spec"]["schedulingGates"] = [{"name": "placement.nri/group"}]
    return {
        "metadata": {"name": "db"},
        "spec": {
            "replicas": 3,
            "serviceName": "db",
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": {"app": "db"}},
            "template": pods,
        },
    }


@pytest.mark.parametrize(("old", "new"), [(3, 1), (3, 4)])
def test_a_statefulset_is_updated_pod_by_pod_in_the_places_of_its_group(
    cluster: Cluster, old: int, new: int
) -> None:
    with cluster.shop.service(lease=""):
        cluster.api.asked("POST", STATEFUL_SETS, stateful_set(old))
        cluster.api.until(lambda: len(bound(cluster, "app", "db")) == 3, "all run")
        before = hosts(cluster, "app", "db")
        change = {"spec": {"template": stateful_set(new)["spec"]["template"]}}
        cluster.api.asked("PATCH", f"{STATEFUL_SETS}/db", change, content=MERGE)
        cluster.api.until(
            lambda: cpus(bound(cluster, "app", "db")) == [str(new)] * 3, "all are of the new one"
        )
        assert hosts(cluster, "app", "db") == before

        def group() -> Object:
            found: Object = cluster.api.asked("GET", f"{GROUPS}/db")
            return found

        def asked() -> str:
            (pod_set,) = group()["spec"]["podSets"]
            return str(cpus([pod_set["template"]])[0])

        cluster.api.until(lambda: asked() == f"{new}000m", "the group has the new template")
        cluster.api.until(lambda: group()["status"]["state"] == "Running", "the group runs")
        assert cluster.places("db") == 3
    assert cluster.said_no_error()


def test_pods_of_a_statefulset_that_become_too_large_for_their_host_stay_in_its_rack(
    cluster: Cluster,
) -> None:
    with cluster.shop.service(lease=""):
        cluster.api.asked("POST", STATEFUL_SETS, stateful_set(1))
        cluster.api.until(lambda: len(bound(cluster, "app", "db")) == 3, "all run")
        before = racks_of(bound(cluster, "app", "db"))
        assert len({*hosts(cluster, "app", "db").values()}) == 1
        change = {"spec": {"template": stateful_set(2)["spec"]["template"]}}
        cluster.api.asked("PATCH", f"{STATEFUL_SETS}/db", change, content=MERGE)
        cluster.api.until(
            lambda: cpus(bound(cluster, "app", "db")) == ["2"] * 3, "all are of the new one"
        )
        assert racks_of(bound(cluster, "app", "db")) == before
        assert len({*hosts(cluster, "app", "db").values()}) == 2
        assert cluster.places("db") == 3
    assert cluster.said_no_error()


@pytest.mark.parametrize("surge", [0, 1])
def test_a_leaderworkerset_is_updated_group_by_group(cluster: Cluster, surge: int) -> None:
    """Perhaps with one more group meanwhile, which goes at the end."""
    pods, larger = template(1, ANNOTATIONS), template(2, ANNOTATIONS)
    with cluster.shop.service(lease=""):
        made = lws("roll", 3, pods, pods, 2)
        rolling = {"maxUnavailable": 1, "maxSurge": surge}
        made["spec"]["rolloutStrategy"] = {
            "type": "RollingUpdate",
            "rollingUpdateConfiguration": rolling,
        }
        cluster.api.asked("POST", LWSES, made)
        for index in "012":
            cluster.api.until(
                lambda index=index: len(bound(cluster, GROUP_INDEX, index)) == 2, "all run"
            )
        change = {"leaderWorkerTemplate": {"leaderTemplate": larger, "workerTemplate": larger}}
        cluster.api.asked("PATCH", f"{LWSES}/roll", {"spec": change}, content=MERGE)
        for index in "012":
            cluster.api.until(
                lambda index=index: cpus(bound(cluster, GROUP_INDEX, index)) == ["2", "2"],
                f"all of {index} are of the new one",
            )
            assert len(racks_of(bound(cluster, GROUP_INDEX, index))) == 1
        cluster.api.until(lambda: not cluster.pods(GROUP_INDEX, "3"), "the surge is gone")
        cluster.api.until(lambda: not cluster.places("lws-roll-3"), "and its places")
        assert [cluster.places(f"lws-roll-{index}") for index in range(3)] == [2, 2, 2]
    assert cluster.said_no_error()


def test_an_elastic_indexed_job_grows_and_shrinks_with_its_completions(cluster: Cluster) -> None:
    with cluster.shop.service(lease=""):
        cluster.submit("elastic", 3, cpu=1, completionMode="Indexed")
        cluster.until_running("elastic", 3)
        before = hosts(cluster, "job-name", "elastic")
        for pods in (6, 2, 5):
            cluster.patch_job("elastic", parallelism=pods, completions=pods)
            cluster.until_running("elastic", pods)
            cluster.api.until(
                lambda pods=pods: cluster.places("job-elastic") == pods, f"it has {pods} places"
            )
            assert len(racks_of(cluster.pods("job-name", "elastic"))) == 1
        after = hosts(cluster, "job-name", "elastic")
        stay = {name: host for name, host in before.items() if name in after}
        assert len(stay) == 2
        assert stay.items() <= after.items()
    assert cluster.said_no_error()


def index_of(pod: Object) -> str:
    found: str = pod["metadata"]["annotations"][INDEX]
    return found


def test_an_index_without_retries_gives_its_place_back_and_the_job_goes_on(
    cluster: Cluster,
) -> None:
    """The Job is suspended meanwhile, and resumed without a pod of that index."""
    options: Object = {
        "completionMode": "Indexed",
        "backoffLimitPerIndex": 1,
        "maxFailedIndexes": 2,
    }
    with cluster.shop.service(lease=""):
        cluster.submit("index", 3, cpu=4, podReplacementPolicy="Failed", **options)
        cluster.until_running("index", 3)
        for left in (3, 2):
            old = uids(cluster.pods("job-name", "index"))
            (second,) = (
                each["metadata"]["name"]
                for each in cluster.pods("job-name", "index")
                if index_of(each) == "1"
            )
            fail(cluster, second)
            cluster.api.until(
                lambda left=left, old=old: (
                    len(found := bound(cluster, "job-name", "index")) == left
                    and (left == 2 or uids(found) != old)
                ),
                f"{left} run",
            )
        cluster.api.until(lambda: cluster.places("job-index") == 2, "its place is free")
        cluster.patch_job("index", suspend=True)
        cluster.api.until(lambda: not cluster.pods("job-name", "index"), "it is suspended")
        cluster.api.until(lambda: not cluster.places("job-index"), "it has no places")
        cluster.patch_job("index", suspend=False)
        cluster.until_running("index", 2)
        assert len(racks_of(cluster.pods("job-name", "index"))) == 1
        assert cluster.places("job-index") == 2
    assert cluster.said_no_error()
