"""The steps in which a kubelet resizes a pod in place.

Owns their order. Memory comes before CPU. Within each, the pod's limit grows first and shrinks
last, so that no container's limit is above it, and containers that shrink come before the others.
Matches kubelet 1.36 (pkg/kubelet/kuberuntime, doPodResizeAction), which stops at the first step
that the runtime refuses; tests compare recordings of real kubelets.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from nri_policy.kubelet.runtime_requests import Kubelet, cpu_shares
from nri_policy.manifests.pod import PodManifest
from nri_policy.manifests.resources import Amounts, ResourceChange
from nri_policy.proto import nri_pb2 as nri

NO_QUOTA = -1
NO_MEMORY_LIMIT = (1 << 63) - 4096  # the kernel's value for no limit


class PodStep(Struct, frozen=True, kw_only=True):
    """UpdatePodSandboxResources: the limits of the whole pod."""

    resources: nri.LinuxResources


class ContainerStep(Struct, frozen=True, kw_only=True):
    """UpdateContainerResources, for one container."""

    name: str
    change: ResourceChange  # of its own amounts
    resources: nri.LinuxResources  # the request to the runtime


def list_resize_steps(
    kubelet: Kubelet, before: PodManifest, after: PodManifest
) -> Iterator[PodStep | ContainerStep]:
    """Yield the steps from *before* to *after* of a running pod; none if they are equal."""
    total, target = _pod_amounts(kubelet, before), _pod_amounts(kubelet, after)
    for resource in ("memory", "cpu"):
        steps = _container_steps(kubelet, resource, before, after)
        if not steps:
            continue
        limits = ("memory.limit",) if resource == "memory" else ("cpu.quota",)
        requests = ("cpu.shares",) if resource == "cpu" else ()
        for field in (*limits, *requests):
            if _amount(target, field) > _amount(total, field):
                yield _pod_step(total, target, field)
        yield from steps
        for field in (*requests, *limits):
            if _amount(target, field) < _amount(total, field):
                yield _pod_step(total, target, field)


def _pod_amounts(kubelet: Kubelet, pod: PodManifest) -> nri.LinuxResources:
    """Return a pod's amounts in its cgroup (v1): it has a limit if each container has one.

    A pod-level limit counts for each container.
    """
    resources = kubelet.pod_resources(pod)
    if not all(pod.spec.limit(each, "cpu") for each in pod.spec.every_container):
        resources.cpu.quota.value = NO_QUOTA
    if not all(pod.spec.limit(each, "memory") for each in pod.spec.every_container):
        resources.memory.limit.value = NO_MEMORY_LIMIT
    return resources


def _container_steps(
    kubelet: Kubelet, resource: str, before: PodManifest, after: PodManifest
) -> list[ContainerStep]:
    """Return the steps for one resource: first the shrinking ones, the last one first."""
    steps: list[ContainerStep] = []
    for old, new in zip(before.spec.every_container, after.spec.every_container, strict=True):
        limits = before.spec.limit(old, resource), after.spec.limit(new, resource)
        requests = [each.resources.requests.get(resource, 0) for each in (old, new)]
        for was, wanted in (limits, requests):  # the limit decides, else the request
            if was != wanted:
                message = kubelet.resources(after, new)
                if resource == "memory":  # the CPU is resized later
                    message.cpu.CopyFrom(kubelet.resources(before, old).cpu)
                # unlike at its creation, a missing request stays missing here
                of = old if resource == "memory" else new
                message.cpu.shares.value = cpu_shares(of.resources.requests.get("cpu", 0))
                step = ContainerStep(
                    name=new.name,
                    change=ResourceChange(
                        requests=_only(resource, new.resources.requests),
                        limits=_only(resource, new.resources.limits),
                    ),
                    resources=message,
                )
                steps.insert(len(steps) if wanted > was else 0, step)
                break
    return steps


def _only(resource: str, amounts: Amounts) -> Amounts:
    return Amounts({name: amount for name, amount in amounts.items() if name == resource})


def _pod_step(total: nri.LinuxResources, target: nri.LinuxResources, field: str) -> PodStep:
    """Return the step that changes one field of *total*, and change *total*."""
    part, name = field.split(".")
    getattr(getattr(total, part), name).value = _amount(target, field)
    resources = nri.LinuxResources()
    resources.CopyFrom(total)
    return PodStep(resources=resources)


def _amount(resources: nri.LinuxResources, field: str) -> int:
    part, name = field.split(".")
    amount: int = getattr(getattr(resources, part), name).value
    return amount
