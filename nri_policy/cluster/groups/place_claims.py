"""Which places of a group may still be claimed: by a pod, or by an owner that makes one.

A place lives as long as that; others are given back. They leave the stored assignments, so no
memory of them is needed; after that write another group may get them.

| claims places | how many |
|---|---|
| a pod that has not ended | one, also while it waits, or is about to be gone |
| a Job | as many as it runs at once, less what it no longer needs for its completions (an index that failed for good needs none); none while it is suspended, and none once it has ended or is gone |
| an owner of a kind that is followed (`replica_kinds`) | as the next one, and at most as many as its `spec` says |
| another owner, which is not followed | that of each pod which is gone or failed, as long as another of its pods is there, and its pods do not say that they are fewer now; but no place of a pod that is a group alone |

A Job that runs more pods at once claims more places than there are: the group gets them, if they
fit where it was promised to be.
"""  # noqa: E501 - a table

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

from msgspec.structs import replace

from nri_policy.cluster.groups.assembly import Member
from nri_policy.cluster.groups.ungating import places_of
from nri_policy.cluster.objects.metadata import Key
from nri_policy.cluster.objects.node import ClusterNode
from nri_policy.cluster.requests.group import GroupStatus, PlacementGroup
from nri_policy.cluster.workloads.membership import Job, find_owning_job


def count_claims(
    group: PlacementGroup,
    members: Sequence[Member],
    names: Sequence[str],
    jobs: Collection[Job],
    wanted: Mapping[str, int] | None = None,
) -> Counter[str]:
    """Return how many places of each pod set may be claimed.

    *names* are the pod sets of *members*, all pods of the group; *jobs* own them, or the group.
    *wanted* are the pods that their owner makes, by pod set, if that is known.
    """
    counts = {each.name: each.count for each in group.pod_sets}
    named = list(zip(members, names, strict=True))
    found = Counter(name for each, name in named if not each.pod.finished)
    of_job: dict[str | None, list[Member]] = {}
    pod_set_of: dict[str | None, str] = {}
    for each, name in named:
        job_name = find_owning_job(each.pod)
        of_job.setdefault(job_name, []).append(each)
        pod_set_of[job_name] = name
    for job in jobs:
        own = of_job.get(job.name, [])
        more = _made_by(job, own) - sum(not each.pod.finished for each in own)
        # Without any pod, the pod set of the Job's next pod is unknown.
        for name in [pod_set_of[job.name]] if own else counts:
            found[name] += max(more, 0)
    if any(map(_is_made_anew, members)):
        done = Counter(name for each, name in named if each.pod.phase == "Succeeded")
        for name, count in counts.items():
            most = count if wanted is None else min(count, wanted.get(name, count))
            found[name] = max(found[name], most - done[name])
        size = _agreed_size(members)
        if size is not None:  # of a group that became smaller
            over = found.total() + done.total() - size
            occupied = Counter(name for each, name in named if not each.pod.finished)
            for name in sorted(counts, key=lambda each: -counts[each]):
                less = max(0, min(over, found[name] - occupied[name]))
                found[name] -= less
                over -= less
    return found


def _agreed_size(members: Sequence[Member]) -> int | None:
    """Return how many pods the group has in all, as its live pods say; None if they disagree."""
    live = [each for each in members if not (each.pod.finished or each.pod.deleted)]
    sizes = {None if each.membership.at_least else each.membership.size for each in live}
    return sizes.pop() if len(sizes) == 1 else None


def _is_made_anew(member: Member) -> bool:
    """Whether an owner that is not followed is there, and makes pods of this group."""
    pod = member.pod
    return (
        pod.phase != "Succeeded"
        and not member.membership.alone
        and any(each.controller and each.kind != "Job" for each in pod.owners)
    )


def give_back(
    group: PlacementGroup,
    members: Sequence[Member],
    names: Sequence[str],
    claimed: Mapping[str, int],
    nodes: Mapping[str, ClusterNode],
) -> GroupStatus:
    """Return the status of a group without its unclaimed places.

    They are empty; those of pods that succeeded go first, then the last: the highest ranks have
    those. *names* are the pod sets of *members*, *claimed* what `count_claims` has found.
    """
    assignments = []
    given_back = group.status.given_back
    for assignment in group.status.assignments:
        own = [
            each for each, name in zip(members, names, strict=True) if name == assignment.pod_set
        ]
        live = [each for each in own if not each.pod.finished]
        counts = [each.count for each in assignment.domains]
        free = sum(counts) - max(claimed.get(assignment.pod_set, 0), len(live))
        place_of = places_of(assignment, [each.pod for each in own], nodes)
        taken = Counter(place_of[each.pod.name] for each in live)
        ended = Counter(place_of[each.pod.name] for each in own if each.pod.phase == "Succeeded")
        for most in (ended, None):
            for at, each in reversed([*enumerate(assignment.domains)]):
                place = (*each.values,)
                empty = counts[at] - taken[place]
                less = max(0, min(free, empty if most is None else min(empty, most[place])))
                counts[at] -= less
                free -= less
                given_back += less
        domains = [
            replace(each, count=count)
            for each, count in zip(assignment.domains, counts, strict=True)
            if count
        ]
        assignments.append(replace(assignment, domains=domains))
    return replace(group.status, assignments=assignments, given_back=given_back)


def count_spared(members: Sequence[Member], job_of: Callable[[Key], Job | None]) -> int:
    """Return how many pods of a group are not created again.

    As many succeeded, or are those of indexes that failed for good.
    """
    by_name: dict[str | None, list[Member]] = {}
    for each in members:
        by_name.setdefault(find_owning_job(each.pod), []).append(each)
    found = 0
    for name, own in by_name.items():
        job = None if name is None else job_of((own[0].pod.namespace, name))
        found += _count_succeeded(own) if job is None else job.pods - _needed_by(job, own)
    return found


def _made_by(job: Job, own: Sequence[Member]) -> int:
    """Return how many pods a Job has at once from now on, as it is."""
    return _needed_by(job, own) if job.active else 0


def _needed_by(job: Job, own: Sequence[Member]) -> int:
    """Return how many pods a Job needs at once from now on for its completions."""
    # the Job counts a pod a little after it has ended, but it also counts those that are gone
    done = max(_count_succeeded(own), job.succeeded)
    if job.completions is None:  # after the first success it makes no more pods
        return sum(not each.pod.finished for each in own) if done else job.pods
    return max(0, min(job.pods, job.completions - done - job.failed_indexes))


def _count_succeeded(members: Sequence[Member]) -> int:
    return sum(each.pod.phase == "Succeeded" for each in members)
