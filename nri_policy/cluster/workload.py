"""Groups from what people write: Pods, Jobs, Deployments and their like, PlacementGroups.

| object | pods |
|---|---|
| PlacementGroup | as it says |
| Job | the smaller of `parallelism` and `completions` |
| Deployment, ReplicaSet, StatefulSet | `replicas` |
| Pod | one, or `placement.nri/group-size`; pods of one group that stand together are one group |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from msgspec import Struct

from nri_policy.cluster import group as placement
from nri_policy.cluster.annotations import GROUP, POD_SET, read_request, read_size
from nri_policy.cluster.assignment import MAX_COUNT
from nri_policy.cluster.document import DocumentError, convert, join
from nri_policy.cluster.group import PlacementGroup, PodSet, read_group
from nri_policy.cluster.pod import Template, read_pod, read_template
from nri_policy.wording import did_you_mean, quoted

_MAIN = "main"  # the pod set of what has only one


class _Meta(Struct):
    name: str = ""
    namespace: str | None = None


class _Spec(Struct):
    template: dict[str, Any]
    replicas: int | None = None
    parallelism: int | None = None
    completions: int | None = None


class _Workload(Struct):
    metadata: _Meta
    spec: _Spec


def _replicas(spec: _Spec) -> int:
    return 1 if spec.replicas is None else spec.replicas


def _parallel(spec: _Spec) -> int:
    at_once = 1 if spec.parallelism is None else spec.parallelism
    return at_once if spec.completions is None else min(at_once, spec.completions)


_COUNTS: dict[str, Callable[[_Spec], int]] = {
    "Deployment": _replicas,
    "Job": _parallel,
    "ReplicaSet": _replicas,
    "StatefulSet": _replicas,
}
_KINDS = (*_COUNTS, "Pod", placement.KIND)


def read_groups(documents: Iterable[object]) -> list[PlacementGroup]:
    """Return the groups in *documents*, in their order; raises DocumentError.

    Every pod set has the request that its template's annotations make, unless it has one itself.
    """
    groups: dict[tuple[str, str], PlacementGroup] = {}
    sizes: dict[tuple[str, str], tuple[int, str]] = {}  # of groups made of pods
    for value, place in _each(documents, ""):
        kind = value.get("kind")
        if kind == "Pod":
            _add_pod(groups, sizes, value, place)
            continue
        if kind == placement.KIND:
            group = _asked(read_group(value, place), place)
        elif kind in _COUNTS:
            group = _workload(value, place, _COUNTS[kind])
        else:
            hint = did_you_mean(str(kind), _KINDS) or f"; there are: {', '.join(_KINDS)}"
            raise DocumentError(join(place, "kind"), f"{quoted(kind)} cannot be placed{hint}")
        key = (group.namespace, group.name)
        if key in groups:
            raise DocumentError(
                join(place, "metadata.name"), f"{quoted(group.name)} names two groups"
            )
        groups[key] = group
    for key, (size, place) in sizes.items():
        groups[key] = _filled(groups[key], size, place)
    return [*groups.values()]


def _each(documents: Iterable[object], path: str) -> Iterable[tuple[dict[str, Any], str]]:
    for number, value in enumerate(documents):
        place = join(path, number) if number else path
        if not isinstance(value, dict):
            raise DocumentError(place, f"{quoted(value)} is not an object")
        if str(value.get("kind", "")).endswith("List"):
            yield from _each(value.get("items") or (), join(place, "items"))
        else:
            yield value, place


def _workload(value: object, path: str, count: Callable[[_Spec], int]) -> PlacementGroup:
    given = convert(value, _Workload, path)
    if not given.metadata.name:
        raise DocumentError(join(path, "metadata.name"), "a group has a name")
    number = count(given.spec)
    if not 0 <= number <= MAX_COUNT:
        raise DocumentError(join(path, "spec"), f"{number} pods are not from 0 to {MAX_COUNT}")
    place = join(path, "spec.template")
    template = read_template(given.spec.template, place)
    pod_set = PodSet(name=_MAIN, count=number, template=template)
    return PlacementGroup(
        namespace=given.metadata.namespace or "default",
        name=given.metadata.name,
        pod_sets=(_with_request(pod_set, join(place, "metadata")),),
    )


def _asked(group: PlacementGroup, path: str) -> PlacementGroup:
    places = [join(join(path, "spec.podSets"), number) for number in range(len(group.pod_sets))]
    pod_sets = tuple(
        _with_request(each, join(place, "template.metadata"))
        for each, place in zip(group.pod_sets, places, strict=True)
    )
    return msgspec.structs.replace(group, pod_sets=pod_sets)


def _with_request(pod_set: PodSet, path: str) -> PodSet:
    if pod_set.request is not None:
        return pod_set
    template = pod_set.template
    request = read_request(template.annotations, template.labels, path)
    return msgspec.structs.replace(pod_set, request=request)


def _add_pod(
    groups: dict[tuple[str, str], PlacementGroup],
    sizes: dict[tuple[str, str], tuple[int, str]],
    value: object,
    path: str,
) -> None:
    """Put one more pod into its group, into the pod set that it names or that is like it."""
    pod = read_pod(value, path)
    place = join(path, "metadata")
    given = {**pod.labels, **pod.annotations}
    key = (pod.namespace, given.get(GROUP, pod.name))
    if key in groups and (GROUP not in given or key not in sizes):
        raise DocumentError(join(place, "name"), f"{quoted(key[1])} names two groups")
    template = Template(spec=pod.spec, labels=pod.labels, annotations=pod.annotations)
    request = read_request(pod.annotations, pod.labels, place)
    pod_sets = list(groups[key].pod_sets) if key in groups else []
    name = given.get(POD_SET)
    for number, each in enumerate(pod_sets):
        alike = (each.template.spec, each.request) == (pod.spec, request)
        if each.name == name or (name is None and alike):
            pod_sets[number] = msgspec.structs.replace(each, count=each.count + 1)
            break
    else:
        name = name or (f"{_MAIN}-{len(pod_sets)}" if pod_sets else _MAIN)
        pod_sets.append(PodSet(name=name, count=1, template=template, request=request))
    groups[key] = PlacementGroup(namespace=key[0], name=key[1], pod_sets=tuple(pod_sets))
    if GROUP in given:
        size = read_size(pod.annotations, pod.labels, place)
        there = sum(each.count for each in pod_sets)
        sizes[key] = (there if size is None else size, place)


def _filled(group: PlacementGroup, size: int, path: str) -> PlacementGroup:
    """Return a group with as many pods as it is to have: one pod stands for all that are like it.

    Raises DocumentError where it is not clear of which kind the others are.
    """
    there = sum(each.count for each in group.pod_sets)
    if there == size:
        return group
    if there > size or len(group.pod_sets) > 1:
        raise DocumentError(path, f"group {quoted(group.name)} has {there} of its {size} pods")
    (only,) = group.pod_sets
    return msgspec.structs.replace(group, pod_sets=(msgspec.structs.replace(only, count=size),))
