"""Groups from a JobSet or a LeaderWorkerSet.

| object | groups |
|---|---|
| JobSet | one, with a pod set for each of its Jobs: those of all replicas |
| … with `dependsOn`, or that starts its Jobs in order | one for each step: the Jobs that wait for the same ones |
| … with `exclusive-topology`, also on a replicated Job or its pods | one for each such Job, beside that of all other Jobs |
| LeaderWorkerSet | one for each replica: a leader, and `size` - 1 workers |
| … with `subgroup-exclusive-topology` | one for each sub-group of each replica |
"""  # noqa: E501 - a table

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from nri_policy.cluster.objects.document import DocumentError, convert, each_at, join
from nri_policy.cluster.objects.metadata import Key, ObjectIdentity
from nri_policy.cluster.objects.pod import Template, read_template
from nri_policy.cluster.requests.annotations import (
    JOBSET_EXCLUSIVE,
    LWS_EXCLUSIVE,
    LWS_SUBGROUP_EXCLUSIVE,
    check_owner,
    is_together,
)
from nri_policy.cluster.requests.group import MAIN, PlacementGroup, PlacementRequest, PodSet
from nri_policy.cluster.requests.request import together_of, units_of
from nri_policy.cluster.workloads.membership import (
    LEADER,
    LEADER_EXCLUDED,
    WORKERS,
    JobSet,
    find_sub_group,
    name_step,
    object_name,
)
from nri_policy.cluster.workloads.pod_sets import find_named_group, make_group, make_pod_set
from nri_policy.manifests.workloads import TemplatedSpec, count_parallel

_MOST_GROUPS = 1000  # of one object
_IN_ORDER = "InOrder"  # of a JobSet
_READY, _COMPLETE = "Ready", "Complete"  # of a Job of a JobSet that others wait for
_LEADER_READY = "LeaderReady"  # of a LeaderWorkerSet


class _Annotated(ObjectIdentity, gc=False):
    annotations: dict[str, str] | None = None


class _Metadata(Struct, gc=False):
    annotations: dict[str, str] | None = None


class _Job(Struct):
    spec: TemplatedSpec
    metadata: _Metadata | None = None


class _Dependency(Struct):
    name: str
    status: str = _READY


class _ReplicatedJob(Struct, rename="camel"):
    name: str
    template: _Job
    replicas: int | None = None
    depends_on: list[_Dependency] | None = None


class _StartupPolicy(Struct, rename="camel"):
    startup_policy_order: str = ""


class _JobSetSpec(Struct, rename="camel"):
    replicated_jobs: list[_ReplicatedJob]
    startup_policy: _StartupPolicy | None = None


class _JobSet(Struct):
    metadata: _Annotated
    spec: _JobSetSpec


class _SubGroupPolicy(Struct, rename="camel"):
    sub_group_size: int
    type: str = ""


class _Workers(Struct, rename="camel"):
    worker_template: dict[str, Any]
    leader_template: dict[str, Any] | None = None
    size: int | None = None
    sub_group_policy: _SubGroupPolicy | None = None


class _LeaderWorkerSpec(Struct, rename="camel"):
    leader_worker_template: _Workers
    replicas: int | None = None
    startup_policy: str = ""


class _LeaderWorkerSet(Struct):
    metadata: _Annotated
    spec: _LeaderWorkerSpec


def read_job_set(value: object, path: str) -> list[PlacementGroup]:
    """Return the groups of a JobSet; raises DocumentError."""
    given = convert(value, _JobSet, path)
    level = (given.metadata.annotations or {}).get(JOBSET_EXCLUSIVE)
    steps = _find_steps(given.spec)
    together: dict[str, list[PodSet]] = {}
    groups = []
    for each, place in each_at(given.spec.replicated_jobs, join(path, "spec.replicatedJobs")):
        own = each.template.metadata or _Metadata()
        annotations = own.annotations or {}
        check_owner(annotations, "JobSet", (), join(place, "template.metadata.annotations"))
        job, many = each.template.spec, _or_one(each.replicas)
        template = join(place, "template.spec.template")
        count = count_parallel(job)
        pod_set = make_pod_set(each.name, count * many, job.template, template)
        own_level = _exclusive_level(each, pod_set.template, level)
        if own_level:
            _check_number(many, join(place, "replicas"))
            made = _exclusive([replace(pod_set, count=count)], own_level)
            names = [f"-{each.name}-{index}" for index in range(many)]
            groups += [make_group(given.metadata, made, path, name) for name in names]
        else:
            together.setdefault(steps[each.name], []).append(pod_set)
    if not (together or groups):
        together[""] = []
    uid = given.metadata.uid or given.metadata.name or ""
    complete = _find_complete(given.spec)
    after = {step: complete[job] for job, step in steps.items()}
    found = []
    for step, pod_sets in together.items():
        group = make_group(given.metadata, pod_sets, path, name_step("", step))
        found.append(replace(group, job_set=uid, after=after.get(step, frozenset())))
    return [*found, *groups]


def read_job_set_steps(value: object, path: str) -> JobSet:
    """Return the JobSet in a Kubernetes object, with what starts together; raises DocumentError."""
    given = convert(value, _JobSet, path)
    namespace, name = given.metadata.key(path, "a JobSet")
    level = (given.metadata.annotations or {}).get(JOBSET_EXCLUSIVE)
    steps, jobs, shared = _find_steps(given.spec), Counter[str](), False
    for each in given.spec.replicated_jobs:
        template = read_template(each.template.spec.template, "")
        if not _exclusive_level(each, template, level):
            jobs[steps[each.name]] += _or_one(each.replicas)
            shared = shared or is_together(template)
    together = _read_together(value) if shared and len(jobs) > 1 else ()
    return JobSet(namespace=namespace, name=name, steps=steps, jobs=dict(jobs), together=together)


def _read_together(value: object) -> tuple[tuple[PlacementGroup, ...], ...]:
    """Return the groups of a JobSet's steps that share a domain, by which run at the same time.

    They have the names of the service. Those of which users name the group are left out. So are
    all of a JobSet with a request that breaks a rule.
    """
    with suppress(DocumentError):
        return find_steps_at_once(
            replace(each, name=object_name(f"jobset-{each.name}"))
            for each in read_job_set(value, "")
            if not any(find_named_group(one.template, "") for one in each.pod_sets)
        )
    return ()


def find_steps_at_once(
    groups: Iterable[PlacementGroup],
) -> tuple[tuple[PlacementGroup, ...], ...]:
    """Return the *groups* that share a domain with other steps of their JobSet, which run beside.

    A JobSet of which a request breaks a rule has none.
    """
    found: dict[tuple[str, str, frozenset[str]], list[PlacementGroup]] = {}
    broken = set[tuple[str, str]]()
    for each in groups:
        try:
            if each.job_set and together_of(each) and units_of(each):
                found.setdefault((each.namespace, each.job_set, each.after), []).append(each)
        except DocumentError:
            broken.add((each.namespace, each.job_set))
    return tuple(
        tuple(steps) for key, steps in found.items() if len(steps) > 1 and key[:2] not in broken
    )


def _exclusive_level(job: _ReplicatedJob, template: Template, level: str | None) -> str | None:
    """Return the level of which each Job has a domain to itself, None without; *level*: of all."""
    # on its pods, too, the service takes it for that of their Job
    if of_pods := template.annotations.get(JOBSET_EXCLUSIVE):
        return of_pods
    own = job.template.metadata or _Metadata()
    return (own.annotations or {}).get(JOBSET_EXCLUSIVE, level)


def _find_steps(spec: _JobSetSpec) -> dict[str, str]:
    """Return the step in which each replicated Job starts: the name of its first; "" at once.

    JobSet makes a Job only when those that it waits for are ready or complete. Jobs that wait for
    the same ones, but one until they are ready and one until they are complete, do not start
    together.
    """
    names: dict[tuple[tuple[str, str], ...], str] = {(): ""}
    return {job: names.setdefault(waits_for, job) for job, waits_for in _find_waits(spec)}


def _find_waits(spec: _JobSetSpec) -> Iterator[tuple[str, tuple[tuple[str, str], ...]]]:
    """Yield the replicated Jobs, each with those that it waits for, and until they are what."""
    policy = spec.startup_policy
    in_order = policy is not None and policy.startup_policy_order == _IN_ORDER
    for number, each in enumerate(spec.replicated_jobs):
        waits_for = sorted((one.name, one.status) for one in each.depends_on or ())
        if in_order and number:
            waits_for = [(spec.replicated_jobs[number - 1].name, _READY)]
        yield each.name, (*waits_for,)


def _find_complete(spec: _JobSetSpec) -> dict[str, frozenset[str]]:
    """Return for each replicated Job those that are complete before it starts.

    A Job waits for earlier ones only.
    """
    found: dict[str, frozenset[str]] = {}
    for job, waits_for in _find_waits(spec):
        before = frozenset(name for name, status in waits_for if status == _COMPLETE)
        found[job] = before.union(*(found.get(name, ()) for name, _ in waits_for))
    return found


def largest_job_template(value: object, path: str) -> tuple[object, str]:
    """Return the pod template of a JobSet of which most pods are made, and its path."""
    jobs = convert(value, _JobSet, path).spec.replicated_jobs
    if not jobs:
        raise DocumentError(join(path, "spec.replicatedJobs"), "it is empty")

    def pods(job: _ReplicatedJob) -> int:
        return count_parallel(job.template.spec) * _or_one(job.replicas)

    places = each_at(jobs, join(path, "spec.replicatedJobs"))
    job, place = max(places, key=lambda each: pods(each[0]))
    return job.template.spec.template, join(place, "template.spec.template")


def worker_template(value: object, path: str) -> tuple[object, str]:
    """Return the pod template of a LeaderWorkerSet's workers, and its path."""
    of = convert(value, _LeaderWorkerSet, path).spec.leader_worker_template
    return of.worker_template, join(path, "spec.leaderWorkerTemplate.workerTemplate")


def read_leader_workers(value: object, path: str) -> list[PlacementGroup]:
    """Return the groups of a LeaderWorkerSet; raises DocumentError."""
    given = convert(value, _LeaderWorkerSet, path)
    place = join(path, "spec.leaderWorkerTemplate")
    of = given.spec.leader_worker_template
    size = _or_one(of.size)
    many = _or_one(given.spec.replicas)
    annotations = given.metadata.annotations or {}
    level, sub_level = annotations.get(LWS_EXCLUSIVE), annotations.get(LWS_SUBGROUP_EXCLUSIVE)
    policy = of.sub_group_policy
    if level and sub_level:
        text = f"may not be set when {LWS_EXCLUSIVE} is"
        raise DocumentError(join(join(path, "metadata.annotations"), LWS_SUBGROUP_EXCLUSIVE), text)
    if size < 1:
        raise DocumentError(join(place, "size"), f"{size} pods are not from 1")
    parts: list[tuple[str, range]] = [("", range(size))]
    if sub_level and policy is not None:
        parts = [*_sub_groups(size, policy, join(place, "subGroupPolicy.subGroupSize"))]
    _check_number(many, join(path, "spec.replicas"))
    _check_number(many * len(parts), place)
    groups = []
    for replica in range(many):
        for name, workers in parts:
            pod_sets = _exclusive(_pod_sets(of, workers, place), level or sub_level)
            groups.append(make_group(given.metadata, pod_sets, path, f"-{replica}{name}"))
    return groups


def read_led_workers(value: object, path: str) -> tuple[Key, PodSet | None]:
    """Return the key of a LeaderWorkerSet, and the workers of a group that come after their leader.

    LWS makes these workers once the leader is bound, for its domain, or with LeaderReady once it
    is ready. Raises DocumentError.
    """
    given = convert(value, _LeaderWorkerSet, path)
    key = given.metadata.key(path, "a LeaderWorkerSet")
    level = (given.metadata.annotations or {}).get(LWS_EXCLUSIVE)
    of = given.spec.leader_worker_template
    size = _or_one(of.size)
    late = given.spec.startup_policy == _LEADER_READY
    if not (level or late) or size < 2:
        return key, None
    place = join(path, "spec.leaderWorkerTemplate.workerTemplate")
    like_leader = not level and of.leader_template in (None, of.worker_template)
    name = MAIN if like_leader else WORKERS  # MAIN: in one pod set with the leader
    (workers,) = _exclusive([make_pod_set(name, size - 1, of.worker_template, place)], level)
    return key, workers


def _or_one(number: int | None) -> int:
    """Return a number of an object that the API server sets to 1 if it is missing or null."""
    return 1 if number is None else number


def _sub_groups(pods: int, policy: _SubGroupPolicy, path: str) -> Iterator[tuple[str, range]]:
    """Yield how each sub-group is named, and the worker indices of its pods."""
    size = policy.sub_group_size
    if size < 1:
        raise DocumentError(path, f"{size} is not a number of pods")
    _check_number(pods // size, path)
    leader = policy.type != LEADER_EXCLUDED
    if not leader:
        yield "", range(1)
    number = 0
    while workers := find_sub_group(number, size, pods, leader=leader):
        yield f"-{number}", workers
        number += 1


def _pod_sets(of: _Workers, workers: range, path: str) -> list[PodSet]:
    """Return the pod sets of the pods with some worker indices; the leader has 0."""
    template = join(path, "workerTemplate")
    if of.leader_template is None:
        return [make_pod_set(MAIN, len(workers), of.worker_template, template)]
    led = int(0 in workers)
    leaders = [make_pod_set(LEADER, 1, of.leader_template, join(path, "leaderTemplate"))] * led
    return [*leaders, make_pod_set(WORKERS, len(workers) - led, of.worker_template, template)]


def _exclusive(pod_sets: Sequence[PodSet], level: str | None) -> list[PodSet]:
    """Return the pod sets of a group with a domain of *level* to itself, if any.

    The controllers copy their annotation to all pods.
    """
    first, *others = pod_sets
    request = first.request or PlacementRequest()
    if level and not request.exclusive:
        request = replace(request, exclusive=level)
        first = replace(first, request=request)
    return [first, *others]


def _check_number(groups: int, path: str) -> None:
    if not 0 <= groups <= _MOST_GROUPS:
        raise DocumentError(path, f"{groups} groups are not from 0 to {_MOST_GROUPS}")
