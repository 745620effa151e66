"""Groups from what people write: which pods are one group, and how many they are."""

from __future__ import annotations

from typing import Any

import pytest

from nri_policy.cluster.objects.document import DocumentError
from nri_policy.cluster.requests.group import PlacementGroup
from nri_policy.cluster.workloads.workload import describe_left_out_kinds, read_groups
from tests.unit.cluster.written import pod_spec

REQUIRED = "kueue.x-k8s.io/podset-required-topology"


def template(cpu: int = 1, level: str | None = None) -> Any:
    metadata = {"annotations": {} if level is None else {REQUIRED: level}}
    return {"metadata": metadata, "spec": pod_spec({"cpu": cpu})}


def shape(groups: list[PlacementGroup]) -> dict[str, dict[str, int]]:
    return {group.name: {each.name: each.count for each in group.pod_sets} for group in groups}


def pod(name: str, *, owner: Any = None, labels: Any = (), **annotations: str) -> Any:
    metadata = {"name": name, "labels": dict(labels), "annotations": annotations}
    if owner:
        metadata["ownerReferences"] = [{"name": owner, "controller": True, "kind": "Job"}]
    return {"kind": "Pod", "metadata": metadata, "spec": pod_spec({"cpu": 1})}


def test_a_job_set_is_one_group_with_a_pod_set_for_each_job() -> None:
    jobs = [
        {"name": "driver", "template": {"spec": {"template": template()}}},
        {
            "name": "workers",
            "replicas": 3,
            "template": {"spec": {"parallelism": 4, "template": template(level="rack")}},
        },
    ]
    [group] = read_groups(
        [{"kind": "JobSet", "metadata": {"name": "j"}, "spec": {"replicatedJobs": jobs}}]
    )
    assert shape([group]) == {"j": {"driver": 1, "workers": 12}}
    assert group.pod_sets[1].request is not None
    assert group.pod_sets[1].request.required == "rack"


TEMPLATE_ALONE = "it counts only in the metadata of the pod template"
JOBSET = "alpha.jobset.sigs.k8s.io"


@pytest.mark.parametrize(
    ("owner", "job", "problem"),
    [
        (
            {"kueue.x-k8s.io/podset-required-topology": "example.com/rack"},
            {},
            (f"metadata.annotations.kueue.x-k8s.io/podset-required-topology: {TEMPLATE_ALONE}"),
        ),
        (
            {},
            {"placement.nri/spread-over": "example.com/rack"},
            (
                "spec.replicatedJobs[0].template.metadata.annotations.placement.nri/spread-over:"
                f" {TEMPLATE_ALONE}"
            ),
        ),
        (
            {f"{JOBSET}/exclusive-topolgy": "example.com/rack"},
            {},
            (
                f"metadata.annotations.{JOBSET}/exclusive-topolgy: no such annotation;"
                f" did you mean '{JOBSET}/exclusive-topology'?"
            ),
        ),
        (
            {"jobset.sigs.k8s.io/exclusive-topology": "example.com/rack"},
            {},
            (
                "metadata.annotations.jobset.sigs.k8s.io/exclusive-topology: no such annotation;"
                f" did you mean '{JOBSET}/exclusive-topology'?"
            ),
        ),
        (
            {f"{JOBSET}/exclusive-topology": "example.com/rack", f"{JOBSET}/node-selector": "a"},
            {"kueue.x-k8s.io/queue-name": "q"},
            "",
        ),
    ],
)
def test_annotations_of_an_owner_that_would_be_ignored_are_refused(
    owner: Any, job: Any, problem: str
) -> None:
    made = {"spec": {"template": template()}, "metadata": {"annotations": job}}
    job_set = {
        "kind": "JobSet",
        "metadata": {"name": "set", "annotations": owner},
        "spec": {"replicatedJobs": [{"name": "a", "template": made}]},
    }
    if not problem:
        assert read_groups([job_set])
        return
    with pytest.raises(DocumentError) as raised:
        read_groups([job_set])
    assert str(raised.value) == problem


def test_a_leader_worker_set_is_a_group_for_each_replica() -> None:
    def made(**of: Any) -> list[PlacementGroup]:
        of = {"size": 4, "workerTemplate": template(), **of}
        spec = {"replicas": 2, "leaderWorkerTemplate": of}
        return read_groups([{"kind": "LeaderWorkerSet", "metadata": {"name": "l"}, "spec": spec}])

    apart = {"leader": 1, "workers": 3}
    assert shape(made(leaderTemplate=template(2))) == {"l-0": apart, "l-1": apart}
    assert shape(made()) == {"l-0": {"main": 4}, "l-1": {"main": 4}}
    with pytest.raises(DocumentError, match="0 pods are not from 1"):
        made(size=0, leaderTemplate=template())


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        ([pod("p"), pod("q")], {"p": {"main": 1}, "q": {"main": 1}}),
        ([pod("p", owner="j"), pod("q", owner="j")], {"j": {"main": 2}}),
        (
            [
                pod(
                    "p",
                    labels={"kueue.x-k8s.io/pod-group-name": "g"},
                    **{"kueue.x-k8s.io/pod-group-total-count": "5"},
                )
            ],
            {"g": {"main": 5}},
        ),
        (
            [pod("p", owner="x", labels={"jobset.sigs.k8s.io/jobset-name": "s"})],
            {"s": {"main": 1}},
        ),
        (
            [
                pod(
                    f"p{n}",
                    labels={
                        "leaderworkerset.sigs.k8s.io/name": "l",
                        "leaderworkerset.sigs.k8s.io/group-index": "3",
                    },
                )
                for n in range(2)
            ],
            {"l-3": {"main": 2}},
        ),
        (
            [pod("p", labels={"placement.nri/group": "mine"}, owner="j")],
            {"mine": {"main": 1}},
        ),
    ],
)
def test_pods_are_of_the_group_that_they_name_or_of_their_owners(
    pods: list[Any], expected: dict[str, dict[str, int]]
) -> None:
    assert shape(read_groups(pods)) == expected


def test_a_size_of_a_group_without_its_name_is_refused() -> None:
    size = {"placement.nri/group-size": "8"}
    with pytest.raises(DocumentError, match=r"group-size: it needs placement\.nri/group"):
        read_groups([pod("p", **size)])
    (group,) = read_groups([pod("p", **size, **{"placement.nri/group": "g"})])
    assert shape([group]) == {"g": {"main": 8}}


def test_a_total_that_is_no_number_is_refused() -> None:
    bad = pod(
        "p",
        labels={"kueue.x-k8s.io/pod-group-name": "g"},
        **{"kueue.x-k8s.io/pod-group-total-count": "many"},
    )
    with pytest.raises(
        DocumentError, match="pod-group-total-count: 'many' must be a numeric value"
    ):
        read_groups([bad])


def made(kind: str, name: str, pods: int, *, gate: str = "", **annotations: str) -> Any:
    own = template()
    own["metadata"]["annotations"] |= annotations
    if gate:
        own["spec"]["schedulingGates"] = [{"name": gate}]
    amount = {"parallelism": pods} if kind == "Job" else {"replicas": pods}
    return {"kind": kind, "metadata": {"name": name}, "spec": {**amount, "template": own}}


def named(size: int, **annotations: str) -> dict[str, str]:
    return {"placement.nri/group": "g", "placement.nri/group-size": str(size), **annotations}


def test_pods_whose_template_names_a_group_are_of_that_group() -> None:
    workers = {"placement.nri/pod-set": "workers"}
    jobs = [made("Job", "a", 1, **named(5)), made("Deployment", "b", 4, **named(5, **workers))]
    assert shape(read_groups(jobs)) == {"g": {"main": 1, "workers": 4}}
    kueue = {"kueue.x-k8s.io/pod-group-name": "k", "kueue.x-k8s.io/pod-group-total-count": "2"}
    assert shape(read_groups([made("Job", "a", 2, **kueue)])) == {"k": {"main": 2}}


@pytest.mark.parametrize(
    ("documents", "problem"),
    [
        (
            [made("Job", "a", 4, **{"placement.nri/group": "g"})],
            (
                "spec.template.metadata.annotations.placement.nri/group: 'g' needs"
                " placement.nri/group-size"
            ),
        ),
        (
            [made("Job", "a", 4, **{"placement.nri/group-size": "4"})],
            (
                "spec.template.metadata.annotations.placement.nri/group-size: it needs"
                " placement.nri/group"
            ),
        ),
        (
            [made("Job", "a", 4, **named(8))],
            "group 'g' has 4 pods, but a size of 8; give all objects that make its pods",
        ),
        ([made("Job", "a", 9, **named(8))], "group 'g' has 9 pods, but a size of 8"),
        (
            [made("Job", "a", 4, **named(8)), made("Job", "b", 4, **named(9))],
            "[1]: pods of group 'g' disagree on its size: 8, 9",
        ),
    ],
)
def test_a_group_of_templates_that_would_wait_for_ever_is_refused(
    documents: list[Any], problem: str
) -> None:
    with pytest.raises(DocumentError) as raised:
        read_groups(documents)
    assert str(raised.value) == problem


@pytest.mark.parametrize("kind", ["Job", "Deployment"])
def test_pods_whose_template_names_a_pod_group_are_of_that_gang(kind: str) -> None:
    def of_gang(name: str, pods: int) -> Any:
        document = made(kind, name, pods)
        document["spec"]["template"]["spec"]["schedulingGroup"] = {"podGroupName": "gang"}
        return document

    def pod_group(**policy: Any) -> Any:
        metadata, spec = {"name": "gang"}, {"schedulingPolicy": policy}
        return {"kind": "PodGroup", "metadata": metadata, "spec": spec}

    least = pod_group(gang={"minCount": 5})
    both = [of_gang("a", 4), of_gang("b", 2)]
    assert shape(read_groups([*both, least])) == {"gang": {"main": 6}}, "more may come"
    assert shape(read_groups(both)) == {"gang": {"main": 6}}, "it may be elsewhere"
    basic = read_groups([*both, pod_group(basic={})])
    assert shape(basic) == {"a": {"main": 4}, "b": {"main": 2}}
    with pytest.raises(DocumentError, match="group 'gang' has 4 pods, but a size of 5; give all"):
        read_groups([of_gang("a", 4), least])


@pytest.mark.parametrize(
    ("document", "singly"),
    [
        (made("Deployment", "w", 4), True),
        (made("StatefulSet", "w", 4, **{REQUIRED: "rack"}), True),
        (made("ReplicaSet", "w", 4, **{"placement.nri/spread-over": "rack"}), False),
        (made("Deployment", "w", 4, gate="g", **{"placement.nri/spread-over": "rack"}), True),
        (made("Deployment", "w", 4, **{"placement.nri/max-per-host": "1"}), False),
        (made("Deployment", "w", 4, **{"placement.nri/algorithm": "BestFit"}), True),
        (made("Deployment", "w", 1), False),
        (made("Job", "w", 4), False),
    ],
)
def test_pods_of_a_deployment_are_alone_unless_the_extender_spreads_them(
    document: Any, singly: bool
) -> None:
    [group] = read_groups([document])
    assert group.singly is singly


def test_objects_of_two_kinds_may_share_a_name() -> None:
    both = [made("Job", "w", 1), made("Deployment", "w", 2)]
    assert shape(read_groups(both)) == {"w": {"main": 1}, "deployment-w": {"main": 2}}
    with pytest.raises(DocumentError, match=r"\[2\].metadata.name: 'w' names two groups"):
        read_groups([*both, made("Job", "w", 1)])


def test_what_other_objects_make_is_left_out() -> None:
    """As `kubectl get all -o json` prints them."""
    of_deployment = {"kind": "Deployment", "name": "w", "controller": True}
    replica_set, job = made("ReplicaSet", "w-1", 2), made("Job", "j", 2)
    replica_set["metadata"]["ownerReferences"] = [of_deployment]
    owned = pod("w-1-x")
    owned["metadata"]["ownerReferences"] = [{**of_deployment, "kind": "ReplicaSet", "name": "w-1"}]
    everything = [owned, replica_set, made("Deployment", "w", 2), pod("j-0", owner="j"), job]
    assert shape(read_groups(everything)) == {"w": {"main": 2}, "j": {"main": 2}}
    text = "2 Pod that others here make, 1 ReplicaSet that others here make"
    assert describe_left_out_kinds(everything) == text
    assert shape(read_groups([owned, replica_set])) == {"w-1": {"main": 2}}


def test_a_kind_of_another_api_is_left_out() -> None:
    job = made("Job", "j", 1)
    volcano = {**made("Job", "v", 1), "apiVersion": "batch.volcano.sh/v1alpha1"}
    given = [job, volcano, {**made("Deployment", "d", 1), "apiVersion": "apps/v1"}]
    assert shape(read_groups(given)) == {"j": {"main": 1}, "d": {"main": 1}}
    assert describe_left_out_kinds(given) == "1 Job of batch.volcano.sh/v1alpha1"


def test_an_object_without_a_name_is_called_as_its_name_will_begin() -> None:
    job = made("Job", "", 1)
    job["metadata"] = {"generateName": "train-"}
    assert shape(read_groups([job])) == {"train-": {"main": 1}}


def test_a_null_number_is_the_default_as_for_the_api_server() -> None:
    of = {"size": None, "workerTemplate": template()}
    spec = {"replicas": None, "leaderWorkerTemplate": of}
    lws = {"kind": "LeaderWorkerSet", "metadata": {"name": "l"}, "spec": spec}
    jobs = [{"name": "w", "replicas": None, "template": {"spec": {"template": template()}}}]
    jobset = {"kind": "JobSet", "metadata": {"name": "s"}, "spec": {"replicatedJobs": jobs}}
    assert shape(read_groups([lws, jobset])) == {"l-0": {"main": 1}, "s": {"w": 1}}


def test_a_cron_job_is_one_run_of_it() -> None:
    job = made("Job", "j", 3)["spec"]
    cron = {"kind": "CronJob", "metadata": {"name": "nightly"}}
    document = {**cron, "spec": {"schedule": "0 3 * * *", "jobTemplate": {"spec": job}}}
    run = made("Job", "nightly-1", 3)
    run["metadata"]["ownerReferences"] = [
        {"kind": "CronJob", "name": "nightly", "controller": True}
    ]
    assert shape(read_groups([document, run])) == {"nightly": {"main": 3}}
    bad = {**job, "paralelism": 2}
    with pytest.raises(DocumentError) as raised:
        read_groups([{**cron, "spec": {"jobTemplate": {"spec": bad}}}])
    assert str(raised.value).startswith("spec.jobTemplate.spec.paralelism: no such field; did you")
    with pytest.raises(DocumentError, match=r"^spec.jobTemplate: expected a map, got null"):
        read_groups([{**cron, "spec": {"jobTemplate": None}}])


@pytest.mark.parametrize("kind", ["Job", "Deployment"])
@pytest.mark.parametrize(
    ("key", "owner"),
    [
        ("alpha.jobset.sigs.k8s.io/exclusive-topology", "JobSet"),
        ("leaderworkerset.sigs.k8s.io/exclusive-topology", "LeaderWorkerSet"),
    ],
)
def test_an_exclusive_domain_counts_on_no_owner_of_another_kind(
    kind: str, key: str, owner: str
) -> None:
    """A Job that a JobSet makes has it in its template, too."""
    document = made(kind, "w", 4)
    document["metadata"]["annotations"] = {key: "example.com/rack"}
    text = f"it counts only on a {owner}, or in the metadata of the pod template"
    with pytest.raises(DocumentError) as raised:
        read_groups([document])
    assert str(raised.value) == f"metadata.annotations.{key}: {text}"
    document["spec"]["template"]["metadata"]["annotations"] = {key: "example.com/rack"}
    (group,) = read_groups([document])
    assert group.pod_sets[0].request is not None
    assert group.pod_sets[0].request.exclusive
