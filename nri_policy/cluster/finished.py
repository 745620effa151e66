"""The places that pods which succeeded give back: those that their group will not need again.

A pod that failed is made anew by its owner and keeps its place. As many places are given back as
the group needs fewer pods from now on: a Job with more completions than parallelism goes on with
new pods. They leave the group's stored assignments, so that nobody has to remember them; once that
was written they may be another group's, and are never taken again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from nri_policy.cluster.gates import places_of
from nri_policy.cluster.gathering import Member
from nri_policy.cluster.group import PlacementGroup, Status
from nri_policy.cluster.membership import Job, Key, owning_job
from nri_policy.cluster.node import ClusterNode


def give_back(
    group: PlacementGroup,
    members: Sequence[Member],
    names: Sequence[str],
    job_of: Callable[[Key], Job | None],
    nodes: Mapping[str, ClusterNode],
) -> Status:
    """Return the status of a group without the places that it will not need again.

    They are empty; those of pods that succeeded go first. *names* are the pod sets of *members*.
    """
    wanted = {each.name: each.count for each in group.pod_sets}
    assignments = []
    given_back = group.status.given_back
    for assignment in group.status.assignments:
        own = [
            each for each, name in zip(members, names, strict=True) if name == assignment.pod_set
        ]
        live = [each for each in own if not each.pod.finished]
        counts = [each.count for each in assignment.domains]
        needed = wanted.get(assignment.pod_set, 0) - spared(own, job_of)
        free = sum(counts) - max(needed, len(live))
        place_of = places_of(assignment, [each.pod for each in own], nodes)
        taken = Counter(place_of[each.pod.name] for each in live)
        ended = Counter(place_of[each.pod.name] for each in own if each.pod.phase == "Succeeded")
        for most in (ended, None):
            for at, each in enumerate(assignment.domains):
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


def spared(members: Sequence[Member], job_of: Callable[[Key], Job | None]) -> int:
    """Return how many of a group's pods nobody makes any more, because as many succeeded."""
    return sum(
        _succeeded(own) if job is None else job.pods - _needed_by(job, own)
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
