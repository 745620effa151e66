"""NRI messages to the engine's values and back (nri.md §2.2, §4).

Owns which fields mean what; decides nothing. Absent and empty fields mean "not set" in both
directions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from nri_policy.classes import Classes, Scheduler
from nri_policy.engine.grant import Placement
from nri_policy.manifests.quality_of_service import QoS
from nri_policy.proto import nri_pb2
from nri_policy.settings import IOClass, SchedulingFlag, SchedulingPolicy
from nri_policy.workload.hints import ContainerMount, DeviceFile
from nri_policy.workload.pod import Container, ContainerState, Pod, Resources

# UNKNOWN is what a container is before the runtime has stored it (nri.md §2.5).
_STATES = {
    nri_pb2.CONTAINER_UNKNOWN: ContainerState.CREATED,
    nri_pb2.CONTAINER_CREATED: ContainerState.CREATED,
    nri_pb2.CONTAINER_PAUSED: ContainerState.RUNNING,
    nri_pb2.CONTAINER_RUNNING: ContainerState.RUNNING,
    nri_pb2.CONTAINER_STOPPED: ContainerState.STOPPED,
}
_READ_ONLY = {"ro", "rro"}
_POLICIES = {each: getattr(nri_pb2, f"SCHED_{each.name}") for each in SchedulingPolicy}
_FLAGS = {each: getattr(nri_pb2, f"SCHED_FLAG_{each.name}") for each in SchedulingFlag}
_IO_CLASSES = {each: getattr(nri_pb2, f"IOPRIO_CLASS_{each.name}") for each in IOClass}
_RUNTIMES_OWN = "io.kubernetes."  # containerd and CRI-O annotate each sandbox with a dozen of these
_PAGE_SIZE = re.compile(r"([0-9]{1,6})([KMG])B")
_SHIFTS = {"K": 10, "M": 20, "G": 30}
_DEVICE_KINDS = {"b": "block", "c": "char", "u": "char"}


def pod_of(pod: nri_pb2.PodSandbox) -> Pod:
    """Return the engine's view of a pod."""
    labels, linux = pod.labels, pod.linux
    return Pod(
        id=pod.id,
        uid=pod.uid,
        name=_part(pod.name),
        namespace=_part(pod.namespace),
        qos=QoS.of_cgroup(linux.cgroup_parent),
        labels={key: labels[key] for key in labels},  # `dict` would call Python for each
        annotations=annotations_of(pod),
        amounts=resources_of(linux.pod_resources) if linux.HasField("pod_resources") else None,
    )


def annotations_of(pod: nri_pb2.PodSandbox) -> dict[str, str]:
    """Return a pod's annotations, without those that are the runtime's own."""
    every = pod.annotations
    return {key: every[key] for key in every if not key.startswith(_RUNTIMES_OWN)}


def _part(name: str) -> str:
    """Return *name* as a part of `namespace/pod/container`: no two of these may look alike.

    An API server lets no such character through, but a runtime does.
    """
    return name.replace("%", "%25").replace("/", "%2F") if "/" in name or "%" in name else name


def container_of(pod: nri_pb2.PodSandbox, container: nri_pb2.Container) -> Container:
    """Return the engine's view of a container of *pod*."""
    labels, linux = container.labels, container.linux
    return Container(
        id=container.id,
        pod=pod_of(pod),
        name=_part(container.name),
        state=_STATES.get(container.state, ContainerState.CREATED),
        created=container.created_at,
        labels={key: labels[key] for key in labels},
        resources=resources_of(linux.resources, linux.oom_score_adj.value),
        cgroup=linux.cgroups_path,
    )


def resources_of(resources: nri_pb2.LinuxResources, oom_score_adj: int = 0) -> Resources:
    """Return the engine's view of cgroup settings; a missing message reads as zeros."""
    cpu = resources.cpu
    return Resources(
        cpu_shares=cpu.shares.value,
        cpu_quota=cpu.quota.value,
        cpu_period=cpu.period.value,
        memory_limit=max(0, resources.memory.limit.value),  # -1 is no limit: `crictl update`
        oom_score_adj=oom_score_adj,
        hugepages=_hugepages(resources.hugepage_limits),
        cpus=cpu.cpus,
        mems=cpu.mems,
    )


def _hugepages(limits: Iterable[nri_pb2.HugepageLimit]) -> tuple[tuple[int, int], ...]:
    """Return the limits that are not 0: the kubelet sends one for each size that the node has."""
    sizes = ((_page_size(each.page_size), each.limit) for each in limits if each.limit)
    return tuple(sorted((size, limit) for size, limit in sizes if size))


def _page_size(name: str) -> int:
    """Return the bytes of a huge page by its name in the hugetlb controller, 0 if it is none."""
    match = _PAGE_SIZE.fullmatch(name)
    return 0 if match is None else int(match[1]) << _SHIFTS[match[2]]


def mounts_of(container: nri_pb2.Container) -> tuple[ContainerMount, ...]:
    """Return a container's mounts."""
    return tuple(
        ContainerMount(
            destination=mount.destination,
            source=mount.source,
            writable=_READ_ONLY.isdisjoint(mount.options),
        )
        for mount in container.mounts
    )


def devices_of(container: nri_pb2.Container) -> tuple[DeviceFile, ...]:
    """Return the device files of a container that were given to it, and that it may write to.

    A rule that allows all devices does not count: a privileged container has all device files of
    the host, and was not given any of them in particular.
    """
    rules = container.linux.resources.devices
    return tuple(
        DeviceFile(
            path=device.path,
            kind=_DEVICE_KINDS[device.type],
            number=f"{device.major}:{device.minor}",
        )
        for device in container.linux.devices
        if device.type in _DEVICE_KINDS and _may_write(device, rules)
    )


def _may_write(device: nri_pb2.LinuxDevice, rules: Iterable[nri_pb2.LinuxDeviceCgroup]) -> bool:
    """Return what the last of the device cgroup's rules for writing to *device* says."""
    allowed = False
    for rule in rules:
        named = rule.HasField("major") and rule.major.value >= 0  # -1 is any, too
        if (
            (rule.type or "a") in ("a", device.type.replace("u", "c"))
            and (not named or rule.major.value == device.major)
            and (not rule.HasField("minor") or rule.minor.value in (-1, device.minor))
            and "w" in (rule.access or "rwm")
        ):
            allowed = rule.allow and (named or allowed)
    return allowed


def fill_adjustment(
    linux: nri_pb2.LinuxContainerAdjustment, placement: Placement, classes: Classes | None = None
) -> None:
    """Have a container under creation put where *placement* says, and into its *classes*."""
    _fill(linux.resources, placement)
    if classes is None:
        return
    if classes.blockio is not None and classes.blockio.passed_on:
        linux.resources.blockio_class.value = classes.blockio.name
    if classes.rdt is not None and classes.rdt.group is not None:
        linux.resources.rdt_class.value = classes.rdt.group
    if classes.scheduling is not None:
        scheduler, io = classes.scheduling.scheduler, classes.scheduling.io_priority
        if scheduler is not None:
            linux.scheduler.CopyFrom(_scheduler(scheduler))
        if io is not None:
            linux.io_priority.CopyFrom(
                nri_pb2.LinuxIOPriority(priority=io.level, **{"class": _IO_CLASSES[io.io_class]})
            )


def _scheduler(scheduler: Scheduler) -> nri_pb2.LinuxScheduler:
    return nri_pb2.LinuxScheduler(
        policy=_POLICIES[scheduler.policy],
        nice=scheduler.nice,
        priority=scheduler.priority,
        flags=[_FLAGS[flag] for flag in scheduler.flags],
        runtime=scheduler.runtime,
        deadline=scheduler.deadline,
        period=scheduler.period,
    )


def update_of(
    container_id: str, placement: Placement, *, ignore_failure: bool
) -> nri_pb2.ContainerUpdate:
    """Return the update that moves an existing container where *placement* says.

    *ignore_failure* for other containers than the one asked about: their failure must not fail its
    request (CRI-O does that, nri.md §4).
    """
    update = nri_pb2.ContainerUpdate(container_id=container_id, ignore_failure=ignore_failure)
    _fill(update.linux.resources, placement)
    return update


def _fill(resources: nri_pb2.LinuxResources, placement: Placement) -> None:
    cpu = resources.cpu
    cpu.cpus = str(placement.cpus)
    cpu.mems = str(placement.mems)
    if placement.shares is not None:
        cpu.shares.value = placement.shares
    if placement.quota is not None:
        cpu.quota.value = placement.quota
    if placement.limits:
        resources.unified.update(placement.limits)
