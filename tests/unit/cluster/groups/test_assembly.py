"""Groups of pods that wait: whose they are, whether all are there, what contradicts itself."""

from __future__ import annotations

from typing import Any

import pytest

from nri_policy.cluster.groups.assembly import Incomplete, Member, assemble_group, pod_set_names
from nri_policy.cluster.groups.writes import CreateGroup
from nri_policy.cluster.objects.document import DocumentError
from nri_policy.cluster.objects.pod import Pod, read_pod
from nri_policy.cluster.requests.group import Together, read_group
from nri_policy.cluster.workloads.membership import (
    Job,
    Made,
    find_owning_job,
    read_job,
    read_membership,
)
from tests.unit.cluster.written import HOSTNAME, Object, pod_spec

OURS = "placement.nri/"
JOBSET = "jobset.sigs.k8s.io/"
LWS = "leaderworkerset.sigs.k8s.io/"
KUEUE = "kueue.x-k8s.io/"
INDEX = "batch.kubernetes.io/job-completion-index"
RACK = "example.com/rack"
GATED: Object = {"schedulingGates": [{"name": "placement.nri/group"}]}


def pod(
    name: str, labels: Object, *, annotations: Object | None = None, owner: str = "", **spec: Any
) -> Pod:
    kind, _, own = owner.partition("/")
    owners = [{"kind": kind, "name": own, "uid": own, "controller": True}] if owner else []
    metadata = {"name": name, "labels": labels, "annotations": annotations}
    made = {"metadata": metadata | {"ownerReferences": owners}}
    return read_pod(made | {"spec": pod_spec({"cpu": 1}, **GATED) | spec}, "")


def group_of(*pods: Pod, jobs: tuple[Job, ...] = ()) -> Object:
    """Name, pods by pod set, and ranks, of the group that pods make."""
    by_name = {each.name: each for each in jobs}
    members = [
        Member(each, read_membership(each, Made(by_name.get(find_owning_job(each) or ""))))
        for each in pods
    ]
    (key,) = {each.membership.group for each in members}
    group = assemble_group(key, members, [RACK, HOSTNAME])
    return {
        "name": group.name,
        "sets": {each.name: each.count for each in group.pod_sets},
        "ranks": [each.membership.rank for each in members],
    }


def many(number: int, make: Any) -> list[Pod]:
    return [make(at) for at in range(number)]


CASES: dict[str, tuple[list[Pod], tuple[Job, ...], Object]] = {
    "ours, as labels": (
        many(2, lambda at: pod(f"p{at}", {f"{OURS}group": "g", f"{OURS}group-size": "2"})),
        (),
        {"name": "g", "sets": {"main": 2}, "ranks": [None, None]},
    ),
    "ours before all others": (
        [
            pod(
                "p",
                {KUEUE + "pod-group-name": "k", LWS + "name": "l", INDEX: "0"},
                annotations={f"{OURS}group": "g", f"{OURS}group-size": "1"},
            )
        ],
        (),
        {"name": "g", "sets": {"main": 1}, "ranks": [0]},
    ),
    "Kueue's pod group": (
        many(
            2,
            lambda at: pod(
                f"p{at}",
                {KUEUE + "pod-group-name": "g", KUEUE + "pod-group-pod-index": str(1 - at)},
                annotations={KUEUE + "pod-group-total-count": "2"},
            ),
        ),
        (),
        {"name": "g", "sets": {"main": 2}, "ranks": [1, 0]},
    ),
    "a Job": (
        many(3, lambda at: pod(f"p{at}", {INDEX: str(at)}, owner="Job/train")),
        (Job("default", "train", 3),),
        {"name": "job-train", "sets": {"main": 3}, "ranks": [0, 1, 2]},
    ),
    "a JobSet of two kinds of Jobs": (
        [
            pod(
                f"{kind}-{job}-{index}",
                {
                    JOBSET + "jobset-name": "s",
                    JOBSET + "replicatedjob-name": kind,
                    JOBSET + "replicatedjob-replicas": str(jobs),
                    JOBSET + "job-index": str(job),
                    INDEX: str(index),
                },
                owner=f"Job/s-{kind}-{job}",
            )
            for kind, jobs, pods in (("driver", 1, 1), ("workers", 2, 2))
            for job in range(jobs)
            for index in range(pods)
        ],
        (
            Job("default", "s-driver-0", 1),
            Job("default", "s-workers-0", 2),
            Job("default", "s-workers-1", 2),
        ),
        {"name": "jobset-s", "sets": {"driver": 1, "workers": 4}, "ranks": [0, 0, 1, 2, 3]},
    ),
    "a group of a LeaderWorkerSet": (
        many(
            3,
            lambda at: pod(
                f"l-0-{at}",
                {LWS + "name": "l", LWS + "group-index": "0", LWS + "worker-index": str(at)},
                annotations={LWS + "size": "3"},
                owner=f"StatefulSet/{'l' if at == 0 else 'l-0'}",
            ),
        ),
        (),
        {"name": "lws-l-0", "sets": {"main": 3}, "ranks": [0, 1, 2]},
    ),
    "a pod alone": (
        [pod("p", {}, owner="ReplicaSet/web")],
        (),
        {"name": "pod-p", "sets": {"main": 1}, "ranks": [None]},
    ),
    "pod sets by name, and by what their pods are": (
        [
            pod(name, {f"{OURS}group": "g", f"{OURS}group-size": "4"} | labels, **spec)
            for name, labels, spec in (
                ("a", {}, {}),
                ("b", {f"{OURS}pod-set": "driver"}, {}),
                ("c", {}, pod_spec({"cpu": 2})),
                ("d", {}, {}),
            )
        ],
        (),
        {"name": "g", "sets": {"main": 2, "driver": 1, "main-1": 1}, "ranks": 4 * [None]},
    ),
    "what placing has added to a selector makes no difference": (
        [
            pod("a", {f"{OURS}group": "g", f"{OURS}group-size": "2"}),
            pod(
                "b",
                {f"{OURS}group": "g", f"{OURS}group-size": "2"},
                nodeSelector={HOSTNAME: "n1", RACK: "r1"},
                schedulingGates=None,
            ),
        ],
        (),
        {"name": "g", "sets": {"main": 2}, "ranks": [None, None]},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_group(case: str) -> None:
    pods, jobs, expected = CASES[case]
    assert group_of(*pods, jobs=jobs) == expected


LABELS = {f"{OURS}group": "g", f"{OURS}group-size": "2"}
WORKERS = {JOBSET + "jobset-name": "s", JOBSET + "global-replicas": "2"}


@pytest.mark.parametrize(
    ("pods", "text"),
    [
        ([pod("p", LABELS)], "1 of 2 pods are there, 1 are missing"),
        ([pod("p", WORKERS, owner="Job/j")], "Jobs of the JobSet that are missing: 1"),
        ([pod("p", {}, owner="Job/j")], "1 of 3 pods are there, 2 are missing"),
    ],
)
def test_what_is_missing_is_said(pods: list[Pod], text: str) -> None:
    with pytest.raises(Incomplete, match=text):
        group_of(*pods, jobs=(Job("default", "j", 3),))


@pytest.mark.parametrize(
    ("pods", "text"),
    [
        ([pod(f"p{at}", LABELS) for at in range(3)], "has 3 pods, but a size of 2"),
        (
            [pod("a", LABELS), pod("b", LABELS | {f"{OURS}group-size": "3"})],
            "disagree on its size: 2, 3",
        ),
        ([pod("a", {f"{OURS}group": "g"})], "placement.nri/group: 'g' needs placement.nri/group-s"),
        ([pod("a", LABELS | {f"{OURS}group-size": "x"})], "group-size: 'x' must be a numeric"),
        ([pod("a", {KUEUE + "pod-group-name": "g"})], "needs kueue.x-k8s.io/pod-group-total-c"),
        ([pod("a", {LWS + "name": "l", LWS + "group-index": "-1"})], "'-1' is not a number from 0"),
        ([pod(at, LABELS | {f"{OURS}grop": "g"}) for at in "ab"], "no such annotation"),
        (
            [
                pod("a", LABELS | {f"{OURS}pod-set": "s"}),
                pod("b", LABELS | {f"{OURS}pod-set": "s"}, **pod_spec({"cpu": 2})),
            ],
            "pods of pod set 's' are not alike: 'b' differs",
        ),
        (
            [
                pod("a", {}, owner="Job/j"),
                pod("b", {f"{OURS}group": "job-j", f"{OURS}group-size": "3"}, owner="Job/k"),
            ],
            "group 'job-j' has several owners: Job j, Job k",
        ),
    ],
)
def test_what_contradicts_itself_is_said(pods: list[Pod], text: str) -> None:
    with pytest.raises(DocumentError, match=text):
        group_of(*pods, jobs=(Job("default", "j", 3), Job("default", "k", 3)))


def test_a_rank_in_doubt_is_none() -> None:
    for text in ("x", "-1", "1.5", "", "99999999999", "٣"):
        found = read_membership(
            pod("p", {INDEX: text}, owner="Job/j"), Made(Job("default", "j", 3))
        )
        assert found.rank is None, text


def test_a_new_pod_joins_the_pod_set_that_is_there() -> None:
    """One that replaces another is of its pod set, whatever the others were named after."""
    labels = {f"{OURS}group": "g", f"{OURS}group-size": "2"}
    large, small = (pod(name, labels, **pod_spec({"cpu": n})) for name, n in (("a", 2), ("b", 1)))
    members = [Member(each, read_membership(each, Made())) for each in (large, small)]
    group = assemble_group(("default", "g"), members, [])
    assert [each.name for each in group.pod_sets] == ["main", "main-1"]
    new = Member(pod("c", labels), read_membership(small, Made()))
    assert pod_set_names([new], [], group.pod_sets) == ["main-1"]


def test_a_pod_set_without_a_name_gets_one_that_no_pod_names() -> None:
    labels = {f"{OURS}group": "g", f"{OURS}group-size": "3"}
    named = [labels | {f"{OURS}pod-set": name} for name in ("main", "main-1")]
    pods = [pod(f"p{at}", each) for at, each in enumerate([labels, *named])]
    members = [Member(each, read_membership(each, Made())) for each in pods]
    assert pod_set_names(members, []) == ["main-2", "main", "main-1"]


@pytest.mark.parametrize(
    ("spec", "pods"),
    [({}, 1), ({"parallelism": 4}, 4), ({"parallelism": 4, "completions": 2}, 2)],
)
def test_the_pods_of_a_job(spec: Object, pods: int) -> None:
    expected = Job("default", "j", pods, spec.get("completions"))
    assert read_job({"metadata": {"name": "j"}, "spec": spec}, "") == expected
    with pytest.raises(DocumentError, match="parallelism"):
        read_job({"metadata": {"name": "j"}, "spec": {"parallelism": -1}}, "")


@pytest.mark.parametrize(("text", "number"), [("", 0), ("4", 1), ("1,3-5,12", 5)])
def test_indexes_of_a_job_that_failed_for_good_are_counted(text: str, number: int) -> None:
    job = {"metadata": {"name": "j"}, "spec": {}, "status": {"failedIndexes": text}}
    assert read_job(job, "").failed_indexes == number


def test_pods_that_exclude_each_other_make_a_group_that_says_so() -> None:
    """The stored object has no ports, so its request must say that the pods exclude each other."""
    ports = [{"name": "c", "ports": [{"hostPort": 80}]}]
    labels = {f"{OURS}group": "g", f"{OURS}group-size": "2"}
    members = [
        Member(each, read_membership(each, Made()))
        for each in many(2, lambda at: pod(f"p{at}", labels, containers=ports))
    ]
    group = assemble_group(("default", "g"), members, [RACK, HOSTNAME])
    (stored,) = read_group(CreateGroup(group, ()).object()).pod_sets
    assert stored.request is not None
    assert stored.request.max_per_host == 1
    assert pod_set_names(members, [RACK, HOSTNAME], [stored]) == ["main", "main"]


def test_the_object_that_is_stored_has_all_that_zones_are_asked_for() -> None:
    """QoS class and containers one by one: what nodes that align pods look at."""
    two = {"requests": {"cpu": "1500m", "memory": "1Gi"}, "limits": {"cpu": 2, "x/gpu": 1}}
    spec: Object = {
        "containers": [{"name": "a", "resources": two}, {"name": "b"}],
        "initContainers": [{"name": "s", "restartPolicy": "Always", "resources": two}],
        "overhead": {"cpu": "100m"},
        "resources": {"requests": {"cpu": 4}, "limits": {"memory": "8Gi"}},
    }
    labels = {f"{OURS}group": "g", f"{OURS}group-size": "1"}
    one = pod("p", labels, **spec)
    group = assemble_group(("default", "g"), [Member(one, read_membership(one, Made()))], [])
    (stored,) = read_group(CreateGroup(group, ()).object()).pod_sets
    assert stored.template.spec == one.spec


def test_the_object_that_is_stored_names_the_claims_of_its_pods() -> None:
    claims = [
        {"name": "gpu", "resourceClaimTemplateName": "two"},
        {"name": "nic", "resourceClaimName": "own"},
    ]
    labels = {f"{OURS}group": "g", f"{OURS}group-size": "1"}
    one = pod("p", labels, resourceClaims=claims)
    group = assemble_group(("default", "g"), [Member(one, read_membership(one, Made()))], [])
    written = CreateGroup(group, ()).object()
    stored_spec = written["spec"]["podSets"][0]["template"]["spec"]
    assert [*stored_spec["resourceClaims"]] == claims
    (stored,) = read_group(written).pod_sets
    assert stored.template.claims == one.claims


def together(*annotations: Object) -> Any:
    """The group of pods with these annotations, each a pod set."""
    members = []
    for number, each in enumerate(annotations):
        labels = {f"{OURS}group": "g", f"{OURS}group-size": f"{len(annotations)}"}
        made = pod(f"p{number}", labels | {f"{OURS}pod-set": f"s{number}"}, annotations=each)
        members.append(Member(made, read_membership(made, Made())))
    return assemble_group(("default", "g"), members, [RACK, HOSTNAME])


def test_any_pod_names_the_level_that_all_pod_sets_share() -> None:
    assert together({}, {}).together is None
    found = together({}, {f"{OURS}group-required-topology": RACK}).together
    assert found == Together(required=RACK)
    with pytest.raises(DocumentError) as caught:
        together(
            {f"{OURS}group-preferred-topology": RACK}, {f"{OURS}group-required-topology": RACK}
        )
    assert str(caught.value) == (
        f"pod p1, metadata: required '{RACK}' for pod sets together, but preferred '{RACK}'"
        " at pod p0, metadata"
    )
    with pytest.raises(DocumentError, match="did you mean"):
        together({f"{OURS}group-required-topolgy": RACK})


def test_a_group_that_is_made_of_pods_has_their_node_affinity() -> None:
    term = {"matchExpressions": [{"key": "pool", "operator": "In", "values": ["gpu"]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    labels = {f"{OURS}group": "g", f"{OURS}group-size": "1"}
    one = pod("p", labels, affinity={"nodeAffinity": required})
    made = read_membership(one, Made(None))
    group = assemble_group(made.group, [Member(one, made)], [HOSTNAME])
    written = CreateGroup(group, ()).object()["spec"]["podSets"][0]["template"]["spec"]
    (found,) = written["affinity"]["nodeAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]["nodeSelectorTerms"]
    assert found["matchExpressions"] == term["matchExpressions"]
    again = read_group(CreateGroup(group, ()).object())
    assert again.pod_sets[0].template.spec.affinity == one.spec.affinity
