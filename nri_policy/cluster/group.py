"""PlacementGroup: pod sets that are placed together or not at all, and where they were placed."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from nri_policy.cluster.document import DocumentError, convert, join
from nri_policy.cluster.pod import PodSpec, Template, read_template
from nri_policy.wording import quoted

API_VERSION = "placement.nri/v1alpha1"
KIND = "PlacementGroup"
GROUP_LABEL = "placement.nri/group"
MAX_COUNT = 2**31 - 1  # pods; counts are int32

Algorithm = Literal["Mixed", "BestFit", "LeastFree", "Balanced"]
State = Literal["Waiting", "Placed", "Running", "Degraded", "Unplaceable"]


class Slice(Struct, frozen=True, forbid_unknown_fields=True):
    """A layer of slices: every *size* pods share a domain of *level*."""

    level: str
    size: int


class Request(
    Struct,
    frozen=True,
    kw_only=True,
    rename="camel",
    forbid_unknown_fields=True,
    omit_defaults=True,
):
    """Where a pod set is to go; `requests.py` has the rules."""

    required: str | None = None
    preferred: str | None = None
    unconstrained: bool = False
    slices: list[Slice] = []  # outer to inner
    leader_group: str | None = None
    spread_over: list[str] = []  # each as in the annotation: KEY, KEY={VALUE: WEIGHT, …}, pack:KEY
    max_per_host: int | None = None
    topology: str | None = None
    algorithm: Algorithm | None = None


class PodSet(Struct, frozen=True):
    """A number of equal pods; without a request where None."""

    name: str
    count: int
    template: Template
    request: Request | None = None


class Placed(Struct, frozen=True):
    """Pods in a leaf, by its values at the levels of its assignment."""

    values: list[str]
    count: int


class Assignment(Struct, frozen=True, rename="camel"):
    """Where the pods of a pod set are, by path."""

    pod_set: str
    levels: list[str]
    domains: list[Placed]


class Status(Struct, frozen=True, rename="camel"):
    """What came of a group."""

    state: State = "Waiting"
    message: str = ""
    assignments: list[Assignment] = []
    unhealthy_nodes: list[str] = []


class PlacementGroup(Struct, frozen=True):
    """A group; its name is unique in its namespace."""

    namespace: str
    name: str
    pod_sets: tuple[PodSet, ...]
    priority: int = 0
    status: Status = Status()


class _Meta(Struct):
    name: str = ""
    namespace: str | None = None


class _PodSet(Struct, forbid_unknown_fields=True):
    name: str
    count: int
    template: dict[str, object] | None = None
    request: Request | None = None


class _Spec(Struct, rename="camel", forbid_unknown_fields=True):
    pod_sets: list[_PodSet]
    priority: int | None = None


class _Group(Struct, rename="camel"):
    metadata: _Meta
    spec: _Spec
    status: Status | None = None


def read_group(value: object, path: str = "") -> PlacementGroup:
    """Return the group in a PlacementGroup object; raises DocumentError."""
    document = convert(value, _Group, path)
    if not document.metadata.name:
        raise DocumentError(join(path, "metadata.name"), "a group has a name")
    pod_sets = []
    names: set[str] = set()
    for number, each in enumerate(document.spec.pod_sets):
        place = join(join(path, "spec.podSets"), number)
        if each.name in names:
            raise DocumentError(join(place, "name"), f"{quoted(each.name)} names two pod sets")
        names.add(each.name)
        _check_count(each.count, 0, join(place, "count"))
        template = Template(spec=PodSpec())
        if each.template is not None:
            template = read_template(each.template, join(place, "template"))
        pod_sets.append(
            PodSet(
                name=each.name,
                count=each.count,
                template=template,
                request=each.request,
            )
        )
    status = document.status or Status()
    for number, assignment in enumerate(status.assignments):
        _check_assignment(assignment, join(join(path, "status.assignments"), number))
    return PlacementGroup(
        namespace=document.metadata.namespace or "default",
        name=document.metadata.name,
        pod_sets=tuple(pod_sets),
        priority=document.spec.priority or 0,
        status=status,
    )


def _check_count(count: int, least: int, path: str) -> None:
    if not least <= count <= MAX_COUNT:
        raise DocumentError(path, f"{quoted(count)} is not from {least} to {MAX_COUNT}")


def _check_assignment(assignment: Assignment, path: str) -> None:
    for number, each in enumerate(assignment.domains):
        place = join(join(path, "domains"), number)
        _check_count(each.count, 0, join(place, "count"))
        if len(each.values) != len(assignment.levels):
            levels = ", ".join(assignment.levels)
            raise DocumentError(
                join(place, "values"), f"{len(each.values)} values do not name levels {levels}"
            )
