"""Amounts: a container's requests and limits, by the best source; spec placement.md §3, §3.2.

The runtime has cgroup settings, from which the requests in the manifest can be estimated. In a pod
with pod-level resources (KEP-2837) the estimates are wrong: the kubelet gives a container without a
limit the pod's limit, and one without a request the shares of that limit. Rule 1: the
exact-resources annotation counts first, then the pod's object, then the estimate. Rule 2: an
estimate assumes pod-level amounts only after a container of the pod has shown what is impossible
without them.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from nri_policy.foundation.units import format_cpu
from nri_policy.manifests.quality_of_service import QoS
from nri_policy.workload.pod import Container, Resources, shares_of
from nri_policy.workload.requirements import PodRequirements, Requirements

_LEAST_SCORE, _MOST_SCORE = 3, 999  # of Burstable containers
_MIN_QUOTA = 1000  # µs; the kubelet gives no limit less


class AmountSource(StrEnum):
    """The source of a container's amounts."""

    ANNOTATION = "annotation"
    OBJECT = "object"  # the pod's object in the API server
    ESTIMATE = "estimate"  # from cgroup settings


class ContainerAmounts(Struct, frozen=True, kw_only=True):
    """A container's requests and limits."""

    milli: int  # milli-CPU
    limit: int | None  # milli-CPU; None: the container has no limit
    whole: bool  # its CPU request equals its limit, so it may get exclusive CPUs
    memory: int  # bytes
    memory_limit: int | None  # bytes; None for none
    pod_memory: int  # bytes of the pod-level limit, if that counts instead of its own; else 0
    source: AmountSource
    other_quota: str  # what another plugin made of its CPU quota, as a note; empty: nothing


def amounts_of(container: Container, exact: Requirements | None, capacity: int) -> ContainerAmounts:
    """Return the amounts of *container*; *exact* is from its annotation.

    *capacity* is the node's memory in bytes, with which the kubelet computes OOM scores.
    """
    source, known = AmountSource.ANNOTATION, exact
    if known is None:
        source, known = AmountSource.OBJECT, container.requirements
    if known is None:
        source = AmountSource.ESTIMATE
        milli, limit, whole = _estimate(container)
    else:
        milli, limit = _request(known.cpu_request, known.cpu_limit), known.cpu_limit
        whole = not container.pod_level or milli == limit
    memory, memory_limit, pod_memory = _memory(container, known, capacity)
    return ContainerAmounts(
        milli=milli,
        limit=limit,
        whole=whole,
        memory=memory,
        memory_limit=memory_limit,
        pod_memory=pod_memory,
        source=source,
        other_quota=_note_other_quota(container),
    )


def described(container: Container, said: PodRequirements) -> Container:
    """Return *container* with the requirements in its pod's object, if they are its present ones.

    The object can be newer than the container: it may have a resize that has not begun.
    """
    ephemeral = container.name not in said.containers  # an older object: it was added since
    container = replace(container, pod_level=said.pod_level, ephemeral=ephemeral)
    requirements = said.containers.get(container.name)
    if requirements is None or container.resized:
        return container
    resources, pod = container.resources, container.pod.amounts
    has = resources.cpu_limit  # None: no limit, or not enforced because its CPUs are exclusive
    # without a pod-level limit, `pod` has the sum of the containers' limits
    of_pod = pod.cpu_limit if said.pod_level and pod is not None and has is not None else None
    limit = requirements.cpu_limit or of_pod or 0
    request = requirements.cpu_request
    shares = shares_of(limit if request is None else request)
    smallest = _MIN_QUOTA // 100  # the least limit: a pod with less has this one
    unclear = request is None and of_pod == smallest and resources.cpu_shares <= shares
    same_shares = not resources.cpu_shares or abs(resources.cpu_shares - shares) <= 1 or unclear
    same_limit = has is None or has == max(limit, smallest)
    # a resize changes both; a quota alone is another plugin's (§3.0)
    if container.pod.qos is QoS.GUARANTEED and not said.pod_level and resources.cpu_shares:
        same_limit = same_limit or same_shares
    return (
        replace(container, requirements=requirements) if same_shares and same_limit else container
    )


def limit_before_others(container: Container) -> int | None:
    """Return the CPU limit of a Guaranteed container whose quota another plugin changed (§3.0).

    From its pod's object, or from its shares if its quota is larger than its whole pod's. None if
    there is no sign of a change.
    """
    resources, pod = container.resources, container.pod
    has, known = resources.cpu_limit, container.requirements
    if pod.qos is not QoS.GUARANTEED or has is None or container.pod_level or container.resized:
        return None
    if known is not None:
        own = known.cpu_limit or 0
        return own if own and has != max(own, _MIN_QUOTA // 100) else None
    whole = None if pod.amounts is None else pod.amounts.cpu_limit
    own = resources.cpu_request
    return own if whole is not None and has > whole >= own > 0 else None


def _note_other_quota(container: Container) -> str:
    """Return which quota another plugin has given a container instead of its own (§3.0)."""
    own, has = limit_before_others(container), container.resources.cpu_limit
    if own is None or has is None:
        return ""
    before, now = format_cpu(own), format_cpu(has)
    return f"another plugin changed its CPU quota from {before} to {now}: it is placed by {before}"


def shows_pod_level(container: Container) -> bool:
    """Whether a container's amounts are such as only a pod with resources as a whole has them.

    Those that it was created with: a pod's amounts may be older than those of a resized container.
    """
    resources, pod = container.resources, container.pod
    shares, period = resources.cpu_shares, resources.cpu_period
    if container.resized or not shares or limit_before_others(container) is not None:
        return False
    if pod.qos is QoS.GUARANTEED:
        if period > 0 and shares == resources.cpu_quota * 1024 // period:  # nearly all
            return False
        return resources.cpu_limit is not None and not _of_quota(resources)
    return pod.qos is QoS.BURSTABLE and pod.amounts is not None and _above(resources, pod.amounts)


def resized_requirements(
    container: Container, resources: Resources, *, heard: bool = True
) -> Requirements | None:
    """Return a container's requirements after a resize to *resources*.

    None if the estimate is as good: in all pods without pod-level resources. In the others,
    requirements that the resize does not change, or that are the pod's, stay. If the resize event
    was missed (not *heard*), the pod's amounts are stale: add no limit to a container without one.
    """
    known, before, pod = container.requirements, container.resources, container.pod.amounts
    if known is None or not container.pod_level:
        return None
    request, limit, memory = known.cpu_request, known.cpu_limit, known.memory_limit
    cpu = resources.cpu_limit
    takes_pods = not heard or (pod is not None and cpu == pod.cpu_limit)
    if cpu != before.cpu_limit and not (limit is None and takes_pods):
        limit = cpu
    if resources.cpu_shares != before.cpu_shares:
        request = limit if limit is not None and _of_quota(resources) else resources.cpu_request
    takes_pods = not heard or (pod is not None and resources.memory_limit == pod.memory_limit)
    if resources.memory_limit != before.memory_limit and not (memory is None and takes_pods):
        memory = resources.memory_limit
    return Requirements(
        cpu_request=request,
        cpu_limit=limit,
        memory_request=known.memory_request,
        memory_limit=memory,
    )


def _request(request: int | None, limit: int | None) -> int:
    return (limit if request is None else request) or 0


def _estimate(container: Container) -> tuple[int, int | None, bool]:
    """Return requested and limiting milli-CPU, and whether they are the same by what is known."""
    resources, pod = container.resources, container.pod.amounts
    limit, guaranteed = resources.cpu_limit, container.pod.qos is QoS.GUARANTEED
    if not container.pod_level:
        if guaranteed and limit is not None:  # the quota is exact where shares are rounded
            own = limit_before_others(container) or limit
            return own, own, True
        return resources.cpu_request, limit, True
    of_pod = pod is not None and limit is not None and limit == pod.cpu_limit
    own_limit = None if of_pod else limit
    if guaranteed and limit is not None and _of_quota(resources):
        if of_pod:
            return 0, None, False
        return limit, limit, True
    if not guaranteed and pod is not None and _above(resources, pod):
        return 0, own_limit, False
    return resources.cpu_request, own_limit, False


def _above(resources: Resources, pod: Resources) -> bool:
    """Whether a container's shares are more than those of its pod."""
    return 0 < pod.cpu_shares < resources.cpu_shares


def _of_quota(resources: Resources) -> bool:
    """Return whether the shares match the quota, within rounding."""
    limit, shares = resources.cpu_limit or 0, resources.cpu_shares
    if 0 < resources.cpu_quota <= _MIN_QUOTA:
        return shares <= shares_of(limit)
    return abs(shares - shares_of(limit)) <= 1


def _memory(
    container: Container, known: Requirements | None, capacity: int
) -> tuple[int, int | None, int]:
    """Return the bytes requested, the limit, and the bytes of the pod's limit if it has that one.

    A Burstable container's request is in its OOM score only (nri.md §7), with its share of what the
    pod requests as a whole: there the score is better than what the container alone requests.
    """
    limit = container.resources.memory_limit or None
    guaranteed = container.pod.qos is QoS.GUARANTEED
    if container.pod_level and guaranteed and limit is not None:
        pod = container.pod.amounts
        own = pod is None or limit != pod.memory_limit
        if known is not None:
            own = known.memory_limit is not None
        return (limit, limit, 0) if own else (0, limit, limit)
    if known is not None and not container.pod_level:
        return _request(known.memory_request, known.memory_limit), known.memory_limit, 0
    if container.pod.qos is not QoS.BURSTABLE:
        return limit or 0, limit, 0
    estimate = request_by_score(container.resources.oom_score_adj, capacity) or 0
    return estimate if limit is None else min(estimate, limit), limit, 0


def request_by_score(oom_score_adj: int, capacity: int) -> int | None:
    """Return the least memory request in bytes that gives this score on a node of *capacity*.

    For Burstable containers the kubelet encodes the request in oom_score_adj as 1000 - 1000 *
    request / capacity, in integers. At most 0.1 % of the capacity too little; 0 for the highest
    score, which is also that of a container without a request. None for a score that the kubelet
    gives to no Burstable container.
    """
    if not _LEAST_SCORE <= oom_score_adj <= _MOST_SCORE:
        return None
    if oom_score_adj == _MOST_SCORE:
        return 0
    return -(-(1000 - oom_score_adj) * capacity // 1000)
