"""JobSets and LeaderWorkerSets of the real controllers: their pods are gated, and land whole.

The objects are as users have them, without an annotation of ours.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.control_plane import ADMIN, ControlPlane
from tests.cluster.living import Cluster, living
from tests.cluster.shop import ANNOTATIONS, GROUPS, HOSTNAME, RACK, RACKS, SHOP
from tests.support.exchanges import MERGE
from tests.support.ports import free_port
from tools.job_sets import JOBSET, LWS, Controller

Object = dict[str, Any]

JOBSETS = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/shop/jobsets"
LWSES = "/apis/leaderworkerset.x-k8s.io/v1/namespaces/shop/leaderworkersets"
GROUP_INDEX = "leaderworkerset.sigs.k8s.io/group-index"
WORKER_INDEX = "leaderworkerset.sigs.k8s.io/worker-index"
REGISTRATIONS = "/apis/admissionregistration.k8s.io/v1"


@contextmanager
def running(plane: ControlPlane, controller: Controller, kinds: str) -> Iterator[None]:
    """Run a controller, which is the admin here, with its webhooks for all objects."""
    if not controller.is_built():
        pytest.skip(f"{controller.name} is not built: python -m tools.job_sets")
    try:
        module = controller.module()
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"the module of {controller.name} cannot be downloaded: {error}")
    plane.kubectl("apply", "--server-side", "-f", str(module / controller.kinds))
    plane.until(lambda: plane.ask("GET", kinds).status == 200, f"{kinds} is served")
    folder, port, health = plane.folder / controller.name, free_port(), free_port()
    folder.mkdir()
    for name in ("tls.crt", "tls.key"):
        (folder / name).write_bytes((plane.folder / "server.pem").read_bytes())
    configuration = {
        "apiVersion": f"config.{controller.name}.x-k8s.io/v1alpha1",
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": "127.0.0.1", "port": port, "certDir": str(folder)},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
    }
    path = folder / "configuration.yaml"
    path.write_text(json.dumps(configuration))
    environment = os.environ | {"KUBECONFIG": str(plane.kubeconfig(ADMIN))}
    command = [str(controller.program()), f"--config={path}"]
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(command, env=environment, stdout=log, stderr=log) as process,
    ):
        try:
            register_webhooks(plane, controller, module / controller.webhooks, port)
            yield
        finally:
            process.kill()


def register_webhooks(plane: ControlPlane, controller: Controller, file: Path, port: int) -> None:
    """Have the API server call a controller's webhooks, and wait until it does."""
    authority = base64.b64encode((plane.folder / "ca.crt").read_bytes()).decode()
    for each in yaml.safe_load_all(file.read_text()):
        each["metadata"]["name"] = f"{controller.name}-{each['metadata']['name']}"
        for webhook in each["webhooks"]:
            path = webhook["clientConfig"]["service"]["path"]
            url = f"https://127.0.0.1:{port}{path}"
            webhook["clientConfig"] = {"url": url, "caBundle": authority}
        kind = each["kind"].lower() + "s"
        plane.asked("POST", f"{REGISTRATIONS}/{kind}", each)
    pod = {"metadata": {"name": "x"}, "spec": {"containers": [{"name": "c", "image": "x"}]}}
    path = f"{SHOP}/pods?dryRun=All"
    plane.until(lambda: plane.ask("POST", path, pod).status == 201, "the webhooks answer")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with living(tmp_path_factory.mktemp("job-sets")) as made, ExitStack() as stack:
        stack.enter_context(running(made.api, JOBSET, JOBSETS))
        stack.enter_context(running(made.api, LWS, LWSES))
        yield made


@pytest.fixture(autouse=True)
def _is_clean(cluster: Cluster) -> Iterator[None]:
    with cluster.cleaned():
        yield
        for path in (JOBSETS, LWSES):
            for each in cluster.api.asked("GET", path)["items"]:
                cluster.delete(f"{path}/{each['metadata']['name']}")


def template(cpus: int, annotations: Object, **spec: Any) -> Object:
    amounts = {"cpu": str(cpus)}
    container = {"name": "c", "image": "x", "resources": {"requests": amounts, "limits": amounts}}
    return {"metadata": {"annotations": annotations}, "spec": {"containers": [container], **spec}}


def jobset(name: str, jobs: int, pods: int, cpus: int) -> Object:
    """A JobSet as in JobSet's own example of exclusive placement."""
    job = {
        "parallelism": pods,
        "completions": pods,
        "template": template(cpus, {}, restartPolicy="Never"),
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {
            "name": name,
            "annotations": {"alpha.jobset.sigs.k8s.io/exclusive-topology": RACK},
        },
        "spec": {
            "replicatedJobs": [{"name": "w", "replicas": jobs, "template": {"spec": job}}],
        },
    }


def replicated(name: str, pods: int, annotations: Object, **more: object) -> Object:
    """Jobs of a JobSet: one, of *pods* of 2 CPUs."""
    made = template(2, annotations, restartPolicy="Never")
    job = {"parallelism": pods, "completions": pods, "template": made}
    return {"name": name, "replicas": 1, "template": {"spec": job}, **more}


def jobset_of(name: str, *jobs: Object, **more: object) -> Object:
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name},
        "spec": {"replicatedJobs": [*jobs], **more},
    }


def lws(
    name: str, replicas: int, leader: Object, worker: Object, size: int, **of: Object
) -> Object:
    templates = {"leaderTemplate": leader, "workerTemplate": worker, "size": size}
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": name, **of},
        "spec": {"replicas": replicas, "leaderWorkerTemplate": templates},
    }


def racks_of(pods: list[Object]) -> set[str]:
    nodes = {each["spec"]["nodeName"] for each in pods}
    return {rack for rack, names in RACKS.items() if nodes & {*names}}


def bound(cluster: Cluster, label: str, value: str) -> list[Object]:
    return [each for each in cluster.pods(label, value) if "nodeName" in each["spec"]]


def test_the_jobs_of_an_exclusive_jobset_have_a_rack_each_and_the_next_waits(
    cluster: Cluster,
) -> None:
    with cluster.shop.service(lease=""):
        cluster.api.asked("POST", JOBSETS, jobset("set", 2, 3, 2))
        for index in range(2):
            cluster.until_running(f"set-w-{index}", 3)
        racks = [racks_of(cluster.pods("job-name", f"set-w-{index}")) for index in range(2)]
        assert sorted(map(sorted, racks)) == [["r0"], ["r1"]]
        assert [cluster.places(f"job-set-w-{index}") for index in range(2)] == [3, 3]
        cluster.api.asked("POST", JOBSETS, jobset("late", 1, 3, 1))
        status = cluster.shop.until_state("late-w-0", "Waiting")
        assert "taken: r0 by shop/job-set-w-" in status["message"]
        assert cluster.let_go("late-w-0") == 0
        cluster.delete(f"{JOBSETS}/set")
        cluster.until_running("late-w-0", 3)
        assert len(racks_of(cluster.pods("job-name", "late-w-0"))) == 1
    assert cluster.said_no_error()


def test_the_replicas_of_an_exclusive_leaderworkerset_have_a_rack_each(cluster: Cluster) -> None:
    exclusive = {"leaderworkerset.sigs.k8s.io/exclusive-topology": RACK}
    pods = template(2, {})
    with cluster.shop.service(lease=""):
        made = lws("serve", 2, pods, pods, 4, annotations=exclusive)
        cluster.api.asked("POST", LWSES, made)
        for index in ("0", "1"):
            cluster.api.until(
                lambda index=index: len(bound(cluster, GROUP_INDEX, index)) == 4,
                f"all of replica {index} run",
            )
        racks = [racks_of(cluster.pods(GROUP_INDEX, index)) for index in ("0", "1")]
        assert sorted(map(sorted, racks)) == [["r0"], ["r1"]]
        assert [cluster.places(f"lws-serve-{index}") for index in range(2)] == [4, 4]
    assert cluster.said_no_error()


def test_slices_of_workers_are_whole_beside_the_group_name_of_their_leader(
    cluster: Cluster,
) -> None:
    kueue = "kueue.x-k8s.io/podset"
    both = {f"{kueue}-group-name": "g", f"{kueue}-required-topology": RACK}
    slices = {f"{kueue}-slice-required-topology": HOSTNAME, f"{kueue}-slice-size": "2"}
    with cluster.shop.service(lease=""):
        leader, worker = template(1, both), template(1, both | slices)
        cluster.api.asked("POST", LWSES, lws("train", 1, leader, worker, 5))
        cluster.api.until(lambda: len(bound(cluster, GROUP_INDEX, "0")) == 5, "all run")
        found = cluster.pods(GROUP_INDEX, "0")
        assert len(racks_of(found)) == 1
        workers = [each for each in found if each["metadata"]["labels"][WORKER_INDEX] != "0"]
        hosts = Counter(each["spec"]["nodeName"] for each in workers)
        assert all(number % 2 == 0 for number in hosts.values()), hosts
        states = [each["status"].get("state") for each in cluster.api.asked("GET", GROUPS)["items"]]
        assert states
        assert {*states} <= {"Placed", "Running"}
    assert cluster.said_no_error()


@pytest.mark.parametrize("asks", [ANNOTATIONS, {}])
def test_jobs_that_wait_for_others_are_placed_once_these_are_complete(
    cluster: Cluster, asks: Object
) -> None:
    """As those of a TrainJob, which begins with Jobs that fetch data, perhaps without a gate."""
    first = {"name": "fetch", "status": "Complete"}
    jobs = (replicated("fetch", 1, asks), replicated("node", 3, ANNOTATIONS, dependsOn=[first]))
    with cluster.shop.service(lease=""):
        cluster.api.asked("POST", JOBSETS, jobset_of("train", *jobs))
        cluster.until_running("train-fetch-0", 1)
        assert not cluster.pods("job-name", "train-node-0")
        cluster.succeed("train-fetch-0")
        cluster.until_running("train-node-0", 3)
        assert len(racks_of(cluster.pods("job-name", "train-node-0"))) == 1
        assert cluster.places("jobset-train.node") == 3
    assert cluster.said_no_error()


def test_jobs_in_order_are_placed_one_after_the_other_in_one_rack(cluster: Cluster) -> None:
    """The driver alone fits best where another Job is, and the workers only in the other rack."""
    asks = ANNOTATIONS | {"placement.nri/group-required-topology": RACK}
    jobs = (replicated("driver", 1, asks), replicated("worker", 3, asks))
    with cluster.shop.service(lease=""):
        cluster.submit("other", 2, cpu=4)
        cluster.until_running("other", 2)
        order = {"startupPolicyOrder": "InOrder"}
        cluster.api.asked("POST", JOBSETS, jobset_of("run", *jobs, startupPolicy=order))
        cluster.until_running("run-driver-0", 1)
        cluster.until_running("run-worker-0", 3)
        (rack,) = racks_of(cluster.pods("job-name", "run-driver-0"))
        assert racks_of(cluster.pods("job-name", "run-worker-0")) == {rack}
        assert racks_of(cluster.pods("job-name", "other")) != {rack}
    assert cluster.said_no_error()


def test_workers_that_wait_for_a_ready_leader_have_their_places_from_the_first(
    cluster: Cluster,
) -> None:
    with cluster.shop.service(lease=""):
        leader, worker = template(1, ANNOTATIONS), template(2, ANNOTATIONS)
        made = lws("late", 1, leader, worker, 4)
        made["spec"]["startupPolicy"] = "LeaderReady"
        cluster.api.asked("POST", LWSES, made)
        cluster.api.until(lambda: bound(cluster, GROUP_INDEX, "0"), "the leader runs")
        assert cluster.places("lws-late-0") == 4
        cluster.api.until(lambda: len(bound(cluster, GROUP_INDEX, "0")) == 4, "all run")
        workers = [
            each
            for each in cluster.pods(GROUP_INDEX, "0")
            if each["metadata"]["labels"][WORKER_INDEX] != "0"
        ]
        assert len(racks_of(workers)) == 1
        assert cluster.places("lws-late-0") == 4
    assert cluster.said_no_error()


def fail(cluster: Cluster, pod: str) -> None:
    status = {"status": {"phase": "Failed"}}
    cluster.api.asked("PATCH", f"{SHOP}/pods/{pod}/status", status, content=MERGE)


def uids(pods: list[Object]) -> set[str]:
    return {each["metadata"]["uid"] for each in pods}


@pytest.mark.parametrize("in_order", [False, True])
def test_a_jobset_that_restarts_is_placed_again(cluster: Cluster, in_order: bool) -> None:
    jobs = (replicated("driver", 1, ANNOTATIONS), replicated("worker", 3, ANNOTATIONS))
    more: Object = {"startupPolicy": {"startupPolicyOrder": "InOrder"}} if in_order else {}
    more["failurePolicy"] = {"maxRestarts": 3}
    for each in jobs:
        each["template"]["spec"]["backoffLimit"] = 0
    with cluster.shop.service(lease=""):
        cluster.api.asked("POST", JOBSETS, jobset_of("again", *jobs, **more))
        cluster.until_running("again-worker-0", 3)
        old = uids(cluster.pods("job-name", "again-worker-0"))
        fail(cluster, cluster.pods("job-name", "again-worker-0")[0]["metadata"]["name"])
        cluster.api.until(
            lambda: (
                len(found := bound(cluster, "job-name", "again-worker-0")) == 3
                and not uids(found) & old
            ),
            "the workers run again",
        )
        cluster.until_running("again-driver-0", 1)
        assert len(racks_of(cluster.pods("job-name", "again-worker-0"))) == 1
    assert cluster.said_no_error()


def test_a_group_of_a_leaderworkerset_that_is_made_anew_is_placed_again(cluster: Cluster) -> None:
    pods = template(1, ANNOTATIONS)
    with cluster.shop.service(lease=""):
        cluster.api.asked("POST", LWSES, lws("anew", 1, pods, pods, 3))
        cluster.api.until(lambda: len(bound(cluster, GROUP_INDEX, "0")) == 3, "all run")
        old = uids(bound(cluster, GROUP_INDEX, "0"))
        cluster.delete(f"{SHOP}/pods/anew-0-1")
        cluster.api.until(
            lambda: len(found := bound(cluster, GROUP_INDEX, "0")) == 3 and not uids(found) & old,
            "all run again",
        )
        assert len(racks_of(bound(cluster, GROUP_INDEX, "0"))) == 1
        assert cluster.places("lws-anew-0") == 3
    assert cluster.said_no_error()


@pytest.mark.parametrize("policy", ["LeaderCreated", "LeaderReady"])
def test_a_leaderworkerset_whose_pods_get_larger_is_placed_anew(
    cluster: Cluster, policy: str
) -> None:
    pods = template(1, ANNOTATIONS)
    with cluster.shop.service(lease=""):
        made = lws("grow", 2, pods, pods, 3)
        made["spec"]["startupPolicy"] = policy
        cluster.api.asked("POST", LWSES, made)
        for index in ("0", "1"):
            cluster.api.until(
                lambda index=index: len(bound(cluster, GROUP_INDEX, index)) == 3,
                "all run",
            )
        larger = template(2, ANNOTATIONS)
        change = {"leaderWorkerTemplate": {"leaderTemplate": larger, "workerTemplate": larger}}
        cluster.api.asked("PATCH", f"{LWSES}/grow", {"spec": change}, content=MERGE)
        for index in ("0", "1"):
            cluster.api.until(
                lambda index=index: (
                    [
                        each["spec"]["containers"][0]["resources"]["requests"]["cpu"]
                        for each in bound(cluster, GROUP_INDEX, index)
                    ]
                    == ["2", "2", "2"]
                ),
                f"all of {index} run with two CPUs",
            )
            assert len(racks_of(bound(cluster, GROUP_INDEX, index))) == 1
            assert not cluster.reasons(f"lws-grow-{index}")["Replaced"], "all were bound"
    assert cluster.said_no_error()


def test_a_jobset_of_the_same_name_comes_at_once_with_another_size(cluster: Cluster) -> None:
    with cluster.shop.service(lease=""):
        for pods in (3, 2, 4):
            made = jobset_of("same", replicated("w", pods, ANNOTATIONS))
            cluster.api.until(
                lambda made=made: cluster.api.ask("POST", JOBSETS, made).status == 201,
                "the name is free",
            )
            cluster.api.until(
                lambda pods=pods: len(bound(cluster, "job-name", "same-w-0")) == pods,
                f"{pods} run",
            )
            cluster.delete(f"{JOBSETS}/same")
    assert cluster.said_no_error()
