"""Quota: the CFS quota of containers that have nothing but CPUs of their own; placement.md §3.1.

Their cpuset is their limit, and a quota of as many CPUs only throttles them at the edges of its
periods. So the runtime is told `NO_QUOTA`, and whoever reads a container's amounts from the runtime
or its cgroup finds that: there it means "as granted". The limit that the kubelet set is in the
container's amounts, and in the store.
"""

from __future__ import annotations

from msgspec.structs import replace

from nri_policy.engine.grant import Grant
from nri_policy.manifests.quality_of_service import QoS
from nri_policy.settings import ExclusiveQuota
from nri_policy.workload.pod import Container, Resources
from nri_policy.workload.request import Request, Sort

NO_QUOTA = -1


def quota_of(
    container: Container, request: Request, grant: Grant, told: int | None, *, pinned: bool
) -> int | None:
    """Return the quota that the runtime is to know of, None where it need not hear of any.

    It is *told* of the kubelet's only where it was told of another one before. A container that is
    not *pinned* to its CPUs has no other limit.
    """
    limit = container.resources.cpu_quota
    if limit <= 0:
        return told
    if (
        pinned
        and (grant.exclusive or (grant.claimed and container.pod.qos is QoS.GUARANTEED))
        and not grant.shares
        and not grant.rest
        and grant.sort is Sort.NORMAL
        and request.steering.exclusive_quota is ExclusiveQuota.NONE
    ):
        return NO_QUOTA
    return None if told is None else limit


def as_granted(said: Resources, known: Resources, qos: QoS) -> Resources:
    """Return what is *said* of a container, or pod, that is *known*: no quota is the one it had.

    Only a Guaranteed one can lose it, and Kubernetes takes no limit away.
    """
    if said.cpu_quota == NO_QUOTA and known.cpu_quota > 0 and qos is QoS.GUARANTEED:
        return replace(said, cpu_quota=known.cpu_quota, cpu_period=known.cpu_period)
    return said


def with_limit(container: Container) -> Container:
    """Return a container of which nothing is known with the quota that it was admitted with.

    That of a Guaranteed container is its request.
    """
    resources = container.resources
    if (
        resources.cpu_quota != NO_QUOTA
        or container.pod.qos is not QoS.GUARANTEED
        or container.pod_level
    ):
        return container
    quota = resources.cpu_request * resources.cpu_period // 1000
    return replace(container, resources=replace(resources, cpu_quota=quota or NO_QUOTA))
