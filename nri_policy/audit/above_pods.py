"""Cgroups above containers, and which of these keep containers off CPUs.

They are the kubelet's top cgroup and those of QoS classes and pods. In a container, such as a node
of kind, the mount point itself has CPUs too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from nri_policy.audit.cgroup_paths import folder_of
from nri_policy.delivery.partition_files import TOPS, ancestors
from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.hardware.sysfs import Folder

MOUNT = ""  # the path of the mount point itself
# cgroups of QoS classes and pods as kubelets name them, for cgroupfs and for systemd
_OF_KUBELET = re.compile(r"burstable|besteffort|pod[-\w]+|kubepods[-\w]*\.slice")


def read_above(top: Folder, file: str, cgroups: Iterable[str]) -> dict[str, CPUSet]:
    """Return the CPUs of cgroups above containers by path, from their *file* where it exists.

    These are the cgroups above *cgroups*, and all below the kubelet's usual top cgroups. An empty
    set means the CPUs of the cgroup above.
    """
    known = filter(None, map(folder_of, cgroups))
    above = {*TOPS, *(each for path in known for each in ancestors(path))}
    for parent in TOPS:
        above |= _below(top, parent)
    files = {each: top.set(f"{each}/{file}") for each in sorted(above)}
    found = {each: cpus for each, cpus in files.items() if cpus is not None}
    if found and (cpus := top.set(file)) is not None:  # if none is found, it is our own pod's
        found[MOUNT] = cpus
    return found


def _below(top: Folder, parent: str) -> set[str]:
    with top.folder(parent) as folder:
        names = filter(_OF_KUBELET.fullmatch, folder.names())
    children = {f"{parent}/{name}" for name in names}
    return children.union(*(_below(top, each) for each in children))


def find_narrow(found: Mapping[str, CPUSet], used: CPUSet) -> dict[str, CPUSet]:
    """Return the cgroups that lack some CPUs of *used* which none above them lacks."""
    narrow: dict[str, CPUSet] = {}
    for path in sorted(found):
        cpus = found[path]
        lost = used - cpus if cpus else EMPTY
        if lost - CPUSet.union(used - narrow[each] for each in _above(path) if each in narrow):
            narrow[path] = cpus
    return narrow


def find_topmost(paths: Iterable[str]) -> list[str]:
    """Return the topmost of *paths*: drop each one that is below another."""
    all_ = {*paths}
    return sorted(each for each in all_ if all_.isdisjoint(_above(each)))


def is_above(path: str, cgroup: str) -> bool:
    """Return whether the cgroup at *path* is above the runtime's *cgroup*."""
    return path in _above(folder_of(cgroup) or MOUNT)


def _above(path: str) -> tuple[str, ...]:
    return (MOUNT, *ancestors(path)) if path else ()
