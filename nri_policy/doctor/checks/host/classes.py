"""Whether the runtime, the kernel and the disks can do what the settings' classes say."""

from __future__ import annotations

from collections.abc import Iterator

from nri_policy.classes import Equipment
from nri_policy.doctor.facts import UDEV, Facts
from nri_policy.doctor.finding import Finding, Verdict
from nri_policy.foundation.wording import some
from nri_policy.settings import REALTIME, SchedulingClass, SchedulingPolicy, Settings

_UNORDERED = ("none", "kyber")  # schedulers of disks that look at no priority

_KERNEL_SLASHES = 2  # in the kernel's own name of a disk, /dev/sda; a link has more


def check(facts: Facts) -> Iterator[Finding]:
    """Yield which parts of the settings' classes have no effect on this node, and why."""
    settings, equipment = facts.settings, facts.equipment
    if not isinstance(settings, Settings) or equipment is None:
        return
    if settings.scheduling_classes:
        yield from _check_scheduling(settings, equipment, facts)
    if settings.control.blockio.enable and settings.control.blockio.classes:
        yield from _check_blockio(settings, equipment, facts)


def _check_scheduling(settings: Settings, equipment: Equipment, facts: Facts) -> Iterator[Finding]:
    classes, runtime = settings.scheduling_classes, facts.talker
    newer = "upgrade containerd to 2.2.1 or CRI-O to 1.35, and runc to 1.2 or crun to 1.8.6"
    no_scheduler = equipment.no_scheduler or ("" if runtime is None else runtime.no_scheduler)
    no_priority = equipment.no_io_priority or ("" if runtime is None else runtime.no_io_priority)
    if any(map(_schedules, classes)) and no_scheduler:
        yield Finding("classes", Verdict.WARNING, no_scheduler, newer)
    prioritized = any(each.io_class is not None for each in classes)
    if prioritized and no_priority and no_priority != no_scheduler:
        yield Finding("classes", Verdict.WARNING, no_priority, newer)
    if any(each.policy in REALTIME for each in classes) and equipment.no_realtime:
        found = f"no container gets policy fifo or rr: {equipment.no_realtime}"
        yield Finding(
            "classes", Verdict.WARNING, found, "use a kernel without CONFIG_RT_GROUP_SCHED"
        )
    blind = [disk.name for disk in equipment.disks if disk.scheduler in _UNORDERED]
    if prioritized and blind:
        found = f"I/O priorities have no effect on {some(blind)}: their scheduler is none, kyber"
        remedy = "if the disk is slow, write bfq or mq-deadline to /sys/block/DISK/queue/scheduler"
        yield Finding("classes", Verdict.NOTE, found, remedy)


def _schedules(given: SchedulingClass) -> bool:
    return given.policy is not SchedulingPolicy.NONE or given.nice is not None or bool(given.flags)


def _check_blockio(settings: Settings, equipment: Equipment, facts: Facts) -> Iterator[Finding]:
    entries = [each for limits in settings.control.blockio.classes.values() for each in limits]
    if equipment.no_io_limits:
        found = f"block I/O classes are left to the runtime: {equipment.no_io_limits}"
        yield Finding("classes", Verdict.WARNING, found, "boot with cgroup v2 alone")
        return
    there = [path for disk in equipment.disks for path in disk.paths]
    links = {
        glob.pattern
        for each in entries
        for glob in each.devices
        if glob.pattern.count("/") > _KERNEL_SLASHES and not any(map(glob.matches, there))
    }
    if links and facts.kernel is not None and not facts.kernel.udev:
        folder = f"{facts.where.host_root}{UDEV}".replace("//", "/")
        yield Finding(
            "classes",
            Verdict.WARNING,
            f"no disk here is {some(sorted(links))}: {folder}, where udev says which links disks"
            " have, is not there, or empty",
            f"mount the host's {UDEV} there, or name disks as the kernel does (/dev/sda)",
        )
    if any(each.weight is not None for each in entries):
        idle = [d.name for d in equipment.disks if not (d.costed or d.scheduler == "bfq")]
        if idle:
            found = f"I/O weights have no effect on {some(idle)}"
            remedy = "give the disk the scheduler bfq, or io.cost (/sys/fs/cgroup/io.cost.qos)"
            yield Finding("classes", Verdict.NOTE, found, remedy)
    if equipment.one_disk and len(equipment.disks) > 1:
        found = f"a class limits its first disk only: {equipment.one_disk}"
        yield Finding("classes", Verdict.NOTE, found, "upgrade runc to 1.2 or newer")
