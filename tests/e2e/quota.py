"""Containers and pods with a CFS quota, and whether it throttles them."""

from __future__ import annotations

import json
from collections.abc import Mapping

from tests.e2e import cgroup
from tests.e2e.kubelet import Container, Kubelet, Pod, guaranteed
from tests.e2e.waiting import eventually

FIFTH = 20_000  # µs in each 100 ms, for each CPU


def busy(kubelet: Kubelet, annotations: Mapping[str, str], *, cpus: int = 1) -> Container:
    """Run a pod of one busy container, with the quota that a kubelet gives the pod's cgroup.

    That is a fifth of the CPUs that the container has for itself: under such a quota it is
    throttled, however loaded the host is.
    """
    amounts = {"requests": {"cpu": str(cpus)}, "limits": {"cpu": str(cpus)}}
    exact = {"noderesource.dev/resources": json.dumps({"containers": {"main": amounts}})}
    pod = kubelet.run_pod(
        "busy", {"main": guaranteed(200 * cpus)}, annotations={**exact, **annotations}
    )
    cgroup.limit(pod.cgroup_parent, FIFTH * cpus)
    spin = " & ".join(["while :; do :; done"] * 2 * cpus)
    container = pod.create("main", command=["/bin/busybox", "sh", "-c", spin])
    container.start()
    return container


def throttled(container: Container) -> tuple[int, int]:
    """Return how often a container and its pod had used up their quota."""
    return cgroup.throttled(container.cgroup), cgroup.throttled(container.pod.cgroup_parent)


def limits(pod: Pod) -> tuple[int | None, int | None]:
    """Return the quotas of a pod and its first container."""
    return cgroup.limit_of(pod.cgroup_parent), cgroup.limit_of(pod.created[0].cgroup)


def become(pod: Pod, wanted: tuple[int | None, int | None]) -> None:
    """Wait until a pod and its first container have these quotas."""
    assert eventually(lambda: limits(pod), lambda found: found == wanted, 600) == wanted
