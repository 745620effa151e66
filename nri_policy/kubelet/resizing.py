"""How a kubelet resizes a pod in place: what it asks the runtime for, step by step.

Owns the order. Memory comes before CPU, as each has its own; in each a pod's limit is the first to
grow and the last to shrink, so that no request is ever above it, and of several containers those
that shrink come first. Matches kubelet 1.36 (pkg/kubelet/kuberuntime, doPodResizeAction), which
stops at the first step that the runtime refuses; recordings of real ones are held against it.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from nri_policy.kubelet.resources import Kubelet, cpu_shares
from nri_policy.manifests.pod import PodManifest
from nri_policy.manifests.resources import Amounts, ResourceChange
from nri_policy.proto import nri_pb2 as nri

NO_QUOTA = -1
NO_MEMORY_LIMIT = (1 << 63) - 4096  # what the kernel shows for none


class PodStep(Struct, frozen=True, kw_only=True):
    """UpdatePodSandboxResources: what all containers of the pod may use from now on."""

    resources: nri.LinuxResources


class ContainerStep(Struct, frozen=True, kw_only=True):
    """UpdateContainerResources, for one container."""

    name: str
    change: ResourceChange  # of its own amounts
    resources: nri.LinuxResources  # what the runtime is asked for


def resize_steps(
    kubelet: Kubelet, before: PodManifest, after: PodManifest
) -> Iterator[PodStep | ContainerStep]:
    """Yield what makes of a running pod what *after* says; nothing where nothing differs."""
    total, target = _in_cgroup(kubelet, before), _in_cgroup(kubelet, after)
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


def _in_cgroup(kubelet: Kubelet, pod: PodManifest) -> nri.LinuxResources:
    """Return a pod's amounts as its cgroup (v1) has them: a limit where each container has one.

    Its own where it has resources as a whole counts for each.
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
    """Return the steps for one resource: those that shrink, the last one first, then the others."""
    steps: list[ContainerStep] = []
    for old, new in zip(before.spec.every_container, after.spec.every_container, strict=True):
        limits = before.spec.limit(old, resource), after.spec.limit(new, resource)
        requests = [each.resources.requests.get(resource, 0) for each in (old, new)]
        for was, wanted in (limits, requests):  # by its limit, or by its request where that stays
            if was != wanted:
                message = kubelet.resources(after, new)
                if resource == "memory":  # the CPU is not resized yet
                    message.cpu.CopyFrom(kubelet.resources(before, old).cpu)
                # unlike at its creation, a container without a request has none here
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
    """Return the step that changes one field of *total*, which is changed."""
    part, name = field.split(".")
    getattr(getattr(total, part), name).value = _amount(target, field)
    resources = nri.LinuxResources()
    resources.CopyFrom(total)
    return PodStep(resources=resources)


def _amount(resources: nri.LinuxResources, field: str) -> int:
    part, name = field.split(".")
    amount: int = getattr(getattr(resources, part), name).value
    return amount
