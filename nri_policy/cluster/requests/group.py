"""PlacementGroup: pod sets that are placed together or not at all, and where they were placed."""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from typing import Any, Literal, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from nri_policy.cluster.objects.assignment import (
    Assignment,
    StoredAssignment,
    check_count,
    restore,
    store,
)
from nri_policy.cluster.objects.document import Amounts, DocumentError, convert, each_at, join
from nri_policy.cluster.objects.metadata import Namespaced, ObjectMeta
from nri_policy.cluster.objects.node import HOSTNAME
from nri_policy.cluster.objects.pod import Pod, PodSpec, Template, read_template
from nri_policy.cluster.requests.topology_spreading import TopologySpreading
from nri_policy.foundation.wording import counted, quoted

API_VERSION = "placement.nri/v1alpha1"
KIND = "PlacementGroup"
GROUP_LABEL = "placement.nri/group"
MAIN = "main"  # the name of a pod set that is given none
JOBSET_UID = (
    "jobset.sigs.k8s.io/jobset-uid"  # label of the Jobs and pods of a JobSet, and of their groups
)
MADE = ("app.kubernetes.io/managed-by", "nri-policy")  # label of groups that the service made

Algorithm = Literal["Compact", "Mixed", "BestFit", "LeastFree", "Balanced"]
State = Literal["Waiting", "Placed", "Running", "Degraded", "Unplaceable", "Finished"]


class Slice(Struct, frozen=True, forbid_unknown_fields=True):
    """A layer of slices: every *size* pods share a domain of *level*."""

    level: str
    size: int


class PlacementRequest(
    Struct,
    frozen=True,
    kw_only=True,
    rename="camel",
    forbid_unknown_fields=True,
    omit_defaults=True,
):
    """Where a pod set is to go."""

    required: str | None = None
    preferred: str | None = None
    unconstrained: bool = False
    slices: list[Slice] = []  # outer to inner
    leader_group: str | None = None
    spread_over: list[str] = []  # each as in the annotation: KEY, KEY={VALUE: WEIGHT, …}, pack:KEY
    max_per_host: int | None = None
    apart_over: list[str] = []  # levels of which no two of the pods share a domain
    max_skew: dict[str, int] = {}  # label -> by how many pods its values may differ
    topology_spreading: TopologySpreading | None = None  # of whole groups
    exclusive: str | None = None  # the level of which the group has a domain to itself
    topology: str | None = None
    algorithm: Algorithm | None = None


class Together(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A level of which all pod sets of a group share one domain."""

    required: str | None = None
    preferred: str | None = None

    @property
    def level(self) -> str:
        """The level, in whichever way it is asked for."""
        return self.required or self.preferred or ""

    def __str__(self) -> str:
        how = "required" if self.required else "preferred"
        return f"{how} {quoted(self.level)}"


class PodSet(Struct, frozen=True, dict=True):
    """A number of equal pods; without a request where None."""

    name: str
    count: int
    template: Template
    request: PlacementRequest | None = None

    # Each attempt to place a group asks for these again.
    @cached_property
    def amounts(self) -> Amounts:
        """The effective requests of a pod; the place among `pods` is not in them."""
        return self.template.spec.effective()

    @cached_property
    def kind(self) -> bytes:
        """All but its name and its number of pods, to compare."""
        return msgspec.json.encode(replace(self, name="", count=0))


class Condition(Struct, frozen=True):
    """A condition of a group, as in Kubernetes; only conditions that hold are listed."""

    type: str
    reason: str
    message: str
    status: str = "True"


class HoldStatus(Struct, frozen=True, rename="camel"):
    """Since when hosts are set aside for a group, and how often that has ended without a place."""

    since: str = ""  # in RFC 3339, like `paused_until`; empty: no hosts
    ended: int = 0
    paused_until: str = ""  # none are set aside for it before


class GroupStatus(Struct, frozen=True, rename="camel"):
    """What came of a group."""

    state: State = "Waiting"
    message: str = ""
    assignments: list[Assignment] = []
    unhealthy_nodes: list[str] = []
    reserved: list[str] = []  # nodes set aside while the group waits
    hold: HoldStatus | None = None  # None: no hosts so far
    evicted: str = ""  # why its ungated pods must be deleted; empty: they stay
    given_back: int = 0  # places of its pod sets that are not, or not yet, among the assignments
    conditions: list[Condition] = []


class PlacementGroup(Namespaced, frozen=True):
    """A group; its name is unique in its namespace."""

    pod_sets: tuple[PodSet, ...]
    priority: int = 0
    status: GroupStatus = GroupStatus()
    created: str = ""  # in RFC 3339
    uid: str = ""
    unknown_class: str = ""  # a PriorityClass of its pods without a known value
    together: Together | None = None  # else by its templates: `together_of`
    job_set: str = ""  # the uid of the JobSet whose Jobs make the group; empty without a JobSet
    made: bool = False  # by the service, from gated pods; else by a user
    singly: bool = False  # in documents: the service places each of the pods on its own
    kind: str = ""  # in documents: of the object that makes the pods
    # in documents: the replicated Jobs of its JobSet that are complete before its pods exist
    after: frozenset[str] = frozenset()


class _PodSet(Struct, forbid_unknown_fields=True):
    name: str
    count: int
    template: dict[str, Any] | None = None
    request: PlacementRequest | None = None


class _Spec(Struct, rename="camel", forbid_unknown_fields=True):
    pod_sets: list[_PodSet]
    priority: int | None = None
    together: Together | None = None


class _Status(Struct, rename="camel"):
    state: State = "Waiting"
    message: str = ""
    pods: int = 0
    domains: int = 0
    assignments: list[StoredAssignment] = []
    unhealthy_nodes: list[str] = []
    reserved: list[str] = []
    hold: HoldStatus | None = None
    evicted: str = ""
    given_back: int = 0
    conditions: list[Condition] = []


class GroupObject(Struct, rename="camel"):
    """A PlacementGroup as the API server has it."""

    metadata: ObjectMeta
    spec: _Spec
    status: _Status | None = None


def read_group(value: object, path: str = "") -> PlacementGroup:
    """Return the group in a PlacementGroup object; raises DocumentError."""
    document = convert(value, GroupObject, path)
    namespace, own = document.metadata.key(path, "a group")
    pod_sets = []
    names: set[str] = set()
    for each, place in each_at(document.spec.pod_sets, join(path, "spec.podSets")):
        if each.name in names:
            raise DocumentError(join(place, "name"), f"{quoted(each.name)} names two pod sets")
        names.add(each.name)
        check_count(each.count, 0, join(place, "count"))
        template = Template(spec=PodSpec())
        if each.template is not None:
            template = read_template(each.template, join(place, "template"))
        pod_sets.append(PodSet(each.name, each.count, template, each.request))
    given = document.status or _Status()
    labels = document.metadata.labels or {}
    stored = each_at(given.assignments, join(path, "status.assignments"))
    status = GroupStatus(
        state=given.state,
        message=given.message,
        assignments=[restore(each, place) for each, place in stored],
        unhealthy_nodes=given.unhealthy_nodes,
        reserved=given.reserved,
        hold=given.hold,
        evicted=given.evicted,
        given_back=given.given_back,
        conditions=given.conditions,
    )
    return PlacementGroup(
        namespace=namespace,
        name=own,
        pod_sets=tuple(pod_sets),
        priority=document.spec.priority or 0,
        status=status,
        created=document.metadata.creation_timestamp or "",
        uid=document.metadata.uid,
        together=document.spec.together,
        job_set=labels.get(JOBSET_UID, ""),
        made=labels.get(MADE[0]) == MADE[1],
    )


def one_alone(group: PlacementGroup, number: int) -> PlacementGroup:
    """Return one pod of a group whose pods are placed singly, by number from 0, as a group.

    No object can have its name.
    """
    (only,) = group.pod_sets
    name = f"{group.name} pod {number + 1} of {only.count}"
    return replace(group, name=name, pod_sets=(replace(only, count=1),), singly=False)


def name_by_kind(group: PlacementGroup) -> PlacementGroup:
    """Return a group in documents with its kind in its name: another kind has the plain one."""
    return replace(group, name=f"{group.kind.lower()}-{group.name}")


def named_group(pod: Pod) -> str | None:
    """Return the group in its namespace that a pod names itself; None for none.

    The annotation decides where a label is there, too.
    """
    return pod.annotations.get(GROUP_LABEL) or pod.labels.get(GROUP_LABEL)


def is_by_host(group: PlacementGroup | None) -> bool:
    """Whether the places of a group are hosts, and neither more than that nor parts of one."""
    return group is not None and all(each.levels == [HOSTNAME] for each in group.status.assignments)


def is_lasting(group: PlacementGroup) -> bool:
    """Whether no pod of a group that has places ends by itself."""
    return bool(group.status.assignments) and not any(
        each.template.spec.ends for each in group.pod_sets
    )


def hosts_of(group: PlacementGroup) -> Counter[str]:
    """Return how many places a group has on each host; none where its levels name no hosts."""
    places: Counter[str] = Counter()
    for each in group.status.assignments:
        for host, place in each.by_host():
            places[host] += place.count
    return places


def places_by_pod_set(group: PlacementGroup) -> Counter[str]:
    """Return how many places each pod set of a group has."""
    return Counter(
        {
            each.pod_set: sum(place.count for place in each.domains)
            for each in group.status.assignments
        }
    )


def find_disagreement(group: PlacementGroup) -> str:
    """Return how assignments contradict the pod sets of a group; empty if they match.

    No more places are missing than the status says.
    """
    if not group.status.assignments:
        return ""
    wanted = {each.name: each.count for each in group.pod_sets if each.count}
    found: Counter[str] = Counter()
    missing = group.status.given_back
    for each in group.status.assignments:
        if each.pod_set in found:
            return f"status.assignments has pod set {quoted(each.pod_set)} twice"
        found[each.pod_set] = sum(place.count for place in each.domains)
    for name in {**wanted, **found}:
        less = wanted.get(name, 0) - found[name]
        missing -= less
        if less < 0 or missing < 0:
            return (
                f"status.assignments has {counted(found[name], 'pod')} of pod set {quoted(name)},"
                f" which has {wanted.get(name, 0)}"
            )
    return ""


def write_status(group: PlacementGroup) -> dict[str, Any]:
    """Return the `status` of *group* as its object stores it, numbers for its columns included."""
    status = group.status
    domains = {(*one.values,) for each in status.assignments for one in each.domains}
    return cast(
        "dict[str, Any]",
        msgspec.to_builtins(
            _Status(
                state=status.state,
                message=status.message,
                pods=sum(each.count for each in group.pod_sets),
                domains=len(domains),
                assignments=[store(each) for each in status.assignments],
                unhealthy_nodes=status.unhealthy_nodes,
                reserved=status.reserved,
                hold=status.hold,
                evicted=status.evicted,
                given_back=status.given_back,
                conditions=status.conditions,
            )
        ),
    )
