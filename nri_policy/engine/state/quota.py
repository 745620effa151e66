"""Quota: the CFS quota of containers with only exclusive CPUs; spec placement.md §3.1.

Their cpuset is their limit, and a quota of as many CPUs only throttles them at the edges of its
periods. So the runtime gets `NO_QUOTA`, and readers of a container's amounts from the runtime or
its cgroup find that: it means "as granted". The kubelet's limit is in the container's amounts, and
in the store.
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
    """Return the quota to send to the runtime, None if none is needed.

    The kubelet's quota is sent only to replace another quota sent before (*told*). An
    unpinned container keeps its quota, because its cpuset is no limit. If the
    amount of a container is `NO_QUOTA`, the runtime has that already.
    """
    limit = container.resources.cpu_quota
    if limit <= 0:
        return limit if limit == NO_QUOTA else told
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
    """Return what is *said* of a container or pod with a removed quota replaced by the *known* one.

    Only a Guaranteed one can lose it, and Kubernetes never removes a limit.
    """
    if said.cpu_quota == NO_QUOTA and known.cpu_quota > 0 and qos is QoS.GUARANTEED:
        return replace(said, cpu_quota=known.cpu_quota, cpu_period=known.cpu_period)
    return said


def with_limit(container: Container) -> Container:
    """Return an unknown container with the quota that it was admitted with.

    The quota of a Guaranteed container equals its request.
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
