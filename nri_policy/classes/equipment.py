"""Equipment: features of the runtime, the kernel and the disks that classes need."""

from __future__ import annotations

from msgspec import Struct

from nri_policy.hardware.disks import Disk


class Equipment(Struct, frozen=True, kw_only=True):
    """The features of the runtime and the kernel.

    A text says why a feature is missing; empty means that it is there, as far as is known.
    """

    no_scheduler: str = ""  # policy, nice, flags
    no_io_priority: str = ""
    no_realtime: str = ""  # policies fifo and rr
    no_io_limits: str = ""  # of disks
    no_io_updates: str = ""  # changes to the limits of an existing container
    no_partition: str = ""  # a cgroup that is a partition of CPUs
    one_disk: str = ""  # only one disk of a container can have limits
    no_rdt: str = ""  # shares of caches
    rdt_groups: tuple[str, ...] | None = None  # the groups of resctrl; None: not known
    crio: bool = False  # the runtime is CRI-O, which serves its annotations itself
    weights: tuple[str, ...] = ()  # the files for weights of I/O that cgroups have
    disks: tuple[Disk, ...] = ()
    interrupts: tuple[tuple[int, str], ...] = ()  # numbers and names, as far as known
