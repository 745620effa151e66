"""JobSets, LeaderWorkerSets and TrainJobs: groups, pod sets, and domains to themselves."""

from __future__ import annotations

from typing import Any

import pytest

from nri_policy.cluster.objects.document import DocumentError
from nri_policy.cluster.requests.group import PlacementGroup
from nri_policy.cluster.workloads.job_sets import read_job_set_steps
from nri_policy.cluster.workloads.membership import find_sub_group, object_name
from nri_policy.cluster.workloads.workload import read_groups
from tests.unit.cluster.written import pod_spec

RACK = "example.com/rack"
JOBSET = {"alpha.jobset.sigs.k8s.io/exclusive-topology": RACK}
LWS = "leaderworkerset.sigs.k8s.io/"
STEP = "trainer.kubeflow.org/trainjob-ancestor-step"


def template(cpu: int = 1) -> Any:
    return {"spec": pod_spec({"cpu": cpu})}


def replicated(name: str, replicas: int, **metadata: Any) -> Any:
    job = {"metadata": metadata, "spec": {"parallelism": 2, "template": template()}}
    return {"name": name, "replicas": replicas, "template": job}


def read(kind: str, spec: Any, **annotations: str) -> list[PlacementGroup]:
    metadata = {"name": "s", "annotations": annotations}
    return read_groups([{"kind": kind, "metadata": metadata, "spec": spec}])


def shape(groups: list[PlacementGroup]) -> Any:
    return {
        each.name: {one.name: one.count for one in each.pod_sets}
        | ({"exclusive": level} if (level := _exclusive(each)) else {})
        for each in groups
    }


def _exclusive(group: PlacementGroup) -> str | None:
    request = group.pod_sets[0].request
    return request.exclusive if request else None


def test_each_job_of_an_exclusive_jobset_is_a_group() -> None:
    jobs = [replicated("w", 2), replicated("d", 1)]
    assert shape(read("JobSet", {"replicatedJobs": jobs}, **JOBSET)) == {
        "s-w-0": {"w": 2, "exclusive": RACK},
        "s-w-1": {"w": 2, "exclusive": RACK},
        "s-d-0": {"d": 2, "exclusive": RACK},
    }


def test_a_replicated_job_may_be_exclusive_beside_others() -> None:
    jobs = [replicated("w", 2), replicated("d", 1, annotations=JOBSET), replicated("x", 1)]
    assert shape(read("JobSet", {"replicatedJobs": jobs})) == {
        "s": {"w": 4, "x": 2},
        "s-d-0": {"d": 2, "exclusive": RACK},
    }


def test_the_steps_of_a_jobset_are_its_groups_and_exclusive_jobs_are_none() -> None:
    order = {"startupPolicyOrder": "InOrder"}
    jobs = [replicated("d", 1), replicated("w", 1), replicated("x", 1, annotations=JOBSET)]
    found = read("JobSet", {"replicatedJobs": jobs, "startupPolicy": order})
    assert {each.name: each.job_set for each in found} == {"s": "s", "s.w": "s", "s-x-0": ""}


def together(*jobs: Any, name: str = "s", order: str = "InOrder") -> Any:
    """Return the steps that run at the same time, as the service names their groups."""
    spec = {"replicatedJobs": jobs, "startupPolicy": {"startupPolicyOrder": order}}
    found = read_job_set_steps({"metadata": {"name": name, "uid": "u"}, "spec": spec}, "")
    assert all(each.job_set == "u" for steps in found.together for each in steps)
    return [shape([*steps]) for steps in found.together]


def sharing(name: str, replicas: int = 1, depends: Any = (), asks: Any = ()) -> Any:
    job = replicated(name, replicas) | {"dependsOn": [*depends]}
    asks = {"placement.nri/group-required-topology": RACK, **dict(asks)}
    job["template"]["spec"]["template"]["metadata"] = {"annotations": asks}
    return job


def test_steps_that_share_a_domain_are_groups_before_their_pods_are_there() -> None:
    jobs = [sharing("d"), sharing("w", 3), replicated("x", 1)]
    assert together(*jobs) == [{"jobset-s": {"d": 2}, "jobset-s.w": {"w": 6}}]
    (long,) = together(*jobs, name="s" * 300)
    assert [*long] == [object_name(f"jobset-{'s' * 300}{step}") for step in ("", ".w")]
    assert together(*jobs, order="AnyOrder") == []
    assert together(replicated("d", 1), replicated("w", 1)) == []


def test_steps_do_not_share_a_domain_if_users_name_their_group_or_they_are_exclusive() -> None:
    named = {"placement.nri/group": "g", "placement.nri/group-size": "2"}
    assert together(sharing("d"), sharing("w", asks=named)) == []
    assert together(sharing("d"), sharing("w", asks=JOBSET)) == []


def test_steps_run_at_the_same_time_if_they_start_after_the_same_jobs_are_complete() -> None:
    ready, complete = ([{"name": "a", "status": status}] for status in ("Ready", "Complete"))
    after_c = [{"name": "c", "status": "Ready"}]
    jobs = [sharing("a"), sharing("b", depends=ready), sharing("c", depends=complete)]
    found = together(*jobs, sharing("d", depends=after_c), order="AnyOrder")
    assert [[*steps] for steps in found] == [
        ["jobset-s", "jobset-s.b"],
        ["jobset-s.c", "jobset-s.d"],
    ]


def test_the_annotation_on_the_pods_of_a_replicated_job_makes_each_of_its_jobs_exclusive() -> None:
    """As the service reads it from these pods."""
    jobs = [replicated("w", 2), replicated("d", 2)]
    jobs[1]["template"]["spec"]["template"]["metadata"] = {"annotations": JOBSET}
    assert shape(read("JobSet", {"replicatedJobs": jobs})) == {
        "s": {"w": 4},
        "s-d-0": {"d": 2, "exclusive": RACK},
        "s-d-1": {"d": 2, "exclusive": RACK},
    }


@pytest.mark.parametrize(
    ("size", "of", "policy", "expected"),
    [
        (5, 2, "LeaderWorker", {"0-0": [1, 2], "0-1": [0, 2]}),
        (4, 2, "LeaderWorker", {"0-0": [1, 1], "0-1": [0, 2]}),
        (5, 2, "LeaderExcluded", {"0": [1, 0], "0-0": [0, 2], "0-1": [0, 2]}),
    ],
)
def test_each_sub_group_is_a_group(size: int, of: int, policy: str, expected: Any) -> None:
    workers = {
        "size": size,
        "workerTemplate": template(),
        "leaderTemplate": template(2),
        "subGroupPolicy": {"subGroupSize": of, "type": policy},
    }
    spec = {"leaderWorkerTemplate": workers}
    groups = read("LeaderWorkerSet", spec, **{f"{LWS}subgroup-exclusive-topology": RACK})
    assert shape(groups) == {
        f"s-{name}": ({"leader": 1} if led else {}) | {"workers": pods, "exclusive": RACK}
        for name, (led, pods) in expected.items()
    }


@pytest.mark.parametrize(
    ("pods", "size", "leader"), [(5, 2, True), (4, 2, True), (5, 2, False), (9, 4, True)]
)
def test_sub_groups_share_the_pods(pods: int, size: int, leader: bool) -> None:
    parts = [find_sub_group(number, size, pods, leader=leader) for number in range(pods // size)]
    assert [one for part in parts for one in part] == [*range(0 if leader else 1, pods)]


def test_a_sub_group_and_its_group_cannot_both_be_exclusive() -> None:
    spec = {"leaderWorkerTemplate": {"size": 4, "workerTemplate": template()}}
    both = {f"{LWS}exclusive-topology": RACK, f"{LWS}subgroup-exclusive-topology": RACK}
    with pytest.raises(DocumentError, match=r"subgroup-exclusive-topology: may not be set when"):
        read("LeaderWorkerSet", spec, **both)


@pytest.mark.parametrize("size", [0, 1])
def test_so_many_groups_are_refused(size: int) -> None:
    workers = {
        "size": 100_000,
        "workerTemplate": template(),
        "subGroupPolicy": {"subGroupSize": size},
    }
    spec = {"leaderWorkerTemplate": workers}
    with pytest.raises(DocumentError, match=r"subGroupSize: "):
        read("LeaderWorkerSet", spec, **{f"{LWS}subgroup-exclusive-topology": RACK})


def runtime(*jobs: Any, kind: str = "ClusterTrainingRuntime", **policy: Any) -> Any:
    template = {"spec": {"replicatedJobs": [*jobs]}}
    spec = {"template": template, "mlPolicy": policy}
    return {"kind": kind, "metadata": {"name": "torch"}, "spec": spec}


def node(name: str = "node", **labels: str) -> Any:
    spec = {"containers": [{"name": "node", "resources": {"requests": {"cpu": "1"}}}]}
    job = {"metadata": {"labels": labels}, "spec": {"template": {"spec": spec}}}
    return {"name": name, "template": job}


def train(*runtimes: Any, kind: str | None = None, **trainer: Any) -> Any:
    reference = {"name": "torch"} | ({"kind": kind} if kind else {})
    spec = {"runtimeRef": reference, "trainer": trainer}
    job = {"kind": "TrainJob", "metadata": {"name": "t"}, "spec": spec}
    (group,) = read_groups([job, *runtimes])
    return {
        each.name: (each.count, each.template.spec.effective()["cpu"]) for each in group.pod_sets
    }


def test_a_train_job_is_made_from_its_runtime() -> None:
    jobs = [node("init"), node(**{STEP: "trainer"})]
    torch = runtime(*jobs, numNodes=3)
    assert train(torch) == {"init": (1, 1000), "node": (3, 1000)}
    resources = {"requests": {"cpu": "4"}}
    assert train(torch, numNodes=5, resourcesPerNode=resources) == {
        "init": (1, 1000),
        "node": (5, 4000),
    }
    assert train(torch) == {"init": (1, 1000), "node": (3, 1000)}


def test_with_mpi_the_launcher_may_be_one_of_the_nodes() -> None:
    jobs = [node("launcher", **{STEP: "trainer"}), node()]
    resources = {"requests": {"cpu": "4"}}
    mpi = runtime(*jobs, numNodes=3, mpi={})
    assert train(mpi, resourcesPerNode=resources) == {"launcher": (1, 1000), "node": (3, 4000)}
    mpi = runtime(*jobs, numNodes=3, mpi={"runLauncherAsNode": True})
    assert train(mpi, resourcesPerNode=resources) == {"launcher": (1, 4000), "node": (2, 4000)}


def test_a_train_job_names_a_runtime_that_is_there() -> None:
    with pytest.raises(DocumentError, match="ClusterTrainingRuntime 'torch' is not among the fil"):
        train()
    with pytest.raises(DocumentError, match="TrainingRuntime 'torch' is not among the files"):
        train(runtime(node()), kind="TrainingRuntime")
    assert train(runtime(node(), kind="TrainingRuntime"), kind="TrainingRuntime")
