"""Amounts: what a container asks for, by the best source there is; spec placement.md §3, §3.2.

The runtime is told cgroup settings, and they are estimates of what the pod's owner wrote. In a pod
that has resources as a whole (KEP-2837) they mislead: the kubelet gives a container without a limit
the pod's, and one without a request the shares of that limit. Rule 1: the exact-resources
annotation counts, then the pod's object, then the estimate. Rule 2: by estimate no container is
taken to have its pod's amounts before some container of the pod has shown what no other pod shows.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from nri_policy.manifests.quality_of_service import QoS
from nri_policy.workload.oom_score import memory_request
from nri_policy.workload.pod import Container, Resources, shares_of
from nri_policy.workload.requirements import PodRequirements, Requirements

_MIN_QUOTA = 1000  # µs; the kubelet gives no limit less


class Source(StrEnum):
    """Where it is known from what a container asks for."""

    ANNOTATION = "annotation"
    OBJECT = "object"  # the pod's, of the API server
    ESTIMATE = "estimate"  # from cgroup settings


class Amounts(Struct, frozen=True, kw_only=True):
    """What a container asks for."""

    milli: int  # milli-CPU
    limit: int | None  # milli-CPU; None for none of its own
    whole: bool  # whether request and limit of its CPU are the same: it can have CPUs of its own
    memory: int  # bytes
    memory_limit: int | None  # bytes; None for none
    pod_memory: int  # bytes of its pod's limit, which it has instead of its own; 0: it has its own
    source: Source


def amounts_of(container: Container, exact: Requirements | None, capacity: int) -> Amounts:
    """Return what *container* asks for; *exact* is what its annotation says.

    *capacity* is the node's memory in bytes, by which the kubelet reckons OOM scores.
    """
    source, known = Source.ANNOTATION, exact
    if known is None:
        source, known = Source.OBJECT, container.requirements
    if known is None:
        source = Source.ESTIMATE
        milli, limit, whole = _estimate(container)
    else:
        milli, limit = _request(known.cpu_request, known.cpu_limit), known.cpu_limit
        whole = not container.pod_level or milli == limit
    memory, memory_limit, pod_memory = _memory(container, known, capacity)
    return Amounts(
        milli=milli,
        limit=limit,
        whole=whole,
        memory=memory,
        memory_limit=memory_limit,
        pod_memory=pod_memory,
        source=source,
    )


def described(container: Container, said: PodRequirements) -> Container:
    """Return *container* with what its pod's object says, as far as that is what it has.

    The object can be newer than the container: of a resize that has not begun.
    """
    ephemeral = container.name not in said.containers  # an older object: it was added since
    container = replace(container, pod_level=said.pod_level, ephemeral=ephemeral)
    requirements = said.containers.get(container.name)
    if requirements is None or container.resized:
        return container
    resources, pod = container.resources, container.pod.amounts
    has = resources.cpu_limit  # none: there is none, or it is not enforced, for it has its own CPUs
    # without a limit of the pod as a whole, `pod` has the sum of those that containers have
    of_pod = pod.cpu_limit if said.pod_level and pod is not None and has is not None else None
    limit = requirements.cpu_limit or of_pod or 0
    request = requirements.cpu_request
    shares = shares_of(limit if request is None else request)
    smallest = _MIN_QUOTA // 100  # limit that there is; a pod with less is shown to have this
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

    By its pod's object, or by its shares where its quota is more than its whole pod has. None where
    nothing says that it was changed.
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
    """Return what a container of known requirements asks for once it has *resources*.

    None where the estimate is as good: in all pods but those with resources as a whole. There what
    a resize leaves alone, or takes from the pod, stays what it was. One that was not *heard* of, so
    that the pod's amounts are older, gives nobody a limit who had none of its own.
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
    """Whether shares are those of the quota, as far as rounding lets them."""
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
    estimate = memory_request(container.resources.oom_score_adj, capacity) or 0
    return estimate if limit is None else min(estimate, limit), limit, 0
