"""What a request must not say, whatever the cluster has: its rules; spec cluster.md §3."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nri_policy.cluster.objects.assignment import MAX_COUNT
from nri_policy.cluster.objects.document import DocumentError, join
from nri_policy.cluster.objects.node import HOSTNAME
from nri_policy.cluster.requests.annotations import MAX_LAYERS
from nri_policy.cluster.requests.group import PlacementRequest, PodSet, Slice, Together
from nri_policy.cluster.requests.spread_preferences import read_preferences
from nri_policy.cluster.requests.topology_spreading import check_topology_spreading
from nri_policy.foundation.wording import quoted


def require_one_together(found: Mapping[str, Together]) -> Together:
    """Return the only one that is *found* at some places; raises DocumentError for two."""
    place, first = next(iter(found.items()))
    for path, each in found.items():
        if each != first:
            text = f"{each} for pod sets together, but {first} at {place}"
            raise DocumentError(path, text)
    return first


def check_together(together: Together, path: str) -> None:
    """Raise DocumentError unless exactly one level is named."""
    if (together.required is None) == (together.preferred is None):
        raise DocumentError(path, "name one level, as required or as preferred")
    if not together.level:
        raise DocumentError(path, "it is the name of a level")


def check_request(request: PlacementRequest, path: str) -> None:
    """Raise DocumentError for a request that contradicts itself."""
    named = {"required": request.required, "preferred": request.preferred}
    if sum(level is not None for level in named.values()) + request.unconstrained > 1:
        given = [f"{name} {quoted(level)}" for name, level in named.items() if level is not None]
        given += ["unconstrained"] * request.unconstrained
        raise DocumentError(path, f"{' and '.join(given)} exclude each other")
    for name, level in named.items():
        if level == "":
            raise DocumentError(join(path, name), "it is the name of a level")
    if request.exclusive == "":
        raise DocumentError(join(path, "exclusive"), "it is the name of a level")
    _check_slices(request.slices, join(path, "slices"))
    most = request.max_per_host
    if most is not None and not 1 <= most <= MAX_COUNT:
        raise DocumentError(
            join(path, "maxPerHost"), f"{quoted(most)} is not from 1 to {MAX_COUNT}"
        )
    _check_own(request, path)
    if request.topology_spreading is not None:
        check_topology_spreading(request.topology_spreading, join(path, "topologySpreading"))
    read_preferences(request.spread_over, join(path, "spreadOver"))
    if request.slices and request.spread_over:
        raise DocumentError(join(path, "spreadOver"), "pods of slices cannot be spread")
    if request.leader_group is not None and request.leader_group.isdecimal():
        raise DocumentError(
            join(path, "leaderGroup"), f"{quoted(request.leader_group)} must not be a number"
        )


def _check_own(request: PlacementRequest, path: str) -> None:
    """Raise DocumentError for what pods cannot demand of each other."""
    for label, skew in request.max_skew.items():
        if not 1 <= skew <= MAX_COUNT:
            raise DocumentError(join(path, "maxSkew"), f"{label}: {skew} is not from 1")
    if not all(request.apart_over) or not all(request.max_skew):
        raise DocumentError(path, "apartOver and maxSkew have the names of labels")
    if HOSTNAME in request.apart_over:
        raise DocumentError(join(path, "apartOver"), f"for {HOSTNAME} there is maxPerHost: 1")


def _check_slices(slices: Sequence[Slice], path: str) -> None:
    if len(slices) > MAX_LAYERS:
        raise DocumentError(
            path, f"{len(slices)} layers of slices; at most {MAX_LAYERS} are supported"
        )
    for number, each in enumerate(slices):
        place, before = join(path, number), slices[:number]
        if not 1 <= each.size <= MAX_COUNT:
            raise DocumentError(
                join(place, "size"), f"{quoted(each.size)} is not from 1 to {MAX_COUNT}"
            )
        if before and before[-1].size % each.size:
            raise DocumentError(
                join(place, "size"), f"{each.size} does not divide {before[-1].size}"
            )
        if any(each.level == other.level for other in before):
            raise DocumentError(join(place, "level"), f"{quoted(each.level)} is given twice")


def check_whole_slices(pod_set: PodSet, path: str) -> None:
    """Raise DocumentError for pods that are no whole number of slices."""
    slices = pod_set.request.slices if pod_set.request else []
    if slices and pod_set.count % slices[0].size:
        raise DocumentError(
            join(path, "count"),
            f"{pod_set.count} pods are no whole number of slices of {slices[0].size}",
        )


def check_leader_group(name: str, members: Sequence[PodSet]) -> None:
    """Raise DocumentError unless *members* of a leader group are a leader and its workers."""
    path = "spec.podSets"
    if len(members) != 2:
        raise DocumentError(
            path, f"leader group {quoted(name)} has {len(members)} pod sets; it takes exactly two"
        )
    if all(each.count != 1 for each in members):
        counts = " and ".join(str(each.count) for each in members)
        raise DocumentError(
            path, f"leader group {quoted(name)} has pod sets of {counts} pods; one of them has one"
        )
    first, second = (each.request or PlacementRequest() for each in members)
    named = [
        f"{kind} {quoted(level)}"
        for each in (first, second)
        for kind, level in (("required", each.required), ("preferred", each.preferred))
        if level
    ]
    if len({*named}) > 1:
        raise DocumentError(
            path,
            f"leader group {quoted(name)} asks for {' and '.join(named)};"
            " leader and workers name the same",
        )
    if first.topology_spreading != second.topology_spreading:
        raise DocumentError(
            path, f"leader group {quoted(name)} has two pod sets of different topologySpreading"
        )
