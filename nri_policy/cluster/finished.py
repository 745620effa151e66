"""The places that pods which succeeded give back: those that their group will not need again.

A pod that failed is made anew by its owner and keeps its place. Of pods that succeeded, as many
give theirs back as the group needs fewer from now on: a Job with more completions than parallelism
goes on with new pods. A place that was given back may be another group's: it is never taken again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

from nri_policy.cluster.gates import Place, places_of
from nri_policy.cluster.gathering import Member
from nri_policy.cluster.group import PlacementGroup
from nri_policy.cluster.membership import Job, Key, owning_job
from nri_policy.cluster.node import Node


def given_back(  # noqa: PLR0913, PLR0917 - a group, its pods, and what tells how many it needs
    group: PlacementGroup,
    members: Sequence[Member],
    names: Sequence[str],
    job_of: Callable[[Key], Job | None],
    nodes: Mapping[str, Node],
    before: Collection[Key],
) -> set[Key]:
    """Return the pods that succeeded and whose places are free; those *before* stay.

    *names* are the pod sets of *members*.
    """
    succeeded = [each for each in members if each.pod.phase == "Succeeded"]
    if not succeeded:
        return set()
    back = {_key(each) for each in succeeded} & {*before}
    free = sum(each.count for each in group.pod_sets) - _needed(members, job_of) - len(back)
    for assignment in group.status.assignments:
        own = [
            each for each, name in zip(members, names, strict=True) if name == assignment.pod_set
        ]
        place_of = places_of(assignment, [each.pod for each in own], nodes)
        taken = Counter(
            place_of[each.pod.name] for each in own if not each.pod.finished or _key(each) in back
        )
        empty: Counter[Place | None] = Counter(
            {(*each.values,): each.count for each in assignment.domains}
        )
        empty.subtract(taken)
        for each in sorted(own, key=lambda each: each.pod.name):
            place = place_of[each.pod.name]
            if free > 0 and each in succeeded and _key(each) not in back and empty[place] > 0:
                back.add(_key(each))
                empty[place] -= 1
                free -= 1
    return back


def spared(members: Sequence[Member], job_of: Callable[[Key], Job | None]) -> int:
    """Return how many of a group's pods nobody makes any more, because as many succeeded."""
    return sum(
        _succeeded(own) if job is None else job.pods - _needed_by(job, own)
        for job, own in _by_job(members, job_of)
    )


def _needed(members: Sequence[Member], job_of: Callable[[Key], Job | None]) -> int:
    """Return how many places a group needs from now on."""
    return sum(
        len(own) - _succeeded(own) if job is None else _needed_by(job, own)
        for job, own in _by_job(members, job_of)
    )


def _needed_by(job: Job, own: Sequence[Member]) -> int:
    """Return how many pods a Job has at once from now on."""
    done = max(_succeeded(own), job.succeeded)  # it hears of a pod a little later, of all for good
    if job.completions is None:  # after the first success it makes no more pods
        return sum(not each.pod.finished for each in own) if done else job.pods
    return max(0, min(job.pods, job.completions - done))


def _by_job(
    members: Sequence[Member], job_of: Callable[[Key], Job | None]
) -> list[tuple[Job | None, list[Member]]]:
    """Return *members* by the Job that owns them; None: by none that is known."""
    by_name: dict[str | None, list[Member]] = {}
    for each in members:
        by_name.setdefault(owning_job(each.pod), []).append(each)
    return [
        (None if name is None else job_of((own[0].pod.namespace, name)), own)
        for name, own in by_name.items()
    ]


def _succeeded(members: Sequence[Member]) -> int:
    return sum(each.pod.phase == "Succeeded" for each in members)


def _key(member: Member) -> Key:
    return member.pod.namespace, member.pod.name
