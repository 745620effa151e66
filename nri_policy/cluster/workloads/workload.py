"""Groups from what people write: Pods, Jobs, Deployments and their like, PlacementGroups.

| object | pods |
|---|---|
| PlacementGroup | as it says |
| Job, CronJob | the smaller of `parallelism` and `completions`, of a CronJob for one run |
| JobSet, LeaderWorkerSet | see `job_sets` |
| TrainJob of Kubeflow | those of its JobSet, by a runtime among the documents |
| Deployment, ReplicaSet, StatefulSet | `replicas`, each alone unless the extender spreads them |
| Pod | one, or the size that its group names; pods of one group that stand together are one group |
| PodGroup of Kubernetes | its gang's `minCount`, or as many pods as name it, if these are more |
| kinds of Kubeflow and Ray | see `replica_kinds` |
| others, also DaemonSet | none: they are left out |

A pod's group is the one that it or its template names (`placement.nri/group`, else Kueue's pod
group, else a PodGroup of Kubernetes), else that of its LeaderWorkerSet, JobSet or Job, else
the pod alone. A group's priority is the highest of its pods'; a PlacementGroup says its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from nri_policy.cluster.objects.device_claims import CLAIM, TEMPLATE, DeviceClaims
from nri_policy.cluster.objects.document import DocumentError, Object, convert, each_at, join
from nri_policy.cluster.objects.metadata import Identified, Key, ObjectIdentity
from nri_policy.cluster.objects.priority import PRIORITY_CLASS, PriorityClasses
from nri_policy.cluster.requests import group as placement
from nri_policy.cluster.requests.annotations import (
    GROUP_SIZE,
    asks_only_to_spread,
    check_owner,
)
from nri_policy.cluster.requests.group import (
    GROUP_LABEL,
    MAIN,
    PlacementGroup,
    PodSet,
    name_by_kind,
    one_alone,
    read_group,
)
from nri_policy.cluster.requests.request import units_of
from nri_policy.cluster.workloads.job_sets import (
    largest_job_template,
    read_job_set,
    read_leader_workers,
    worker_template,
)
from nri_policy.cluster.workloads.membership import POD_GROUP_API
from nri_policy.cluster.workloads.pod_sets import (
    check_fields,
    make_group,
    make_pod_set,
    refuse,
    with_request,
)
from nri_policy.cluster.workloads.replica_kinds import REPLICA_KINDS, is_launcher, replicas_of
from nri_policy.cluster.workloads.single_pods import POD_GROUP_KIND, GroupsOfPods
from nri_policy.cluster.workloads.train_jobs import (
    RUNTIMES,
    TRAIN_JOB,
    Runtimes,
    add_runtime,
    job_set_of,
)
from nri_policy.foundation.wording import did_you_mean, quoted
from nri_policy.manifests.fields import mistyped_workload
from nri_policy.manifests.workloads import WORKLOADS, TemplatedSpec


class _Workload(Struct):
    metadata: ObjectIdentity
    spec: TemplatedSpec


class _CronJobSpec(Struct, rename="camel"):
    job_template: Object


class _CronJob(Struct):
    metadata: ObjectIdentity
    spec: _CronJobSpec


class _OwnMetadata(Struct, frozen=True):
    annotations: dict[str, str] | None = None


class _OwnTemplate(Struct, frozen=True):
    metadata: _OwnMetadata | None = None


class _OwnSpec(Struct, frozen=True):
    template: _OwnTemplate | None = None


class _Owner(Struct):
    metadata: _OwnMetadata = _OwnMetadata()
    spec: _OwnSpec | None = None


class _Template(Struct):
    metadata: Object | None = None
    spec: Object = {}


_COUNTS = {kind: each.count for kind, each in WORKLOADS.items() if each.count is not None}
_SETS = ("JobSet", "LeaderWorkerSet", TRAIN_JOB)
CLAIMS = (CLAIM, TEMPLATE)
_NO_GROUPS = (POD_GROUP_KIND, *CLAIMS, PRIORITY_CLASS, *RUNTIMES)  # beside what names them
_CRON_JOB = "CronJob"
_ALONE = ("Deployment", "ReplicaSet", "StatefulSet")  # what makes pods that are no group
_SINGLY = f"each of its pods is placed alone without {GROUP_LABEL} and {GROUP_SIZE}"
_OTHERS = ("Service", "ResourceFlavor", "CronJob")  # ends of kinds that are no misspelling
_API_GROUPS = {
    **{kind: each.version.rpartition("/")[0] for kind, each in WORKLOADS.items()},
    **{kind: "ray.io" if kind.startswith("Ray") else "kubeflow.org" for kind in REPLICA_KINDS},
    "JobSet": "jobset.x-k8s.io",
    "LeaderWorkerSet": "leaderworkerset.x-k8s.io",
    TRAIN_JOB: "trainer.kubeflow.org",
    POD_GROUP_KIND: POD_GROUP_API[0],
    "Pod": "",
    _CRON_JOB: "batch",
}
KINDS = (*_COUNTS, _CRON_JOB, *_SETS, *REPLICA_KINDS, "Pod", POD_GROUP_KIND, placement.KIND)


def add_priority_classes(documents: Iterable[object], classes: PriorityClasses) -> None:
    """Let *classes* know those in *documents*; raises DocumentError."""
    for value, place in each_object(documents):
        if value.get("kind") == PRIORITY_CLASS:
            classes.add(value, place)


def add_claims(documents: Iterable[object], devices: DeviceClaims) -> None:
    """Let *devices* know the claims in *documents*; raises DocumentError."""
    for value, place in each_object(documents):
        if value.get("kind") in CLAIMS:
            devices.add(value["kind"], value, place)


def read_groups(
    documents: Sequence[object], classes: PriorityClasses | None = None
) -> list[PlacementGroup]:
    """Return the groups in *documents*, in their order; raises DocumentError.

    Every pod set has the request that its template's annotations make, unless it has one itself.
    No request breaks a rule. Priorities follow *classes*; None: the classes in *documents*.
    """
    if classes is None:
        classes = PriorityClasses()
        add_priority_classes(documents, classes)
    groups: dict[Key, PlacementGroup] = {}
    made_of: dict[Key, list[tuple[Object, str]]] = {}  # pods, or what makes them
    found, _ = _sort_out(documents)
    of_pods = GroupsOfPods(groups, found)
    runtimes: Runtimes = {}
    for value, place in found:
        if value.get("kind") in RUNTIMES:
            add_runtime(runtimes, value, place)
    for value, place in found:
        if value.get("kind") == "Pod":
            check_fields(value, place)
            keys = [of_pods.add(value, place)]
        else:
            keys = _add_groups(groups, value, runtimes, of_pods, place)
        for key in keys if value.get("kind") != placement.KIND else ():
            made_of.setdefault(key, []).append((value, place))
    of_pods.fill_up()
    for key, given in made_of.items():
        priority, unknown = classes.highest(given)
        groups[key] = replace(groups[key], priority=priority, unknown_class=unknown)
    return [*groups.values()]


def _add_groups(
    groups: dict[Key, PlacementGroup],
    value: Object,
    runtimes: Runtimes,
    of_pods: GroupsOfPods,
    path: str,
) -> list[Key]:
    """Add the groups that an object other than a pod stands for; return which these are.

    A pod belongs to the group that its template names.
    """
    keys = []
    for found in _groups_of(value, runtimes, path):
        own = list(found.pod_sets)
        for each in found.pod_sets if value.get("kind") != placement.KIND else ():
            named = of_pods.add_template(found.namespace, each, path)
            if named is not None:
                own.remove(each)
                keys.append(named)
        if found.pod_sets and not own:
            continue
        group = replace(found, pod_sets=(*own,), kind=value["kind"])
        try:
            units_of(one_alone(group, 0) if group.singly else group)
        except DocumentError as error:
            if value.get("kind") == placement.KIND:
                raise error.below(path) from None
            hint = f"; {_SINGLY}" if group.singly else ""
            raise DocumentError(join(path, "spec"), error.text + hint) from None
        if group.key in groups and groups[group.key].kind != group.kind:
            group = name_by_kind(group)
        key = group.key
        if key in groups:
            raise DocumentError(
                join(path, "metadata.name"), f"{quoted(group.name)} names two groups"
            )
        groups[key] = group
        keys.append(key)
    return keys


def _groups_of(value: Object, runtimes: Runtimes, path: str) -> list[PlacementGroup]:
    """Return the groups that an object other than a pod stands for."""
    if value.get("kind") == _CRON_JOB:
        value, path = _job_of(value, path)
    refuse(mistyped_workload(value), path)
    kind = _kind(value, path, KINDS)
    if kind in _NO_GROUPS:
        return []
    if kind == placement.KIND:
        return [_placement_group(value, path)]
    given = convert(value, _Owner, path)
    template = given.spec and given.spec.template
    of_pods = (template and template.metadata and template.metadata.annotations) or {}
    check_owner(given.metadata.annotations or {}, kind, of_pods, join(path, "metadata.annotations"))
    if kind == TRAIN_JOB:
        kind, value = "JobSet", job_set_of(value, runtimes, path)
    if kind == "JobSet":
        return read_job_set(value, path)
    if kind == "LeaderWorkerSet":
        return read_leader_workers(value, path)
    if kind in REPLICA_KINDS:
        return _replicas(value, path)
    if kind in _COUNTS:
        return [_workload(value, path, _COUNTS[kind])]
    hint = did_you_mean(kind, KINDS)
    raise DocumentError(join(path, "kind"), f"{quoted(kind)} cannot be placed{hint}")


def is_left_out(value: Object) -> bool:
    """Whether an object is of a kind that has nothing to do with groups, such as a Service.

    A Job of Volcano is another kind than that of Kubernetes. A kind that looks misspelt is not left
    out. A VirtualService is not a misspelt RayService.
    """
    kind = value.get("kind")
    known = (*KINDS, *_NO_GROUPS)
    if not isinstance(kind, str) or not kind or kind in known:
        return _is_of_another_api(value)
    return kind.endswith(_OTHERS) or not did_you_mean(kind, known)


def describe_left_out_kinds(documents: Iterable[object]) -> str:
    """Return how many of the objects in *documents* are left out, by kind; empty for none.

    Raises DocumentError.
    """
    _, kinds = _sort_out(documents)
    return ", ".join(f"{number} {kind}" for kind, number in kinds.items())


def _sort_out(documents: Iterable[object]) -> tuple[list[tuple[Object, str]], Counter[str]]:
    """Return the objects to read with their paths, and how many are left out, by kind."""
    every = [*each_object(documents)]
    makers = {_identity(value) for value, _ in every}
    found: list[tuple[Object, str]] = []
    left_out, made = Counter[str](), Counter[str]()
    for value, path in every:
        if is_left_out(value):
            of = f" of {value['apiVersion']}" if _is_of_another_api(value) else ""
            left_out[f"{value['kind']}{of}"] += 1
        elif _is_made_by(value, makers):
            made[f"{value['kind']} that others here make"] += 1
        else:
            found.append((value, path))
    return found, left_out + made


def _is_of_another_api(value: Object) -> bool:
    """Whether an object has the name of a kind that we read, but is of another API group."""
    kind, version = value.get("kind"), value.get("apiVersion")
    own = _API_GROUPS.get(kind) if isinstance(kind, str) else None
    return own is not None and isinstance(version, str) and version.rpartition("/")[0] != own


def _identity(value: Object) -> tuple[object, ...]:
    """Return kind, namespace and name of an object, whatever is in their place."""
    metadata = value.get("metadata")
    given = metadata if isinstance(metadata, dict) else {}
    return repr(value.get("kind")), repr(given.get("namespace") or ""), repr(given.get("name"))


def _is_made_by(value: Object, makers: Collection[tuple[object, ...]]) -> bool:
    """Whether one of *makers*, other objects in the documents, stands for an object.

    `kubectl get all` prints a Deployment, its ReplicaSet and the pods of that.
    """
    metadata = value.get("metadata")
    given = metadata if isinstance(metadata, dict) else {}
    owners = given.get("ownerReferences")
    for each in owners if isinstance(owners, list) else ():
        if isinstance(each, dict) and each.get("controller") is True:
            owner = {"kind": each.get("kind"), "metadata": {**given, "name": each.get("name")}}
            return each.get("kind") in (*KINDS, "DaemonSet") and _identity(owner) in makers
    return False


def make_pod_document(value: Object, path: str) -> Object:
    """Return the Pod that stands for all that a workload makes; raises DocumentError.

    Of several templates, that of most pods counts, of a LeaderWorkerSet that of the workers.
    """
    known = ("Pod", *_COUNTS, _CRON_JOB, "JobSet", "LeaderWorkerSet", *REPLICA_KINDS)
    if value.get("kind") == _CRON_JOB:
        value, path = _job_of(value, path)
    kind = _kind(value, path, known)
    if kind == "Pod":
        check_fields(value, path)
        return value
    if kind not in known:
        hint = "" if kind in KINDS else did_you_mean(kind, known)  # such a kind is no misspelling
        hint = hint or f"; there are: {', '.join(known)}"
        raise DocumentError(join(path, "kind"), f"{quoted(kind)} does not stand for one pod{hint}")
    refuse(mistyped_workload(value), path)
    metadata = convert(value, Identified, path).metadata
    template, place = _largest_template(value, kind, path)
    check_fields(template, place)
    own = convert(template, _Template, place)
    named = {"name": metadata.name, "namespace": metadata.namespace}
    return {"kind": "Pod", "metadata": {**(own.metadata or {}), **named}, "spec": own.spec}


def _largest_template(value: Object, kind: str, path: str) -> tuple[object, str]:
    """Return the pod template of a workload of which most pods are made, and its path."""
    if kind == "JobSet":
        return largest_job_template(value, path)
    if kind == "LeaderWorkerSet":
        return worker_template(value, path)
    if kind in REPLICA_KINDS:
        found = max(replicas_of(value, path), key=lambda each: each.count, default=None)
        if found is None:
            raise DocumentError(join(path, "spec"), "it has no pod template")
        return found.template, found.path
    return convert(value, _Workload, path).spec.template, join(path, "spec.template")


def _kind(value: Object, path: str, known: Iterable[str]) -> str:
    """Return the kind of a document; raises DocumentError where it has none."""
    kind = value.get("kind")
    if isinstance(kind, str) and kind:
        return kind
    problem = f"{quoted(kind)} is no kind" if kind else "it is missing"
    raise DocumentError(join(path, "kind"), f"{problem}; there are: {', '.join(known)}")


def each_object(documents: Iterable[object]) -> Iterator[tuple[Object, str]]:
    """Yield each object in *documents*, also each item of lists, with its path.

    The first document has an empty path, as it is usually the only one. Raises DocumentError.
    """
    for number, value in enumerate(documents):
        yield from _objects_in(value, join("", number) if number else "")


def _objects_in(value: object, path: str) -> Iterator[tuple[Object, str]]:
    if not isinstance(value, dict):
        raise DocumentError(path, f"{quoted(value)} is not an object")
    kind = value.get("kind")
    if not isinstance(kind, str) or not kind.endswith("List"):
        yield _named(value), path
        return
    items = value.get("items") or []
    if not isinstance(items, list):
        raise DocumentError(join(path, "items"), f"{quoted(items)} is not a list")
    of = kind.removesuffix("List")
    for number, each in enumerate(items):
        # the items of a typed list may have no kind of their own
        item = {"kind": of, **each} if of and isinstance(each, dict) else each
        yield from _objects_in(item, join(join(path, "items"), number))


def _named(value: Object) -> Object:
    """Return an object with a name: what its name will begin with, if it has none yet."""
    metadata = value.get("metadata")
    if isinstance(metadata, dict) and not metadata.get("name") and metadata.get("generateName"):
        return {**value, "metadata": {**metadata, "name": metadata["generateName"]}}
    return value


def _job_of(cron_job: Object, path: str) -> tuple[Object, str]:
    """Return the Job of one run of a CronJob, and the path of its spec's parent."""
    given = convert(cron_job, _CronJob, path)
    spec = given.spec.job_template.get("spec")
    job = {"kind": "Job", "metadata": cron_job.get("metadata"), "spec": spec}
    return job, join(path, "spec.jobTemplate")


def _workload(value: Object, path: str, count: Callable[[TemplatedSpec], int]) -> PlacementGroup:
    given = convert(value, _Workload, path)
    template = given.spec.template
    pod_set = make_pod_set(MAIN, count(given.spec), template, join(path, "spec.template"))
    group = make_group(given.metadata, [pod_set], path)
    alone = value["kind"] in _ALONE and pod_set.count > 1 and not _is_service(pod_set, template)
    return replace(group, singly=alone)


def _is_service(pod_set: PodSet, template: Object) -> bool:
    """Whether pods without a gate only ask to be spread: the extender does that for all of them."""
    spec, made = template.get("spec"), pod_set.template
    gated = isinstance(spec, dict) and spec.get("schedulingGates")
    only_spread = asks_only_to_spread(made.annotations, made.labels)
    return not gated and pod_set.request is not None and only_spread


def _replicas(value: Object, path: str) -> list[PlacementGroup]:
    """Return the groups of an object that has a pod set for each of several templates."""
    of_suffix: dict[str, list[PodSet]] = {}
    for each in replicas_of(value, path):
        suffix = "-launcher" if is_launcher(value["kind"], each.name) else ""
        pod_set = make_pod_set(each.name, each.count, each.template, each.path)
        of_suffix.setdefault(suffix, []).append(pod_set)
    metadata = convert(value, Identified, path).metadata
    return [make_group(metadata, own, path, suffix) for suffix, own in sorted(of_suffix.items())]


def _placement_group(value: Object, path: str) -> PlacementGroup:
    group = read_group(value, path)
    at = join(path, "spec.podSets")
    for given, place in each_at(value["spec"]["podSets"], at):
        check_fields(given.get("template"), join(place, "template"))
    pod_sets = (
        with_request(each, join(place, "template.metadata"))
        for each, place in each_at(group.pod_sets, at)
    )
    return replace(group, pod_sets=(*pod_sets,))
