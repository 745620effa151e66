"""Listed containers: what the runtime lists, against what is known; spec placement.md §10.

Owns which of two witnesses counts, of the list, the stored amounts and the cgroup. Changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from operator import attrgetter

from msgspec.structs import replace

from nri_policy.engine.event import StoredGrant
from nri_policy.engine.state.quota import NO_QUOTA, as_granted, with_limit
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.manifests.quality_of_service import QoS
from nri_policy.workload.amounts import resized_requirements
from nri_policy.workload.pod import Container, Resources, parse_cpus, shares_of

_PAGE = 1 << 16  # bytes; the largest page of any kernel
NO_LIMIT = 1 << 62  # bytes; what cgroup v1 shows for none


def match_stored(
    container: Container, held: Mapping[str, StoredGrant]
) -> tuple[Container, StoredGrant | None]:
    """Return a container that the runtime lists as it was known, and its stored grant, if any."""
    stored = held.get(container.id)
    if stored is None:
        return with_limit(container), None
    if (stored.pod_uid, stored.full_name) != (container.pod.uid, container.full_name):
        return with_limit(container), None
    known = replace(
        container,
        pod=replace(container.pod, amounts=stored.pod_amounts or container.pod.amounts),
        resized=stored.resized,
        created=stored.created or container.created,
        requirements=stored.requirements,
        pod_level=stored.pod_level,
        resources=stored.resources,
    )
    return update_from_list(known, stored.entitlement.milli, container), stored


def update_from_list(known: Container, milli: int, listed: Container) -> Container:
    """Return a *known* container with its present values in the list, after a missed resize.

    The listed CPU shares may be our value for *milli*, not the container's own.
    """
    old, new = known.resources, as_granted(listed.resources, known.resources, known.pod.qos)
    merged = replace(
        old,
        cpu_shares=old.cpu_shares if new.cpu_shares == shares_of(milli) else new.cpu_shares,
        cpu_quota=new.cpu_quota,
        cpu_period=new.cpu_period,
        memory_limit=new.memory_limit,
    )
    state = max(known.state, listed.state)
    if not new.cpu_shares or _amounts(merged) == _amounts(old):  # no shares: unknown to the list
        return replace(known, state=state)
    requirements = resized_requirements(known, merged, heard=False)
    return replace(known, state=state, resources=merged, resized=True, requirements=requirements)


def in_force(
    listed: Container,
    found: Resources,
    known: Resources | None,
    milli: int,
    told: CPUSet | None = None,
) -> Container:
    """Return a container in the runtime's list with its amounts in force, from three sources.

    A runtime may list the amounts at creation (CRI-O after its restart), and what is *known* may be
    from before a resize. The source that agrees with what its cgroup was *found* to have wins. If
    neither agrees, both are older, and the cgroup counts. Its shares may be the ones that we set
    for *milli*. A cgroup without a quota still shows by its CPUs, the ones that it was *told* last,
    that the known amounts are in force.
    """
    said, qos = listed.resources, listed.pod.qos
    latest = found.cpu_shares or (found.cpu_quota == NO_QUOTA and parse_cpus(found.cpus) == told)
    known = said if known is None else _with_amounts(said, known)
    if has(found, known, milli, qos) and (latest or not has(found, said, milli, qos)):
        return replace(listed, resources=known)
    if has(found, said, milli, qos):
        return listed
    says = found.cpu_shares not in (0, known.cpu_shares, shares_of(milli))
    now = replace(known, cpu_shares=found.cpu_shares) if says else known
    # Kubernetes never removes a limit: if there is none, the kernel does not show it, or another
    # program has removed it
    if found.cpu_limit is not None:
        now = replace(now, cpu_quota=found.cpu_quota, cpu_period=found.cpu_period)
        if listed.pod.qos is QoS.GUARANTEED and listed.pod_level is not True:
            now = replace(now, cpu_shares=shares_of(found.cpu_limit))
    if _memory(found):
        now = replace(now, memory_limit=found.memory_limit)
    return replace(listed, resources=now, resized=True)


def _with_amounts(listed: Resources, known: Resources) -> Resources:
    """Return what is *listed*, with the amounts that are *known*."""
    return replace(
        listed,
        cpu_shares=known.cpu_shares,
        cpu_quota=known.cpu_quota,
        cpu_period=known.cpu_period,
        memory_limit=known.memory_limit,
    )


def has(found: Resources, asked: Resources, milli: int, qos: QoS) -> bool:
    """Return whether the amounts *found* in a cgroup match those *asked* for.

    Its shares may be the ones that we set for *milli*, and its quota may have been removed.
    """
    found = as_granted(found, asked, qos)
    same_shares = found.cpu_shares in (0, asked.cpu_shares, shares_of(milli))
    return same_shares and _agrees(found, asked)


def _agrees(found: Resources, said: Resources) -> bool:
    """Return whether a cgroup was *found* to have the CPU and memory limits that are *said*."""
    return _same_cpu(found, said) and _memory(found) == _memory(said)


def _same_cpu(found: Resources, said: Resources) -> bool:
    """Return whether the limits of CPU are the same, or would be for systemd.

    It rounds up to a hundredth of a CPU whenever it writes a scope's quota again.
    """
    one, other = found.cpu_limit, said.cpu_limit
    return one == other or (other is not None and one == -(-other // 10) * 10)


def _memory(resources: Resources) -> int:
    """Return the memory limit, rounded as by the kernel; 0 for none."""
    limit = resources.memory_limit
    return 0 if limit >= NO_LIMIT else limit // _PAGE


def _amounts(resources: Resources) -> tuple[int, int | None, int]:
    return resources.cpu_request, resources.cpu_limit, resources.memory_limit


def deduplicate(containers: Iterable[Container], known: AbstractSet[str]) -> Iterable[Container]:
    """Return existing containers; of two with one id or identity the running, newest (§10).

    If the runtime has no creation times, the one with a *known* id is the newest, because its
    creation was the last event.
    """

    def rank(container: Container) -> tuple[int, int, bool]:
        return container.state, container.created, container.id in known

    for key in (attrgetter("id"), attrgetter("identity")):
        kept: dict[str, Container] = {}
        for container in containers:
            other = kept.get(key(container))
            if other is None or rank(other) < rank(container):
                kept[key(container)] = container
        containers = kept.values()
    return containers
