"""Groups assembled from gated pods: whether all exist, and their pod sets.

Owns what a group lacks until it can be placed, in words. Ended and terminating pods do not count;
selector labels added by placement do not tell pods apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from nri_policy.cluster.objects.document import DocumentError
from nri_policy.cluster.objects.metadata import Key, OwnerReference
from nri_policy.cluster.objects.pod import Pod, PodSpec, template_of
from nri_policy.cluster.requests.annotations import (
    UNCONSTRAINED,
    is_together,
    read_together,
    request_of,
)
from nri_policy.cluster.requests.group import (
    JOBSET_UID,
    MAIN,
    PlacementGroup,
    PlacementRequest,
    PodSet,
    Together,
)
from nri_policy.cluster.requests.rules import require_one_together
from nri_policy.cluster.workloads.membership import Membership
from nri_policy.foundation.wording import counted, quoted


class Member(Struct, gc=False):
    """A pod and its group membership."""

    pod: Pod
    membership: Membership
    likeness: bytes = b""  # cached result of `_likeness`


class Incomplete(Exception):  # noqa: N818 - a group that waits is no error
    """Pods are missing; the text says how many."""


def assemble_group(
    key: Key,
    members: Sequence[Member],
    levels: Collection[str],
    spared: int = 0,
    led: PodSet | None = None,
) -> PlacementGroup:
    """Return the group that *members* make, in the order of pod sets' first pods by name.

    *levels* are the labels that placing selects by, *spared* the pods that are not created again.
    *led* are workers created once their leader is bound; None: they are like the leader.
    Raises Incomplete, and DocumentError for pods that contradict each other.
    """
    members = sorted(members, key=lambda each: each.pod.name)
    missing = check_complete(key, members, spared)
    pod_sets: dict[str, PodSet] = {}
    counts: Counter[str] = Counter()
    like: dict[str, bytes] = {}
    for name, each in zip(pod_set_names(members, levels), members, strict=True):
        pod = each.pod
        counts[name] += 1
        if name not in pod_sets:
            request = request_of(pod, "metadata")
            pod_sets[name] = PodSet(name=name, count=1, template=template_of(pod), request=request)
            like[name] = _likeness(each, levels)
        elif _likeness(each, levels) != like[name]:
            raise DocumentError(
                "", f"pods of pod set {quoted(name)} are not alike: {quoted(pod.name)} differs"
            )
        if missing and each.membership.leads:
            counts[name if led is None else led.name] += missing
    if led is not None:
        pod_sets.setdefault(led.name, led)
    return PlacementGroup(
        namespace=key[0],
        name=key[1],
        pod_sets=tuple(replace(each, count=counts[name]) for name, each in pod_sets.items()),
        priority=max((each.pod.priority for each in members), default=0),
        together=_together(members),
        job_set=_job_set(members),
        made=True,
    )


def _together(members: Iterable[Member]) -> Together | None:
    """Return the level of which all pods share a domain, if one of them names it."""
    found: dict[str, Together] = {}
    for each in members:
        if is_together(each.pod):
            path = f"pod {each.pod.name}, metadata"
            found[path] = read_together(each.pod.annotations, each.pod.labels, path)
    return require_one_together(found) if found else None


def _job_set(members: Iterable[Member]) -> str:
    """Return the uid of the JobSet whose Jobs make the group; empty if no JobSet does."""
    uids = (each.pod.labels.get(JOBSET_UID, "") for each in members if each.membership.part)
    return next(uids, "")


def check_members(
    group: PlacementGroup, members: Sequence[Member], levels: Collection[str], spared: int
) -> None:
    """Raise Incomplete where pods of *group* are missing, DocumentError where some are too many.

    Not missing are *spared* pods of any pod set, which are not created again, and workers that
    start after their leader is bound.
    """
    led = _is_leader_there(members)
    there = Counter(pod_set_names(members, levels, group.pod_sets))
    for pod_set in group.pod_sets:
        more = there.pop(pod_set.name, 0) - pod_set.count
        if more > 0:
            text = f"pod set {quoted(pod_set.name)} has {counted(more, 'pod')} too many"
            raise DocumentError("", text)
        spared += min(more, 0)
        if spared < 0 and not led:
            texts = f"{pod_set.count + more} of {counted(pod_set.count, 'pod')}"
            raise Incomplete(f"pod set {quoted(pod_set.name)}: {texts} are there")
    if there:
        raise DocumentError("", f"it has no pod set {quoted(min(there))}")


def find_unlike(
    group: PlacementGroup, members: Sequence[Member], levels: Collection[str]
) -> list[Member]:
    """Return the *members* that are not like the templates of their pod sets of *group*.

    Their owner has another template by now. If the group has a leader, only that is compared:
    its workers may have got their places by their template. Nor is the request, which a user may
    have changed in the group.
    """
    compared = [each for each in members if each.membership.leads] or members
    like = {each.name: _encode(each.template.spec, None, levels) for each in group.pod_sets}
    found: dict[tuple[str, bytes], list[Member]] = {}
    for name, each in zip(pod_set_names(compared, levels, group.pod_sets), compared, strict=True):
        found.setdefault((name, _likeness(each, levels)), []).append(each)
    return [
        each
        for (name, _), alike in found.items()
        if _encode(alike[0].pod.written, None, levels) != like.get(name)
        for each in alike
    ]


def check_gated(members: Sequence[Member], gate: str) -> None:
    """Raise DocumentError for a pod without the scheduling gate."""
    for each in members:
        if gate not in each.pod.gates:
            text = f"pod {quoted(each.pod.name)} does not wait behind the gate {gate}"
            if request_of(each.pod, "metadata") is None:  # the policy that we ship leaves it alone
                text += f", as it asks for no place: give its template {UNCONSTRAINED}: 'true'"
            raise DocumentError("", text)


def pod_set_names(
    members: Sequence[Member], levels: Collection[str], known: Sequence[PodSet] = ()
) -> list[str]:
    """Return the pod set of each of *members*: the one that it names, else that of its like.

    *known* are the pod sets that the group has already. If there is only one, each pod of a
    StatefulSet belongs to it, also a pod of a new template: a rolling update replaces pods singly.
    """
    only = known[0].name if len(known) == 1 else None
    names = {_likeness_of(each, levels): each.name for each in reversed(known)}
    taken = {each.name for each in known} | {each.membership.pod_set for each in members}
    found = []
    for each in members:
        name = each.membership.pod_set
        if name is None:
            likeness = _likeness(each, levels)
            name = names.get(likeness)
            if name is None and only is not None and is_replaced_singly(each):
                name = only
            if name is None:
                number = sum(one.startswith(MAIN) for one in names.values())
                name = f"{MAIN}-{number}" if number else MAIN
                while name in taken:
                    number += 1
                    name = f"{MAIN}-{number}"
                names[likeness] = name
        found.append(name)
    return found


def is_replaced_singly(member: Member) -> bool:
    """Whether a StatefulSet replaces this pod by itself: LeaderWorkerSets replace whole groups."""
    if member.membership.lws or member.membership.pod_set is not None:
        return False
    return any(each.controller and each.kind == "StatefulSet" for each in member.pod.owners)


def is_like_but_for_amounts(pod_set: PodSet, member: Member, levels: Collection[str]) -> bool:
    """Whether a pod may go where pods of *pod_set* may, whatever it requests."""
    old, new = pod_set.template.spec, member.pod.written
    return _others_of(old, levels) == _others_of(new, levels)


def owner_names(members: Iterable[Member]) -> list[str]:
    """Return the kinds and names of the controllers that own *members*, in order."""
    owners = (owner for each in members for owner in each.pod.owners if owner.controller)
    return sorted({f"{owner.kind} {owner.name}" for owner in owners})


def owners_of(member: Member) -> list[OwnerReference]:
    """Return the owners of a pod's group: the pod's controller, or the pod itself if alone.

    The PodGroup, if it is that one's.
    """
    pod = member.pod
    if member.membership.owner is not None:
        return [member.membership.owner]
    if member.membership.alone:
        return [OwnerReference(kind="Pod", name=pod.name, uid=pod.uid, api_version="v1")]
    return [each for each in pod.owners if each.controller]


def is_owned_by(owners: Collection[str], members: Collection[Member]) -> bool:
    """Whether a group with *owners*, by uid, has none, or shares one with these pods."""
    own = {one.uid for each in members for one in owners_of(each)}
    own |= {one.uid for each in members for one in each.pod.owners if one.controller}
    return not owners or not own or not own.isdisjoint(owners)


def priority_of(members: Collection[Member]) -> int:
    """Return a group's priority: the highest of its pods', which their PriorityClasses decide."""
    return max(each.pod.priority for each in members)


def check_complete(key: Key, members: Sequence[Member], spared: int) -> int:
    """Raise Incomplete where *members* are missing, DocumentError where they are too many.

    *spared* pods are never created again: they do not count as missing. Return the number of pods
    that are created once their leader is bound.
    """
    sizes = {each.membership.size for each in members}
    if len(sizes) > 1:
        texts = ", ".join(sorted(str(size) if size else "that of its Jobs" for size in sizes))
        raise DocumentError("", f"pods of group {quoted(key[1])} disagree on its size: {texts}")
    owners = owner_names([each for each in members if each.membership.part is None])
    if len(owners) > 1 and key[1].startswith("job-"):
        raise DocumentError("", f"group {quoted(key[1])} has several owners: {', '.join(owners)}")
    (size,) = sizes or {0}
    there = len(members)
    if size is None:
        size = _size_of_parts(members)
    missing = max(0, size - spared - there)
    if missing and not _is_leader_there(members):
        raise Incomplete(f"{there} of {counted(size, 'pod')} are there, {size - there} are missing")
    if there > size and not any(each.membership.at_least for each in members):
        names = owner_names(members)
        of = f" of {', '.join(names)}" if len(names) > 1 else ""
        text = f"group {quoted(key[1])} has {counted(there, 'pod')}{of}, but a size of {size}"
        raise DocumentError("", text)
    return missing


def _is_leader_there(members: Iterable[Member]) -> bool:
    """Whether *members* include a leader: its workers are created once it is bound."""
    return any(each.membership.leads for each in members)


def _size_of_parts(members: Sequence[Member]) -> int:
    """Return the pods of all Jobs of a JobSet; raises Incomplete where one is missing."""
    parts = {each.membership.part for each in members} - {None}
    jobs: Counter[str] = Counter()  # by whose number it is
    wanted: dict[str, int] = {}
    size = 0
    for part in {each.job: each for each in parts if each is not None}.values():
        jobs[part.named] += 1
        wanted[part.named] = max(wanted.get(part.named, 0), part.jobs)
        size += part.pods
    missing = sum(wanted.values()) - jobs.total()
    if missing > 0:
        raise Incomplete(f"Jobs of the JobSet that are missing: {missing}")
    return size


def _likeness(member: Member, levels: Collection[str]) -> bytes:
    """Return the key by which pods belong to one pod set."""
    if not member.likeness:
        request = request_of(member.pod, "metadata")
        member.likeness = _encode(member.pod.written, request, levels)
    return member.likeness


def _likeness_of(pod_set: PodSet, levels: Collection[str]) -> bytes:
    return _encode(pod_set.template.spec, pod_set.request, levels)


def _encode(spec: PodSpec, request: PlacementRequest | None, levels: Collection[str]) -> bytes:
    parts = sorted(spec.effective().items()), *_others_of(spec, levels), request
    return msgspec.json.encode(parts)


def _others_of(spec: PodSpec, levels: Collection[str]) -> tuple[object, ...]:
    """Return what decides where pods may go, but for their amounts."""
    selector = sorted(item for item in spec.node_selector.items() if item[0] not in levels)
    return selector, spec.tolerations, spec.affinity
