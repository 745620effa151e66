"""Pod sets and groups from the pod templates of workloads."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from nri_policy.cluster.objects.assignment import MAX_COUNT
from nri_policy.cluster.objects.document import DocumentError, join
from nri_policy.cluster.objects.metadata import ObjectIdentity
from nri_policy.cluster.objects.pod import Template, read_template
from nri_policy.cluster.requests.annotations import (
    GROUP_SIZE,
    POD_GROUP,
    POD_GROUP_TOTAL,
    read_size,
    read_total,
    request_of,
)
from nri_policy.cluster.requests.group import GROUP_LABEL, PlacementGroup, PodSet
from nri_policy.foundation.wording import quoted
from nri_policy.manifests.fields import mistyped


def make_pod_set(name: str, count: int, template: object, path: str) -> PodSet:
    """Return *count* pods of a template at *path*, with its request; raises DocumentError."""
    if not 0 <= count <= MAX_COUNT:
        place = path.rpartition(".")[0]
        raise DocumentError(place, f"{count} pods are not from 0 to {MAX_COUNT}")
    check_fields(template, path)
    pod_set = PodSet(name=name, count=count, template=read_template(template, path))
    find_named_group(pod_set.template, join(path, "metadata"))
    return with_request(pod_set, join(path, "metadata"))


def find_named_group(template: Template, path: str) -> tuple[str, int] | None:
    """Return the group that pods of a template name, and its size; None if they name none.

    *path* is that of the template's metadata. Raises DocumentError for one without the other.
    """
    given = {**template.labels, **template.annotations}
    for key, size_key, read in (
        (GROUP_LABEL, GROUP_SIZE, read_size),
        (POD_GROUP, POD_GROUP_TOTAL, read_total),
    ):
        name, size = given.get(key), read(template.annotations, template.labels, path)
        place = join(path, "annotations" if key in template.annotations else "labels")
        if name is None and size is not None and key == GROUP_LABEL:
            raise DocumentError(join(join(path, "annotations"), size_key), f"it needs {key}")
        if name == "":
            raise DocumentError(join(place, key), f"{quoted(name)} is no name of a group")
        if name is not None and size is None:
            raise DocumentError(join(place, key), f"{quoted(name)} needs {size_key}")
        if name is not None and size is not None:
            return name, size
    return None


def make_group(
    metadata: ObjectIdentity, pod_sets: Iterable[PodSet], path: str, suffix: str = ""
) -> PlacementGroup:
    """Return the group of an object at *path*, of its name and *suffix*; raises DocumentError."""
    namespace, name = metadata.key(path, "a group")
    return PlacementGroup(namespace=namespace, name=name + suffix, pod_sets=(*pod_sets,))


def with_request(pod_set: PodSet, path: str) -> PodSet:
    """Return a pod set with the request of its template, unless it has one itself."""
    if pod_set.request is not None:
        return pod_set
    request = request_of(pod_set.template, path)
    return replace(pod_set, request=request)


def check_fields(pod: object, path: str) -> None:
    """Refuse mistyped fields of a pod or template; those of live objects are the API server's."""
    refuse(mistyped(pod), path)


def refuse(problem: str, path: str) -> None:
    """Raise DocumentError for what `mistyped` or its like has found, if anything."""
    if problem:
        field, _, text = problem.partition(": ")
        raise DocumentError(f"{path}.{field}" if path else field, text)
